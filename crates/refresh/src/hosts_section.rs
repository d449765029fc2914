//! Reads and writes the hosts file: lines of other programs stay, refreshed names are in a section.
//!
//! ```text
//! 192.0.2.99 canary.localdns.test
//! # localdns refresh: kept names, written anew when they change
//! # mcr.microsoft.com A refreshed 1795258800
//! 20.61.99.68 mcr.microsoft.com
//! # localdns refresh: end
//! ```
//!
//! The comment above each name and family has the source of its addresses, and when they were last confirmed, in seconds since
//! 1970, so that a new process knows their age.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use hostsfile::parse;
use wire::Name;

use crate::known_name::Origin;
use stub_resolver::{Family, MAX_ADDRESSES, Question};

/// The file's entry for one name and family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FileAddresses {
    /// Sorted, each once.
    pub(crate) addresses: Vec<IpAddr>,
    /// Source and time of the section's comment, if there is one.
    pub(crate) mark: Option<(Origin, u64)>,
}

/// Returns the addresses in `text` of refreshed names. Calls `rest` at every line.
pub(crate) fn read(
    text: &[u8],
    is_kept: impl Fn(&Question) -> bool,
    rest: fn(),
) -> HashMap<Question, FileAddresses> {
    let mut found: HashMap<Question, FileAddresses> = HashMap::new();
    let mut section = false;
    for line in text.split(|&byte| byte == b'\n') {
        rest();
        section = (section || line == BEGIN.as_bytes()) && line != END.as_bytes();
        if section && let Some((question, mark)) = mark(line).filter(|(question, _)| is_kept(question)) {
            found.entry(question).or_default().mark = Some(mark);
        }
        let Some((address, names)) = entry(line) else { continue };
        for name in names {
            let question = Question { name, family: Family::of(address) };
            if is_kept(&question) {
                found.entry(question).or_default().addresses.push(address);
            }
        }
    }
    found.retain(|_, found| !found.addresses.is_empty());
    for found in found.values_mut() {
        found.addresses.sort_unstable();
        found.addresses.dedup();
        found.addresses.truncate(MAX_ADDRESSES);
    }
    found
}

/// One entry of the section.
pub(crate) struct Written<'k> {
    pub(crate) question: Question,
    pub(crate) addresses: &'k [IpAddr],
    pub(crate) source: Origin,
    /// When the addresses were confirmed, in seconds since 1970.
    pub(crate) good: u64,
}

/// Returns `base` without its lines of refreshed names, followed by `entries`. Calls `rest` at every line of `base`.
pub(crate) fn render<'k>(
    base: &[u8],
    is_kept: impl Fn(&Question) -> bool,
    entries: impl Iterator<Item = Written<'k>>,
    rest: fn(),
) -> Vec<u8> {
    let mut text = Vec::with_capacity(base.len());
    let mut section = Section::default();
    for line in base.split_inclusive(|&byte| byte == b'\n') {
        rest();
        let bare = line.strip_suffix(b"\n").unwrap_or(line);
        if !section.owns(bare) {
            foreign(line, bare, &is_kept, &mut text);
        }
    }
    if text.last().is_some_and(|&last| last != b'\n') {
        text.push(b'\n');
    }
    let mut lines = String::new();
    for Written { question, addresses, source, good } in entries {
        let name = question.name.to_string();
        let name = name.trim_end_matches('.');
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "# {name} {} {} {good}", question.family.rtype(), source.label());
        for address in addresses {
            let _ = writeln!(lines, "{address} {name}");
        }
    }
    if !lines.is_empty() {
        text.extend_from_slice(format!("{BEGIN}\n{lines}{END}\n").as_bytes());
    }
    text
}

/// A line parser that recognizes the lines that we wrote.
///
/// Each comment and address is checked, since another program may have written lines into the section, or behind it where its end
/// is gone.
#[derive(Default)]
struct Section {
    open: bool,
    /// The question of the last comment.
    entry: Option<Question>,
}

impl Section {
    fn owns(&mut self, line: &[u8]) -> bool {
        if line == BEGIN.as_bytes() || line == END.as_bytes() {
            *self = Self { open: line == BEGIN.as_bytes(), entry: None };
            return true;
        }
        if !self.open {
            return false;
        }
        if let Some((question, _)) = mark(line) {
            self.entry = Some(question);
            return true;
        }
        let ours = self.entry.is_some_and(|Question { name, family }| {
            // Exactly our format: one blank, one name, no comment.
            let fields = line.split(|&byte| byte == b' ').count();
            fields == 2 && entry(line).is_some_and(|(ip, names)| names == [name] && Family::of(ip) == family)
        });
        if !ours {
            self.entry = None;
        }
        ours
    }
}

