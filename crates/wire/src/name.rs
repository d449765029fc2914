//! Domain names: lower-case, uncompressed wire form, inline.

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};

use crate::name_hash::{copy_lowered, hash_of};

/// Longest name in octets, length octets and the root included (RFC 1035, section 2.3.4).
pub const MAX_NAME: usize = 255;
/// Longest label in octets (RFC 1035, section 2.3.4).
const MAX_LABEL: usize = 63;

/// A domain name in uncompressed wire form with lower-case ASCII letters (RFC 4343), the root's
/// zero octet included.
///
/// Inline, so that reading a query's name does not allocate; tables keep [`Name::as_wire`] in a
/// box.
#[derive(Clone, Copy)]
pub struct Name {
    /// [`hash_of`] the wire form if the name was read from a packet; else 0.
    hash: u64,
    len: u8,
    /// Without the root.
    labels: u8,
    octets: [u8; MAX_NAME],
}

/// Why bytes or text are no domain name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameError {
    /// The name extends past the end of the message.
    Short,
    /// More than 255 octets.
    LongName,
    /// A label of more than 63 octets.
    LongLabel,
    /// An empty label before the end of the name.
    EmptyLabel,
    /// A compression pointer where none is allowed, or one that does not point backwards (RFC 1035,
    /// section 4.1.4).
    Pointer,
    /// A label type other than 00 and 11 (RFC 6891, section 5).
    LabelType,
    /// A backslash followed by neither three digits up to 255 nor a character (RFC 1035, section
    /// 5.1).
    Escape,
}

impl Name {
    /// The root, `.`.
    pub const ROOT: Self = Self { hash: 0, len: 1, labels: 0, octets: [0; MAX_NAME] };

    /// Reads the uncompressed name at `at`, as in a question. Returns the name and its end.
    ///
    /// # Errors
    /// Any [`NameError`] but [`NameError::Escape`] and [`NameError::EmptyLabel`].
    #[inline]
    pub fn read_plain(message: &[u8], at: usize) -> Result<(Self, usize), NameError> {
        let mut name = Self::ROOT;
        let end = name.fill_plain(message, at)?;
        Ok((name, end))
    }

    /// The same in place; `self` must be [`Name::ROOT`]. A name is large and is not moved on the
    /// query path.
    #[inline]
    pub(crate) fn fill_plain(&mut self, message: &[u8], at: usize) -> Result<usize, NameError> {
        let rest = message.get(at..).ok_or(NameError::Short)?;
        let mut end = 0;
        let mut labels = 0;
        loop {
            let length = *rest.get(end).ok_or(NameError::Short)?;
            if length > 63 {
                return Err(if length >= 0xc0 { NameError::Pointer } else { NameError::LabelType });
            }
            end += 1 + usize::from(length);
            if end > MAX_NAME {
                return Err(NameError::LongName);
            }
            if length == 0 {
                break;
            }
            labels += 1;
        }
        let wire = rest.get(..end).ok_or(NameError::Short)?;
        self.hash = copy_lowered(&mut self.octets[..end], wire);
        self.len = end as u8;
        self.labels = labels;
        Ok(at + end)
    }

    /// Reads the name at `at`, following compression pointers. Returns the name and its end in the
    /// message.
    ///
    /// # Errors
    /// Any [`NameError`] but [`NameError::Escape`] and [`NameError::EmptyLabel`].
    pub fn read(message: &[u8], at: usize) -> Result<(Self, usize), NameError> {
        let mut name = Self::ROOT;
        let mut length = 0usize;
        let (end, _) = walk(message, at, |label| {
            let next = length + 1 + label.len();
            let room = name.octets[..MAX_NAME].get_mut(length..next).ok_or(NameError::LongName)?;
            name.labels += u8::from(!label.is_empty());
            room[0] = label.len() as u8;
            for (to, from) in room[1..].iter_mut().zip(label) {
                *to = from.to_ascii_lowercase();
            }
            length = next;
            Ok(())
        })?;
        name.len = length as u8;
        Ok((name, end))
    }

    /// Reads a name from its whole uncompressed wire form.
    ///
    /// # Errors
    /// As [`Name::read_plain`]; [`NameError::Short`] also for trailing bytes.
    pub fn from_wire(wire: &[u8]) -> Result<Self, NameError> {
        let (name, end) = Self::read_plain(wire, 0)?;
        if end == wire.len() { Ok(name) } else { Err(NameError::Short) }
    }

    /// Reads the presentation format of zone files and Corefiles; a missing final dot is added (RFC
    /// 1035, section 5.1).
    ///
    /// # Errors
    /// [`NameError::LongName`], [`NameError::LongLabel`], [`NameError::EmptyLabel`],
    /// [`NameError::Escape`].
    pub fn from_text(text: &str) -> Result<Self, NameError> {
        let mut name = Self::ROOT;
        name.fill_text(text.as_bytes())?;
        Ok(name)
    }

