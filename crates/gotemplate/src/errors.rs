//! Errors of templates, as data: of parsing ([`ParseError`]) and of rendering ([`RenderError`]).

/// Why a text is no supported template, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ParseError {
    /// The byte in the template's text where the problem starts, from 0.
    pub offset: usize,
    /// The problem.
    pub problem: Problem,
}

/// A problem in a template's text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// `{{` without its `}}`.
    #[error("unclosed action; `}}}}` is missing")]
    UnclosedAction,
    /// `{{/*` without its `*/`.
    #[error("unclosed comment; `*/}}}}` is missing")]
    UnclosedComment,
    /// `*/` without `}}` after it.
    #[error("comment ends before the closing delimiter")]
    CommentNotClosed,
    /// A string or character without its closing quote.
    #[error("unterminated {0}")]
    Unterminated(&'static str),
    /// A backslash sequence that is invalid here in Go.
    #[error("invalid escape or character in {0}")]
    BadEscape(&'static str),
    /// A string literal with bytes that are not UTF-8.
    #[error("string literal is not UTF-8")]
    NotUtf8,
    /// A character that is valid in no token here.
    #[error("unexpected character {0:?}")]
    BadCharacter(char),
    /// An invalid number.
    #[error("bad number syntax {0:?}")]
    BadNumber(String),
    /// A floating-point, imaginary or complex number.
    #[error("number {0:?} is not supported: only integers are")]
    UnsupportedNumber(String),
    /// An integer beyond 64 bits with sign.
    #[error("integer {0:?} is too large")]
    IntegerTooLarge(String),
    /// `(` without its `)` in the same action.
    #[error("unclosed left parenthesis; `)` is missing in this action")]
    UnclosedParenthesis,
    /// A token in an invalid place.
    #[error("unexpected {found} in {context}")]
    Unexpected {
        /// The token.
        found: String,
        /// The construct being parsed.
        context: &'static str,
    },
    /// An action without anything to evaluate.
    #[error("missing value for {0}")]
    MissingValue(&'static str),
    /// `{{end}}` or `{{else}}` without an open `{{if}}`, `{{with}}` or `{{range}}`.
    #[error("unexpected {{{{{0}}}}}")]
    Unopened(&'static str),
    /// The text ends before the `{{end}}` of an action.
    #[error("{{{{{0}}}}} has no {{{{end}}}}")]
    MissingEnd(&'static str),
    /// `{{break}}` or `{{continue}}` not inside the body of a `{{range}}`.
    #[error("{{{{{0}}}}} outside {{{{range}}}}")]
    OutsideRange(&'static str),
    /// A name that is no function.
    #[error("function {name:?} is not defined{}", guess(.nearest))]
    UnknownFunction {
        /// The name as written.
        name: String,
        /// A function with a similar name.
        nearest: Option<String>,
    },
    /// An unsupported function of Go.
    #[error("function {0:?} is not supported")]
    UnsupportedFunction(&'static str),
    /// An unsupported action of Go.
    #[error("{{{{{0}}}}} is not supported")]
    UnsupportedAction(&'static str),
    /// A field that the data does not have.
    #[error("unknown field {path:?}{}", guess(.nearest))]
    UnknownField {
        /// The fields up to and with the unknown one, as written.
        path: String,
        /// A field with a similar name.
        nearest: Option<String>,
    },
    /// A field of a value without fields.
    #[error("{path:?}: {of} has no fields")]
    NoFields {
        /// The fields up to and with the wrong one, as written.
        path: String,
        /// The kind of the value before the last field.
        of: &'static str,
    },
    /// A method without exactly one argument.
    #[error("method {0:?} takes one string")]
    MethodArgument(String),
    /// A function with too many or too few arguments.
    #[error("function {function:?} takes {wanted}, not {got}")]
    Arguments {
        /// The function.
        function: &'static str,
        /// The number of arguments that it takes, in words.
        wanted: &'static str,
        /// The number of arguments given, the piped value included.
        got: usize,
    },
    /// Arguments, or a piped value, for a value that takes none.
    #[error("arguments or a piped value for {0}, which is not a function")]
    NotAFunction(String),
    /// `nil` in a place that needs a value.
    #[error("nil is not a command")]
    NilCommand,
    /// A variable used or assigned outside the scope of a declaration.
    #[error("undefined variable {0:?}")]
    UndefinedVariable(String),
    /// `$` declared or assigned.
    #[error("\"$\" is the data and cannot be set")]
    RootSet,
    /// A declaration or assignment inside parentheses.
    #[error("setting a variable inside parentheses is not supported")]
    SetInParentheses,
    /// More than one variable, or in `range` more than two.
    #[error("too many variables set in {0}")]
    TooManyVariables(&'static str),
    /// An action prints a structure.
    #[error("a structure cannot be printed")]
    PrintsStructure,
    /// A structure in a place that needs a simple value.
    #[error("{0} of a structure; name one of its fields")]
    OfStructure(&'static str),
    /// More nesting than [`MAX_DEPTH`](crate::MAX_DEPTH).
    #[error("nested too deep")]
    TooDeep,
}

/// Why a template could not be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// More output than [`MAX_OUTPUT_BYTES`](crate::MAX_OUTPUT_BYTES).
    #[error("output is too long")]
    OutputTooLong,
    /// More work than [`MAX_STEPS`](crate::MAX_STEPS).
    #[error("template takes too many steps")]
    TooManySteps,
    /// A value to print nests deeper than [`MAX_DEPTH`](crate::MAX_DEPTH).
    #[error("value is nested too deep")]
    TooDeep,
    /// A field of a value that has no such field.
    #[error("{of} has no field {field:?}")]
    NoField {
        /// The field.
        field: String,
        /// The kind of the value.
        of: &'static str,
    },
    /// An argument of the wrong kind.
    #[error("{function} wants {wanted}, not {got}")]
    WrongKind {
        /// The function or method.
        function: String,
        /// The kind that it takes.
        wanted: &'static str,
        /// The kind of the argument.
        got: &'static str,
    },
    /// A kind of value that the function does not support.
    #[error("{function} of {of}")]
    Unfit {
        /// The function or action.
        function: &'static str,
        /// The kind of the value.
        of: &'static str,
    },
    /// An index out of range.
    #[error("index {index} is out of range, length is {length}")]
    OutOfRange {
        /// The index, in decimal.
        index: String,
        /// The length, or for `slice` the capacity.
        length: usize,
    },
    /// `slice` with a start after its end.
    #[error("slice starts at {start}, after its end {end}")]
    SliceBackwards {
        /// The lower index.
        start: usize,
        /// The upper index.
        end: usize,
    },
    /// `slice` with three indexes of a text.
    #[error("text cannot be sliced with three indexes")]
    SliceTextCapacity,
    /// `slice` inside a character of more than one byte.
    #[error("slice cuts a character")]
    CutsCharacter,
    /// Two kinds of value that cannot be compared with each other.
    #[error("cannot compare {left} with {right}")]
    Incomparable {
        /// The kind of the first value.
        left: &'static str,
        /// The kind of the second value.
        right: &'static str,
    },
    /// `parseInt` of a text that is no number in its base.
    #[error("parseInt: {text:?} is not a number in base {base}")]
    NotANumber {
        /// The text.
        text: String,
        /// The base.
        base: i64,
    },
    /// `parseInt` of a number that needs more bits than its bit size.
    #[error("parseInt: {text:?} needs more than {bits} bits")]
    TooManyBits {
        /// The text.
        text: String,
        /// The bit size.
        bits: i64,
    },
    /// `parseInt` with a base that is not 0 or 2 to 36.
    #[error("parseInt: invalid base {0}")]
    InvalidBase(i64),
    /// `parseInt` with a bit size that is not 0 to 64.
    #[error("parseInt: invalid bit size {0}")]
    InvalidBits(i64),
    /// Two variables for a `range` over a number.
    #[error("range over a number sets one variable, not two")]
    RangeVariables,
}

fn guess(nearest: &Option<String>) -> String {
    nearest.as_ref().map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}
