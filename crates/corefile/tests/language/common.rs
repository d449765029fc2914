//! Helpers of this crate's tests: parsing text without files, and printing the result.

use std::path::Path;

use corefile::{Corefile, Directive, Located, SyntaxError, Word};

/// Returns the value of an environment variable of [`read`].
pub(crate) fn env(name: &str) -> Option<String> {
    let value = match name {
        "A" => "1.1.1.1",
        "BLANKS" => "a b",
        "EMPTY" => "",
        "PORT" => "1053",
        "BRACE" => "{",
        "NUL" => "a\0b",
        _ => return None,
    };
    Some(value.to_owned())
}

/// Parses a text without imports.
pub(crate) fn read(text: impl AsRef<[u8]>) -> Result<Corefile, Located<SyntaxError>> {
    corefile::read_text("Corefile", text.as_ref(), Path::new(""), &env)
}

/// Prints the blocks as a Corefile that parses to the same blocks.
pub(crate) fn print(corefile: &Corefile) -> String {
    let mut out = String::new();
    for block in &corefile.blocks {
        for key in &block.keys {
            let mut word = key.written.clone();
            // The parser drops the last comma of a key, so a key that ends with a comma needs two.
            if word.text.ends_with(',') {
                word.text.push(',');
            }
            out += &quoted(&word);
            out += " ";
        }
        out += "{\n";
        print_lines(&block.directives, &mut out);
        out += "}\n";
    }
    out
}

/// Prints the blocks as [`print`] does, but in one line:
/// `.:53 { log; forward . 1.1.1.1 { a b; } }`.
pub(crate) fn shape(corefile: &Corefile) -> String {
    let shape = print(corefile).replace("{\n", "{ ").replace("}\n", "} ").replace('\n', "; ");
    shape.trim_end().to_owned()
}

fn print_lines(directives: &[Directive], out: &mut String) {
    for directive in directives {
        let words = std::iter::once(&directive.name).chain(&directive.args);
        *out += &words.map(quoted).collect::<Vec<_>>().join(" ");
        if let Some(body) = &directive.body {
            *out += " {\n";
            print_lines(body, out);
            *out += "}";
        }
        *out += "\n";
    }
}

/// Returns the word as written in a file, in quotes if needed. A reference to an unset variable
/// separates a backslash from the quote after it, which the backslash would escape.
fn quoted(word: &Word) -> String {
    let text = &word.text;
    let bare = !text.is_empty() && !text.starts_with('"') && !text.contains(char::is_whitespace);
    if bare && !word.quoted {
        return text.clone();
    }
    let kept = text.replace("\\\"", "\\{$UNSET}\"").replace('"', "\\\"");
    let end = if text.ends_with('\\') { "{$UNSET}" } else { "" };
    format!("\"{kept}{end}\"")
}
