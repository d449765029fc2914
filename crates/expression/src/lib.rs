//! Expressions of expr-lang with data of a query: `var` and `expr` of `template`, `expr` of `view`.
//!
//! The crate `expr` checks the syntax. Names, sizes and depth are checked here, when the Corefile
//! is read, and an evaluation has a maximum number of steps: no expression or query can block a
//! worker or fill its memory.

use std::array::from_fn;
use std::cell::{Cell, OnceCell};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use corefile::{Located, Location, Word};
pub use expr::Value;
use expr::{Context, ContextProvider, Environment};
use ipnet::IpNet;
use pest::error::InputLocation;
use plugin::SetupError;
use plugin::cidr::canonical;
use thiserror::Error;

mod lexer;
mod query_facts;

pub use query_facts::QueryFacts;

/// Why an expression cannot be used.
#[derive(Debug, Error)]
pub enum ExpressionError {
    /// It is not valid.
    #[error("the expression cannot be read from {0:?} on")]
    Syntax(String),
    /// It is incomplete.
    #[error("the expression ends too early")]
    Short,
    /// A name that is neither a variable nor a function.
    #[error("{found:?} in the expression is {}{}", unknown(*.has_vars), hint(*.nearest))]
    UnknownName {
        /// The name.
        found: String,
        /// Whether the plugin has variables.
        has_vars: bool,
        /// The known name nearest to it.
        nearest: Option<&'static str>,
    },
    /// A function without parentheses.
    #[error("`{0}` is a function; write `{0}(...)`")]
    NotCalled(String),
    /// An unsupported part of the language.
    #[error("{0:?} in an expression is not supported yet")]
    NotBuilt(String),
    /// A limit was exceeded.
    #[error("the expression is too large: at most {most} {what}")]
    TooLarge {
        /// The bound.
        most: usize,
        /// The unit.
        what: &'static str,
    },
    /// A pattern of `matches`.
    #[error("the regular expression {text:?} cannot be used: {why}")]
    Pattern {
        /// The text of the pattern.
        text: String,
        /// The error of the pattern.
        why: String,
    },
    /// A pattern of `matches` that depends on the query.
    #[error("the pattern of `matches` is to be written here, in quotes")]
    PatternNotWritten,
}

fn unknown(has_vars: bool) -> &'static str {
    if has_vars { "neither a `var` above it nor a function" } else { "no function" }
}

fn hint(word: Option<&'static str>) -> String {
    word.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default()
}

/// A compiled expression.
#[derive(Debug, Clone)]
pub struct Expression {
    program: expr::Program,
}

/// The names that a plugin adds to those of the language and of a query.
#[derive(Debug, Clone, Copy)]
pub enum Names<'n> {
    /// None: `view`.
    None,
    /// `group()`, and these variables: `template`.
    Template(&'n [String]),
}

impl Expression {
    /// Compiles the words of a property, joined by blanks as in CoreDNS.
    ///
    /// # Errors
    /// [`ExpressionError`], with the place of its word.
    pub fn read(plugin: &'static str, words: &[Word], names: Names<'_>) -> Result<Self, Located<SetupError>> {
        let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
        Self::compile(&texts.join(" "), names).map_err(|(position, error)| {
            let mut end = 0;
            let word = words.iter().find(|word| {
                end += word.text.len() + 1;
                position < end
            });
            let at = word
                .or_else(|| words.last())
                .map_or_else(|| Location::file_only("Corefile"), |word| word.at.clone());
            Located::new(&at, SetupError::Own { plugin, error: error.into() })
        })
    }

    /// Compiles an expression. Errors have their position in `text`.
    ///
    /// # Errors
    /// [`ExpressionError`].
    pub fn compile(text: &str, names: Names<'_>) -> Result<Self, (usize, ExpressionError)> {
        // Bounds are checked first: the crate's parser recurses.
        lexer::bounds(text)?;
        // A panic of the crate's parser must not end a reload.
        let compiled = catch_unwind(|| expr::compile(text));
        let program = match compiled {
            Ok(Ok(program)) => program,
            Ok(Err(error)) => return Err(syntax(text, &error)),
            Err(_) => return Err((0, ExpressionError::NotBuilt(text.to_owned()))),
        };
        lexer::names(text, names)?;
        Ok(Self { program })
    }

