//! Encodes records from text to wire format, uncompressed, for the mock upstream.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};

/// The wire format of one record written as `owner ttl IN type data`, or with `\# length hex` as
/// data.
///
/// # Panics
/// When the text is not a record.
pub fn record(text: &str) -> Vec<u8> {
    encode(text).unwrap_or_else(|error| panic!("not a record: {text:?}: {error:#}"))
}

/// The number of a type's name; `TYPEnnn` (RFC 3597) for all others.
///
/// # Panics
/// When the name is unknown.
pub fn rtype_number(name: &str) -> u16 {
    let known = TYPES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    known
        .or_else(|| name.strip_prefix("TYPE")?.parse().ok())
        .unwrap_or_else(|| panic!("unknown type {name:?}"))
}

/// The name of a type's number.
pub fn rtype_name(number: u16) -> String {
    let known = TYPES.iter().find(|(_, known)| *known == number);
    known.map_or_else(|| format!("TYPE{number}"), |(name, _)| (*name).to_owned())
}

/// The wire format of a dotted name; no escapes.
///
/// # Panics
/// When a label is empty or above 63 bytes.
pub(crate) fn name(text: &str) -> Vec<u8> {
    let mut octets = Vec::with_capacity(text.len() + 2);
    for label in text.trim_end_matches('.').split('.').filter(|_| text != "." && !text.is_empty()) {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length));
        octets.push(length.unwrap_or_else(|| panic!("bad label in {text:?}")));
        octets.extend(label.as_bytes());
    }
    octets.push(0);
    octets
}

fn encode(text: &str) -> Result<Vec<u8>> {
    let mut words = text.split_whitespace();
    let mut word = |what: &'static str| words.next().context(what);
    let (owner, ttl, class, rtype) = (word("owner")?, word("ttl")?, word("class")?, word("type")?);
    ensure!(class == "IN", "class {class}");
    let rtype = rtype_number(rtype);
    let rest: Vec<&str> = words.collect();
    let data = data(rtype, &rest, text)?;
    let mut octets = name(owner);
    octets.extend(rtype.to_be_bytes());
    octets.extend(1_u16.to_be_bytes());
    octets.extend(ttl.parse::<u32>()?.to_be_bytes());
    octets.extend(u16::try_from(data.len())?.to_be_bytes());
    octets.extend(data);
    Ok(octets)
}

fn data(rtype: u16, words: &[&str], text: &str) -> Result<Vec<u8>> {
    let word = |n: usize| words.get(n).copied().context("data ends early");
    if words.first() == Some(&"\\#") {
        let octets = hex(&words[2..].concat())?;
        ensure!(octets.len() == word(1)?.parse::<usize>()?, "length differs");
        return Ok(octets);
    }
    let numbers = |from: usize, to: usize| -> Result<Vec<u8>> {
        let mut octets = Vec::new();
        for n in from..to {
            octets.extend(word(n)?.parse::<u16>()?.to_be_bytes());
        }
        Ok(octets)
    };
    Ok(match rtype {
        1 => word(0)?.parse::<Ipv4Addr>()?.octets().to_vec(),
        28 => word(0)?.parse::<Ipv6Addr>()?.octets().to_vec(),
        2 | 5 | 12 | 39 => name(word(0)?),
        15 => [numbers(0, 1)?, name(word(1)?)].concat(),
        33 => [numbers(0, 3)?, name(word(3)?)].concat(),
        6 => {
            let mut octets = [name(word(0)?), name(word(1)?)].concat();
            for n in 2..7 {
                octets.extend(word(n)?.parse::<u32>()?.to_be_bytes());
            }
            octets
        }
        16 => {
            let strings = text.split('"').skip(1).step_by(2);
            let mut octets = Vec::new();
            for string in strings {
                octets.push(u8::try_from(string.len())?);
                octets.extend(string.as_bytes());
            }
            ensure!(!octets.is_empty(), "no quoted string");
            octets
        }
        other => anyhow::bail!("no text form for type {other}: write \\# length hex"),
    })
}

fn hex(text: &str) -> Result<Vec<u8>> {
    ensure!(text.len().is_multiple_of(2) && text.is_ascii(), "odd hex");
    (0..text.len()).step_by(2).map(|at| Ok(u8::from_str_radix(&text[at..at + 2], 16)?)).collect()
}

const TYPES: &[(&str, u16)] = &[
    ("A", 1),
    ("NS", 2),
    ("CNAME", 5),
    ("SOA", 6),
    ("PTR", 12),
    ("HINFO", 13),
    ("MX", 15),
    ("TXT", 16),
    ("AAAA", 28),
    ("SRV", 33),
    ("DNAME", 39),
    ("DS", 43),
    ("RRSIG", 46),
    ("NSEC", 47),
    ("DNSKEY", 48),
    ("SVCB", 64),
    ("HTTPS", 65),
    ("IXFR", 251),
    ("AXFR", 252),
    ("ANY", 255),
];
