//! Sorts records into a zone.

use std::collections::HashSet;
use std::ops::ControlFlow;

use wire::{Name, RType};

use crate::key::{self, Key};
use crate::limits::MOST_BYTES;
use crate::nsec3::{Hash, HashedOwner, Nsec3s, Parameters};
use crate::records::{self, HEADER, RrSet};
use crate::{NO_CUT, Node, Warning, Zone};

/// A zone that was read.
#[derive(Debug)]
pub struct Loaded {
    /// The zone.
    pub zone: Zone,
    /// What is not as the RFCs require; the first 16.
    pub warnings: Vec<Warning>,
    /// All warnings, also those that are left out.
    pub warning_count: usize,
}

/// The records that were read.
pub(crate) struct Builder {
    origin: Name,
    files: Vec<String>,
    records: Vec<Raw>,
    /// NSEC3 records and their RRSIG records; their keys are hashes.
    nsec3s: Vec<Raw>,
    /// Keys and data of the records.
    octets: Vec<u8>,
    warnings: Vec<Warning>,
    warning_count: usize,
}

/// What the owner of a record is.
#[derive(Clone, Copy)]
pub(crate) enum RawOwner<'k> {
    /// A name of the zone.
    Name(&'k Key),
    /// The hash of an NSEC3 record.
    Hash(&'k Hash),
}

/// A record as read; at most 40 bytes.
struct Raw {
    /// The beginning of its key: most comparisons look no further.
    prefix: u64,
    key_at: u32,
    key_len: u16,
    rtype: RType,
    /// Of an RRSIG record the type that it covers.
    covered: RType,
    data_len: u16,
    data_at: u32,
    ttl: u32,
    line: u32,
    file: u16,
}

impl Builder {
    pub(crate) fn new(origin: Name) -> Self {
        Self {
            origin,
            files: Vec::new(),
            records: Vec::new(),
            nsec3s: Vec::new(),
            octets: Vec::new(),
            warnings: Vec::new(),
            warning_count: 0,
        }
    }

    /// The number of a file, for the place of its records.
    pub(crate) fn file(&mut self, name: &str) -> u16 {
        let known = self.files.iter().position(|file| file == name);
        let number = known.unwrap_or_else(|| {
            self.files.push(name.to_owned());
            self.files.len() - 1
        });
        // Only messages name it.
        number.min(usize::from(u16::MAX)) as u16
    }

    /// Adds a record; `Break` if it would exceed [`MOST_BYTES`].
    pub(crate) fn push(
        &mut self,
        owner: RawOwner<'_>,
        rtype: RType,
        ttl: u32,
        data: &[u8],
        (file, line): (u16, u32),
    ) -> ControlFlow<()> {
        let (key, others) = match owner {
            RawOwner::Name(key) => (key.as_bytes(), &self.records),
            RawOwner::Hash(hash) => (&hash[..], &self.nsec3s),
        };
        let (key_at, key_len) = match others.last() {
            Some(last) if self.key(last) == key => (last.key_at, last.key_len),
            _ => {
                self.octets.extend_from_slice(key);
                ((self.octets.len() - key.len()) as u32, key.len() as u16)
            }
        };
        let data_at = self.octets.len() as u32;
        self.octets.extend_from_slice(data);
        if self.octets.len() + (self.records.len() + self.nsec3s.len() + 1) * size_of::<Raw>() > MOST_BYTES {
            return ControlFlow::Break(());
        }
        let mut prefix = [0; 8];
        let shown = key.len().min(8);
        prefix[..shown].copy_from_slice(&key[..shown]);
        let covered = match (rtype, data) {
            (RType::RRSIG, [high, low, ..]) => RType(u16::from_be_bytes([*high, *low])),
            _ => RType(0),
        };
        let data_len = data.len() as u16;
        let prefix = u64::from_be_bytes(prefix);
        let records = match owner {
            RawOwner::Name(_) => &mut self.records,
            RawOwner::Hash(_) => &mut self.nsec3s,
        };
        records.push(Raw { prefix, key_at, key_len, rtype, covered, data_len, data_at, ttl, line, file });
        ControlFlow::Continue(())
    }

    pub(crate) fn warn(&mut self, owner: &[u8], why: &'static str, (file, line): (u16, u32)) {
        self.warning_count += 1;
        if self.warnings.len() < MOST_WARNINGS {
            let owner = Name::from_wire(owner).unwrap_or(Name::ROOT);
            let file = self.files.get(usize::from(file)).cloned().unwrap_or_default();
            self.warnings.push(Warning { file, line: line as usize, owner, why });
        }
    }

    fn key(&self, raw: &Raw) -> &[u8] {
        &self.octets[raw.key_at as usize..][..usize::from(raw.key_len)]
    }

    fn data(&self, raw: &Raw) -> &[u8] {
        &self.octets[raw.data_at as usize..][..usize::from(raw.data_len)]
    }

    /// The zone; it has a SOA record.
    pub(crate) fn finish(mut self) -> Loaded {
        let mut records = std::mem::take(&mut self.records);
        self.sort(&mut records);
        let (mut keys, mut data, mut nodes, mut count) = (Vec::new(), Vec::new(), Vec::<Node>::new(), 0);
        let (mut warnings, mut warning_count) = (Vec::new(), 0);
        // The nodes from the apex to the last one, with the ends of their keys.
        let mut above: Vec<(u32, usize)> = Vec::new();
        for own in records.chunk_by(|one, next| self.key(one) == self.key(next)) {
            let key = self.key(&own[0]);
            let is_above = |&(index, end): &(u32, usize)| {
                key.starts_with(&keys[nodes[index as usize].key_at as usize..end])
            };
            while above.last().is_some_and(|node| !is_above(node)) {
                above.pop();
            }
            let index = nodes.len() as u32;
            let parent = above.last().map_or(index, |&(parent, _)| parent);
            let has = |rtype: RType| own.iter().any(|raw| raw.rtype == rtype);
            let is_cut = has(RType::DNAME) || has(RType::NS) && !key.is_empty();
            let inherited = if parent == index { NO_CUT } else { nodes[parent as usize].cut };
            let cut = if inherited == NO_CUT && is_cut { index } else { inherited };
            nodes.push(Node { key_at: keys.len() as u32, data_at: data.len() as u32, parent, cut });
            keys.extend_from_slice(key);
            above.push((index, keys.len()));
            if let Some((raw, why)) = self.problem(own, key, inherited != NO_CUT) {
                warning_count += 1;
                if warnings.len() < MOST_WARNINGS {
                    let mut owner = Vec::new();
                    key::write_name(key, self.origin.as_wire(), &mut owner);
                    warnings.push((owner, why, (raw.file, raw.line)));
                }
            }
            count += self.write(own, &mut data);
        }
        let apex = records.iter().take_while(|raw| raw.key_len == 0);
        let nsec3s = self.nsec3s(apex.filter(|raw| raw.rtype == RType::NSEC3PARAM));
        count += nsec3s.1;
        warning_count += self.warning_count;
        warnings.iter().for_each(|(owner, why, place)| self.warn(owner, why, *place));
        let mut zone = Zone {
            origin: self.origin,
            keys: keys.into(),
            data: data.into(),
            nodes: nodes.into(),
            serial: 0,
            count,
            has_nsec: false,
            nsec3s: nsec3s.0,
        };
        let numbers = zone.soa().1.iter().rev().skip(16).take(4).rev();
        zone.serial = numbers.fold(0, |serial, &byte| serial << 8 | u32::from(byte));
        zone.has_nsec = zone.set(0, RType::NSEC).is_some();
        Loaded { zone, warnings: self.warnings, warning_count }
    }

    /// Sorts records by owner and type, in the order of the file within an RRset.
    fn sort(&self, records: &mut [Raw]) {
        records.sort_unstable_by(|one, other| {
            let by_name = one.prefix.cmp(&other.prefix).then_with(|| self.key(one).cmp(self.key(other)));
            let by_type = |raw: &Raw| (raw.rtype, raw.covered, raw.data_at);
            by_name.then_with(|| by_type(one).cmp(&by_type(other)))
        });
    }

    /// Returns the NSEC3 records, and the number of records. The chain that denies names is that of
    /// the zone's first NSEC3PARAM record without flags (RFC 5155, section 4.1.2).
    fn nsec3s<'r>(&mut self, parameters: impl Iterator<Item = &'r Raw>) -> (Nsec3s, usize) {
        let mut records = std::mem::take(&mut self.nsec3s);
        self.sort(&mut records);
        let read = |raw: &Raw| Parameters::read(self.data(raw)).ok();
        let mut active = parameters.filter(|raw| self.data(raw).get(1) == Some(&0));
        let active = active.find_map(read);
        let is_active = |own: &[Raw]| {
            active.is_some() && own.iter().any(|raw| raw.rtype == RType::NSEC3 && read(raw) == active)
        };
        let (mut owners, mut chain, mut data, mut count) = (Vec::new(), 0, Vec::new(), 0);
        for of_chain in [true, false] {
            let all = records.chunk_by(|one, next| self.key(one) == self.key(next));
            for own in all.filter(|own| is_active(own) == of_chain) {
                let mut hash = Hash::default();
                hash.copy_from_slice(self.key(&own[0]));
                owners.push(HashedOwner { hash, data_at: data.len() as u32 });
                count += self.write(own, &mut data);
            }
            if of_chain {
                chain = owners.len();
            }
        }
        let unused = records.first().filter(|_| chain == 0);
        if let Some(Raw { file, line, .. }) = unused {
            let (origin, place) = (self.origin, (*file, *line));
            self.warn(origin.as_wire(), UNUSED_NSEC3, place);
        }
        let parameters = active.unwrap_or_default();
        (Nsec3s { owners: owners.into(), chain, data: data.into(), parameters }, count)
    }

    /// A record of a name that is not served, or the lack of one, and why.
    fn problem<'r>(&self, own: &'r [Raw], key: &[u8], is_below_cut: bool) -> Option<(&'r Raw, &'static str)> {
        let has = |rtype: RType| own.iter().any(|raw| raw.rtype == rtype);
        let beside = |raw: &&Raw| {
            !matches!(raw.rtype, RType::CNAME | RType::RRSIG | RType::NSEC | RType::KEY | RType::NXT)
        };
        let several = |rtype: RType| {
            let mut all = own.iter().filter(|raw| raw.rtype == rtype);
            let first = all.next().map(|raw| self.data(raw));
            all.find(|raw| Some(self.data(raw)) != first)
        };
        if key.is_empty() && !has(RType::NS) {
            Some((&own[0], "the zone has no NS records"))
        } else if has(RType::CNAME) && own.iter().any(|raw| beside(&raw)) {
            own.iter().find(beside).map(|raw| (raw, BESIDE_CNAME))
        } else if let Some(second) = several(RType::CNAME).or_else(|| several(RType::DNAME)) {
            Some((second, "the record is not served: the name has another CNAME or DNAME before it"))
        } else if is_below_cut && own.iter().any(|raw| !matches!(raw.rtype, RType::A | RType::AAAA)) {
            let hidden = own.iter().find(|raw| !matches!(raw.rtype, RType::A | RType::AAAA));
            hidden.map(|raw| (raw, "the record is not served: its owner is below a delegation or a DNAME"))
        } else {
            None
        }
    }

    /// Appends the RRsets of one name, without duplicates (RFC 2181, section 5), and returns the number of
    /// records. The records of a set have the lowest of their TTLs (section 5.2).
    fn write(&self, own: &[Raw], data: &mut Vec<u8>) -> usize {
        let mut count = 0;
        for set in own.chunk_by(|one, next| (one.rtype, one.covered) == (next.rtype, next.covered)) {
            let start = data.len();
            let ttl = set.iter().map(|raw| raw.ttl).min().unwrap_or_default();
            RrSet::begin(set[0].rtype, set[0].covered, ttl, data);
            let is_single = matches!(set[0].rtype, RType::CNAME | RType::DNAME);
            let mut known = HashSet::new();
            for raw in &set[..if is_single { 1 } else { set.len() }] {
                let own = self.data(raw);
                if set.len() == 1 || known.insert(own) {
                    RrSet::push(own, data);
                    count += 1;
                }
            }
            records::end(start, ttl, data);
        }
        count
    }
}

const UNUSED_NSEC3: &str =
    "NSEC3 records deny no names: the zone has no NSEC3PARAM record with their parameters and without flags";
const BESIDE_CNAME: &str =
    "the record is not served: the name has a CNAME, which stands alone (RFC 1034, section 3.6.2)";
/// Warnings that are kept.
const MOST_WARNINGS: usize = 16;
const _: () = assert!(size_of::<Raw>() <= 40 && HEADER == 12 && size_of::<Node>() == 16);
