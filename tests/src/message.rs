//! Decodes a message to the last byte for a test's assertions. Deliberately independent of the
//! program's own decoder.

use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, bail, ensure};

use crate::records::rtype_name;

/// A complete message. OPT is taken out of the additional section.
#[derive(Debug, Clone, Default)]
pub struct Message {
    /// The message ID.
    pub id: u16,
    /// The second 16 bits of the header: QR, opcode, AA TC RD RA, Z AD CD, rcode.
    pub flags: u16,
    /// The question, if present.
    pub question: Option<Question>,
    /// The answer section.
    pub answers: Vec<Record>,
    /// The authority section.
    pub authorities: Vec<Record>,
    /// The additional section, without OPT.
    pub additionals: Vec<Record>,
    /// The OPT record (RFC 6891).
    pub edns: Option<Edns>,
}

/// One entry of the question section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// In the received case, with the final dot.
    pub name: String,
    /// The query type.
    pub rtype: u16,
    /// The query class.
    pub class: u16,
}

/// One resource record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The owner name in the received case, with the final dot.
    pub name: String,
    /// Type.
    pub rtype: u16,
    /// Class.
    pub class: u16,
    /// In seconds.
    pub ttl: u32,
    /// In zone file format; `\# length hex` for types the kit does not know.
    pub data: String,
}

/// The content of an OPT record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edns {
    /// The sender's UDP payload size.
    pub size: u16,
    /// The upper eight bits of the rcode.
    pub rcode_high: u8,
    /// The EDNS version; a server answers BADVERS to any version other than 0.
    pub version: u8,
    /// The DO flag.
    pub dnssec_ok: bool,
    /// Code and data, in order.
    pub options: Vec<(u16, Vec<u8>)>,
}

impl Message {
    /// Decodes `bytes` completely.
    ///
    /// # Errors
    /// Any inconsistency: lengths, pointers, trailing bytes, more than one question or OPT.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut at = Cursor { bytes, at: 0 };
        let mut message = Self { id: at.u16()?, flags: at.u16()?, ..Self::default() };
        let counts = [at.u16()?, at.u16()?, at.u16()?, at.u16()?];
        ensure!(counts[0] <= 1, "{} questions", counts[0]);
        if counts[0] == 1 {
            message.question = Some(Question { name: at.name()?, rtype: at.u16()?, class: at.u16()? });
        }
        for _ in 0..counts[1] {
            message.answers.push(at.record()?);
        }
        for _ in 0..counts[2] {
            message.authorities.push(at.record()?);
        }
        for _ in 0..counts[3] {
            if let Some(edns) = at.opt()? {
                ensure!(message.edns.replace(edns).is_none(), "more than one OPT");
            } else {
                message.additionals.push(at.record()?);
            }
        }
        ensure!(at.at == bytes.len(), "{} octets after the message", bytes.len() - at.at);
        Ok(message)
    }

    /// All twelve bits of the rcode.
    pub fn rcode(&self) -> u16 {
        (self.flags & 0xf) | self.edns.as_ref().map_or(0, |edns| u16::from(edns.rcode_high) << 4)
    }

    /// The data of the first EDNS option with this code.
    pub fn option(&self, code: u16) -> Option<&[u8]> {
        let options = &self.edns.as_ref()?.options;
        options.iter().find(|(found, _)| *found == code).map(|(_, data)| &data[..])
    }
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let class = match self.class {
            1 => "IN".to_owned(),
            3 => "CH".to_owned(),
            other => format!("CLASS{other}"),
        };
        write!(f, "{} {} {class} {} {}", self.name, self.ttl, rtype_name(self.rtype), self.data)
    }
}

/// A header with these flags; the counts are of questions, answers, authorities, additionals.
pub fn header(id: u16, flags: u16, counts: [u16; 4]) -> Vec<u8> {
    [id, flags, counts[0], counts[1], counts[2], counts[3]]
        .iter()
        .flat_map(|word| word.to_be_bytes())
        .collect()
}

/// The offset behind the first question of a message; `None` if it is missing or malformed.
pub fn question_end(bytes: &[u8]) -> Option<usize> {
    let mut at = Cursor { bytes, at: 12 };
    at.name().ok()?;
    at.u16().ok()?;
    at.u16().ok()?;
    Some(at.at)
}

struct Cursor<'m> {
    bytes: &'m [u8],
    at: usize,
}

