//! What strangers say, made fit for a line of the log.

/// On one line, and not endlessly: no control characters, and so many characters at most.
pub(crate) fn plain(text: &str, most: usize) -> Box<str> {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(most).collect()
}
