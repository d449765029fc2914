//! Watches the host's addresses.

use std::time::Duration;

use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::address::AddressAttribute;
use rtnetlink::{MulticastGroup, new_multicast_connection};
use tokio::time::sleep;

use crate::AddressPolicy;

/// Calls `gone` after an address that `ours` includes was removed, and when one may have been: at
/// the start, after the kernel lost messages, and every second while the subscription fails.
/// Removing a link removes its addresses, too.
///
/// Never returns; drop the future to end it.
pub async fn watch_removals(ours: AddressPolicy, gone: impl Fn()) {
    let is_removal = |message: &RouteNetlinkMessage| match message {
        RouteNetlinkMessage::DelAddress(message) => {
            message.attributes.iter().any(|attribute| is_ours(ours, attribute))
        }
        _ => false,
    };
    watch(is_removal, gone).await;
}

/// Calls `changed` after an address was added or removed, and whenever a change may have been
/// missed, as in [`watch_removals`].
///
/// Never returns; drop the future to end it.
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

/// The netlink task; aborted on drop.
struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether the attribute is an address that localdns adds: IFA_LOCAL for IPv4, IFA_ADDRESS for
/// IPv6.
fn is_ours(ours: AddressPolicy, attribute: &AddressAttribute) -> bool {
    match attribute {
        AddressAttribute::Address(ip) | AddressAttribute::Local(ip) => ours.includes(*ip),
        _ => false,
    }
}

/// Pause before subscribing again.
const AGAIN: Duration = Duration::from_secs(1);
