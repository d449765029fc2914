//! Takes away what we put on the machine.

use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use rtnetlink::new_connection;
use rtnetlink::packet_route::address::{AddressAttribute, AddressMessage};

use super::{LABEL, PROTOCOL, our_links, reason};
use crate::NodeError;

/// Takes the links away that we made, whatever their names, with all their addresses; and addresses of ours from others'
/// links. What is gone, in words: nothing where there was nothing.
///
/// # Errors
/// What the kernel says.
pub async fn remove_link() -> Result<Vec<String>, NodeError> {
    let failed = |source| NodeError::RemoveLink { source };
    let (connection, handle, _) = new_connection().map_err(failed)?;
    let connection = tokio::spawn(connection);
    let removed = async {
        let mut removed = Vec::new();
        for (index, name) in our_links(&handle).await? {
            handle.link().del(index).execute().await.map_err(reason)?;
            removed.push(format!("the link {name} with its addresses"));
        }
        let mut listed = handle.address().get().execute();
        let mut marked = Vec::new();
        while let Some(message) = listed.try_next().await.map_err(reason)? {
            if message.attributes.iter().any(is_mark) {
                marked.push(message);
            }
        }
        for message in marked {
            let link = crate::link_name(message.header.index).unwrap_or_default();
            removed.push(format!("the address {} on {link}", address_of(&message)));
            handle.address().del(message).execute().await.map_err(reason)?;
        }
        Ok(removed)
    }
    .await;
    connection.abort();
    removed.map_err(failed)
}

/// Takes these addresses away, on whatever link they are, and this link.
///
/// # Errors
/// What the kernel says.
pub async fn remove_addresses(ips: &[IpAddr], link: Option<&str>) -> Result<(), NodeError> {
    let failed = |source| NodeError::RemoveLink { source };
    let (connection, handle, _) = new_connection().map_err(failed)?;
    let connection = tokio::spawn(connection);
    let removed = async {
        let mut listed = handle.address().get().execute();
        let mut found = Vec::new();
        while let Some(message) = listed.try_next().await.map_err(reason)? {
            if ips.iter().any(|ip| ip.to_string() == address_of(&message)) {
                found.push(message);
            }
        }
        for message in found {
            handle.address().del(message).execute().await.map_err(reason)?;
        }
        match link.and_then(crate::link_index) {
            Some(index) => handle.link().del(index).execute().await.map_err(reason),
            None => Ok(()),
        }
    }
    .await;
    connection.abort();
    removed.map_err(failed)
}

fn address_of(message: &AddressMessage) -> String {
    let of = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Local(ip) | AddressAttribute::Address(ip) => Some(ip.to_string()),
        _ => None,
    };
    message.attributes.iter().find_map(of).unwrap_or_default()
}

fn is_mark(attribute: &AddressAttribute) -> bool {
    match attribute {
        AddressAttribute::Label(label) => label.ends_with(LABEL),
        AddressAttribute::Protocol(protocol) => *protocol == PROTOCOL,
        _ => false,
    }
}
