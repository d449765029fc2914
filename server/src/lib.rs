//! localdns, a DNS server for Kubernetes nodes that reads CoreDNS's Corefile.
//!
//! ```text
//! bytes in -> listen -> gate -> route -> pipeline { sources | cache, forward | tail } -> finish -> bytes out -> observe
//! ```
//! One direction, each crate entered once: ARCHITECTURE.md draws them.

pub mod ask_status;
pub mod cli;
pub mod control;
mod files;
mod left_rules;
mod metrics;
pub mod origin;
mod pages;
pub mod refreshing;
mod reloads;
pub mod signals;
mod status;
pub mod successor;
mod warm;
mod watchdog;
