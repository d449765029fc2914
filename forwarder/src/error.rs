//! Why a query got no answer. The server maps these to rcodes, error lines and EDEs.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use tls::{CA_USED_AS_END_ENTITY, TooManyCertificates};

use crate::StreamKind;

/// Why a query was not answered. The text is that of CoreDNS's errors plugin, where that has one.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ForwardError {
    /// No stanza of the block forwards this name.
    #[error("no forwarder defined")]
    NoStanza,
    /// The stanza has no upstream now: none of its host names has been resolved yet.
    #[error("no address of an upstream is known: none of the host names in `forward` could be looked up")]
    NoUpstream,
    /// All upstreams are left out, as they forward this server's queries back to it.
    #[error(
        "no upstream is left to ask, as each one sends our queries back to us: name one that does not in `forward`, or in the file that it follows"
    )]
    AllLoop,
    /// Every upstream is down, and the stanza has failfast.
    #[error("no healthy proxies")]
    NoHealthy,
    /// `max_concurrent` queries are in flight; the only failure that is answered with REFUSED.
    #[error("concurrent queries exceeded maximum {0}")]
    MaxConcurrent(u32),
    /// The upstream already has as many outstanding queries as it can answer while clients wait.
    #[error("upstream {0} answers more slowly than it is asked: its queue is full")]
    Congested(SocketAddr),
    /// The worker's table of queries in flight is full.
    #[error("too many queries in flight")]
    TableFull,
    /// The maximum number of client subnets for this name is in flight.
    #[error("too many client subnets in flight")]
    Subnets,
    /// This client's own timeout is over; the query to upstreams continues.
    #[error("no answer within the time allowed")]
    Patience,
    /// The server stops.
    #[error("shutting down")]
    Shutdown,
    /// No socket to the upstream could be opened.
    #[error("dial udp {upstream}: {}{error}", if *error == SendError::Files { "" } else { "connect: " })]
    NoSocket {
        /// The upstream.
        upstream: SocketAddr,
        /// The error.
        error: SendError,
    },
    /// A datagram did not leave this machine.
    #[error("write udp {}: write: {error}", Way(*local, *upstream))]
    NotSent {
        /// The local address, if known.
        local: Option<SocketAddr>,
        /// The upstream.
        upstream: SocketAddr,
        /// The error.
        error: SendError,
    },
    /// The upstream did not answer within `read_timeout`, or until the query's deadline.
    #[error("read {} {}: i/o timeout", proto(*stream), Way(*local, *upstream))]
    Silent {
        /// The connection type, `None` over UDP.
        stream: Option<StreamKind>,
        /// The local address, if known.
        local: Option<SocketAddr>,
        /// The upstream.
        upstream: SocketAddr,
    },
    /// The network refused a datagram: ICMP, or a local error.
    #[error("read udp {}: read: {}", Way(*local, *upstream), words(*error))]
    Network {
        /// The local address, if known.
        local: Option<SocketAddr>,
        /// The upstream.
        upstream: SocketAddr,
        /// The kernel's error.
        error: io::ErrorKind,
    },
    /// The upstream's reply over a connection is malformed, or answers another question.
    #[error("bad reply from {0}")]
    Garbled(SocketAddr),
    /// TCP or TLS failed.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
}

impl ForwardError {
    /// Whether this machine could not send for a reason that may soon pass, such as an address or
    /// route that is being renewed.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Self::NoSocket { error, .. } | Self::NotSent { error, .. } => *error != SendError::Files,
            Self::Exchange(ExchangeError::Dial { error, .. }) => matches!(
                error,
                io::ErrorKind::NetworkUnreachable
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkDown
                    | io::ErrorKind::AddrNotAvailable
                    | io::ErrorKind::PermissionDenied
            ),
            _ => false,
        }
    }

    /// Whether the cause is the upstream or the path to it, not a local limit.
    pub(crate) fn blames_upstream(&self) -> bool {
        match self {
            Self::NoSocket { error, .. } | Self::NotSent { error, .. } => error.blames_upstream(),
            Self::Exchange(error) => error.blames_upstream(),
            _ => true,
        }
    }

    /// Whether the query exceeded a local limit, so that the failure does not depend on its name or
    /// on an upstream.
    pub fn is_overload(&self) -> bool {
        match self {
            Self::TableFull | Self::Congested(_) => true,
            Self::Exchange(error) => !error.blames_upstream(),
            _ => false,
        }
    }
}

