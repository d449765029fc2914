//! Answers queries (RFC 1034, section 4.3.2; RFC 4592; RFC 6672).

use wire::{Flags, Malformed, Name, Query, RType, Rcode, Reply, ReplyWriter, Section};

use crate::Zone;
use crate::find::{Absent, Exists, Missing};
use crate::key::Key;
use crate::nsec3::{Hash, owner_label};
use crate::records::RrSet;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// Records of the type, or aliases.
    Records,
    /// The name has no records of the type.
    NoData,
    /// The name has no records, and one below it has some; NODATA as well.
    EmptyNonTerminal,
    /// The name does not exist.
    NameError,
    /// A delegation, perhaps behind aliases.
    Referral,
    /// Aliases, the last of which leads out of the zone.
    Outside,
}

/// An alias that leads to itself: the query has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loop;

/// Limits of one reply.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum size in bytes, header and question included, OPT not. Writing ends with the first record
    /// beyond it; [`Reply::finish`] removes that one and sets TC.
    pub octets: usize,
    /// Whether ANY is answered by all RRsets of a name, and not by one (RFC 8482, section 4.1).
    pub all_of_any: bool,
}

impl Zone {
    /// Answers a query for a name within the zone: writes rcode, AA and records to `reply`, which was
    /// started for it and is empty. Allocates nothing besides the reply.
    ///
    /// Aliases are followed within the zone, at most 10. Records are followed by the signatures of the
    /// file if the query has DO. Work is bounded by the size of the reply and 64 names in the additional
    /// section.
    ///
    /// # Errors
    /// [`Loop`]
    pub fn answer(&self, query: &Query<'_>, limits: Limits, reply: &mut Reply<'_>) -> Result<Answered, Loop> {
        let (mut flags, mut rcode) = (Flags::AA, Rcode::NOERROR);
        let answered = match reply.compressing(query) {
            Ok(out) => {
                let signed = query.dnssec_ok();
                let mut answer = Answer {
                    zone: self,
                    out,
                    limits,
                    signed,
                    is_full: false,
                    closest: Nodes::default(),
                    denied: Nodes::default(),
                };
                answer.write(query, &mut rcode, &mut flags)?
            }
            // A query that was accepted has a name.
            Err(_) => return Err(Loop),
        };
        (reply.rcode, reply.flags) = (rcode, flags);
        Ok(answered)
    }
}

/// An answer being written.
pub(crate) struct Answer<'z, 'r> {
    pub(crate) zone: &'z Zone,
    out: ReplyWriter<'r>,
    limits: Limits,
    /// The query has DO.
    pub(crate) signed: bool,
    /// A record exceeds the limit: nothing is written behind it.
    is_full: bool,
    /// For each answer from a wildcard the node before the name: no name between it and the next is
    /// closer than the wildcard (RFC 4035, section 3.1.3.3). In a zone with NSEC3 an index in the chain.
    pub(crate) closest: Nodes,
    /// Nodes of the NSEC records in the reply, or indices of NSEC3 records in the chain.
    pub(crate) denied: Nodes,
}

/// A few nodes of a zone, without allocation.
#[derive(Default, Clone, Copy)]
pub(crate) struct Nodes {
    len: usize,
    all: [usize; MOST_ALIASES + 3],
}

impl Nodes {
    /// Adds a node; returns whether it is new.
    pub(crate) fn insert(&mut self, node: usize) -> bool {
        if self.all[..self.len].contains(&node) {
            return false;
        }
        if let Some(free) = self.all.get_mut(self.len) {
            *free = node;
            self.len += 1;
        }
        true
    }
}

