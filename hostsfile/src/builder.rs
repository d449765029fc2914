//! Builds a [`Table`]: collects pairs of name and address, then lays out entries of known length.

use std::hash::BuildHasher;
use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use memchr::memchr_iter;
use wire::{Class, HEADER, MAX_NAME, Name, RType, hash_of};

use crate::diagnostics::{LineError, MAX_PAIRS, Report};
use crate::table::{A_RECORD, AAAA_RECORD, ENTRY_HEADER, RECORD_HEADER, Table};
use crate::{HostsText, Options, parse};

impl Table {
    /// Builds a table from `sources`: the file, then the lines of the Corefile.
    ///
    /// Records keep the order of the text; the same name with the same address is one record. Bad
    /// lines are skipped and reported, as are all names beyond 4,000,000 pairs of name and address.
    ///
    /// Calls `rest` for every line and every entry: a large text takes long, and other threads need
    /// the processor.
    pub fn build(sources: &[HostsText<'_>], options: &Options, rest: &mut dyn FnMut()) -> (Self, Report) {
        let expected = sources.iter().map(|source| expected_pairs(source.text)).sum();
        let mut builder = Builder::new(options, MAX_PAIRS, expected);
        let mut report = Report::default();
        for source in sources {
            let mut start = 0;
            for (index, end) in memchr_iter(b'\n', source.text).chain([source.text.len()]).enumerate() {
                builder
                    .read_line(&source.text[start..end], |error| report.push(source.name, index + 1, error));
                start = end + 1;
                rest();
            }
        }
        (builder.finish(rest), report)
    }
}

/// Estimates the number of pairs from the lines in the first 64 KiB, at most as many as fit into
/// the text. Counting all lines takes long, and a wrong estimate costs only memory.
fn expected_pairs(text: &[u8]) -> usize {
    let sample = &text[..text.len().min(SAMPLE_BYTES)];
    let lines = sample.iter().filter(|&&byte| byte == b'\n').count();
    lines.saturating_mul(text.len().div_ceil(sample.len().max(1))).min(text.len() / MIN_LINE_BYTES)
}

/// Distinct pairs of name and address in the order of the text; names and addresses are numbered.
pub(crate) struct Builder<'o> {
    options: &'o Options,
    max_pairs: usize,
    /// The hasher of pairs.
    hasher: RandomState,
    /// The concatenated wire forms of all names.
    octets: Vec<u8>,
    names: Vec<NameRow>,
    name_numbers: HashTable<u32>,
    addresses: Vec<AddressRow>,
    address_numbers: HashTable<u32>,
    pairs: Vec<Pair>,
    pair_numbers: HashTable<u32>,
    entries: usize,
}

struct NameRow {
    /// Hash of the wire form; a wildcard's key, which is shorter, has another hash.
    hash: u64,
    /// Offset and length of the wire form in `Builder::octets`.
    start: u32,
    length: u8,
    a: Set,
    aaaa: Set,
}

struct AddressRow {
    /// Hash of the address bytes, which are the key.
    hash: u64,
    address: IpAddr,
    ptr: Set,
}

#[derive(Clone, Copy)]
struct Pair {
    name: u32,
    address: u32,
    /// Whether the address has a PTR record for the name.
    reverse: bool,
}

/// The records of one name and type.
#[derive(Default)]
struct Set {
    count: u16,
    octets: u16,
    /// Whether a record did not fit.
    cut: bool,
    /// Offset of the next record in the arena.
    at: u32,
}

impl<'o> Builder<'o> {
    /// Creates a builder for up to `max_pairs`, at most [`MAX_PAIRS`], with capacity for
    /// `expected`: a growing table rehashes all its entries.
    pub(crate) fn new(options: &'o Options, max_pairs: usize, expected: usize) -> Self {
        let max_pairs = max_pairs.min(MAX_PAIRS);
        let expected = expected.min(max_pairs);
        Self {
            options,
            max_pairs,
            hasher: RandomState::default(),
            octets: Vec::new(),
            names: Vec::with_capacity(expected),
            name_numbers: HashTable::with_capacity(expected),
            addresses: Vec::with_capacity(expected),
            address_numbers: HashTable::with_capacity(expected),
            pairs: Vec::with_capacity(expected),
            pair_numbers: HashTable::with_capacity(expected),
            entries: 0,
        }
    }

    /// Adds the pairs of a line, and calls `report` for each error.
    pub(crate) fn read_line(&mut self, line: &[u8], mut report: impl FnMut(LineError)) {
        let mut fields = parse::fields(line);
        let Some(first) = fields.next() else { return };
        let address = match parse::address(first) {
            Ok(address) => address,
            Err(error) => return report(error),
        };
        let mut named = false;
        let mut name = Name::ROOT;
        for field in fields {
            named = true;
            if let Err(error) = parse::name_into(&mut name, field).and_then(|()| self.add(&name, address)) {
                report(error);
            }
        }
        if !named {
            report(LineError::NoName);
        }
    }

