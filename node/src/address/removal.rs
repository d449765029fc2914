//! Takes away what we put on the machine.

use std::net::IpAddr;

use rtnetlink::new_connection;

use super::added::{address_of, is_marked, listed};
use super::{our_links, reason};
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
        for message in listed(&handle).await?.into_iter().filter(is_marked) {
            let link = crate::link_name(message.header.index).unwrap_or_default();
            let ip = address_of(&message).map(|ip| ip.to_string()).unwrap_or_default();
            removed.push(format!("the address {ip} on {link}"));
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
        let is_meant = |ip: IpAddr| ips.contains(&ip);
        for message in listed(&handle).await?.into_iter().filter(|one| address_of(one).is_some_and(is_meant))
        {
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
