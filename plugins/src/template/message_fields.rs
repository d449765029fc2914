//! Fields of a query's message and question, for templates.

use gotemplate::{Fields, List, Value};
use wire::{Flags, Query};

/// A query with the fields of Go's DNS library: a message, its list of questions, and its question.
pub(super) struct Asked<'a> {
    pub(super) query: &'a Query<'a>,
    pub(super) name: &'a str,
}

/// The fields of message and question in one value; the schema assigns each to one of them.
impl Fields for Asked<'_> {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        let Query { id, flags, rtype, class, .. } = self.query;
        Some(match name {
            "Id" => Value::Uint16(*id),
            "RecursionDesired" => Value::Bool(flags.has(Flags::RD)),
            "CheckingDisabled" => Value::Bool(flags.has(Flags::CD)),
            "AuthenticatedData" => Value::Bool(flags.has(Flags::AD)),
            "Question" => Value::list(self),
            "Name" => Value::Text(self.name.into()),
            "Qtype" => Value::Uint16(rtype.0),
            "Qclass" => Value::Uint16(class.0),
            _ => return None,
        })
    }

    fn printed(&self) -> &'static [&'static str] {
        QUESTION
    }
}

impl List for Asked<'_> {
    fn count(&self) -> usize {
        1
    }

    fn get(&self, index: usize) -> Option<Value<'_>> {
        (index == 0).then_some(Value::Fields(self))
    }
}

/// The fields of a question, in Go's order.
pub(super) const QUESTION: &[&str] = &["Name", "Qtype", "Qclass"];
