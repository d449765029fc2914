//! Values of templates, and traits for the caller's data.

use std::borrow::Cow;

use crate::errors::RenderError;

/// A structure borrowed from the caller: the data of a template, or a part of it.
pub trait Fields {
    /// Returns the value of the field `name`; `None` if there is no such field.
    fn field(&self, name: &str) -> Option<Value<'_>>;

    /// Returns the names of the fields that Go prints, in order, for the structure as an element of
    /// a printed list.
    fn printed(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the result of the method `name` for `argument`; `None` if there is no such method.
    fn call(&self, name: &str, argument: &str) -> Option<Value<'_>> {
        let _ = (name, argument);
        None
    }
}

/// A list borrowed from the caller.
pub trait List {
    /// Returns the number of elements.
    fn count(&self) -> usize;

    /// Returns the element at `index`, from 0; `None` from [`count`](Self::count) on.
    fn get(&self, index: usize) -> Option<Value<'_>>;
}

/// A map with text as keys, borrowed from the caller.
pub trait Map {
    /// Returns the value of `key`, if it has one.
    fn get(&self, key: &str) -> Option<Value<'_>>;

    /// Returns all keys, in any order.
    fn keys(&self) -> Vec<&str>;

    /// Returns the result of `index` for a missing key, which in Go is the zero value of the
    /// values' type: empty text for a map of text, [`Value::Nil`] for a map of any values.
    fn absent(&self) -> Value<'_>;
}

/// A value, mostly borrowed from the caller's data or from the template.
#[derive(Clone)]
pub enum Value<'v> {
    /// Go's `nil`, or a missing key. Printed as `<no value>`, inside `print` as `<nil>`.
    Nil,
    /// A boolean.
    Bool(bool),
    /// Go's `int`: integer literals, lengths.
    Int(i64),
    /// Go's `uint8`: a byte of a text.
    Uint8(u8),
    /// Go's `uint16`: types, classes and message ids of DNS.
    Uint16(u16),
    /// Go's `uint64`: the result of `parseInt`.
    Uint64(u64),
    /// Go's `string`.
    Text(Cow<'v, str>),
    /// Go's slice.
    List(ListView<'v>),
    /// Go's map with text as keys.
    Map(&'v dyn Map),
    /// A structure, or a pointer to one.
    Fields(&'v dyn Fields),
}

impl<'v> Value<'v> {
    /// Creates the value of a whole list.
    pub fn list(items: &'v dyn List) -> Self {
        let count = items.count();
        Self::List(ListView { items, start: 0, end: count, capacity: count })
    }

    /// Returns the kind of the value, by Go's name if there is one.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint8(_) => "uint8",
            Self::Uint16(_) => "uint16",
            Self::Uint64(_) => "uint64",
            Self::Text(_) => "string",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Fields(_) => "structure",
        }
    }

    /// Whether the value is true for `if`: not zero, false, nil or empty.
    pub(crate) fn is_true(&self) -> bool {
        match self {
            Self::Nil => false,
            Self::Bool(value) => *value,
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => list.count() > 0,
            Self::Map(map) => !map.keys().is_empty(),
            Self::Fields(_) => true,
            Self::Int(_) | Self::Uint8(_) | Self::Uint16(_) | Self::Uint64(_) => self.integer() != Some(0),
        }
    }

    /// Returns the number, if the value is an integer of any kind.
    pub(crate) fn integer(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(i128::from(*number)),
            Self::Uint8(number) => Some(i128::from(*number)),
            Self::Uint16(number) => Some(i128::from(*number)),
            Self::Uint64(number) => Some(i128::from(*number)),
            Self::Nil | Self::Bool(_) | Self::Text(_) | Self::List(_) | Self::Map(_) | Self::Fields(_) => {
                None
            }
        }
    }

    /// Follows field names, of structures or as keys of maps. As in Go, a field of a missing value
    /// is nil, but a field of a key's nil value is an error.
    pub(crate) fn follow(self, path: &[Box<str>]) -> Result<Self, RenderError> {
        let mut value = self;
        let mut missing = matches!(value, Self::Nil);
        for name in path {
            let found = match &value {
                _ if missing => return Ok(Self::Nil),
                Self::Map(map) => map.get(name),
                Self::Fields(fields) => Some(fields.field(name).ok_or_else(|| value.no_field(name))?),
                _ => return Err(value.no_field(name)),
            };
            missing = found.is_none();
            value = found.unwrap_or(Self::Nil);
        }
        Ok(value)
    }

    /// Returns the result of the method `name` for `argument`.
    pub(crate) fn call(&self, name: &str, argument: &Self) -> Result<Self, RenderError> {
        let Self::Text(text) = argument else {
            let function = name.to_owned();
            return Err(RenderError::WrongKind { function, wanted: "string", got: argument.kind() });
        };
        let called = match self {
            Self::Fields(fields) => fields.call(name, text),
            _ => None,
        };
        called.ok_or_else(|| self.no_field(name))
    }

    fn no_field(&self, name: &str) -> RenderError {
        RenderError::NoField { field: name.to_owned(), of: self.kind() }
    }
}

impl<'v> From<&'v str> for Value<'v> {
    fn from(text: &'v str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

/// A list or a part of one, as Go's slice: it may be sliced again up to its capacity.
#[derive(Clone, Copy)]
pub struct ListView<'v> {
    items: &'v dyn List,
    start: usize,
    end: usize,
    /// The end of the largest slice of this view, counted from the beginning of the list.
    capacity: usize,
}

impl<'v> ListView<'v> {
    pub(crate) fn count(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn get(&self, index: usize) -> Option<Value<'v>> {
        (index < self.count()).then(|| self.items.get(self.start + index)).flatten()
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Value<'v>> {
        (0..self.count()).map(move |index| self.get(index).unwrap_or(Value::Nil))
    }

    /// Returns the maximum number of elements of a slice of this view.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity - self.start
    }

    /// Returns the elements from `start` to before `end`, which may be sliced again up to
    /// `capacity`; the caller has checked that the three are in ascending order and that `capacity`
    /// is not above [`capacity`](Self::capacity).
    pub(crate) fn cut(&self, start: usize, end: usize, capacity: usize) -> Self {
        Self {
            items: self.items,
            start: self.start + start,
            end: self.start + end,
            capacity: self.start + capacity,
        }
    }
}

impl<S: AsRef<str>> List for Vec<S> {
    fn count(&self) -> usize {
        self.len()
    }

    fn get(&self, index: usize) -> Option<Value<'_>> {
        self.as_slice().get(index).map(|text| Value::from(text.as_ref()))
    }
}

/// Converts a count to Go's `int`.
pub(crate) fn to_int(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
