//! Draws the source ports of queries to upstreams, only from the host's ephemeral ports
//! (ip_local_port_range).
//!
//! A port outside of that range may belong to a service that binds the port later or never binds
//! it: a node's VXLAN or WireGuard, a NodePort.

use rand::Rng;

/// The ports of `net.ipv4.ip_local_port_range` (IPv6 has the same) without the ports of
/// `net.ipv4.ip_local_reserved_ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcePorts {
    /// First and last port of each range, in order; never empty.
    runs: Vec<(u16, u16)>,
    count: u32,
}

impl SourcePorts {
    /// Reads the current ports of this network namespace.
    pub fn read() -> Self {
        let read = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        Self::new(&read("ip_local_port_range"), &read("ip_local_reserved_ports"))
    }

    /// Parses the kernel's two texts. An invalid range, or one without ports of 1024 and above, is
    /// replaced by the kernel's default; an invalid list of reserved ports reserves none.
    fn new(range: &str, reserved: &str) -> Self {
        let mut runs = without(range_of(range).unwrap_or(DEFAULT), reserved);
        if runs.is_empty() {
            runs.push(DEFAULT);
        }
        let count = runs.iter().map(|(first, last)| u32::from(last - first) + 1).sum();
        Self { runs, count }
    }

    /// Draws one of the ports, uniformly.
    pub fn draw(&self, random: &mut impl Rng) -> u16 {
        let mut left = random.random_range(0..self.count);
        for &(first, last) in &self.runs {
            let ports = u32::from(last - first) + 1;
            if left < ports {
                return first + left as u16;
            }
            left -= ports;
        }
        DEFAULT.0
    }
}

fn range_of(text: &str) -> Option<(u16, u16)> {
    let mut words = text.split_whitespace().map(str::parse::<u16>);
    match (words.next()?, words.next()?, words.next()) {
        (Ok(first), Ok(last), None) if first <= last && last >= LOWEST => Some((first.max(LOWEST), last)),
        _ => None,
    }
}

/// Returns a range without the ports of a list such as `4789,30000-32767`.
fn without((first, last): (u16, u16), reserved: &str) -> Vec<(u16, u16)> {
    let run = |word: &str| -> Option<(u32, u32)> {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some((first.trim().parse::<u16>().ok()?.into(), last.trim().parse::<u16>().ok()?.into()))
    };
    let mut reserved: Vec<(u32, u32)> = reserved.split(',').filter_map(run).collect();
    reserved.sort_unstable();
    let (mut next, last) = (u32::from(first), u32::from(last));
    let mut left = Vec::new();
    for (from, to) in reserved.into_iter().chain([(last + 1, last + 1)]) {
        if from > next && next <= last {
            left.push((next as u16, (from - 1).min(last) as u16));
        }
        next = next.max(to + 1);
    }
    left
}

/// Linux's default range.
const DEFAULT: (u16, u16) = (32_768, 60_999);
/// Lowest port that is used: lower ports are privileged.
const LOWEST: u16 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn unreserved_ports_of_the_range() {
        for (range, reserved, runs) in [
            ("32768\t60999\n", "\n", &[(32_768, 60_999)][..]),
            (
                "1024 65535",
                "4789,8472,51820",
                &[(1024, 4788), (4790, 8471), (8473, 51_819), (51_821, 65_535)],
            ),
            ("30000 40000", "30000-32767", &[(32_768, 40_000)]),
            ("30000 40000", "35000-50000,30010,30005-30020", &[(30_000, 30_004), (30_021, 34_999)]),
            ("1 2000", "65535", &[(1024, 2000)]),
            ("40000 40000", "", &[(40_000, 40_000)]),
            // No port remains, or the range is invalid.
            ("40000 40009", "40000-40009", &[DEFAULT]),
            ("1 1000", "", &[DEFAULT]),
            ("60999 32768", "", &[DEFAULT]),
            ("32768", "", &[DEFAULT]),
            ("1 2 3", "", &[DEFAULT]),
            ("a b", "c,,-,9-", &[DEFAULT]),
            ("70000 80000", "", &[DEFAULT]),
            ("", "", &[DEFAULT]),
        ] {
            assert_eq!(SourcePorts::new(range, reserved).runs, runs, "{range:?} {reserved:?}");
        }
    }

    proptest! {
        #[test]
        fn draws_exactly_the_free_ports(
            first in 1024u16..1060, length in 0u16..40, reserved in proptest::collection::vec((1020u16..1100, 0u16..9), 0..6),
        ) {
            let last = first + length;
            let text: Vec<String> = reserved.iter().map(|(from, more)| format!("{from}-{}", from + more)).collect();
            let ports = SourcePorts::new(&format!("{first} {last}"), &text.join(","));
            let is_free = |port: u16| !reserved.iter().any(|(from, more)| (*from..=from + more).contains(&port));
            let free: Vec<u16> = (first..=last).filter(|&port| is_free(port)).collect();
            prop_assume!(!free.is_empty());
            // The draw selects one of `count` ports with equal probability.
            prop_assert_eq!(ports.count as usize, free.len());
            let all: Vec<u16> = ports.runs.iter().flat_map(|&(first, last)| first..=last).collect();
            prop_assert_eq!(&all, &free);
            let mut random = rand::rng();
            for _ in 0..50 {
                prop_assert!(free.contains(&ports.draw(&mut random)));
            }
        }
    }
}
