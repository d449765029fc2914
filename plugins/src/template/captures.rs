//! Capture groups of a match, by number and by name.

use std::cell::OnceCell;

use gotemplate::{List, Map, Value};
use regex::{Captures, Regex};

/// The groups of one match.
pub(super) struct Groups<'a> {
    regex: &'a Regex,
    captures: Captures<'a>,
    /// The numbers as text: created when all keys are enumerated.
    numbers: OnceCell<Vec<String>>,
}

impl<'a> Groups<'a> {
    pub(super) fn new(regex: &'a Regex, captures: Captures<'a>) -> Self {
        Self { regex, captures, numbers: OnceCell::new() }
    }
}

impl List for Groups<'_> {
    fn count(&self) -> usize {
        self.captures.len()
    }

    fn get(&self, index: usize) -> Option<Value<'_>> {
        (index < self.captures.len())
            .then(|| Value::Text(self.captures.get(index).map_or("", |m| m.as_str()).into()))
    }
}

impl Map for Groups<'_> {
    fn get(&self, key: &str) -> Option<Value<'_>> {
        let group = match key.parse::<usize>() {
            Ok(index) if index < self.captures.len() => self.captures.get(index),
            Ok(_) => return None,
            Err(_) if self.regex.capture_names().flatten().any(|name| name == key) => self.captures.name(key),
            Err(_) => return None,
        };
        Some(Value::Text(group.map_or("", |m| m.as_str()).into()))
    }

    /// Every number, and the names.
    fn keys(&self) -> Vec<&str> {
        let count = self.captures.len();
        let numbers = self.numbers.get_or_init(|| (0..count).map(|number| number.to_string()).collect());
        numbers.iter().map(String::as_str).chain(self.regex.capture_names().flatten()).collect()
    }

    fn absent(&self) -> Value<'_> {
        Value::Text("".into())
    }
}
