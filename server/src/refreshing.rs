//! This server, as the crate `refresher` sees it: the files that `hosts` directives name, the tables that serve them, and
//! whom it asks.

use std::net::SocketAddr;
use std::sync::Arc;

use refresher::{Environment, Kept, KeptRegistry, Once, Server, Upstreams};
use tokio::runtime::Handle;
use wire::Name;

use configuration::House;
use listen::Running;
use observe::Logger;
use plugin::Spec;

/// Does one round without a server, as [`refresher::once`].
///
/// # Errors
/// One line.
pub fn once(
    wish: &Once,
    environment: &Environment,
    corefile: Option<(&Spec, &House)>,
    runtime: &Handle,
) -> Result<(Vec<u8>, String), String> {
    let (plans, upstreams) = corefile
        .map(|(spec, house)| (configuration::plans(spec, environment), upstreams(house)))
        .unwrap_or_default();
    refresher::once(wish, environment, plans, &upstreams, runtime)
}

fn upstreams(house: &House) -> Upstreams {
    let ours = house.listeners.keys().map(|endpoint| endpoint.address).collect();
    Upstreams { ours, forwarded: forwarded(house) }
}

fn forwarded(house: &House) -> Vec<SocketAddr> {
    let root = house.zones.iter().filter(|zone| zone.zone == Name::ROOT);
    let Some(dial) = root.filter_map(|zone| zone.block.pipeline.dial()).next() else { return Vec::new() };
    let groups = dial.chain.groups().iter().filter(|group| group.matches(&Name::ROOT));
    let upstreams = groups.flat_map(|group| group.upstreams().to_vec());
    upstreams.filter(|upstream| upstream.tls().is_none()).map(|upstream| upstream.address()).collect()
}

/// This server, to whoever keeps its names true.
pub struct Refreshed(pub Arc<Running>);

impl Server for Refreshed {
    fn serve(&self, kept: &Kept) {
        self.0.shared.hosts.serve(kept);
    }

    fn upstreams(&self) -> Upstreams {
        upstreams(&self.0.house.load())
    }

    fn kept(&self) -> &KeptRegistry {
        &self.0.shared.hosts.kept
    }

    fn environment(&self) -> &Environment {
        &self.0.shared.environment
    }

    fn runtime(&self) -> &Handle {
        &self.0.shared.handle
    }

    fn logger(&self) -> &Logger {
        &self.0.logger
    }
}

#[cfg(test)]
mod tests;
