//! Sockets that clients send to. One process may hold an address many times; a second process may not.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::recv_batch::Received;
use crate::send_batch::{Outgoing, Sent};

/// How listen sockets are set up.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Bytes of datagrams that may wait in each socket. Default 4 MiB. Without CAP_NET_ADMIN the kernel gives at
    /// most `net.core.rmem_max`.
    pub receive_buffer_bytes: usize,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { receive_buffer_bytes: 4 << 20 }
    }
}

/// One UDP socket that clients send to, owned by one worker.
#[derive(Debug)]
pub struct ListenSocket {
    socket: Socket,
    local_addr: SocketAddr,
    options: ListenOptions,
}

impl ListenSocket {
    /// Binds `addr` for this process alone: without SO_REUSEPORT, so that an address somebody listens on already
    /// is an error instead of silently shared. Afterwards siblings may join.
    ///
    /// # Errors
    /// `AddrInUse` when the address is taken, `AddrNotAvailable` when it is not ours, `PermissionDenied` for a
    /// port below 1024 without the right to it, and what the kernel says else.
    pub fn bind_first(addr: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let socket = udp_socket(addr)?;
        socket.bind(&SockAddr::from(addr))?;
        socket.set_reuse_port(true)?;
        Self::ready(socket, options.clone())
    }

    /// Binds a further socket to the same address; the kernel spreads clients over all of them by a hash of
    /// their address and port.
    ///
    /// # Errors
    /// What the kernel says; `AddrInUse` when the process has changed its user since the first socket.
    pub fn bind_sibling(&self) -> io::Result<Self> {
        let socket = udp_socket(self.local_addr)?;
        socket.set_reuse_port(true)?;
        socket.bind(&SockAddr::from(self.local_addr))?;
        Self::ready(socket, self.options.clone())
    }

    /// Binds `addr` beside a socket of this process on the same port of which one is bound to every address: who is bound
    /// to the very address that is asked hears first.
    ///
    /// # Errors
    /// As [`Self::bind_first`]; but another process of this user that shares its port is not noticed.
    pub fn bind_beside(addr: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let socket = udp_socket(addr)?;
        socket.set_reuse_port(true)?;
        socket.bind(&SockAddr::from(addr))?;
        Self::ready(socket, options.clone())
    }

    /// Takes over a bound socket, as from a service manager or an earlier process, and sets our options on it.
    ///
    /// # Errors
    /// `InvalidInput` when it is not a UDP socket bound to an IP address and port; what the kernel says else.
    pub fn from_owned_fd(fd: OwnedFd, options: &ListenOptions) -> io::Result<Self> {
        let socket = Socket::from(fd);
        if socket.r#type()? != Type::DGRAM {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        socket.set_nonblocking(true)?;
        socket.set_cloexec(true)?;
        socket.set_reuse_port(true)?;
        Self::ready(socket, options.clone())
    }

