//! Splits an expression into words, and checks its names and limits.

use super::{ExpressionError, Names};

/// A word of an expression, and where it starts.
#[derive(Clone, Copy)]
struct Token<'t> {
    at: usize,
    text: &'t str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Name,
    /// Text and numbers: not checked.
    Literal,
    Operator,
}

/// Checks size and depth; invalid words are left to the parser.
///
/// # Errors
/// With the position in `text`.
pub(super) fn bounds(text: &str) -> Result<(), (usize, ExpressionError)> {
    let too_large = |at, most, what| Err((at, ExpressionError::TooLarge { most, what }));
    if text.len() > LENGTH {
        return too_large(0, LENGTH, "octets");
    }
    let tokens = tokens(text);
    let mut operators = tokens.iter().filter(|token| match token.kind {
        Kind::Operator => !["(", ")", "[", "]", "{", "}", ",", ":"].contains(&token.text),
        Kind::Name => KEYWORDS.contains(&token.text),
        Kind::Literal => false,
    });
    if let Some(token) = operators.nth(OPERATORS) {
        return too_large(token.at, OPERATORS, "operators");
    }
    let (mut depth, mut closures) = (Vec::new(), 0);
    let mut questions = 0;
    for (index, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" if token.kind == Kind::Operator => {
                let before = index.checked_sub(1).map(|before| tokens[before]);
                let closure = token.text == "("
                    && before.is_some_and(|name| name.kind == Kind::Name && CLOSURES.contains(&name.text));
                depth.push(closure);
                closures += usize::from(closure);
                if depth.len() > DEPTH {
                    return too_large(token.at, DEPTH, "open brackets");
                }
                if closures > NESTED {
                    return too_large(token.at, NESTED, "functions over lists inside each other");
                }
            }
            ")" | "]" | "}" if token.kind == Kind::Operator => {
                closures -= usize::from(depth.pop() == Some(true));
            }
            // The parser recurses for each of these, so they count as nesting.
            "?" | "??" | "**" | "^" | "if" if token.kind != Kind::Literal => {
                questions += 1;
                if questions > DEPTH {
                    return too_large(token.at, DEPTH, "conditions and powers");
                }
            }
            ".." => return Err((token.at, ExpressionError::NotBuilt("..".to_owned()))),
            _ => {}
        }
    }
    Ok(())
}

/// Checks that every name is known.
///
/// # Errors
/// With the position in `text`.
pub(super) fn names(text: &str, names: Names<'_>) -> Result<(), (usize, ExpressionError)> {
    let (vars, has_groups) = match names {
        Names::None => (&[][..], false),
        Names::Template(vars) => (vars, true),
    };
    let is_known = |name: &str| known(has_groups).any(|known| *known == name);
    let tokens = tokens(text);
    for (index, token) in tokens.iter().enumerate() {
        if token.kind != Kind::Name || token.text.starts_with('#') {
            continue;
        }
        let before = index.checked_sub(1).map_or("", |before| tokens[before].text);
        let after = tokens.get(index + 1).map_or("", |after| after.text);
        let not_built = |what: &str| Err((token.at, ExpressionError::NotBuilt(what.to_owned())));
        let error = match (before, token.text, after) {
            ("." | "?.", name, "(") => return not_built(&format!(".{name}()")),
            ("." | "?.", ..) | ("{" | ",", _, ":") => continue,
            (_, "let" | "$env", _) => return not_built(token.text),
            (_, "matches", _) => {
                pattern(&tokens[index + 1..])?;
                continue;
            }
            (_, name, _) if KEYWORDS.contains(&name) => continue,
            (_, name, "(") if is_known(name) => continue,
            (_, name, "(") if ELSEWHERE.contains(&name) => return not_built(&format!("{name}()")),
            (_, name, after) if after != "(" && vars.iter().any(|var| var == name) => continue,
            (_, name, _) if is_known(name) => ExpressionError::NotCalled(name.to_owned()),
            (_, name, _) => {
                let nearest = corefile::nearest(name, known(has_groups).copied());
                ExpressionError::UnknownName { found: name.to_owned(), has_vars: has_groups, nearest }
            }
        };
        return Err((token.at, error));
    }
    Ok(())
}

/// All names that can be called.
fn known(has_groups: bool) -> impl Iterator<Item = &'static &'static str> {
    let groups = [&GROUP].into_iter().filter(move |_| has_groups);
    QUERY.iter().chain(FUNCTIONS).chain(CLOSURES).chain(groups)
}

/// Whether a name has a meaning in the language. The parser splits off a prefix `not`, `true`,
/// `false` or `nil`, so that it would misread a name that begins with one.
pub(super) fn is_taken(name: &str) -> bool {
    let all = [KEYWORDS, FUNCTIONS, CLOSURES, &QUERY, ELSEWHERE, &["let", GROUP]];
    all.iter().any(|names| names.contains(&name))
        || ["not", "true", "false", "nil"].iter().any(|prefix| name.starts_with(prefix))
}