/// Copies another program's line, without refreshed names; `bare` is the line without its end.
fn foreign(line: &[u8], bare: &[u8], is_kept: &impl Fn(&Question) -> bool, text: &mut Vec<u8>) {
    if is_stale_comment(bare, is_kept) {
        return;
    }
    let Some((address, names)) = entry(bare) else {
        text.extend_from_slice(line);
        return;
    };
    let kept = |name: &Name| is_kept(&Question { name: *name, family: Family::of(address) });
    if !names.iter().any(kept) {
        text.extend_from_slice(line);
        return;
    }
    let rest: Vec<_> = parse::fields(bare)
        .skip(1)
        .filter(|field| !parse::name(field).is_ok_and(|name| kept(&name)))
        .collect();
    if !rest.is_empty() {
        text.extend_from_slice(address.to_string().as_bytes());
        for name in rest {
            text.push(b' ');
            text.extend_from_slice(name);
        }
        text.push(b'\n');
    }
}

/// Parses the address and the names of a line.
fn entry(line: &[u8]) -> Option<(IpAddr, Vec<Name>)> {
    let mut fields = parse::fields(line);
    let address = parse::address(fields.next()?).ok()?;
    let names: Vec<_> = fields.filter_map(|field| parse::name(field).ok()).collect();
    (!names.is_empty()).then_some((address, names))
}

/// `# NAME A|AAAA SOURCE SECONDS`.
fn mark(line: &[u8]) -> Option<(Question, (Origin, u64))> {
    let words = str::from_utf8(line).ok()?.strip_prefix("# ")?;
    let [name, family, source, good] = words.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let family = [Family::Ipv4, Family::Ipv6].into_iter().find(|known| known.rtype() == family)?;
    let question = Question { name: Name::from_text(name).ok()?, family };
    Some((question, (Origin::from_label(source)?, good.parse().ok()?)))
}

/// Whether this is a comment of AKS's refresh script above entries that we have taken over: its header, `# NAME` or
/// `# NAME (preserved ...)`.
fn is_stale_comment(line: &[u8], is_kept: &impl Fn(&Question) -> bool) -> bool {
    let Some(words) = line.strip_prefix(b"#").and_then(|rest| str::from_utf8(rest).ok()) else {
        return false;
    };
    let words = words.trim();
    if words.starts_with("AKS critical FQDN addresses resolved at") {
        return true;
    }
    let (name, rest) = words.split_once(' ').unwrap_or((words, ""));
    (rest.is_empty() || rest.starts_with("(preserved"))
        && Name::from_text(name).is_ok_and(|name| {
            [Family::Ipv4, Family::Ipv6].iter().any(|&family| is_kept(&Question { name, family }))
        })
}

