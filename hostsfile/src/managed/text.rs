//! The text of a hosts file, divided into managed lines and other lines. Opens no file.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;

use crate::diagnostics::MAX_FIELD;
use crate::parse;

/// The comment that marks managed lines: 1 to 200 printable ASCII characters without `#`, and no
/// blank at either end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marker(Box<str>);

/// The text is not a valid marker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid marker {0:?}: expected 1 to 200 printable ASCII characters without `#` and without blanks at the ends"
)]
pub struct MarkerError(String);

impl Marker {
    /// Validates a marker.
    ///
    /// # Errors
    /// [`MarkerError`].
    pub fn new(text: &str) -> Result<Self, MarkerError> {
        let printable = text.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'#');
        let fits = (1..=200).contains(&text.len()) && text.trim() == text;
        if printable && fits { Ok(Self(text.into())) } else { Err(MarkerError(text.to_owned())) }
    }
}

/// A managed line: an address, a short name and the full name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ManagedLine {
    /// The short name, such as `name.namespace.svc`.
    pub name: Box<str>,
    /// The domain that completes the full name, such as `cluster.local`.
    pub domain: Box<str>,
    /// The address.
    pub address: IpAddr,
}

impl ManagedLine {
    /// Parses a managed line; `None` if it is not in the format that `Display` writes.
    fn read(content: &[u8]) -> Option<Self> {
        let mut fields = parse::fields(content).map(|field| str::from_utf8(field).ok());
        let mut next = || fields.next().flatten();
        let (address, name, full) = (next()?, next()?, next()?);
        let domain = full.strip_prefix(name)?.strip_prefix('.').filter(|domain| !domain.is_empty())?;
        let entry = Self { name: name.into(), domain: domain.into(), address: address.parse().ok()? };
        next().is_none().then_some(entry)
    }
}

impl fmt::Display for ManagedLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}.{}", self.address, self.name, self.name, self.domain)
    }
}

/// The text of a hosts file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'t> {
    bytes: &'t [u8],
    marker: &'t Marker,
}

impl<'t> Text<'t> {
    /// Wraps a text in which lines with this marker are managed.
    pub fn new(bytes: &'t [u8], marker: &'t Marker) -> Self {
        Self { bytes, marker }
    }

    /// Returns the entries of the managed lines, in order.
    pub fn entries(&self) -> Vec<ManagedLine> {
        self.lines().filter_map(|line| self.managed_content(line)).filter_map(ManagedLine::read).collect()
    }

    /// Returns the number of managed lines, including those that do not parse.
    pub fn managed_lines(&self) -> usize {
        self.lines().filter(|line| self.managed_content(line).is_some()).count()
    }

    /// Returns those of the names (in lower case, without final dot) that other lines define, each
    /// with the number of the first such line, from 1.
    pub fn defined_by_others(&self, wanted: &HashSet<String>) -> HashMap<String, usize> {
        let mut names = HashMap::new();
        for (number, line) in
            self.lines().enumerate().filter(|(_, line)| self.managed_content(line).is_none())
        {
            let mut fields = parse::fields(content_of(line));
            if fields.next().is_none_or(|field| parse::address(field).is_err()) {
                continue;
            }
            for name in fields.filter(|name| name.len() <= MAX_FIELD) {
                let name = String::from_utf8_lossy(name).to_ascii_lowercase();
                if let Some(name) = wanted.get(name.trim_end_matches('.')) {
                    names.entry(name.clone()).or_insert(number + 1);
                }
            }
        }
        names
    }

    /// Returns the text with these entries as the managed lines; `None` if it has them already, in
    /// any order.
    ///
    /// The managed lines are sorted, without duplicates, and placed after the last complete line of
    /// the others. A last line without a newline stays last.
    pub fn with(&self, entries: &[ManagedLine]) -> Option<Vec<u8>> {
        let mut wanted: Vec<&ManagedLine> = entries.iter().collect();
        wanted.sort_unstable();
        wanted.dedup();
        let found: Option<Vec<ManagedLine>> =
            self.lines().filter_map(|line| self.managed_content(line)).map(ManagedLine::read).collect();
        let unchanged = found.is_some_and(|mut found| {
            found.sort_unstable();
            found.iter().eq(wanted.iter().copied())
        });
        if unchanged {
            return None;
        }
        let (mut new, mut rest) = (Vec::with_capacity(self.bytes.len()), &[][..]);
        for line in self.lines().filter(|line| self.managed_content(line).is_none()) {
            match line {
                [.., b'\n'] => new.extend(line),
                unfinished => rest = unfinished,
            }
        }
        for entry in wanted {
            new.extend(format!("{entry} # {}\n", self.marker.0).as_bytes());
        }
        new.extend(rest);
        Some(new)
    }