impl Answer<'_, '_> {
    fn write(&mut self, query: &Query<'_>, rcode: &mut Rcode, flags: &mut u16) -> Result<Answered, Loop> {
        let (zone, rtype) = (self.zone, query.rtype);
        let mut name = query.name;
        for _ in 0..=MOST_ALIASES {
            let Some(key) = Key::new(name.as_wire(), zone.origin.as_wire()) else {
                self.name_servers();
                return Ok(Answered::Outside);
            };
            let found = zone.find(key.as_bytes());
            if let Some(cut) = found.cut {
                let is_itself = found.place == Exists::Node(cut);
                if cut != 0 && zone.set(cut, RType::NS).is_some() {
                    // The parent has the DS records (RFC 4035, section 3.1.4.1).
                    if !(is_itself && rtype == RType::DS) {
                        if self.out.counts()[0] == 0 {
                            *flags &= !Flags::AA;
                        }
                        self.referral(cut, flags);
                        return Ok(Answered::Referral);
                    }
                } else if !is_itself && let Some(dname) = zone.set(cut, RType::DNAME) {
                    let Some(target) = self.substitute(&name, cut, dname) else {
                        *rcode = YXDOMAIN;
                        return Ok(Answered::Records);
                    };
                    if matches!(rtype, RType::CNAME | RType::ANY) {
                        self.name_servers();
                        return Ok(Answered::Records);
                    }
                    match target == name {
                        true => return Err(Loop),
                        false => name = target,
                    }
                    continue;
                }
            }
            let (node, missing) = match found.place {
                Exists::Node(node) => (node, None),
                Exists::Empty => {
                    self.denial(Absent::Type { name: key.as_bytes(), node: found.before });
                    return Ok(Answered::EmptyNonTerminal);
                }
                Exists::No { encloser } => {
                    let missing = Missing { name: key.as_bytes(), encloser, before: found.before };
                    let wildcard = Key::child(&key.as_bytes()[..encloser], b"*");
                    let wildcard = zone.find(wildcard.as_bytes());
                    match wildcard.place {
                        Exists::Node(node) => (node, Some(missing)),
                        Exists::Empty => {
                            self.used_wildcard(missing);
                            self.denial(Absent::WildcardType { name: missing, node: wildcard.before });
                            return Ok(Answered::NoData);
                        }
                        Exists::No { .. } => {
                            *rcode = Rcode::NXDOMAIN;
                            self.denial(Absent::Name { name: missing, wildcard_before: wildcard.before });
                            return Ok(Answered::NameError);
                        }
                    }
                }
            };
            if let Some(missing) = missing {
                self.used_wildcard(missing);
            }
            if let Some(alias) = zone.set(node, RType::CNAME).filter(|_| follows(rtype, node)) {
                self.set(Section::Answer, name.as_wire(), node, alias);
                let target = Name::from_wire(alias.first()).unwrap_or(Name::ROOT);
                match target == name {
                    true => return Err(Loop),
                    false => name = target,
                }
                continue;
            }
            let absent = match missing {
                Some(name) => Absent::WildcardType { name, node },
                None => Absent::Type { name: key.as_bytes(), node },
            };
            return Ok(self.records(&name, rtype, node, absent));
        }
        self.name_servers();
        Ok(Answered::Records)
    }

