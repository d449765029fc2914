//! A zone transfer to one client, message by message.

use std::iter;
use std::sync::Arc;

use wire::{Flags, OwnedQuery, Proto, Query, Rcode, Reply};

use super::{Counted, LogEntry, Observed, Outcome, entry, fail, finish};
use crate::ServedZone;
use logging::LineRing;
use plugin::failure::Failure;
use plugin::zone_request::{Messages, Next, StreamMessage};

/// A zone transfer. It keeps its block and snapshot over reloads.
pub struct TransferStream {
    zone: Arc<ServedZone>,
    query: OwnedQuery,
    messages: Box<dyn Messages>,
    /// Bytes of all messages so far, header flags of the last one.
    octets: u64,
    flags: Flags,
    answers: u16,
    ended: bool,
}

/// The error of a faulty source: it has no record now, but reports neither the end nor a later
/// time. The client's copy of the zone is incomplete.
#[derive(Debug)]
pub struct BrokenTransfer;

impl TransferStream {
    pub(super) fn new(zone: &Arc<ServedZone>, query: &Query<'_>, messages: Box<dyn Messages>) -> Self {
        let (zone, query) = (zone.clone(), query.owned());
        Self { zone, query, messages, octets: 0, flags: Flags(0), answers: 0, ended: false }
    }

    /// Writes the next message to `out`, at most 65,535 bytes; nothing if the source has none
    /// [yet](Next::Later).
    ///
    /// # Errors
    /// [`BrokenTransfer`].
    pub fn next(&mut self, out: &mut Vec<u8>) -> Result<Next, BrokenTransfer> {
        let query = self.query.query();
        let mut reply = Reply::start(out, &query);
        let opt = OPT_BYTES + self.zone.block.envelope.most_octets();
        let mut message = StreamMessage::new(&mut reply, &query.name, opt, u16::MAX);
        let next = self.messages.next(&mut message);
        let answers = reply.counts()[0];
        if answers == 0 && next == Next::Later {
            out.clear();
            return Ok(next);
        }
        if answers == 0 {
            return Err(BrokenTransfer);
        }
        let (flags, octets) = self.zone.finish(&query, &mut reply, Proto::Tcp);
        self.octets += octets as u64;
        (self.flags, self.answers) = (flags, self.answers.saturating_add(answers));
        self.ended = next == Next::End;
        Ok(next)
    }

    /// Returns the bytes of memory, without the shared snapshot.
    pub fn held(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.messages)
    }

    /// Writes a failure in place of all messages.
    pub fn refuse(&self, failure: Failure, out: &mut Vec<u8>, outcome: &mut Outcome) {
        let query = self.query.query();
        let mut reply = Reply::start(out, &query);
        fail(&mut reply, &failure);
        finish(&self.zone, &query, &mut reply, Proto::Tcp, Some(failure), outcome);
    }

    /// Counts the transfer as one reply, by thread `writer`.
    pub fn count(&self, seen: &Observed, writer: usize) {
        let query = self.query.query();
        let counted = Counted {
            proto: seen.proto,
            ipv6: seen.client.is_ipv6(),
            rtype: query.rtype,
            dnssec_ok: query.dnssec_ok(),
            rcode: Rcode::NOERROR,
            failed: !self.ended,
            nanos: seen.nanos,
        };
        let octets = u32::try_from(self.octets).unwrap_or(u32::MAX);
        self.zone.counters(writer).count(&counted, iter::once([query.size as u32, octets]));
    }

    /// Reports the transfer to the hooks of its block as one reply, and as a failure if it is
    /// incomplete.
    pub fn log(&self, seen: &Observed, lines: &mut LineRing) {
        let query = self.query.query();
        if !self.ended {
            self.zone.block.envelope.query_failed(&Failure::CutOff(self.octets), &query, seen.now);
        }
        let envelope = &self.zone.block.envelope;
        if envelope.observes_queries() {
            let outcome = Outcome { flags: self.flags, answers: self.answers, ..Outcome::OPEN };
            let rsize = self.octets as usize;
            envelope.query_ended(&LogEntry { rsize, ..entry(&self.zone, &query, &outcome, seen) }, lines);
        }
    }
}

/// An OPT record without options.
const OPT_BYTES: usize = 11;
