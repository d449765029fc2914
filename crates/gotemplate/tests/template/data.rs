//! Data as in CoreDNS's templates, for one query that matched a pattern with two named groups.

use gotemplate::{Fields, List, Map, ParseError, RenderError, Schema, Template, Value};

/// Renders `text` with [`Data`].
pub(crate) fn render(text: &str) -> Result<String, Failure> {
    let template = Template::parse(text, &schema()).map_err(Failure::Parse)?;
    let mut out = String::new();
    template.render(&Data::new(), &mut out).map_err(Failure::Render)?;
    Ok(out)
}

/// The stage that failed.
#[derive(Debug)]
pub(crate) enum Failure {
    Parse(ParseError),
    Render(RenderError),
}

pub(crate) fn schema() -> Schema {
    let question =
        || Schema::fields([("Name", Schema::Scalar), ("Qtype", Schema::Scalar), ("Qclass", Schema::Scalar)]);
    let message = Schema::fields([
        ("Id", Schema::Scalar),
        ("Response", Schema::Scalar),
        ("Question", Schema::list(question())),
    ]);
    Schema::fields([
        ("Zone", Schema::Scalar),
        ("Name", Schema::Scalar),
        ("Class", Schema::Scalar),
        ("Type", Schema::Scalar),
        ("Remote", Schema::Scalar),
        ("Match", Schema::list(Schema::Scalar)),
        ("Group", Schema::map(["a", "b", "empty", "missing"], Schema::Scalar)),
        ("Var", Schema::map(["text", "count", "yes", "none", "list", "uni", "missing"], Schema::Any)),
        ("Message", message),
        ("Question", question()),
        ("Meta", Schema::Method),
    ])
}

pub(crate) struct Data {
    matches: Vec<&'static str>,
    groups: Groups,
    variables: Variables,
    message: Message,
}

impl Data {
    pub(crate) fn new() -> Self {
        let matches = vec!["ip-10-0-0-7", "10", "0", "7"];
        Self {
            matches,
            groups: Groups,
            variables: Variables { list: Mixed },
            message: Message { questions: Questions },
        }
    }
}

impl Fields for Data {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "Zone" => "example.".into(),
            "Name" => "ip-10-0-0-7.example.".into(),
            "Class" => "IN".into(),
            "Type" => "A".into(),
            "Remote" => "192.0.2.1".into(),
            "Match" => Value::list(&self.matches),
            "Group" => Value::Map(&self.groups),
            "Var" => Value::Map(&self.variables),
            "Message" => Value::Fields(&self.message),
            "Question" => Value::Fields(&Question),
            _ => return None,
        })
    }

    fn call(&self, name: &str, argument: &str) -> Option<Value<'_>> {
        (name == "Meta").then(|| if argument == "test/label" { "value".into() } else { "".into() })
    }
}

struct Groups;

impl Map for Groups {
    fn get(&self, key: &str) -> Option<Value<'_>> {
        Some(match key {
            "a" => "10".into(),
            "b" => "ff".into(),
            "empty" => "".into(),
            _ => return None,
        })
    }

    fn keys(&self) -> Vec<&str> {
        vec!["empty", "b", "a"]
    }

    fn absent(&self) -> Value<'_> {
        "".into()
    }
}

struct Variables {
    list: Mixed,
}

impl Map for Variables {
    fn get(&self, key: &str) -> Option<Value<'_>> {
        Some(match key {
            "text" => "hi".into(),
            "count" => Value::Int(3),
            "yes" => Value::Bool(true),
            "none" => Value::Nil,
            "list" => Value::list(&self.list),
            "uni" => "né日".into(),
            _ => return None,
        })
    }

    fn keys(&self) -> Vec<&str> {
        vec!["text", "count", "yes", "none", "list", "uni"]
    }

    fn absent(&self) -> Value<'_> {
        Value::Nil
    }
}

struct Mixed;

impl List for Mixed {
    fn count(&self) -> usize {
        3
    }

    fn get(&self, index: usize) -> Option<Value<'_>> {
        [Value::from("x"), Value::Int(2), Value::Nil].into_iter().nth(index)
    }
}

struct Message {
    questions: Questions,
}

impl Fields for Message {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "Id" => Value::Uint16(4660),
            "Response" => Value::Bool(false),
            "Question" => Value::list(&self.questions),
            _ => return None,
        })
    }
}

struct Questions;

impl List for Questions {
    fn count(&self) -> usize {
        1
    }

    fn get(&self, index: usize) -> Option<Value<'_>> {
        (index == 0).then_some(Value::Fields(&Question))
    }
}

struct Question;

impl Fields for Question {
    fn field(&self, name: &str) -> Option<Value<'_>> {
        Some(match name {
            "Name" => "ip-10-0-0-7.example.".into(),
            "Qtype" | "Qclass" => Value::Uint16(1),
            _ => return None,
        })
    }

    fn printed(&self) -> &'static [&'static str] {
        &["Name", "Qtype", "Qclass"]
    }
}
