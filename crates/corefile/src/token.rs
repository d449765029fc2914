//! A word of a Corefile and its place.

use std::fmt;

use crate::location::Location;

/// One word with variables replaced and quotes removed.
#[derive(Clone)]
pub struct Word {
    /// The text, without NUL. Empty for `""` or a word of unset variables.
    pub text: String,
    /// Location of its first character (or opening quote).
    pub at: Location,
    /// Whether the word was written in quotes.
    pub quoted: bool,
}

impl Word {
    /// Returns the word as written if it contains the value of an environment variable, which may
    /// be a secret; else its text.
    pub fn shown(&self) -> &str {
        self.at.written().unwrap_or(&self.text)
    }

    /// Whether the word contains the value of an environment variable.
    pub fn is_private(&self) -> bool {
        self.at.written().is_some()
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
