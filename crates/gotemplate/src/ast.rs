//! A compiled template: the parser's output and the renderer's input. All names are resolved, and
//! no node borrows from the template's text.

/// One piece of a template.
#[derive(Debug)]
pub(crate) enum Node {
    /// Literal text.
    Text(Box<str>),
    /// `{{pipeline}}`: prints its value, unless it sets a variable.
    Action(Pipe),
    /// `{{if}}` with its `{{else if}}` arms.
    If(Branches),
    /// `{{with}}` with its `{{else with}}` arms.
    With(Branches),
    /// `{{range}}`.
    Range(Range),
    /// `{{break}}`.
    Break,
    /// `{{continue}}`.
    Continue,
}

/// The arms of `if` or `with`, tried in order.
#[derive(Debug)]
pub(crate) struct Branches {
    pub(crate) arms: Vec<(Pipe, Vec<Node>)>,
    pub(crate) otherwise: Vec<Node>,
}

/// A loop over `pipe`'s value; `pipe.set` holds the slots of the element, or of the index and the element.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) pipe: Pipe,
    pub(crate) body: Vec<Node>,
    pub(crate) otherwise: Vec<Node>,
}

/// An expression and the slots of the variables that are set to its value.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) set: Vec<usize>,
    pub(crate) value: Expression,
}

/// An expression with a value.
#[derive(Debug)]
pub(crate) enum Expression {
    Nil,
    Bool(bool),
    Int(i64),
    Text(Box<str>),
    /// `.`
    Dot,
    /// `$`
    Root,
    /// `$name`, by its slot.
    Variable(usize),
    /// `base.name.name`
    Field {
        base: Box<Self>,
        path: Vec<Box<str>>,
    },
    /// `base.Name "argument"`
    Method {
        base: Box<Self>,
        name: Box<str>,
        argument: Box<Self>,
    },
    /// `function argument argument`, or `piped | function argument`, where the piped value is the last argument.
    Call {
        function: Function,
        arguments: Vec<Self>,
        piped: Option<Box<Self>>,
    },
}

/// A function of the template language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    And,
    Or,
    Not,
    Index,
    Slice,
    Len,
    Print,
    Printf,
    Println,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    ParseInt,
}

impl Function {
    /// Returns the function of this name, if there is one.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|function| function.name() == name)
    }

    /// Returns the function's name in templates.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::And => "and",
            Self::Or => "or",
            Self::Not => "not",
            Self::Index => "index",
            Self::Slice => "slice",
            Self::Len => "len",
            Self::Print => "print",
            Self::Printf => "printf",
            Self::Println => "println",
            Self::Eq => "eq",
            Self::Ne => "ne",
            Self::Lt => "lt",
            Self::Le => "le",
            Self::Gt => "gt",
            Self::Ge => "ge",
            Self::ParseInt => "parseInt",
        }
    }

    /// Returns the number of arguments: minimum, maximum, and in words.
    pub(crate) fn arguments(self) -> (usize, usize, &'static str) {
        match self {
            Self::And | Self::Or | Self::Index | Self::Printf => (1, usize::MAX, "one or more arguments"),
            Self::Print | Self::Println => (0, usize::MAX, "any number of arguments"),
            Self::Eq => (2, usize::MAX, "two or more arguments"),
            Self::Not | Self::Len => (1, 1, "one argument"),
            Self::Ne | Self::Lt | Self::Le | Self::Gt | Self::Ge => (2, 2, "two arguments"),
            Self::ParseInt => (3, 3, "three arguments"),
            Self::Slice => (1, 4, "one to four arguments"),
        }
    }

    pub(crate) const ALL: [Self; 16] = [
        Self::And,
        Self::Or,
        Self::Not,
        Self::Index,
        Self::Slice,
        Self::Len,
        Self::Print,
        Self::Printf,
        Self::Println,
        Self::Eq,
        Self::Ne,
        Self::Lt,
        Self::Le,
        Self::Gt,
        Self::Ge,
        Self::ParseInt,
    ];
}
