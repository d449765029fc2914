//! Literals of Go: strings, raw strings, characters, integers. Each function parses text that
//! starts with the literal, and returns its token and length in bytes.

use crate::errors::Problem;
use crate::token::{Kind, is_alphanumeric};

/// Reads a string, raw string or character, by its opening quote.
pub(crate) fn quoted(text: &str) -> Result<(Kind<'_>, usize), Problem> {
    match text.as_bytes().first() {
        Some(b'`') => raw(text),
        Some(b'\'') => character(text),
        _ => string(text),
    }
}

fn raw(text: &str) -> Result<(Kind<'_>, usize), Problem> {
    let end = text[1..].find('`').ok_or(Problem::Unterminated("raw string"))? + 1;
    // Go drops carriage returns from raw strings.
    Ok((Kind::String(text[1..end].replace('\r', "")), end + 1))
}

fn string(text: &str) -> Result<(Kind<'_>, usize), Problem> {
    let end = closing(text, '"').ok_or(Problem::Unterminated("string"))?;
    let mut inside = &text[1..end];
    let mut bytes = Vec::with_capacity(inside.len());
    while !inside.is_empty() {
        let (unit, length) = unit(inside, '"').ok_or(Problem::BadEscape("string"))?;
        match unit {
            Unit::Character(character) => {
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes())
            }
            Unit::Byte(byte) => bytes.push(byte),
        }
        inside = &inside[length..];
    }
    let string = String::from_utf8(bytes).map_err(|_| Problem::NotUtf8)?;
    Ok((Kind::String(string), end + 1))
}

fn character(text: &str) -> Result<(Kind<'_>, usize), Problem> {
    let end = closing(text, '\'').ok_or(Problem::Unterminated("character"))?;
    let inside = &text[1..end];
    let (unit, length) = unit(inside, '\'').ok_or(Problem::BadEscape("character"))?;
    if length != inside.len() {
        return Err(Problem::BadEscape("character"));
    }
    let number = match unit {
        Unit::Character(character) => i64::from(u32::from(character)),
        Unit::Byte(byte) => i64::from(byte),
    };
    Ok((Kind::Int(number), end + 1))
}

/// Returns the position of the closing `quote`. A line break ends the search, escaped or not.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            '\n' => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return Some(at),
            _ => {}
        }
    }
    None
}

enum Unit {
    Character(char),
    Byte(u8),
}

/// Reads one character or escape; returns it with its length in bytes.
fn unit(text: &str, quote: char) -> Option<(Unit, usize)> {
    let mut characters = text.chars();
    let first = characters.next()?;
    if first != '\\' {
        return Some((Unit::Character(first), first.len_utf8()));
    }
    let simple = match characters.next()? {
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'v' => '\u{b}',
        '\\' => '\\',
        escaped @ ('"' | '\'') if escaped == quote => escaped,
        'x' => return Some((Unit::Byte(u8::try_from(digits(text, 2, 2, 16)?).ok()?), 4)),
        'u' => return Some((Unit::Character(char::from_u32(digits(text, 2, 4, 16)?)?), 6)),
        'U' => return Some((Unit::Character(char::from_u32(digits(text, 2, 8, 16)?)?), 10)),
        '0'..='7' => return Some((Unit::Byte(u8::try_from(digits(text, 1, 3, 8)?).ok()?), 4)),
        _ => return None,
    };
    Some((Unit::Character(simple), 2))
}

fn digits(text: &str, start: usize, count: usize, base: u32) -> Option<u32> {
    let digits = text.get(start..start + count)?;
    // `from_str_radix` would accept a sign.
    digits
        .bytes()
        .all(|byte| char::from(byte).is_digit(base))
        .then(|| u32::from_str_radix(digits, base).ok())
        .flatten()
}

