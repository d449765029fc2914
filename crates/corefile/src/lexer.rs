//! Splits text into words.

use std::iter::Peekable;
use std::str::Chars;
use std::sync::Arc;

use crate::error::SyntaxError;
use crate::location::{Located, Location, Surroundings};
use crate::source_text::SourceText;
use crate::token::Word;

/// A word before its variables are replaced.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) word: Word,
    /// Whether the word before, if any, ends in an earlier line.
    pub(crate) starts_line: bool,
}

impl Token {
    pub(crate) fn is_open(&self) -> bool {
        self.is_bare("{")
    }

    pub(crate) fn is_close(&self) -> bool {
        self.is_bare("}")
    }

    /// Whether the token is an unquoted `import`. The caller checks that it starts a line.
    pub(crate) fn is_import(&self) -> bool {
        self.is_bare("import")
    }

    fn is_bare(&self, text: &str) -> bool {
        !self.word.quoted && self.word.text == text
    }
}

/// Splits a file into words, at most `max_words`; `None` if it has more.
///
/// # Errors
/// A quote that is never closed; a NUL or a byte that is not UTF-8 outside comments.
pub(crate) fn lex(source: SourceText, max_words: usize) -> Result<Option<Vec<Token>>, Located<SyntaxError>> {
    let around = Arc::new(Surroundings::new(Arc::new(source)));
    let mut lexer =
        Lexer { around: &around, chars: around.source.text.chars().peekable(), line: 1, column: 1 };
    let mut tokens = Vec::new();
    let mut last_line = 0;
    while let Some(word) = lexer.word()? {
        if tokens.len() == max_words {
            return Ok(None);
        }
        tokens.push(Token { starts_line: word.at.line > last_line, word });
        last_line = lexer.line;
    }
    Ok(Some(tokens))
}

struct Lexer<'s> {
    around: &'s Arc<Surroundings>,
    chars: Peekable<Chars<'s>>,
    line: u32,
    column: u32,
}