impl<'m> Cursor<'m> {
    fn take(&mut self, n: usize) -> Result<&'m [u8]> {
        let taken =
            self.bytes.get(self.at..self.at + n).with_context(|| format!("ends at octet {}", self.at))?;
        self.at += n;
        Ok(taken)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn u16(&mut self) -> Result<u16> {
        let octets = self.take(2)?;
        Ok(u16::from_be_bytes([octets[0], octets[1]]))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from(self.u16()?) << 16 | u32::from(self.u16()?))
    }

    fn name(&mut self) -> Result<String> {
        let (mut name, mut at, mut end) = (String::new(), self.at, None);
        let mut length = 1;
        loop {
            let octet = *self.bytes.get(at).context("name runs over the end")?;
            at += 1;
            match octet {
                0 => break,
                1..=63 => {
                    let label =
                        self.bytes.get(at..at + usize::from(octet)).context("label runs over the end")?;
                    label.iter().for_each(|octet| push_octet(&mut name, *octet, b'.'));
                    name.push('.');
                    at += label.len();
                    length += 1 + label.len();
                    ensure!(length <= 255, "name of more than 255 octets");
                }
                0xc0.. => {
                    let low = *self.bytes.get(at).context("pointer runs over the end")?;
                    end.get_or_insert(at + 1);
                    let target = usize::from(octet & 0x3f) << 8 | usize::from(low);
                    ensure!(target < at - 1, "pointer forward");
                    at = target;
                }
                _ => bail!("label type {octet:#x}"),
            }
        }
        self.at = end.unwrap_or(at);
        Ok(if name.is_empty() { ".".to_owned() } else { name })
    }

    /// Reads the next record if it is OPT; else reads nothing.
    fn opt(&mut self) -> Result<Option<Edns>> {
        if self.bytes.get(self.at..self.at + 3) != Some(&[0, 0, 41]) {
            return Ok(None);
        }
        self.at += 3;
        let (size, rcode_high, version, bits) = (self.u16()?, self.u8()?, self.u8()?, self.u16()?);
        let end = usize::from(self.u16()?) + self.at;
        let mut options = Vec::new();
        while self.at < end {
            let (code, length) = (self.u16()?, self.u16()?);
            options.push((code, self.take(length.into())?.to_vec()));
        }
        ensure!(self.at == end, "option runs over the end of OPT");
        Ok(Some(Edns { size, rcode_high, version, dnssec_ok: bits & 0x8000 != 0, options }))
    }

    fn record(&mut self) -> Result<Record> {
        let (name, rtype, class, ttl) = (self.name()?, self.u16()?, self.u16()?, self.u32()?);
        let length = usize::from(self.u16()?);
        let end = self.at + length;
        ensure!(end <= self.bytes.len(), "record runs over the end");
        let data = self.data(rtype, length)?;
        ensure!(self.at == end, "data of {name} ends at {} and not at {end}", self.at);
        Ok(Record { name, rtype, class, ttl, data })
    }

    fn data(&mut self, rtype: u16, length: usize) -> Result<String> {
        let end = self.at + length;
        Ok(match (rtype, length) {
            (1, 4) => Ipv4Addr::from_bits(self.u32()?).to_string(),
            (28, 16) => Ipv6Addr::from(<[u8; 16]>::try_from(self.take(16)?)?).to_string(),
            (2 | 5 | 12 | 39, 1..) => self.name()?,
            (15, 3..) => format!("{} {}", self.u16()?, self.name()?),
            (33, 7..) => format!("{} {} {} {}", self.u16()?, self.u16()?, self.u16()?, self.name()?),
            (6, 22..) => {
                let mut text = format!("{} {}", self.name()?, self.name()?);
                for _ in 0..5 {
                    write!(text, " {}", self.u32()?)?;
                }
                text
            }
            (16 | 13, 1..) => {
                let mut strings = Vec::new();
                while self.at < end {
                    let length = self.u8()?;
                    let mut text = String::new();
                    self.take(length.into())?.iter().for_each(|octet| push_octet(&mut text, *octet, b'"'));
                    strings.push(format!("\"{text}\""));
                }
                strings.join(" ")
            }
            _ => {
                let hex: String = self.take(length)?.iter().map(|octet| format!("{octet:02x}")).collect();
                format!("\\# {length} {hex}").trim_end().to_owned()
            }
        })
    }
}

/// RFC 1035 section 5.1: `\DDD` for unprintable bytes, a backslash before a byte that would end the
/// word.
fn push_octet(text: &mut String, octet: u8, end: u8) {
    match octet {
        b'\\' => text.push_str("\\\\"),
        octet if octet == end => text.extend(['\\', char::from(octet)]),
        b' '..=b'~' => text.push(char::from(octet)),
        other => text.push_str(&format!("\\{other:03}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::record;

    #[test]
    fn records_round_trip() {
        for text in [
            "a.example. 30 IN A 192.0.2.1",
            "a.example. 30 IN AAAA 2001:db8::1",
            "a.example. 0 IN CNAME B.example.",
            "example. 5 IN SOA ns.example. host.example. 1 2 3 4 5",
            "_x._tcp.example. 5 IN SRV 1 2 3 t.example.",
            "example. 5 IN MX 10 mx.example.",
            "example. 5 IN TXT \"one two\" \"three\"",
            "example. 5 IN TYPE65400 \\# 3 0102ff",
        ] {
            let mut bytes = header(1, 0x8000, [0, 1, 0, 0]);
            bytes.extend(record(text));
            assert_eq!(Message::decode(&bytes).unwrap().answers[0].to_string(), text);
        }
    }

    /// A malformed message is an error and never a panic.
    #[test]
    fn malformed_messages_are_errors() {
        let mut bytes = header(1, 0x8000, [1, 1, 0, 0]);
        bytes.extend(b"\x01a\x00\x00\x01\x00\x01");
        bytes.extend(record("a. 30 IN MX 1 b."));
        assert!(Message::decode(&bytes).is_ok());
        for cut in 0..bytes.len() {
            assert!(Message::decode(&bytes[..cut]).is_err());
        }
        bytes.push(0);
        assert!(Message::decode(&bytes).is_err());
    }
}
