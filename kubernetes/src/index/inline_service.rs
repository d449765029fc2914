//! The data of a service that fits a slot of the seqlock table.

use wire::RType;

use super::seqlock_table::{SeqlockTable, SlotContent};
use super::service::{AddressSource, Service};

/// A and AAAA data at the name of a service with few addresses, in an existing namespace: what most
/// queries read.
///
/// A query reads this slot, and slots of other names before it. In a cluster larger than the
/// processor's cache, each cache miss costs as much as all work on the data. Measured with 10,000
/// services (`benches kubernetes`): 0.27 us of CPU time a hit outside of the kernel, beside 0.20 to
/// 0.24 for `hosts`; with heap buckets instead of slots 0.46 beside 0.25 to 0.27, and 2.5 cache
/// misses a hit instead of 1.15. With 450 services there is no difference.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct InlineService {
    flags: u8,
    /// End of the name.
    key_end: u8,
    /// Ends of the IPv4 and IPv6 addresses; [`NO_ROOM`] if they do not fit.
    v4_end: u8,
    v6_end: u8,
    /// The name and the addresses.
    bytes: [u8; CAPACITY],
}

/// Inline services by name.
pub(crate) type InlineServices = SeqlockTable<{ CAPACITY / 8 }>;

impl InlineService {
    /// Returns the inline data of an existing service, if it fits.
    pub(super) fn of(service: &Service) -> Option<Self> {
        let flags = match service.address_source() {
            AddressSource::ClusterIps => OCCUPIED,
            AddressSource::Endpoints => OCCUPIED | TO_ENDPOINTS,
            AddressSource::Other => return None,
        };
        let flags = if service.has_endpoints() { flags | HAS_ENDPOINTS } else { flags };
        let (mut bytes, mut end) = ([0; CAPACITY], 0);
        let key_end = put(&mut bytes, &mut end, [service.key()].into_iter())?;
        let [v4, v6] = [RType::A, RType::AAAA].map(|rtype| service.data(rtype));
        let v4_end = put(&mut bytes, &mut end, v4)?;
        let v6_end = put(&mut bytes, &mut end, v6).unwrap_or(NO_ROOM);
        service.namespace.is_known().then_some(Self { flags, key_end, v4_end, v6_end, bytes })
    }

    /// Returns the source of the addresses at its name.
    #[inline]
    pub(crate) fn address_source(&self) -> AddressSource {
        if self.flags & TO_ENDPOINTS == 0 { AddressSource::ClusterIps } else { AddressSource::Endpoints }
    }

    #[inline]
    pub(crate) fn has_endpoints(&self) -> bool {
        self.flags & HAS_ENDPOINTS != 0
    }

    /// Returns the concatenated addresses of one family at its name; `None` if they are not stored
    /// here.
    #[inline]
    pub(crate) fn addresses(&self, rtype: RType) -> Option<&[u8]> {
        let [key_end, v4_end, v6_end] = [self.key_end, self.v4_end, self.v6_end].map(usize::from);
        // `NO_ROOM` as an end is out of bounds, so that `get` returns `None`.
        match rtype {
            RType::A => self.bytes.get(key_end..v4_end),
            _ => self.bytes.get(v4_end..v6_end),
        }
    }

    /// Returns the namespace, the second label of the name.
    pub(super) fn namespace(&self) -> &[u8] {
        let label = 1 + usize::from(self.bytes[0]);
        self.bytes.get(label + 1..usize::from(self.key_end)).unwrap_or_default()
    }

    #[inline]
    fn is_named(&self, key: &[u8]) -> bool {
        self.bytes.get(..usize::from(self.key_end)) == Some(key)
    }

    #[inline]
    fn from_slot(SlotContent { head, words }: &SlotContent<{ CAPACITY / 8 }>) -> Self {
        let [flags, key_end, v4_end, v6_end] = head.to_ne_bytes();
        let mut bytes = [0; CAPACITY];
        let (chunks, _) = bytes.as_chunks_mut();
        chunks.iter_mut().zip(words).for_each(|(chunk, word)| *chunk = word.to_ne_bytes());
        Self { flags, key_end, v4_end, v6_end, bytes }
    }

    fn to_slot(self) -> SlotContent<{ CAPACITY / 8 }> {
        let Self { flags, key_end, v4_end, v6_end, bytes } = self;
        let (chunks, _) = bytes.as_chunks();
        let mut words = [0; CAPACITY / 8];
        words.iter_mut().zip(chunks).for_each(|(word, chunk)| *word = u64::from_ne_bytes(*chunk));
        SlotContent { head: u32::from_ne_bytes([flags, key_end, v4_end, v6_end]), words }
    }
}