    /// Writes the records of a type at a name, or NODATA with the proof of `absent`.
    fn records(&mut self, name: &Name, rtype: RType, node: usize, absent: Absent<'_>) -> Answered {
        let zone = self.zone;
        let owner = name.as_wire();
        let before = self.out.counts()[0];
        match rtype {
            RType::ANY | RType::RRSIG => {
                let fits = |set: &RrSet<'_>| match rtype {
                    RType::RRSIG => set.rtype == RType::RRSIG,
                    _ => set.rtype != RType::RRSIG,
                };
                let most = if rtype == RType::RRSIG || self.limits.all_of_any { usize::MAX } else { 1 };
                for set in zone.sets(node).filter(fits).take(most) {
                    self.set(Section::Answer, owner, node, set);
                }
            }
            _ => {
                if let Some(set) = zone.set(node, rtype) {
                    self.set(Section::Answer, owner, node, set);
                }
            }
        }
        if self.out.counts()[0] == before && !self.is_full {
            self.denial(absent);
            return Answered::NoData;
        }
        let set = zone.set(node, rtype);
        match rtype == RType::NS && node == 0 {
            true => self.no_closer_names(),
            false => self.name_servers(),
        }
        self.addresses(set);
        Answered::Records
    }

    /// Writes a DNAME and the CNAME that it makes (RFC 6672, section 3.1); `None` if the target is too
    /// long.
    fn substitute(&mut self, name: &Name, node: usize, dname: RrSet<'_>) -> Option<Name> {
        let mut owner = Owner::new();
        owner.set_to(self.zone, node);
        let owner = owner.as_wire();
        self.set(Section::Answer, owner, node, dname);
        let (prefix, suffix) = (&name.as_wire()[..name.as_wire().len() - owner.len()], dname.first());
        let mut target = [0; wire::MAX_NAME];
        let length = prefix.len() + suffix.len();
        target.get_mut(..prefix.len())?.copy_from_slice(prefix);
        target.get_mut(prefix.len()..length)?.copy_from_slice(suffix);
        let target = Name::from_wire(&target[..length]).ok()?;
        self.push(Section::Answer, name.as_wire(), RType::CNAME, dname.ttl, target.as_wire());
        Some(target)
    }

    /// The name servers of a delegation, what proves that it is signed or not, and addresses of the
    /// servers below it.
    fn referral(&mut self, cut: usize, flags: &mut u16) {
        let zone = self.zone;
        let mut owner = Owner::new();
        owner.set_to(zone, cut);
        let Some(servers) = zone.set(cut, RType::NS) else { return };
        self.plain_set(Section::Authority, owner.as_wire(), servers);
        if self.signed {
            match zone.set(cut, RType::DS) {
                Some(keys) => self.set(Section::Authority, owner.as_wire(), cut, keys),
                None => self.proof(Absent::Type { name: zone.key(cut), node: cut }),
            }
        }
        self.no_closer_names();
        let below = zone.key(cut);
        for server in servers.records().take(MOST_TARGETS) {
            let Some(node) = zone.node(server).filter(|&node| zone.key(node).starts_with(below)) else {
                continue;
            };
            self.both_addresses(server, node);
            // Glue that does not fit must not be left out silently (RFC 9471, section 3.1).
            if self.is_full || self.out.octets() > self.limits.octets {
                *flags |= Flags::TC;
            }
        }
    }

    /// The zone's name servers, unless they do not fit: the answer is complete without them.
    fn name_servers(&mut self) {
        let zone = self.zone;
        if let Some(servers) = zone.set(0, RType::NS) {
            let (mark, was_full) = (self.out.mark(), self.is_full);
            self.set(Section::Authority, zone.origin.as_wire(), 0, servers);
            if self.is_full && !was_full {
                self.out.rewind(mark);
                self.is_full = false;
            }
        }
        self.no_closer_names();
    }

    /// Proves that no names are closer than the wildcards of the answer; the last records of the
    /// authority section.
    pub(crate) fn no_closer_names(&mut self) {
        if self.signed {
            let Nodes { len, all } = self.closest;
            all[..len].iter().for_each(|&node| self.denier(node));
        }
    }

    /// The addresses of the names that the records of a set lead to.
    fn addresses(&mut self, set: Option<RrSet<'_>>) {
        let Some(set) = set else { return };
        let at = match set.rtype {
            RType::NS => 0,
            RType::MX | RType::SVCB | RType::HTTPS => 2,
            RType::SRV => 6,
            _ => return,
        };
        let target = |data: &[u8]| -> Option<usize> {
            let mut end = at;
            while *data.get(end)? != 0 {
                end += 1 + usize::from(data[end]);
            }
            Some(end + 1)
        };
        let names = || set.records().filter_map(|data| data.get(at..target(data)?)).take(MOST_TARGETS);
        for (index, name) in names().enumerate() {
            if names().take(index).any(|before| before.eq_ignore_ascii_case(name)) {
                continue;
            }
            if let Some(node) = self.zone.node(name) {
                self.both_addresses(name, node);
            }
        }
    }

    fn both_addresses(&mut self, owner: &[u8], node: usize) {
        for rtype in [RType::A, RType::AAAA] {
            if let Some(set) = self.zone.set(node, rtype) {
                self.set(Section::Additional, owner, node, set);
            }
        }
    }

    /// Writes a set of a node, and its signatures if the query has DO.
    pub(crate) fn set(&mut self, section: Section, owner: &[u8], node: usize, set: RrSet<'_>) {
        self.plain_set(section, owner, set);
        if self.signed
            && set.rtype != RType::RRSIG
            && let Some(signatures) = self.zone.signatures(node, set.rtype)
        {
            self.plain_set(section, owner, signatures);
        }
    }

    pub(crate) fn plain_set(&mut self, section: Section, owner: &[u8], set: RrSet<'_>) {
        for data in set.records() {
            self.push(section, owner, set.rtype, set.ttl, data);
        }
    }

    pub(crate) fn push(&mut self, section: Section, owner: &[u8], rtype: RType, ttl: u32, data: &[u8]) {
        if self.is_full {
            return;
        }
        match self.out.push(section, owner, rtype, ttl, data) {
            Ok(()) => self.is_full = self.out.octets() > self.limits.octets,
            Err(Malformed::Long) => self.is_full = true,
            // Records are checked when the zone is read.
            Err(_) => {}
        }
    }
}

