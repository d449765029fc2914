//! Patterns for names, and replacements: lower-case text with a final dot.

use std::borrow::Cow;

use regex::Regex;

use plugin::metadata::is_label;

/// A pattern for names.
#[derive(Debug, Clone)]
pub(super) enum Pattern {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Substring(String),
    Regex(Regex),
}

/// A replacement of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Replacement(Vec<Part>);

/// A part of a replacement.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A group of the regular expression; 0 is all of the match.
    Group(usize),
    /// A label of `metadata`; if it has no value, the name is not replaced.
    Label(String),
}

impl Pattern {
    pub(super) fn fits(&self, name: &str) -> bool {
        match self {
            Self::Exact(from) => name == from,
            Self::Prefix(from) => name.starts_with(from.as_str()),
            Self::Suffix(from) => name.ends_with(from.as_str()),
            Self::Substring(from) => name.contains(from.as_str()),
            Self::Regex(regex) => regex.is_match(name),
        }
    }

    /// Returns the replacement of `name`; `None` if the pattern does not match.
    pub(super) fn replace(&self, name: &str, to: &Replacement) -> Option<String> {
        self.replace_by(name, to, &|_| None)
    }

    /// As [`Self::replace`], with labels.
    pub(super) fn replace_by(
        &self,
        name: &str,
        to: &Replacement,
        label: &dyn Fn(&str) -> Option<String>,
    ) -> Option<String> {
        match self {
            Self::Exact(from) => (name == from).then(|| to.text()),
            Self::Prefix(from) => name.strip_prefix(from.as_str()).map(|rest| to.text() + rest),
            Self::Suffix(from) => name.strip_suffix(from.as_str()).map(|rest| rest.to_owned() + &to.text()),
            Self::Substring(from) => {
                name.contains(from.as_str()).then(|| name.replace(from.as_str(), &to.text()))
            }
            Self::Regex(regex) => regex.captures(name).and_then(|groups| {
                let group = |number: usize| groups.get(number).map_or("", |group| group.as_str());
                to.0.iter()
                    .map(|part| match part {
                        Part::Text(text) => Some(Cow::Borrowed(text.as_str())),
                        Part::Group(number) => Some(group(*number).into()),
                        Part::Label(name) => label(name).filter(|value| !value.is_empty()).map(Cow::Owned),
                    })
                    .collect()
            }),
        }
    }
}

impl Replacement {
    /// Returns a replacement of plain text.
    pub(super) fn plain(text: String) -> Self {
        Self(vec![Part::Text(text)])
    }

    /// Parses text with `{N}` for one of `groups` groups; `None` if a group does not exist.
    pub(super) fn with_groups(text: &str, groups: usize) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let digits = rest[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
            let end = at + 1 + digits;
            let number = rest.get(at + 1..end).filter(|_| rest[end..].starts_with('}'));
            match number.and_then(|number| number.parse().ok()) {
                Some(number) if number <= groups => {
                    parts.push(Part::Text(rest[..at].to_owned()));
                    parts.push(Part::Group(number));
                    rest = &rest[end + 1..];
                }
                Some(_) => return None,
                None => {
                    parts.push(Part::Text(rest[..=at].to_owned()));
                    rest = &rest[at + 1..];
                }
            }
        }
        parts.push(Part::Text(rest.to_owned()));
        Some(Self(parts))
    }

    /// As `with_groups`, with `{plugin/name}` for a label; `None` for any other text in braces.
    pub(super) fn with_labels(text: &str, groups: usize) -> Option<Self> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (inside, behind) = after.split_once('}')?;
            parts.push(Part::Text(before.to_ascii_lowercase()));
            parts.push(match inside.parse() {
                Ok(number) if number <= groups => Part::Group(number),
                Ok(_) => return None,
                Err(_) if is_label(inside) && !inside.contains('{') => Part::Label(inside.to_owned()),
                Err(_) => return None,
            });
            rest = behind;
        }
        parts.push(Part::Text(rest.to_ascii_lowercase()));
        let closed = |part: &Part| !matches!(part, Part::Text(text) if text.contains('}'));
        parts.iter().all(closed).then_some(Self(parts))
    }

    fn text(&self) -> String {
        self.0
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.as_str(),
                Part::Group(_) | Part::Label(_) => "",
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_match_kinds() {
        let plain = |text: &str| Replacement::plain(text.to_owned());
        let regex = |from: &str| Pattern::Regex(Regex::new(from).unwrap());
        let groups = |to: &str| Replacement::with_groups(to, 2).unwrap();
        for (pattern, to, name, expected) in [
            (Pattern::Exact("a.b.".into()), plain("c.d."), "a.b.", Some("c.d.")),
            (Pattern::Exact("a.b.".into()), plain("c.d."), "x.a.b.", None),
            (Pattern::Prefix("ftp.".into()), plain("www."), "ftp.a.", Some("www.a.")),
            (Pattern::Suffix(".old.".into()), plain(".new."), "x.old.", Some("x.new.")),
            (Pattern::Suffix(".old.".into()), plain(".new."), "old.", None),
            (Pattern::Substring("b.".into()), plain("cc."), "b.ab.b.", Some("cc.acc.cc.")),
            (regex(r"^(.*)-(us)\.org\.$"), groups("{1}.x.{2}.net."), "ftp-us.org.", Some("ftp.x.us.net.")),
            (regex("^(a)(b)?"), groups("{2}{0}{1}."), "a.", Some("aa.")),
            (regex("^(x)"), groups("{1}."), "a.", None),
            (regex("(.)(.)"), groups("{x}{}{1"), "ab.", Some("{x}{}{1")),
        ] {
            assert_eq!(pattern.replace(name, &to).as_deref(), expected, "{pattern:?} {name}");
            assert_eq!(pattern.fits(name), expected.is_some(), "{pattern:?} {name}");
        }
        assert_eq!(Replacement::with_groups("{3}", 2), None);
    }
}
