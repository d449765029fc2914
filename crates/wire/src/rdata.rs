//! RDATA formats: validates upstreams' records, so that no client gets one that it cannot read.

use crate::name::walk;
use crate::records::{Malformed, Record};
use crate::{HEADER, Name, RType, read_u16};

/// Validates names and data of a message's records, one after another.
pub(crate) struct Checker<'m> {
    message: &'m [u8],
    /// A pointer to the question's name, which was validated before; nearly every owner is one.
    known: Option<[u8; 2]>,
    /// Labels and pointers that may still be read.
    work: u32,
}

impl<'m> Checker<'m> {
    /// Creates a checker of `message`; `asks` is whether the message has the question.
    pub(crate) fn new(message: &'m [u8], asks: bool) -> Self {
        Self { message, known: asks.then_some([0xc0, HEADER as u8]), work: MAX_WORK }
    }

    /// Validates one record: its names end, pointers point backwards, its data has the names,
    /// strings and lengths of its type. Opaque data is not inspected.
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub(crate) fn record(&mut self, record: &Record) -> Result<(), Malformed> {
        self.name(record.owner)?;
        let length = record.data.len();
        let bad = match record.rtype {
            RType::A => length != 4,
            RType::AAAA => length != 16,
            _ => !self.data_holds(record)?,
        };
        if bad { Err(Malformed::Data(record.rtype)) } else { Ok(()) }
    }

    fn data_holds(&mut self, record: &Record) -> Result<bool, Malformed> {
        let shape = DataShape::of(record.rtype);
        let Some(prefix) = shape.prefix(record.data(self.message)) else { return Ok(false) };
        let mut at = record.data.start + prefix;
        for _ in 0..shape.names {
            if at >= record.data.end {
                return Ok(false);
            }
            at = self.name(at)?;
        }
        // `None` if a name extends beyond the data.
        Ok(self.message.get(at..record.data.end).is_some_and(|rest| shape.tail.holds(rest)))
    }

    /// End of the name at `at`.
    #[inline]
    fn name(&mut self, at: usize) -> Result<usize, Malformed> {
        if let (Some(known), Some(here)) = (&self.known, self.message.get(at..at + 2))
            && known == here
        {
            return Ok(at + 2);
        }
        let (end, steps) = walk(self.message, at, |_| Ok(()))?;
        self.work = self.work.checked_sub(steps).ok_or(Malformed::Work)?;
        Ok(end)
    }
}

/// Whether `data`, with uncompressed names, is valid for this type. Readers reject a whole reply
/// for one invalid record.
pub fn is_valid_rdata(rtype: RType, data: &[u8]) -> bool {
    let shape = DataShape::of(rtype);
    let Some(mut at) = shape.prefix(data) else { return false };
    for _ in 0..shape.names {
        let Ok((_, end)) = Name::read_plain(data, at) else { return false };
        at = end;
    }
    data.get(at..).is_some_and(|rest| shape.tail.holds(rest))
}

/// Position of names in a type's data, and what surrounds them. Only names of RFC 1035's types may
/// be compressed when written; readers must accept compression in others as well (RFC 3597, section
/// 4).
pub(crate) struct DataShape {
    prefix: usize,
    pub(crate) names: usize,
    pub(crate) compress: bool,
    tail: Tail,
}

/// The data behind the names.
#[derive(Clone, Copy)]
enum Tail {
    /// This many bytes.
    Exactly(usize),
    /// At least this many bytes.
    AtLeast(usize),
    /// Character strings (RFC 1035, section 3.3): minimum and maximum count.
    Strings(usize, usize),
    /// SvcParams: key, length and value each (RFC 9460, section 2.2).
    Params,
    /// Windows of a type bit map (RFC 4034, section 4.1.2).
    BitMap,
}