    /// The address bound, with the port the kernel chose where port 0 was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Has the kernel give clients to the first `count` sockets of this address, in the order in which they were bound, at
    /// random. What waits in the others can still be taken, and they can still send. Whoever is bound later is given
    /// nothing before this is called again; the order stays while none of the first is closed. A kernel that cannot do it
    /// spreads them by its own hash, over all.
    ///
    /// # Errors
    /// `InvalidInput` while the address has had one socket alone, and what the kernel says else.
    pub fn spread_over(&self, count: u32) -> io::Result<()> {
        let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
        let step = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let mut steps = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, random),
            step(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, count.max(1)),
            step(libc::BPF_RET | BPF_A, 0),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the kernel reads one live sock_fprog, and as many steps as its length says from the live array that it
        // points to.
        let done = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_REUSEPORT_CBPF,
                (&raw const program).cast(),
                size_of_val(&program) as libc::socklen_t,
            )
        };
        match done {
            0 => Ok(()),
            _ => known(Err(io::Error::last_os_error())),
        }
    }

    /// Has the kernel give clients to all sockets of this address by a hash of their address and port, as it does before
    /// [`Self::spread_over`].
    ///
    /// # Errors
    /// What the kernel says; Linux 5.3 and later can.
    pub fn spread_by_client(&self) -> io::Result<()> {
        match set_option(&self.socket, libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0) {
            // There was no other rule.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done,
        }
    }

    /// Takes the datagrams that wait, at most a batch, without blocking. `Ok(0)`: none waits. Allocates nothing.
    ///
    /// # Errors
    /// What the kernel says; the batch is empty then.
    #[inline]
    pub fn receive(&self, batch: &mut Received) -> io::Result<usize> {
        batch.fill(self.socket.as_fd())
    }

    /// Sends every reply that can be sent, skips those that cannot, and empties the batch. Allocates nothing.
    #[inline]
    pub fn send(&self, replies: &mut Outgoing) -> Sent {
        replies.send(self.socket.as_fd())
    }

    fn ready(socket: Socket, options: ListenOptions) -> io::Result<Self> {
        let local_addr = socket.local_addr()?.as_socket().filter(|addr| addr.port() != 0);
        let local_addr = local_addr.ok_or(io::ErrorKind::InvalidInput)?;
        set_receive_buffer(&socket, options.receive_buffer_bytes)?;
        known(set_option(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1))?;
        // Only a wildcard needs to be told where a datagram went: elsewhere the bound address is the answer.
        match local_addr {
            SocketAddr::V4(addr) if addr.ip().is_unspecified() => {
                set_option(&socket, libc::IPPROTO_IP, libc::IP_PKTINFO, 1)?;
            }
            SocketAddr::V6(addr) if addr.ip().is_unspecified() => {
                set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1)?;
            }
            _ => {}
        }
        Ok(Self { socket, local_addr, options })
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for ListenSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Listens for TCP on `addr`, non-blocking. `first`: for this process alone, as [`ListenSocket::bind_first`];
/// else beside the first. `backlog`: connections that may wait to be accepted; the kernel gives at most
/// `net.core.somaxconn`.
///
/// Connections of an earlier process that linger in TIME_WAIT do not stand in the way (SO_REUSEADDR).
///
/// # Errors
/// `AddrInUse` when another process listens there, `AddrNotAvailable` when the address is not ours, and what the
/// kernel says else.
pub fn tcp_listener(addr: SocketAddr, backlog: u32, first: bool) -> io::Result<TcpListener> {
    let socket = new_socket(addr, Type::STREAM, Protocol::TCP)?;
    socket.set_reuse_address(true)?;
    if !first {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&SockAddr::from(addr))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    if first {
        // Only after `listen`: with SO_REUSEADDR two processes may both have bound, and `listen` decides between
        // them only as long as neither shares the port.
        socket.set_reuse_port(true)?;
    }
    Ok(socket.into())
}

/// A UDP socket for the family of `addr`, not yet bound.
pub(crate) fn udp_socket(addr: SocketAddr) -> io::Result<Socket> {
    new_socket(addr, Type::DGRAM, Protocol::UDP)
}

/// Asks for a receive buffer beyond `net.core.rmem_max`, and for what is allowed where we lack the right.
pub(crate) fn set_receive_buffer(socket: &Socket, bytes: usize) -> io::Result<()> {
    // The kernel doubles the number for its own overhead and keeps it in an int.
    let bytes = bytes.min(i32::MAX as usize / 2);
    set_option(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, bytes as libc::c_int)
        .or_else(|_| socket.set_recv_buffer_size(bytes))
}

/// Sets a socket option that is an int.
pub(crate) fn set_option(
    socket: &Socket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the kernel reads one live int, and no more than the size of one.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whatever came of an option, unless the kernel (or a sandbox in its place) does not know it: counting what it drops and
/// choosing among sockets at random are wanted, not needed.
fn known(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| if error.raw_os_error() == Some(libc::ENOPROTOOPT) { Ok(()) } else { Err(error) })
}

fn new_socket(addr: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), kind, Some(protocol))?;
    if addr.is_ipv6() {
        // IPv4 has sockets of its own: no IPv4-mapped peer appears here.
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Which `libc` lacks (asm-generic/socket.h).
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;
/// The accumulator is what a filter returns (linux/bpf_common.h).
const BPF_A: u32 = 0x10;