    /// Evaluates it.
    ///
    /// # Errors
    /// Why it has no value for this query, in one line.
    pub fn run(&self, facts: &Facts<'_>) -> Result<Value, String> {
        let run = catch_unwind(AssertUnwindSafe(|| ENVIRONMENT.run(&self.program, facts)));
        let value = match run {
            _ if facts.steps.get() == 0 => return Err(format!("an expression took more than {STEPS} steps")),
            Ok(Ok(value)) => value,
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err("an expression cannot be evaluated".to_owned()),
        };
        if weight(&value) > WEIGHT {
            return Err(format!("the value of an expression is larger than {WEIGHT} octets"));
        }
        Ok(value)
    }
}

/// Whether a `var` may have this name: an identifier without another meaning.
pub fn is_free(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first == '_' || first.is_ascii_alphabetic())
        && chars.all(|c| c == '_' || c.is_ascii_alphanumeric())
        && !lexer::is_taken(name)
}

fn syntax(text: &str, error: &expr::Error) -> (usize, ExpressionError) {
    let at = match error {
        expr::Error::PestError(error) => match error.location {
            InputLocation::Pos(at) | InputLocation::Span((at, _)) => at,
        },
        _ => 0,
    };
    let at = text.floor_char_boundary(at);
    match text[at..].trim() {
        "" => (at, ExpressionError::Short),
        rest => (at, ExpressionError::Syntax(rest.chars().take(40).collect())),
    }
}

/// Data of a query, each value computed when an expression first needs it.
pub trait QueryData {
    /// Returns the value of a function without arguments, such as `name`.
    fn value(&self, function: &str) -> Value;

    /// Returns the value of a metadata label.
    fn label(&self, label: &str) -> Option<String>;
}

/// The functions of expressions for one query, and its variables.
pub struct Facts<'q> {
    data: &'q dyn QueryData,
    /// Values of the functions about a query, in the order of `lexer::QUERY`.
    functions: [OnceCell<Value>; lexer::QUERY.len()],
    /// Groups and variables.
    values: Vec<(String, Value)>,
    labels: ReadLabels,
    steps: Cell<u32>,
}

/// Labels read so far, with their values, in that order: a linked list, so that references stay
/// valid when labels are added.
#[derive(Default)]
struct ReadLabels(OnceCell<Box<(String, Value, Self)>>);

impl<'q> Facts<'q> {
    /// Creates the facts of a query, without groups and variables.
    pub fn new(data: &'q dyn QueryData) -> Self {
        let functions = from_fn(|_| OnceCell::new());
        Self { data, functions, values: Vec::new(), labels: ReadLabels::default(), steps: Cell::new(STEPS) }
    }

    /// Adds a capture group, by name or number.
    pub fn add_group(&mut self, group: &str, text: &str) {
        self.values.push((format!("group({group})"), text.into()));
    }

    /// Adds a variable.
    pub fn add_var(&mut self, name: &str, value: Value) {
        self.values.push((name.to_owned(), value));
    }

    fn label(&self, label: &str) -> Option<&Value> {
        let mut list = &self.labels;
        while let Some(one) = list.0.get() {
            if one.0 == label {
                return Some(&one.1);
            }
            list = &one.2;
        }
        let value = self.data.label(label)?;
        Some(&list.0.get_or_init(|| Box::new((label.to_owned(), value.into(), ReadLabels::default()))).1)
    }
}

impl ContextProvider for Facts<'_> {
    /// Looks up a name, which takes a step; returns `None` for all names when no step is left.
    fn get(&self, key: &str) -> Option<&Value> {
        let left = self.steps.get().checked_sub(1)?;
        self.steps.set(left);
        if let Some(label) = key.strip_prefix(METADATA) {
            return self.label(label);
        }
        let function = key.strip_suffix("()");
        if let Some(at) = function.and_then(|name| lexer::QUERY.iter().position(|known| *known == name)) {
            return Some(self.functions[at].get_or_init(|| self.data.value(lexer::QUERY[at])));
        }
        self.values.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// `$env` is refused when the Corefile is read.
    fn to_context(&self) -> Context {
        Context::default()
    }
}

