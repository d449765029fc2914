//! Lists the addresses that localdns added to the host.

use std::io;
use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};
use rtnetlink::{Handle, new_connection};

use super::{LABEL, PROTOCOL, our_links, reason};
use crate::NodeError;

/// Returns the addresses on links that localdns created, and the addresses that localdns added to
/// other links, each with its link's name. Omits fe80::/10, which the kernel adds to each link.
///
/// # Errors
/// Errors of the kernel.
pub async fn added_addresses() -> Result<Vec<(IpAddr, String)>, NodeError> {
    let failed = |source| NodeError::Interfaces(source);
    let (connection, handle, _) = new_connection().map_err(failed)?;
    let connection = tokio::spawn(connection);
    let added = async {
        let links = our_links(&handle).await?;
        let is_ours = |message: &AddressMessage| {
            links.iter().any(|(index, _)| *index == message.header.index) || is_marked(message)
        };
        let messages = listed(&handle).await?.into_iter().filter(is_ours);
        let is_of_one_link = |ip: &IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let added = messages.filter_map(|message| {
            let ip = address_of(&message).filter(|ip| !is_of_one_link(ip))?;
            Some((ip, crate::link_name(message.header.index).unwrap_or_default()))
        });
        Ok(added.collect())
    }
    .await;
    connection.abort();
    added.map_err(failed)
}

/// Lists all addresses of the host.
pub(super) async fn listed(handle: &Handle) -> Result<Vec<AddressMessage>, io::Error> {
    handle.address().get().execute().try_collect().await.map_err(reason)
}

pub(super) fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) | AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    })
}

/// Whether the address is marked as added by localdns to another program's link.
pub(super) fn is_marked(message: &AddressMessage) -> bool {
    message.attributes.iter().any(|attribute| match attribute {
        AddressAttribute::Label(label) => label.ends_with(LABEL),
        AddressAttribute::Protocol(protocol) => *protocol == PROTOCOL,
        _ => false,
    })
}
