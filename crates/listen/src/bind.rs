//! Binds the sockets of one endpoint, or takes them over from an earlier process; and the errors of
//! binding.

use std::io;
use std::net::SocketAddr;

use handover::InheritedSockets;
use node::{AddressPolicy, SocketKind, port_owner};
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};
use sockets::{ListenOptions, ListenSocket};
use thiserror::Error;
use tokio::runtime::Handle;

use plugin::endpoint::{Endpoint, Transport};

/// Why an address cannot be served; each error contains its remedy.
#[derive(Debug, Error)]
pub enum BindError {
    /// Another process uses the address.
    #[error("cannot listen on {address} ({transport}): it is in use{}; stop that process or choose another address", by(.holder))]
    InUse {
        /// The address.
        address: SocketAddr,
        /// `udp` or `tcp`.
        transport: &'static str,
        /// The process, if it is known.
        holder: Option<String>,
    },
    /// A port below 1024 without the privilege.
    #[error(
        "cannot listen on {0}: no permission; run as root, give the binary CAP_NET_BIND_SERVICE, or choose a port above 1023"
    )]
    NotPermitted(SocketAddr),
    /// No interface has the address.
    #[error("cannot listen on {address}: {error}{}", remedy(.error))]
    Absent {
        /// The address.
        address: SocketAddr,
        /// Why it could not be added.
        error: node::NodeError,
    },
    /// Anything else.
    #[error("cannot listen on {address} ({transport}): {error}")]
    Other {
        /// The address.
        address: SocketAddr,
        /// `udp` or `tcp`.
        transport: &'static str,
        /// The kernel's error.
        error: io::Error,
    },
}

/// An endpoint that is bound and not served yet.
pub(super) struct BoundEndpoint {
    pub(super) endpoint: Endpoint,
    /// Empty if the listener does not serve UDP (DNS over TLS or HTTPS).
    pub(super) sockets: Vec<ListenSocket>,
    /// How many of `sockets` an earlier process bound; these receive queries until the endpoint is
    /// opened.
    pub(super) inherited: usize,
    /// `None` for DNS over QUIC.
    pub(super) listener: Option<std::net::TcpListener>,
    /// The socket of DNS over QUIC.
    pub(super) quic: Option<std::net::UdpSocket>,
    pub(super) added: Option<AddedAddress>,
    /// The link that has the endpoint's address if the kernel cannot create a dummy link.
    pub(super) instead: Option<node::LinkFallback>,
}

impl BoundEndpoint {
    /// Returns the endpoint's port, which the kernel chose for port 0.
    pub(super) fn port(&self) -> Option<u16> {
        let address = match (&self.listener, &self.quic) {
            (Some(listener), _) => listener.local_addr(),
            (None, Some(socket)) => socket.local_addr(),
            (None, None) => return None,
        };
        address.ok().map(|address| address.port())
    }
}

/// An address that this process added to the machine, and restores if another process removes it.
pub(super) struct AddedAddress {
    /// The interface that the address's sockets are bound to, for link-local IPv6, else 0.
    pub(super) scope_id: u32,
    /// Whether it was logged that the address cannot be restored.
    pub(super) failure_logged: bool,
}

/// An endpoint to bind. Each worker has at least one of the endpoint's UDP sockets to send from,
/// and `count` of the sockets receive queries.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) endpoint: Endpoint,
    /// The port to bind in place of port 0; 0 if the kernel chooses it.
    pub(super) free_port: u16,
    pub(super) count: usize,
    pub(super) workers: usize,
    /// Whether another endpoint of this server overlaps this one.
    pub(super) beside: bool,
}

impl Wanted {
    fn address(&self) -> SocketAddr {
        with_port(self.endpoint.address, self.free_port)
    }
}

/// Returns the address, with `free_port` for port 0.
pub(super) fn with_port(mut address: SocketAddr, free_port: u16) -> SocketAddr {
    if address.port() == 0 {
        address.set_port(free_port);
    }
    address
}

