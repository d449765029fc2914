//! `$GENERATE START-STOP[/STEP] TEXT`: one line for each number (BIND 9's manual, section 5.1).

use std::fmt::Write as _;

use crate::{Error, Token};

/// The lines of one `$GENERATE` that are not read yet.
#[derive(Debug, Clone)]
pub(crate) struct Generate {
    parts: Vec<Part>,
    next: u64,
    stop: u64,
    step: u64,
}

/// A part of the text.
#[derive(Debug, Clone)]
enum Part {
    Text(Vec<u8>),
    /// `$`, or `${OFFSET,WIDTH,BASE}`: the number and an offset, with leading zeros up to a width.
    Number {
        offset: i64,
        width: usize,
        base: Base,
    },
}

#[derive(Debug, Clone, Copy)]
enum Base {
    Decimal,
    Octal,
    Hex,
    UpperHex,
}

impl Generate {
    /// Reads the words after `$GENERATE`.
    ///
    /// # Errors
    /// [`Error::Generate`] with the word that cannot be used.
    pub(crate) fn new(tokens: &[Token<'_>]) -> Result<Self, Error> {
        let [range, text @ ..] = tokens else { return Err(Error::Generate(String::new())) };
        let wrong = || Error::Generate(range.shown());
        let (next, stop, step) = range.word().and_then(numbers).ok_or_else(wrong)?;
        if stop < next || (stop - next) / step >= MOST_LINES || text.is_empty() {
            return Err(wrong());
        }
        let mut line = Vec::new();
        for token in text {
            if !line.is_empty() && !token.joined {
                line.push(b' ');
            }
            let quote: &[u8] = if token.quoted { b"\"" } else { b"" };
            line.extend_from_slice(&[quote, token.text, quote].concat());
        }
        let parts = parts(&line)?;
        let numbers = parts.iter().filter_map(|part| match part {
            Part::Number { offset, .. } => Some(*offset),
            Part::Text(_) => None,
        });
        for offset in numbers {
            let fits = |number: u64| {
                let sum = i64::try_from(number).ok().and_then(|number| number.checked_add(offset));
                sum.is_some_and(|sum| (0..=i64::from(i32::MAX)).contains(&sum))
            };
            if !fits(next) || !fits(stop) {
                return Err(Error::Generate(format!("${{{offset}}}")));
            }
        }
        Ok(Self { parts, next, stop, step })
    }

    /// The next line.
    pub(crate) fn next_line(&mut self) -> Option<Vec<u8>> {
        if self.next > self.stop {
            return None;
        }
        let mut line = Vec::new();
        for part in &self.parts {
            let (offset, width, base) = match part {
                Part::Text(text) => {
                    line.extend_from_slice(text);
                    continue;
                }
                Part::Number { offset, width, base } => (*offset, *width, *base),
            };
            let (number, mut digits) = (self.next.saturating_add_signed(offset), String::new());
            // Writing to a string cannot fail.
            let _ = match base {
                Base::Decimal => write!(digits, "{number:0width$}"),
                Base::Octal => write!(digits, "{number:0width$o}"),
                Base::Hex => write!(digits, "{number:0width$x}"),
                Base::UpperHex => write!(digits, "{number:0width$X}"),
            };
            line.extend_from_slice(digits.as_bytes());
        }
        self.next += self.step;
        Some(line)
    }
}

/// `START-STOP[/STEP]`
fn numbers(range: &str) -> Option<(u64, u64, u64)> {
    let (range, step) = range.split_once('/').unwrap_or((range, "1"));
    let (start, stop) = range.split_once('-')?;
    let number = |text: &str| text.parse::<u32>().ok().filter(|&number| number <= i32::MAX as u32);
    Some((number(start)?.into(), number(stop)?.into(), number(step).filter(|&step| step > 0)?.into()))
}

/// Splits a text at its numbers; `\$` and `$$` are dollar signs.
fn parts(line: &[u8]) -> Result<Vec<Part>, Error> {
    let (mut parts, mut text, mut rest) = (Vec::new(), Vec::new(), line);
    loop {
        rest = match rest {
            [] => break,
            [b'\\' | b'$', b'$', rest @ ..] => {
                text.push(b'$');
                rest
            }
            [b'\\', byte, rest @ ..] => {
                text.extend_from_slice(&[b'\\', *byte]);
                rest
            }
            [b'$', rest @ ..] => {
                parts.push(Part::Text(std::mem::take(&mut text)));
                let (part, rest) = number(rest)?;
                parts.push(part);
                rest
            }
            [byte, rest @ ..] => {
                text.push(*byte);
                rest
            }
        };
    }
    parts.push(Part::Text(text));
    Ok(parts)
}

/// The number after a dollar sign, and the text behind it.
fn number(rest: &[u8]) -> Result<(Part, &[u8]), Error> {
    let [b'{', inner @ ..] = rest else {
        return Ok((Part::Number { offset: 0, width: 0, base: Base::Decimal }, rest));
    };
    let end = inner.iter().position(|&byte| byte == b'}');
    let words = &inner[..end.unwrap_or(inner.len())];
    let wrong = || Error::Generate(format!("${{{}", String::from_utf8_lossy(&words[..words.len().min(64)])));
    let (Some(end), Ok(words)) = (end, std::str::from_utf8(words)) else { return Err(wrong()) };
    let mut words = words.split(',');
    let offset = words.next().and_then(|word| word.parse().ok()).ok_or_else(wrong)?;
    let width = words.next().map_or(Some(0), |word| word.parse().ok().filter(|&width| width <= MOST_DIGITS));
    let base = match words.next() {
        None | Some("d") => Base::Decimal,
        Some("o") => Base::Octal,
        Some("x") => Base::Hex,
        Some("X") => Base::UpperHex,
        Some(_) => return Err(wrong()),
    };
    match (width, words.next()) {
        (Some(width), None) => Ok((Part::Number { offset, width, base }, &inner[end + 1..])),
        _ => Err(wrong()),
    }
}

/// Most lines of one directive, as in CoreDNS.
const MOST_LINES: u64 = 1 << 16;
/// Largest width, as in CoreDNS.
const MOST_DIGITS: usize = 255;
