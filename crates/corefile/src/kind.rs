//! Descriptions of errors without words of the configuration.

/// A description of an error or warning without words of the configuration: for readers without
/// access to it, for files that may be no Corefile, and for words with the value of a variable.
pub trait Kind {
    /// The problem and the expected text, in fixed words: no word of the file.
    fn kind(&self) -> String;
}
