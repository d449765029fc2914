//! Splits template text into tokens. Trim markers and comments are resolved here.

use crate::errors::{ParseError, Problem};
use crate::literal;
use crate::token::{Keyword, Kind, Token, is_alphanumeric};

/// Returns all tokens of `text`, [`Kind::End`] last.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, ParseError> {
    let mut lexer = Lexer { text, at: 0, tokens: Vec::new() };
    while lexer.text_until_action() {
        lexer.action()?;
    }
    lexer.push(Kind::End, text.len(), false);
    Ok(lexer.tokens)
}

struct Lexer<'t> {
    text: &'t str,
    at: usize,
    tokens: Vec<Token<'t>>,
}

impl<'t> Lexer<'t> {
    /// Consumes the text up to the next `{{`, or the rest; returns whether there is a `{{`.
    fn text_until_action(&mut self) -> bool {
        let rest = self.rest();
        let Some(length) = rest.find("{{") else {
            self.push_text(rest);
            self.at = self.text.len();
            return false;
        };
        let before = &rest[..length];
        let trims = opens_with_trim(&rest[length + 2..]);
        self.push_text(if trims { before.trim_end_matches(SPACES) } else { before });
        self.at += length;
        true
    }

    fn push_text(&mut self, text: &'t str) {
        if !text.is_empty() {
            self.push(Kind::Text(text), self.at, false);
        }
    }

    /// Consumes one action from `{{` to `}}`, or one comment.
    fn action(&mut self) -> Result<(), ParseError> {
        let open = self.at;
        self.at += 2;
        if opens_with_trim(self.rest()) {
            self.at += 2;
        }
        if self.rest().starts_with("/*") {
            return self.comment(open);
        }
        self.push(Kind::Open, open, false);
        let mut parentheses = Vec::new();
        loop {
            let spaced = self.skip_spaces();
            let at = self.at;
            if let Some(length) = self.closing() {
                if let Some(unclosed) = parentheses.pop() {
                    return Err(ParseError { offset: unclosed, problem: Problem::UnclosedParenthesis });
                }
                self.push(Kind::Close, at, spaced);
                self.close(length);
                return Ok(());
            }
            if self.rest().is_empty() {
                return Err(ParseError { offset: open, problem: Problem::UnclosedAction });
            }
            // A single `}` was probably meant to close the action: an error after it is reported as
            // the missing `}}`.
            let closed = |lexer: &Self| {
                let mut action = lexer.tokens.iter().rev().take_while(|token| token.kind != Kind::Open);
                action.any(|token| token.kind == Kind::Other('}'))
            };
            let unclosed = ParseError { offset: open, problem: Problem::UnclosedAction };
            let kind = match self.token() {
                Err(_) if closed(self) => return Err(unclosed),
                Err(ParseError { problem: Problem::BadCharacter('}'), .. }) => return Err(unclosed),
                token => token?,
            };
            match kind {
                Kind::OpenParenthesis => parentheses.push(at),
                Kind::CloseParenthesis if parentheses.pop().is_none() => {
                    return Err(ParseError { offset: at, problem: Problem::BadCharacter(')') });
                }
                _ => {}
            }
            self.push(kind, at, spaced);
        }
    }

    fn comment(&mut self, open: usize) -> Result<(), ParseError> {
        let Some(end) = self.rest()[2..].find("*/") else {
            return Err(ParseError { offset: open, problem: Problem::UnclosedComment });
        };
        self.at += 2 + end + 2;
        let Some(length) = self.closing() else {
            return Err(ParseError { offset: self.at, problem: Problem::CommentNotClosed });
        };
        self.close(length);
        Ok(())
    }

    /// Returns the length of a closing delimiter at this place, if any: 2, or 4 with its trim
    /// marker.
    fn closing(&self) -> Option<usize> {
        let rest = self.rest();
        if rest.starts_with("}}") {
            return Some(2);
        }
        let trims = rest.starts_with(SPACES) && rest[1..].starts_with("-}}");
        trims.then_some(4)
    }

    fn close(&mut self, length: usize) {
        self.at += length;
        if length == 4 {
            self.at = self.text.len() - self.rest().trim_start_matches(SPACES).len();
        }
    }

    /// Skips blanks, except one that belongs to a closing trim marker; returns whether it skipped
    /// any.
    fn skip_spaces(&mut self) -> bool {
        let start = self.at;
        while self.rest().starts_with(SPACES) && self.closing().is_none() {
            self.at += 1;
        }
        self.at > start
    }

