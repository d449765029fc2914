//! Descriptions of errors without words of the configuration.

/// An error or warning that can be described without words of the configuration: for readers
/// without access to the configuration, for files that may be no Corefile, and for words that
/// contain a variable's value.
pub trait Kind {
    /// Returns the problem and what was expected, in fixed words, none of them from the file.
    fn kind(&self) -> String;
}
