//! Which ports of a service's slices a name means.

use std::ops::Range;

use crate::index::{At, Service};
use kubernetes_api::objects::Port;

/// Of each slice, which of its ports are meant: looked at once for a query, and not for each endpoint. A slice has as many
/// ports as who may write it likes.
pub(super) struct MeantPorts {
    /// Whether any port is meant, and what has none (as in CoreDNS).
    is_any: bool,
    /// As many as are looked at.
    slices: Vec<OfSlice>,
    /// Those of all slices, one slice's behind another's.
    numbers: Vec<u16>,
}

struct OfSlice {
    count: usize,
    numbers: Range<usize>,
}

impl MeantPorts {
    /// `is_any` says that `means` is true of every port, and of what has none (as in CoreDNS).
    pub(super) fn of(service: &Service, is_any: bool, means: impl Fn(&Port) -> bool) -> Self {
        let looked = service.slices.get(..MOST_LOOKS).unwrap_or(&service.slices);
        let mut ports = Self { is_any, slices: Vec::with_capacity(looked.len()), numbers: Vec::new() };
        let (mut seen, mut looks) = (vec![0_u64; 1024], MOST_LOOKS);
        for slice in looked {
            #[cfg(test)]
            crate::cost_counter::looked();
            let looked = slice.ports.get(..looks).unwrap_or(&slice.ports);
            looks -= looked.len();
            let start = ports.numbers.len();
            let mut count = usize::from(is_any && slice.ports.is_empty());
            for port in looked.iter().filter(|port| means(port)) {
                count += 1;
                let Some(number) = port.port else { continue };
                let (word, bit) = (&mut seen[usize::from(number) / 64], 1 << (number % 64));
                if *word & bit == 0 && ports.numbers.len() - start < MOST_RECORDS {
                    *word |= bit;
                    ports.numbers.push(number);
                }
            }
            // For the next slice.
            ports.numbers[start..].iter().for_each(|number| seen[usize::from(*number) / 64] = 0);
            let count = if is_any { count.max(slice.ports.len()) } else { count };
            ports.slices.push(OfSlice { count, numbers: start..ports.numbers.len() });
        }
        ports
    }

    /// Whether an endpoint has some: SRV does not lead to what has none that has a number.
    pub(super) fn has_any(&self, at: At<'_>) -> bool {
        self.is_any || self.slices.get(at.number).is_some_and(|slice| slice.count > 0)
    }

    /// Whether a slice with endpoints has some.
    pub(super) fn are_any(&self, service: &Service) -> bool {
        let mut slices = self.slices.iter().zip(&service.slices);
        self.is_any && service.has_endpoints()
            || slices.any(|(ports, slice)| ports.count > 0 && !slice.endpoints.is_empty())
    }

    /// Whether one of them has a number: else SRV leads to nothing.
    pub(super) fn have_numbers(&self) -> bool {
        !self.numbers.is_empty()
    }

    /// The numbers of an endpoint's, each once.
    pub(super) fn numbers(&self, at: At<'_>) -> &[u16] {
        let numbers = self.slices.get(at.number).map(|slice| slice.numbers.clone());
        &self.numbers[numbers.unwrap_or_default()]
    }

    /// How many all endpoints have together, one without a port counting as one (as in CoreDNS); not more than make a
    /// difference.
    pub(super) fn count<'s>(&self, endpoints: impl Iterator<Item = At<'s>>) -> usize {
        let mut count = 0;
        for at in endpoints {
            count += self.slices.get(at.number).map_or(1, |slice| slice.count.max(1));
            if count >= MOST_SHARES {
                break;
            }
        }
        count
    }
}

/// So many endpoints, slices, ports and places outside of a service are looked at for one query: a message has room for half as
/// many records, and what finds nothing to write is over in a fraction of a millisecond.
pub(super) const MOST_LOOKS: usize = 8_192;
/// SRV records, the shortest of which has 21 octets, that fill the largest message.
const MOST_RECORDS: usize = 3_120;
/// All have the same share of 100, and each has 1 at least.
pub(super) const MOST_SHARES: usize = 100;
