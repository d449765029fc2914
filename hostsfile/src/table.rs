//! The table of encoded answers and its lookup. Knows no hosts text.

use std::net::IpAddr;

use hashbrown::HashTable;
use wire::{Name, RType, hash_of, reverse};

/// An immutable table of names and addresses with their encoded records.
///
/// ```text
/// arena: entry entry entry ...
/// entry of a name or wildcard: A records u16, AAAA records u16, key length u8, key, A records, AAAA records
/// entry of an address:         PTR records u16, their bytes u16, key length u8, key, PTR records
/// ```
///
/// Keys: the wire form of a name, the wire form of the name below a wildcard's asterisk, the 4 or
/// 16 bytes of an address.
pub struct Table {
    pub(crate) arena: Box<[u8]>,
    pub(crate) names: HashTable<u32>,
    pub(crate) wildcards: HashTable<u32>,
    pub(crate) addresses: HashTable<u32>,
    pub(crate) entries: usize,
}

/// Result of [`Table::lookup`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'t> {
    /// The name does not exist, or for PTR: no name has this address.
    Absent,
    /// The name exists, but has no records of this type.
    NoData,
    /// The name has records of this type.
    Ready {
        /// The encoded records: each owner is a pointer to the question at byte 12, the class is
        /// IN, the TTL is set. At most 65,253 bytes, so that header, the longest question and a
        /// plain OPT fit into the message, too.
        body: &'t [u8],
        /// Number of records.
        count: u16,
    },
}

impl Table {
    /// Creates an empty table.
    pub fn empty() -> Self {
        Self {
            arena: Box::default(),
            names: HashTable::new(),
            wildcards: HashTable::new(),
            addresses: HashTable::new(),
            entries: 0,
        }
    }

    /// Returns the records of a name and type (A, AAAA or PTR) in class IN.
    ///
    /// A wildcard matches names with one label before its parent, if the name itself has no records
    /// of this type. The server's zones are not checked.
    #[inline]
    pub fn lookup(&self, name: &Name, rtype: RType) -> Found<'_> {
        if rtype == RType::PTR {
            return self.reverse(name).unwrap_or(Found::Absent);
        }
        let exact = self.find(&self.names, name.as_wire(), name.hash_code());
        if let Some(ready) = exact.as_ref().and_then(|entry| entry.set(rtype)) {
            return ready;
        }
        let below = if self.wildcards.is_empty() { None } else { name.suffixes().nth(1) };
        let wildcard = below.and_then(|key| self.find(&self.wildcards, key, hash_of(key)));
        if let Some(ready) = wildcard.as_ref().and_then(|entry| entry.set(rtype)) {
            return ready;
        }
        if exact.is_some() || wildcard.is_some() { Found::NoData } else { Found::Absent }
    }

    /// Returns the number of entries as `coredns_hosts_entries` counts them: each name of each
    /// line, duplicates included, and once more for its PTR record.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Returns the memory that the table uses, in bytes.
    pub fn bytes(&self) -> usize {
        let indexes = [&self.names, &self.wildcards, &self.addresses];
        size_of::<Self>() + self.arena.len() + indexes.map(HashTable::allocation_size).iter().sum::<usize>()
    }

    fn reverse(&self, name: &Name) -> Option<Found<'_>> {
        let entry = match reverse::address(name)? {
            IpAddr::V4(address) => self.find(&self.addresses, &address.octets(), hash_of(&address.octets())),
            IpAddr::V6(address) => self.find(&self.addresses, &address.octets(), hash_of(&address.octets())),
        }?;
        let [count, octets] = entry.numbers;
        Some(Found::Ready { body: entry.bodies.get(..usize::from(octets))?, count })
    }

    #[inline]
    fn find(&self, index: &HashTable<u32>, key: &[u8], hash: u64) -> Option<NameEntry<'_>> {
        let at = index.find(hash, |&at| self.entry(at).is_some_and(|entry| entry.key == key))?;
        self.entry(*at)
    }

    #[inline]
    fn entry(&self, at: u32) -> Option<NameEntry<'_>> {
        let (&[a, b, c, d, length], rest) =
            self.arena.get(at as usize..)?.split_first_chunk::<ENTRY_HEADER>()?;
        let (key, bodies) = rest.split_at_checked(usize::from(length))?;
        Some(NameEntry { numbers: [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])], key, bodies })
    }
}

