//! Go's formatting of one value: plain, or by a verb with its flags.

use crate::MAX_DEPTH;
use crate::bounded_string::Sink;
use crate::errors::RenderError;
use crate::quote;
use crate::value::Value;

/// The flags, width and precision of a verb.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spec {
    pub(crate) minus: bool,
    pub(crate) plus: bool,
    pub(crate) sharp: bool,
    pub(crate) space: bool,
    pub(crate) zero: bool,
    /// `%#v`
    pub(crate) go_syntax: bool,
    /// The minimum width, in characters.
    pub(crate) width: Option<usize>,
    /// The minimum digits of a number, or the maximum characters of a text.
    pub(crate) precision: Option<usize>,
}

/// Prints the value of an action.
pub(crate) fn action(out: &mut Sink<'_>, value: &Value<'_>) -> Result<(), RenderError> {
    match value {
        Value::Nil => out.push_str("<no value>"),
        Value::Text(text) => out.push_str(text),
        _ => plain(out, value),
    }
}

/// Prints values as Go's `fmt.Sprint`: a blank separates two neighbours unless one of them is text.
pub(crate) fn print(values: &[Value<'_>]) -> Result<String, RenderError> {
    let mut text = String::new();
    let mut out = Sink::new(&mut text);
    for (index, value) in values.iter().enumerate() {
        let is_text = |value: &Value<'_>| matches!(value, Value::Text(_));
        if index > 0 && !is_text(value) && !is_text(&values[index - 1]) {
            out.push(' ')?;
        }
        plain(&mut out, value)?;
    }
    Ok(text)
}

/// Prints values as Go's `fmt.Sprintln`: a blank between all, a line break at the end.
pub(crate) fn println(values: &[Value<'_>]) -> Result<String, RenderError> {
    let mut text = String::new();
    let mut out = Sink::new(&mut text);
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            out.push(' ')?;
        }
        plain(&mut out, value)?;
    }
    out.push('\n')?;
    Ok(text)
}

fn plain(out: &mut Sink<'_>, value: &Value<'_>) -> Result<(), RenderError> {
    argument(out, value, 'v', &Spec::default())
}

/// Prints `value` by `verb`.
pub(crate) fn argument(
    out: &mut Sink<'_>,
    value: &Value<'_>,
    verb: char,
    spec: &Spec,
) -> Result<(), RenderError> {
    match (verb, value) {
        ('v' | 'T', Value::Nil) => padded(out, "<nil>", spec),
        ('T', _) => padded(out, truncated(type_name(value, "printf %T")?, spec), spec),
        _ => by_verb(out, value, verb, spec, 0),
    }
}

/// Returns Go's name of a value's type. Fails for structures, and for lists and maps, since Go's
/// name contains the type of their elements.
pub(crate) fn type_name(value: &Value<'_>, function: &'static str) -> Result<&'static str, RenderError> {
    match value {
        Value::List(_) | Value::Map(_) | Value::Fields(_) => {
            Err(RenderError::Unfit { function, of: value.kind() })
        }
        _ => Ok(value.kind()),
    }
}

fn by_verb(
    out: &mut Sink<'_>,
    value: &Value<'_>,
    verb: char,
    spec: &Spec,
    depth: usize,
) -> Result<(), RenderError> {
    match value {
        Value::Nil if depth > 0 => out.push_str("<nil>"),
        Value::Nil => bad_verb(out, value, verb, spec),
        Value::Bool(flag) => match verb {
            't' | 'v' => padded(out, if *flag { "true" } else { "false" }, spec),
            _ => bad_verb(out, value, verb, spec),
        },
        Value::Text(text) => match verb {
            'v' if spec.go_syntax => quoted(out, text, spec),
            'v' | 's' => padded(out, truncated(text, spec), spec),
            'q' => quoted(out, text, spec),
            'x' | 'X' => hexadecimal(out, text, verb == 'X', spec),
            _ => bad_verb(out, value, verb, spec),
        },
        Value::Int(number) => {
            integer(out, Number { bits: number.cast_unsigned(), signed: true }, value, verb, spec)
        }
        Value::Uint8(number) => integer(out, Number::unsigned(u64::from(*number)), value, verb, spec),
        Value::Uint16(number) => integer(out, Number::unsigned(u64::from(*number)), value, verb, spec),
        Value::Uint64(number) => integer(out, Number::unsigned(*number), value, verb, spec),
        // Go prints the type or the address of the value here, which are unknown.
        Value::List(_) | Value::Map(_) if matches!(verb, 'p' | 'w') || spec.go_syntax => {
            let function = if spec.go_syntax { "printf %#v" } else { "printf %p or %w" };
            Err(RenderError::Unfit { function, of: value.kind() })
        }
        Value::List(_) | Value::Map(_) if depth >= MAX_DEPTH => Err(RenderError::TooDeep),
        Value::List(list) => {
            out.push('[')?;
            for (index, element) in list.iter().enumerate() {
                if index > 0 {
                    out.push(' ')?;
                }
                by_verb(out, &element, verb, spec, depth + 1)?;
            }
            out.push(']')
        }
        Value::Map(map) => {
            let mut keys = map.keys();
            keys.sort_unstable();
            out.push_str("map[")?;
            for (index, key) in keys.into_iter().enumerate() {
                if index > 0 {
                    out.push(' ')?;
                }
                by_verb(out, &Value::from(key), verb, spec, depth + 1)?;
                out.push(':')?;
                by_verb(out, &map.get(key).unwrap_or(Value::Nil), verb, spec, depth + 1)?;
            }
            out.push(']')
        }
        Value::Fields(fields) if depth > 0 && !fields.printed().is_empty() => {
            out.push('{')?;
            for (index, name) in fields.printed().iter().enumerate() {
                if index > 0 {
                    out.push(' ')?;
                }
                by_verb(out, &fields.field(name).unwrap_or(Value::Nil), verb, spec, depth + 1)?;
            }
            out.push('}')
        }
        Value::Fields(_) => Err(RenderError::Unfit { function: "print", of: value.kind() }),
    }
}

