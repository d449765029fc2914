//! Sanitizes untrusted text for log lines.

/// Returns at most `max_chars` of a text, with control characters and line or paragraph separators
/// replaced by spaces.
pub(crate) fn sanitize(text: &str, max_chars: usize) -> Box<str> {
    let printable = |c: char| if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') { ' ' } else { c };
    text.chars().map(printable).take(max_chars).collect()
}

#[cfg(test)]
mod tests {
    use super::sanitize;

    #[test]
    fn replaces_line_breaks() {
        let ends = ["a\nb", "a\rb", "a\u{85}b", "a\u{2028}b", "a\u{2029}b", "a\u{1b}b"];
        ends.into_iter().for_each(|text| assert_eq!(&*sanitize(text, 3), "a b", "{text:?}"));
        assert_eq!(&*sanitize("\u{e4}bcd", 3), "\u{e4}bc");
    }
}
