//! Listening sockets of the admin server. Knows no HTTP.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};
use thiserror::Error;

use crate::AdminAddress;

/// Why an admin address cannot be served.
#[derive(Debug, Error)]
pub enum AdminError {
    /// The address cannot be listened on; worded as CoreDNS words it.
    #[error("listen tcp {address}: bind: {}", reason(.source, .holder.as_deref()))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The process that has the port, if known.
        holder: Option<String>,
        /// The system's error.
        source: io::Error,
    },
}

/// Listens on all sockets of an address. If these are both wildcards, the machine may lack IPv6.
///
/// The sockets have SO_REUSEPORT, as in CoreDNS: the next process binds them while this one drains.
///
/// # Errors
/// [`AdminError::Bind`] for the first address that cannot be bound.
pub(super) fn listen(address: AdminAddress) -> Result<Vec<TcpListener>, AdminError> {
    let mut listeners = Vec::new();
    for socket in address.sockets() {
        match bind(socket) {
            Ok(listener) => listeners.push(listener),
            Err(error) if address.host.is_none() && !listeners.is_empty() && lacks_family(&error) => {}
            Err(source) => {
                let taken = source.kind() == io::ErrorKind::AddrInUse;
                let holder = taken.then(|| node::port_owner(socket, node::SocketKind::Tcp)).flatten();
                let holder = holder.map(|holder| holder.to_string());
                return Err(AdminError::Bind { address: socket, holder, source });
            }
        }
    }
    Ok(listeners)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // The IPv4 wildcard has a separate socket.
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    // Connections inherit these sizes. Without them the kernel may buffer megabytes for each client that does not read, or is not
    // read from.
    socket.set_send_buffer_size(SEND_BYTES)?;
    socket.set_recv_buffer_size(RECEIVE_BYTES)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn lacks_family(error: &io::Error) -> bool {
    // Stable Rust has no `io::ErrorKind` for EAFNOSUPPORT.
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(EAFNOSUPPORT)
}

/// CoreDNS's text of the error, and a remedy.
fn reason(error: &io::Error, holder: Option<&str>) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let by = holder.map(|holder| format!(" by {holder}")).unwrap_or_default();
            format!("address already in use{by}; stop that process or choose another address")
        }
        io::ErrorKind::AddrNotAvailable => {
            "cannot assign requested address; choose one that this machine has".to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "permission denied; choose a port above 1023, or give the binary CAP_NET_BIND_SERVICE".to_owned()
        }
        _ => error.to_string(),
    }
}

/// "Address family not supported by protocol", on all Linux architectures that we support.
const EAFNOSUPPORT: i32 = 97;
/// The send buffer of a connection in bytes; the kernel doubles it.
const SEND_BYTES: usize = 64 * 1024;
/// The receive buffer of a connection in bytes, one head of maximum length; the kernel doubles it.
const RECEIVE_BYTES: usize = 16 * 1024;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};

    #[test]
    fn wildcard_listens_on_both_families() {
        let listeners = listen(AdminAddress { host: None, port: 0 }).unwrap();
        assert!(listeners[0].local_addr().unwrap().is_ipv4());
        assert!(listeners.get(1).is_none_or(|second| second.local_addr().unwrap().is_ipv6()));
    }

    #[test]
    fn bind_errors() {
        let foreign = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = foreign.local_addr().unwrap().port();
        let address = AdminAddress { host: Some(IpAddr::V4(Ipv4Addr::LOCALHOST)), port };
        assert_eq!(
            listen(address).unwrap_err().to_string(),
            format!(
                "listen tcp 127.0.0.1:{port}: bind: address already in use by {}; stop that process or choose another address",
                node::port_owner(foreign.local_addr().unwrap(), node::SocketKind::Tcp).unwrap()
            )
        );
        let address = AdminAddress { host: Some("192.0.2.1".parse().unwrap()), port };
        assert_eq!(
            listen(address).unwrap_err().to_string(),
            format!(
                "listen tcp 192.0.2.1:{port}: bind: cannot assign requested address; choose one that this machine has"
            )
        );
    }
}
