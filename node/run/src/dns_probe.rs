//! Checks whether a DNS server, this one or another, answers at an address, as a client on this
//! node sees it.

use std::net::IpAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use wire::{Class, Flags, Name, RType};

use crate::self_probe::{self, DNS_PORT};

/// Returns the addresses at which a DNS server answers. Each address is queried for the probe names
/// of the localdns servers that claim it, which need no upstream, and then for the root's name
/// servers, as by `dig . NS @ADDRESS`; any reply counts. Must not run on tokio's threads.
pub(super) fn answering(addresses: &[(IpAddr, Vec<Name>)]) -> Vec<IpAddr> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    runtime.block_on(async {
        // Concurrently: all addresses must be queried within the few seconds of a kubelet's probe.
        let mut asked = JoinSet::new();
        for (ip, probes) in addresses.iter().cloned() {
            asked.spawn(async move { answers(ip, &probes).await.then_some(ip) });
        }
        asked.join_all().await.into_iter().flatten().collect()
    })
}

async fn answers(ip: IpAddr, probes: &[Name]) -> bool {
    let own = probes.iter().map(|name| (self_probe::query(name), OWN));
    let root =
        || (stub_resolver::query(rand::random(), Flags::RD, &Name::ROOT, RType::NS, Class::IN), PATIENCE);
    for (query, patience) in own.chain([root(), root()]) {
        let asked = async {
            let socket = stub_resolver::udp_socket((ip, DNS_PORT).into(), None).await?;
            stub_resolver::over_udp(&socket, &query).await
        };
        if matches!(tokio::time::timeout(patience, asked).await, Ok(Ok(_))) {
            return true;
        }
    }
    false
}

/// Time limit of a query for a localdns's probe name, which needs no lookup.
const OWN: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);
