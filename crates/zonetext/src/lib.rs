//! Parses zone-file text to records (RFC 1035, section 5), as CoreDNS does.
//!
//! ```text
//! text -> Entries: tokens of a line -> Reader: owner, TTL, class, type -> data -> Record
//! ```
//!
//! [`record`] parses a text with one record, [`Reader`] a sequence. No I/O: [`Reader::of_zone`]
//! returns the file that `$INCLUDE` names; for other readers `$INCLUDE` and `$GENERATE` are errors.

mod data;
mod error;
mod generate;
mod services;
mod special;
mod token;
mod word;

pub use error::Error;
use generate::Generate;
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
/// else 3600 s; in a zone's file it is an error.
pub struct Reader<'t> {
    text: &'t [u8],
    entries: Entries<'t>,
    /// The suffix of names without a final dot, in wire form.
    origin: Vec<u8>,
    owner: Option<Vec<u8>>,
    ttl: Option<u32>,
    has_default_ttl: bool,
    line: u32,
    /// Offset of the last word that was read.
    word: usize,
    /// Whether the text is a zone's file.
    is_zone: bool,
    /// Lines of a `$GENERATE` before the next entry.
    generated: Option<Box<Generate>>,
}

/// An entry of a zone's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A record.
    Record(Record),
    /// `$INCLUDE FILE [ORIGIN]`: the records of another file belong here.
    Include {
        /// The path as written.
        file: Vec<u8>,
        /// The origin of its names in wire form.
        origin: Vec<u8>,
    },
}

/// Default TTL, as in CoreDNS for records of `template`.
const TTL: u32 = 3600;

impl<'t> Reader<'t> {
    /// Starts with `origin` as if the text began with `$ORIGIN`.
    pub fn new(text: &'t [u8], origin: &Name) -> Self {
        let ttl = Some(TTL);
        Self { ttl, is_zone: false, ..Self::of_zone(text, origin.as_wire()) }
    }

    /// A reader of a zone's file, by [`Reader::next_item`]; `origin` is in wire form.
    pub fn of_zone(text: &'t [u8], origin: &[u8]) -> Self {
        Self {
            text,
            entries: Entries::new(text),
            origin: origin.to_vec(),
            owner: None,
            ttl: None,
            has_default_ttl: false,
            line: 1,
            word: 0,
            is_zone: true,
            generated: None,
        }
    }

