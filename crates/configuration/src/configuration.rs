//! [`Configuration`]: a Corefile ready to serve, as plain data.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use admin::AdminAddress;
use logging::Logger;
use node::SourcePorts;
use plugin::endpoint::{Endpoint, Transport, host_text};
use plugins::https::HttpsLimits;
use plugins::proxyproto::ProxyProtocol;
use plugins::quic::QuicLimits;
use plugins::reload::ReloadSpec;
use plugins::timeouts::TimeoutsSpec;
use plugins::tls::ServerTls;
use query::{Block, ServedEndpoint, ServedZone};

use crate::reload_state::PersistentState;

/// One configuration, ready to serve.
pub struct Configuration {
    /// Every endpoint with its zones, sorted.
    pub endpoints: BTreeMap<Endpoint, EndpointPlan>,
    /// Every server block, in file order.
    pub blocks: Vec<Arc<Block>>,
    /// Every served zone, by its index.
    pub zones: Vec<Arc<ServedZone>>,
    /// The number of UDP sockets for each address: `multisocket`.
    pub sockets: usize,
    /// The first `reload` in the file.
    pub reload: Option<ReloadSpec>,
    /// How long to serve after SIGTERM: the longest `lameduck`.
    pub lameduck: Duration,
    /// Admin listeners.
    pub admin: AdminPlan,
    /// Whether any block has `debug`.
    pub debug: bool,
    /// Whether `ready` checks plugins again that were ready once.
    pub asks_ready_again: bool,
    /// Hosts files with refreshed names.
    pub keep: Vec<refresh::RefreshPlan>,
    /// Source ports of queries to upstreams; read again for each configuration.
    pub source_ports: SourcePorts,
}

/// The addresses at which /health, /ready and /metrics are served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AdminPlan {
    /// Addresses of `health`.
    pub health: Vec<AdminAddress>,
    /// Addresses of `ready`.
    pub ready: Vec<AdminAddress>,
    /// Addresses of `prometheus`.
    pub metrics: Vec<AdminAddress>,
}

/// The zones and settings of one endpoint.
pub struct EndpointPlan {
    /// The endpoint's zones, and the counters of queries that are within none of them.
    pub served: ServedEndpoint,
    /// TCP limits; the first block that has `timeouts` decides for its address.
    pub timeouts: TimeoutsSpec,
    /// The PROXY protocol; the last block that has `proxyproto` decides for its address.
    pub proxy: Option<Arc<ProxyProtocol>>,
    /// The TLS configuration; `None` for plain DNS, and for DNS over HTTPS in plain text.
    pub tls: Option<Arc<ServerTls>>,
    /// The bounds of an endpoint for DNS over HTTPS.
    pub https: HttpsLimits,
    /// The bounds of an endpoint for DNS over QUIC.
    pub quic: QuicLimits,
}

impl Configuration {
    /// Reads every hosts file that has not been read yet, so that no query is answered before its table exists.
    pub fn look_at_files(&self, shared: &PersistentState, now: Instant, logger: &Logger) {
        shared.hosts.kept.prepare(&self.keep, &shared.environment, now);
        let tables = shared.hosts.all();
        // All files are read concurrently, so that files that hang share one timeout.
        for table in &tables {
            table.glance(now, logger);
        }
        let began = clock::now();
        for table in &tables {
            table.look_for(now, files::READ_TIMEOUT.saturating_sub(clock::now() - began), logger);
        }
    }

    /// Returns the lines that CoreDNS prints at start: `ZONE:PORT`, followed by ` on ADDRESS` for a
    /// specific address.
    pub fn banner(&self) -> Vec<String> {
        let mut lines: Vec<(String, String)> = self
            .zones
            .iter()
            .map(|zone| {
                let Endpoint { transport, address } = zone.endpoint;
                // CoreDNS prints no scheme for plain DNS.
                let scheme = match transport {
                    Transport::Dns => String::new(),
                    other => format!("{}://", other.name()),
                };
                let mut line = format!("{scheme}{}:{}", zone.zone, address.port());
                if !address.ip().is_unspecified() {
                    line += &format!(" on {}", host_text(address));
                }
                (zone.endpoint.address_text(), line)
            })
            .collect();
        // CoreDNS sorts the zones of each address, but not the addresses.
        lines.sort();
        lines.dedup();
        lines.into_iter().map(|(_, line)| line).collect()
    }
}
