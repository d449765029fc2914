//! Removes the links and addresses that we added.

use std::io;
use std::net::IpAddr;

use nix::errno::Errno;
use rtnetlink::new_connection;

use super::owned_addresses::{address_of, is_marked, listed};
use super::{our_links, reason};
use crate::NodeError;

/// Removes the links that we created, with all their addresses, and our addresses from other links.
/// Returns descriptions of what was removed.
///
/// # Errors
/// Errors of the kernel.
pub async fn remove_link() -> Result<Vec<String>, NodeError> {
    let failed = |source| NodeError::RemoveLink { source };
    let (connection, handle, _) = new_connection().map_err(failed)?;
    let connection = tokio::spawn(connection);
    let removed = async {
        let mut removed = Vec::new();
        for (index, name) in our_links(&handle).await? {
            if was_there(handle.link().del(index).execute().await)? {
                removed.push(format!("the link {name} with its addresses"));
            }
        }
        for message in listed(&handle).await?.into_iter().filter(is_marked) {
            let link = crate::link_name(message.header.index).unwrap_or_default();
            let ip = address_of(&message).map(|ip| ip.to_string()).unwrap_or_default();
            if was_there(handle.address().del(message).execute().await)? {
                removed.push(format!("the address {ip} on {link}"));
            }
        }
        Ok(removed)
    }
    .await;
    connection.abort();
    removed.map_err(failed)
}

/// Removes these addresses, on any link, and the link of this name, if given.
///
/// # Errors
/// Errors of the kernel.
pub async fn remove_addresses(ips: &[IpAddr], link: Option<&str>) -> Result<(), NodeError> {
    let failed = |source| NodeError::RemoveLink { source };
    let (connection, handle, _) = new_connection().map_err(failed)?;
    let connection = tokio::spawn(connection);
    let removed = async {
        let is_meant = |ip: IpAddr| ips.contains(&ip);
        for message in listed(&handle).await?.into_iter().filter(|one| address_of(one).is_some_and(is_meant))
        {
            was_there(handle.address().del(message).execute().await)?;
        }
        match link.and_then(crate::link_index) {
            Some(index) => was_there(handle.link().del(index).execute().await).map(drop),
            None => Ok(()),
        }
    }
    .await;
    connection.abort();
    removed.map_err(failed)
}

/// Whether the removed object existed: another command may have removed it first.
fn was_there(removed: Result<(), rtnetlink::Error>) -> io::Result<bool> {
    match removed.map_err(reason) {
        Ok(()) => Ok(true),
        Err(error) => {
            let is_gone = [Errno::ENODEV, Errno::EADDRNOTAVAIL]
                .iter()
                .any(|errno| error.raw_os_error() == Some(*errno as i32));
            if is_gone { Ok(false) } else { Err(error) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroI32;

    use rtnetlink::packet_core::ErrorMessage;

    use super::*;

    #[test]
    fn already_removed_is_no_error() {
        let refused = |errno: Errno| {
            let mut message = ErrorMessage::default();
            message.code = NonZeroI32::new(-(errno as i32));
            was_there(Err(rtnetlink::Error::NetlinkError(message))).ok()
        };
        assert_eq!(refused(Errno::ENODEV), Some(false));
        assert_eq!(refused(Errno::EADDRNOTAVAIL), Some(false));
        assert_eq!(refused(Errno::EPERM), None);
        assert_eq!(was_there(Ok(())).ok(), Some(true));
    }
}
