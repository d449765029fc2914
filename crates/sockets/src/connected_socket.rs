//! UDP sockets, each connected to one upstream.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use libc::{iovec, mmsghdr, sock_extended_err};
use socket2::{SockAddr, Socket};

use crate::BATCH;
use crate::after_error::AfterError;
use crate::listen::{set_option, set_receive_buffer, udp_socket};
use crate::recv_batch::RecvBatch;
use crate::send_batch::send_messages;
use crate::sockaddr::{CONTROL_BYTES, ControlBuffer, control_message, empty_message};

/// A UDP socket connected to one upstream: the kernel drops datagrams of other senders, and reports
/// ICMP errors of the upstream and the path to it.
#[derive(Debug)]
pub struct UpstreamSocket {
    socket: Socket,
    local_addr: SocketAddr,
    upstream: SocketAddr,
}

impl UpstreamSocket {
    /// Connects to `upstream` from an unpredictable port (RFC 5452, section 9.2): the first free
    /// one of at most 8 of `port_candidates`, which the caller draws at random. Candidates below
    /// 1024 are skipped. If none is free the kernel chooses. `source`: the local address, if one is
    /// configured.
    ///
    /// # Errors
    /// `NetworkUnreachable` and the like without a route, `AddrNotAvailable` if `source` is no
    /// local address, `InvalidInput` if its family differs from the upstream's, and other errors of
    /// the kernel.
    pub fn connect(
        upstream: SocketAddr,
        port_candidates: impl Iterator<Item = u16>,
        source: Option<IpAddr>,
    ) -> io::Result<Self> {
        let source = source.unwrap_or_else(|| match upstream {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        });
        if source.is_ipv4() != upstream.is_ipv4() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let socket = udp_socket(upstream)?;
        bind_one_of(&socket, source, port_candidates)?;
        match upstream {
            SocketAddr::V4(_) => set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1)?,
            SocketAddr::V6(_) => set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1)?,
        }
        set_receive_buffer(&socket, RECEIVE_BUFFER_BYTES)?;
        socket.connect(&SockAddr::from(upstream))?;
        // Between bind and connect any host could send; its datagrams are still in the queue.
        let mut nothing = [MaybeUninit::uninit(); 1];
        for _ in 0..FOREIGN_DATAGRAMS_MAX {
            if socket.recv(&mut nothing).is_err() {
                break;
            }
        }
        let local_addr = socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self { socket, local_addr, upstream })
    }

    /// The local address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Receives the datagrams in the queue, at most a batch, without blocking. `Ok(0)`: the queue
    /// is empty. Does not allocate.
    ///
    /// # Errors
    /// The network's error for an earlier message, each once: `ConnectionRefused`,
    /// `HostUnreachable`, `NetworkUnreachable`, EMSGSIZE and the like. The socket stays usable.
    /// Further reported errors are read and dropped, otherwise epoll would report them forever. The
    /// batch is empty then.
    #[inline]
    pub fn receive(&self, batch: &mut RecvBatch) -> io::Result<usize> {
        batch.fill(self.socket.as_fd()).inspect_err(|_| {
            self.take_reported();
        })
    }

    /// Sends each message as a datagram, at most [`BATCH`] per system call. Does not block or
    /// allocate.
    ///
    /// `failed` gets index and error of each message that was not sent. `WouldBlock`: the send
    /// buffer is full, and this message and all after it were not tried.
    pub fn send_batch<'a>(
        &self,
        messages: impl IntoIterator<Item = &'a [u8]>,
        mut failed: impl FnMut(usize, io::Error),
    ) -> UpstreamSent {
        let mut total = UpstreamSent::default();
        let mut messages = messages.into_iter();
        let mut slices = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; BATCH];
        let mut offset = 0;
        let mut full = false;
        loop {
            let mut count = 0;
            for (slice, message) in slices.iter_mut().zip(messages.by_ref()) {
                *slice = iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
                count += 1;
            }
            if count == 0 {
                return total;
            }
            let tried = if full {
                0
            } else {
                self.send_slices(&mut slices[..count], offset, &mut failed, &mut total)
            };
            full = tried < count;
            for index in tried..count {
                failed(offset + index, io::ErrorKind::WouldBlock.into());
            }
            offset += count;
        }
    }

    /// Sends the messages of one system call; returns how many were tried before the send buffer
    /// was full.
    fn send_slices(
        &self,
        slices: &mut [iovec],
        offset: usize,
        failed: &mut impl FnMut(usize, io::Error),
        total: &mut UpstreamSent,
    ) -> usize {
        let mut headers: [mmsghdr; BATCH] = [empty_message(); BATCH];
        for (header, slice) in headers.iter_mut().zip(&mut *slices) {
            header.msg_hdr.msg_iov = slice;
            header.msg_hdr.msg_iovlen = 1;
        }
        let (mut retried, mut tried, mut refused) = (None, slices.len(), 0);
        // SAFETY: each header points at one slice, which points at a message borrowed until this returns; the
        // kernel only reads them.
        let sent = unsafe {
            send_messages(self.socket.as_fd(), &mut headers[..slices.len()], |index, error| {
                if error.kind() == io::ErrorKind::WouldBlock {
                    tried = index;
                    return AfterError::Stop;
                }
                // The kernel reports an error of an earlier message instead of sending this one.
                if let Some(reported) = self.take_reported() {
                    total.upstream_error = Some(reported);
                    if retried != Some(index) {
                        retried = Some(index);
                        return AfterError::Retry;
                    }
                }
                failed(offset + index, error);
                refused += 1;
                AfterError::Skip
            })
        };
        total.sent += sent;
        tried
    }

    /// Empties the error queue and returns the last error of the network.
    ///
    /// To be called after any error: only one call reports the error itself, but epoll reports the
    /// socket until its error queue is empty. Entries beyond [`BATCH`] are left for the next call,
    /// which the kernel fails with them.
    fn take_reported(&self) -> Option<io::Error> {
        let (level, kind) = match self.upstream {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        let mut last = None;
        let mut control = ControlBuffer::empty();
        for _ in 0..BATCH {
            let mut header = empty_message().msg_hdr;
            header.msg_control = control.as_mut_ptr();
            header.msg_controllen = CONTROL_BYTES as _;
            // SAFETY: the header has no name and no data, and one live control buffer with its size.
            let read = unsafe {
                libc::recvmsg(
                    self.socket.as_raw_fd(),
                    &raw mut header,
                    libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT,
                )
            };
            if read < 0 {
                break;
            }
            // SAFETY: the kernel filled the header, and its control buffer is alive.
            let report = unsafe { control_message::<sock_extended_err>(&header, level, kind) };
            let from_network = |report: &sock_extended_err| {
                matches!(report.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6)
            };
            if let Some(report) = report.filter(from_network) {
                last = Some(io::Error::from_raw_os_error(report.ee_errno as i32));
            }
        }
        last
    }
}

