//! The HTTP server of `/metrics`, `/health`, `/ready`, `/status` and the status page, and metrics of the process.
//!
//! ```text
//! plan -> prepare (bind) -> commit (swap) -> listeners that outlive reloads -> connections -> pages
//! ```
//!
//! Connections run on a separate tokio runtime, and pages of /metrics are rendered on another thread, so that queries wait for
//! neither. The contents of pages are passed in as functions: the crate knows no plugin, no zone and no configuration.

mod address;
mod connection;
mod connection_table;
mod listen;
mod negotiate;
mod overload_probe;
mod page_cache;
mod pages;
mod process;
mod scrape;
mod server;
mod stall_timeout;
mod status_page;

pub use address::AdminAddress;
pub use listen::AdminError;
pub use overload_probe::HealthProbe;
pub use page_cache::RenderFn;
pub use pages::{NotReady, Pages, ServedPages};
pub use process::Process;
pub use server::{AdminServer, AdminThread, PageSources, Prepared};

#[cfg(test)]
mod tests;
