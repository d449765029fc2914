//! Splits text into entries of tokens: lines, comments, quotes and parentheses (RFC 1035, section
//! 5.1); and parses tokens.

use wire::NameError;

use crate::Error;

/// A word of an entry as written, with its escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'t> {
    /// Its bytes, without quotes around them.
    pub text: &'t [u8],
    /// Whether it is quoted.
    pub quoted: bool,
    /// Whether nothing separates it from the token before it.
    pub joined: bool,
}

/// A record or a directive: one line, or several joined by parentheses or quotes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry<'t> {
    /// Its first line, from 1.
    pub line: u32,
    /// Whether it begins with a blank.
    pub indented: bool,
    /// Its words; at least one.
    pub tokens: Vec<Token<'t>>,
}

/// The entries of a text, in order, without empty ones; it ends after an error.
#[derive(Debug, Clone)]
pub struct Entries<'t> {
    rest: &'t [u8],
    pub(crate) line: u32,
    has_failed: bool,
}

impl<'t> Entries<'t> {
    /// The entries of `text`.
    pub fn new(text: &'t [u8]) -> Self {
        Self { rest: text, line: 1, has_failed: false }
    }

    /// How far of `text` it has read.
    pub(crate) fn offset(&self, text: &[u8]) -> usize {
        text.len() - self.rest.len()
    }

    fn entry(&mut self) -> Result<Entry<'t>, Error> {
        let indented = matches!(self.rest.first(), Some(b' ' | b'\t'));
        let mut entry = Entry { line: self.line, indented, tokens: Vec::new() };
        let (mut depth, mut joined) = (0_u32, false);
        while let Some((&byte, rest)) = self.rest.split_first() {
            let is_token = !matches!(byte, b'\n' | b'\r' | b' ' | b'\t' | b';' | b'(' | b')');
            match byte {
                b'"' => entry.tokens.push(Token { text: self.quoted(rest)?, quoted: true, joined }),
                _ if is_token => entry.tokens.push(Token { text: self.unquoted(), quoted: false, joined }),
                b';' => {
                    let end = rest.iter().position(|&byte| byte == b'\n');
                    self.rest = end.map_or(&[], |end| &rest[end..]);
                }
                _ => self.rest = rest,
            }
            joined = is_token;
            match byte {
                b'(' => depth += 1,
                b')' => depth = depth.checked_sub(1).ok_or(Error::Parentheses)?,
                b'\n' => {
                    self.line += 1;
                    if depth == 0 {
                        return Ok(entry);
                    }
                }
                _ => {}
            }
        }
        if depth == 0 { Ok(entry) } else { Err(Error::Parentheses) }
    }

    /// The text up to the next unescaped quote; `rest` begins after the first quote.
    fn quoted(&mut self, rest: &'t [u8]) -> Result<&'t [u8], Error> {
        let end = find(rest, |byte| byte == b'"').ok_or(Error::Quote)?;
        self.line += rest[..end].iter().filter(|&&byte| byte == b'\n').count() as u32;
        self.rest = &rest[end + 1..];
        Ok(&rest[..end])
    }

    fn unquoted(&mut self) -> &'t [u8] {
        let ends = |byte| matches!(byte, b'\n' | b'\r' | b' ' | b'\t' | b';' | b'(' | b')' | b'"');
        let (text, rest) = self.rest.split_at(find(self.rest, ends).unwrap_or(self.rest.len()));
        self.rest = rest;
        text
    }
}

impl<'t> Iterator for Entries<'t> {
    type Item = Result<Entry<'t>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.rest.is_empty() && !self.has_failed {
            let entry = self.entry();
            self.has_failed = entry.is_err();
            if !entry.as_ref().is_ok_and(|entry| entry.tokens.is_empty()) {
                return Some(entry);
            }
        }
        None
    }
}