impl DataShape {
    pub(crate) fn of(rtype: RType) -> Self {
        use Tail::{AtLeast, BitMap, Exactly, Params, Strings};
        let (prefix, names, compress, tail) = match rtype {
            RType::NS
            | RType::MD
            | RType::MF
            | RType::CNAME
            | RType::MB
            | RType::MG
            | RType::MR
            | RType::PTR => (0, 1, true, Exactly(0)),
            RType::SOA => (0, 2, true, Exactly(20)),
            RType::MINFO => (0, 2, true, Exactly(0)),
            RType::MX => (2, 1, true, Exactly(0)),
            RType::RP | RType::TALINK => (0, 2, false, Exactly(0)),
            RType::AFSDB | RType::RT | RType::KX | RType::LP => (2, 1, false, Exactly(0)),
            RType::PX => (2, 2, false, Exactly(0)),
            RType::SRV => (6, 1, false, Exactly(0)),
            RType::SIG | RType::RRSIG => (18, 1, false, AtLeast(1)),
            RType::NXT => (0, 1, false, AtLeast(0)),
            RType::NSEC => (0, 1, false, BitMap),
            RType::NAPTR | RType::DNAME | RType::NSAP_PTR => (0, 1, false, Exactly(0)),
            RType::SVCB | RType::HTTPS => (2, 1, false, Params),
            RType::A => (0, 0, false, Exactly(4)),
            RType::AAAA => (0, 0, false, Exactly(16)),
            RType::L32 => (0, 0, false, Exactly(6)),
            RType::NID | RType::L64 => (0, 0, false, Exactly(10)),
            RType::EUI48 => (0, 0, false, Exactly(6)),
            RType::EUI64 => (0, 0, false, Exactly(8)),
            // Some servers send TXT without a string.
            RType::TXT | RType::SPF | RType::AVC | RType::NINFO | RType::RESINFO => {
                (0, 0, false, Strings(0, usize::MAX))
            }
            RType::HINFO => (0, 0, false, Strings(2, 2)),
            RType::X25 => (0, 0, false, Strings(1, 1)),
            RType::ISDN => (0, 0, false, Strings(1, 2)),
            RType::GPOS => (0, 0, false, Strings(3, 3)),
            RType::DS | RType::CDS | RType::DLV | RType::TA => (0, 0, false, AtLeast(4)),
            RType::KEY | RType::DNSKEY | RType::CDNSKEY | RType::RKEY => (0, 0, false, AtLeast(4)),
            RType::NSEC3 | RType::CSYNC | RType::ZONEMD => (0, 0, false, AtLeast(6)),
            RType::NSEC3PARAM | RType::CERT | RType::URI => (0, 0, false, AtLeast(4)),
            RType::TLSA | RType::SMIMEA => (0, 0, false, AtLeast(3)),
            RType::SSHFP | RType::CAA => (0, 0, false, AtLeast(2)),
            _ => (0, 0, false, AtLeast(0)),
        };
        Self {
            // The strings before a NAPTR's name have no fixed length.
            prefix: if rtype == RType::NAPTR { usize::MAX } else { prefix },
            names,
            compress,
            tail,
        }
    }

    /// Bytes before the first name; `None` if `data` is shorter.
    pub(crate) fn prefix(&self, data: &[u8]) -> Option<usize> {
        if self.prefix != usize::MAX {
            return (self.prefix <= data.len()).then_some(self.prefix);
        }
        // Order, preference and three character strings (RFC 3403, section 4.1).
        let mut at = 4;
        for _ in 0..3 {
            at += 1 + usize::from(*data.get(at)?);
        }
        (at <= data.len()).then_some(at)
    }
}

impl Tail {
    fn holds(self, mut rest: &[u8]) -> bool {
        match self {
            Self::Exactly(octets) => rest.len() == octets,
            Self::AtLeast(octets) => rest.len() >= octets,
            Self::Strings(least, most) => {
                let mut found = 0;
                while let [length, text @ ..] = rest {
                    let Some(behind) = text.get(usize::from(*length)..) else { return false };
                    (rest, found) = (behind, found + 1);
                }
                (least..=most).contains(&found)
            }
            Self::Params => {
                while !rest.is_empty() {
                    let behind = read_u16(rest, 2).and_then(|length| rest.get(4 + usize::from(length)..));
                    let Some(behind) = behind else { return false };
                    rest = behind;
                }
                true
            }
            Self::BitMap => {
                while let [_window, length, bits @ ..] = rest {
                    let Some(behind) = bits.get(usize::from(*length)..).filter(|_| (1..=32).contains(length))
                    else {
                        return false;
                    };
                    rest = behind;
                }
                rest.is_empty()
            }
        }
    }
}

