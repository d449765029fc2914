//! Numbered names, and the address of each name.

use std::net::Ipv4Addr;
use std::ops::Range;

use anyhow::{Context, Result, bail};
use wire::Name;

/// A pattern of numbered names: `h########.example.` is `h00000000.example.`, `h00000001.example.`,
/// and so on; numbers wrap at the number of digits.
#[derive(Clone, Debug)]
pub struct Pattern {
    wire: Vec<u8>,
    digits: Range<usize>,
    modulus: u64,
}

impl Pattern {
    /// Reads a pattern with one run of 1 to 9 `#`, all in one label.
    ///
    /// # Errors
    /// When there is no such run, or the rest is no name.
    pub fn new(text: &str) -> Result<Self> {
        let name = Name::from_text(text).ok().with_context(|| format!("{text:?} is not a name"))?;
        let wire = name.as_wire().to_vec();
        let Some(start) = wire.iter().position(|&octet| octet == b'#') else { bail!("{text:?} has no #") };
        let length = wire[start..].iter().take_while(|&&octet| octet == b'#').count();
        if length > 9 || wire[start + length..].contains(&b'#') {
            bail!("{text:?} must have one run of at most nine #");
        }
        Ok(Self { wire, digits: start..start + length, modulus: 10u64.pow(length as u32) })
    }

    /// Appends name `number` in wire form.
    #[inline]
    pub fn write(&self, number: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.wire);
        let mut left = u64::from(number) % self.modulus;
        for octet in out[start + self.digits.start..start + self.digits.end].iter_mut().rev() {
            *octet = b'0' + (left % 10) as u8;
            left /= 10;
        }
    }

    /// Returns name `number`.
    pub fn name(&self, number: u32) -> Name {
        let mut out = Vec::with_capacity(self.wire.len());
        self.write(number, &mut out);
        Name::from_wire(&out).expect("digits for digits leave a name a name")
    }
}

/// Returns the address that every data source has for a name, so that an answer for another name is
/// detected: in 10.0.0.0/8, from a hash (FNV-1a) of the name's lower-case wire form.
#[inline]
pub fn address_of(name_wire: &[u8]) -> Ipv4Addr {
    let hash = name_wire.iter().fold(0x811c_9dc5_u32, |hash, octet| {
        (hash ^ u32::from(octet.to_ascii_lowercase())).wrapping_mul(0x0100_0193)
    });
    Ipv4Addr::from(0x0a00_0000 | ((hash >> 8) ^ (hash & 0xff)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn numbers_become_names_and_start_again() {
        let pattern = Pattern::new("h###.Zone.bench").expect("a pattern");
        for (number, text) in [(0, "h000.zone.bench."), (42, "h042.zone.bench."), (1999, "h999.zone.bench.")]
        {
            assert_eq!(pattern.name(number).to_string(), text);
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in ["plain.example.", "h##.h#.example.", "##########.example.", "a..#", ""] {
            assert!(Pattern::new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names_have_addresses_of_their_own_whatever_their_case() {
        let pattern = Pattern::new("h########.hosts.bench.").expect("a pattern");
        let addresses: HashSet<_> =
            (0..10_000).map(|number| address_of(pattern.name(number).as_wire())).collect();
        assert!(addresses.len() > 9_900, "{}", addresses.len());
        assert_eq!(address_of(b"\x03WWW\0"), address_of(b"\x03www\0"));
        assert_eq!(address_of(b"\x03www\0").octets()[0], 10);
    }
}