/// The position of the first unescaped byte that `is_end`.
fn find(text: &[u8], is_end: impl Fn(u8) -> bool) -> Option<usize> {
    let mut escaped = false;
    text.iter().position(|&byte| {
        // A backslash does not escape the end of a line.
        let ends = (!escaped || byte == b'\n') && is_end(byte);
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

impl<'t> Token<'t> {
    /// Its beginning, for messages.
    pub fn shown(&self) -> String {
        let (text, end) = match self.text.get(..MOST_SHOWN) {
            Some(beginning) => (beginning, ".."),
            None => (self.text, ""),
        };
        format!("{}{end}", String::from_utf8_lossy(text))
    }

    /// Its text if it is ASCII and not quoted.
    pub fn word(&self) -> Option<&'t str> {
        std::str::from_utf8(self.text).ok().filter(|text| text.is_ascii() && !self.quoted)
    }

    /// The value, if it consists of decimal digits only.
    pub fn number<T: TryFrom<u64>>(&self) -> Option<T> {
        let digits = self.word().filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))?;
        T::try_from(digits.parse().ok()?).ok()
    }

    /// Seconds: a number, or numbers with units (`1h30m`): weeks, days, hours, minutes and seconds,
    /// as in BIND and CoreDNS. A unit without a number counts 0 (`h`), as in CoreDNS.
    pub fn seconds(&self) -> Option<u32> {
        let (mut sum, mut number) = (0_u64, 0_u64);
        for byte in self.word().filter(|word| !word.is_empty())?.bytes() {
            let unit = match byte.to_ascii_lowercase() {
                digit @ b'0'..=b'9' => {
                    number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
                    continue;
                }
                b's' => 1,
                b'm' => 60,
                b'h' => 60 * 60,
                b'd' => 24 * 60 * 60,
                b'w' => 7 * 24 * 60 * 60,
                _ => return None,
            };
            sum = sum.checked_add(std::mem::take(&mut number).checked_mul(unit)?)?;
        }
        u32::try_from(sum.checked_add(number)?).ok()
    }

    /// Its bytes with escapes resolved; `None` for an invalid escape.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        Unescaped(self.text).map(|byte| byte.map(|(byte, _)| byte)).collect()
    }

    /// Appends the name in wire form. A name without a final dot is relative to `origin`; `@` is
    /// `origin` itself.
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::QuotedName`], as in CoreDNS.
    pub fn write_name(&self, origin: &[u8], to: &mut Vec<u8>) -> Result<(), Error> {
        match self.text {
            _ if self.quoted => return Err(Error::QuotedName(self.shown())),
            b"@" => to.extend_from_slice(origin),
            b"." => to.push(0),
            _ => self.write_labels(origin, to).map_err(|why| Error::Name { name: self.shown(), why })?,
        }
        Ok(())
    }

    fn write_labels(&self, origin: &[u8], to: &mut Vec<u8>) -> Result<(), NameError> {
        let start = to.len();
        let mut label = start;
        to.push(0);
        for byte in Unescaped(self.text) {
            let (byte, escaped) = byte.ok_or(NameError::Escape)?;
            if byte != b'.' || escaped {
                to.push(byte);
            } else if to.len() == label + 1 {
                return Err(NameError::EmptyLabel);
            } else {
                label = to.len();
                to.push(0);
            }
            // `label` is the position of the last label's length.
            match to.len() - label - 1 {
                length @ 0..=63 => to[label] = length as u8,
                _ => return Err(NameError::LongLabel),
            }
            if to.len() - start > wire::MAX_NAME {
                return Err(NameError::LongName);
            }
        }
        // After a final dot the last length is the root's.
        if to.len() > label + 1 {
            to.extend_from_slice(origin);
        } else if label == start {
            return Err(NameError::EmptyLabel);
        }
        if to.len() - start > wire::MAX_NAME { Err(NameError::LongName) } else { Ok(()) }
    }
}

/// The bytes of a text, each with whether it was escaped; `None` for a backslash at the end.
///
/// Three digits after a backslash are a byte modulo 256, fewer are no number, both as in CoreDNS.
struct Unescaped<'t>(&'t [u8]);

impl Iterator for Unescaped<'_> {
    type Item = Option<(u8, bool)>;

    fn next(&mut self) -> Option<Self::Item> {
        let (byte, rest) = match *self.0 {
            [] => return None,
            [b'\\', a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', ref rest @ ..] => {
                let number = [a, b, c].iter().fold(0_u16, |sum, digit| sum * 10 + u16::from(digit - b'0'));
                (Some((number as u8, true)), rest)
            }
            [b'\\'] => (None, &[][..]),
            [b'\\', byte, ref rest @ ..] => (Some((byte, true)), rest),
            [byte, ref rest @ ..] => (Some((byte, false)), rest),
        };
        self.0 = rest;
        Some(byte)
    }
}

/// Maximum number of a token's bytes in a message.
const MOST_SHOWN: usize = 64;