impl InlineServices {
    /// Returns the service of a name and its hash.
    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<InlineService> {
        // Empty slots have no flag; names of another length are skipped.
        let may = |head: u32| {
            let [flags, key_end, ..] = head.to_ne_bytes();
            flags != 0 && usize::from(key_end) == key.len()
        };
        let found = self.find(hash, may, |content| InlineService::from_slot(content).is_named(key));
        found.as_ref().map(InlineService::from_slot)
    }

    /// Replaces the data of a service, if there is a slot.
    pub(super) fn put(&self, hash: u64, key: &[u8], entry: Option<InlineService>) {
        let entry = entry.map(InlineService::to_slot);
        self.set(hash, |content| InlineService::from_slot(content).is_named(key), entry);
    }

    /// Removes services.
    pub(super) fn clear(&self, which: impl Fn(&InlineService) -> bool) {
        self.clear_where(|content| which(&InlineService::from_slot(content)));
    }
}

/// Appends parts and returns the new end; returns `None` and writes nothing if they do not fit.
fn put<'p>(
    bytes: &mut [u8; CAPACITY],
    end: &mut usize,
    parts: impl Iterator<Item = &'p [u8]> + Clone,
) -> Option<u8> {
    let all = *end + parts.clone().map(<[u8]>::len).sum::<usize>();
    let mut space = bytes.get_mut(*end..all)?;
    for part in parts {
        let (place, rest) = space.split_at_mut(part.len());
        place.copy_from_slice(part);
        space = rest;
    }
    *end = all;
    Some(all as u8)
}

/// Bytes for name and addresses: a slot has 64 in all.
const CAPACITY: usize = 56;
/// Value of an end if the addresses do not fit.
const NO_ROOM: u8 = u8::MAX;
/// Set in every occupied slot.
const OCCUPIED: u8 = 1;
const TO_ENDPOINTS: u8 = 2;
const HAS_ENDPOINTS: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use kubernetes_api::settings::WatchConfig;

    #[test]
    fn slot_is_a_cache_line() {
        assert_eq!(InlineServices::SLOT_BYTES, 64);
    }

    /// Names and addresses that fit a slot, and larger ones.
    #[test]
    fn answers_do_not_depend_on_inline_space() {
        let labels = [1, 15, 20, 25, 27, 28, 29, 40, 63].map(|length| "x".repeat(length));
        let names = || labels.iter().flat_map(|namespace| labels.iter().map(move |name| (namespace, name)));
        let all = |of: fn(usize) -> String| -> Vec<String> { (1..=14).map(of).collect() };
        let families = [all(|last| format!("10.0.0.{last}")), all(|last| format!("fd00::{last:x}"))];
        for (v4, v6) in [(1, 0), (0, 1), (1, 1), (2, 2), (3, 0), (13, 0), (14, 1)] {
            let own: Vec<&[String]> = families.iter().zip([v4, v6]).map(|(all, n)| &all[..n]).collect();
            let addresses = own.concat().join(" ");
            for target in ["None", &addresses] {
                let of = |(namespace, name): (&String, &String)| {
                    let at = format!("{namespace}/{name}");
                    [service(&at, target, ""), slice(&format!("{at}-1"), name, &addresses, "")]
                };
                let objects = names().flat_map(of).chain(labels.iter().map(|label| namespace(label)));
                let wants = WatchConfig { endpoints: true, ..WatchConfig::default() };
                let cluster = Cluster::of(&wants, rules("cluster.local"), objects);
                for ((namespace, name), (rtype, own)) in
                    names().flat_map(|names| ["A", "AAAA"].into_iter().zip(&own).map(move |own| (names, own)))
                {
                    let records: Vec<_> = own.iter().map(|address| format!("{rtype} {address}")).collect();
                    let expected = match own.is_empty() {
                        true => "NODATA cluster.local.".to_owned(),
                        false => records.join(", "),
                    };
                    let key = super::super::key(name, namespace).expect("labels");
                    let entry = cluster.index.services.entry(&key);
                    let room = 56 - key.len().min(56);
                    let [v4_bytes, v6_bytes] = [4 * v4, 16 * v6];
                    let has_room = match rtype {
                        "A" => v4_bytes <= room,
                        _ => v4_bytes + v6_bytes <= room,
                    };
                    let rtype_of = if rtype == "A" { RType::A } else { RType::AAAA };
                    let has = entry.is_some_and(|entry| entry.addresses(rtype_of).is_some());
                    assert_eq!(has, has_room && key.len() <= 56, "{namespace}/{name} {target} {rtype}");
                    let question = format!("{name}.{namespace}.svc.cluster.local {rtype}");
                    assert_eq!(cluster.ask(&question), expected, "{namespace}/{name} {target} {rtype}");
                }
            }
        }
    }
}
