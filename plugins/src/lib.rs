//! The plugins, one folder each: setup, handler, metrics, line of `explain`, tests, page
//! (`README.md`) and comparisons with CoreDNS (`coredns.txt`). No folder imports from another.
//!
//! [`plugin_cfg`] has a row for each plugin, in the order in which plugins act; [`read_corefile`]
//! parses a Corefile with these rows. Counters of `hosts` and `cache` are fields of
//! `metrics::counters::ZoneCounters`.

mod followed;
mod host_name;
mod http_listen;
mod kubernetes_zone;
mod name_display;
pub mod plugin_cfg;
pub mod read_corefile;
mod server_counters;
#[cfg(test)]
mod testing;
mod zone_answer;
mod zone_file;

pub mod acl;
pub mod any;
pub mod auto;
pub mod autopath;
pub mod bind;
pub mod bufsize;
pub mod cache;
pub mod cancel;
pub mod chaos;
pub mod debug;
pub mod dns64;
pub mod erratic;
pub mod errors;
pub mod file;
pub mod forward;
pub mod header;
pub mod health;
pub mod hosts;
pub mod https;
pub mod k8s_external;
pub mod kubernetes;
pub mod loadbalance;
pub mod local;
pub mod log;
pub mod r#loop;
pub mod metadata;
pub mod minimal;
pub mod multisocket;
pub mod nsid;
pub mod prometheus;
pub mod proxyproto;
pub mod quic;
pub mod ready;
pub mod reload;
pub mod rewrite;
pub mod root;
pub mod shed;
pub mod template;
pub mod timeouts;
pub mod tls;
pub mod transfer;
pub mod view;
pub mod whoami;
