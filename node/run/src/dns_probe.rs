//! Whether a DNS server, this one or another, answers at an address, as a client of this node sees it.

use std::net::IpAddr;
use std::time::Duration;

use tokio::task::JoinSet;
use wire::{Class, Flags, Name, RType};

use crate::self_probe::{self, DNS_PORT};

/// At which of these addresses anybody answers: first a server of ours is asked by its own probe's name, for which it asks
/// nobody else, where one says that it answers there; then everybody for the root's name servers, as `dig . NS @ADDRESS`: whoever says
/// anything answers. Not for threads of tokio.
pub(super) fn answering(addresses: &[(IpAddr, Vec<Name>)]) -> Vec<IpAddr> {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    runtime.block_on(async {
        // Together: a probe of the kubelet's waits for a few seconds, and not for those of every address.
        let mut asked = JoinSet::new();
        for (ip, probes) in addresses.iter().cloned() {
            asked.spawn(async move { answers(ip, &probes).await.then_some(ip) });
        }
        asked.join_all().await.into_iter().flatten().collect()
    })
}

async fn answers(ip: IpAddr, probes: &[Name]) -> bool {
    let own = probes.iter().map(|name| (self_probe::query(name), OWN));
    let root = || (resolver::query(rand::random(), Flags::RD, &Name::ROOT, RType::NS, Class::IN), PATIENCE);
    for (query, patience) in own.chain([root(), root()]) {
        let asked = async {
            let socket = resolver::udp_socket((ip, DNS_PORT).into(), None).await?;
            resolver::over_udp(&socket, &query).await
        };
        if matches!(tokio::time::timeout(patience, asked).await, Ok(Ok(_))) {
            return true;
        }
    }
    false
}

/// How long a server may take for its own probe, for which it looks nothing up.
const OWN: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(2);
