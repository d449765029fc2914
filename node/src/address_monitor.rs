//! Watches the machine's addresses.

use std::time::Duration;

use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::time::sleep;

use crate::AddressPolicy;

/// Calls `gone` when an address that may be ours was taken away, and where one may have been: at first, when the kernel had no room
/// for its messages, and every second while it sends none. The address of a link that goes is taken away, too.
///
/// Never ends; it is dropped.
pub async fn watch_removals(ours: AddressPolicy, gone: impl Fn()) {
    let is_removal = |message: &RouteNetlinkMessage| match message {
        RouteNetlinkMessage::DelAddress(message) => {
            message.attributes.iter().any(|attribute| is_ours(ours, attribute))
        }
        _ => false,
    };
    watch(is_removal, gone).await;
}

/// Calls `changed` when the machine gets or loses an address, and where it may have, as [`watch_removals`].
///
/// Never ends; it is dropped.
pub async fn watch_addresses(changed: impl Fn()) {
    let is_change = |message: &RouteNetlinkMessage| {
        matches!(message, RouteNetlinkMessage::NewAddress(_) | RouteNetlinkMessage::DelAddress(_))
    };
    watch(is_change, changed).await;
}

async fn watch(is_meant: impl Fn(&RouteNetlinkMessage) -> bool, call: impl Fn()) {
    let groups = [MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
    loop {
        if let Ok((connection, _handle, mut messages)) = new_multicast_connection(&groups) {
            let connection = Connection(tokio::spawn(connection));
            call();
            while let Ok((message, _)) = messages.recv().await {
                match message.payload {
                    NetlinkPayload::InnerMessage(message) if is_meant(&message) => call(),
                    NetlinkPayload::Overrun(_) => call(),
                    _ => {}
                }
            }
            drop(connection);
        }
        call();
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
fn is_ours(ours: AddressPolicy, attribute: &AddressAttribute) -> bool {
    match attribute {
        AddressAttribute::Address(ip) | AddressAttribute::Local(ip) => ours.includes(*ip),
        _ => false,
    }
}

/// How soon the kernel is asked for messages again.
const AGAIN: Duration = Duration::from_secs(1);
