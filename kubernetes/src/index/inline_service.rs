//! A service in short, as a cell has it.

use wire::RType;

use super::seqlock_table::{Cells, Content};
use super::service::{Leads, Service};

/// What most queries read of a service: A and AAAA of its own name, where few addresses stand there. Its namespace is there, and its
/// name leads to addresses.
///
/// A query for it reads its cell, and those before it that are other names' near its hash: each other place costs as much as all that is done
/// with it, where the cluster is larger than the processor's cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ServiceEntry {
    flags: u8,
    /// Where the name ends.
    key_end: u8,
    /// Where the IPv4 addresses end, and those of IPv6; [`NO_ROOM`] where they have none here.
    v4_end: u8,
    v6_end: u8,
    /// Its name, and the addresses that it leads to.
    octets: [u8; ROOM],
}

/// Services in short, by name.
pub(crate) type Entries = Cells<{ ROOM / 8 }>;

impl ServiceEntry {
    /// Of a service that is found, and has room here.
    pub(super) fn of(service: &Service) -> Option<Self> {
        let flags = match service.leads() {
            Leads::ToItself => IS_THERE,
            Leads::ToEndpoints => IS_THERE | TO_ENDPOINTS,
            Leads::Elsewhere => return None,
        };
        let flags = if service.has_endpoints() { flags | HAS_ENDPOINTS } else { flags };
        let (mut octets, mut end) = ([0; ROOM], 0);
        let key_end = put(&mut octets, &mut end, [service.key()].into_iter())?;
        let [v4, v6] = [RType::A, RType::AAAA].map(|rtype| service.data(rtype));
        let v4_end = put(&mut octets, &mut end, v4)?;
        let v6_end = put(&mut octets, &mut end, v6).unwrap_or(NO_ROOM);
        service.namespace.is_known().then_some(Self { flags, key_end, v4_end, v6_end, octets })
    }

    /// What its name leads to.
    #[inline]
    pub(crate) fn leads(&self) -> Leads {
        if self.flags & TO_ENDPOINTS == 0 { Leads::ToItself } else { Leads::ToEndpoints }
    }

    #[inline]
    pub(crate) fn has_endpoints(&self) -> bool {
        self.flags & HAS_ENDPOINTS != 0
    }

    /// The addresses of one family at its own name, one behind the other; `None` where there is no room for them here.
    #[inline]
    pub(crate) fn addresses(&self, rtype: RType) -> Option<&[u8]> {
        let [key_end, v4_end, v6_end] = [self.key_end, self.v4_end, self.v6_end].map(usize::from);
        // What has no room here would end beyond all of them.
        match rtype {
            RType::A => self.octets.get(key_end..v4_end),
            _ => self.octets.get(v4_end..v6_end),
        }
    }

    /// The namespace that it lies in: the second label of its name.
    pub(super) fn namespace(&self) -> &[u8] {
        let label = 1 + usize::from(self.octets[0]);
        self.octets.get(label + 1..usize::from(self.key_end)).unwrap_or_default()
    }

    #[inline]
    fn is_named(&self, key: &[u8]) -> bool {
        self.octets.get(..usize::from(self.key_end)) == Some(key)
    }

    #[inline]
    fn from_cell(Content { head, words }: &Content<{ ROOM / 8 }>) -> Self {
        let [flags, key_end, v4_end, v6_end] = head.to_ne_bytes();
        let mut octets = [0; ROOM];
        let (chunks, _) = octets.as_chunks_mut();
        chunks.iter_mut().zip(words).for_each(|(chunk, word)| *chunk = word.to_ne_bytes());
        Self { flags, key_end, v4_end, v6_end, octets }
    }

    fn to_cell(self) -> Content<{ ROOM / 8 }> {
        let Self { flags, key_end, v4_end, v6_end, octets } = self;
        let (chunks, _) = octets.as_chunks();
        let mut words = [0; ROOM / 8];
        words.iter_mut().zip(chunks).for_each(|(word, chunk)| *word = u64::from_ne_bytes(*chunk));
        Content { head: u32::from_ne_bytes([flags, key_end, v4_end, v6_end]), words }
    }
}

impl Entries {
    /// The service of this name, whose hash this is.
    #[inline]
    pub(crate) fn get(&self, hash: u64, key: &[u8]) -> Option<ServiceEntry> {
        // What is empty has no flag, and what is of another length is not looked at further.
        let may = |head: u32| {
            let [flags, key_end, ..] = head.to_ne_bytes();
            flags != 0 && usize::from(key_end) == key.len()
        };
        let found = self.find(hash, may, |content| ServiceEntry::from_cell(content).is_named(key));
        found.as_ref().map(ServiceEntry::from_cell)
    }

    /// Has this of the service of this name now, where there is room.
    pub(super) fn put(&self, hash: u64, key: &[u8], entry: Option<ServiceEntry>) {
        let entry = entry.map(ServiceEntry::to_cell);
        self.set(hash, |content| ServiceEntry::from_cell(content).is_named(key), entry);
    }

    /// Has none of these any more.
    pub(super) fn clear(&self, which: impl Fn(&ServiceEntry) -> bool) {
        self.clear_where(|content| which(&ServiceEntry::from_cell(content)));
    }
}

/// Writes parts behind what is written; where that ends now, or `None` where not all have room: nothing is written then.
fn put<'p>(
    octets: &mut [u8; ROOM],
    end: &mut usize,
    parts: impl Iterator<Item = &'p [u8]> + Clone,
) -> Option<u8> {
    let all = *end + parts.clone().map(<[u8]>::len).sum::<usize>();
    let mut room = octets.get_mut(*end..all)?;
    for part in parts {
        let (place, rest) = room.split_at_mut(part.len());
        place.copy_from_slice(part);
        room = rest;
    }
    *end = all;
    Some(all as u8)
}

/// Octets of a name and of addresses: a cell takes 64 with all else that it has.
const ROOM: usize = 56;
/// More than there are.
const NO_ROOM: u8 = u8::MAX;
/// What every entry has.
const IS_THERE: u8 = 1;
const TO_ENDPOINTS: u8 = 2;
const HAS_ENDPOINTS: u8 = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use kubernetes_api::settings::Wants;

    #[test]
    fn an_entry_is_a_line_of_the_processors_cache() {
        assert_eq!(Entries::OCTETS, 64);
    }

    /// Names and addresses that an entry has room for, and those that it has not: nobody sees which.
    #[test]
    fn every_service_is_answered_whatever_its_entry_has_room_for() {
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
                let wants = Wants { endpoints: true, ..Wants::default() };
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
                    let [v4_octets, v6_octets] = [4 * v4, 16 * v6];
                    let has_room = match rtype {
                        "A" => v4_octets <= room,
                        _ => v4_octets + v6_octets <= room,
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
