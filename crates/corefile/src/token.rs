//! A word of a Corefile and its place.

use std::fmt;

use crate::location::Location;

/// One word, its variables replaced and its quotes removed.
#[derive(Clone)]
pub struct Word {
    /// Free of NUL. Empty when written `""` or made of unset variables.
    pub text: String,
    /// Where its first character (or opening quote) stands.
    pub at: Location,
    /// Whether it was written in quotes.
    pub quoted: bool,
}

impl Word {
    /// The text as it was written where it holds the value of an environment variable, which may be
    /// a secret.
    pub fn shown(&self) -> &str {
        self.at.written().unwrap_or(&self.text)
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shown())
    }
}

impl fmt::Debug for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}", self.shown(), self.at)
    }
}
