//! Labels of names below the zone, in lower case.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use kubernetes_api::objects::Endpoint;

/// One label, without its length octet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label {
    length: u8,
    octets: [u8; MAX_LABEL],
}

impl Label {
    /// Returns the label of an endpoint: its host name, else the name of its pod if `pod_names` is
    /// set, else its address with dashes.
    pub(crate) fn of(endpoint: &Endpoint, pod_names: bool) -> Self {
        let pod = endpoint.pod.as_deref().filter(|_| pod_names);
        let named = endpoint.hostname.as_deref().and_then(Self::from_text);
        named.or_else(|| pod.and_then(Self::from_text)).unwrap_or_else(|| Self::dashed(endpoint.address))
    }

    /// Returns an address with dashes: `10-0-0-1`, `fd00--1`; a final dash becomes `-0`.
    fn dashed(address: IpAddr) -> Self {
        let mut label = Self { length: 0, octets: [0; MAX_LABEL] };
        // The longest address has 45 characters.
        let _ = match address {
            // The common case, once for each endpoint at start: `write!` takes more than twice as
            // long.
            IpAddr::V4(address) => {
                address.octets().into_iter().enumerate().try_for_each(|(place, number)| {
                    if place > 0 {
                        label.write_char('-')?;
                    }
                    label.write_number(number)
                })
            }
            IpAddr::V6(address) => write!(label, "{address}"),
        };
        for octet in &mut label.octets[..usize::from(label.length)] {
            if matches!(*octet, b'.' | b':') {
                *octet = b'-';
            }
        }
        if label.octets().last() == Some(&b'-') {
            let _ = label.write_char('0');
        }
        label
    }

    fn write_number(&mut self, number: u8) -> std::fmt::Result {
        let digits = [number / 100, number / 10 % 10, number % 10].map(|digit| b'0' + digit);
        let skipped = usize::from(number < 100) + usize::from(number < 10);
        self.write_octets(&digits[skipped..])
    }

    fn write_octets(&mut self, octets: &[u8]) -> std::fmt::Result {
        let (start, end) = (usize::from(self.length), usize::from(self.length) + octets.len());
        self.octets.get_mut(start..end).ok_or(std::fmt::Error)?.copy_from_slice(octets);
        self.length = end as u8;
        Ok(())
    }

    /// Returns the text as a label; `None` if the text is empty or too long.
    fn from_text(text: &str) -> Option<Self> {
        let mut label = Self { length: 0, octets: [0; MAX_LABEL] };
        label.write_str(text).ok().filter(|()| !text.is_empty())?;
        label.octets.make_ascii_lowercase();
        Some(label)
    }

    pub(crate) fn octets(&self) -> &[u8] {
        &self.octets[..usize::from(self.length)]
    }
}

impl std::fmt::Write for Label {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.write_octets(text.as_bytes())
    }
}

/// Returns name and namespace as labels in wire form, the key of a service; `None` if one is not a
/// label.
pub(crate) fn key(name: &str, namespace: &str) -> Option<Arc<[u8]>> {
    let (mut key, mut length) = ([0; 2 * (1 + MAX_LABEL)], 0);
    for label in [name, namespace] {
        if label.is_empty() || label.len() > MAX_LABEL {
            return None;
        }
        key[length] = label.len() as u8;
        key[length + 1..][..label.len()].copy_from_slice(label.as_bytes());
        length += 1 + label.len();
    }
    // Length bytes are at most 63 and thus are not ASCII letters.
    key.make_ascii_lowercase();
    Some(key[..length].into())
}

/// Maximum octets of a label (RFC 1035, section 2.3.4).
pub(crate) const MAX_LABEL: usize = 63;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_label_precedence() {
        let long = "x".repeat(64);
        for (hostname, pod, address, plain, by_pod) in [
            (None, None, "172.17.0.255", "172-17-0-255", "172-17-0-255"),
            (None, Some("web-0"), "172.17.0.255", "172-17-0-255", "web-0"),
            (Some("H1"), Some("web-0"), "172.17.0.255", "h1", "h1"),
            (Some(""), Some(""), "fd00:17::1", "fd00-17--1", "fd00-17--1"),
            (Some(&long[..63]), None, "::", &long[..63], &long[..63]),
            (Some(&long[..]), Some(&long[..]), "fd00::", "fd00--0", "fd00--0"),
            (None, None, "1:2:3:4:5:6:7:8", "1-2-3-4-5-6-7-8", "1-2-3-4-5-6-7-8"),
            (None, None, "::ffff:10.0.99.100", "--ffff-10-0-99-100", "--ffff-10-0-99-100"),
            (None, None, "0.9.10.99", "0-9-10-99", "0-9-10-99"),
            (None, None, "100.101.200.0", "100-101-200-0", "100-101-200-0"),
        ] {
            let endpoint = Endpoint {
                address: address.parse().unwrap(),
                hostname: hostname.map(Into::into),
                pod: pod.map(Into::into),
                zone: None,
            };
            for (pod_names, label) in [(false, plain), (true, by_pod)] {
                assert_eq!(Label::of(&endpoint, pod_names).octets(), label.as_bytes(), "{endpoint:?}");
            }
        }
    }

    #[test]
    fn key_is_two_labels() {
        assert_eq!(key("Web", "t1").as_deref(), Some(&b"\x03web\x02t1"[..]));
        for (name, namespace) in [("", "t1"), ("web", ""), (&"x".repeat(64), "t1")] {
            assert!(key(name, namespace).is_none(), "{name} {namespace}");
        }
    }
}
