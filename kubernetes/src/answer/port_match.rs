//! The ports of a service's slices that match a name.

use std::ops::Range;

use crate::index::{Service, SliceEndpoint};
use kubernetes_api::objects::Port;

/// Matching ports of each slice, computed once for a query and not for each endpoint: an untrusted
/// user may write slices with many ports.
pub(super) struct PortMatch {
    /// Whether all ports match, and endpoints without ports as well (as in CoreDNS).
    is_any: bool,
    /// The scanned slices.
    slices: Vec<SlicePorts>,
    /// The concatenated port numbers of all slices.
    numbers: Vec<u16>,
}

struct SlicePorts {
    count: usize,
    numbers: Range<usize>,
}

impl PortMatch {
    /// Scans the ports of a service; `is_any` means that all match, and endpoints without ports as
    /// well (as in CoreDNS).
    pub(super) fn of(service: &Service, is_any: bool, matches: impl Fn(&Port) -> bool) -> Self {
        let scanned = service.slices.get(..MAX_SCANNED).unwrap_or(&service.slices);
        let mut ports = Self { is_any, slices: Vec::with_capacity(scanned.len()), numbers: Vec::new() };
        let (mut seen, mut left) = (vec![0_u64; 1024], MAX_SCANNED);
        for slice in scanned {
            #[cfg(test)]
            crate::cost_counter::count();
            let scanned = slice.ports.get(..left).unwrap_or(&slice.ports);
            left -= scanned.len();
            let start = ports.numbers.len();
            let mut count = usize::from(is_any && slice.ports.is_empty());
            for port in scanned.iter().filter(|port| matches(port)) {
                count += 1;
                let Some(number) = port.port else { continue };
                let (word, bit) = (&mut seen[usize::from(number) / 64], 1 << (number % 64));
                if *word & bit == 0 && ports.numbers.len() - start < MAX_RECORDS {
                    *word |= bit;
                    ports.numbers.push(number);
                }
            }
            // Reset for the next slice.
            ports.numbers[start..].iter().for_each(|number| seen[usize::from(*number) / 64] = 0);
            let count = if is_any { count.max(slice.ports.len()) } else { count };
            ports.slices.push(SlicePorts { count, numbers: start..ports.numbers.len() });
        }
        ports
    }

    /// Whether an endpoint has a matching port.
    pub(super) fn has_any(&self, at: SliceEndpoint<'_>) -> bool {
        self.is_any || self.slices.get(at.number).is_some_and(|slice| slice.count > 0)
    }

    /// Whether a slice with endpoints has a matching port.
    pub(super) fn are_any(&self, service: &Service) -> bool {
        let mut slices = self.slices.iter().zip(&service.slices);
        self.is_any && service.has_endpoints()
            || slices.any(|(ports, slice)| ports.count > 0 && !slice.endpoints.is_empty())
    }

    /// Whether a matching port has a number, which SRV records need.
    pub(super) fn have_numbers(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// Returns the distinct numbers of the matching ports of an endpoint.
    pub(super) fn numbers(&self, at: SliceEndpoint<'_>) -> &[u16] {
        let numbers = self.slices.get(at.number).map(|slice| slice.numbers.clone());
        &self.numbers[numbers.unwrap_or_default()]
    }

    /// Returns the number of matching ports of all endpoints, at least 1 for each endpoint (as in
    /// CoreDNS), up to [`MAX_SHARES`] or more.
    pub(super) fn count<'s>(&self, endpoints: impl Iterator<Item = SliceEndpoint<'s>>) -> usize {
        let mut count = 0;
        for at in endpoints {
            count += self.slices.get(at.number).map_or(1, |slice| slice.count.max(1));
            if count >= MAX_SHARES {
                break;
            }
        }
        count
    }
}

/// Maximum endpoints, slices, ports and external addresses of a service that are scanned for a
/// query: a message has half as many records, and a scan without records takes a fraction of a
/// millisecond.
pub(super) const MAX_SCANNED: usize = 8_192;
/// SRV records of 21 bytes that fill the largest message.
const MAX_RECORDS: usize = 3_120;
/// Total weight that the SRV records of an answer share. Each record has a weight of at least 1, so
/// that more records than this have weight 1 each.
pub(super) const MAX_SHARES: usize = 100;
