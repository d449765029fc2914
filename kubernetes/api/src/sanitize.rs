//! What strangers say, made fit for a line of the log.

/// On one line, and not endlessly: no control characters and none that separate lines or paragraphs, and so many characters at
/// most.
pub(crate) fn plain(text: &str, most: usize) -> Box<str> {
    let harmless = |c: char| if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') { ' ' } else { c };
    text.chars().map(harmless).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn what_ends_a_line_somewhere_is_a_space() {
        let ends = ["a\nb", "a\rb", "a\u{85}b", "a\u{2028}b", "a\u{2029}b", "a\u{1b}b"];
        ends.into_iter().for_each(|text| assert_eq!(&*plain(text, 3), "a b", "{text:?}"));
        assert_eq!(&*plain("\u{e4}bcd", 3), "\u{e4}bc");
    }
}
