//! Client subnet option of an upstream's reply (RFC 7871).

/// Data of a client subnet option: family, source and scope prefix length, address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    len: u8,
    octets: [u8; 20],
}

impl Subnet {
    /// Reads the option; one that is malformed repeats no other.
    pub(crate) fn read(value: &[u8]) -> Self {
        let mut octets = [0; 20];
        match octets.get_mut(..value.len()) {
            Some(room) => room.copy_from_slice(value),
            None => return Self { len: 0, octets },
        }
        Self { len: value.len() as u8, octets }
    }

    /// Scope prefix length in bits: the part of the network that the answer holds for; 0: all of
    /// it.
    pub fn scope(&self) -> u8 {
        self.octets[3]
    }

    /// Whether family, source prefix length and address equal those of the option `sent`, as far as
    /// the prefix goes (RFC 7871, section 7.3). Without an address the family is ignored.
    pub fn repeats(&self, sent: &[u8]) -> bool {
        let ours = self.octets.get(..usize::from(self.len)).unwrap_or_default();
        let (Some([family @ .., source, _scope]), Some([sent_family @ .., sent_source, _])) =
            (ours.first_chunk::<4>(), sent.first_chunk::<4>())
        else {
            return false;
        };
        if source != sent_source {
            return false;
        }
        let (whole, rest) = (usize::from(source / 8), source % 8);
        let (Some(ours), Some(sent)) = (ours.get(4..), sent.get(4..)) else { return false };
        let last = |address: &[u8]| match rest {
            0 => Some(0),
            _ => address.get(whole).map(|octet| octet >> (8 - rest)),
        };
        (*source == 0 || family == sent_family)
            && ours.get(..whole).is_some_and(|octets| sent.get(..whole) == Some(octets))
            && last(ours).is_some_and(|bits| last(sent) == Some(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_subnet() {
        let sent = [0, 1, 20, 0, 192, 0, 0x20];
        for (value, repeats) in [
            (&[0, 1, 20, 24, 192, 0, 0x20][..], true),
            (&[0, 1, 20, 0, 192, 0, 0x20], true),
            // Bits beyond the prefix, and extra bytes.
            (&[0, 1, 20, 0, 192, 0, 0x2f], true),
            (&[0, 1, 20, 0, 192, 0, 0x20, 0], true),
            (&[0, 2, 20, 0, 192, 0, 0x20], false),
            (&[0, 1, 19, 0, 192, 0, 0x20], false),
            (&[0, 1, 20, 0, 192, 0, 0x30], false),
            (&[0, 1, 20, 0, 192, 1, 0x20], false),
            (&[0, 1, 20, 0, 192, 0], false),
            (&[0, 1, 20], false),
            (&[], false),
            (&[0; 21], false),
        ] {
            assert_eq!(Subnet::read(value).repeats(&sent), repeats, "{value:?}");
        }
        assert!(Subnet::read(&[0, 2, 0, 0]).repeats(&[0, 1, 0, 0]));
        assert!(!Subnet::read(&[0, 1, 8, 0, 10]).repeats(&[0, 1, 0, 0]));
        assert_eq!(Subnet::read(&[0, 1, 24, 16, 192, 0, 2]).scope(), 16);
    }
}