/// Prints a value with a verb that does not fit it, as Go does: `%!d(string=hi)`.
fn bad_verb(out: &mut Sink<'_>, value: &Value<'_>, verb: char, spec: &Spec) -> Result<(), RenderError> {
    out.push_str("%!")?;
    out.push(verb)?;
    out.push('(')?;
    if matches!(value, Value::Nil) {
        out.push_str("<nil>")?;
    } else {
        out.push_str(value.kind())?;
        out.push('=')?;
        by_verb(out, value, 'v', spec, 0)?;
    }
    out.push(')')
}

/// An integer: its 64 bits, and whether they are in two's complement.
#[derive(Clone, Copy)]
struct Number {
    bits: u64,
    signed: bool,
}

impl Number {
    fn unsigned(bits: u64) -> Self {
        Self { bits, signed: false }
    }

    fn is_negative(self) -> bool {
        self.signed && self.bits.cast_signed() < 0
    }

    fn magnitude(self) -> u64 {
        if self.is_negative() { self.bits.cast_signed().unsigned_abs() } else { self.bits }
    }
}

fn integer(
    out: &mut Sink<'_>,
    number: Number,
    value: &Value<'_>,
    verb: char,
    spec: &Spec,
) -> Result<(), RenderError> {
    let magnitude = number.magnitude();
    let hexadecimal_prefix = |prefix| if spec.sharp { prefix } else { "" };
    match verb {
        'v' if spec.go_syntax && !number.signed => digits(out, number, format!("{magnitude:x}"), "0x", spec),
        'v' | 'd' => digits(out, number, magnitude.to_string(), "", spec),
        'b' => digits(out, number, format!("{magnitude:b}"), if spec.sharp { "0b" } else { "" }, spec),
        'o' | 'O' => {
            let octal = format!("{magnitude:o}");
            let prefix = octal_prefix(verb == 'O', &octal, number, spec);
            digits(out, number, octal, prefix, spec)
        }
        'x' => digits(out, number, format!("{magnitude:x}"), hexadecimal_prefix("0x"), spec),
        'X' => digits(out, number, format!("{magnitude:X}"), hexadecimal_prefix("0X"), spec),
        'c' => padded(out, character(number.bits).encode_utf8(&mut [0; 4]), spec),
        'q' => padded(out, &quote::character(character(number.bits), spec.plus), spec),
        'U' => unicode(out, number.bits, spec),
        _ => bad_verb(out, value, verb, spec),
    }
}

fn character(bits: u64) -> char {
    u32::try_from(bits).ok().and_then(char::from_u32).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Returns the prefix of octal digits. The flag `#` adds a leading 0 if there is none yet.
fn octal_prefix(verb_o: bool, octal: &str, number: Number, spec: &Spec) -> &'static str {
    let has_zero = octal.starts_with('0') || least_digits(number, spec) > octal.len();
    match (verb_o, spec.sharp && !has_zero) {
        (false, false) => "",
        (false, true) => "0",
        (true, false) => "0o",
        (true, true) => "0o0",
    }
}

/// Returns the minimum number of digits: the precision, or the width with the flag `0`.
fn least_digits(number: Number, spec: &Spec) -> usize {
    match (spec.precision, spec.width) {
        (Some(precision), _) => precision,
        (None, Some(width)) if spec.zero && !spec.minus => {
            width.saturating_sub(usize::from(number.is_negative() || spec.plus || spec.space))
        }
        _ => 0,
    }
}