/// Reads an integer. Go's other numbers are recognised, and are errors.
pub(crate) fn number(text: &str) -> Result<(Kind<'_>, usize), Problem> {
    let length = number_length(text);
    let after = text[length..].chars().next();
    let number = &text[..length];
    if after.is_some_and(|after| is_alphanumeric(after) || after == '+' || after == '-') {
        let word = text.split([' ', '\t', '\r', '\n', '|', ')', '}']).next().unwrap_or_default();
        return Err(Problem::BadNumber(excerpt(word)));
    }
    let unsigned = number.trim_start_matches(['+', '-']);
    let hexadecimal = unsigned.starts_with("0x") || unsigned.starts_with("0X");
    let fraction = number.contains('.')
        || (hexadecimal && number.contains(['p', 'P']))
        || (!hexadecimal && number.contains(['e', 'E']));
    if number.ends_with('i') || (fraction && number.contains(|c: char| c.is_ascii_digit())) {
        return Err(Problem::UnsupportedNumber(excerpt(number)));
    }
    let magnitude = match parse_unsigned(unsigned, 0) {
        Ok(magnitude) => magnitude,
        Err(NumberFault::Syntax) => return Err(Problem::BadNumber(excerpt(number))),
        Err(NumberFault::Range) => return Err(Problem::IntegerTooLarge(excerpt(number))),
    };
    let signed = i128::from(magnitude) * if number.starts_with('-') { -1 } else { 1 };
    let value = i64::try_from(signed).map_err(|_| Problem::IntegerTooLarge(excerpt(number)))?;
    Ok((Kind::Int(value), length))
}

/// Returns the length of the text that Go scans as a number. It may be no valid number, which is
/// detected later.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    let take = |at: &mut usize, set: &[u8]| {
        let found = bytes.get(*at).is_some_and(|byte| set.contains(byte));
        *at += usize::from(found);
        found
    };
    take(&mut at, b"+-");
    let mut digits: &[u8] = DECIMAL;
    if take(&mut at, b"0") {
        if take(&mut at, b"xX") {
            digits = b"0123456789abcdefABCDEF_";
        } else if take(&mut at, b"oO") {
            digits = b"01234567_";
        } else if take(&mut at, b"bB") {
            digits = b"01_";
        }
    }
    while take(&mut at, digits) {}
    if take(&mut at, b".") {
        while take(&mut at, digits) {}
    }
    let exponent: &[u8] = match digits.len() {
        11 => b"eE",
        23 => b"pP",
        _ => b"",
    };
    if take(&mut at, exponent) {
        take(&mut at, b"+-");
        while take(&mut at, DECIMAL) {}
    }
    take(&mut at, b"i");
    at
}

/// Why a text is no unsigned number.
pub(crate) enum NumberFault {
    /// The syntax is invalid.
    Syntax,
    /// The number exceeds 64 bits.
    Range,
}

/// Parses an unsigned number as Go does: in `base` 2 to 36, or for `base` 0 in the base of its
/// prefix, with `_` allowed between digits.
pub(crate) fn parse_unsigned(text: &str, base: u32) -> Result<u64, NumberFault> {
    let free = base == 0;
    let (base, digits) = if free { prefixed(text) } else { (base, text) };
    if text.is_empty() || (free && !underscores_separate(text)) {
        return Err(NumberFault::Syntax);
    }
    let mut number: u64 = 0;
    for character in digits.chars().filter(|character| !free || *character != '_') {
        let digit = character.to_digit(base).ok_or(NumberFault::Syntax)?;
        number = number
            .checked_mul(u64::from(base))
            .and_then(|number| number.checked_add(u64::from(digit)))
            .ok_or(NumberFault::Range)?;
    }
    Ok(number)
}

/// Returns the base that a number's prefix selects, and the digits after the prefix.
fn prefixed(text: &str) -> (u32, &str) {
    let bytes = text.as_bytes();
    match (bytes.first(), bytes.get(1)) {
        (Some(b'0'), Some(b'b' | b'B')) if text.len() > 2 => (2, &text[2..]),
        (Some(b'0'), Some(b'o' | b'O')) if text.len() > 2 => (8, &text[2..]),
        (Some(b'0'), Some(b'x' | b'X')) if text.len() > 2 => (16, &text[2..]),
        (Some(b'0'), _) => (8, &text[1..]),
        _ => (10, text),
    }
}

/// Whether each `_` is between two digits, or between a prefix and a digit.
fn underscores_separate(text: &str) -> bool {
    let digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    (0..bytes.len())
        .filter(|at| bytes[*at] == b'_')
        .all(|at| at > 0 && digit(bytes.get(at - 1)) && digit(bytes.get(at + 1)))
}

/// Returns the beginning of a text, for an error.
pub(crate) fn excerpt(text: &str) -> String {
    text.chars().take(EXCERPT_CHARACTERS).collect()
}

const DECIMAL: &[u8] = b"0123456789_";

const EXCERPT_CHARACTERS: usize = 32;
