//! The value of a `var` for templates, printed as in Go.

use gotemplate::{List, Map, Value};

/// A value that outlives its expression.
#[derive(Debug)]
pub(super) enum Var {
    Nil,
    Bool(bool),
    Int(i64),
    Text(String),
    List(Items),
    Map(Entries),
}

#[derive(Debug)]
pub(super) struct Items(Vec<Var>);

#[derive(Debug, Default)]
pub(super) struct Entries(Vec<(String, Var)>);

impl Var {
    pub(super) fn new(value: &expression::Value) -> Self {
        match value {
            expression::Value::Bool(value) => Self::Bool(*value),
            expression::Value::Integer(number) => Self::Int(*number),
            // Go's shortest form; whole numbers have no point in Go either.
            expression::Value::Float(number) => Self::Text(number.to_string()),
            expression::Value::String(text) => Self::Text(text.clone()),
            expression::Value::Array(values) => Self::List(Items(values.iter().map(Self::new).collect())),
            expression::Value::Bytes(bytes) => {
                Self::List(Items(bytes.iter().map(|byte| Self::Int(i64::from(*byte))).collect()))
            }
            expression::Value::Map(values) => Self::Map(Entries(
                values.iter().map(|(key, value)| (key.clone(), Self::new(value))).collect(),
            )),
            expression::Value::Nil | expression::Value::KeyedMap(_) => Self::Nil,
        }
    }

    pub(super) fn lend(&self) -> Value<'_> {
        match self {
            Self::Nil => Value::Nil,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(number) => Value::Int(*number),
            Self::Text(text) => Value::Text(text.as_str().into()),
            Self::List(items) => Value::list(items),
            Self::Map(entries) => Value::Map(entries),
        }
    }
}

impl List for Items {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Option<Value<'_>> {
        self.0.get(index).map(Var::lend)
    }
}

impl Map for Entries {
    fn get(&self, key: &str) -> Option<Value<'_>> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, value)| value.lend())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn absent(&self) -> Value<'_> {
        Value::Nil
    }
}

impl FromIterator<(String, Var)> for Entries {
    fn from_iter<I: IntoIterator<Item = (String, Var)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}