/// Checks the pattern of `matches`, which must be a literal: a pattern computed from a query would
/// be compiled for each query, at the client's choice.
fn pattern(tokens: &[Token<'_>]) -> Result<(), (usize, ExpressionError)> {
    let [token, behind @ ..] = tokens else { return Ok(()) };
    let is_whole = behind.first().is_none_or(|next| BEHIND_PATTERN.contains(&next.text));
    if !is_whole || !token.text.starts_with(['\'', '"', '`']) {
        return Err((token.at, ExpressionError::PatternNotWritten));
    }
    let text = match expr::eval(token.text, &expr::Context::default()) {
        Ok(expr::Value::String(text)) => text,
        _ => token.text.to_owned(),
    };
    match plugin::bounded_regex::bounded_regex(&text) {
        Ok(_) => Ok(()),
        Err(why) => Err((token.at, ExpressionError::Pattern { text, why })),
    }
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = text[at..].chars().next() {
        let rest = &text[at..];
        let (kind, length) = match first {
            _ if first.is_whitespace() => (None, first.len_utf8()),
            _ if rest.starts_with("//") => (None, rest.find('\n').unwrap_or(rest.len())),
            _ if rest.starts_with("/*") => (None, rest.find("*/").map_or(rest.len(), |end| end + 2)),
            '"' | '\'' | '`' => (Some(Kind::Literal), quoted(rest, first)),
            '0'..='9' => (Some(Kind::Literal), word(rest)),
            'a'..='z' | 'A'..='Z' | '_' | '$' | '#' => (Some(Kind::Name), 1 + word(&rest[1..])),
            _ => {
                let double = ["..", "?.", "??", "**", "==", "!=", "<=", ">=", "&&", "||"];
                let length = double.iter().find(|double| rest.starts_with(**double)).map_or(0, |d| d.len());
                (Some(Kind::Operator), length.max(first.len_utf8()))
            }
        };
        if let Some(kind) = kind {
            tokens.push(Token { at, text: &rest[..length], kind });
        }
        at += length;
    }
    tokens
}

fn word(rest: &str) -> usize {
    rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || *byte == b'_').count()
}

/// The length of a quoted text with its quotes; the length of `rest` if it is unterminated.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' if quote != '`' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

const KEYWORDS: &[&str] = &[
    "and",
    "contains",
    "else",
    "endsWith",
    "false",
    "if",
    "in",
    "matches",
    "nil",
    "not",
    "or",
    "startsWith",
    "true",
];
/// CoreDNS's functions about a query.
pub(super) const QUERY: [&str; 13] = [
    "type",
    "name",
    "class",
    "proto",
    "size",
    "client_ip",
    "port",
    "id",
    "opcode",
    "do",
    "bufsize",
    "server_ip",
    "server_port",
];
/// The function of capture groups.
const GROUP: &str = "group";
const FUNCTIONS: &[&str] = &[
    "abs",
    "bitand",
    "bitnand",
    "bitnot",
    "bitor",
    "bitshl",
    "bitshr",
    "bitushr",
    "bitxor",
    "ceil",
    "concat",
    "first",
    "flatten",
    "float",
    "floor",
    "get",
    "hasPrefix",
    "hasSuffix",
    "incidr",
    "indexOf",
    "int",
    "join",
    "keys",
    "last",
    "lastIndexOf",
    "len",
    "lower",
    "max",
    "mean",
    "median",
    "metadata",
    "min",
    "repeat",
    "replace",
    "reverse",
    "round",
    "sort",
    "split",
    "splitAfter",
    "string",
    "take",
    "trim",
    "trimPrefix",
    "trimSuffix",
    "uniq",
    "upper",
    "values",
];
/// Unsupported functions of the language.
const ELSEWHERE: &[&str] = &[
    "date",
    "duration",
    "fromBase64",
    "fromJSON",
    "fromPairs",
    "groupBy",
    "now",
    "timezone",
    "toBase64",
    "toJSON",
    "toPairs",
];
/// Functions that evaluate their last argument for each element.
const CLOSURES: &[&str] = &[
    "all",
    "any",
    "count",
    "filter",
    "find",
    "findIndex",
    "findLast",
    "findLastIndex",
    "map",
    "none",
    "one",
    "reduce",
    "sortBy",
    "sum",
];
/// Words that may follow the pattern of `matches`: none that would make it part of another value.
const BEHIND_PATTERN: &[&str] = &[")", "]", "}", ",", ":", "?", "&&", "||", "and", "or", "==", "!="];
/// Maximum length of an expression, in bytes.
const LENGTH: usize = 4096;
/// Maximum number of operators, which bounds the depth of the tree. A worker's stack of 2 MiB holds
/// twice that many in a debug build.
const OPERATORS: usize = 100;
/// Maximum number of open brackets and conditions.
const DEPTH: usize = 32;
/// Maximum nesting of functions over lists: each multiplies the work.
const NESTED: usize = 2;