    /// Adds a pair, unless the name is outside the zones.
    fn add(&mut self, name: &Name, address: IpAddr) -> Result<(), LineError> {
        if !self.options.zones.iter().any(|zone| name.is_within(zone)) {
            return Ok(());
        }
        if self.pairs.len() >= self.max_pairs {
            return Err(LineError::FullTable);
        }
        let reverse = self.options.reverse && !is_wildcard(name.as_wire());
        self.entries += 1 + usize::from(reverse);
        let name_number = self.name_number(name);
        let hash = match address {
            IpAddr::V4(v4) => hash_of(&v4.octets()),
            IpAddr::V6(v6) => hash_of(&v6.octets()),
        };
        let known_address = self.find_address(hash, address);
        if known_address.is_some_and(|address_number| self.has_pair(name_number, address_number)) {
            return Ok(());
        }
        let row = &mut self.names[name_number as usize];
        let taken = match address {
            IpAddr::V4(_) => row.a.take(A_RECORD, RType::A)?,
            IpAddr::V6(_) => row.aaaa.take(AAAA_RECORD, RType::AAAA)?,
        };
        if !taken {
            return Ok(());
        }
        let address_number = known_address.unwrap_or_else(|| self.new_address(hash, address));
        let ptr = &mut self.addresses[address_number as usize].ptr;
        let pointed =
            if reverse { ptr.take(RECORD_HEADER + name.as_wire().len(), RType::PTR) } else { Ok(false) };
        self.push(Pair { name: name_number, address: address_number, reverse: pointed == Ok(true) });
        pointed.map(|_| ())
    }

    /// Returns the number of a name, a new one if it is unknown.
    fn name_number(&mut self, name: &Name) -> u32 {
        let wire = name.as_wire();
        let hash = hash_of(wire);
        let (names, octets) = (&self.names, &self.octets);
        if let Some(&number) = self.name_numbers.find(hash, |&n| names[n as usize].wire(octets) == wire) {
            return number;
        }
        let number = names.len() as u32;
        let row = NameRow {
            hash,
            start: octets.len() as u32,
            length: wire.len() as u8,
            a: Set::default(),
            aaaa: Set::default(),
        };
        self.octets.extend_from_slice(wire);
        self.names.push(row);
        let names = &self.names;
        self.name_numbers.insert_unique(hash, number, |&n| names[n as usize].hash);
        number
    }

    fn find_address(&self, hash: u64, address: IpAddr) -> Option<u32> {
        self.address_numbers.find(hash, |&n| self.addresses[n as usize].address == address).copied()
    }

    fn new_address(&mut self, hash: u64, address: IpAddr) -> u32 {
        let number = self.addresses.len() as u32;
        self.addresses.push(AddressRow { hash, address, ptr: Set::default() });
        let addresses = &self.addresses;
        self.address_numbers.insert_unique(hash, number, |&n| addresses[n as usize].hash);
        number
    }

    fn has_pair(&self, name: u32, address: u32) -> bool {
        let hash = self.hasher.hash_one((name, address));
        self.pair_numbers.find(hash, |&n| self.pairs[n as usize].numbers() == (name, address)).is_some()
    }

    fn push(&mut self, pair: Pair) {
        let number = self.pairs.len() as u32;
        self.pairs.push(pair);
        let (pairs, hasher) = (&self.pairs, &self.hasher);
        self.pair_numbers.insert_unique(hasher.hash_one(pair.numbers()), number, |&n| {
            hasher.hash_one(pairs[n as usize].numbers())
        });
    }

    /// Lays out the entries in the order of the text and fills them in.
    pub(crate) fn finish(mut self, rest: &mut dyn FnMut()) -> Table {
        let (mut most, mut wildcards, mut addresses) = (0, 0, 0);
        for row in &self.names {
            rest();
            most += ENTRY_HEADER + row.key(&self.octets).len() + row.a.octets() + row.aaaa.octets();
            wildcards += usize::from(is_wildcard(row.wire(&self.octets)));
        }
        for row in &self.addresses {
            rest();
            most += ENTRY_HEADER + MAX_ADDRESS + row.ptr.octets();
            addresses += usize::from(row.ptr.count > 0);
        }
        let mut arena = Vec::with_capacity(most);
        // The hashes of the builder are reused.
        let mut table = Table::empty();
        table.names = HashTable::with_capacity(self.names.len() - wildcards);
        table.wildcards = HashTable::with_capacity(wildcards);
        table.addresses = HashTable::with_capacity(addresses);

        for row in &mut self.names {
            rest();
            let (key, numbers) = (row.key(&self.octets), [row.a.count, row.aaaa.count]);
            if is_wildcard(row.wire(&self.octets)) {
                let hash = hash_of(key);
                start_entry(&mut arena, &mut table.wildcards, hash, numbers, key);
            } else {
                start_entry(&mut arena, &mut table.names, row.hash, numbers, key);
            }
            row.a.lay_out(&mut arena);
            row.aaaa.lay_out(&mut arena);
        }
        for row in self.addresses.iter_mut().filter(|row| row.ptr.count > 0) {
            rest();
            let (index, numbers) = (&mut table.addresses, [row.ptr.count, row.ptr.octets]);
            let mut start = |key: &[u8]| start_entry(&mut arena, index, row.hash, numbers, key);
            match row.address {
                IpAddr::V4(address) => start(&address.octets()),
                IpAddr::V6(address) => start(&address.octets()),
            }
            row.ptr.lay_out(&mut arena);
        }
        for pair in &self.pairs {
            rest();
            let name = &mut self.names[pair.name as usize];
            let address = &mut self.addresses[pair.address as usize];
            match address.address {
                IpAddr::V4(v4) => name.a.write(&mut arena, RType::A, self.options.ttl, &v4.octets()),
                IpAddr::V6(v6) => name.aaaa.write(&mut arena, RType::AAAA, self.options.ttl, &v6.octets()),
            }
            if pair.reverse {
                address.ptr.write(&mut arena, RType::PTR, self.options.ttl, name.wire(&self.octets));
            }
        }
        table.arena = arena.into_boxed_slice();
        table.entries = self.entries;
        table
    }
}