    /// A reader of a file that this one includes: it has the TTL of this one.
    pub fn included<'i>(&self, text: &'i [u8], origin: &[u8]) -> Reader<'i> {
        let Self { ttl, has_default_ttl, .. } = *self;
        Reader { ttl, has_default_ttl, ..Reader::of_zone(text, origin) }
    }

    /// The first line of the last entry, from 1.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// Line and column of the last word that was read, both from 1; the column counts bytes.
    pub fn place(&self) -> (usize, usize) {
        let before = &self.text[..self.word.min(self.text.len())];
        let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
        (1 + before.iter().filter(|&&byte| byte == b'\n').count(), 1 + before.len() - start)
    }

    /// The next entry of a zone's file; `None` at its end and after an error.
    pub fn next_item(&mut self) -> Option<Result<Item, Error>> {
        loop {
            let read = match self.generated.as_mut().and_then(|generated| generated.next_line()) {
                Some(line) => self.generated_entry(&line),
                None => {
                    self.generated = None;
                    match self.entries.next()? {
                        Ok(entry) => {
                            self.word = self.offset(entry.tokens.first());
                            self.line = entry.line;
                            self.entry(&entry)
                        }
                        Err(error) => {
                            self.line = self.entries.line;
                            self.word = self.entries.offset(self.text);
                            Err(error)
                        }
                    }
                }
            };
            if read.is_err() {
                (self.entries, self.generated) = (Entries::new(b""), None);
            }
            if let Some(read) = read.transpose() {
                return Some(read);
            }
        }
    }

    /// The record of the next entry; `None` for a directive without records.
    fn entry(&mut self, entry: &Entry<'_>) -> Result<Option<Item>, Error> {
        let mut tokens = entry.tokens.iter();
        let Some(first) = tokens.as_slice().first() else { return Ok(None) };
        if !entry.indented && first.text.starts_with(b"$") && !first.quoted {
            return self.directive(&entry.tokens);
        }
        let owner = match (entry.indented, self.owner.take()) {
            (true, owner) => owner.ok_or(Error::NoOwner)?,
            (false, _) => {
                tokens.next();
                let mut owner = Vec::with_capacity(first.text.len() + 1 + self.origin.len());
                first.write_name(&self.origin, &mut owner)?;
                owner
            }
        };
        let fields = head(&mut tokens).and_then(|(class, ttl, rtype)| {
            if let Some(ttl) = ttl
                && !self.has_default_ttl
            {
                self.ttl = Some(ttl);
            }
            let ttl = ttl.or(self.ttl).ok_or(Error::NoTtl)?;
            Ok((class, ttl, rtype, data::read(rtype, &mut tokens, &self.origin)?))
        });
        let (class, ttl, rtype, data) = fields.inspect_err(|_| {
            let read = entry.tokens.len() - tokens.len();
            self.word = self.offset(entry.tokens.get(read.saturating_sub(1)));
        })?;
        let record = Record { owner, rtype, class, ttl, data };
        self.owner = Some(record.owner.clone());
        Ok(Some(Item::Record(record)))
    }

    /// The record of a line of `$GENERATE`.
    fn generated_entry(&mut self, line: &[u8]) -> Result<Option<Item>, Error> {
        let mut entries = Entries::new(line);
        let Some(entry) = entries.next().transpose()? else { return Ok(None) };
        match entry.tokens.first() {
            Some(first) if first.text.starts_with(b"$") => Err(Error::Directive(first.shown())),
            _ if entries.next().is_some() => Err(Error::Several),
            _ => {
                let (word, read) = (self.word, self.entry(&entry));
                self.word = word;
                read
            }
        }
    }

    fn directive(&mut self, tokens: &[Token<'_>]) -> Result<Option<Item>, Error> {
        let name = tokens.first().map(|name| name.text.to_ascii_uppercase()).unwrap_or_default();
        let shown = || tokens.first().map(Token::shown).unwrap_or_default();
        match (name.as_slice(), tokens) {
            (b"$TTL", [_, value]) => {
                self.ttl = Some(value.seconds().ok_or_else(|| Error::Head(value.shown()))?);
                self.has_default_ttl = true;
            }
            (b"$ORIGIN", [_, value]) => {
                let mut origin = Vec::new();
                value.write_name(&self.origin, &mut origin)?;
                self.origin = origin;
            }
            (b"$INCLUDE", [_, file, origin @ ..]) if self.is_zone && origin.len() <= 1 => {
                let mut of_file = Vec::new();
                match origin {
                    [origin] => origin.write_name(&self.origin, &mut of_file)?,
                    _ => of_file.clone_from(&self.origin),
                }
                let file = file.bytes().ok_or(Error::Include)?;
                return Ok(Some(Item::Include { file, origin: of_file }));
            }
            (b"$INCLUDE", _) if self.is_zone => return Err(Error::Include),
            (b"$GENERATE", [_, words @ ..]) if self.is_zone => {
                self.generated = Some(Box::new(Generate::new(words)?));
            }
            _ => return Err(Error::Directive(shown())),
        }
        Ok(None)
    }

    /// The offset of a token of the text.
    fn offset(&self, token: Option<&Token<'_>>) -> usize {
        let at = token.map_or(0, |token| token.text.as_ptr() as usize);
        at.checked_sub(self.text.as_ptr() as usize).filter(|&at| at <= self.text.len()).unwrap_or(self.word)
    }
}

/// Ends at a file that another one includes.
impl Iterator for Reader<'_> {
    type Item = Result<Record, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.next_item()? {
            Ok(Item::Record(record)) => Some(Ok(record)),
            Ok(Item::Include { .. }) => Some(Err(Error::Include)),
            Err(error) => Some(Err(error)),
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
