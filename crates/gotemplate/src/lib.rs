//! The part of Go's text/template that Corefiles use: compiles template text, and renders a
//! compiled template with the caller's data.
//!
//! This crate knows the template language and how Go prints values. It must not know DNS, regular
//! expressions, Corefiles, or the meaning of fields: the caller names them in a [`Schema`] and
//! passes them as [`Fields`].
//!
//! # Data of CoreDNS's templates
//! Facts of CoreDNS 1.15.0, plugin `template`:
//! - The data is `.Zone .Name .Regex .Class .Type .Remote` (text), `.Match` (list of text: the
//!   whole match, then the groups), `.Group` (text by group name and by number as text), `.Var`
//!   (any value by name, from `var`), `.Question` and `.Message` (structures of the DNS library;
//!   `.Question` has `.Name .Qtype .Qclass`), and the method `.Meta "label"`, which returns text,
//!   empty for an unknown label.
//! - One function is added to Go's own: `parseInt TEXT BASE BITS`, which is Go's
//!   `strconv.ParseUint`: it returns an unsigned 64-bit number and accepts no sign.
//!
//! # Supported
//! Text, trim markers, comments, `.`, `$`, field chains, variables, pipelines, parentheses, strings, characters,
//! integers, booleans, `nil`; `if`, `with`, `range`, `else`, `break`, `continue`; the functions `and or not index
//! slice len print printf println eq ne lt le gt ge parseInt`. Output is what Go prints.
//!
//! # Differences from Go
//! - Errors that Go finds when it renders are found when the template is parsed, also in parts that
//!   Go would not reach: unknown field, wrong number of arguments, variable assigned but never
//!   declared.
//! - Rejected, with an error that names it: `define`, `block`, `template`, `call`, `html`, `js`,
//!   `urlquery`, numbers that are not integers, a variable declared inside parentheses.
//! - Text is UTF-8: a literal that is not, and a `slice` that cuts a character, are errors.
//! - A structure cannot be compared, and is printed only as an element of a list. The Go type of a
//!   list or map cannot be printed (`%T`, `%#v`).
//! - `%q` escapes combining marks and unassigned characters alike; Go leaves combining marks.
//! - Rendering is bounded, see [`MAX_OUTPUT_BYTES`] and [`MAX_STEPS`].

mod ast;
mod bounded_string;
mod errors;
mod format;
mod functions;
mod lex;
mod literal;
mod parse;
mod printf;
mod quote;
mod render;
mod schema;
mod token;
mod value;

pub use errors::{ParseError, Problem, RenderError};
pub use schema::Schema;
pub use value::{Fields, List, ListView, Map, Value};

/// A compiled template. It borrows nothing, and several threads may render it at once.
///
/// ```
/// use gotemplate::{Fields, Schema, Template, Value};
///
/// struct Query(&'static str);
///
/// impl Fields for Query {
///     fn field(&self, name: &str) -> Option<Value<'_>> {
///         (name == "Name").then(|| self.0.into())
///     }
/// }
///
/// let schema = Schema::fields([("Name", Schema::Scalar)]);
/// let template = Template::parse("{{ .Name }} 60 IN A 192.0.2.1", &schema)?;
/// let mut out = String::new();
/// template.render(&Query("host.example."), &mut out)?;
/// assert_eq!(out, "host.example. 60 IN A 192.0.2.1");
/// assert!(Template::parse("{{ .Nmae }}", &schema).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Template {
    body: Vec<ast::Node>,
    /// Maximum number of variables alive at the same time.
    slots: usize,
}

impl Template {
    /// Compiles `text`, a whole template, against the fields of `schema`.
    ///
    /// # Errors
    /// [`ParseError`], with the byte in `text` where the problem starts: the text is no template,
    /// uses an unsupported part of the language, or names a field that is not in `schema`.
    pub fn parse(text: &str, schema: &Schema) -> Result<Self, ParseError> {
        let (body, slots) = parse::parse(text, schema)?;
        Ok(Self { body, slots })
    }

    /// Renders the template with `fields` and appends the result to `out`. On an error `out` is
    /// unchanged.
    ///
    /// # Errors
    /// [`RenderError`]: a value has the wrong kind for its place, or a bound is reached.
    pub fn render(&self, fields: &dyn Fields, out: &mut String) -> Result<(), RenderError> {
        let start = out.len();
        let rendered = render::render(&self.body, self.slots, fields, out);
        if rendered.is_err() {
            out.truncate(start);
        }
        rendered
    }
}

/// Maximum output of one rendering, and of a text that any of its functions builds, in bytes. A
/// resource record has at most 65535 octets of data (RFC 1035, section 3.2.1).
pub const MAX_OUTPUT_BYTES: usize = 64 * 1024;

/// Maximum number of steps of one rendering. A step is one piece of text, one action, one
/// expression or one iteration of `range`; text that a function reads counts one more for each 64
/// bytes.
pub const MAX_STEPS: u32 = 64 * 1024;

/// Maximum nesting of parentheses, control actions and pipeline stages in a template, and of lists
/// and maps in a printed value.
pub const MAX_DEPTH: usize = 100;
