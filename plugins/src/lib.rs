//! The plugins, a folder each: setup, handler, metrics, line of `explain`, tests and page. No folder imports another's. What
//! each query with `hosts` and `cache` counts is in `metrics::counters::ZoneCounters`.
//!
//! [`table`] has a row for each, in the order in which they act; [`setup`] reads a Corefile by it.

mod admin_address;
mod cluster_zone;
mod host_name;
mod name_text;
mod network;
pub mod setup;
pub mod table;
#[cfg(test)]
mod testing;

pub mod acl;
pub mod any;
pub mod autopath;
pub mod bind;
pub mod bufsize;
pub mod cache;
pub mod chaos;
pub mod debug;
pub mod errors;
pub mod forward;
pub mod header;
pub mod health;
pub mod hosts;
pub mod k8s_external;
pub mod kubernetes;
pub mod loadbalance;
pub mod log;
pub mod r#loop;
pub mod metadata;
pub mod minimal;
pub mod multisocket;
pub mod nsid;
pub mod prometheus;
pub mod ready;
pub mod reload;
pub mod rewrite;
pub mod root;
pub mod template;
pub mod timeouts;
pub mod tls;
pub mod transfer;
pub mod whoami;