/// The functions of the language and those about a query, which look their value up in [`Facts`].
static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    for name in lexer::QUERY {
        environment.add_function(name, |call| {
            if !call.args.is_empty() {
                return Err(format!("{}() takes no argument", call.ident).into());
            }
            call.ctx
                .get(&format!("{}()", call.ident))
                .cloned()
                .ok_or_else(|| "no more steps".to_owned().into())
        });
    }
    environment.add_function("metadata", |call| match call.args.as_slice() {
        [Value::String(label)] => {
            Ok(call.ctx.get(&format!("{METADATA}{label}")).cloned().unwrap_or_else(|| "".into()))
        }
        _ => Err("metadata() takes a label".to_owned().into()),
    });
    environment.add_function("group", |call| {
        let key = match call.args.as_slice() {
            [Value::String(name)] => format!("group({name})"),
            [Value::Integer(number)] => format!("group({number})"),
            _ => return Err("group() takes a name or a number".to_owned().into()),
        };
        Ok(call.ctx.get(&key).cloned().unwrap_or_else(|| "".into()))
    });
    environment.add_function("incidr", |call| {
        let [Value::String(address), Value::String(network)] = call.args.as_slice() else {
            return Err("incidr() takes an address and a network".to_owned().into());
        };
        within(address, network).map(Value::Bool).map_err(Into::into)
    });
    environment.add_function("split", |call| {
        let (text, separator, most) = match call.args.as_slice() {
            [Value::String(text), Value::String(separator)] => (text, separator, -1),
            [Value::String(text), Value::String(separator), Value::Integer(most)] => (text, separator, *most),
            _ => return Err("split() takes a text, a separator and perhaps a number".to_owned().into()),
        };
        let parts: Vec<Value> = match (usize::try_from(most), separator.as_str()) {
            // As in Go, an empty separator separates the characters, without an empty first part.
            (Err(_), "") => text.chars().map(|c| c.to_string().into()).collect(),
            (Ok(_), "") => return Err("split() by nothing takes no number".to_owned().into()),
            (Err(_), separator) => text.split(separator).map(Value::from).collect(),
            (Ok(most), separator) => text.splitn(most, separator).map(Value::from).collect(),
        };
        Ok(Value::Array(parts))
    });
    // Functions that multiply the sizes of their arguments.
    for name in ["replace", "repeat", "join"] {
        environment.add_function(name, move |call| {
            let sizes = |value: &Value| match value {
                Value::Integer(number) => usize::try_from(*number).unwrap_or_default(),
                value => weight(value),
            };
            let product = call.args.iter().map(|value| sizes(value).max(1)).fold(1, usize::saturating_mul);
            if product > PRODUCT {
                return Err(format!("{name}() would make too large a value").into());
            }
            PLAIN.eval_func(call.ctx, name, call.args, call.predicate)
        });
    }
    environment
});

/// The functions of the language, unchanged.
static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(Environment::new);

/// Whether `address` is within `network`, as Go's `net` reads both: an IPv4 address is in no IPv6 network but a mapped one.
fn within(address: &str, network: &str) -> Result<bool, String> {
    let address: IpAddr = address.parse().map_err(|_| "incidr(): the first argument is not an IP address")?;
    let bad = |_| format!("incidr(): {network:?} is not a network such as 10.0.0.0/8");
    Ok(canonical(network.parse::<IpNet>().map_err(bad)?).contains(&address.to_canonical()))
}

/// The approximate size of a value in bytes.
fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => 1 + text.len(),
        Value::Bytes(bytes) => 1 + bytes.len(),
        Value::Array(values) => 1 + values.iter().map(weight).sum::<usize>(),
        Value::Map(values) => 1 + values.iter().map(|(key, value)| key.len() + weight(value)).sum::<usize>(),
        Value::KeyedMap(_) => WEIGHT + 1,
        Value::Integer(_) | Value::Bool(_) | Value::Float(_) | Value::Nil => 1,
    }
}

/// The prefix of labels: no name in an expression begins so.
const METADATA: &str = "metadata(";
/// Maximum number of lookups of names and functions in one evaluation.
const STEPS: u32 = 10_000;
/// Maximum size of an expression's value, in bytes.
const WEIGHT: usize = 4096;
/// Maximum product of the arguments' sizes for a function that multiplies them.
const PRODUCT: usize = 1 << 16;

#[cfg(test)]
mod tests;
