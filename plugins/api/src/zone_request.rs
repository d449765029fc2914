//! Requests for a zone as a whole (AXFR, IXFR, NOTIFY, UPDATE), and answers of more than one message.
//!
//! ```text
//! gate -> route -> middleware -> Source::of_zone -> Messages   once: client, zone, serial
//!                                  connection <- next <-'      whenever the kernel has the message before
//! ```
//! A source answers such a request or passes it; a request that no source of the block answers is
//! refused. For a transfer the source returns [`Messages`]: the zone's content, and the client's
//! position in it. The client's connection requests the next message when the kernel has accepted
//! all earlier ones, so that at most one message is buffered. `Messages` is dropped with the
//! connection. It must hold an immutable snapshot (an `Arc` that all readers share), no copy, and
//! nothing that grows: a slow client keeps it for minutes, while the zone and the configuration
//! change. Few transfers run at a time (docs/limits.md).
//!
//! A transfer is the zone's SOA record, every other record, and the SOA again (RFC 5936, section 2.2). For
//! an IXFR [`wire::ZoneRequest::serial`] is the client's serial: a client with the newest serial gets the
//! SOA alone (RFC 1995, section 2), and a source without history sends the whole zone, as to an AXFR
//! (section 4). Over UDP no zone is sent: an IXFR gets the SOA, after which the client repeats the request
//! over TCP (RFC 1995, section 2), and an AXFR is refused (RFC 5936, section 4.2); no source is called.
//!
//! Unless a `transfer` of the block permits the client, no source is called
//! ([`Source::permits`](crate::spec::Source)).
//!
//! `acl` and other middleware apply to the name and type of transfers, too. Response hooks do not;
//! a request is refused if middleware changes its name or type.

use wire::{Class, Flags, HEADER, Name, Owner, RType, Reply, Section};

use crate::failure::Failure;

/// The result of a request for a zone at a source.
pub enum ZoneOutcome {
    /// The zone is not this source's: the next source is called; the reply is unchanged.
    Pass,
    /// The reply is written and complete.
    Answer,
    /// The answer to a transfer.
    Stream(Box<dyn Messages>),
    /// The request fails.
    Fail(Failure),
}

/// The messages of one transfer.
pub trait Messages: Send + Sync {
    /// Writes records to the next message until it is [`Full`] or no records are left. A record
    /// that did not fit is the first of the following message.
    fn next(&mut self, message: &mut StreamMessage<'_, '_>) -> Next;
}

/// A stream of records, as many in each message as fit. The function pushes records until one does
/// not fit, pushes that record first in its next call, and returns what follows the message.
pub struct RecordByRecord<F>(pub F);

impl<F: FnMut(&mut Push<'_>) -> Next + Send + Sync> Messages for RecordByRecord<F> {
    fn next(&mut self, message: &mut StreamMessage<'_, '_>) -> Next {
        (self.0)(&mut |owner, rtype, ttl, data| message.push(owner, rtype, ttl, data).is_ok())
    }
}

/// Pushes a record (owner, type, TTL and data); false if it does not fit.
pub type Push<'p> = dyn FnMut(&Name, RType, u32, &[u8]) -> bool + 'p;

/// What follows a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Another message.
    More,
    /// Another message. The current one may have no record yet and is then not sent: finding the
    /// next record takes so long that other tasks run first.
    Later,
    /// No message: the current one is the last.
    End,
}

/// The record does not fit into the message and was not written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// One message of a stream, with header and question.
pub struct StreamMessage<'m, 'b> {
    reply: &'m mut Reply<'b>,
    /// The zone: the name in the question.
    apex: &'m Name,
    /// Bytes reserved for the OPT record after the records.
    opt: usize,
    /// Maximum number of records.
    most: u16,
}

impl<'m, 'b> StreamMessage<'m, 'b> {
    /// Creates a message of at most `most` records, with room for an OPT record of `opt` bytes.
    pub fn new(reply: &'m mut Reply<'b>, apex: &'m Name, opt: usize, most: u16) -> Self {
        reply.flags = Flags::AA;
        Self { reply, apex, opt, most }
    }

    /// Adds a record of class IN to the answer section; `ttl` in seconds, names in `data`
    /// uncompressed.
    ///
    /// # Errors
    /// [`Full`]: the record belongs to the next message.
    pub fn push(&mut self, owner: &Name, rtype: RType, ttl: u32, data: &[u8]) -> Result<(), Full> {
        let records = self.reply.counts()[0];
        let (start, is_within) = match owner.as_wire().strip_suffix(self.apex.as_wire()) {
            Some(start) if owner.is_within(self.apex) => (start, true),
            _ => (owner.as_wire(), false),
        };
        let written =
            self.reply.octets().len() + start.len() + POINTER.len() + FIELDS + data.len() + self.opt;
        // A large record gets a message of its own; other messages stay small, so that clients do not wait.
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

/// A pointer to the zone's name in the question of every message.
const POINTER: [u8; 2] = [0xc0, HEADER as u8];
/// Type, class, TTL and length.
const FIELDS: usize = 10;
/// Most bytes of a message of several records: what a connection writes to the kernel at once.
const COMMON_BYTES: usize = 16 * 1024;
