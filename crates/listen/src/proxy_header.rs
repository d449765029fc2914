//! The header of the PROXY protocol at the start of a connection.

use std::io;
use std::net::SocketAddr;

use configuration::EndpointPlan;
use plugins::proxyproto::Policy;
use plugins::proxyproto::header::{Header, LONGEST};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

/// A header that has not been received completely.
pub(crate) struct ProxyHeader {
    policy: Policy,
    /// Its bytes so far.
    octets: Vec<u8>,
}

impl ProxyHeader {
    /// Returns the state of a new connection from `peer`; `None` if it has no header.
    pub(crate) fn expected(plan: &EndpointPlan, peer: SocketAddr) -> Option<Box<Self>> {
        let policy = plan.proxy.as_ref()?.policy(peer.ip());
        (policy != Policy::Skip).then(|| Box::new(Self { policy, octets: Vec::new() }))
    }

    /// Appends received bytes, and returns how many: no more than a header may have.
    pub(crate) fn push(&mut self, received: &[u8]) -> usize {
        let count = received.len().min(LONGEST - self.octets.len());
        self.octets.extend_from_slice(&received[..count]);
        count
    }

    /// Returns what the bytes begin with; `None` while that is open.
    ///
    /// # Errors
    /// The header is invalid or refused.
    pub(crate) fn begun(&self) -> io::Result<Option<Begun>> {
        Ok(Some(match Header::read(&self.octets) {
            Header::Incomplete if self.octets.len() < LONGEST => return Ok(None),
            Header::Incomplete | Header::Invalid => return Err(io::ErrorKind::InvalidData.into()),
            Header::Absent => Begun::Other,
            Header::Complete { .. } if self.policy == Policy::Reject => {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            Header::Complete { length, client, .. } => {
                Begun::Header { length, client: client.filter(|_| self.policy == Policy::Use) }
            }
        }))
    }

    /// Reads the header of a connection; returns the bytes behind it that were read with it, and the
    /// client that it names.
    ///
    /// # Errors
    /// Those of the stream and of [`begun`](Self::begun).
    pub(crate) async fn receive(
        mut self,
        stream: &mut TcpStream,
    ) -> io::Result<(Vec<u8>, Option<SocketAddr>)> {
        let mut part = [0; 512];
        loop {
            let room = part.len().min(LONGEST - self.octets.len());
            match stream.read(&mut part[..room]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => self.push(&part[..count]),
            };
            match self.begun()? {
                None => {}
                Some(Begun::Other) => return Ok((self.octets, None)),
                Some(Begun::Header { length, client }) => {
                    self.octets.drain(..length);
                    return Ok((self.octets, client));
                }
            }
        }
    }

    /// Returns the bytes held so far.
    pub(crate) fn octets(&self) -> &[u8] {
        &self.octets
    }

    /// Returns the bytes held for this client.
    pub(crate) fn held(&self) -> usize {
        self.octets.capacity()
    }
}

/// What a connection begins with.
pub(crate) enum Begun {
    /// A header of this length in bytes.
    Header {
        length: usize,
        /// The client that it names, if that is used.
        client: Option<SocketAddr>,
    },
    /// Bytes of the client.
    Other,
}
