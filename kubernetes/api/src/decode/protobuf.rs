//! Reads the wire format of protocol buffers in place: the fields of a message borrow from its
//! bytes.
//!
//! No message is built: of hundreds of fields of an object a dozen are used, and the others are
//! skipped.

use super::Malformed;

/// Iterator over the fields of a message.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// Value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    /// Integers and booleans.
    Varint(u64),
    /// Strings, bytes and messages.
    Bytes(&'a [u8]),
    /// Numbers of 4 or 8 bytes, which are skipped.
    Fixed,
}

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Result<(u32, Value<'a>), Malformed> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Malformed::Field)?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed::Length)?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err(Malformed::Field),
        };
        if number == 0 { Err(Malformed::Field) } else { Ok((number, value)) }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Length)?;
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Malformed> {
        // Nearly all tags and lengths are one byte.
        if let Some((byte @ ..0x80, rest)) = self.rest.split_first() {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        match varint(self.rest)? {
            Some((value, length)) => {
                self.rest = &self.rest[length..];
                Ok(value)
            }
            None => Err(Malformed::Length),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Value<'a> {
    pub(super) fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Varint(_) | Self::Fixed => Err(Malformed::Field),
        }
    }

    pub(super) fn text(self) -> Result<&'a str, Malformed> {
        str::from_utf8(self.bytes()?).map_err(|_| Malformed::Text)
    }

    pub(super) fn number(self) -> Result<u64, Malformed> {
        match self {
            Self::Varint(number) => Ok(number),
            Self::Bytes(_) | Self::Fixed => Err(Malformed::Field),
        }
    }

    pub(super) fn boolean(self) -> Result<bool, Malformed> {
        self.number().map(|number| number != 0)
    }
}

/// Decodes the varint at the start of `bytes`; returns its value and length, or `None` if it is
/// incomplete.
pub(super) fn varint(bytes: &[u8]) -> Result<Option<(u64, usize)>, Malformed> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(MAX_VARINT_BYTES) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value, at + 1)));
        }
    }
    if bytes.len() >= MAX_VARINT_BYTES { Err(Malformed::Field) } else { Ok(None) }
}

/// Maximum bytes of a varint: 64 bits, 7 in each byte.
const MAX_VARINT_BYTES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_protobuf_fields() {
        let message = [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let fields: Result<Vec<_>, _> = Fields::of(&message).collect();
        let read =
            vec![(1, Value::Varint(150)), (2, Value::Bytes(b"hi")), (3, Value::Fixed), (4, Value::Fixed)];
        assert_eq!(fields, Ok(read));
        for (broken, error) in [
            (&[0x08][..], Malformed::Length),
            (&[0x12, 5, b'h'], Malformed::Length),
            (&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], Malformed::Length),
            (&[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], Malformed::Field),
            (&[0x0b], Malformed::Field),
            (&[0x00, 1], Malformed::Field),
        ] {
            assert_eq!(Fields::of(broken).collect::<Result<Vec<_>, _>>(), Err(error), "{broken:?}");
        }
        assert_eq!(varint(&[0x80; 3]), Ok(None));
    }
}
