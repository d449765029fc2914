//! The actions of a mock upstream and the content of its replies.

use std::time::Duration;

use super::{Asked, Transport};
use crate::message::{header, question_end};
use crate::records::record;

/// The action on one query.
#[derive(Debug, Clone)]
pub enum Action {
    /// A correct reply.
    Reply(Says),
    /// No reply.
    Silent,
    /// Another action after a delay.
    Delay(Duration, Box<Self>),
    /// TC without records over UDP; the full reply over a connection.
    Truncate(Says),
    /// The reply with another ID.
    WrongId(Says),
    /// A reply with a question for this name instead.
    WrongQuestion(String, Says),
    /// The reply from another port of the same address, UDP only.
    WrongPort(Says),
    /// These bytes only.
    Octets(Vec<u8>),
    /// A number of replies with wrong IDs, then the correct one.
    Forge(usize, Says, Box<Self>),
    /// Half of the reply (over a connection: with the length of the whole), then the end of the
    /// connection.
    Half(Says),
    /// Closes the connection (FIN). Over UDP: silence.
    Close,
    /// Resets the connection (RST). Over UDP: silence.
    Reset,
    /// Both actions, in order.
    Both(Box<Self>, Box<Self>),
}

/// The content of a reply. Default: NOERROR, RD copied, RA, the question copied, and OPT if the
/// query had one.
#[derive(Debug, Clone, Default)]
pub struct Says {
    rcode: u16,
    flags: u16,
    cleared: u16,
    sections: [Vec<Vec<u8>>; 3],
    options: Vec<u8>,
    plain: bool,
    upper: bool,
    fit: bool,
}

impl Says {
    /// An answer section with these records, one a line, as `owner ttl IN type data`.
    ///
    /// # Panics
    /// When a line is not a record.
    pub fn answer(lines: &str) -> Self {
        Self { sections: [records(lines), Vec::new(), Vec::new()], ..Self::default() }
    }

    /// An rcode alone.
    pub fn rcode(rcode: u16) -> Self {
        Self { rcode, ..Self::default() }
    }

    /// NXDOMAIN with this SOA.
    pub fn nxdomain(soa: &str) -> Self {
        Self::rcode(3).authority(soa)
    }

    /// NOERROR without answers, with this SOA.
    pub fn nodata(soa: &str) -> Self {
        Self::rcode(0).authority(soa)
    }

    /// An answer section.
    ///
    /// # Panics
    /// When a line is not a record.
    pub fn answers(mut self, lines: &str) -> Self {
        self.sections[0] = records(lines);
        self
    }

    /// An authority section.
    pub fn authority(mut self, lines: &str) -> Self {
        self.sections[1] = records(lines);
        self
    }

    /// An additional section, before OPT.
    pub fn additional(mut self, lines: &str) -> Self {
        self.sections[2] = records(lines);
        self
    }

    /// Sets header flags, such as AA 0x0400 or AD 0x0020.
    pub fn flags(mut self, flags: u16) -> Self {
        self.flags |= flags;
        self
    }

    /// Clears header flags, such as RA 0x0080.
    pub fn without_flags(mut self, flags: u16) -> Self {
        self.cleared |= flags;
        self
    }

    /// Adds an EDNS option.
    pub fn option(mut self, code: u16, data: &[u8]) -> Self {
        let length = u16::try_from(data.len()).expect("an option fits its length");
        self.options.extend([&code.to_be_bytes()[..], &length.to_be_bytes(), data].concat());
        self
    }

    /// Omits OPT, even if the query has one.
    pub fn without_edns(self) -> Self {
        Self { plain: true, ..self }
    }

    /// Returns the question in upper case.
    pub fn shouting(self) -> Self {
        Self { upper: true, ..self }
    }

    /// Over UDP, sets TC and omits the records if they exceed the size that the query allows.
    pub fn fitting(self) -> Self {
        Self { fit: true, ..self }
    }

    /// Sets TC and omits the records.
    pub(super) fn truncated(self) -> Self {
        Self { sections: Default::default(), ..self }.flags(0x0200)
    }

    /// The reply in wire format.
    pub(super) fn reply(&self, asked: &Asked) -> Vec<u8> {
        let count = |n: usize| u16::try_from(self.sections[n].len()).expect("a section fits its count");
        let edns = asked.edns.as_ref().filter(|_| !self.plain);
        let counts = [1, count(0), count(1), count(2) + u16::from(edns.is_some())];
        let mut bytes = header(
            asked.id,
            (0x8080 | asked.flags & 0x0110 | self.flags) & !self.cleared | self.rcode & 0xf,
            counts,
        );
        let end = question_end(&asked.bytes).expect("the query was decoded before");
        bytes.extend(&asked.bytes[12..end]);
        if self.upper {
            bytes[12..end - 4].make_ascii_uppercase();
        }
        self.sections.iter().flatten().for_each(|record| bytes.extend(record));
        if let Some(edns) = edns {
            bytes.extend([0, 0, 41, 4, 208, (self.rcode >> 4) as u8, 0, u8::from(edns.dnssec_ok) << 7, 0]);
            bytes.extend(u16::try_from(self.options.len()).expect("the options fit OPT").to_be_bytes());
            bytes.extend(&self.options);
        }
        let allowed = asked.edns.as_ref().map_or(512, |edns| usize::from(edns.size.max(512)));
        if self.fit && asked.transport == Transport::Udp && bytes.len() > allowed {
            return self.clone().truncated().reply(asked);
        }
        bytes
    }
}

impl Action {
    /// The reply with these records.
    ///
    /// # Panics
    /// When a line is not a record.
    pub fn answer(lines: &str) -> Self {
        Self::Reply(Says::answer(lines))
    }

    /// A reply with only this rcode.
    pub fn rcode(rcode: u16) -> Self {
        Self::Reply(Says::rcode(rcode))
    }

    /// NXDOMAIN with this SOA.
    ///
    /// # Panics
    /// When it is not a record.
    pub fn nxdomain(soa: &str) -> Self {
        Self::Reply(Says::nxdomain(soa))
    }

    /// Delays this action.
    pub fn after(self, delay: Duration) -> Self {
        Self::Delay(delay, Box::new(self))
    }
}

fn records(lines: &str) -> Vec<Vec<u8>> {
    lines.lines().map(str::trim).filter(|line| !line.is_empty()).map(record).collect()
}
