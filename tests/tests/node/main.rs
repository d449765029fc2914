//! The machine around the server: rules and leases, as the kernel, `nft` and clients see them.

mod host_resolver;
mod iptables;
mod lab;
mod leases;
mod never_dark;
mod node_cache;
mod rules;
mod status;
mod up_and_down;
mod upgrade;
mod upstreams;