    fn lines(&self) -> impl Iterator<Item = &'t [u8]> {
        self.bytes.split_inclusive(|&byte| byte == b'\n')
    }

    /// Returns the part of a managed line before its comment; `None` for other lines.
    fn managed_content<'l>(&self, line: &'l [u8]) -> Option<&'l [u8]> {
        let hash = line.iter().position(|&byte| byte == b'#')?;
        let (content, comment) = (&line[..hash], &line[hash + 1..]);
        let mut fields = parse::fields(content);
        let marked = comment.trim_ascii() == self.marker.0.as_bytes();
        let ours = marked && fields.next().is_some() && !fields.any(|name| name == b"localhost");
        ours.then_some(content)
    }
}

/// Returns a line without its newline.
fn content_of(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\n").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const MARKER: &str = "openshift-generated-node-resolver";

    fn marker() -> Marker {
        Marker::new(MARKER).unwrap()
    }

    fn entry(address: &str, name: &str) -> ManagedLine {
        ManagedLine { name: name.into(), domain: "cluster.local".into(), address: address.parse().unwrap() }
    }

    fn with(text: &str, entries: &[ManagedLine]) -> Option<String> {
        let marker = marker();
        Text::new(text.as_bytes(), &marker).with(entries).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn places_lines_after_the_others() {
        let ours = [entry("10.96.0.1", "a.n.svc"), entry("fd00::1", "a.n.svc")];
        let lines = "10.96.0.1 a.n.svc a.n.svc.cluster.local # openshift-generated-node-resolver\n\
                     fd00::1 a.n.svc a.n.svc.cluster.local # openshift-generated-node-resolver\n";
        for (before, after) in [
            ("", lines.to_owned()),
            ("127.0.0.1 localhost\n", format!("127.0.0.1 localhost\n{lines}")),
            ("127.0.0.1 localhost", format!("{lines}127.0.0.1 localhost")),
            ("::1 x\r\n127.0.0.1 localhost", format!("::1 x\r\n{lines}127.0.0.1 localhost")),
            ("# c\n\n\n", format!("# c\n\n\n{lines}")),
        ] {
            assert_eq!(with(before, &ours).as_deref(), Some(&*after), "{before:?}");
            assert_eq!(with(&after, &ours), None, "{before:?}");
            assert_eq!(with(&after, &[]).as_deref(), Some(before));
        }
    }

    #[test]
    fn keeps_a_text_with_the_entries() {
        let text = "fd00::1\ta.n.svc  a.n.svc.cluster.local #openshift-generated-node-resolver\r\n127.0.0.1 localhost\n\
                    10.96.0.1 a.n.svc a.n.svc.cluster.local # openshift-generated-node-resolver\n# end\n";
        let ours = [entry("10.96.0.1", "a.n.svc"), entry("fd00::1", "a.n.svc")];
        assert_eq!(with(text, &ours), None);
        assert_eq!(with(text, &ours[..1]).unwrap(), {
            "127.0.0.1 localhost\n# end\n10.96.0.1 a.n.svc a.n.svc.cluster.local # openshift-generated-node-resolver\n"
        });
        assert_eq!(with(text, &[]).unwrap(), "127.0.0.1 localhost\n# end\n");
    }

    #[test]
    fn ignores_lines_that_mention_the_marker() {
        for line in [
            "# openshift-generated-node-resolver",
            "10.0.0.1 mine # not openshift-generated-node-resolver",
            "10.0.0.1 mine # openshift-generated-node-resolver, but mine",
            "10.0.0.1 mine openshift-generated-node-resolver",
            "127.0.0.1 localhost # openshift-generated-node-resolver",
            "10.0.0.1 mine # x # openshift-generated-node-resolver",
        ] {
            assert_eq!(with(line, &[]), None, "{line}");
            assert_eq!(with(&format!("{line}\n"), &[]), None, "{line}");
        }
    }

    #[test]
    fn removes_malformed_managed_lines() {
        for line in [
            "www.example.com. b.n.svc b.n.svc.cluster.local # openshift-generated-node-resolver",
            "10.96.0.1  .cluster.local # openshift-generated-node-resolver",
            "10.96.0.1 a.n.svc # openshift-generated-node-resolver",
            "10.96.0.1 a.n.svc a.n.svc. # openshift-generated-node-resolver",
            "10.96.0.1 a.n.svc a.n.svc.cluster.local more # openshift-generated-node-resolver",
            "10.96.0.1 a.n.svc\u{fffd} b # openshift-generated-node-resolver",
        ] {
            let text = format!("127.0.0.1 localhost\n{line}\n");
            assert_eq!(with(&text, &[]).as_deref(), Some("127.0.0.1 localhost\n"), "{line}");
            let marker = marker();
            assert_eq!(Text::new(text.as_bytes(), &marker).entries(), [], "{line}");
        }
    }

    #[test]
    fn finds_names_of_other_lines() {
        let marker = marker();
        let text = "# 10.0.0.9 no.n.svc\n10.0.0.1 Web.T1.svc. web # c\nnone a.n.svc\n10.0.0.2 web\n\
                    10.96.0.1 a.n.svc a.n.svc.cluster.local # openshift-generated-node-resolver\n::1\tb.n.svc\r\n";
        let wanted = ["web.t1.svc", "web", "b.n.svc", "a.n.svc", "no.n.svc"].map(str::to_owned).into();
        let names = Text::new(text.as_bytes(), &marker).defined_by_others(&wanted);
        let mut names: Vec<_> = names.iter().map(|(name, line)| (name.as_str(), *line)).collect();
        names.sort_unstable();
        assert_eq!(names, [("b.n.svc", 6), ("web", 2), ("web.t1.svc", 2)]);
    }

    #[test]
    fn validates_markers() {
        for good in ["x", MARKER, "two words", &"x".repeat(200)] {
            assert_eq!(&*Marker::new(good).unwrap().0, good);
        }
        for bad in ["", " x", "x ", "a#b", "a\nb", "a\tb", "\u{e4}", &"x".repeat(201)] {
            let error = Marker::new(bad).unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }

    /// Generates lines that a hosts file may have: managed ones, similar ones, and arbitrary bytes.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            vec(any::<u8>(), 0..12),
            "[ \t]{0,2}(10.0.0.[1-3]|::1|x)?( (localhost|a.n.svc|[a-c]|#)){0,3}( ?# ?(openshift-generated-node-resolver)?)?[ \r]?"
                .prop_map(String::into_bytes),
            entries(1).prop_map(|entries| format!("{} # {MARKER}", entries[0]).into_bytes()),
        ]
    }

    fn file() -> impl Strategy<Value = Vec<u8>> {
        (vec(line(), 0..12), any::<bool>()).prop_map(|(lines, ended)| {
            let mut text = lines.join(&b'\n');
            text.extend(ended.then_some(b'\n'));
            text
        })
    }

    fn entries(least: usize) -> impl Strategy<Value = Vec<ManagedLine>> {
        let entry = ("[a-c]\\.[n-o]\\.svc", prop_oneof!["[x-y]", "cluster\\.local"], any::<(bool, u8)>());
        let entry = entry.prop_map(|(name, domain, (v4, last))| {
            let address = if v4 { format!("10.0.0.{}", last % 4) } else { format!("fd00::{}", last % 4) };
            ManagedLine { name: name.into(), domain: domain.into(), address: address.parse().unwrap() }
        });
        vec(entry, least..6)
    }

    /// Returns the lines that are not managed, by an independent implementation.
    fn other_lines(text: &[u8]) -> Vec<u8> {
        let ours = |line: &&[u8]| {
            let line = String::from_utf8_lossy(line);
            let Some((content, comment)) = line.split_once('#') else { return false };
            let blank = |c: char| " \t\r\n\u{b}\u{c}".contains(c);
            let fields: Vec<&str> = content.split(blank).filter(|field| !field.is_empty()).collect();
            comment.trim_matches(|c: char| c.is_ascii_whitespace()) == MARKER
                && !fields.is_empty()
                && !fields[1..].contains(&"localhost")
        };
        text.split_inclusive(|&byte| byte == b'\n').filter(|line| !ours(line)).flatten().copied().collect()
    }

    proptest! {
        #[test]
        fn other_lines_never_change(text in file(), rounds in vec(entries(0), 1..5)) {
            let marker = marker();
            let mut now = text.clone();
            for round in rounds {
                let wanted = ["a", "b", "c", "a.n.svc", "localhost"].map(str::to_owned).into();
                let defined = |text: &Text<'_>| text.defined_by_others(&wanted).into_keys().collect::<BTreeSet<_>>();
                let before = Text::new(&now, &marker);
                let changed = before.with(&round);
                let names = defined(&before);
                now = changed.clone().unwrap_or(now);
                prop_assert_eq!(other_lines(&now), other_lines(&text));
                let after = Text::new(&now, &marker);
                // The lines parse, and a second update changes nothing.
                let mut wanted = round.clone();
                wanted.sort();
                wanted.dedup();
                let mut found = after.entries();
                if changed.is_none() {
                    found.sort();
                }
                prop_assert_eq!(&found, &wanted);
                prop_assert_eq!(after.with(&round), None);
                prop_assert_eq!(defined(&after), names);
            }
            let without = Text::new(&now, &marker).with(&[]);
            prop_assert!(without.is_none_or(|without| without == other_lines(&text)));
        }

        #[test]
        fn printed_entries_parse(entries in entries(1)) {
            for entry in entries {
                prop_assert_eq!(ManagedLine::read(entry.to_string().as_bytes()), Some(entry));
            }
        }
    }
}