impl NameRow {
    fn wire<'a>(&self, octets: &'a [u8]) -> &'a [u8] {
        &octets[self.start as usize..][..usize::from(self.length)]
    }

    /// Returns the key of the name's entry: for a wildcard the name below its asterisk.
    fn key<'a>(&self, octets: &'a [u8]) -> &'a [u8] {
        let wire = self.wire(octets);
        wire.strip_prefix(ASTERISK).unwrap_or(wire)
    }
}

impl Pair {
    fn numbers(&self) -> (u32, u32) {
        (self.name, self.address)
    }
}

impl Set {
    /// Reserves space for a record; returns `false` if it does not fit, and an error for the first
    /// that does not.
    fn take(&mut self, record: usize, rtype: RType) -> Result<bool, LineError> {
        if self.octets() + record > MAX_BODY {
            return if std::mem::replace(&mut self.cut, true) {
                Ok(false)
            } else {
                Err(LineError::FullSet(rtype))
            };
        }
        // MAX_BODY is below 65,536.
        self.octets += record as u16;
        self.count += 1;
        Ok(true)
    }

    fn octets(&self) -> usize {
        usize::from(self.octets)
    }

    /// Appends zeroed space for the records.
    fn lay_out(&mut self, arena: &mut Vec<u8>) {
        // MAX_PAIRS keeps the arena below 4 GiB.
        self.at = arena.len() as u32;
        arena.resize(arena.len() + self.octets(), 0);
    }

    /// Writes the next record.
    fn write(&mut self, arena: &mut [u8], rtype: RType, ttl: u32, data: &[u8]) {
        let (rtype, class, ttl) = (rtype.0.to_be_bytes(), Class::IN.0.to_be_bytes(), ttl.to_be_bytes());
        let length = (data.len() as u16).to_be_bytes();
        let header = [[0xc0, HEADER as u8], rtype, class, [ttl[0], ttl[1]], [ttl[2], ttl[3]], length];
        let (start, rest) = arena[self.at as usize..].split_at_mut(RECORD_HEADER);
        start.copy_from_slice(header.as_flattened());
        rest[..data.len()].copy_from_slice(data);
        self.at += (RECORD_HEADER + data.len()) as u32;
    }
}

/// Appends an entry up to its key and adds it to its index; `hash` is the hash of the key.
fn start_entry(arena: &mut Vec<u8>, index: &mut HashTable<u32>, hash: u64, numbers: [u16; 2], key: &[u8]) {
    // MAX_PAIRS keeps the arena below 4 GiB.
    let at = arena.len() as u32;
    let [[a, b], [c, d]] = numbers.map(u16::to_be_bytes);
    arena.extend_from_slice(&[a, b, c, d, key.len() as u8]);
    arena.extend_from_slice(key);
    index.insert_unique(hash, at, |&at| hash_of(entry_key(arena, at)));
}

/// Returns the key of the entry at offset `at`.
fn entry_key(arena: &[u8], at: u32) -> &[u8] {
    let entry = &arena[at as usize..];
    &entry[ENTRY_HEADER..][..usize::from(entry[ENTRY_HEADER - 1])]
}

fn is_wildcard(wire: &[u8]) -> bool {
    wire.starts_with(ASTERISK)
}

/// The first label of a wildcard.
const ASTERISK: &[u8] = b"\x01*";
/// Bytes of an IPv6 address.
const MAX_ADDRESS: usize = 16;
/// Maximum bytes of a set of records: a message less its header, the longest question and an OPT
/// without options.
const MAX_BODY: usize = 65_535 - HEADER - (MAX_NAME + 4) - 11;
/// Bytes from which the number of lines is estimated.
const SAMPLE_BYTES: usize = 64 << 10;
/// Bytes of a short line with a pair, such as `10.0.0.1 ab`.
const MIN_LINE_BYTES: usize = 12;