    /// The same in place: for large files, since moving a name takes as long as reading it. The
    /// root after an error.
    ///
    /// # Errors
    /// As [`Name::from_text`].
    #[inline]
    pub fn fill_text(&mut self, text: &[u8]) -> Result<(), NameError> {
        if self.fill_plain_text(text).is_some() {
            return Ok(());
        }
        let read = Self::from_any_text(text);
        *self = read.unwrap_or(Self::ROOT);
        read.map(|_| ())
    }

    /// Reads a name without escapes: its text equals its wire form, with dots in place of the
    /// length octets. `None` for any other text, and for one that exceeds a limit.
    #[inline]
    fn fill_plain_text(&mut self, text: &[u8]) -> Option<()> {
        // One octet more for the root, if the text has no final dot.
        let room = self.octets[1..MAX_NAME - 1].get_mut(..text.len())?;
        copy_lowered(room, text);
        self.hash = 0;
        let mut labels = 0;
        let mut start = 0; // of the label's length octet
        for (at, &octet) in (1..).zip(text) {
            // Nearly all octets are letters, which are above both.
            if octet > b'\\' || (octet != b'.' && octet != b'\\') {
                continue;
            }
            let length = at - start - 1;
            if octet == b'\\' || !(1..=MAX_LABEL).contains(&length) {
                return None;
            }
            self.octets[start] = length as u8;
            labels += 1;
            start = at;
        }
        match text.len() - start {
            0 if start == 0 => return None,
            0 => {}
            length @ 1..=MAX_LABEL => {
                self.octets[start] = length as u8;
                labels += 1;
                start = text.len() + 1;
            }
            _ => return None,
        }
        self.octets[start] = 0;
        self.len = start as u8 + 1;
        self.labels = labels;
        Some(())
    }

    /// [`Name::from_text`] for every text, octet by octet.
    fn from_any_text(text: &[u8]) -> Result<Self, NameError> {
        let mut name = Self::ROOT;
        let mut start = 0usize; // of the label's length octet
        let mut at = 1usize; // next free octet
        if text == b"." {
            return Ok(Self::ROOT);
        }
        let mut bytes = text.iter().copied();
        while let Some(byte) = bytes.next() {
            let octet = match byte {
                b'.' => {
                    let length = at - start - 1;
                    if length == 0 {
                        return Err(NameError::EmptyLabel);
                    }
                    name.octets[start] = length as u8;
                    name.labels += 1;
                    start = at;
                    at += 1;
                    if start >= MAX_NAME {
                        return Err(NameError::LongName);
                    }
                    continue;
                }
                b'\\' => match bytes.next().ok_or(NameError::Escape)? {
                    first @ b'0'..=b'9' => {
                        let mut value = u32::from(first - b'0');
                        for _ in 0..2 {
                            let digit = bytes.next().filter(u8::is_ascii_digit).ok_or(NameError::Escape)?;
                            value = value * 10 + u32::from(digit - b'0');
                        }
                        u8::try_from(value).map_err(|_| NameError::Escape)?
                    }
                    other => other,
                },
                other => other,
            };
            if at - start > MAX_LABEL {
                return Err(NameError::LongLabel);
            }
            *name.octets[..MAX_NAME].get_mut(at).ok_or(NameError::LongName)? = octet.to_ascii_lowercase();
            at += 1;
        }
        if at - start > 1 {
            name.octets[start] = (at - start - 1) as u8;
            name.labels += 1;
            start = at;
        } else if start == 0 {
            return Err(NameError::EmptyLabel);
        }
        if start >= MAX_NAME {
            return Err(NameError::LongName);
        }
        name.octets[start] = 0;
        name.len = (start + 1) as u8;
        Ok(name)
    }

    /// The wire form, root included.
    #[inline]
    pub fn as_wire(&self) -> &[u8] {
        &self.octets[..usize::from(self.len)]
    }

    /// [`hash_of`] the wire form, computed while reading if the name was read from a packet.
    #[inline]
    pub fn hash_code(&self) -> u64 {
        match self.hash {
            0 => hash_of(self.as_wire()),
            hash => hash,
        }
    }

    /// The name and each of its parents in wire form, longest first, the root last.
    #[inline]
    pub fn suffixes(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = Some(self.as_wire());
        std::iter::from_fn(move || {
            let this = rest?;
            let skip = 1 + usize::from(*this.first()?);
            rest = if skip == 1 { None } else { this.get(skip..) };
            Some(this)
        })
    }

    /// The labels from the left, without the root.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        self.suffixes().filter_map(|suffix| {
            let length = usize::from(*suffix.first()?);
            if length == 0 { None } else { suffix.get(1..=length) }
        })
    }

    /// Number of labels, without the root.
    #[inline]
    pub fn label_count(&self) -> usize {
        usize::from(self.labels)
    }

    /// Whether this name is `zone` or below it.
    #[inline]
    pub fn is_within(&self, zone: &Self) -> bool {
        if zone.len == 1 {
            return true;
        }
        let (name, zone) = (self.as_wire(), zone.as_wire());
        let Some(above) = name.len().checked_sub(zone.len()) else { return false };
        let mut at = 0;
        while at < above {
            at += 1 + usize::from(name[at]);
        }
        at == above && name[at..] == *zone
    }
}

