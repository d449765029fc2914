//! What can be said of an error without a word of the configuration.

/// An error or warning that can be shown without words of the configuration: to readers that may not
/// know them, of files that may be no Corefile, and of words that hold the value of a variable.
pub trait Kind {
    /// The problem and the expected text, in fixed words: no word of the file.
    fn kind(&self) -> String;
}