/// Labels and pointers read in one message, besides the question's name: twice those of 64 KiB of
/// honest records, and a fraction of a millisecond.
const MAX_WORK: u32 = 1 << 17;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, NameError};

    const QUESTION: &[u8] = b"\x03www\x07example\x03org\0\0\x01\0\x01";
    /// Offset of the first record, and of its data if its owner is a pointer.
    const RECORD: usize = HEADER + QUESTION.len();
    const DATA: usize = RECORD + 12;

    /// Reads a reply with this one record in its answer section.
    fn read(owner: &[u8], rtype: RType, data: &[u8]) -> Result<(), Malformed> {
        let mut reply = b"\0\x07\x81\x80\0\x01\0\x01\0\0\0\0".to_vec();
        reply.extend_from_slice(QUESTION);
        reply.extend_from_slice(owner);
        reply.extend_from_slice(&rtype.0.to_be_bytes());
        reply.extend_from_slice(&[0, 1, 0, 0, 0, 60]);
        reply.extend_from_slice(&(data.len() as u16).to_be_bytes());
        reply.extend_from_slice(data);
        Answer::default().read(&reply, QUESTION)
    }

    #[test]
    fn owner_must_be_a_name() {
        let to = |at: usize| [0xc0, at as u8];
        for (what, owner, expected) in [
            ("the question's", &to(HEADER)[..], Ok(())),
            ("its parent", &to(HEADER + 4), Ok(())),
            ("the root", &[0], Ok(())),
            ("a label and a pointer", &[&[1, b'a'][..], &to(HEADER)].concat(), Ok(())),
            ("itself", &to(RECORD), Err(NameError::Pointer)),
            ("what follows", &to(DATA), Err(NameError::Pointer)),
            ("the header", &to(4), Err(NameError::Pointer)),
            ("into itself", &[&[1, b'a'][..], &to(RECORD)].concat(), Err(NameError::Pointer)),
        ] {
            let expected = expected.map_err(Malformed::Name);
            assert_eq!(read(owner, RType::A, &[192, 0, 2, 1]), expected, "{what}");
        }
    }

    #[test]
    fn data_must_fit_its_type() {
        const GOOD: &[u8] = &[0xc0, HEADER as u8];
        const DANGLING: &[u8] = &[0xc0, 0xff];
        let with = |before: &[u8], name: &[u8], after: &[u8]| [before, name, after].concat();
        // Type, bytes before a name, bytes behind it.
        for (rtype, before, after) in [
            (RType::NS, &b""[..], &b""[..]),
            (RType::CNAME, b"", b""),
            (RType::PTR, b"", b""),
            (RType::DNAME, b"", b""),
            (RType::MX, b"\0\x05", b""),
            (RType::KX, b"\0\x05", b""),
            (RType::SRV, b"\0\x01\0\x02\0\x35", b""),
            (RType::NAPTR, b"\0\x01\0\x02\x01s\x03SIP\0", b""),
            (RType::SOA, b"\0", &[7; 20]),
            (RType::RP, b"\0", b""),
            (RType::RRSIG, &[1; 18], b"signature"),
            (RType::NSEC, b"", b"\0\x01\x40"),
            (RType::HTTPS, b"\0\x01", b"\0\x01\0\x03\x02h2"),
        ] {
            assert_eq!(read(GOOD, rtype, &with(before, GOOD, after)), Ok(()), "{rtype}");
            assert_eq!(read(GOOD, rtype, &with(before, b"\x01a\0", after)), Ok(()), "{rtype}");
            assert!(
                read(GOOD, rtype, &with(before, DANGLING, after)).is_err(),
                "{rtype}: a pointer to nowhere"
            );
            assert!(read(GOOD, rtype, &with(before, b"\x3fa", b"")).is_err(), "{rtype}: a name without end");
            assert!(read(GOOD, rtype, before).is_err(), "{rtype}: no name");
            assert!(
                read(GOOD, rtype, &with(before, GOOD, &[after, &[9]].concat())).is_err()
                    || rtype == RType::RRSIG,
                "{rtype}: an octet too many"
            );
            assert!(read(GOOD, rtype, b"").is_err(), "{rtype}: nothing");
        }
        for (rtype, data, holds) in [
            (RType::A, &[1; 4][..], true),
            (RType::A, &[1; 3], false),
            (RType::A, &[1; 16], false),
            (RType::A, &[], false),
            (RType::AAAA, &[1; 16], true),
            (RType::AAAA, &[1; 4], false),
            (RType::TXT, b"\x01a\x02bc", true),
            (RType::TXT, b"", true),
            (RType::TXT, b"\x05a", false),
            (RType::HINFO, b"\x01a\x01b", true),
            (RType::HINFO, b"\x01a", false),
            (RType::DS, b"\0\x01\x08\x02digest", true),
            (RType::DS, b"\0\x01", false),
            (RType::NSEC, b"\0\0\0", false),
            (RType::NSEC, b"\0\0\x21", false),
            (RType::HTTPS, b"\0\x01\0\0\x01\0\x09h2", false),
            (RType::NAPTR, b"\0\x01\0\x02\x01s\x03SIP", false),
            (RType::TSIG, b"\0", false),
            // Unknown types are opaque (RFC 3597).
            (RType::NULL, b"", true),
            (RType(65_400), b"\xc0\xff", true),
        ] {
            assert_eq!(read(GOOD, rtype, data).is_ok(), holds, "{rtype} {data:?}");
        }
    }
}
