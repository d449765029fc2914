//! What is told of an object that cannot be read.

use std::fmt;

use crate::objects::MOST_NAME;

use super::Malformed;

/// An object that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// `NAMESPACE/NAME`, or what of it can be read: graphic ASCII, in which a `?` is any other character.
    pub object: Box<str>,
    /// What is wrong with it.
    pub why: Malformed,
}

impl Unreadable {
    /// Each part is no longer than a name may be.
    pub(super) fn new(namespace: &str, name: &str, why: Malformed) -> Self {
        let part = |text: &str| -> String {
            let harmless = |c: char| if c.is_ascii_graphic() { c } else { '?' };
            text.chars().map(harmless).take(MOST_NAME).collect()
        };
        let object = match (namespace, name) {
            ("", name) => part(name),
            (namespace, "") => format!("{}/", part(namespace)),
            (namespace, name) => format!("{}/{}", part(namespace), part(name)),
        };
        Self { object: object.into(), why }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = if self.object.is_empty() { "one without a name" } else { &self.object };
        write!(f, "{object}: {}", self.why)
    }
}