/// Whether a query of this type follows a CNAME at this node.
fn follows(rtype: RType, node: usize) -> bool {
    let is_apex_type = node == 0 && matches!(rtype, RType::SOA | RType::NS);
    // RFC 4035, section 2.5: NSEC and RRSIG stand beside a CNAME.
    !is_apex_type && !matches!(rtype, RType::CNAME | RType::ANY | RType::NSEC | RType::RRSIG)
}

/// The name of a node, on the stack.
pub(crate) struct Owner {
    len: usize,
    octets: [u8; wire::MAX_NAME],
}

impl Owner {
    pub(crate) fn new() -> Self {
        Self { len: 0, octets: [0; wire::MAX_NAME] }
    }

    /// Becomes the name of this node.
    pub(crate) fn set_to(&mut self, zone: &Zone, node: usize) {
        self.set_to_key(zone, zone.key(node));
    }

    /// Becomes the owner of an NSEC3 record.
    pub(crate) fn set_to_hash(&mut self, zone: &Zone, hash: &Hash) {
        self.len = 0;
        owner_label(hash).iter().chain(zone.origin.as_wire()).for_each(|&byte| self.push(byte));
    }

    /// Becomes the name of this key.
    pub(crate) fn set_to_key(&mut self, zone: &Zone, key: &[u8]) {
        self.len = 0;
        for label in key.rsplit(|&byte| byte == 0).filter(|label| !label.is_empty()) {
            let start = self.len;
            self.push(0);
            let mut bytes = label.iter();
            while let Some(&byte) = bytes.next() {
                self.push(if byte == 1 { bytes.next().map_or(0, |byte| byte - 1) } else { byte });
            }
            if let Some(length) = self.octets.get_mut(start) {
                *length = (self.len - start - 1) as u8;
            }
        }
        zone.origin.as_wire().iter().for_each(|&byte| self.push(byte));
    }

    pub(crate) fn as_wire(&self) -> &[u8] {
        &self.octets[..self.len]
    }

    /// The name in lower case.
    pub(crate) fn lower_case(&mut self) -> &[u8] {
        let octets = &mut self.octets[..self.len];
        octets.make_ascii_lowercase();
        octets
    }

    fn push(&mut self, byte: u8) {
        if let Some(octet) = self.octets.get_mut(self.len) {
            *octet = byte;
            self.len += 1;
        }
    }
}

/// The target of a DNAME is too long (RFC 6672, section 2.2).
const YXDOMAIN: Rcode = Rcode(6);
/// Aliases that one answer follows, as in CoreDNS.
const MOST_ALIASES: usize = 9;
/// Maximum number of names whose addresses are added to the additional section.
const MOST_TARGETS: usize = 64;
