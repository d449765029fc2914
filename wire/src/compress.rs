//! Writing a message's records again with their names compressed (RFC 1035, section 4.1.4).

use crate::name::walk;
use crate::records::{Malformed, Record, Records, Section};
use crate::{HEADER, MAX_NAME, RType};

/// How many names are remembered as targets of pointers. Most replies repeat the question's name and one or two more;
/// the bound keeps hostile replies linear.
const CANDIDATES: usize = 64;

/// Writes the records of `message` to `body` as they stand behind `question`, without OPT and TSIG; returns the counts.
///
/// # Errors
/// [`Malformed`] where the message cannot be read or its new form has no room.
pub(crate) fn rewrite(
    message: &[u8],
    question: &[u8],
    counts: [u16; 3],
    body: &mut Vec<u8>,
) -> Result<[u16; 3], Malformed> {
    let start = HEADER + question.len();
    let mut writer = Writer { base: start, body, candidates: [0; CANDIDATES], known: 0 };
    let mut written = [0; 3];
    let question_name = RawName::read(message, HEADER)?;
    writer.remember_question(&question_name);
    for record in Records::new(message, start, counts) {
        let record = record?;
        if matches!(record.rtype, RType::OPT | RType::TSIG) {
            continue;
        }
        writer.record(message, question, &record)?;
        written[record.section as usize] += 1;
    }
    if start + writer.body.len() > usize::from(u16::MAX) {
        return Err(Malformed::Long);
    }
    Ok(written)
}

/// Records of several messages, written behind one question with their names compressed.
pub struct Merge<'b> {
    question: &'b [u8],
    writer: Writer<'b>,
    counts: [u16; 3],
}

impl<'b> Merge<'b> {
    /// Writes to `body`, which is emptied, what is to stand behind `question`.
    ///
    /// # Errors
    /// [`Malformed`] where the question has no name.
    pub fn new(question: &'b [u8], body: &'b mut Vec<u8>) -> Result<Self, Malformed> {
        body.clear();
        let mut writer =
            Writer { base: HEADER + question.len(), body, candidates: [0; CANDIDATES], known: 0 };
        writer.remember_question(&RawName::read(question, 0)?);
        Ok(Self { question, writer, counts: [0; 3] })
    }

    /// Appends `record` of `message` to `section`; sections must come in order.
    ///
    /// # Errors
    /// [`Malformed`] where it cannot be read, or where a message has no more room.
    pub fn push(&mut self, section: Section, message: &[u8], record: &Record) -> Result<(), Malformed> {
        self.writer.record(message, self.question, record)?;
        self.counts[section as usize] += 1;
        if self.writer.base + self.writer.body.len() > usize::from(u16::MAX) {
            return Err(Malformed::Long);
        }
        Ok(())
    }

    /// How many records each section has.
    pub fn counts(&self) -> [u16; 3] {
        self.counts
    }
}

struct Writer<'b> {
    /// Where `body` stands in the message to be.
    base: usize,
    body: &'b mut Vec<u8>,
    /// Positions of names in the message to be; those below `base` are in the question.
    candidates: [u16; CANDIDATES],
    known: usize,
}

