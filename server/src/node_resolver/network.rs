//! A network, as `SERVICE_CIDRS` lists them.

use std::net::IpAddr;
use std::str::FromStr;

/// An address and how many of its bits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Network {
    address: IpAddr,
    prefix_bits: u8,
}

impl Network {
    /// Whether the address is in it.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(32 - u32::from(self.prefix_bits)).unwrap_or(0)
                    == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).checked_shr(128 - u32::from(self.prefix_bits)).unwrap_or(0)
                    == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = ();

    /// `10.96.0.0/12`; bits of the host are passed over.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = text.split_once('/').ok_or(())?;
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let prefix_bits = prefix.parse().map_err(|_| ())?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        (prefix_bits <= width).then_some(Self { address, prefix_bits }).ok_or(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_holds_the_addresses_whose_first_bits_are_its_own() {
        for (network, address, inside) in [
            ("10.96.0.0/12", "10.96.0.1", true),
            ("10.96.0.0/12", "10.111.255.255", true),
            ("10.96.0.0/12", "10.112.0.0", false),
            ("10.100.3.4/12", "10.96.0.1", true),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("192.0.2.7/32", "192.0.2.7", true),
            ("192.0.2.7/32", "192.0.2.6", false),
            ("fd00:96::/112", "fd00:96::64", true),
            ("fd00:96::/112", "fd00:96::1:0", false),
            ("::/0", "fd00::1", true),
            ("::/0", "10.96.0.1", false),
            ("0.0.0.0/0", "::1", false),
        ] {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), inside, "{network} {address}");
        }
        for bad in
            ["", "10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", "x/8"]
        {
            assert_eq!(bad.parse::<Network>(), Err(()), "{bad}");
        }
    }
}