/// Visits the labels of the (possibly compressed) name at `at`. Returns its end in the message, and
/// the number of labels and pointers.
pub(crate) fn walk(
    message: &[u8],
    at: usize,
    mut label: impl FnMut(&[u8]) -> Result<(), NameError>,
) -> Result<(usize, u32), NameError> {
    let mut position = at;
    let mut end = None;
    let mut octets = 0usize;
    let (mut labels, mut pointers) = (0, 0);
    loop {
        let length = *message.get(position).ok_or(NameError::Short)?;
        match length {
            0..=63 => {
                let bytes =
                    message.get(position + 1..position + 1 + usize::from(length)).ok_or(NameError::Short)?;
                octets += 1 + bytes.len();
                if octets > MAX_NAME {
                    return Err(NameError::LongName);
                }
                label(bytes)?;
                labels += 1;
                position += 1 + bytes.len();
                if length == 0 {
                    return Ok((end.unwrap_or(position), labels + pointers));
                }
            }
            0xc0.. => {
                let low = *message.get(position + 1).ok_or(NameError::Short)?;
                let target = usize::from(u16::from_be_bytes([length & 0x3f, low]));
                end.get_or_insert(position + 2);
                // Backwards only: a loop would have to read labels on its way, and those end at 255
                // octets.
                pointers += 1;
                if target >= position || target < crate::HEADER || pointers > MAX_POINTERS {
                    return Err(NameError::Pointer);
                }
                position = target;
            }
            _ => return Err(NameError::LabelType),
        }
    }
}

/// A name has at most 127 labels, so more pointers are never needed. The limit of CoreDNS.
const MAX_POINTERS: u32 = 126;

/// End of the name at `at`, without following its pointer.
#[inline]
pub(crate) fn skip(message: &[u8], at: usize) -> Result<usize, NameError> {
    let mut position = at;
    loop {
        let length = *message.get(position).ok_or(NameError::Short)?;
        match length {
            0 => return Ok(position + 1),
            1..=63 => position += 1 + usize::from(length),
            0xc0.. => {
                message.get(position + 1).ok_or(NameError::Short)?;
                return Ok(position + 2);
            }
            _ => return Err(NameError::LabelType),
        }
        if position - at > MAX_NAME {
            return Err(NameError::LongName);
        }
    }
}

impl PartialEq for Name {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_wire() == other.as_wire()
    }
}

impl Eq for Name {}

/// By octets, for tables; not the canonical order (RFC 4034, section 6.1).
impl Ord for Name {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_wire().cmp(other.as_wire())
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_wire().hash(state);
    }
}

/// Presentation format with the final dot; octets that are not printable as `\DDD`.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.octets;
        if let Some(plain) = self.plain_text(&mut text) {
            return f.write_str(plain);
        }
        for label in self.labels() {
            write_label(f, label)?;
            f.write_char('.')?;
        }
        Ok(())
    }
}

/// Writes a label in presentation format: special characters after a backslash, unprintable ones as
/// `\DDD`. (Log lines escape as CoreDNS does: see `observe`.)
///
/// # Errors
/// Those of the output.
pub fn write_label(to: &mut impl fmt::Write, label: &[u8]) -> fmt::Result {
    for &octet in label {
        match octet {
            b'.' | b'\\' | b'"' | b'(' | b')' | b';' | b'@' | b'$' | b' ' => {
                to.write_char('\\')?;
                to.write_char(char::from(octet))?;
            }
            0x21..=0x7e => to.write_char(char::from(octet))?,
            other => write!(to, "\\{other:03}")?,
        }
    }
    Ok(())
}

impl Name {
    /// The name's text, made in a copy of its octets by replacing each length octet with a dot;
    /// `None` if a character needs an escape. One write in place of one for each character: logs
    /// and templates write names for every query.
    fn plain_text<'t>(&self, text: &'t mut [u8; MAX_NAME]) -> Option<&'t str> {
        let end = usize::from(self.len).saturating_sub(1);
        let mut at = 0;
        for _ in 0..self.labels {
            let next = at + 1 + usize::from(text[at]);
            if !text[at + 1..next]
                .iter()
                .all(|octet| matches!(octet, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
            {
                return None;
            }
            text[at] = b'.';
            at = next;
        }
        text[at] = b'.';
        // The first dot belongs to the text of the root alone.
        let first = usize::from(self.labels > 0);
        std::str::from_utf8(&text[first..=end]).ok()
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "the name ends too early",
            Self::LongName => "the name has more than 255 octets",
            Self::LongLabel => "a label has more than 63 octets",
            Self::EmptyLabel => "a label is empty",
            Self::Pointer => "a compression pointer does not point backwards",
            Self::LabelType => "a label has an unknown type",
            Self::Escape => "a backslash is followed by neither three digits nor a character",
        })
    }
}

impl std::error::Error for NameError {}

#[cfg(test)]
mod tests;