/// Writes a number: blanks, sign, prefix, zeros, digits.
fn digits(
    out: &mut Sink<'_>,
    number: Number,
    digits: String,
    prefix: &str,
    spec: &Spec,
) -> Result<(), RenderError> {
    let width = spec.width.unwrap_or(0);
    if spec.precision == Some(0) && number.bits == 0 {
        return out.repeat(' ', width);
    }
    let zeros = least_digits(number, spec).saturating_sub(digits.len());
    let sign = match number.is_negative() {
        true => "-",
        false if spec.plus => "+",
        false if spec.space => " ",
        false => "",
    };
    let blanks = width.saturating_sub(sign.len() + prefix.len() + zeros + digits.len());
    if !spec.minus {
        out.repeat(' ', blanks)?;
    }
    out.push_str(sign)?;
    out.push_str(prefix)?;
    out.repeat('0', zeros)?;
    out.push_str(&digits)?;
    out.repeat(' ', if spec.minus { blanks } else { 0 })
}

/// Writes a code point: `U+0078`, or with the flag `#` `U+0078 'x'`.
fn unicode(out: &mut Sink<'_>, bits: u64, spec: &Spec) -> Result<(), RenderError> {
    let hexadecimal = format!("{bits:X}");
    let zeros = spec.precision.unwrap_or(0).max(4).saturating_sub(hexadecimal.len());
    let shown = u32::try_from(bits)
        .ok()
        .and_then(char::from_u32)
        .filter(|shown| spec.sharp && quote::is_print(*shown));
    let shown = shown.map_or_else(String::new, |shown| format!(" '{shown}'"));
    let blanks =
        spec.width.unwrap_or(0).saturating_sub(2 + zeros + hexadecimal.len() + shown.chars().count());
    if !spec.minus {
        out.repeat(' ', blanks)?;
    }
    out.push_str("U+")?;
    out.repeat('0', zeros)?;
    out.push_str(&hexadecimal)?;
    out.push_str(&shown)?;
    out.repeat(' ', if spec.minus { blanks } else { 0 })
}

/// Writes the bytes of a text in hexadecimal. The precision counts bytes; the flag ` ` separates
/// them.
fn hexadecimal(out: &mut Sink<'_>, text: &str, upper: bool, spec: &Spec) -> Result<(), RenderError> {
    let length = spec.precision.map_or(text.len(), |precision| precision.min(text.len()));
    let prefix = match (spec.sharp, upper) {
        (false, _) => "",
        (true, false) => "0x",
        (true, true) => "0X",
    };
    let each = if spec.space { 3 + prefix.len() } else { 2 };
    let total = match (length, spec.space) {
        (0, _) => 0,
        (_, true) => length * each - 1,
        (_, false) => length * each + prefix.len(),
    };
    let padding = spec.width.unwrap_or(0).saturating_sub(total);
    if !spec.minus || length == 0 {
        out.repeat(fill(spec), padding)?;
    }
    for (index, byte) in text.bytes().take(length).enumerate() {
        if spec.space && index > 0 {
            out.push(' ')?;
        }
        if spec.space || index == 0 {
            out.push_str(prefix)?;
        }
        let pair = if upper { format!("{byte:02X}") } else { format!("{byte:02x}") };
        out.push_str(&pair)?;
    }
    out.repeat(' ', if spec.minus && length > 0 { padding } else { 0 })
}

fn quoted(out: &mut Sink<'_>, text: &str, spec: &Spec) -> Result<(), RenderError> {
    let text = truncated(text, spec);
    if spec.sharp && quote::fits_raw(text) {
        return padded(out, &format!("`{text}`"), spec);
    }
    padded(out, &quote::string(text, spec.plus), spec)
}

fn truncated<'t>(text: &'t str, spec: &Spec) -> &'t str {
    let end = spec.precision.and_then(|precision| text.char_indices().nth(precision));
    end.map_or(text, |(end, _)| &text[..end])
}

fn padded(out: &mut Sink<'_>, text: &str, spec: &Spec) -> Result<(), RenderError> {
    let padding = spec.width.map_or(0, |width| width.saturating_sub(text.chars().count()));
    if spec.minus {
        out.push_str(text)?;
        return out.repeat(' ', padding);
    }
    out.repeat(fill(spec), padding)?;
    out.push_str(text)
}

/// Returns the padding character. As in Go, zeros pad on the left only, and pad texts, too.
fn fill(spec: &Spec) -> char {
    if spec.zero && !spec.minus { '0' } else { ' ' }
}