impl Lexer<'_> {
    /// Returns the next word; `None` at the end.
    fn word(&mut self) -> Result<Option<Word>, Located<SyntaxError>> {
        self.skip_blanks_and_comments();
        let at = self.here();
        match self.chars.peek() {
            None => Ok(None),
            Some('"') => Ok(Some(Word { text: self.quoted(&at)?, at, quoted: true })),
            Some(_) => Ok(Some(Word { text: self.bare()?, at, quoted: false })),
        }
    }

    fn skip_blanks_and_comments(&mut self) {
        let mut comment = false;
        while let Some(&c) = self.chars.peek() {
            comment = (comment || c == '#') && c != '\n';
            if !comment && !c.is_whitespace() {
                return;
            }
            self.advance();
        }
    }

    fn bare(&mut self) -> Result<String, Located<SyntaxError>> {
        let mut text = String::new();
        while let Some(&c) = self.chars.peek() {
            // A carriage return separates no words, as in CoreDNS.
            if (c.is_whitespace() && c != '\r') || c == '#' {
                break;
            }
            if c != '\r' {
                text.push(self.checked(c)?);
            }
            self.advance();
        }
        Ok(text)
    }

    fn quoted(&mut self, opened: &Location) -> Result<String, Located<SyntaxError>> {
        let mut text = String::new();
        let mut escaped = false;
        self.advance();
        while let Some(&c) = self.chars.peek() {
            let c = self.checked(c)?;
            self.advance();
            match c {
                '"' if escaped => {
                    text.pop();
                    text.push('"');
                }
                '"' => return Ok(text),
                c => text.push(c),
            }
            escaped = c == '\\' && !escaped;
        }
        Err(Located::new(opened, SyntaxError::UnclosedQuote))
    }

    fn checked(&self, c: char) -> Result<char, Located<SyntaxError>> {
        match c {
            '\0' => Err(Located::new(&self.here(), SyntaxError::Nul)),
            char::REPLACEMENT_CHARACTER if self.around.source.lossy => {
                Err(Located::new(&self.here(), SyntaxError::NotUtf8))
            }
            c => Ok(c),
        }
    }

    fn advance(&mut self) {
        match self.chars.next() {
            Some('\n') => {
                self.line += 1;
                self.column = 1;
            }
            Some(_) => self.column += 1,
            None => {}
        }
    }

    fn here(&self) -> Location {
        let Self { around, line, column, .. } = *self;
        Location { file: Arc::clone(&around.source.name), line, column, around: Some(Arc::clone(around)) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn lexed(text: &[u8]) -> Result<Vec<Token>, Located<SyntaxError>> {
        let source = SourceText::new("Corefile", text, Path::new(""));
        Ok(lex(source, 1000)?.unwrap())
    }

    #[test]
    fn split_words() {
        let rows: &[(&[u8], &[&str])] = &[
            (b"", &[]),
            (b" \t\r\n", &[]),
            (b"a b c\nd e", &["a", "b", "c", "d", "e"]),
            (b"a\r\nb\r\n", &["a", "b"]),
            (b"a\rb", &["ab"]),
            ("\u{feff}a".as_bytes(), &["a"]),
            ("a\u{a0}b\u{85}c".as_bytes(), &["a", "b", "c"]),
            (b"# c\na # \"d\n b", &["a", "b"]),
            (b"a#b c\nd", &["a", "d"]),
            (b"a #", &["a"]),
            (b"\"a b\" c", &["a b", "c"]),
            (b"\"a # b\"", &["a # b"]),
            (b"\"\"", &[""]),
            (b"\"a\"b", &["a", "b"]),
            (b"\"a\"\"b\"", &["a", "b"]),
            (b"a\"b c\"", &["a\"b", "c\""]),
            (br#""a \"b\" c""#, &["a \"b\" c"]),
            (br#""^(?:[^.]+\.){4,}x\.$""#, &[r"^(?:[^.]+\.){4,}x\.$"]),
            (br#""a\\" b"#, &[r"a\\", "b"]),
            (br#""a\\\"" b"#, &[r#"a\\""#, "b"]),
            (br"a\ b", &["a\\", "b"]),
            (b"\"a\r\nb\"", &["a\r\nb"]),
            (b"{ } {}", &["{", "}", "{}"]),
            (b"caf\xe9 # ok".split_at(3).0, &["caf"]),
            (b"a # caf\xe9 \0\nb", &["a", "b"]),
            ("z\u{fffd}".as_bytes(), &["z\u{fffd}"]),
        ];
        for (text, expected) in rows {
            let words: Vec<_> = lexed(text).unwrap().into_iter().map(|token| token.word.text).collect();
            assert_eq!(&words, expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn word_places() {
        let tokens = lexed("a \"b\nc\" d\n\te# x\nä b".as_bytes()).unwrap();
        let got: Vec<_> = tokens
            .iter()
            .map(|token| (token.word.at.line, token.word.at.column, token.starts_line))
            .collect();
        assert_eq!(
            got,
            [(1, 1, true), (1, 3, false), (2, 4, false), (3, 2, true), (4, 1, true), (4, 3, false)]
        );
    }

    #[test]
    fn broken_text_has_its_place() {
        let rows: &[(&[u8], &str)] = &[
            (b"a\n b\xffc", "Corefile:2:3: found a byte that is not UTF-8"),
            (b"\xff\xfe.\0", "Corefile:1:1: found a byte that is not UTF-8"),
            (b"ab\0", "Corefile:1:3: found a NUL byte, expected text"),
            (b"a \"b\0\"", "Corefile:1:5: found a NUL byte, expected text"),
            (b"a \"b\nc", "Corefile:1:3: this `\"` is never closed"),
            (b"\"", "Corefile:1:1: this `\"` is never closed"),
            (br#""a\""#, "Corefile:1:1: this `\"` is never closed"),
        ];
        for (text, expected) in rows {
            assert_eq!(format!("{:#}", lexed(text).unwrap_err()), *expected);
        }
    }
}