impl Writer<'_> {
    fn record(&mut self, message: &[u8], question: &[u8], record: &Record) -> Result<(), Malformed> {
        let owner = RawName::read(message, record.owner)?;
        self.name(&owner, question, true);
        self.body.extend_from_slice(&record.rtype.0.to_be_bytes());
        self.body.extend_from_slice(&record.class.0.to_be_bytes());
        self.body.extend_from_slice(&record.ttl.to_be_bytes());
        let length_at = self.body.len();
        self.body.extend_from_slice(&[0, 0]);
        let shape = DataShape::of(record.rtype);
        let mut at = record.data.start;
        let prefix =
            if record.rtype == RType::NAPTR { naptr_prefix(record.data(message))? } else { shape.prefix };
        let fixed =
            message.get(at..at + prefix).filter(|_| prefix <= record.data.len()).ok_or(Malformed::Short)?;
        self.body.extend_from_slice(fixed);
        at += prefix;
        for _ in 0..shape.names {
            if at >= record.data.end {
                return Err(Malformed::Short);
            }
            let name = RawName::read(message, at)?;
            at = name.end;
            self.name(&name, question, shape.compress);
        }
        self.body.extend_from_slice(message.get(at..record.data.end).ok_or(Malformed::Short)?);
        let length = u16::try_from(self.body.len() - length_at - 2).map_err(|_| Malformed::Long)?;
        self.body[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
        Ok(())
    }

    fn remember_question(&mut self, name: &RawName) {
        for (offset, _) in name.suffixes() {
            self.remember(HEADER + offset);
        }
    }

    fn remember(&mut self, position: usize) {
        if self.known < CANDIDATES && position < 0x4000 {
            self.candidates[self.known] = position as u16;
            self.known += 1;
        }
    }

    fn name(&mut self, name: &RawName, question: &[u8], compress: bool) {
        let start = self.base + self.body.len();
        for (offset, suffix) in name.suffixes() {
            let found = self.candidates[..self.known]
                .iter()
                .copied()
                .find(|&candidate| compress && self.stands_at(usize::from(candidate), suffix, question));
            if let Some(candidate) = found {
                self.body.extend_from_slice(&(0xc000 | candidate).to_be_bytes());
                return;
            }
            self.remember(start + offset);
            let label = &suffix[..1 + usize::from(suffix[0])];
            self.body.extend_from_slice(label);
        }
        self.body.push(0);
    }

    /// Whether the name that starts at `position` of the message to be reads like `suffix`.
    fn stands_at(&self, position: usize, suffix: &[u8], question: &[u8]) -> bool {
        let mut position = position;
        let mut rest = suffix;
        loop {
            let bytes = match position.checked_sub(self.base) {
                Some(at) => self.body.get(at..),
                None => question.get(position - HEADER..),
            };
            let Some(bytes @ [length, ..]) = bytes else { return false };
            if *length >= 0xc0 {
                let Some(&[high, low]) = bytes.first_chunk::<2>() else { return false };
                position = usize::from(u16::from_be_bytes([high & 0x3f, low]));
                continue;
            }
            let size = 1 + usize::from(*length);
            match (bytes.get(..size), rest.get(..size)) {
                (Some(theirs), Some(ours)) if theirs.eq_ignore_ascii_case(ours) => {}
                _ => return false,
            }
            if *length == 0 {
                return true;
            }
            position += size;
            rest = &rest[size..];
        }
    }
}

/// A name in wire form, in the case it was written in.
struct RawName {
    octets: [u8; MAX_NAME],
    len: usize,
    /// Where it ends in the message it was read from.
    end: usize,
}

impl RawName {
    fn read(message: &[u8], at: usize) -> Result<Self, Malformed> {
        let mut name = Self { octets: [0; MAX_NAME], len: 0, end: 0 };
        name.end = walk(message, at, |label| {
            let next = name.len + 1 + label.len();
            let room = name.octets.get_mut(name.len..next).ok_or(crate::NameError::LongName)?;
            room[0] = label.len() as u8;
            room[1..].copy_from_slice(label);
            name.len = next;
            Ok(())
        })?;
        Ok(name)
    }

    /// Each suffix but the root, with its offset in the name.
    fn suffixes(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let suffix = self.octets.get(at..self.len)?;
            let length = usize::from(*suffix.first()?);
            if length == 0 {
                return None;
            }
            let offset = at;
            at += 1 + length;
            Some((offset, suffix))
        })
    }
}

/// Where names stand in a type's data. Only the types of RFC 1035 may be compressed when written; of a few later ones
/// names must be understood when read (RFC 3597, section 4).
struct DataShape {
    prefix: usize,
    names: usize,
    compress: bool,
}

impl DataShape {
    fn of(rtype: RType) -> Self {
        let (prefix, names, compress) = match rtype {
            RType::NS
            | RType::MD
            | RType::MF
            | RType::CNAME
            | RType::MB
            | RType::MG
            | RType::MR
            | RType::PTR => (0, 1, true),
            RType::SOA | RType::MINFO => (0, 2, true),
            RType::MX => (2, 1, true),
            RType::RP => (0, 2, false),
            RType::AFSDB | RType::RT | RType::KX => (2, 1, false),
            RType::PX => (2, 2, false),
            RType::SRV => (6, 1, false),
            RType::SIG => (18, 1, false),
            RType::NXT => (0, 1, false),
            RType::NAPTR => (0, 1, false),
            _ => (0, 0, false),
        };
        Self { prefix, names, compress }
    }
}

/// Order, preference and three character strings stand before a NAPTR's name (RFC 3403, section 4.1).
fn naptr_prefix(data: &[u8]) -> Result<usize, Malformed> {
    let mut at = 4;
    for _ in 0..3 {
        at += 1 + usize::from(*data.get(at).ok_or(Malformed::Short)?);
    }
    Ok(at)
}