/// Why this machine could not send a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No file descriptor is left, for the process or the machine.
    Files,
    /// No buffer is left, or the socket's is full.
    Buffers,
    /// Anything else: no route, no such local address, not permitted.
    Refused(io::ErrorKind),
}

impl SendError {
    /// Whether the cause is the path to the upstream, not a local limit.
    pub(crate) fn blames_upstream(self) -> bool {
        matches!(self, Self::Refused(_))
    }
}

impl From<&io::Error> for SendError {
    fn from(error: &io::Error) -> Self {
        // Compared by number, as `io::ErrorKind` has no stable variant for these errors.
        match (error.raw_os_error(), error.kind()) {
            (Some(ENFILE | EMFILE), _) => Self::Files,
            (Some(ENOBUFS), _) | (_, io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory) => Self::Buffers,
            (_, kind) => Self::Refused(kind),
        }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Files => "too many open files",
            Self::Buffers => "no buffer space available",
            Self::Refused(kind) => words(*kind),
        })
    }
}

/// Linux's error numbers.
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
const ENOBUFS: i32 = 105;

/// Why an exchange over TCP or TLS failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExchangeError {
    /// The connection could not be made.
    #[error("dial tcp {upstream}: {}", Dialled(*error))]
    Dial {
        /// The upstream.
        upstream: SocketAddr,
        /// The kernel's error.
        error: io::ErrorKind,
    },
    /// TLS failed: a certificate (the upstream's or the client's), the name, the protocol.
    #[error("tls {upstream}: {}", Judged(error))]
    Tls {
        /// The upstream.
        upstream: SocketAddr,
        /// The error of rustls.
        error: Box<rustls::Error>,
    },
    /// The connection broke before the reply was complete.
    #[error("read tcp {}: {}", Way(*local, *upstream), Broken(*error))]
    Read {
        /// The local address.
        local: Option<SocketAddr>,
        /// The upstream.
        upstream: SocketAddr,
        /// The kernel's error; `UnexpectedEof` when the upstream closed.
        error: io::ErrorKind,
    },
    /// The upstream sent bytes that are no DNS message; its connection was closed.
    #[error("bad reply from {upstream}")]
    Garbage {
        /// The upstream.
        upstream: SocketAddr,
    },
    /// No reply arrived before the deadline.
    #[error("read tcp {}: i/o timeout", Way(*local, *upstream))]
    Timeout {
        /// The local address.
        local: Option<SocketAddr>,
        /// The upstream.
        upstream: SocketAddr,
    },
    /// The client's quota of queries on the upstream's connections is exhausted, or each connection
    /// is full.
    #[error("too many queries in flight to {upstream}")]
    Overloaded {
        /// The upstream.
        upstream: SocketAddr,
    },
    /// The reply was dropped, as the worker has too many earlier ones to read.
    #[error("too many replies wait to be read")]
    NoRoom,
}

impl ExchangeError {
    /// Whether the cause is the upstream, not a local limit.
    pub(crate) fn blames_upstream(&self) -> bool {
        !matches!(self, Self::Overloaded { .. } | Self::NoRoom)
    }
}

/// Prints a rustls error, in words where rustls prints only the name of a variant.
struct Judged<'e>(&'e rustls::Error);

impl fmt::Display for Judged<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use rustls::CertificateError as C;
        let rustls::Error::InvalidCertificate(why) = self.0 else { return self.0.fmt(f) };
        let words = match why {
            C::UnknownIssuer => "its issuer is none of the authorities",
            C::BadSignature => "its signature is not that of the authority of this name",
            C::Other(other) if other.0.to_string() == CA_USED_AS_END_ENTITY => {
                "it is an authority's, not a server's own; name it itself as the authority, if it is meant"
            }
            C::Other(other) if other.0.is::<TooManyCertificates>() => {
                return write!(f, "invalid peer certificate: {}", other.0);
            }
            _ => return self.0.fmt(f),
        };
        write!(f, "invalid peer certificate: {words}")
    }
}

