//! localdns, a DNS server for Kubernetes nodes that reads CoreDNS's Corefile.
//!
//! ```text
//! bytes in -> listen -> gate -> route -> pipeline { template, hosts | cache, forward | whoami } -> finish -> bytes out -> observe
//! ```
//! One direction, each room entered once. ARCHITECTURE.md draws the house.

mod circles;
pub mod cli;
pub mod control;
pub mod endpoint;
pub mod evaluation;
mod explain;
pub mod failure;
mod files;
pub mod held;
pub mod house;
pub mod listen;
#[cfg(test)]
mod mishap;
pub mod node_run;
pub mod origin;
pub mod pipeline;
pub mod plugin;
pub mod refreshing;
mod report;
pub mod route;
pub mod running;
pub mod serve;
pub mod setup;
pub mod signals;
mod sync;
mod text;
mod watchdog;
mod zonetext;

pub use admin;
pub use clock;
pub(crate) use clock::pace;
pub use explain::explain;
pub use observe;