/// Binds an endpoint, or takes over the sockets of an earlier process.
pub(super) fn bind_one(
    wanted: Wanted,
    policy: AddressPolicy,
    inherited: &mut InheritedSockets,
    handle: &Handle,
) -> Result<BoundEndpoint, BindError> {
    let address = wanted.address();
    let mut ours =
        policy.includes(address.ip()) && node::link_of(address.ip()).as_deref() == Some(policy.link());
    let mut instead = None;
    let mut add_it = || {
        let added = handle.block_on(add(address, policy));
        let added = added.map_err(|error| BindError::Absent { address, error })?;
        ours |= matches!(added, node::EnsuredAddress::AddedTo { .. });
        instead = added.instead();
        Ok(())
    };
    let mut bound = match bind_sockets(wanted, inherited) {
        Err((_, error)) if is_absent(address, &error) => {
            add_it()?;
            bind_sockets(wanted, inherited)
        }
        // Sockets of an earlier process are bound even if the address does not exist any more.
        Ok(bound) if policy.includes(address.ip()) && !node::has_address(address.ip()) => {
            add_it()?;
            Ok(bound)
        }
        result => result,
    }
    .map_err(|(transport, error)| explain(address, transport, error))?;
    let scope_id = scope_id(node::with_link(address));
    bound.added = ours.then_some(AddedAddress { scope_id, failure_logged: false });
    bound.instead = instead;
    Ok(bound)
}

fn bind_sockets(
    wanted: Wanted,
    left: &mut InheritedSockets,
) -> Result<BoundEndpoint, (SocketKind, io::Error)> {
    let Wanted { endpoint, count, workers, beside, .. } = wanted;
    let (mut address, options) = (node::with_link(wanted.address()), ListenOptions::default());
    let (mut sockets, mut inherited) = (Vec::new(), 0);
    if has_udp(endpoint) {
        let bind = if beside { ListenSocket::bind_beside } else { ListenSocket::bind_first };
        let udp = |error| (SocketKind::Udp, error);
        for descriptor in left.udp(address) {
            sockets.push(ListenSocket::from_owned_fd(descriptor, &options).map_err(udp)?);
        }
        inherited = sockets.len();
        if sockets.is_empty() {
            sockets.push(bind(address, &options).map_err(udp)?);
        }
        while sockets.len() < count.max(workers) {
            sockets.push(sockets[0].bind_sibling().map_err(udp)?);
            if inherited > 0 {
                // No worker reads the new socket yet, so the kernel must spread datagrams over the
                // inherited ones alone.
                sockets[0].spread_over(inherited as u32).map_err(udp)?;
            }
        }
        if count == inherited && count == sockets.len() && count > 1 {
            // The earlier process may have limited the spread to fewer sockets. If the kernel
            // refuses the BPF program, its own hash spreads datagrams over all.
            let _ = sockets[0].spread_by_client();
        } else if inherited == 0 && count < workers {
            sockets[0].spread_over(count as u32).map_err(udp)?;
        }
    }
    // UDP and TCP have the same port.
    address = sockets.first().map_or(address, |socket| with_port(address, socket.local_addr().port()));
    if endpoint.transport == Transport::Quic {
        let socket = match left.udp(address).into_iter().next() {
            Some(descriptor) => descriptor.into(),
            None => quic_socket(address, beside).map_err(|error| (SocketKind::Udp, error))?,
        };
        return Ok(BoundEndpoint {
            endpoint,
            sockets,
            inherited,
            listener: None,
            quic: Some(socket),
            added: None,
            instead: None,
        });
    }
    let tcp = |error| (SocketKind::Tcp, error);
    let listener = match left.tcp(address) {
        Some(descriptor) => std::net::TcpListener::from(descriptor),
        None => sockets::tcp_listener(address, TCP_BACKLOG, !beside).map_err(tcp)?,
    };
    listener.set_nonblocking(true).map_err(tcp)?;
    // Connections inherit these sizes. The kernel doubles them; without them it lets unread data
    // grow to megabytes.
    let socket = socket2::SockRef::from(&listener);
    socket.set_send_buffer_size(TCP_SEND_BYTES).map_err(tcp)?;
    socket.set_recv_buffer_size(TCP_RECEIVE_BYTES).map_err(tcp)?;
    let (listener, quic) = (Some(listener), None);
    Ok(BoundEndpoint { endpoint, sockets, inherited, listener, quic, added: None, instead: None })
}

