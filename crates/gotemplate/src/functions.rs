//! The functions of templates, called with evaluated arguments. The renderer handles `and`, `or`
//! and the evaluation of arguments.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::ast::Function;
use crate::errors::RenderError;
use crate::literal::{NumberFault, excerpt, parse_unsigned};
use crate::value::{Value, to_int};
use crate::{format, printf};

/// Calls `function`. The parser has counted the arguments.
pub(crate) fn call<'v>(function: Function, values: &[Value<'v>]) -> Result<Value<'v>, RenderError> {
    match (function, values) {
        (Function::Print, _) => format::print(values).map(Value::from),
        (Function::Println, _) => format::println(values).map(Value::from),
        (Function::Printf, [format, arguments @ ..]) => {
            printf::printf(text(function, format)?, arguments).map(Value::from)
        }
        (Function::Not, [value]) => Ok(Value::Bool(!value.is_true())),
        (Function::Len, [value]) => length(value),
        (Function::Slice, [value, indexes @ ..]) => slice(value, indexes),
        (Function::Eq, [first, others @ ..]) => any_equal(first, others).map(Value::Bool),
        (Function::Ne, [left, right]) => Ok(Value::Bool(!equal(left, right)?)),
        (Function::Lt, [left, right]) => Ok(Value::Bool(compare(left, right)?.is_lt())),
        (Function::Le, [left, right]) => Ok(Value::Bool(compare(left, right)?.is_le())),
        (Function::Gt, [left, right]) => Ok(Value::Bool(compare(left, right)?.is_gt())),
        (Function::Ge, [left, right]) => Ok(Value::Bool(compare(left, right)?.is_ge())),
        (Function::ParseInt, [number, base, bits]) => parse_int(number, base, bits),
        _ => Err(RenderError::Unfit { function: function.name(), of: "wrong number of arguments" }),
    }
}

/// Returns the element of a list, the byte of a text, or the value of a map at `index`.
pub(crate) fn index<'v>(item: &Value<'v>, index: &Value<'v>) -> Result<Value<'v>, RenderError> {
    match item {
        Value::Text(text) => {
            let at = position(index, text.len())?;
            text.as_bytes()
                .get(at)
                .map(|byte| Value::Uint8(*byte))
                .ok_or_else(|| out_of_range(index, text.len()))
        }
        Value::List(list) => {
            let at = position(index, list.count())?;
            list.get(at).ok_or_else(|| out_of_range(index, list.count()))
        }
        Value::Map(map) => match index {
            Value::Text(key) => Ok(map.get(key).unwrap_or_else(|| map.absent())),
            _ => Err(wrong_kind("index of a map", "string", index)),
        },
        _ => Err(RenderError::Unfit { function: "index", of: item.kind() }),
    }
}

/// Slices a value as Go's `value[i:j:k]`; each index is optional.
fn slice<'v>(value: &Value<'v>, indexes: &[Value<'v>]) -> Result<Value<'v>, RenderError> {
    let (length, capacity) = match value {
        Value::Text(_) if indexes.len() > 2 => return Err(RenderError::SliceTextCapacity),
        Value::Text(text) => (text.len(), text.len()),
        Value::List(list) => (list.count(), list.capacity()),
        _ => return Err(RenderError::Unfit { function: "slice", of: value.kind() }),
    };
    let mut bounds = [0, length, capacity];
    for (bound, index) in bounds.iter_mut().zip(indexes) {
        *bound = position(index, capacity)?;
    }
    let [start, end, limit] = bounds;
    for (start, end) in [(start, end), (end, limit)] {
        if start > end {
            return Err(RenderError::SliceBackwards { start, end });
        }
    }
    match value {
        Value::Text(Cow::Borrowed(text)) => text.get(start..end).map(Value::from),
        Value::Text(Cow::Owned(text)) => text.get(start..end).map(|part| Value::from(part.to_owned())),
        Value::List(list) => Some(Value::List(list.cut(start, end, limit))),
        _ => None,
    }
    .ok_or(RenderError::CutsCharacter)
}

fn length<'v>(value: &Value<'v>) -> Result<Value<'v>, RenderError> {
    let length = match value {
        Value::Text(text) => text.len(),
        Value::List(list) => list.count(),
        Value::Map(map) => map.keys().len(),
        _ => return Err(RenderError::Unfit { function: "len", of: value.kind() }),
    };
    Ok(Value::Int(to_int(length)))
}

