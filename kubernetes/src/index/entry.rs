//! A service as its bucket has it.

use std::sync::Arc;

use wire::RType;

use super::service::{Leads, Namespace, Service};

/// A service with what most queries read of it: A and AAAA of its own name, where few addresses stand there.
///
/// It lies in the bucket that its hash leads to, so that such a query reads the bucket's place and the bucket: each other place
/// costs as much as all that is done with it, where the cluster is larger than the processor's cache.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct ServiceEntry {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) service: Arc<Service>,
    leads: Leads,
    has_endpoints: bool,
    /// Where the name ends; 0 where it has no room here.
    key_end: u8,
    /// Where the IPv4 addresses end, and those of IPv6; [`NO_ROOM`] where they have none here.
    v4_end: u8,
    v6_end: u8,
    /// Its name, and the addresses that it leads to.
    octets: [u8; ROOM],
}

impl ServiceEntry {
    pub(super) fn new(service: Arc<Service>) -> Self {
        let mut entry = Self {
            namespace: service.namespace.clone(),
            leads: service.leads(),
            has_endpoints: service.has_endpoints(),
            key_end: 0,
            v4_end: NO_ROOM,
            v6_end: NO_ROOM,
            octets: [0; ROOM],
            service,
        };
        let mut end = 0;
        if let Some(key_end) = put(&mut entry.octets, &mut end, [entry.service.key()].into_iter()) {
            entry.key_end = key_end;
            let [v4, v6] = [RType::A, RType::AAAA].map(|rtype| entry.service.data(rtype));
            if let Some(v4_end) = put(&mut entry.octets, &mut end, v4) {
                entry.v4_end = v4_end;
                entry.v6_end = put(&mut entry.octets, &mut end, v6).unwrap_or(NO_ROOM);
            }
        }
        entry
    }

    /// Name and namespace as labels in wire form, as queries find it: lower-case, without the root's.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        match usize::from(self.key_end) {
            0 => self.service.key(),
            end => &self.octets[..end],
        }
    }

    /// What its name leads to.
    #[inline]
    pub(crate) fn leads(&self) -> Leads {
        self.leads
    }

    #[inline]
    pub(crate) fn has_endpoints(&self) -> bool {
        self.has_endpoints
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
}

/// Writes parts behind what is written; where that ends now, or `None` where they have no room.
fn put<'p>(octets: &mut [u8; ROOM], end: &mut usize, parts: impl Iterator<Item = &'p [u8]>) -> Option<u8> {
    for part in parts {
        octets.get_mut(*end..*end + part.len())?.copy_from_slice(part);
        *end += part.len();
    }
    Some(*end as u8)
}

/// Octets of a name and of addresses: a bucket takes 128 octets then, with what an `Arc` and the allocator keep of it.
const ROOM: usize = 55;
/// More than there are.
const NO_ROOM: u8 = u8::MAX;

#[cfg(test)]
mod tests {
    use super::super::buckets::Buckets;
    use super::*;
    use crate::testing::*;
    use kubernetes_api::settings::Wants;

    #[test]
    fn a_bucket_of_one_service_is_two_lines_of_the_processors_cache() {
        // Behind an `Arc`'s two counters; an allocator keeps up to 8 octets with each piece.
        assert_eq!(2 * size_of::<usize>() + Buckets::<ServiceEntry>::OCTETS, 128 - 8);
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
                    let question = format!("{name}.{namespace}.svc.cluster.local {rtype}");
                    assert_eq!(cluster.ask(&question), expected, "{namespace}/{name} {target} {rtype}");
                }
            }
        }
    }
}