const BEGIN: &str = "# localdns refresh: kept names, written anew when they change";
const END: &str = "# localdns refresh: end";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_set, vec};
    use proptest::prelude::*;

    const AT_ONCE: fn() = || {};

    fn kept(question: &Question) -> bool {
        [Name::from_text("a.example").unwrap(), Name::from_text("b.example").unwrap()]
            .contains(&question.name)
    }

    fn question(name: &str, family: Family) -> Question {
        Question { name: Name::from_text(name).unwrap(), family }
    }

    fn written(base: &str) -> String {
        let addresses = ["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()];
        let entry = Written {
            question: question("a.example", Family::Ipv4),
            addresses: &addresses,
            source: Origin::Refreshed,
            good: 17,
        };
        String::from_utf8(render(base.as_bytes(), kept, [entry].into_iter(), AT_ONCE)).unwrap()
    }

    const SECTION: &str = "# localdns refresh: kept names, written anew when they change\n# a.example A refreshed 17\n\
                           192.0.2.1 a.example\n192.0.2.2 a.example\n# localdns refresh: end\n";

    #[test]
    fn refreshed_names_move_into_the_section() {
        for (base, rest) in [
            ("", ""),
            ("192.0.2.99 canary\n", "192.0.2.99 canary\n"),
            ("192.0.2.99 canary", "192.0.2.99 canary\n"),
            ("# mine\n\n\t192.0.2.99\tcanary # why\r\n", "# mine\n\n\t192.0.2.99\tcanary # why\r\n"),
            ("192.0.2.7 a.example\n", ""),
            ("192.0.2.7 canary A.example. b.example other\n", "192.0.2.7 canary other\n"),
            ("nonsense a.example\n192.0.2.7\n\u{fffd}\n", "nonsense a.example\n192.0.2.7\n\u{fffd}\n"),
            (
                "# AKS critical FQDN addresses resolved at Mon\n# a.example\n192.0.2.7 a.example\n\
                 # b.example (preserved IPv6 from previous run; resolution failed)\n::7 b.example\n# c.example\n",
                "# c.example\n",
            ),
            (SECTION, ""),
            (
                &format!("192.0.2.98 first\n{SECTION}192.0.2.99 canary\n"),
                "192.0.2.98 first\n192.0.2.99 canary\n",
            ),
            // Lines of other programs in a section, or behind one without an end, stay.
            (&SECTION.replace("# localdns refresh: end\n", ""), ""),
            (
                &SECTION.replace(
                    "# localdns refresh: end\n",
                    "192.0.2.99 canary\n192.0.2.1 a.example # why\n# mine\n",
                ),
                "192.0.2.99 canary\n# mine\n",
            ),
            (&SECTION.replace("192.0.2.2 a", "192.0.2.99 canary\n192.0.2.2 a"), "192.0.2.99 canary\n"),
            (
                &SECTION.replace("# a.example A", "127.0.0.1 localhost\n# a.example A"),
                "127.0.0.1 localhost\n",
            ),
            // A name that is no longer refreshed is removed with its comment.
            (&SECTION.replace("a.example", "c.example"), ""),
        ] {
            assert_eq!(written(base), format!("{rest}{SECTION}"), "{base:?}");
            assert_eq!(written(&written(base)), written(base), "{base:?} once more");
        }
        let nothing = render(SECTION.as_bytes(), kept, std::iter::empty(), AT_ONCE);
        assert!(nothing.is_empty());
    }

    #[test]
    fn section_round_trip() {
        let read = |text: &str| read(text.as_bytes(), kept, AT_ONCE);
        let four = question("a.example", Family::Ipv4);
        let found = FileAddresses {
            addresses: vec!["192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap()],
            mark: Some((Origin::Refreshed, 17)),
        };
        assert_eq!(read(SECTION), HashMap::from([(four, found.clone())]));
        // Outside of a section our comments have no meaning.
        let bare =
            "# a.example A refreshed 17\n192.0.2.2 a.example\n192.0.2.1 a.example x\n192.0.2.1 a.example\n";
        assert_eq!(read(bare), HashMap::from([(four, FileAddresses { mark: None, ..found })]));
        for nothing in ["", "192.0.2.1 c.example", "# a.example A refreshed 17", "192.0.2.256 a.example"] {
            assert_eq!(read(nothing), HashMap::new(), "{nothing:?}");
        }
    }

    /// Lines of other programs, some with refreshed names.
    fn base() -> impl Strategy<Value = String> {
        let line = prop_oneof![
            Just("192.0.2.99 canary.test".to_owned()),
            Just("# mine".to_owned()),
            Just(String::new()),
            "192\\.0\\.2\\.[1-9] (a\\.example|canary|B\\.example\\.| ){1,3}",
            "[ -~]{0,20}".prop_filter("no section of ours", |line| !line.contains("localdns refresh")),
        ];
        vec(line, 0..8).prop_map(|lines| lines.join("\n"))
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_again_and_written_the_same(
            base in base(),
            entries in vec((any::<[bool; 2]>(), btree_set(1u8..9, 1..5), 0..3usize, any::<u32>()), 0..4),
        ) {
            let mut wanted = HashMap::new();
            for ([first, four], lasts, source, good) in entries {
                let family = if four { Family::Ipv4 } else { Family::Ipv6 };
                let address = |last: u8| match family {
                    Family::Ipv4 => IpAddr::from([192, 0, 2, last]),
                    Family::Ipv6 => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, u16::from(last)]),
                };
                let mark = Some(([Origin::Shipped, Origin::File, Origin::Refreshed][source], good.into()));
                let addresses = lasts.into_iter().map(address).collect();
                let name = if first { "a.example" } else { "b.example" };
                wanted.insert(question(name, family), FileAddresses { addresses, mark });
            }
            let written = |base: &[u8]| {
                let entries = wanted.iter().map(|(question, found)| {
                    let (source, good) = found.mark.expect("every one has a mark");
                    Written { question: *question, addresses: &found.addresses, source, good }
                });
                render(base, kept, entries, AT_ONCE)
            };
            let text = written(base.as_bytes());
            prop_assert_eq!(&read(&text, kept, AT_ONCE), &wanted);
            prop_assert_eq!(&written(&text), &text);
            // Without the section: the other programs' lines, without refreshed names.
            let rest = render(&text, kept, std::iter::empty(), AT_ONCE);
            prop_assert_eq!(&rest, &render(base.as_bytes(), kept, std::iter::empty(), AT_ONCE));
            prop_assert_eq!(read(&rest, kept, AT_ONCE), HashMap::new());
        }
    }
}
