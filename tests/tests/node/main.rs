//! The machine around the server: rules and leases, as the kernel, `nft` and clients see them.

mod bad_input;
mod chaos;
mod clients;
mod deaths;
mod exporter;
mod host_resolver;
mod iptables;
mod lab;
mod leases;
mod manifest;
mod networkd;
mod never_dark;
mod node_cache;
mod node_local;
mod overload;
mod pods;
mod restart;
mod rules;
mod status;
mod status_page;
mod trials;
mod up_and_down;
mod upgrade;
mod upstreams;
mod wall_clock;
mod without_nft;
