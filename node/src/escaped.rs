//! Escapes text of other programs for a terminal and for one line.

/// Returns the text with all characters escaped that could control a terminal or are not visible:
/// control characters, line feeds included, and characters that change the text's direction.
pub fn escaped(text: &str) -> String {
    let mut fit = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' | '\\' => fit.push(character),
            _ => fit.extend(character.escape_debug()),
        }
    }
    fit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped() {
        for (text, fit) in [
            ("10.2.0.2:53 \"it's\" C:\\x ü 名", "10.2.0.2:53 \"it's\" C:\\x ü 名"),
            ("\x1b[2Jgone\x07", "\\u{1b}[2Jgone\\u{7}"),
            ("well\r\nrules in place", "well\\r\\nrules in place"),
            ("\u{9b}31m\u{7f}", "\\u{9b}31m\\u{7f}"),
            ("\u{202e}lleks\u{2066}\u{2028}", "\\u{202e}lleks\\u{2066}\\u{2028}"),
        ] {
            assert_eq!(escaped(text), fit);
        }
    }
}
