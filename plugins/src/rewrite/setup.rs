//! Parsing of `rewrite`.

use corefile::{Directive, Located, Word};
use std::sync::Arc;

use regex::Regex;
use wire::{Class, Name, OPTION_CLIENT_SUBNET, OPTION_NSID, RType, Rcode, client_subnet_holds};

use super::cname::Cname;
use super::edns0::{Action, Data, Edns0};
use super::name_match::{Pattern, Replacement};
use super::revert::{NameMap, text_map};
use super::{AnswerRule, Field, NameRule, Rewrite, Rule, Ttls};
use plugin::SetupError;
use plugin::args::{Result, bad};
use plugin::metadata::is_label;
use plugin::spec::{MiddlewareSpec, ParseContext};

/// Reads every `rewrite` of a server block.
pub(crate) fn read(directives: &[&Directive], _: ParseContext<'_>) -> Result<Arc<dyn MiddlewareSpec>> {
    let rules = directives.iter().map(|directive| rule(directive)).collect::<Result<Vec<_>>>()?;
    let code = |rule: &Rule| if let Field::Edns0(rule) = &rule.field { Some(rule.code) } else { None };
    let codes = rules.iter().filter_map(code).collect();
    Ok(Arc::new(Rewrite { rules, codes, labels: None }))
}

/// The words of a rule, consumed from the left. A block in braces after fewer than two words is
/// part of it.
struct Words<'d> {
    directive: &'d Directive,
    words: Vec<&'d Word>,
    next: usize,
}

impl<'d> Words<'d> {
    fn new(directive: &'d Directive) -> Self {
        let mut words: Vec<&Word> = directive.args.iter().collect();
        if words.len() < 2 {
            for property in directive.body.iter().flatten() {
                words.push(&property.name);
                words.extend(&property.args);
            }
        }
        Self { directive, words, next: 0 }
    }

    fn left(&self) -> usize {
        self.words.len() - self.next
    }

