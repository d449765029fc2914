//! The maximum size of replies.

use wire::{Proto, Query};

/// The maximum size of a block's replies in bytes: over UDP the smaller of the client's and the
/// Corefile's limit, over a connection the maximum of the length field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplySize {
    most: usize,
    written: Option<u16>,
}

impl Default for ReplySize {
    fn default() -> Self {
        Self { most: wire::UDP_SIZE.into(), written: None }
    }
}

impl ReplySize {
    /// Creates the Corefile's limit for UDP.
    pub fn at_most(octets: u16) -> Self {
        Self { most: octets.into(), written: Some(octets) }
    }

    /// Returns the maximum size of a reply to this query over a transport.
    #[inline]
    pub fn limit(self, query: &Query<'_>, proto: Proto) -> usize {
        match proto {
            Proto::Udp => query.udp_limit().min(self.most).max(512),
            Proto::Tcp | Proto::Quic => usize::from(u16::MAX),
        }
    }

    /// Returns the size that log and templates print for a client that accepts `octets`: at most
    /// the Corefile's limit, as in CoreDNS.
    pub fn displayed(self, octets: usize) -> usize {
        self.written.map_or(octets, |written| octets.min(written.into()))
    }
}
