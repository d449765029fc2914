//! Iterates over the records of a message, as offsets in its bytes.

use std::ops::Range;

use crate::{Class, NameError, RType, name, read_u16, read_u32};

/// The sections that hold records, in message order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Section {
    /// Answer.
    Answer,
    /// Authority.
    Authority,
    /// Additional.
    Additional,
}

/// Why a message cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// A name is malformed.
    Name(NameError),
    /// The message ends too early.
    Short,
    /// Two OPT records, or one outside the additional section (RFC 6891, section 6.1.1).
    Opt,
    /// The header is not that of a reply, or the question is not the query's.
    Question,
    /// The message would exceed 65,535 bytes.
    Long,
    /// The data does not fit the record's type.
    Data(RType),
    /// A TSIG on a reply to an unsigned query (RFC 8945, section 5.3).
    Signed,
    /// Its names take more work than those of any honest message.
    Work,
}

impl From<NameError> for Malformed {
    fn from(error: NameError) -> Self {
        Self::Name(error)
    }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(error) => write!(f, "{error}"),
            Self::Short => f.write_str("the message ends too early"),
            Self::Opt => f.write_str("an OPT record stands where none may"),
            Self::Question => f.write_str("the reply is not to the question asked"),
            Self::Long => f.write_str("the message would be longer than 65535 octets"),
            Self::Data(rtype) => write!(f, "the data of a {rtype} record is not what its type says"),
            Self::Signed => f.write_str("the message is signed, though the query was not"),
            Self::Work => f.write_str("the names of the message take too much work"),
        }
    }
}

impl std::error::Error for Malformed {}

/// Offsets of one record in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its section.
    pub section: Section,
    /// Start of its owner name.
    pub owner: usize,
    /// Its type.
    pub rtype: RType,
    /// Its class.
    pub class: Class,
    /// Its TTL in seconds, as written.
    pub ttl: u32,
    /// Offset of its TTL.
    pub ttl_at: usize,
    /// Range of its data.
    pub data: Range<usize>,
}

impl Record {
    /// Its data.
    pub fn data<'m>(&self, message: &'m [u8]) -> &'m [u8] {
        message.get(self.data.clone()).unwrap_or_default()
    }

    /// Its end.
    pub fn end(&self) -> usize {
        self.data.end
    }
}

/// An iterator over the records of a message; it ends after an error.
pub struct Records<'m> {
    message: &'m [u8],
    at: usize,
    left: [u16; 3],
}

impl<'m> Records<'m> {
    /// Iterates from `start`, the end of the question, by the counts of answer, authority and
    /// additional.
    pub fn new(message: &'m [u8], start: usize, counts: [u16; 3]) -> Self {
        Self { message, at: start, left: counts }
    }

    fn read(&mut self, section: Section) -> Result<Record, Malformed> {
        let owner = self.at;
        let fixed = name::skip(self.message, owner)?;
        let number = |at| read_u16(self.message, at).ok_or(Malformed::Short);
        let (rtype, class) = (RType(number(fixed)?), Class(number(fixed + 2)?));
        let ttl = read_u32(self.message, fixed + 4).ok_or(Malformed::Short)?;
        let data = fixed + 10..fixed + 10 + usize::from(number(fixed + 8)?);
        if data.end > self.message.len() {
            return Err(Malformed::Short);
        }
        self.at = data.end;
        Ok(Record { section, owner, rtype, class, ttl, ttl_at: fixed + 4, data })
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Record, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.left.iter().position(|&left| left > 0)?;
        self.left[at] -= 1;
        let record = self.read([Section::Answer, Section::Authority, Section::Additional][at]);
        if record.is_err() {
            self.left = [0; 3];
        }
        Some(record)
    }
}