impl AsFd for UpstreamSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for UpstreamSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Result of sending to an upstream.
#[derive(Debug, Default)]
pub struct UpstreamSent {
    /// Messages that the kernel accepted.
    pub sent: usize,
    /// The network's error for an earlier message; the same errors as of
    /// [`UpstreamSocket::receive`].
    pub upstream_error: Option<io::Error>,
}

fn bind_one_of(socket: &Socket, source: IpAddr, candidates: impl Iterator<Item = u16>) -> io::Result<()> {
    let bind = |port| socket.bind(&SockAddr::from(SocketAddr::new(source, port)));
    for port in candidates.take(PORT_TRIES).filter(|port| *port >= 1024) {
        match bind(port) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            done => return done,
        }
    }
    bind(0)
}

/// Ports tried before the kernel chooses. With a thousand sockets among 28,000 ports, all 8 are
/// taken once in 10^11.
const PORT_TRIES: usize = 8;

/// Receive buffer: 1 MiB holds about 1,000 replies, ten times those of a millisecond.
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;

/// Datagrams of other senders removed from a new socket; its buffer holds no more small ones.
const FOREIGN_DATAGRAMS_MAX: usize = 4096;

const _: () = assert!(size_of::<sock_extended_err>() + 64 <= CONTROL_BYTES);

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn full_send_buffer_fails_the_rest() {
        // Over loopback no datagram stays in the send buffer, but the send buffer of a Unix socket
        // pair fills.
        let (ours, _theirs) = Socket::pair(Domain::UNIX, Type::DGRAM, None).expect("a pair");
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 53));
        let socket = UpstreamSocket { socket: ours, local_addr: nowhere, upstream: nowhere };
        let messages = vec![[0u8; 1024].as_slice(); 4096];
        let mut failed = Vec::new();
        let total = socket.send_batch(messages, |index, error| failed.push((index, error.kind())));
        assert!(total.sent > 0 && total.sent < 4096, "{}", total.sent);
        let expected: Vec<_> = (total.sent..4096).map(|index| (index, io::ErrorKind::WouldBlock)).collect();
        assert_eq!(failed, expected);
        assert!(total.upstream_error.is_none());
    }
}
