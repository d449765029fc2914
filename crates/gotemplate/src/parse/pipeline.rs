//! Parses pipelines: the variables that they set, commands, operands, field chains. Resolves names
//! and counts arguments.

use super::Parser;
use crate::ast::{Expression, Function, Pipe};
use crate::errors::{ParseError, Problem};
use crate::literal::excerpt;
use crate::schema::{Schema, nearest};
use crate::token::Kind;

/// One operand of a command, possibly a function still without arguments.
enum Operand<'t> {
    /// An operand that is a value.
    Value { value: Expression, shape: &'t Schema, literal: bool },
    /// A function's name.
    Function(Function),
    /// A method of `base`.
    Method { base: Expression, name: &'t str },
}

/// The variables that a pipeline sets.
enum Setting<'t> {
    None,
    Declare(Vec<&'t str>),
    Assign(Vec<usize>),
}

impl<'t> Parser<'t> {
    /// Parses a pipeline up to and with the token `close`; returns its expression, the variables
    /// that it sets, and the shape of its value.
    pub(super) fn pipeline(
        &mut self,
        context: &'static str,
        close: &Kind<'_>,
    ) -> Result<(Pipe, &'t Schema), ParseError> {
        let at = self.peek().at;
        let setting = self.setting(context)?;
        let mut stages = 0;
        let mut piped: Option<(Expression, &'t Schema)> = None;
        while self.peek().kind != *close {
            let at = self.peek().at;
            // Each stage is one level of nesting, since the stage before is its last argument.
            self.deeper(at)?;
            stages += 1;
            let before = piped.take().map(|(value, _)| value);
            piped = Some(self.command(before, context)?);
        }
        self.depth -= stages;
        let Some((value, shape)) = piped else {
            return Err(ParseError { offset: at, problem: Problem::MissingValue(context) });
        };
        self.advance();
        let set = match setting {
            Setting::None => Vec::new(),
            Setting::Assign(slots) => slots,
            Setting::Declare(names) => names.into_iter().map(|name| self.declare(name)).collect(),
        };
        Ok((Pipe { set, value }, shape))
    }

    /// Parses `$x :=`, `$x =`, and in `range` `$i, $x :=`, if present.
    fn setting(&mut self, context: &'static str) -> Result<Setting<'t>, ParseError> {
        let mut names: Vec<(&'t str, usize)> = Vec::new();
        loop {
            let Kind::Variable(name) = self.peek().kind else {
                return if names.is_empty() { Ok(Setting::None) } else { Err(self.unexpected(context)) };
            };
            let at = self.peek().at;
            match self.peek_at(1).kind {
                Kind::Declare | Kind::Assign | Kind::Comma => names.push((name, at)),
                _ if names.is_empty() => return Ok(Setting::None),
                _ => {
                    self.advance();
                    return Err(self.unexpected(context));
                }
            }
            self.advance();
            if self.advance().kind != Kind::Comma {
                break;
            }
            if context != "range" || names.len() == 2 {
                return Err(ParseError { offset: at, problem: Problem::TooManyVariables(context) });
            }
        }
        let declares = self.tokens[self.next - 1].kind == Kind::Declare;
        let (_, at) = names[0];
        if let Some((_, at)) = names.iter().find(|(name, _)| *name == "$") {
            return Err(ParseError { offset: *at, problem: Problem::RootSet });
        }
        if context == PARENTHESES {
            return Err(ParseError { offset: at, problem: Problem::SetInParentheses });
        }
        if declares {
            return Ok(Setting::Declare(names.into_iter().map(|(name, _)| name).collect()));
        }
        let slots: Result<_, _> = names.into_iter().map(|(name, at)| self.slot(name, at)).collect();
        Ok(Setting::Assign(slots?))
    }

    fn declare(&mut self, name: &'t str) -> usize {
        self.variables.push(name);
        self.slots = self.slots.max(self.variables.len());
        self.variables.len() - 1
    }

    fn slot(&self, name: &str, at: usize) -> Result<usize, ParseError> {
        self.variables
            .iter()
            .rposition(|variable| *variable == name)
            .ok_or_else(|| ParseError { offset: at, problem: Problem::UndefinedVariable(excerpt(name)) })
    }

    /// Parses one stage of a pipeline and the `|` after it. `piped` is the stage before.
    fn command(
        &mut self,
        piped: Option<Expression>,
        context: &'static str,
    ) -> Result<(Expression, &'t Schema), ParseError> {
        let at = self.peek().at;
        let Some(first) = self.operand()? else {
            return Err(self.unexpected(context));
        };
        let mut arguments = Vec::new();
        let mut shapes = Vec::new();
        while self.peek().spaced {
            let at = self.peek().at;
            let Some(operand) = self.operand()? else { break };
            let (value, shape) = called(operand, at)?;
            arguments.push(value);
            shapes.push(shape);
        }
        match self.peek().kind {
            Kind::Pipe => _ = self.advance(),
            Kind::Close | Kind::CloseParenthesis => {}
            _ => return Err(self.unexpected("operand")),
        }
        call(first, arguments, &shapes, piped).map_err(|problem| ParseError { offset: at, problem })
    }

    /// Parses a term and the fields that follow without a blank; `None` if there is no term.
    fn operand(&mut self) -> Result<Option<Operand<'t>>, ParseError> {
        let at = self.peek().at;
        let Some(term) = self.term()? else { return Ok(None) };
        let follows = |parser: &Self| matches!(parser.peek().kind, Kind::Field(_)) && !parser.peek().spaced;
        if !follows(self) {
            return Ok(Some(term));
        }
        let Operand::Value { value, shape, literal: false } = term else {
            return Err(match term {
                Operand::Method { name, .. } => {
                    ParseError { offset: at, problem: Problem::MethodArgument(name.to_owned()) }
                }
                _ => self.unexpected("operand"),
            });
        };
        if matches!(value, Expression::Dot) {
            return Err(self.unexpected("operand"));
        }
        let mut names = Vec::new();
        while follows(self) {
            if let Kind::Field(name) = self.advance().kind {
                names.push(name);
            }
        }
        chain(value, shape, &names).map(Some).map_err(|problem| ParseError { offset: at, problem })
    }

    /// Parses a literal, function, `.`, `.name.name`, variable or parenthesised pipeline.
    fn term(&mut self) -> Result<Option<Operand<'t>>, ParseError> {
        let at = self.peek().at;
        let literal = |value| Operand::Value { value, shape: &Schema::Scalar, literal: true };
        let operand = match self.peek().kind.clone() {
            Kind::Nil => Operand::Value { value: Expression::Nil, shape: &Schema::Any, literal: true },
            Kind::Bool(value) => literal(Expression::Bool(value)),
            Kind::Int(number) => literal(Expression::Int(number)),
            Kind::String(text) => literal(Expression::Text(text.into())),
            Kind::Dot => Operand::Value { value: Expression::Dot, shape: self.dot, literal: false },
            Kind::Variable("$") => {
                Operand::Value { value: Expression::Root, shape: self.root, literal: false }
            }
            Kind::Variable(name) => {
                let value = Expression::Variable(self.slot(name, at)?);
                Operand::Value { value, shape: &Schema::Any, literal: false }
            }
            Kind::Identifier(name) => {
                Operand::Function(function(name).map_err(|problem| ParseError { offset: at, problem })?)
            }
            Kind::OpenParenthesis => {
                self.advance();
                self.deeper(at)?;
                let (pipe, shape) = self.pipeline(PARENTHESES, &Kind::CloseParenthesis)?;
                self.depth -= 1;
                return Ok(Some(Operand::Value { value: pipe.value, shape, literal: false }));
            }
            Kind::Field(_) => return self.fields().map(Some),
            _ => return Ok(None),
        };
        self.advance();
        Ok(Some(operand))
    }

    /// Parses `.name.name`, fields of the dot.
    fn fields(&mut self) -> Result<Operand<'t>, ParseError> {
        let at = self.peek().at;
        let mut names = Vec::new();
        while let Kind::Field(name) = self.peek().kind {
            if self.peek().spaced && !names.is_empty() {
                break;
            }
            names.push(name);
            self.advance();
        }
        chain(Expression::Dot, self.dot, &names).map_err(|problem| ParseError { offset: at, problem })
    }
}

/// Follows `names` from `base`, which has the shape `shape`.
fn chain<'t>(base: Expression, shape: &'t Schema, names: &[&'t str]) -> Result<Operand<'t>, Problem> {
    let mut shape = shape;
    for (index, name) in names.iter().enumerate() {
        let path = || names[..=index].iter().map(|name| format!(".{}", excerpt(name))).collect::<String>();
        shape = match shape {
            Schema::Any => &Schema::Any,
            Schema::Fields(fields) => {
                let found = fields.iter().find(|(known, _)| known == name);
                let unknown = || {
                    let nearest = nearest(name, fields.iter().map(|(known, _)| known.as_str()));
                    Problem::UnknownField { path: path(), nearest }
                };
                &found.ok_or_else(unknown)?.1
            }
            Schema::Map { keys, values } => {
                if let Some(keys) = keys
                    && !keys.iter().any(|key| key == name)
                {
                    let nearest = nearest(name, keys.iter().map(String::as_str));
                    return Err(Problem::UnknownField { path: path(), nearest });
                }
                values
            }
            Schema::Method => return Err(Problem::MethodArgument(names[index - 1].to_owned())),
            Schema::List(_) => return Err(Problem::NoFields { path: path(), of: "a list" }),
            Schema::Scalar => {
                return Err(Problem::NoFields { path: path(), of: "a text, number or boolean" });
            }
        };
    }
    let (names, method) = match (shape, names) {
        (Schema::Method, [before @ .., method]) => (before, Some(*method)),
        _ => (names, None),
    };
    let value = if names.is_empty() {
        base
    } else {
        Expression::Field { base: Box::new(base), path: names.iter().map(|name| (*name).into()).collect() }
    };
    Ok(match method {
        Some(name) => Operand::Method { base: value, name },
        None => Operand::Value { value, shape, literal: false },
    })
}

/// Returns an operand as an argument. A function or method among the arguments is called without
/// arguments.
fn called(operand: Operand<'_>, at: usize) -> Result<(Expression, &Schema), ParseError> {
    let called = match operand {
        Operand::Value { value, shape, .. } => Ok((value, shape)),
        function => call(function, Vec::new(), &[], None),
    };
    called.map_err(|problem| ParseError { offset: at, problem })
}

/// Calls `first` with its arguments and the piped value.
fn call<'t>(
    first: Operand<'t>,
    mut arguments: Vec<Expression>,
    shapes: &[&'t Schema],
    piped: Option<Expression>,
) -> Result<(Expression, &'t Schema), Problem> {
    let count = arguments.len() + usize::from(piped.is_some());
    match first {
        Operand::Value { value, shape, .. } => match (value, count) {
            (Expression::Nil, 0) => Err(Problem::NilCommand),
            (value, 0) => Ok((value, shape)),
            // A field of a value with unknown shape may turn out to be a method when rendered.
            (Expression::Field { base, mut path }, 1) if *shape == Schema::Any => {
                let name = path.pop().unwrap_or_default();
                let base = if path.is_empty() { base } else { Box::new(Expression::Field { base, path }) };
                let argument = piped.or_else(|| arguments.pop()).map(Box::new);
                let argument = argument.ok_or_else(|| Problem::MethodArgument(name.to_string()))?;
                Ok((Expression::Method { base, name, argument }, &Schema::Any))
            }
            (value, _) => Err(Problem::NotAFunction(noun(&value))),
        },
        Operand::Method { base, name } => {
            let argument = piped.or_else(|| arguments.pop()).filter(|_| count == 1);
            let argument = argument.ok_or_else(|| Problem::MethodArgument(name.to_owned()))?;
            let call =
                Expression::Method { base: Box::new(base), name: name.into(), argument: Box::new(argument) };
            Ok((call, &Schema::Any))
        }
        Operand::Function(function) => {
            let (least, most, wanted) = function.arguments();
            if count < least || count > most {
                return Err(Problem::Arguments { function: function.name(), wanted, got: count });
            }
            let is_structure = shapes.iter().any(|shape| matches!(shape, Schema::Fields(_)));
            if is_structure && !matches!(function, Function::And | Function::Or | Function::Not) {
                return Err(Problem::OfStructure(function.name()));
            }
            let shape = match (function, shapes) {
                (Function::Index, [of, steps @ ..]) if piped.is_none() => {
                    steps.iter().fold(*of, |shape, _| shape.element())
                }
                (Function::Slice, [of, ..]) => *of,
                (Function::And | Function::Or | Function::Index | Function::Slice, _) => &Schema::Any,
                _ => &Schema::Scalar,
            };
            Ok((Expression::Call { function, arguments, piped: piped.map(Box::new) }, shape))
        }
    }
}

fn function(name: &str) -> Result<Function, Problem> {
    if let Some(function) = Function::named(name) {
        return Ok(function);
    }
    if let Some(unsupported) = UNSUPPORTED.into_iter().find(|unsupported| *unsupported == name) {
        return Err(Problem::UnsupportedFunction(unsupported));
    }
    let nearest = nearest(name, Function::ALL.into_iter().map(Function::name));
    Err(Problem::UnknownFunction { name: excerpt(name), nearest })
}

/// Describes a value for errors.
fn noun(value: &Expression) -> String {
    match value {
        Expression::Nil => "nil".to_owned(),
        Expression::Bool(value) => value.to_string(),
        Expression::Int(number) => number.to_string(),
        Expression::Text(text) => format!("{:?}", excerpt(text)),
        Expression::Dot => "\".\"".to_owned(),
        Expression::Root => "\"$\"".to_owned(),
        Expression::Variable(_) => "a variable".to_owned(),
        Expression::Field { path, .. } => {
            format!("{:?}", excerpt(&path.iter().map(|name| format!(".{name}")).collect::<String>()))
        }
        Expression::Method { .. } | Expression::Call { .. } => "a value in parentheses".to_owned(),
    }
}

const PARENTHESES: &str = "parentheses";

/// Functions of Go that are not supported: three escape text for the web, and `call` calls
/// functions in the data.
const UNSUPPORTED: [&str; 4] = ["call", "html", "js", "urlquery"];
