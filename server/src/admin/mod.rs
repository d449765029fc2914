//! `/metrics`, `/health`, `/ready` over HTTP, and what the process tells about itself.
//!
//! ```text
//! plan -> prepare (bind aside) -> commit (swap) -> listeners that outlive reloads -> connections -> pages
//! ```
//!
//! Runs on the tokio runtime, beside the queries' threads. It is handed what the pages say as plain functions and knows
//! no plugin, no zone and no configuration snapshot.

mod connection;
mod listen;
mod probe;
mod process;
mod server;

pub use listen::AdminError;
pub use probe::HealthProbe;
pub use process::Process;
pub use server::{AdminServer, Content, Pages, Plan, Prepared};

#[cfg(test)]
mod tests;
