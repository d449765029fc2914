//! Targets: Corefiles, hosts files, zone-file text and zones.

use std::path::Path;

use hostsfile::{Found, HostsText, Options, Table};
use server::corefile_source::{Origin, ValidatedConfig};
use wire::{Answer, CompressingWriter, Name, RType, Reply, Section, Verdict, accept};
use zonetext::Reader;

/// Checks that a Corefile is read and interpreted, or refused with position and reason.
///
/// Inputs that would open other files are skipped: imports, and arguments that are paths.
pub fn corefile(text: &[u8]) {
    let opens_files =
        [&b"import"[..], b"/"].iter().any(|word| text.windows(word.len()).any(|part| part == *word));
    if text.len() > MAX_TEXT || opens_files {
        return;
    }
    let env = |name: &str| (name.len() == 1).then(|| "value".to_owned());
    match corefile::read_text("Corefile", text, Path::new("."), &env) {
        Err(error) => assert!(!error.to_string().is_empty()),
        Ok(corefile) => {
            assert!(corefile.tokens().all(|token| token.len() <= text.len() + MAX_TEXT));
            if let Err(error) = ValidatedConfig::read(&Origin::Text(text.to_vec()), 53) {
                let message = error.to_string();
                let place = ["stdin:", "Corefile:"].iter().any(|file| message.starts_with(file));
                assert!(place, "an error says where: {message}");
                assert!(message.len() < 16 * MAX_TEXT, "an error is not longer than what it is about");
            }
        }
    }
}

/// Checks that a hosts file is read line by line, and that stored entries answer only with what the
/// text contains.
pub fn hosts_file(text: &[u8]) {
    if text.len() > MAX_TEXT {
        return;
    }
    let options = Options { ttl: 60, zones: vec![Name::ROOT], reverse: true };
    let (table, report) = Table::build(&[HostsText { name: "hosts", text }], &options, &mut || {});
    let lines = text.split(|&octet| octet == b'\n').count();
    assert!(table.entries() <= 2 * text.len(), "{} entries", table.entries());
    assert!(table.bytes() < (1 << 16) + 512 * text.len(), "{} bytes", table.bytes());
    assert!(report.bad_lines.iter().all(|bad| (1..=lines).contains(&bad.line)));
    let words =
        text.split(|octet| octet.is_ascii_whitespace()).filter_map(|word| std::str::from_utf8(word).ok());
    for name in words.filter_map(|word| Name::from_text(word).ok()).take(64) {
        for rtype in [RType::A, RType::AAAA, RType::PTR, RType::TXT] {
            if let Found::Ready { body, count } = table.lookup(&name, rtype) {
                assert!(count > 0 && body.len() <= 65_253, "{name} {rtype}");
            }
        }
    }
}

/// Zone-file text is read record by record; each can be sent, and read by a client.
pub fn zone_text(text: &[u8]) {
    const QUESTION: &[u8] = b"\x01q\0\0\x01\0\x01";
    if text.len() > MAX_TEXT {
        return;
    }
    let mut reader = Reader::new(text, &Name::ROOT);
    while let Some(record) = reader.next() {
        assert!(reader.line() as usize <= 1 + text.len());
        let Ok(record) = record else {
            assert!(reader.next().is_none(), "an error is the end");
            return;
        };
        let rr = record.into_rr(Section::Answer);
        let mut reply = b"\0\x07\x81\x80\0\x01\0\x01\0\0\0\0".to_vec();
        reply.extend_from_slice(QUESTION);
        let mut body = Vec::new();
        let mut message = CompressingWriter::new(QUESTION, &mut body).expect("it asks for a name");
        // The longest data does not fit behind owner and question.
        if rr.push_to(&mut message, &mut Vec::new()).is_ok() {
            reply.extend_from_slice(&body);
            Answer::default().read(&reply, QUESTION).expect("it can be read");
        } else {
            assert!(rr.data.len() > 60_000);
        }
    }
}

/// A zone file is read whole; every name of it has an answer that a client can read.
pub fn zone_file(text: &[u8]) {
    struct NoFiles;
    impl zone::Files for NoFiles {
        fn include(&mut self, _: &str, _: &[u8]) -> Result<(String, Vec<u8>), String> {
            Ok(("included".to_owned(), b"included 5 A 192.0.2.1\n".to_vec()))
        }
    }
    // A file of a few bytes may generate 65,536 records.
    if text.len() > 1 << 12 || text.windows(9).any(|word| word.eq_ignore_ascii_case(b"$GENERATE")) {
        return;
    }
    let whole = [b"@ 5 SOA b. c. 1 1 1 1 1\n", text].concat();
    let origin = Name::from_text("example.org").expect("it is a name");
    let Ok(zone::Loaded { zone, .. }) = zone::load(&origin, "db", &whole, &mut NoFiles) else { return };
    let mut names = vec![origin];
    zone.each_from(zone::Place::default(), |owner, _, _, _| {
        names.extend(Name::from_wire(owner));
        names.extend(Name::from_wire(&[b"\x01x", owner].concat()));
        true
    });
    for name in names.iter().take(64) {
        for rtype in [RType::A, RType::ANY, RType::DS, RType::MX] {
            let mut packet = b"\0\x07\0\0\0\x01\0\0\0\0\0\x01".to_vec();
            packet.extend_from_slice(name.as_wire());
            packet.extend_from_slice(&[rtype.0.to_be_bytes(), [0, 1]].concat());
            packet.extend_from_slice(b"\0\0\x29\x10\0\0\0\x80\0\0\0");
            let Verdict::Pass(query) = accept(&packet) else { return };
            let (mut out, limits) = (Vec::new(), zone::Limits { octets: 60_000, all_of_any: true });
            let mut reply = Reply::start(&mut out, &query);
            if zone.answer(&query, limits, &mut reply).is_ok() {
                reply.finish(&query, 65_000);
                Answer::default().read(&out, query.question).expect("it can be read");
            }
        }
    }
}

const MAX_TEXT: usize = 1 << 16;
