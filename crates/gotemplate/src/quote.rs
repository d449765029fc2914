//! Go's quoted strings and characters, for `%q`.

/// Returns a string in double quotes; with `ascii`, all characters outside ASCII are escaped.
pub(crate) fn string(text: &str, ascii: bool) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        escape(&mut quoted, character, '"', ascii);
    }
    quoted.push('"');
    quoted
}

/// Returns a character in single quotes.
pub(crate) fn character(character: char, ascii: bool) -> String {
    let mut quoted = String::from("'");
    escape(&mut quoted, character, '\'', ascii);
    quoted.push('\'');
    quoted
}

/// Whether a text is valid in backquotes: one line, no invisible characters but tabs.
pub(crate) fn fits_raw(text: &str) -> bool {
    text.chars().all(|character| match character {
        '\t' => true,
        '`' | '\u{7f}' | '\u{feff}' => false,
        _ => character >= ' ',
    })
}

/// Whether Go classifies the character as printable: letters, marks, numbers, punctuation, symbols,
/// and the ASCII blank.
pub(crate) fn is_print(character: char) -> bool {
    match character {
        ' '..='~' => true,
        '\0'..='\u{7f}' => false,
        _ => character.escape_debug().count() == 1,
    }
}

fn escape(quoted: &mut String, character: char, quote: char, ascii: bool) {
    let number = u32::from(character);
    if character == quote || character == '\\' {
        quoted.push('\\');
        quoted.push(character);
    } else if is_print(character) && (!ascii || character.is_ascii()) {
        quoted.push(character);
    } else if let Some((_, letter)) = NAMED.iter().find(|(named, _)| *named == character) {
        quoted.push('\\');
        quoted.push(*letter);
    } else if number < 0x80 {
        quoted.push_str(&format!("\\x{number:02x}"));
    } else if number < 0x1_0000 {
        quoted.push_str(&format!("\\u{number:04x}"));
    } else {
        quoted.push_str(&format!("\\U{number:08x}"));
    }
}

const NAMED: [(char, char); 7] =
    [('\u{7}', 'a'), ('\u{8}', 'b'), ('\u{c}', 'f'), ('\n', 'n'), ('\r', 'r'), ('\t', 't'), ('\u{b}', 'v')];