/// Binds the socket of DNS over QUIC, which quinn reads; `beside` another one of this process on the
/// same port.
fn quic_socket(address: SocketAddr, beside: bool) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_port(beside)?;
    socket.bind(&address.into())?;
    // Only now, so that no other process shares the port by accident.
    socket.set_reuse_port(true)?;
    socket.set_nonblocking(true)?;
    // Without the privilege the kernel's own bound remains.
    let _ = socket.set_recv_buffer_size(QUIC_RECEIVE_BYTES);
    Ok(socket.into())
}

/// Whether the workers serve the endpoint over UDP.
pub(super) fn has_udp(endpoint: Endpoint) -> bool {
    endpoint.transport == Transport::Dns
}

pub(super) fn scope_id(address: SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

/// Whether the error means that no interface has this address; for link-local IPv6 without an
/// interface that is EINVAL.
fn is_absent(address: SocketAddr, error: &io::Error) -> bool {
    let linkless =
        matches!(address, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0);
    error.kind() == io::ErrorKind::AddrNotAvailable
        || (linkless && error.kind() == io::ErrorKind::InvalidInput)
}

/// Adds the address to the machine, if it is one that we may add; never to an interface that `bind`
/// names.
pub(super) async fn add(
    address: SocketAddr,
    ours: AddressPolicy,
) -> Result<node::EnsuredAddress, node::NodeError> {
    match address {
        SocketAddr::V6(v6) if v6.scope_id() != 0 => {
            let link = node::link_name(v6.scope_id()).unwrap_or_else(|| v6.scope_id().to_string());
            Err(node::NodeError::AddressElsewhere { address: address.ip(), link })
        }
        _ => node::ensure_address(address.ip(), ours).await,
    }
}

pub(super) fn explain(address: SocketAddr, transport: SocketKind, error: io::Error) -> BindError {
    let name = match transport {
        SocketKind::Udp => "udp",
        SocketKind::Tcp => "tcp",
    };
    match error.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse {
            address,
            transport: name,
            holder: port_owner(address, transport).map(|holder| holder.to_string()),
        },
        io::ErrorKind::PermissionDenied => BindError::NotPermitted(address),
        _ => BindError::Other { address, transport: name, error },
    }
}

pub(super) fn is_family_absent(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL))
}

fn by(holder: &Option<String>) -> String {
    holder.as_ref().map(|holder| format!(" by {holder}")).unwrap_or_default()
}

/// Returns the remedy for an absent address; the texts of other errors contain theirs.
fn remedy(error: &node::NodeError) -> String {
    match error {
        node::NodeError::AddressAbsent { address } => {
            format!("; run: ip address add {address} dev lo, or change `bind`")
        }
        node::NodeError::AddressElsewhere { address, link } => {
            format!("; run: ip address add {address}/64 dev {link}, or change `bind`")
        }
        node::NodeError::NotPermitted { .. } => String::new(),
        _ => "; change `bind`, or put the address on an interface of this machine".to_owned(),
    }
}

/// Receive buffer of a socket of DNS over QUIC, before the kernel doubles it.
const QUIC_RECEIVE_BYTES: usize = 1 << 20;
/// Send buffer of a TCP connection, before the kernel doubles it: 1,024 clients that do not read
/// take 32 MiB at most.
const TCP_SEND_BYTES: usize = 16 * 1024;
/// Receive buffer of a TCP connection, before the kernel doubles it. Pipelined queries were as fast
/// as with 128 KiB: 1.03 of that rate over 4 connections, 0.91 and 0.99 over one (medians of 12
/// rounds with as much noise).
const TCP_RECEIVE_BYTES: usize = 16 * 1024;
/// Connections that may wait to be accepted: the default of `net.core.somaxconn`. When the queue is
/// full the client's SYN is dropped and retried after a second.
const TCP_BACKLOG: u32 = 4096;
