//! Parses zone-file text to records (RFC 1035, section 5), as CoreDNS does.
//!
//! ```text
//! text -> Entries: tokens of a line -> Reader: owner, TTL, class, type -> data -> Record
//! ```
//!
//! [`record`] parses a text with one record, [`Reader`] a sequence. No I/O: `$INCLUDE` and
//! `$GENERATE` are errors.

mod data;
mod error;
mod services;
mod special;
mod token;
mod word;

pub use error::Error;
pub use token::{Entries, Entry, Token};
use wire::{Class, Name, RType, Rr, Section};

/// A record in wire form: its owner and the names in its data keep their spelling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its owner.
    pub owner: Vec<u8>,
    /// Its type.
    pub rtype: RType,
    /// Its class.
    pub class: Class,
    /// Its TTL in seconds.
    pub ttl: u32,
    /// Its data.
    pub data: Vec<u8>,
}

impl Record {
    /// Converts it to a record of a message.
    pub fn into_rr(self, section: Section) -> Rr {
        let Self { owner, rtype, class, ttl, data } = self;
        Rr { section, owner: owner.into(), rtype, class, ttl, data: data.into() }
    }
}

/// Parses the one record of `text`, ignoring blanks around it. Names without a final dot are
/// relative to the root; the default TTL is 3600 s, the default class IN.
///
/// # Errors
/// [`Error`], also for more than one record.
pub fn record(text: &str) -> Result<Record, Error> {
    let mut reader = Reader::new(text.trim().as_bytes(), &Name::ROOT);
    let record = reader.next().ok_or(Error::Empty)??;
    match reader.next() {
        None => Ok(record),
        Some(Ok(_)) => Err(Error::Several),
        Some(Err(error)) => Err(error),
    }
}

/// The records of a text, in order; it ends after an error.
///
/// Obeys `$ORIGIN` and `$TTL`. An entry that begins with a blank has the owner of the record before
/// it. A missing TTL is that of `$TTL` (RFC 2308, section 4), else that of the record before it,
/// else 3600 s.
pub struct Reader<'t> {
    entries: Entries<'t>,
    /// The suffix of names without a final dot, in wire form.
    origin: Vec<u8>,
    owner: Option<Vec<u8>>,
    ttl: u32,
    has_default_ttl: bool,
    line: u32,
}

/// Default TTL, as in CoreDNS for records of `template`.
const TTL: u32 = 3600;

impl<'t> Reader<'t> {
    /// Starts with `origin` as if the text began with `$ORIGIN`.
    pub fn new(text: &'t [u8], origin: &Name) -> Self {
        let (entries, origin) = (Entries::new(text), origin.as_wire().to_vec());
        Self { entries, origin, owner: None, ttl: TTL, has_default_ttl: false, line: 1 }
    }

    /// The first line of the last entry, from 1.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// The record of the next entry; `None` for a directive.
    fn entry(&mut self, entry: Entry<'t>) -> Result<Option<Record>, Error> {
        self.line = entry.line;
        let mut tokens = entry.tokens.iter();
        let Some(first) = tokens.as_slice().first() else { return Ok(None) };
        if !entry.indented && first.text.starts_with(b"$") && !first.quoted {
            return self.directive(&entry.tokens).map(|()| None);
        }
        let owner = match (entry.indented, self.owner.take()) {
            (true, owner) => owner.ok_or(Error::NoOwner)?,
            (false, _) => {
                tokens.next();
                let mut owner = Vec::new();
                first.write_name(&self.origin, &mut owner)?;
                owner
            }
        };
        let (class, ttl, rtype) = head(&mut tokens)?;
        if let Some(ttl) = ttl
            && !self.has_default_ttl
        {
            self.ttl = ttl;
        }
        let data = data::read(rtype, tokens, &self.origin)?;
        let record = Record { owner, rtype, class, ttl: ttl.unwrap_or(self.ttl), data };
        self.owner = Some(record.owner.clone());
        Ok(Some(record))
    }

    fn directive(&mut self, tokens: &[Token<'_>]) -> Result<(), Error> {
        let [name, value] = tokens else {
            return Err(Error::Directive(tokens.first().map(Token::shown).unwrap_or_default()));
        };
        match name.text.to_ascii_uppercase().as_slice() {
            b"$TTL" => {
                self.ttl = value.seconds().ok_or_else(|| Error::Head(value.shown()))?;
                self.has_default_ttl = true;
            }
            b"$ORIGIN" => {
                let mut origin = Vec::new();
                value.write_name(&self.origin, &mut origin)?;
                self.origin = origin;
            }
            _ => return Err(Error::Directive(name.shown())),
        }
        Ok(())
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let read = match self.entries.next()? {
                Ok(entry) => self.entry(entry).transpose(),
                Err(error) => {
                    self.line = self.entries.line;
                    Some(Err(error))
                }
            };
            if matches!(read, Some(Err(_))) {
                self.entries = Entries::new(b"");
            }
            if read.is_some() {
                return read;
            }
        }
    }
}

/// Class and TTL, optional and in any order, and the type.
fn head(tokens: &mut std::slice::Iter<'_, Token<'_>>) -> Result<(Class, Option<u32>, RType), Error> {
    let (mut class, mut ttl) = (None, None);
    for token in tokens {
        let unknown = || Error::Head(token.shown());
        let word = token.word().ok_or_else(unknown)?;
        // A word of units alone is a TTL (`h`), unless it is a type or a class (`MD`, `HS`).
        let is_named = word.parse::<Class>().is_ok() || word.parse::<RType>().is_ok();
        let is_ttl =
            word.starts_with(|first: char| first.is_ascii_digit()) || !is_named && token.seconds().is_some();
        match (is_ttl, word.parse()) {
            (true, _) if ttl.is_none() => ttl = Some(token.seconds().ok_or_else(unknown)?),
            // ANY is first parsed as a class, then as a type.
            (false, Ok(found)) if class.is_none() => class = Some(found),
            (false, _) => {
                let rtype = word.parse().map_err(|_| unknown())?;
                return Ok((class.unwrap_or(Class::IN), ttl, rtype));
            }
            (true, _) => return Err(unknown()),
        }
    }
    Err(Error::NoType)
}

#[cfg(test)]
mod tests;
