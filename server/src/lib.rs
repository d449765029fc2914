//! localdns, a DNS server for Kubernetes nodes that reads CoreDNS's Corefile.
//!
//! ```text
//! bytes in -> listen -> accept -> route -> pipeline { sources | cache, forward | tail } -> finish -> bytes out -> observe
//! ```
//! Data flows in one direction, through each crate once: see the drawing in ARCHITECTURE.md.

mod admin_pages;
pub mod cli;
pub mod corefile_source;
mod file_watcher;
pub mod lifecycle;
mod metrics;
pub mod next_process;
pub mod refresh_adapter;
mod reload_state;
pub mod signals;
mod stale_rules;
mod status;
pub mod status_client;
mod warm_start;
mod watchdog;
