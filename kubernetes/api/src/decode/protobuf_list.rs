//! A list in protobuf, item by item: a message in an envelope, of which only the item that is being read is held.

use super::protobuf::varint;
use super::{Event, MOST_OBJECT, Malformed, from_protobuf};

/// How far a list has been read.
#[derive(Default)]
pub(super) struct List {
    place: Place,
    /// Resource version and token, when they have come.
    meta: Option<(Box<str>, Box<str>)>,
}

#[derive(Clone, Copy, Default)]
enum Place {
    /// Before the envelope's first octets.
    #[default]
    Start,
    /// Between fields of the envelope.
    Envelope,
    /// Inside of the list, which has so many octets left.
    List(usize),
}

/// A field whose beginning has come.
struct Head {
    number: u32,
    /// Of tag, and length if it has one.
    head: usize,
    /// Of what it holds.
    length: usize,
}

impl List {
    /// Reads what is whole, and hands each item on; how many octets that were.
    pub(super) fn read(&mut self, bytes: &[u8], item: &mut dyn FnMut(&[u8])) -> Result<usize, Malformed> {
        let mut read = 0;
        while let Some(length) = self.step(&bytes[read..], item)? {
            read += length;
        }
        Ok(read)
    }

    /// The list has ended, with `pending` that was not read.
    pub(super) fn end(&mut self, pending: &[u8], tell: &mut dyn FnMut(&str, Event)) -> Result<(), Malformed> {
        match (self.place, self.meta.take()) {
            (Place::Envelope, Some((version, next))) if pending.is_empty() => {
                tell(&version, Event::Page { next });
                Ok(())
            }
            _ => Err(Malformed::Unfinished),
        }
    }

    /// One step: what opens the envelope, the list's own beginning, or a field as a whole.
    fn step(&mut self, bytes: &[u8], item: &mut dyn FnMut(&[u8])) -> Result<Option<usize>, Malformed> {
        match self.place {
            Place::Start => {
                let Some(start) = bytes.get(..from_protobuf::MAGIC.len()) else { return Ok(None) };
                if start != from_protobuf::MAGIC {
                    return Err(Malformed::Envelope);
                }
                self.place = Place::Envelope;
                Ok(Some(start.len()))
            }
            Place::List(0) => {
                self.place = Place::Envelope;
                Ok(Some(0))
            }
            Place::Envelope => {
                let Some(field) = head(bytes)? else { return Ok(None) };
                if field.number == RAW {
                    self.place = Place::List(field.length);
                    return Ok(Some(field.head));
                }
                Ok(whole(&field, bytes)?.map(|_| field.head + field.length))
            }
            Place::List(left) => {
                let Some(field) = head(&bytes[..bytes.len().min(left)])? else {
                    return if bytes.len() < left { Ok(None) } else { Err(Malformed::Length) };
                };
                let length = field.head.saturating_add(field.length);
                let rest = left.checked_sub(length).ok_or(Malformed::Length)?;
                let Some(content) = whole(&field, bytes)? else { return Ok(None) };
                match field.number {
                    METADATA => {
                        let (version, next) = from_protobuf::list_meta(content)?;
                        self.meta = Some(((*version).into(), (*next).into()));
                    }
                    ITEM => item(content),
                    _ => {}
                }
                self.place = Place::List(rest);
                Ok(Some(length))
            }
        }
    }
}

/// The field that `bytes` begin with.
fn head(bytes: &[u8]) -> Result<Option<Head>, Malformed> {
    let Some((tag, length_of_tag)) = varint(bytes)? else { return Ok(None) };
    let number = u32::try_from(tag >> 3).map_err(|_| Malformed::Field)?;
    let Some((value, length_of_value)) = varint(&bytes[length_of_tag..])? else { return Ok(None) };
    match tag & 7 {
        0 => Ok(Some(Head { number, head: length_of_tag, length: length_of_value })),
        2 => {
            let length = usize::try_from(value).map_err(|_| Malformed::Length)?;
            Ok(Some(Head { number, head: length_of_tag + length_of_value, length }))
        }
        _ => Err(Malformed::Field),
    }
}

/// What a field holds, when it has come.
fn whole<'a>(field: &Head, bytes: &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
    if field.length > MOST_OBJECT {
        return Err(Malformed::TooLarge(MOST_OBJECT));
    }
    Ok(bytes.get(field.head..field.head + field.length))
}

/// In the envelope: the object's octets.
const RAW: u32 = 2;
/// In every list.
const METADATA: u32 = 1;
const ITEM: u32 = 2;
