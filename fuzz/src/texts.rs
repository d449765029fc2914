//! Texts: Corefiles and hosts files.

use std::path::Path;

use hostsfile::{Found, HostsText, Options, Table};
use server::origin::{Draft, Origin};
use wire::{Name, RType};

/// A Corefile is read and given its meaning, or told off with where and why.
///
/// What would open other files is left out: imports, and arguments that are paths.
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
            if let Err(error) = Draft::read(&Origin::Text(text.to_vec()), 53) {
                let told = error.to_string();
                let place = ["stdin:", "Corefile:"].iter().any(|file| told.starts_with(file));
                assert!(place, "an error says where: {told}");
                assert!(told.len() < 16 * MAX_TEXT, "an error is not longer than what it is about");
            }
        }
    }
}

/// A hosts file is read line by line; what is kept answers, and every answer is one that the text has.
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

const MAX_TEXT: usize = 1 << 16;
