//! `/metrics`, `/health`, `/ready`, `/status` and the page that shows it over HTTP, and what the process tells about itself.
//!
//! ```text
//! plan -> prepare (bind aside) -> commit (swap) -> listeners that outlive reloads -> connections -> pages
//! ```
//!
//! Connections run on a tokio runtime of their own, and pages of /metrics are made on a further thread: neither takes a
//! moment from who serves queries. It is handed what the pages say as plain functions and knows
//! no plugin, no zone and no configuration snapshot.

mod address;
mod connection;
mod listen;
mod made;
mod negotiate;
mod pages;
mod probe;
mod process;
mod scrape;
mod server;
mod slots;
mod status_page;
mod watched;

pub use address::AdminAddress;
pub use listen::AdminError;
pub use made::Make;
pub use pages::{NotReady, Pages, ServedPages};
pub use probe::HealthProbe;
pub use process::Process;
pub use server::{AdminServer, AdminThread, Content, Prepared};

#[cfg(test)]
mod tests;
