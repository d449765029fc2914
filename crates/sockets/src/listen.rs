//! Listen sockets. One process may bind an address many times; a second process may not.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::recv_batch::RecvBatch;
use crate::send_batch::{SendBatch, Sent};

/// Options of listen sockets.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// Receive buffer of each socket in bytes. Default 4 MiB. Without CAP_NET_ADMIN the kernel
    /// limits it to `net.core.rmem_max`.
    pub receive_buffer_bytes: usize,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { receive_buffer_bytes: 4 << 20 }
    }
}

/// A UDP listen socket of one worker.
#[derive(Debug)]
pub struct ListenSocket {
    socket: Socket,
    local_addr: SocketAddr,
    options: ListenOptions,
}

impl ListenSocket {
    /// Binds `addr` for this process alone: without SO_REUSEPORT, so that an address in use is an
    /// error rather than silently shared. Siblings may join afterwards.
    ///
    /// # Errors
    /// `AddrInUse` if the address is taken, `AddrNotAvailable` if it is no local address,
    /// `PermissionDenied` for a port below 1024 without the privilege, and others of the kernel.
    pub fn bind_first(addr: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let socket = udp_socket(addr)?;
        socket.bind(&SockAddr::from(addr))?;
        socket.set_reuse_port(true)?;
        Self::ready(socket, options.clone())
    }

    /// Binds another socket to the same address; the kernel distributes clients by a hash of their
    /// address and port.
    ///
    /// # Errors
    /// Of the kernel; `AddrInUse` if the process has changed its user since the first socket.
    pub fn bind_sibling(&self) -> io::Result<Self> {
        let socket = udp_socket(self.local_addr)?;
        socket.set_reuse_port(true)?;
        socket.bind(&SockAddr::from(self.local_addr))?;
        Self::ready(socket, self.options.clone())
    }

    /// Binds `addr` although a socket of this process has the same port, one of the two on the
    /// wildcard address: the kernel prefers the socket with the exact address.
    ///
    /// # Errors
    /// As [`Self::bind_first`]; but another process of this user that shares the port is not
    /// noticed.
    pub fn bind_beside(addr: SocketAddr, options: &ListenOptions) -> io::Result<Self> {
        let socket = udp_socket(addr)?;
        socket.set_reuse_port(true)?;
        socket.bind(&SockAddr::from(addr))?;
        Self::ready(socket, options.clone())
    }

    /// Takes over a bound socket, from a service manager or an earlier process, and sets our
    /// options on it.
    ///
    /// # Errors
    /// `InvalidInput` unless it is a UDP socket bound to an IP address and port; others of the
    /// kernel.
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

    /// The bound address, with the port that the kernel chose for port 0.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Makes the kernel distribute new datagrams at random over the first `count` sockets of this
    /// address, in the order of binding. The queues of the others can still be received, and they
    /// can still send. Sockets that are bound later get none until the next call; closing sockets
    /// other than the first keeps the order. A kernel without this option distributes by its own
    /// hash, over all sockets.
    ///
    /// # Errors
    /// `InvalidInput` if the address has only had one socket; others of the kernel.
    pub fn spread_over(&self, count: u32) -> io::Result<()> {
        let random = (libc::SKF_AD_OFF + libc::SKF_AD_RANDOM) as u32;
        let step = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let mut steps = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, random),
            step(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, count.max(1)),
            step(libc::BPF_RET | BPF_A, 0),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the kernel reads one live sock_fprog, and as many instructions as its length says
        // from the live array that it points to.
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

    /// Makes the kernel distribute clients over all sockets of this address by a hash of their
    /// address and port, as before [`Self::spread_over`].
    ///
    /// # Errors
    /// Of the kernel; requires Linux 5.3.
    pub fn spread_by_client(&self) -> io::Result<()> {
        match set_option(&self.socket, libc::SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0) {
            // There was no other rule.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            done => done,
        }
    }

    /// Receives the datagrams in the queue, at most a batch, without blocking. `Ok(0)`: the queue
    /// is empty. Does not allocate.
    ///
    /// # Errors
    /// Of the kernel; the batch is empty then.
    #[inline]
    pub fn receive(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.fill(self.socket.as_fd())
    }

    /// Sends every reply that can be sent, skips the others, and empties the batch. Does not
    /// allocate.
    #[inline]
    pub fn send(&self, replies: &mut SendBatch) -> Sent {
        replies.send(self.socket.as_fd())
    }

    fn ready(socket: Socket, options: ListenOptions) -> io::Result<Self> {
        let local_addr = socket.local_addr()?.as_socket().filter(|addr| addr.port() != 0);
        let local_addr = local_addr.ok_or(io::ErrorKind::InvalidInput)?;
        set_receive_buffer(&socket, options.receive_buffer_bytes)?;
        known(set_option(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1))?;
        // Only a wildcard socket needs the destination of each datagram; elsewhere it is the bound
        // address.
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

/// Creates a non-blocking TCP listener on `addr`. `first`: for this process alone, like
/// [`ListenSocket::bind_first`]; else beside the first. `backlog`: connections that may wait for
/// accept, at most `net.core.somaxconn`.
///
/// Connections of an earlier process in TIME_WAIT do not prevent binding (SO_REUSEADDR).
///
/// # Errors
/// `AddrInUse` if another process listens there, `AddrNotAvailable` if it is no local address;
/// others of the kernel.
pub fn tcp_listener(addr: SocketAddr, backlog: u32, first: bool) -> io::Result<TcpListener> {
    let socket = new_socket(addr, Type::STREAM, Protocol::TCP)?;
    socket.set_reuse_address(true)?;
    if !first {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&SockAddr::from(addr))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    if first {
        // Only after `listen`: with SO_REUSEADDR two processes may both have bound, and `listen`
        // refuses the second only while neither shares the port.
        socket.set_reuse_port(true)?;
    }
    Ok(socket.into())
}

/// Creates an unbound UDP socket of the family of `addr`.
pub(crate) fn udp_socket(addr: SocketAddr) -> io::Result<Socket> {
    new_socket(addr, Type::DGRAM, Protocol::UDP)
}

/// Sets the receive buffer beyond `net.core.rmem_max`; without the privilege, up to it.
pub(crate) fn set_receive_buffer(socket: &Socket, bytes: usize) -> io::Result<()> {
    // The kernel doubles the number for its overhead and keeps it in an int.
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
    // SAFETY: the kernel reads one live int and its size.
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

/// Ignores the error of a kernel (or sandbox) without this option: drop counts and random
/// distribution are optional.
fn known(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| if error.raw_os_error() == Some(libc::ENOPROTOOPT) { Ok(()) } else { Err(error) })
}

fn new_socket(addr: SocketAddr, kind: Type, protocol: Protocol) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), kind, Some(protocol))?;
    if addr.is_ipv6() {
        // IPv4 has its own sockets: no IPv4-mapped peer appears on an IPv6 socket.
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The option's number, which `libc` lacks (asm-generic/socket.h).
const SO_DETACH_REUSEPORT_BPF: libc::c_int = 68;
/// The filter returns the accumulator (linux/bpf_common.h).
const BPF_A: u32 = 0x10;
