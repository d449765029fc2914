//! Reads the arguments of directives and properties; each error has the location of its word.

use std::str::FromStr;
use std::time::Duration;

use corefile::{Directive, Located, Location, Word, go_values};
use files::ShownPath;
use regex::Regex;
use wire::Name;

use crate::SetupError;
use crate::bounded_regex::bounded_regex;

/// The parsed value, or an error with the location of its word.
pub type Result<T> = std::result::Result<T, Located<SetupError>>;

/// The arguments of one directive or property, taken from the left.
pub struct Args<'d> {
    plugin: &'static str,
    directive: &'d Directive,
    next: usize,
    expected: &'static str,
}

impl<'d> Args<'d> {
    /// Reads the arguments of `directive`; `expected` completes "needs ..." in every error.
    pub fn new(plugin: &'static str, directive: &'d Directive, expected: &'static str) -> Self {
        Self { plugin, directive, next: 0, expected }
    }

    /// Returns the next argument, or `None` if no argument is left.
    pub fn optional(&mut self) -> Option<&'d Word> {
        let word = self.directive.args.get(self.next)?;
        self.next += 1;
        Some(word)
    }

    /// Returns the next argument.
    ///
    /// # Errors
    /// No argument is left.
    pub fn required(&mut self) -> Result<&'d Word> {
        self.optional().ok_or_else(|| {
            Located::new(
                &self.directive.name.at,
                SetupError::MissingArgument {
                    plugin: self.plugin,
                    word: self.directive.name.text.clone(),
                    expected: self.expected,
                },
            )
        })
    }

    /// Returns the remaining arguments, perhaps none.
    pub fn rest(&mut self) -> &'d [Word] {
        let rest = &self.directive.args[self.next..];
        self.next = self.directive.args.len();
        rest
    }

    /// Returns the remaining arguments, at least one.
    ///
    /// # Errors
    /// No argument is left.
    pub fn some(&mut self) -> Result<&'d [Word]> {
        if self.next >= self.directive.args.len() {
            self.required()?;
        }
        Ok(self.rest())
    }

    /// Requires that no argument is left.
    pub fn end(&mut self) -> Result<()> {
        let Some(word) = self.optional() else { return Ok(()) };
        Err(Located::new(
            &word.at,
            SetupError::ExtraArgument {
                plugin: self.plugin,
                word: self.directive.name.text.clone(),
                found: word.text.clone(),
                expected: self.expected,
            },
        ))
    }

    /// Reads the next argument as a number in `range`; `what` names the expected value in errors.
    ///
    /// # Errors
    /// The argument is missing or is not a number in that range.
    pub fn number<T: FromStr + PartialOrd>(
        &mut self,
        range: std::ops::RangeInclusive<T>,
        what: &'static str,
    ) -> Result<T> {
        let word = self.required()?;
        number(self.plugin, word, range, what)
    }

    /// Reads the next argument as a Go duration of 0 or more; `what` names the expected value in
    /// errors.
    ///
    /// # Errors
    /// The argument is missing or is not a duration.
    pub fn duration(&mut self, what: &'static str) -> Result<Duration> {
        let word = self.required()?;
        duration(self.plugin, word, what)
    }
}

/// Reads a directive that occurs once and has neither arguments nor properties.
pub fn bare(plugin: &'static str, directives: &[&Directive]) -> Result<()> {
    let directive = once(plugin, directives)?;
    no_block(plugin, directive)?;
    Args::new(plugin, directive, "no argument").end()
}

/// Reads a property that has neither arguments nor a sub-block.
pub fn flag(plugin: &'static str, property: &Directive) -> Result<bool> {
    no_block(plugin, property)?;
    Args::new(plugin, property, "no argument").end()?;
    Ok(true)
}

/// Returns the error for a word that is not `expected`.
pub fn bad(plugin: &'static str, word: &Word, expected: &'static str) -> Located<SetupError> {
    Located::new(&word.at, SetupError::BadValue { plugin, found: word.text.clone(), expected })
}

