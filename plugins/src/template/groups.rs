//! What the groups of a pattern have found, by number and by name.

use gotemplate::{List, Map, Value};
use regex::{Captures, Regex};

/// Those of one match.
pub(super) struct Groups<'a> {
    pub(super) regex: &'a Regex,
    pub(super) captures: Captures<'a>,
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

    fn keys(&self) -> Vec<&str> {
        self.regex.capture_names().flatten().collect()
    }

    fn absent(&self) -> Value<'_> {
        Value::Text("".into())
    }
}
