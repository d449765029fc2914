//! Hears of addresses that are taken from the machine.

use std::time::Duration;

use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::time::sleep;

use crate::Ours;

/// Calls `gone` when an address that may be ours was taken away, and where one may have been: at first, when the kernel had no room
/// for its messages, and every second while it sends none. The address of a link that goes is taken away, too.
///
/// Never ends; it is dropped.
pub async fn watch_removals(ours: Ours, gone: impl Fn()) {
    let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
    loop {
        if let Ok((connection, _handle, mut messages)) = new_multicast_connection(&groups) {
            let connection = Connection(tokio::spawn(connection));
            gone();
            while let Ok((message, _)) = messages.recv().await {
                match message.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::DelAddress(message))
                        if message.attributes.iter().any(|attribute| is_ours(ours, attribute)) =>
                    {
                        gone();
                    }
                    NetlinkPayload::Overrun(_) => gone(),
                    _ => {}
                }
            }
            drop(connection);
        }
        gone();
        sleep(AGAIN).await;
    }
}

/// The netlink task, which is aborted when the watch is dropped.
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// IPv4 has its own address in IFA_LOCAL, IPv6 in IFA_ADDRESS.
fn is_ours(ours: Ours, attribute: &AddressAttribute) -> bool {
    match attribute {
        AddressAttribute::Address(ip) | AddressAttribute::Local(ip) => ours.includes(*ip),
        _ => false,
    }
}

/// How soon the kernel is asked for messages again.
const AGAIN: Duration = Duration::from_secs(1);