/// Parses `word` as a number in `range`; `what` names the expected value in errors.
///
/// # Errors
/// The word is not a number in that range.
pub fn number<T: FromStr + PartialOrd>(
    plugin: &'static str,
    word: &Word,
    range: std::ops::RangeInclusive<T>,
    what: &'static str,
) -> Result<T> {
    let text = word.text.strip_prefix('+').unwrap_or(&word.text);
    text.parse().ok().filter(|value| range.contains(value)).ok_or_else(|| bad(plugin, word, what))
}

/// Parses a Go duration of 0 or more; `what` names the expected value in errors.
pub fn duration(plugin: &'static str, word: &Word, what: &'static str) -> Result<Duration> {
    go_values::parse_duration(&word.text).map_err(|_| bad(plugin, word, what))
}

/// Parses a Go duration or a bare number of seconds; `what` names the expected value in errors.
pub fn duration_or_seconds(plugin: &'static str, word: &Word, what: &'static str) -> Result<Duration> {
    match word.text.parse::<u32>() {
        Ok(seconds) => Ok(Duration::from_secs(seconds.into())),
        Err(_) => duration(plugin, word, what),
    }
}

/// Parses a name as a zone.
///
/// # Errors
/// The word is not a domain name.
pub fn zone(word: &Word) -> Result<Name> {
    zone_text(&word.text, &word.at)
}

/// Parses a text as a zone.
///
/// # Errors
/// The text is not a domain name.
pub fn zone_text(text: &str, at: &Location) -> Result<Name> {
    Name::from_text(text)
        .map_err(|error| Located::new(at, SetupError::Zone { found: text.to_owned(), error }))
}

/// Parses words as zones or networks (CIDR); without words, returns `own`, the server block's
/// zones.
pub fn zones_or(words: &[Word], own: &[Name]) -> Result<Vec<Name>> {
    if words.is_empty() {
        return Ok(own.to_vec());
    }
    let mut zones = Vec::new();
    for word in words {
        match corefile::zones_of(&word.text) {
            Ok(texts) => {
                for text in texts {
                    zones.push(zone_text(&text, &word.at)?);
                }
            }
            Err(error) => return Err(Located::new(&word.at, error.into())),
        }
    }
    Ok(zones)
}

/// Refuses a sub-block.
///
/// # Errors
/// The directive has a sub-block.
pub fn no_block(plugin: &'static str, directive: &Directive) -> Result<()> {
    match directive.body {
        None => Ok(()),
        Some(_) => Err(Located::new(
            &directive.name.at,
            SetupError::UnexpectedBlock { plugin, word: directive.name.text.clone() },
        )),
    }
}

/// Returns the error for a property that is not one of `known`.
pub fn unknown_property(
    plugin: &'static str,
    property: &Directive,
    known: &[&'static str],
) -> Located<SetupError> {
    let found = property.name.text.clone();
    let nearest = corefile::nearest(&found, known.iter().copied());
    Located::new(
        &property.name.at,
        SetupError::UnknownProperty { plugin, found, nearest, known: known.into() },
    )
}

/// Returns the only directive of a plugin in a server block; a second one is an error.
pub fn once<'d>(plugin: &'static str, directives: &[&'d Directive]) -> Result<&'d Directive> {
    match directives {
        [] | [_] => Ok(directives[0]),
        [_, second, ..] => Err(Located::new(&second.name.at, SetupError::OnlyOnce(plugin))),
    }
}

/// Compiles a regular expression in Go's syntax; syntax that the crate `regex` lacks is an error.
pub fn regex(plugin: &'static str, word: &Word) -> Result<Regex> {
    bounded_regex(&word.text).map_err(|error| Located::new(&word.at, SetupError::Pattern { plugin, error }))
}

/// The path of `root PATH`: the directory that relative paths of the server block start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root(pub ShownPath);

/// Resolves a path as CoreDNS does: relative to `root`. Messages show the path as written.
pub fn path(root: Option<&ShownPath>, word: &Word) -> ShownPath {
    let own = match word.shown() == word.text {
        true => ShownPath::from(&word.text),
        false => ShownPath::new(&word.text, word.shown()),
    };
    match root {
        Some(root) => root.join(&own),
        None => own,
    }
}
