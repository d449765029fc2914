//! Sockets towards one upstream each.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use libc::{iovec, mmsghdr, sock_extended_err};
use socket2::{SockAddr, Socket};

use crate::BATCH;
use crate::listen::{set_option, set_receive_buffer, udp_socket};
use crate::recv_batch::Received;
use crate::send_batch::{Next, send_messages};
use crate::sockaddr::{CONTROL_BYTES, Control, control_message, empty_message};

/// One UDP socket connected to one upstream: the kernel drops what anybody else sends to it, and says when the
/// upstream or the way to it refuses.
#[derive(Debug)]
pub struct UpstreamSocket {
    socket: Socket,
    local_addr: SocketAddr,
    upstream: SocketAddr,
}

impl UpstreamSocket {
    /// Connects to `upstream` from a port that cannot be guessed (RFC 5452, section 9.2): the first free one
    /// among at most 8 of `port_candidates`, which the caller draws at random. Candidates below 1024
    /// are passed over. When none is free the kernel chooses. `source`: the local address, where one is asked for.
    ///
    /// # Errors
    /// `NetworkUnreachable` and the like when no route leads there, `AddrNotAvailable` when `source` is not
    /// ours, `InvalidInput` when its family is not the upstream's, and what the kernel says else.
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
        // Between bind and connect anybody could send; such datagrams stay in the queue.
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

    /// Takes the datagrams that wait, at most a batch, without blocking. `Ok(0)`: none waits. Allocates nothing.
    ///
    /// # Errors
    /// What the network said about an earlier message, each once: `ConnectionRefused`, `HostUnreachable`,
    /// `NetworkUnreachable`, EMSGSIZE and the like. The socket stays usable; what else was reported meanwhile is
    /// read and dropped, so that epoll does not report it for ever. The batch is empty then.
    #[inline]
    pub fn receive(&self, batch: &mut Received) -> io::Result<usize> {
        batch.fill(self.socket.as_fd()).inspect_err(|_| {
            self.take_reported();
        })
    }

    /// Sends messages, each a datagram of its own, in calls of [`BATCH`]. Never waits and allocates nothing.
    ///
    /// `failed` is told the position and the error of each message that was not sent. `WouldBlock`: the send
    /// buffer is full, this one and all after it were not tried.
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

    /// Sends one call's worth; returns how many were tried before the send buffer was full.
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
                    return Next::Stop;
                }
                // What the network said about an earlier message is reported in place of sending this one.
                if let Some(reported) = self.take_reported() {
                    total.upstream_error = Some(reported);
                    if retried != Some(index) {
                        retried = Some(index);
                        return Next::Retry;
                    }
                }
                failed(offset + index, error);
                refused += 1;
                Next::Skip
            })
        };
        total.sent += sent;
        tried
    }

    /// Reads what the network or the kernel has said about earlier messages (the error queue) and returns the last
    /// of what came from the network.
    ///
    /// Whoever meets an error calls this: the error itself is reported by one call only, while the queue keeps
    /// the socket "in error" for epoll until it is empty. What is left after [`BATCH`] reports is for the next
    /// call, which the kernel fails with it.
    fn take_reported(&self) -> Option<io::Error> {
        let (level, kind) = match self.upstream {
            SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_RECVERR),
            SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_RECVERR),
        };
        let mut last = None;
        let mut control = Control::empty();
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

/// What became of the messages for an upstream.
#[derive(Debug, Default)]
pub struct UpstreamSent {
    /// Messages that the kernel took.
    pub sent: usize,
    /// What the network said about an earlier message and the kernel reported here: the same errors as
    /// [`UpstreamSocket::receive`] returns, to be treated alike.
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

/// Ports tried before the kernel chooses. With a thousand sockets among 28,000 ports all 8 are taken once in 10^11.
const PORT_TRIES: usize = 8;

/// Replies that may wait: 1 MiB holds about 1,000 of them, ten times what comes back in a millisecond.
const RECEIVE_BUFFER_BYTES: usize = 1 << 20;

/// Datagrams of strangers taken out of a fresh socket; it holds no more small ones than this.
const FOREIGN_DATAGRAMS_MAX: usize = 4096;

const _: () = assert!(size_of::<sock_extended_err>() + 64 <= CONTROL_BYTES);

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no such sockets")]
    fn a_full_send_buffer_fails_the_rest_without_waiting() {
        // Over loopback a datagram never stays in the sender's buffer; a pair of local sockets has one that fills.
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
