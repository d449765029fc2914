//! Parses label selectors of `labels` and `namespace_labels`: `app=web,tier in (a, b),!legacy`.
//!
//! The API selects; parsing here only reports errors with their position in the Corefile.

use std::fmt;

/// A valid label selector in the format of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Box<str>);

/// Why a selector is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Another token than expected.
    #[error("expected {expected}, found {found:?}")]
    Expected {
        /// The expected token.
        expected: &'static str,
        /// The token found.
        found: String,
    },
    /// A key or value that is invalid for a label.
    #[error("{0:?} is not a valid {1} of a label")]
    Invalid(String, &'static str),
}

impl Selector {
    /// Parses a selector.
    ///
    /// # Errors
    /// If the API would reject it.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut reader = Reader { rest: text };
        let mut requirements = Vec::new();
        loop {
            requirements.push(reader.requirement()?);
            match reader.next() {
                "" => break,
                "," => {}
                found => return Err(expected("`,`", found)),
            }
        }
        Ok(Self(requirements.join(",").into()))
    }

    /// Returns the text for the API.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// Returns the next token; empty at the end.
    fn next(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        let sign = ["!=", "==", "=", "!", ",", "(", ")"].into_iter().find(|sign| self.rest.starts_with(sign));
        let word = || self.rest.find(|c: char| c.is_whitespace() || "=!,()".contains(c));
        let end = sign.map_or_else(|| word().unwrap_or(self.rest.len()), str::len);
        let (next, rest) = self.rest.split_at(end);
        self.rest = rest;
        next
    }

    fn peek(&self) -> &'a str {
        Reader { rest: self.rest }.next()
    }

    /// Parses one of `key`, `!key`, `key = value`, `key != value`, `key in (a, b)`, `key notin (a,
    /// b)`.
    fn requirement(&mut self) -> Result<String, SelectorError> {
        if self.peek() == "!" {
            self.next();
            return Ok(format!("!{}", self.key()?));
        }
        let key = self.key()?;
        match self.peek() {
            "" | "," => Ok(key.to_owned()),
            sign @ ("=" | "==" | "!=") => {
                self.next();
                Ok(format!("{key}{}{}", if sign == "!=" { "!=" } else { "=" }, self.value()?))
            }
            word @ ("in" | "notin") => {
                self.next();
                Ok(format!("{key} {word} ({})", self.values()?.join(",")))
            }
            found => Err(expected("one of `,`, `=`, `!=`, `in` and `notin`", found)),
        }
    }

    fn values(&mut self) -> Result<Vec<&'a str>, SelectorError> {
        match self.next() {
            "(" => {}
            found => return Err(expected("`(`", found)),
        }
        let mut values = Vec::new();
        loop {
            values.push(self.value()?);
            match self.next() {
                "," => {}
                ")" => return Ok(values),
                found => return Err(expected("`,` or `)`", found)),
            }
        }
    }

    fn key(&mut self) -> Result<&'a str, SelectorError> {
        let key = self.next();
        if key.is_empty() || "=!,()".contains(key) || key == "==" || key == "!=" {
            return Err(expected("a label's key", key));
        }
        let (prefix, name) = key.rsplit_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
        let possible = !name.is_empty() && is_part(name) && prefix.is_none_or(is_subdomain);
        if possible { Ok(key) } else { Err(SelectorError::Invalid(key.to_owned(), "key")) }
    }

    /// Reads the value of a requirement, which may be empty, as in `key=`.
    fn value(&mut self) -> Result<&'a str, SelectorError> {
        if matches!(self.peek(), "" | "," | ")") {
            return Ok("");
        }
        let value = self.next();
        if is_part(value) { Ok(value) } else { Err(SelectorError::Invalid(value.to_owned(), "value")) }
    }
}

/// Whether a text has at most 63 letters, digits, and inner `-`, `_` and `.`.
fn is_part(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63 && text.chars().all(inner) && text.starts_with(outer) && text.ends_with(outer)
}

/// Whether a text is a DNS name in lower case of at most 253 bytes.
fn is_subdomain(text: &str) -> bool {
    let label = |label: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

fn expected(expected: &'static str, found: &str) -> SelectorError {
    SelectorError::Expected { expected, found: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_selectors() {
        for (text, read) in [
            (
                "environment in (production, qa),application in (nginx)",
                "environment in (production,qa),application in (nginx)",
            ),
            ("app=web", "app=web"),
            (" app == web , tier!=front", "app=web,tier!=front"),
            ("istio, !legacy", "istio,!legacy"),
            ("kubernetes.io/metadata.name notin ( a ,b)", "kubernetes.io/metadata.name notin (a,b)"),
            ("empty=", "empty="),
            ("in=notin", "in=notin"),
        ] {
            assert_eq!(
                Selector::parse(text).map(|selector| selector.to_string()),
                Ok(read.to_owned()),
                "{text}"
            );
        }
        for (text, error) in [
            ("", "expected a label's key, found \"\""),
            ("app=web,", "expected a label's key, found \"\""),
            ("a b", "expected one of `,`, `=`, `!=`, `in` and `notin`, found \"b\""),
            ("a in b", "expected `(`, found \"b\""),
            ("a in (b", "expected `,` or `)`, found \"\""),
            ("-a", "\"-a\" is not a valid key of a label"),
            ("A.B/c", "\"A.B/c\" is not a valid key of a label"),
            ("a=ü", "\"ü\" is not a valid value of a label"),
            ("!", "expected a label's key, found \"\""),
            ("a=b c", "expected `,`, found \"c\""),
            ("a==(", "\"(\" is not a valid value of a label"),
        ] {
            assert_eq!(
                Selector::parse(text).map_err(|error| error.to_string()),
                Err(error.to_owned()),
                "{text}"
            );
        }
        let long = "x".repeat(64);
        assert!(Selector::parse(&long).is_err() && Selector::parse(&format!("a={long}")).is_err());
    }
}
