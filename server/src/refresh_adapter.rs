//! This server's implementation of `refresh`'s traits: the files of `hosts` directives, the
//! tables that serve them, and upstreams for lookups.

use std::net::SocketAddr;
use std::sync::Arc;

use refresh::{Environment, Once, RefreshedFile, RefreshedFiles, Server, Upstreams};
use tokio::runtime::Handle;
use wire::Name;

use crate::reload_state::StatusReader;
use crate::status::Status;
use configuration::Configuration;
use listen::ServerState;
use logging::Logger;
use plugin::Spec;

/// Refreshes the names once, without a server, by [`refresh::once`].
///
/// # Errors
/// The error in one line.
pub fn once(
    request: &Once,
    environment: &Environment,
    corefile: Option<(&Spec, &Configuration)>,
    runtime: &Handle,
) -> Result<(Vec<u8>, String), String> {
    let (plans, upstreams) = corefile
        .map(|(spec, configuration)| (plugins::hosts::plans(spec, environment), upstreams(configuration)))
        .unwrap_or_default();
    refresh::once(request, environment, plans, &upstreams, runtime)
}

fn upstreams(configuration: &Configuration) -> Upstreams {
    let ours = configuration.endpoints.keys().map(|endpoint| endpoint.address).collect();
    Upstreams { ours, forwarded: forwarded(configuration) }
}

fn forwarded(configuration: &Configuration) -> Vec<SocketAddr> {
    let root = configuration.zones.iter().filter(|zone| zone.zone == Name::ROOT);
    let Some(forwarding) = root.filter_map(|zone| zone.block.pipeline.forwarding()).next() else {
        return Vec::new();
    };
    let stanzas = forwarding.chain.stanzas().iter().filter(|stanza| stanza.matches(&Name::ROOT));
    let upstreams = stanzas.flat_map(|stanza| stanza.upstreams().to_vec());
    upstreams.filter(|upstream| upstream.tls().is_none()).map(|upstream| upstream.address()).collect()
}

/// This server, as `refresh` uses it.
pub struct RefreshAdapter {
    pub(crate) running: Arc<ServerState>,
    pub(crate) status: Status,
}

impl Server for RefreshAdapter {
    fn serve(&self, kept: &RefreshedFile) {
        self.running.shared.hosts.serve(kept);
    }

    fn upstreams(&self) -> Upstreams {
        upstreams(&self.running.configuration.load())
    }

    fn status(&self) -> serde_json::Value {
        self.status.json(&self.running, StatusReader::Owner)
    }

    fn kept(&self) -> &RefreshedFiles {
        &self.running.shared.hosts.kept
    }

    fn environment(&self) -> &Environment {
        &self.running.shared.environment
    }

    fn runtime(&self) -> &Handle {
        &self.running.shared.handle
    }

    fn logger(&self) -> &Logger {
        &self.running.logger
    }
}

#[cfg(test)]
mod tests;
