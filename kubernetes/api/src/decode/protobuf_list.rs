//! Streaming decoder for a protobuf list, which is a message in an envelope; buffers one item at
//! most.

use super::protobuf::varint;
use super::{Event, MAX_OBJECT_BYTES, Malformed, from_protobuf};

/// State of the decoder.
#[derive(Default)]
pub(super) struct List {
    position: Position,
    /// Resource version and token of the next page, once received.
    meta: Option<(Box<str>, Box<str>)>,
}

#[derive(Clone, Copy, Default)]
enum Position {
    /// Before the magic bytes.
    #[default]
    Start,
    /// Between fields of the envelope.
    Envelope,
    /// In the list message, with this number of bytes left.
    List(usize),
}

/// Tag and length of a field.
struct FieldHeader {
    number: u32,
    /// Bytes of the tag, and of the length if there is one.
    head: usize,
    /// Bytes of the value.
    length: usize,
}

impl List {
    /// Decodes complete fields and calls `item` for each item; returns the number of bytes
    /// consumed.
    pub(super) fn read(&mut self, bytes: &[u8], item: &mut dyn FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut read = 0;
        while let Some(length) = self.step(&bytes[read..], item)? {
            read += length;
        }
        Ok(read)
    }

    /// Handles the end of the list, with `pending` unread bytes.
    pub(super) fn end(&mut self, pending: &[u8], emit: &mut dyn FnMut(&str, Event)) -> Result<(), Malformed> {
        match (self.position, self.meta.take()) {
            (Position::Envelope, Some((version, next))) if pending.is_empty() => {
                emit(&version, Event::Page { next });
                Ok(())
            }
            _ => Err(Malformed::Unfinished),
        }
    }

    /// Decodes the magic bytes, the header of the list, or a complete field.
    fn step(&mut self, bytes: &[u8], item: &mut dyn FnMut(&[u8])) -> Result<Option<usize>, Malformed> {
        match self.position {
            Position::Start => {
                let Some(start) = bytes.get(..from_protobuf::MAGIC.len()) else { return Ok(None) };
                if start != from_protobuf::MAGIC {
                    return Err(Malformed::Envelope);
                }
                self.position = Position::Envelope;
                Ok(Some(start.len()))
            }
            Position::List(0) => {
                self.position = Position::Envelope;
                Ok(Some(0))
            }
            Position::Envelope => {
                let Some(field) = field_header(bytes)? else { return Ok(None) };
                if field.number == RAW {
                    self.position = Position::List(field.length);
                    return Ok(Some(field.head));
                }
                Ok(field_value(&field, bytes)?.map(|_| field.head + field.length))
            }
            Position::List(left) => {
                let Some(field) = field_header(&bytes[..bytes.len().min(left)])? else {
                    return if bytes.len() < left { Ok(None) } else { Err(Malformed::Length) };
                };
                let length = field.head.saturating_add(field.length);
                let rest = left.checked_sub(length).ok_or(Malformed::Length)?;
                let Some(content) = field_value(&field, bytes)? else { return Ok(None) };
                match field.number {
                    METADATA => {
                        let (version, next) = from_protobuf::list_meta(content)?;
                        self.meta = Some(((*version).into(), (*next).into()));
                    }
                    ITEM => item(content),
                    _ => {}
                }
                self.position = Position::List(rest);
                Ok(Some(length))
            }
        }
    }
}

/// Returns the header of the first field of `bytes`.
fn field_header(bytes: &[u8]) -> Result<Option<FieldHeader>, Malformed> {
    let Some((tag, length_of_tag)) = varint(bytes)? else { return Ok(None) };
    let number = u32::try_from(tag >> 3).map_err(|_| Malformed::Field)?;
    let Some((value, length_of_value)) = varint(&bytes[length_of_tag..])? else { return Ok(None) };
    match tag & 7 {
        0 => Ok(Some(FieldHeader { number, head: length_of_tag, length: length_of_value })),
        2 => {
            let length = usize::try_from(value).map_err(|_| Malformed::Length)?;
            Ok(Some(FieldHeader { number, head: length_of_tag + length_of_value, length }))
        }
        _ => Err(Malformed::Field),
    }
}

/// Returns the value of a field, if it is complete.
fn field_value<'a>(field: &FieldHeader, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    if field.length > MAX_OBJECT_BYTES {
        return Err(Malformed::TooLarge(MAX_OBJECT_BYTES));
    }
    Ok(bytes.get(field.head..field.head + field.length))
}

/// Field of the envelope: the bytes of the object.
const RAW: u32 = 2;
/// Fields of a list.
const METADATA: u32 = 1;
const ITEM: u32 = 2;