/// An entry of the arena; `bodies` extends to the end of the arena.
struct NameEntry<'t> {
    numbers: [u16; 2],
    key: &'t [u8],
    bodies: &'t [u8],
}

impl<'t> NameEntry<'t> {
    /// Returns a name's records of one type; `None` if there are none.
    #[inline]
    fn set(&self, rtype: RType) -> Option<Found<'t>> {
        let [a, aaaa] = self.numbers;
        let a_octets = usize::from(a) * A_RECORD;
        let (count, body) = match rtype {
            RType::A => (a, self.bodies.get(..a_octets)?),
            RType::AAAA => (aaaa, self.bodies.get(a_octets..a_octets + usize::from(aaaa) * AAAA_RECORD)?),
            _ => return None,
        };
        (count > 0).then_some(Found::Ready { body, count })
    }
}

/// Bytes of an entry before its key.
pub(crate) const ENTRY_HEADER: usize = 5;
/// Bytes of a record before its data, with a pointer as the owner (RFC 1035, sections 3.2.1 and
/// 4.1.4).
pub(crate) const RECORD_HEADER: usize = 12;
/// Bytes of an A record.
pub(crate) const A_RECORD: usize = RECORD_HEADER + 4;
/// Bytes of an AAAA record.
pub(crate) const AAAA_RECORD: usize = RECORD_HEADER + 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LineError;
    use crate::builder::Builder;
    use crate::{HostsText, Options, Report};
    use wire::Records;

    fn name(text: &str) -> Name {
        Name::from_text(text).unwrap()
    }

    fn options() -> Options {
        Options { ttl: 3600, zones: vec![Name::ROOT], reverse: true }
    }

    fn build(text: &str) -> Table {
        let (table, report) =
            Table::build(&[HostsText { name: "hosts", text: text.as_bytes() }], &options(), &mut || {});
        assert_eq!(report, Report::default(), "{text}");
        table
    }

    /// Returns the result of a lookup as text: `absent`, `nodata`, or the data of the records.
    fn words(table: &Table, qname: &str, rtype: RType) -> String {
        match table.lookup(&name(qname), rtype) {
            Found::Absent => "absent".to_owned(),
            Found::NoData => "nodata".to_owned(),
            Found::Ready { body, count } => {
                let mut end = 0;
                let data = Records::new(body, 0, [count, 0, 0]).map(|record| {
                    let record = record.unwrap();
                    assert_eq!((record.rtype, record.owner), (rtype, end));
                    end = record.end();
                    match rtype {
                        RType::A => IpAddr::from(*record.data(body).first_chunk::<4>().unwrap()).to_string(),
                        RType::AAAA => {
                            IpAddr::from(*record.data(body).first_chunk::<16>().unwrap()).to_string()
                        }
                        _ => Name::from_wire(record.data(body)).unwrap().to_string(),
                    }
                });
                let words = data.collect::<Vec<_>>().join(" ");
                assert_eq!(end, body.len());
                words
            }
        }
    }

    fn report(text: &[u8]) -> Vec<(usize, LineError)> {
        let (_, report) = Table::build(&[HostsText { name: "hosts", text }], &options(), &mut || {});
        assert_eq!(report.bad_count, report.bad_lines.len());
        report.bad_lines.into_iter().map(|bad| (bad.line, bad.error)).collect()
    }

    #[test]
    fn build_rests_for_lines_and_entries() {
        let text = b"192.0.2.1 a\n# no entry\n192.0.2.2 b c\n";
        let (sources, mut rests) = ([HostsText { name: "hosts", text }], 0);
        let options = Options { ttl: 5, zones: vec![Name::ROOT], reverse: true };
        let (table, _) = Table::build(&sources, &options, &mut || rests += 1);
        assert_eq!(table.entries(), 6);
        // Four lines, including the empty one after the last newline; three names and two
        // addresses, measured and laid out; three pairs.
        assert_eq!(rests, 4 + 2 * (3 + 2) + 3);
    }

    #[test]
    fn finds_records_by_name_and_type() {
        let table = build(
            "127.0.0.1\tlocalhost  LocalHost.localdomain.\r\n\
             ::1 localhost # the loopback\n\
             \n\
             192.0.2.2 multi\n192.0.2.1 multi\n2001:db8::2%eth0 multi\n192.0.2.2 MULTI\n2001:db8::1 multi\n\
             ::ffff:192.0.2.9 mapped\n\
             2001:db8::6 six#teen",
        );
        for (qname, rtype, want) in [
            ("localhost", RType::A, "127.0.0.1"),
            ("localhost", RType::AAAA, "::1"),
            ("localhost.localdomain", RType::A, "127.0.0.1"),
            ("localhost.localdomain", RType::AAAA, "nodata"),
            ("localhost", RType::TXT, "nodata"),
            ("localhost", RType::ANY, "nodata"),
            ("localhost", RType::PTR, "absent"),
            ("a.localhost", RType::A, "absent"),
            ("localdomain", RType::A, "absent"),
            ("localdomain", RType::TXT, "absent"),
            (".", RType::A, "absent"),
            ("multi", RType::A, "192.0.2.2 192.0.2.1"),
            ("multi", RType::AAAA, "2001:db8::2 2001:db8::1"),
            ("mapped", RType::A, "192.0.2.9"),
            ("mapped", RType::AAAA, "nodata"),
            ("six", RType::A, "nodata"),
            ("six", RType::AAAA, "2001:db8::6"),
            ("1.0.0.127.in-addr.arpa", RType::PTR, "localhost. localhost.localdomain."),
            ("2.2.0.192.in-addr.arpa", RType::PTR, "multi."),
            ("3.2.0.192.in-addr.arpa", RType::PTR, "absent"),
            ("1.0.0.127.in-addr.arpa", RType::A, "absent"),
            ("1.0.0.127.in-addr.arpa", RType::TXT, "absent"),
            ("127.in-addr.arpa", RType::PTR, "absent"),
        ] {
            assert_eq!(words(&table, qname, rtype), want, "{qname} {rtype}");
        }
    }

    #[test]
    fn wildcard_matches_one_label() {
        let table = build(
            "192.0.2.1 *.example\n\
             2001:db8::1 *.example\n\
             192.0.2.2 *.sub.example a.example\n\
             192.0.2.3 *.six.example\n\
             192.0.2.4 *\n",
        );
        for (qname, rtype, want) in [
            ("x.example", RType::A, "192.0.2.1"),
            ("x.example", RType::TXT, "nodata"),
            ("*.example", RType::A, "192.0.2.1"),
            ("a.example", RType::A, "192.0.2.2"),
            // As in CoreDNS, the wildcard is used for a family in which the name itself has no
            // address.
            ("a.example", RType::AAAA, "2001:db8::1"),
            ("x.sub.example", RType::A, "192.0.2.2"),
            ("x.sub.example", RType::AAAA, "nodata"),
            ("sub.example", RType::A, "192.0.2.1"),
            ("x.x.example", RType::A, "absent"),
            ("example", RType::A, "192.0.2.4"),
            ("x.org", RType::A, "absent"),
            (".", RType::A, "absent"),
            ("1.2.0.192.in-addr.arpa", RType::PTR, "absent"),
            ("2.2.0.192.in-addr.arpa", RType::PTR, "a.example."),
        ] {
            assert_eq!(words(&table, qname, rtype), want, "{qname} {rtype}");
        }
    }

    #[test]
    fn file_precedes_corefile_lines() {
        let sources = [
            HostsText { name: "file", text: b"192.0.2.2 a b\n192.0.2.9 *.example" },
            HostsText { name: "inline", text: b"192.0.2.1 a\n192.0.2.2 c a\n192.0.2.8 a.example" },
        ];
        let (table, _) = Table::build(&sources, &options(), &mut || {});
        assert_eq!(words(&table, "a", RType::A), "192.0.2.2 192.0.2.1");
        assert_eq!(words(&table, "2.2.0.192.in-addr.arpa", RType::PTR), "a. b. c.");
        assert_eq!(words(&table, "a.example", RType::A), "192.0.2.8");
    }

    #[test]
    fn skips_names_outside_the_zones() {
        let text = b"192.0.2.1 a.example example notexample a.example.org b.test *.test";
        let options = Options { zones: vec![name("example"), name("b.test")], ..options() };
        let (table, report) = Table::build(&[HostsText { name: "hosts", text }], &options, &mut || {});
        assert_eq!(report, Report::default());
        assert_eq!(words(&table, "1.2.0.192.in-addr.arpa", RType::PTR), "a.example. example. b.test.");
        assert_eq!(words(&table, "notexample", RType::A), "absent");
        assert_eq!(words(&table, "x.test", RType::A), "absent");
        assert_eq!(table.entries(), 6);
    }

    #[test]
    fn no_reverse_adds_no_ptr() {
        let options = Options { reverse: false, ..options() };
        let (table, _) =
            Table::build(&[HostsText { name: "hosts", text: b"192.0.2.1 a" }], &options, &mut || {});
        assert_eq!(words(&table, "1.2.0.192.in-addr.arpa", RType::PTR), "absent");
        assert_eq!(table.entries(), 1);
    }

    #[test]
    fn counts_entries_like_coredns() {
        for (text, entries) in [
            ("", 0),
            ("192.0.2.1 a", 2),
            ("192.0.2.1 a b\n::1 a", 6),
            ("192.0.2.1 a a\n192.0.2.1 a", 6),
            ("192.0.2.1 *.a a", 3),
        ] {
            assert_eq!(build(text).entries(), entries, "{text}");
        }
        assert_eq!(Table::empty().entries(), 0);
    }

    #[test]
    fn empty_table_has_no_names() {
        for qname in [".", "a", "1.2.0.192.in-addr.arpa"] {
            for rtype in [RType::A, RType::PTR, RType::TXT] {
                assert_eq!(Table::empty().lookup(&name(qname), rtype), Found::Absent);
            }
        }
    }

    #[test]
    fn reports_bad_lines_and_uses_the_rest() {
        let long = "a".repeat(1025);
        let text = format!(
            "123.123.123 loki\n\
             # fine\r\n\
             321.321.321.321\n\
             192.0.2.1\n\
             192.0.2.1 before a..b after\n\
             {long} orphan\n\
             192.0.2.2 {long} long # {long}\n\
             192.0.2.3 last"
        );
        assert_eq!(
            report(text.as_bytes()),
            [
                (1, LineError::Address),
                (3, LineError::Address),
                (4, LineError::NoName),
                (5, LineError::Name(wire::NameError::EmptyLabel)),
                (6, LineError::LongAddress),
                (7, LineError::LongName),
            ]
        );
        let (table, report) = Table::build(
            &[HostsText { name: "Hosts file \"h\"", text: text.as_bytes() }],
            &options(),
            &mut || {},
        );
        for (qname, want) in
            [("before", "192.0.2.1"), ("after", "192.0.2.1"), ("long", "192.0.2.2"), ("last", "192.0.2.3")]
        {
            assert_eq!(words(&table, qname, RType::A), want);
        }
        assert_eq!(words(&table, "orphan", RType::A), "absent");
        assert_eq!(
            report.bad_lines[5].to_string(),
            "Hosts file \"h\", line 7: name longer than 1024 bytes, dropping the name"
        );
    }

    #[test]
    fn stores_ten_bad_lines() {
        let sources = [
            HostsText { name: "file", text: &b"x\n".repeat(7) },
            HostsText { name: "inline", text: &b"x\n".repeat(7) },
        ];
        let (_, report) = Table::build(&sources, &options(), &mut || {});
        assert_eq!((report.bad_count, report.bad_lines.len()), (14, 10));
        assert_eq!((&*report.bad_lines[6].source, report.bad_lines[6].line), ("file", 7));
        assert_eq!((&*report.bad_lines[7].source, report.bad_lines[7].line), ("inline", 1));
    }

    #[test]
    fn invalid_utf8_drops_one_field() {
        let text = b"192.0.2.1 a \xff b # \xfe\n\xff c\n192.0.2.2 d";
        assert_eq!(report(text), [(1, LineError::Encoding), (2, LineError::Address)]);
        let (table, _) = Table::build(&[HostsText { name: "hosts", text }], &options(), &mut || {});
        assert_eq!(words(&table, "1.2.0.192.in-addr.arpa", RType::PTR), "a. b.");
        assert_eq!(words(&table, "d", RType::A), "192.0.2.2");
    }

    #[test]
    fn truncates_a_set_that_fills_a_message() {
        let line = |n: u32, name: &str| format!("{} {name}\n", std::net::Ipv4Addr::from(0x0a00_0000 + n));
        let mut text: String = (0..5000).map(|n| line(n, "many")).collect();
        text += &line(0, "many").repeat(2); // duplicates
        text += &line(9999, "one");
        let full = 65_253 / 16;
        assert_eq!(report(text.as_bytes()), [(full + 1, LineError::FullSet(RType::A))]);
        let (table, _) =
            Table::build(&[HostsText { name: "hosts", text: text.as_bytes() }], &options(), &mut || {});
        let Found::Ready { body, count } = table.lookup(&name("many"), RType::A) else { panic!("not found") };
        assert_eq!((usize::from(count), body.len()), (full, full * 16));
        assert_eq!(words(&table, "one", RType::A), "10.0.39.15");

        let text: String = (0..100_000).map(|n| format!("0.0.0.0 blocked{n:05}.example\n")).collect();
        let full = 65_253 / (12 + 22);
        assert_eq!(report(text.as_bytes()), [(full + 1, LineError::FullSet(RType::PTR))]);
        let (table, _) =
            Table::build(&[HostsText { name: "hosts", text: text.as_bytes() }], &options(), &mut || {});
        assert_eq!(words(&table, "blocked99999.example", RType::A), "0.0.0.0");
        let Found::Ready { count, .. } = table.lookup(&name("0.0.0.0.in-addr.arpa"), RType::PTR) else {
            panic!("not found")
        };
        assert_eq!(usize::from(count), full);
    }

    #[test]
    fn full_table_refuses_pairs() {
        let options = options();
        let mut builder = Builder::new(&options, 2, 0);
        let mut errors = Vec::new();
        for line in ["192.0.2.1 a b", "192.0.2.2 c", "192.0.2.2 a"] {
            builder.read_line(line.as_bytes(), |error| errors.push(error));
        }
        let table = builder.finish(&mut || {});
        assert_eq!(errors, [LineError::FullTable; 2]);
        assert_eq!(words(&table, "b", RType::A), "192.0.2.1");
        assert_eq!(words(&table, "c", RType::A), "absent");
        assert_eq!(words(&table, "2.2.0.192.in-addr.arpa", RType::PTR), "absent");
    }

    #[test]
    fn table_is_send_and_sync() {
        fn shared<T: Send + Sync>(_: T) {}
        shared(Table::empty());
    }

    #[test]
    fn bytes_grow_with_entries() {
        let [few, many] = [10, 1000].map(|names| {
            build(&(0..names).map(|n| format!("192.0.2.1 n{n}.example\n")).collect::<String>()).bytes()
        });
        assert!(few > 10 * 40 && many > 50 * few, "{few} {many}");
    }
}
