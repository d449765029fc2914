//! Whether a DNS server, this one or another, answers at an address, as a client of this node sees it.

use std::net::IpAddr;
use std::time::Duration;

use wire::{Class, Flags, Name, RType};

use crate::watchdog::DNS_PORT;

/// Asks for the root's name servers, as `dig . NS @ADDRESS`: whoever says anything answers. Not for threads of tokio.
pub(super) fn answers(ip: IpAddr) -> bool {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return false;
    };
    let asked = || async {
        let socket = resolver::udp_socket((ip, DNS_PORT).into(), None).await?;
        let query = resolver::query(rand::random(), Flags::RD, &Name::ROOT, RType::NS, Class::IN);
        resolver::over_udp(&socket, &query).await
    };
    (0..2).any(|_| {
        matches!(runtime.block_on(async { tokio::time::timeout(PATIENCE, asked()).await }), Ok(Ok(_)))
    })
}

const PATIENCE: Duration = Duration::from_secs(2);
