//! Error of an object that cannot be decoded.

use std::fmt;

use crate::objects::MAX_NAME_BYTES;

use super::Malformed;

/// An object that cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// `NAMESPACE/NAME` as far as it can be read, in graphic ASCII; `?` replaces other characters.
    pub object: Box<str>,
    /// The cause.
    pub why: Malformed,
}

impl DecodeError {
    /// Truncates each part to the maximum length of a name.
    pub(super) fn new(namespace: &str, name: &str, why: Malformed) -> Self {
        let part = |text: &str| -> String {
            let printable = |c: char| if c.is_ascii_graphic() { c } else { '?' };
            text.chars().map(printable).take(MAX_NAME_BYTES).collect()
        };
        let object = match (namespace, name) {
            ("", name) => part(name),
            (namespace, "") => format!("{}/", part(namespace)),
            (namespace, name) => format!("{}/{}", part(namespace), part(name)),
        };
        Self { object: object.into(), why }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = if self.object.is_empty() { "an object without a name" } else { &self.object };
        write!(f, "{object}: {}", self.why)
    }
}
