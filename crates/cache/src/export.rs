//! Serialization of answers for another process's cache.
//!
//! ```text
//! number of identities | each: length, text | records: partition, times, key, answer
//! ```
//! Integers are little-endian. Ages count from the time of the export. The input is untrusted:
//! inconsistent data is refused, and all else is only ever used as the bytes of answers.

use std::ops::Range;

use wire::Name;

use crate::entry::{Entry, ExportedEntry};
use crate::inline_bytes::InlineBytes;

/// A parsed export.
pub struct Export<'d> {
    octets: &'d [u8],
    identities: Vec<&'d str>,
    /// Partition and range of each record.
    records: Vec<(u16, Range<usize>)>,
}

impl<'d> Export<'d> {
    /// Parses an export; `None` if it is truncated or invalid.
    pub fn read(octets: &'d [u8]) -> Option<Self> {
        let mut rest = Rest { octets, at: 0 };
        let count = rest.u16()?;
        let mut identities = Vec::new();
        for _ in 0..count {
            let length = rest.u16()?;
            identities.push(std::str::from_utf8(rest.take(length.into())?).ok()?);
        }
        let mut records = Vec::new();
        while rest.at < octets.len() {
            let partition = rest.u16().filter(|partition| usize::from(*partition) < identities.len())?;
            let begin = rest.at;
            record(&mut rest)?;
            records.push((partition, begin..rest.at));
        }
        Some(Self { octets, identities, records })
    }

    /// Returns the answers of the block with this identity.
    pub(crate) fn of<'s>(
        &'s self,
        identity: &str,
    ) -> impl Iterator<Item = (ExportedEntry, Name, &'d [u8])> + use<'s, 'd> {
        let number = self.identities.iter().position(|known| *known == identity);
        let own = self.records.iter().filter(move |(partition, _)| Some(usize::from(*partition)) == number);
        own.filter_map(|(_, range)| {
            record(&mut Rest { octets: self.octets.get(..range.end)?, at: range.start })
        })
    }
}

/// An export under construction, of at most `most` bytes.
pub(crate) struct ExportWriter {
    octets: Vec<u8>,
    most: usize,
}

impl ExportWriter {
    pub(crate) fn new<'i>(identities: impl ExactSizeIterator<Item = &'i str>, most: usize) -> Self {
        let mut octets = u16::try_from(identities.len()).unwrap_or(u16::MAX).to_le_bytes().to_vec();
        for identity in identities.take(u16::MAX.into()) {
            // A longer identity is cut. It then equals that of no block, so its entries are
            // skipped.
            let text = identity.get(..u16::MAX.into()).unwrap_or(identity);
            octets.extend_from_slice(&(text.len() as u16).to_le_bytes());
            octets.extend_from_slice(text.as_bytes());
        }
        Self { octets, most }
    }

    /// Adds an entry; false if it does not fit.
    pub(crate) fn push(&mut self, entry: &Entry, now: u64) -> bool {
        let Ok(partition) = u16::try_from(entry.partition) else { return true };
        let (exported, data) = entry.to_export(now);
        if self.octets.len() + RECORD + data.len() > self.most {
            return false;
        }
        let ExportedEntry { age, life, last_seen, seen, rtype, class, rcode, flags, counts, .. } = exported;
        let to = &mut self.octets;
        to.extend_from_slice(&partition.to_le_bytes());
        to.extend_from_slice(&age.to_le_bytes());
        for word in [life, last_seen] {
            to.extend_from_slice(&word.to_le_bytes());
        }
        for word in [seen, rtype, class, rcode, flags].into_iter().chain(counts) {
            to.extend_from_slice(&word.to_le_bytes());
        }
        to.extend_from_slice(&[exported.name_len, exported.ede_len, exported.bits, exported.failures]);
        to.extend_from_slice(&(data.len() as u32).to_le_bytes());
        to.extend_from_slice(data);
        true
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.octets
    }
}

/// Parses a record after its partition number.
fn record<'d>(rest: &mut Rest<'d>) -> Option<(ExportedEntry, Name, &'d [u8])> {
    let exported = ExportedEntry {
        age: rest.u64()?,
        life: rest.u32()?,
        last_seen: rest.u32()?,
        seen: rest.u16()?,
        rtype: rest.u16()?,
        class: rest.u16()?,
        rcode: rest.u16()?,
        flags: rest.u16()?,
        counts: [rest.u16()?, rest.u16()?, rest.u16()?],
        name_len: rest.u8()?,
        ede_len: rest.u8()?,
        bits: rest.u8()?,
        failures: rest.u8()?,
    };
    let length = rest.u32()?;
    let data = rest.take(usize::try_from(length).ok()?)?;
    let name = Name::from_wire(data.get(..exported.name_len.into())?).ok()?;
    exported.fits(data).then_some((exported, name, data))
}

/// The bytes not read yet.
struct Rest<'d> {
    octets: &'d [u8],
    at: usize,
}

impl<'d> Rest<'d> {
    fn take(&mut self, count: usize) -> Option<&'d [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.octets.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

/// Copies a record's data into the form of an entry.
pub(crate) fn data(octets: &[u8]) -> InlineBytes {
    InlineBytes::new(octets.len(), |to| to.copy_from_slice(octets))
}

/// Bytes of a record without its data: partition (2), age (8), 2 words of 4, 8 of 2, lengths and
/// bits (4), length (4).
const RECORD: usize = 2 + 8 + 2 * 4 + 8 * 2 + 4 + 4;