/// Returns an index, which must be from 0 to `limit`.
fn position(index: &Value<'_>, limit: usize) -> Result<usize, RenderError> {
    let number = index.integer().ok_or_else(|| wrong_kind("index", "int", index))?;
    usize::try_from(number).ok().filter(|at| *at <= limit).ok_or_else(|| out_of_range(index, limit))
}

fn out_of_range(index: &Value<'_>, length: usize) -> RenderError {
    RenderError::OutOfRange { index: index.integer().unwrap_or_default().to_string(), length }
}

fn any_equal(first: &Value<'_>, others: &[Value<'_>]) -> Result<bool, RenderError> {
    for other in others {
        if equal(first, other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Compares two values as Go's `eq`: integers of all kinds are comparable, nil equals only nil.
fn equal(left: &Value<'_>, right: &Value<'_>) -> Result<bool, RenderError> {
    match (left, right) {
        (Value::Nil, Value::Nil) => Ok(true),
        (Value::Nil, _) | (_, Value::Nil) => Ok(false),
        (Value::Bool(left), Value::Bool(right)) => Ok(left == right),
        _ => compare(left, right).map(Ordering::is_eq),
    }
}

fn compare(left: &Value<'_>, right: &Value<'_>) -> Result<Ordering, RenderError> {
    if let (Value::Text(left), Value::Text(right)) = (left, right) {
        return Ok(left.as_bytes().cmp(right.as_bytes()));
    }
    match (left.integer(), right.integer()) {
        (Some(left), Some(right)) => Ok(left.cmp(&right)),
        _ => Err(RenderError::Incomparable { left: left.kind(), right: right.kind() }),
    }
}

/// Calls `parseInt`, which CoreDNS adds to Go's functions: Go's `strconv.ParseUint`.
fn parse_int<'v>(number: &Value<'v>, base: &Value<'v>, bits: &Value<'v>) -> Result<Value<'v>, RenderError> {
    let number = text(Function::ParseInt, number)?;
    let (base, bits) = (int(base)?, int(bits)?);
    let radix = u32::try_from(base).ok().filter(|base| matches!(base, 0 | 2..=36));
    let radix = radix.ok_or(RenderError::InvalidBase(base))?;
    let width = match bits {
        0 => 64,
        1..=64 => bits,
        _ => return Err(RenderError::InvalidBits(bits)),
    };
    let too_many = || RenderError::TooManyBits { text: excerpt(number), bits: width };
    match parse_unsigned(number, radix) {
        Ok(value) if width == 64 || value >> width == 0 => Ok(Value::Uint64(value)),
        Ok(_) | Err(NumberFault::Range) => Err(too_many()),
        Err(NumberFault::Syntax) => Err(RenderError::NotANumber { text: excerpt(number), base }),
    }
}

fn text<'a>(function: Function, value: &'a Value<'_>) -> Result<&'a str, RenderError> {
    match value {
        Value::Text(text) => Ok(text),
        _ => Err(wrong_kind(function.name(), "string", value)),
    }
}

/// Returns an argument of the kind `int`; as in Go, no other kind of integer is converted.
fn int(value: &Value<'_>) -> Result<i64, RenderError> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(wrong_kind(Function::ParseInt.name(), "int", value)),
    }
}

fn wrong_kind(function: &str, wanted: &'static str, value: &Value<'_>) -> RenderError {
    RenderError::WrongKind { function: function.to_owned(), wanted, got: value.kind() }
}