    fn token(&mut self) -> Result<Kind<'t>, ParseError> {
        let rest = self.rest();
        let mut characters = rest.chars();
        let first = characters.next().unwrap_or_default();
        let second = characters.next();
        let (kind, length) = match first {
            '(' => (Kind::OpenParenthesis, 1),
            ')' => (Kind::CloseParenthesis, 1),
            '|' => (Kind::Pipe, 1),
            '=' => (Kind::Assign, 1),
            ',' => (Kind::Comma, 1),
            ':' if second == Some('=') => (Kind::Declare, 2),
            ':' => return Err(self.error(Problem::BadCharacter(':'))),
            '"' | '`' | '\'' => literal::quoted(rest).map_err(|problem| self.error(problem))?,
            '+' | '-' | '0'..='9' => literal::number(rest).map_err(|problem| self.error(problem))?,
            '.' if second.is_some_and(|second| second.is_ascii_digit()) => {
                literal::number(rest).map_err(|problem| self.error(problem))?
            }
            '.' | '$' => {
                let name = self.name(1)?;
                let kind = match (first, name.len()) {
                    ('$', _) => Kind::Variable(name),
                    (_, 1) => Kind::Dot,
                    _ => Kind::Field(&name[1..]),
                };
                (kind, name.len())
            }
            first if is_alphanumeric(first) => {
                let word = self.name(0)?;
                (word_kind(word), word.len())
            }
            ' '..='~' => (Kind::Other(first), 1),
            _ => return Err(self.error(Problem::BadCharacter(first))),
        };
        self.at += length;
        Ok(kind)
    }

    /// Returns the name at this place, including its first `sigil` bytes. Fails if the next
    /// character may not follow a name.
    fn name(&self, sigil: usize) -> Result<&'t str, ParseError> {
        let rest = self.rest();
        let length = rest[sigil..].find(|c| !is_alphanumeric(c)).map_or(rest.len(), |length| sigil + length);
        let after = &rest[length..];
        let ends = after.is_empty() || after.starts_with(NAME_ENDS) || after.starts_with("}}");
        if ends {
            return Ok(&rest[..length]);
        }
        let wrong = after.chars().next().unwrap_or_default();
        Err(ParseError { offset: self.at + length, problem: Problem::BadCharacter(wrong) })
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn error(&self, problem: Problem) -> ParseError {
        ParseError { offset: self.at, problem }
    }

    fn push(&mut self, kind: Kind<'t>, at: usize, spaced: bool) {
        self.tokens.push(Token { kind, at, spaced });
    }
}

fn word_kind(word: &str) -> Kind<'_> {
    match word {
        "true" => Kind::Bool(true),
        "false" => Kind::Bool(false),
        "nil" => Kind::Nil,
        _ => Keyword::named(word).map_or(Kind::Identifier(word), Kind::Keyword),
    }
}

/// Whether the inside of an action starts with a trim marker, which needs a blank after it: `{{-3}}` is a number.
fn opens_with_trim(inside: &str) -> bool {
    inside.starts_with('-') && inside[1..].starts_with(SPACES)
}

/// The blanks of Go's templates.
const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

/// The characters that may follow a name directly, besides `}}`.
const NAME_ENDS: [char; 10] = [' ', '\t', '\r', '\n', '.', ',', '|', ':', ')', '('];

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        let tokens = tokens(text).unwrap();
        tokens
            .into_iter()
            .filter_map(|token| if let Kind::Text(text) = token.kind { Some(text.into()) } else { None })
            .collect()
    }

    #[test]
    fn trim_markers() {
        for (text, expected) in [
            ("a {{.}} b", vec!["a ", " b"]),
            ("a {{- .}} b", vec!["a", " b"]),
            ("a {{. -}} b", vec!["a ", "b"]),
            ("a \r\n\t {{- . -}} \n b", vec!["a", "b"]),
            (" {{- . -}} ", vec![]),
            ("a {{- /* c */ -}} b", vec!["a", "b"]),
            ("a {{/* c */}} b", vec!["a ", " b"]),
            ("a\u{a0}{{- .}}", vec!["a\u{a0}"]),
        ] {
            assert_eq!(texts(text), expected, "{text:?}");
        }
    }

    #[test]
    fn error_offsets() {
        for (text, offset, problem) in [
            ("ab{{.", 2, Problem::UnclosedAction),
            ("ab{{/* x", 2, Problem::UnclosedComment),
            ("ab{{/* x */ }}", 11, Problem::CommentNotClosed),
            ("ab{{ (1 }}", 5, Problem::UnclosedParenthesis),
            ("ab{{ 1) }}", 6, Problem::BadCharacter(')')),
            ("{{ $x=1 }}", 5, Problem::BadCharacter('=')),
            ("{{ : }}", 3, Problem::BadCharacter(':')),
            ("{{ é-1 }}", 5, Problem::BadCharacter('-')),
            ("{{ \u{7} }}", 3, Problem::BadCharacter('\u{7}')),
        ] {
            let error = tokens(text).unwrap_err();
            assert_eq!((error.offset, error.problem), (offset, problem), "{text:?}");
        }
    }
}