    fn peek(&self) -> Option<&'d Word> {
        self.words.get(self.next).copied()
    }

    fn take(&mut self, expected: &'static str) -> Result<&'d Word> {
        let Some(word) = self.peek() else { return Err(self.missing(expected)) };
        self.next += 1;
        Ok(word)
    }

    fn missing(&self, expected: &'static str) -> Located<SetupError> {
        Self::wants(&self.directive.name, expected)
    }

    fn wants(name: &Word, expected: &'static str) -> Located<SetupError> {
        let error = SetupError::MissingArgument { plugin: PLUGIN, word: name.text.clone(), expected };
        Located::new(&name.at, error)
    }

    fn end(&self, expected: &'static str) -> Result<()> {
        let Some(word) = self.peek() else { return Ok(()) };
        let (found, name) = (word.text.clone(), self.directive.name.text.clone());
        Err(Located::new(&word.at, SetupError::ExtraArgument { plugin: PLUGIN, word: name, found, expected }))
    }

    /// Consumes the word for the kind of comparison, if present.
    fn kind(&mut self) -> Option<Kind> {
        let word = self.peek()?;
        let (_, kind) = KINDS.iter().find(|(name, _)| word.text.eq_ignore_ascii_case(name))?;
        self.next += 1;
        Some(*kind)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Exact,
    Prefix,
    Suffix,
    Substring,
    Regex,
}

fn rule(directive: &Directive) -> Result<Rule> {
    if let (Some(first), true) =
        (directive.args.first(), directive.args.len() >= 2 && directive.body.is_some())
    {
        return Err(Located::new(&first.at, SetupError::Order { plugin: PLUGIN, rule: IN_BRACES }));
    }
    let mut words = Words::new(directive);
    let text = words.words.iter().map(|word| word.shown()).collect::<Vec<_>>().join(" ");
    let mut field = words.take(RULE)?;
    let stop = !field.text.eq_ignore_ascii_case("continue");
    if !stop || field.text.eq_ignore_ascii_case("stop") {
        field = words.take(RULE)?;
    }
    let field = match field.text.to_ascii_lowercase().as_str() {
        "name" => name(&mut words)?,
        "type" => types(&mut words)?,
        "class" => classes(&mut words)?,
        "edns0" => Field::Edns0(edns0(&mut words)?),
        "ttl" => {
            let pattern = pattern(&mut words, 1, TTL, full)?;
            let ttls = words.take(TTL)?;
            words.end(TTL)?;
            Field::Ttl(
                pattern,
                Ttls::read(&ttls.text)
                    .ok_or_else(|| bad(PLUGIN, ttls, "seconds: N, MIN-MAX, MIN- or -MAX"))?,
            )
        }
        "rcode" => {
            let pattern = pattern(&mut words, 2, RCODE, full)?;
            let [from, to] = [rcode(words.take(RCODE)?)?, rcode(words.take(RCODE)?)?];
            words.end(RCODE)?;
            Field::Rcode(pattern, from, to)
        }
        "cname" => cname(&mut words)?,
        "answer" => {
            return Err(bad(
                PLUGIN,
                field,
                "a rule: answers are rewritten by a `name` rule with `answer` behind it",
            ));
        }
        _ => return Err(bad(PLUGIN, field, "a rule: name, type, class, edns0, ttl, rcode or cname")),
    };
    Ok(Rule { stop, text, field })
}

/// Reads `FROM TO`.
fn types(words: &mut Words<'_>) -> Result<Field> {
    let [from, to] = [words.take(TYPES)?, words.take(TYPES)?];
    words.end(TYPES)?;
    let rtype =
        |word: &Word| word.text.parse::<RType>().map_err(|_| bad(PLUGIN, word, "a type, such as AAAA"));
    let (from, effective) = (rtype(from)?, rtype(to)?);
    if NOT_REWRITABLE.contains(&effective) {
        return Err(bad(PLUGIN, to, ONE_ANSWER));
    }
    Ok(Field::Type(from, effective))
}

/// Reads `FROM TO`.
fn classes(words: &mut Words<'_>) -> Result<Field> {
    let [from, to] = [words.take(CLASSES)?, words.take(CLASSES)?];
    words.end(CLASSES)?;
    let class =
        |word: &Word| word.text.parse::<Class>().map_err(|_| bad(PLUGIN, word, "a class, such as IN"));
    Ok(Field::Class(class(from)?, class(to)?))
}

/// Reads `[KIND] FROM TO [answer ...]`.
fn name(words: &mut Words<'_>) -> Result<Field> {
    // A rule of two words has no kind, whatever the words are.
    let kind = match words.left() {
        0 | 1 => return Err(words.missing(NAME)),
        2 => Kind::Exact,
        _ => words.kind().ok_or_else(|| wrong_kind(words))?,
    };
    let (from, to) = (words.take(NAME)?, words.take(NAME)?);
    let pattern = one_pattern(kind, from, full)?;
    let labels = words.peek().filter(|word| word.text == "metadata");
    let replacement = match (labels, &pattern) {
        (None, _) => replacement(&pattern, to, full)?,
        (Some(_), Pattern::Regex(regex)) => {
            words.take(NAME)?;
            // The replacement gets a final dot; metadata labels keep their spelling.
            let text = if to.text.ends_with('.') { to.text.clone() } else { format!("{}.", to.text) };
            Replacement::with_labels(&text, regex.captures_len() - 1)
                .ok_or_else(|| bad(PLUGIN, to, LABELS))?
        }
        (Some(word), _) => return Err(bad(PLUGIN, word, "`answer`; `metadata` is for `regex` alone")),
    };
    let mut rule = NameRule {
        pattern,
        to: replacement,
        is_private: to.is_private(),
        auto: kind == Kind::Exact,
        answers: Vec::new(),
    };
    let (mut auto, mut named) = (false, None);
    let mut last_answer = None;
    while let Some(word) = words.peek() {
        if word.text == "answer" {
            words.take(ANSWER)?;
            last_answer = Some(word);
        }
        let Some(answer) = last_answer else { return Err(bad(PLUGIN, word, "`answer`")) };
        let mut next = || words.take(ANSWER).map_err(|_| Words::wants(answer, ANSWER));
        let what = next()?;
        let (owners, values) = match what.text.as_str() {
            "auto" => {
                auto = true;
                continue;
            }
            "name" => (true, false),
            "value" => (false, true),
            _ => return Err(bad(PLUGIN, what, "`auto`, `name FROM TO` or `value FROM TO`")),
        };
        let from = regex(next()?)?;
        let to = groups(next()?, &from, full)?;
        named = named.or_else(|| owners.then_some(what));
        rule.answers.push(AnswerRule { owners, values, map: text_map(from, to) });
    }
    if let (true, Some(word)) = (auto, named) {
        let rule = "`answer auto` and `answer name` exclude each other; keep one";
        return Err(Located::new(&word.at, SetupError::Order { plugin: PLUGIN, rule }));
    }
    match (kind, auto) {
        (Kind::Exact, _) => {}
        // The reversal of a suffix is the suffix: it also applies to names other than the effective
        // one.
        (Kind::Suffix, true) => {
            let map = NameMap::Text(Pattern::Suffix(full(&to.text)), Replacement::plain(full(&from.text)));
            rule.answers.insert(0, AnswerRule { owners: true, values: true, map });
        }
        (_, auto) => rule.auto = auto,
    }
    Ok(Field::Name(rule))
}

/// Reads `local|nsid|subnet set|append|replace|unset ... [revert]`.
fn edns0(words: &mut Words<'_>) -> Result<Edns0> {
    let (kind, word) = (words.take(EDNS0)?, words.take(EDNS0)?);
    let action = match word.text.to_ascii_lowercase().as_str() {
        "set" => Action::Set,
        "append" => Action::Append,
        "replace" => Action::Replace,
        "unset" => Action::Unset,
        _ => return Err(bad(PLUGIN, word, "set, append, replace or unset")),
    };
    let unset = action == Action::Unset;
    let (code, data) = match kind.text.to_ascii_lowercase().as_str() {
        "local" => {
            let word = words.take(LOCAL)?;
            let code = code(&word.text).ok_or_else(|| bad(PLUGIN, word, "a code from 0 to 65535"))?;
            (code, if unset { Data::Fixed(Vec::new()) } else { data(words.take(LOCAL)?, code)? })
        }
        "nsid" => (OPTION_NSID, Data::Fixed(Vec::new())),
        "subnet" if unset => (OPTION_CLIENT_SUBNET, Data::Subnet(0, 0)),
        "subnet" => {
            let mut bits = |most: u16, what| {
                let word = words.take(SUBNET)?;
                let bits = code(&word.text).filter(|bits| *bits <= most);
                bits.map(|bits| bits as u8).ok_or_else(|| bad(PLUGIN, word, what))
            };
            let (v4, v6) = (bits(32, "bits of an IPv4 address")?, bits(128, "bits of an IPv6 address")?);
            (OPTION_CLIENT_SUBNET, Data::Subnet(v4, v6))
        }
        _ => return Err(bad(PLUGIN, kind, "local, nsid or subnet")),
    };
    let revert = !unset && words.peek().is_some_and(|word| word.text == "revert");
    if revert {
        words.take(EDNS0)?;
    }
    words.end(EDNS0)?;
    Ok(Edns0 { code, action, data, revert })
}

/// Parses a number in Go's syntax.
fn code(text: &str) -> Option<u16> {
    let lower = text.to_ascii_lowercase();
    for (prefix, radix) in [("0x", 16), ("0b", 2), ("0o", 8), ("0", 8)] {
        if let Some(digits) = lower.strip_prefix(prefix).filter(|digits| !digits.is_empty()) {
            return u16::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'));
        }
    }
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

/// Parses the data of `local`: hexadecimal bytes, text, or a variable.
fn data(word: &Word, code: u16) -> Result<Data> {
    let text = word.text.as_str();
    let variable = text.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
    let data = match (variable, text.strip_prefix("0x")) {
        (Some(variable), _) => match VARIABLES.iter().find(|(name, _)| *name == variable) {
            Some((_, data)) => data.clone(),
            None if is_label(variable) => Data::Label(variable.to_owned()),
            None => return Err(bad(PLUGIN, word, VARIABLE)),
        },
        (None, Some(digits)) => Data::Fixed(hex(digits).ok_or_else(|| bad(PLUGIN, word, HEX))?),
        (None, None) => Data::Fixed(text.into()),
    };
    match &data {
        Data::Fixed(octets) if octets.len() > MOST_DATA => Err(bad(PLUGIN, word, "1,024 octets at most")),
        Data::Fixed(octets) if code != OPTION_CLIENT_SUBNET || client_subnet_holds(octets) => Ok(data),
        _ if code == OPTION_CLIENT_SUBNET => Err(bad(PLUGIN, word, "a client subnet; write `subnet`")),
        _ => Ok(data),
    }
}

/// Decodes hexadecimal digits.
fn hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |octet: u8| char::from(octet).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    rest.is_empty().then_some(())?;
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Reads `[KIND] NAME`, followed by `behind` more words.
fn pattern(
    words: &mut Words<'_>,
    behind: usize,
    expected: &'static str,
    part: fn(&str) -> String,
) -> Result<Pattern> {
    let kind = match words.left().cmp(&(behind + 2)) {
        std::cmp::Ordering::Less => Kind::Exact,
        _ => words.kind().ok_or_else(|| wrong_kind(words))?,
    };
    one_pattern(kind, words.take(expected)?, part)
}

/// Reads `[KIND] FROM TO`.
fn cname(words: &mut Words<'_>) -> Result<Field> {
    // Parts of targets are compared as written; elsewhere a part gets a final dot, even a prefix.
    let pattern = pattern(words, 1, CNAME, str::to_ascii_lowercase)?;
    let to = words.take(CNAME)?;
    words.end(CNAME)?;
    let to = replacement(&pattern, to, str::to_ascii_lowercase)?;
    Ok(Field::Cname(Cname { pattern, to }))
}

fn wrong_kind(words: &Words<'_>) -> Located<SetupError> {
    match words.peek() {
        Some(word) => bad(PLUGIN, word, "exact, prefix, suffix, substring or regex"),
        None => words.missing(NAME),
    }
}

/// Builds a pattern; `part` normalises a part of a name for comparison.
fn one_pattern(kind: Kind, from: &Word, part: fn(&str) -> String) -> Result<Pattern> {
    Ok(match kind {
        Kind::Exact => Pattern::Exact(exact(from)?),
        Kind::Prefix => Pattern::Prefix(part(&from.text)),
        Kind::Suffix => Pattern::Suffix(part(&from.text)),
        Kind::Substring => Pattern::Substring(part(&from.text)),
        Kind::Regex => Pattern::Regex(regex(from)?),
    })
}

/// Reads `to`, which replaces what `pattern` matches; `part` normalises a part of a name.
fn replacement(pattern: &Pattern, to: &Word, part: fn(&str) -> String) -> Result<Replacement> {
    match pattern {
        Pattern::Exact(_) => exact(to).map(Replacement::plain),
        Pattern::Prefix(_) | Pattern::Suffix(_) | Pattern::Substring(_) => {
            Ok(Replacement::plain(part(&to.text)))
        }
        Pattern::Regex(regex) => groups(to, regex, part),
    }
}

/// Returns a whole name, normalised for comparison.
fn exact(word: &Word) -> Result<String> {
    let name = Name::from_text(&word.text);
    name.map(|name| name.to_string())
        .map_err(|error| Located::new(&word.at, SetupError::Zone { found: word.text.clone(), error }))
}

/// Returns the text in lower case, with a final dot.
fn full(text: &str) -> String {
    let mut text = text.to_ascii_lowercase();
    if !text.ends_with('.') {
        text.push('.');
    }
    text
}

fn regex(word: &Word) -> Result<Regex> {
    plugin::args::regex(PLUGIN, word)
}

fn groups(to: &Word, regex: &Regex, part: fn(&str) -> String) -> Result<Replacement> {
    Replacement::with_groups(&part(&to.text), regex.captures_len() - 1)
        .ok_or_else(|| bad(PLUGIN, to, "a replacement: its pattern has no such group"))
}

fn rcode(word: &Word) -> Result<Rcode> {
    let number = word.text.parse().ok().filter(|code| *code <= 23).map(Rcode);
    number
        .or_else(|| word.text.parse().ok())
        .ok_or_else(|| bad(PLUGIN, word, "an rcode, such as NXDOMAIN or 3"))
}

impl Ttls {
    /// Parses `N`, `MIN-MAX`, `MIN-` or `-MAX`.
    fn read(text: &str) -> Option<Self> {
        // Rust's parser would accept a plus sign.
        let seconds = |text: &str| text.parse().ok().filter(|_| !text.starts_with('+'));
        let Some((least, most)) = text.split_once('-') else {
            let ttl = seconds(text)?;
            return Some(Self { least: ttl, most: ttl });
        };
        if least.is_empty() && most.is_empty() {
            return None;
        }
        let bound = |text: &str, none| if text.is_empty() { Some(none) } else { seconds(text) };
        let ttls = Self { least: bound(least, 0)?, most: bound(most, i32::MAX as u32)? };
        (ttls.least <= ttls.most).then_some(ttls)
    }
}

pub(super) const PLUGIN: &str = "rewrite";
const KINDS: [(&str, Kind); 5] = [
    ("exact", Kind::Exact),
    ("prefix", Kind::Prefix),
    ("suffix", Kind::Suffix),
    ("substring", Kind::Substring),
    ("regex", Kind::Regex),
];
const RULE: &str = "[continue|stop] and a rule: name, type, class, edns0, ttl, rcode or cname";
const NAME: &str = "name [exact|prefix|suffix|substring|regex] FROM TO [metadata] [answer ...]";
const ANSWER: &str = "auto, name FROM TO or value FROM TO";
const IN_BRACES: &str =
    "`rewrite` needs all words of a rule in the braces, or none; move these into them, or the others out";
const TYPES: &str = "type FROM TO";
const CLASSES: &str = "class FROM TO";
/// Types that need a stream of their own, or are no question: no cache stores them, and no upstream
/// answers them with a single reply (RFC 5936, section 4; RFC 6895, section 3.1).
const NOT_REWRITABLE: [RType; 5] = [RType::OPT, RType::TKEY, RType::TSIG, RType::IXFR, RType::AXFR];
const ONE_ANSWER: &str =
    "a type that can be looked up in place of another; write one that records have, such as AAAA, or ANY";
const TTL: &str = "ttl [exact|prefix|suffix|substring|regex] NAME SECONDS|MIN-MAX";
const RCODE: &str = "rcode [exact|prefix|suffix|substring|regex] NAME FROM TO";
const EDNS0: &str = "edns0 local|nsid|subnet set|append|replace|unset ... [revert]";
const LOCAL: &str = "edns0 local set|append|replace CODE DATA [revert], or edns0 local unset CODE";
const SUBNET: &str = "edns0 subnet set|append|replace BITS4 BITS6 [revert], or edns0 subnet unset";
const VARIABLE: &str = "a variable: {qname}, {qtype}, {client_ip}, {client_port}, {protocol}, {server_ip}, {server_port} or {plugin/label}";
const LABELS: &str = "a replacement of groups such as {1} and labels such as {plugin/label}";
const HEX: &str = "octets in hexadecimal, such as 0x61626364";
const VARIABLES: [(&str, Data); 7] = [
    ("qname", Data::Qname),
    ("qtype", Data::Qtype),
    ("client_ip", Data::ClientIp),
    ("client_port", Data::ClientPort),
    ("protocol", Data::Protocol),
    ("server_ip", Data::ServerIp),
    ("server_port", Data::ServerPort),
];
/// Maximum size of an option, in bytes.
const MOST_DATA: usize = 1_024;
const CNAME: &str = "cname [exact|prefix|suffix|substring|regex] FROM TO";

#[cfg(test)]
mod tests;