/// Returns Go's name of the network, as in its error lines.
fn proto(stream: Option<StreamKind>) -> &'static str {
    if stream.is_some() { "tcp" } else { "udp" }
}

/// Returns the text of Go's `syscall.Errno` for the errors that DNS exchanges have.
fn words(error: io::ErrorKind) -> &'static str {
    match error {
        io::ErrorKind::ConnectionRefused => "connection refused",
        io::ErrorKind::ConnectionReset => "connection reset by peer",
        io::ErrorKind::HostUnreachable => "no route to host",
        io::ErrorKind::NetworkUnreachable => "network is unreachable",
        io::ErrorKind::NetworkDown => "network is down",
        io::ErrorKind::InvalidInput => "invalid argument",
        io::ErrorKind::PermissionDenied => "operation not permitted",
        io::ErrorKind::BrokenPipe => "broken pipe",
        io::ErrorKind::TimedOut => "connection timed out",
        io::ErrorKind::AddrNotAvailable => "cannot assign requested address",
        _ => "input/output error",
    }
}

/// Prints `local->remote`, or `remote` alone if the local address is unknown.
struct Way(Option<SocketAddr>, SocketAddr);

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(local) = self.0 {
            write!(f, "{local}->")?;
        }
        write!(f, "{}", self.1)
    }
}

/// Prints the end of Go's error lines that begin with `dial`.
struct Dialled(io::ErrorKind);

impl fmt::Display for Dialled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            io::ErrorKind::TimedOut => f.write_str("i/o timeout"),
            error => write!(f, "connect: {}", words(error)),
        }
    }
}

/// Prints the end of Go's error lines about a broken connection.
struct Broken(io::ErrorKind);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            io::ErrorKind::UnexpectedEof => f.write_str("EOF"),
            error => write!(f, "read: {}", words(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_read_as_coredns_prints_them() {
        let local = "127.0.0.1:1234".parse().ok();
        let upstream = "127.0.0.2:53".parse().unwrap();
        let tcp = Some(StreamKind::Tcp);
        let not_sent = |errno| SendError::from(&io::Error::from_raw_os_error(errno));
        let no_socket = |errno| ForwardError::NoSocket { upstream, error: not_sent(errno) };
        let rows: [(ForwardError, &str); 13] = [
            (no_socket(24), "dial udp 127.0.0.2:53: too many open files"),
            (no_socket(23), "dial udp 127.0.0.2:53: too many open files"),
            (no_socket(101), "dial udp 127.0.0.2:53: connect: network is unreachable"),
            (
                ForwardError::NotSent { local, upstream, error: not_sent(1) },
                "write udp 127.0.0.1:1234->127.0.0.2:53: write: operation not permitted",
            ),
            (
                ForwardError::NotSent { local: None, upstream, error: not_sent(105) },
                "write udp 127.0.0.2:53: write: no buffer space available",
            ),
            (
                ForwardError::Silent { stream: None, local, upstream },
                "read udp 127.0.0.1:1234->127.0.0.2:53: i/o timeout",
            ),
            (
                ForwardError::Silent { stream: tcp, local: None, upstream },
                "read tcp 127.0.0.2:53: i/o timeout",
            ),
            (
                ForwardError::Network { local, upstream, error: io::ErrorKind::ConnectionRefused },
                "read udp 127.0.0.1:1234->127.0.0.2:53: read: connection refused",
            ),
            (
                ExchangeError::Dial { upstream, error: io::ErrorKind::ConnectionRefused }.into(),
                "dial tcp 127.0.0.2:53: connect: connection refused",
            ),
            (
                ExchangeError::Dial { upstream, error: io::ErrorKind::TimedOut }.into(),
                "dial tcp 127.0.0.2:53: i/o timeout",
            ),
            (
                ExchangeError::Read { local, upstream, error: io::ErrorKind::UnexpectedEof }.into(),
                "read tcp 127.0.0.1:1234->127.0.0.2:53: EOF",
            ),
            (ForwardError::NoHealthy, "no healthy proxies"),
            (ForwardError::MaxConcurrent(1000), "concurrent queries exceeded maximum 1000"),
        ];
        for (failure, text) in rows {
            assert_eq!(failure.to_string(), text);
        }
    }
}
