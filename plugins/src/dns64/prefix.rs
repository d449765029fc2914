//! IPv6 addresses that embed IPv4 addresses (RFC 6052).

use std::net::{Ipv4Addr, Ipv6Addr};

use corefile::Word;
use ipnet::Ipv6Net;

use super::PLUGIN;
use plugin::args::{Result, bad};

/// A Pref64::/n: the first bits of addresses that embed IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prefix {
    /// The prefix; the rest of its last byte is zero.
    octets: [u8; 16],
    /// The length in bytes.
    length: usize,
}

impl Prefix {
    /// 64:ff9b::/96.
    pub(super) const WELL_KNOWN: Self =
        Self { octets: [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], length: 12 };

    /// Parses a prefix. As in CoreDNS, bits after the prefix are ignored.
    pub(super) fn read(word: &Word) -> Result<Self> {
        let network =
            word.text.parse::<Ipv6Net>().ok().filter(|network| LENGTHS.contains(&network.prefix_len()));
        let prefix = network.map(|network| Self {
            octets: network.network().octets(),
            length: usize::from(network.prefix_len()) / 8,
        });
        prefix.filter(|prefix| prefix.octets[RESERVED] == 0).ok_or_else(|| bad(PLUGIN, word, EXPECTED))
    }

    /// Embeds an address (RFC 6052, section 2.2); the suffix is zero.
    pub(super) fn embed(&self, address: Ipv4Addr) -> Ipv6Addr {
        let mut octets = self.octets;
        for (place, octet) in self.places().zip(address.octets()) {
            octets[place] = octet;
        }
        octets.into()
    }

    /// Returns the address embedded in `address`; `None` if [`Self::embed`] does not make
    /// `address`.
    pub(super) fn extract(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let (octets, mut found) = (address.octets(), [0; 4]);
        for (place, octet) in self.places().zip(&mut found) {
            *octet = octets[place];
        }
        let found = Ipv4Addr::from(found);
        (self.embed(found) == address).then_some(found)
    }

    /// Returns the indexes of the bytes after the prefix, without the reserved one.
    fn places(&self) -> impl Iterator<Item = usize> {
        (self.length..16).filter(|&place| place != RESERVED)
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", Ipv6Addr::from(self.octets), 8 * self.length)
    }
}

/// The lengths in bits.
const LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];
/// Bits 64 to 71 are zero in every address.
const RESERVED: usize = 8;
pub(super) const EXPECTED: &str =
    "an IPv6 prefix of 32, 40, 48, 56, 64 or 96 bits with bits 64 to 71 zero, such as 64:ff9b::/96";
