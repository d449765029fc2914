//! Go's `fmt.Sprintf`: the directives of a format, and the argument of each.

use crate::bounded_string::Sink;
use crate::errors::RenderError;
use crate::format::{Spec, argument, type_name};
use crate::value::Value;

/// Fills `format` with `arguments`. Wrong directives are no errors: Go prints them as
/// `%!d(string=hi)`.
pub(crate) fn printf(format: &str, arguments: &[Value<'_>]) -> Result<String, RenderError> {
    let mut text = String::new();
    let mut out = Sink::new(&mut text);
    let mut directives = Directives { format, at: 0, arguments, next: 0, good: true, reordered: false };
    while let Some(percent) = format[directives.at..].find('%') {
        out.push_str(&format[directives.at..directives.at + percent])?;
        directives.at += percent + 1;
        directives.print(&mut out)?;
    }
    out.push_str(&format[directives.at..])?;
    directives.extra(&mut out)?;
    Ok(text)
}

struct Directives<'f, 'a, 'v> {
    format: &'f str,
    at: usize,
    arguments: &'a [Value<'v>],
    /// Index of the argument for the next directive.
    next: usize,
    /// Whether the argument of this directive exists.
    good: bool,
    /// Whether a directive has selected its argument with `[n]`.
    reordered: bool,
}

impl Directives<'_, '_, '_> {
    /// Prints the directive after the `%` just read.
    fn print(&mut self, out: &mut Sink<'_>) -> Result<(), RenderError> {
        self.good = true;
        let mut spec = self.flags();
        let mut chosen = self.choose();
        chosen = self.width(out, &mut spec, chosen)?;
        chosen = self.precision(out, &mut spec, chosen)?;
        if !chosen {
            self.choose();
        }
        let Some(verb) = self.format[self.at..].chars().next() else {
            return out.push_str("%!(NOVERB)");
        };
        self.at += verb.len_utf8();
        if verb == '%' {
            return out.push('%');
        }
        let complaint = match self.arguments.get(self.next) {
            _ if !self.good => "(BADINDEX)",
            None => "(MISSING)",
            Some(value) => {
                if verb == 'v' || verb == 'w' {
                    spec.go_syntax = std::mem::take(&mut spec.sharp);
                    spec.plus = false;
                }
                self.next += 1;
                return argument(out, value, verb, &spec);
            }
        };
        out.push_str("%!")?;
        out.push(verb)?;
        out.push_str(complaint)
    }

    fn flags(&mut self) -> Spec {
        let mut spec = Spec::default();
        while let Some(flag) = self.byte() {
            match flag {
                b'#' => spec.sharp = true,
                b'0' => spec.zero = true,
                b'+' => spec.plus = true,
                b'-' => spec.minus = true,
                b' ' => spec.space = true,
                _ => break,
            }
            self.at += 1;
        }
        spec
    }

    /// Reads a width, which is a number, or `*` for the next argument. `chosen` is whether `[n]`
    /// preceded the width; returns whether that `[n]` is still unused.
    fn width(&mut self, out: &mut Sink<'_>, spec: &mut Spec, chosen: bool) -> Result<bool, RenderError> {
        if self.byte() != Some(b'*') {
            spec.width = self.number();
            self.good &= !(chosen && spec.width.is_some());
            return Ok(chosen);
        }
        self.at += 1;
        match self.number_argument() {
            Some(width) => {
                spec.width = Some(width.unsigned_abs());
                if width < 0 {
                    spec.minus = true;
                    spec.zero = false;
                }
            }
            None => out.push_str("%!(BADWIDTH)")?,
        }
        Ok(false)
    }

    /// Reads a precision, which is `.` and a number or `*`; `chosen` and the result are those of
    /// [`width`](Self::width).
    fn precision(&mut self, out: &mut Sink<'_>, spec: &mut Spec, chosen: bool) -> Result<bool, RenderError> {
        // A dot at the end of the format is read as the verb.
        if self.byte() != Some(b'.') || self.at + 1 == self.format.len() {
            return Ok(chosen);
        }
        self.at += 1;
        self.good &= !chosen;
        let chosen = self.choose();
        if self.byte() != Some(b'*') {
            spec.precision = Some(self.number().unwrap_or(0));
            return Ok(chosen);
        }
        self.at += 1;
        spec.precision = self.number_argument().and_then(|precision| usize::try_from(precision).ok());
        if spec.precision.is_none() {
            out.push_str("%!(BADPREC)")?;
        }
        Ok(false)
    }

    /// Reads `[n]`, which selects the argument; returns whether there was a number.
    fn choose(&mut self) -> bool {
        if self.byte() != Some(b'[') {
            return false;
        }
        self.reordered = true;
        let rest = &self.format[self.at + 1..];
        let Some(close) = rest.find(']').filter(|_| rest.len() >= 2) else {
            self.good = false;
            self.at += 1;
            return false;
        };
        self.at += close + 2;
        let number =
            rest[..close].parse::<usize>().ok().filter(|_| rest[..close].bytes().all(|b| b.is_ascii_digit()));
        let number = number.filter(|number| *number <= LARGEST_READ);
        match number.and_then(|number| number.checked_sub(1)).filter(|index| *index < self.arguments.len()) {
            Some(index) => self.next = index,
            None => self.good = false,
        }
        number.is_some()
    }

    /// Reads a decimal number. A number that is far too long consumes the rest of the format.
    fn number(&mut self) -> Option<usize> {
        let mut number = None;
        while let Some(digit @ b'0'..=b'9') = self.byte() {
            let before: usize = number.unwrap_or(0);
            if before > LARGEST {
                self.at = self.format.len();
                return None;
            }
            number = Some(before * 10 + usize::from(digit - b'0'));
            self.at += 1;
        }
        number
    }

    /// Consumes the next argument as a width or precision.
    fn number_argument(&mut self) -> Option<isize> {
        let argument = self.arguments.get(self.next)?;
        self.next += 1;
        let number = argument.integer().and_then(|number| isize::try_from(number).ok())?;
        (number.unsigned_abs() <= LARGEST).then_some(number)
    }

    /// Prints the unused arguments.
    fn extra(&self, out: &mut Sink<'_>) -> Result<(), RenderError> {
        if self.reordered || self.next >= self.arguments.len() {
            return Ok(());
        }
        out.push_str("%!(EXTRA ")?;
        for (index, value) in self.arguments[self.next..].iter().enumerate() {
            if index > 0 {
                out.push_str(", ")?;
            }
            if !matches!(value, Value::Nil) {
                out.push_str(type_name(value, "printf %!(EXTRA)")?)?;
                out.push('=')?;
            }
            argument(out, value, 'v', &Spec::default())?;
        }
        out.push(')')
    }

    fn byte(&self) -> Option<u8> {
        self.format.as_bytes().get(self.at).copied()
    }
}

/// Maximum width or precision from an argument, as in Go. In a format, Go reads no digit after a
/// number above it.
const LARGEST: usize = 1_000_000;

/// Maximum number in a format: `LARGEST` and one more digit.
const LARGEST_READ: usize = LARGEST * 10 + 9;
