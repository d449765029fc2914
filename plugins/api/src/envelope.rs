//! What every query and reply of a server block passes, whoever answers.
//!
//! ```text
//! directives -> EnvelopeSpec -> build, in the table's order -> Envelope: sizes, and lists of what acts
//! ```
//! Which plugins do anything here is decided when the block is built. What a reply costs where none of them does is a look
//! at an empty list.

use std::sync::Arc;
use std::time::Instant;

use logging::metadata::Labels;
use logging::{LineRing, LogEntry};
use wire::{OptionBytes, Proto, Query};

use crate::failure::Failure;

/// What every query and reply of one block passes.
#[derive(Default)]
pub struct Envelope {
    /// How large replies may be.
    pub size: ReplySize,
    /// What writes into the OPT record of replies.
    pub options: Vec<Box<dyn WritesOptions>>,
    /// Whether queries are counted.
    pub counts: bool,
    /// Who knows labels, where they can be read.
    pub labels: Option<Arc<dyn Labels>>,
    /// Who is told of every query that has ended.
    pub ended: Vec<Box<dyn HearsEnds>>,
    /// Who is told of every query that has failed.
    pub failed: Vec<Box<dyn HearsFailures>>,
}

/// Writes options into the OPT record of replies to those who sent one.
pub trait WritesOptions: Send + Sync {
    /// Writes what belongs into the reply to this query.
    fn write(&self, query: &Query<'_>, options: &mut OptionBytes);

    /// Octets that it writes at most, with code and length of each option.
    fn most_octets(&self) -> usize;
}

/// Is told of every query that has ended, after its reply is sent.
pub trait HearsEnds: Send + Sync {
    /// This is what became of one; what is written of it goes into the ring of the thread.
    fn ended(&self, entry: &LogEntry<'_>, lines: &mut LineRing);
}

/// Is told of every query that has failed, after its reply is sent, and of failed lookups that an answer needed.
pub trait HearsFailures: Send + Sync {
    /// This one has failed; not every failure is an error.
    fn failed(&self, failure: &Failure, query: &Query<'_>, now: Instant);

    /// Tells what it has put off until now; called about once a second.
    fn catch_up(&self, _now: Instant) {}
}

/// How large a block's replies may be, in octets: over UDP as the client and the Corefile say, over a connection whatever its
/// length has room for.
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
    /// No more than these, as the Corefile says.
    pub fn at_most(octets: u16) -> Self {
        Self { most: octets.into(), written: Some(octets) }
    }

    /// Of a reply to this query, which came so.
    #[inline]
    pub fn limit(self, query: &Query<'_>, proto: Proto) -> usize {
        match proto {
            Proto::Udp => query.udp_limit().min(self.most).max(512),
            Proto::Tcp => usize::from(u16::MAX),
        }
    }

    /// What those who ask for the size that a client takes are told where it takes `octets`: no more than the Corefile says,
    /// if it does, as in CoreDNS.
    pub fn told(self, octets: usize) -> usize {
        self.written.map_or(octets, |written| octets.min(written.into()))
    }
}

impl Envelope {
    /// Writes into a reply's OPT record, if it gets one.
    #[inline]
    pub fn write_options(&self, query: &Query<'_>, options: &mut OptionBytes) {
        self.options.iter().for_each(|plugin| plugin.write(query, options));
    }

    /// Octets that are written into an OPT record at most.
    pub fn most_octets(&self) -> usize {
        self.options.iter().map(|plugin| plugin.most_octets()).sum()
    }

    /// Whether somebody is told of every query, and not of failed ones alone.
    #[inline]
    pub fn hears_ends(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Tells of a query that has ended.
    pub fn tell_end(&self, entry: &LogEntry<'_>, lines: &mut LineRing) {
        self.ended.iter().for_each(|plugin| plugin.ended(entry, lines));
    }

    /// Has told what was put off until now.
    pub fn catch_up(&self, now: Instant) {
        self.failed.iter().for_each(|plugin| plugin.catch_up(now));
    }

    /// Tells of a query that has failed.
    pub fn tell_failure(&self, failure: &Failure, query: &Query<'_>, now: Instant) {
        self.failed.iter().for_each(|plugin| plugin.failed(failure, query, now));
    }
}
