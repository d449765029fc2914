//! Answers of more than one message: how a source answers for a zone as a whole (AXFR, IXFR), and what comes with it
//! (NOTIFY, UPDATE).
//!
//! ```text
//! gate -> route -> steps -> Source::of_zone -> Messages    once: who asks, for which zone, which version
//!                             connection <- next <-'       again and again: whenever the client has taken what came before
//! ```
//! A source takes such a request, or passes it on; what no source of the block takes is refused. For a transfer it hands out
//! [`Messages`]: what the zone holds now, and how far the client has it. That is asked for the next message by the client's
//! connection alone, when all before it is the kernel's; so it is never ahead of its client by more than one message, and it
//! is dropped as soon as the client goes away. It must hold a snapshot that nothing changes (an `Arc`, shared with all who
//! read it), no copy, and nothing that grows: a slow client keeps it for minutes, while the zone changes and
//! configurations come and go. Few transfers run at a time (docs/limits.md).
//!
//! A transfer is the zone's SOA record, every other record, and the SOA again (RFC 5936, section 2.2). For an IXFR
//! [`wire::ZoneRequest::serial`] says what the client has: who has the newest gets the SOA alone (RFC 1995, section 2), and a
//! source that keeps no history sends everything, as to an AXFR (section 4). Over UDP nobody is sent a zone: an IXFR gets
//! the first record, the SOA, which tells the client to come by TCP (RFC 1995, section 2), and an AXFR is refused (RFC
//! 5936, section 4.2), without a question to any source.
//!
//! Where no `transfer` of the block names the client, no source is asked for a zone ([`Source::permits`](crate::spec::Source)).
//!
//! What `acl` and its like say of the name and type asked holds for transfers, too. What steps do with answers they do not
//! do with these; a request of which a step seeks another name or type is refused.

use wire::{Class, Flags, HEADER, Name, Owner, RType, Reply, Section};

use crate::failure::Failure;

/// What a source does with a request for a zone.
pub enum ZoneOutcome {
    /// Not its zone: the next source is asked; the reply is as it was.
    Pass,
    /// The reply is written, and all there is to say.
    Answer,
    /// The answer to a transfer.
    Stream(Box<dyn Messages>),
    /// Its zone, but there is no answer.
    Fail(Failure),
}

/// The messages of one transfer.
pub trait Messages: Send + Sync {
    /// Writes records to the next message until it is [`Full`] or there are no more. The record that found no room is the
    /// first of the message after it.
    fn next(&mut self, message: &mut StreamMessage<'_, '_>) -> Next;
}

/// Records one after the other, as many to a message as there is room for. The function tells them until one finds no room,
/// which comes first the next time, and what comes after them.
pub struct RecordByRecord<F>(pub F);

impl<F: FnMut(&mut Push<'_>) -> Next + Send + Sync> Messages for RecordByRecord<F> {
    fn next(&mut self, message: &mut StreamMessage<'_, '_>) -> Next {
        (self.0)(&mut |owner, rtype, ttl, data| message.push(owner, rtype, ttl, data).is_ok())
    }
}

/// Takes a record, or has no room for it: owner, type, TTL and data.
pub type Push<'p> = dyn FnMut(&Name, RType, u32, &[u8]) -> bool + 'p;

/// What comes after a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another one.
    More,
    /// Another one, too; this one need have no record yet, and is not sent then: to find the next takes so long that others
    /// are to have their turn first.
    Later,
    /// That was the last.
    End,
}

/// The message has no room for the record, which was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// One message of a stream, which has header and question already.
pub struct StreamMessage<'m, 'b> {
    reply: &'m mut Reply<'b>,
    /// The zone: the name that was asked for.
    apex: &'m Name,
    /// Octets that come behind the records.
    opt: usize,
    /// Records that it may have.
    most: u16,
}

impl<'m, 'b> StreamMessage<'m, 'b> {
    /// A message of at most so many records, with room for an OPT of so many octets.
    pub fn new(reply: &'m mut Reply<'b>, apex: &'m Name, opt: usize, most: u16) -> Self {
        reply.flags = Flags::AA;
        Self { reply, apex, opt, most }
    }

    /// Adds a record of class IN to the answer section; `ttl` in seconds, names in `data` written out.
    ///
    /// # Errors
    /// [`Full`]: it is for the next message.
    pub fn push(&mut self, owner: &Name, rtype: RType, ttl: u32, data: &[u8]) -> Result<(), Full> {
        let records = self.reply.counts()[0];
        let (start, is_within) = match owner.as_wire().strip_suffix(self.apex.as_wire()) {
            Some(start) if owner.is_within(self.apex) => (start, true),
            _ => (owner.as_wire(), false),
        };
        let written =
            self.reply.octets().len() + start.len() + POINTER.len() + FIELDS + data.len() + self.opt;
        // One record may need a message of its own; others share one of a size that a client need not wait for.
        let room = if records == 0 { usize::from(u16::MAX) } else { COMMON_BYTES };
        if written > room || records >= self.most {
            return Err(Full);
        }
        match (is_within, start) {
            (true, []) => self.reply.push(Section::Answer, Owner::Question, rtype, Class::IN, ttl, data),
            (true, start) => {
                let mut name = [0; wire::MAX_NAME + POINTER.len()];
                let length = start.len() + POINTER.len();
                name[..start.len()].copy_from_slice(start);
                name[start.len()..length].copy_from_slice(&POINTER);
                let owner = Owner::Name(&name[..length]);
                self.reply.push(Section::Answer, owner, rtype, Class::IN, ttl, data);
            }
            (false, name) => self.reply.push(Section::Answer, Owner::Name(name), rtype, Class::IN, ttl, data),
        }
        Ok(())
    }
}

/// Where the zone's name stands in every message: in the question.
const POINTER: [u8; 2] = [0xc0, HEADER as u8];
/// Type, class, TTL and length.
const FIELDS: usize = 10;
/// Octets that a message has where its first record leaves room: what a connection offers the kernel at once.
const COMMON_BYTES: usize = 16 * 1024;
