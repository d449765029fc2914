//! Parses tokens to a compiled template: control actions and the scope of variables. Pipelines are
//! in `pipeline`.

mod pipeline;

use crate::MAX_DEPTH;
use crate::ast::{Branches, Node, Range};
use crate::errors::{ParseError, Problem};
use crate::lex;
use crate::literal::excerpt;
use crate::schema::Schema;
use crate::token::{Keyword, Kind, Token};

/// Compiles `text`; returns its nodes and the number of slots for variables.
pub(crate) fn parse(text: &str, schema: &Schema) -> Result<(Vec<Node>, usize), ParseError> {
    let tokens = lex::tokens(text)?;
    let mut parser = Parser {
        tokens,
        next: 0,
        root: schema,
        dot: schema,
        variables: Vec::new(),
        slots: 0,
        loops: 0,
        depth: 0,
    };
    let (nodes, stop) = parser.list()?;
    match stop.kind {
        StopKind::Text => Ok((nodes, parser.slots)),
        StopKind::End => Err(stop.error(Problem::Unopened("end"))),
        StopKind::Else | StopKind::ElseWith(_) => Err(stop.error(Problem::Unopened("else"))),
    }
}

struct Parser<'t> {
    tokens: Vec<Token<'t>>,
    next: usize,
    /// The shape of `$`.
    root: &'t Schema,
    /// The shape of `.` at the current place.
    dot: &'t Schema,
    /// The variables in scope; a variable's position is its slot.
    variables: Vec<&'t str>,
    /// Maximum number of variables in scope together.
    slots: usize,
    /// Number of enclosing `range` bodies.
    loops: usize,
    depth: usize,
}

/// The end of a list of nodes.
struct Stop {
    at: usize,
    kind: StopKind,
}

enum StopKind {
    /// The end of the text.
    Text,
    /// `{{end}}`
    End,
    /// `{{else}}`
    Else,
    /// `{{else if` or `{{else with`; its pipeline follows.
    ElseWith(Keyword),
}

enum Step {
    Node(Node),
    Stop(Stop),
}

impl Stop {
    fn error(&self, problem: Problem) -> ParseError {
        ParseError { offset: self.at, problem }
    }
}

impl<'t> Parser<'t> {
    /// Parses nodes up to the end of their list.
    fn list(&mut self) -> Result<(Vec<Node>, Stop), ParseError> {
        let mut nodes = Vec::new();
        loop {
            let token = self.advance();
            let at = token.at;
            match token.kind {
                Kind::Text(text) => nodes.push(Node::Text(text.into())),
                Kind::Open => match self.action(at)? {
                    Step::Node(node) => nodes.push(node),
                    Step::Stop(stop) => return Ok((nodes, stop)),
                },
                _ => return Ok((nodes, Stop { at, kind: StopKind::Text })),
            }
        }
    }

    /// Parses an action after its `{{`, which is at `open`, up to and with its `}}`.
    fn action(&mut self, open: usize) -> Result<Step, ParseError> {
        let Kind::Keyword(keyword) = self.peek().kind else {
            let (pipe, shape) = self.pipeline("command", &Kind::Close)?;
            if pipe.set.is_empty() && matches!(shape, Schema::Fields(_)) {
                return Err(ParseError { offset: open, problem: Problem::PrintsStructure });
            }
            return Ok(Step::Node(Node::Action(pipe)));
        };
        self.advance();
        match keyword {
            Keyword::If | Keyword::With => {
                let branches = self.nested(open, |parser| parser.branches(open, keyword))?;
                let node = if keyword == Keyword::If { Node::If(branches) } else { Node::With(branches) };
                Ok(Step::Node(node))
            }
            Keyword::Range => Ok(Step::Node(Node::Range(self.nested(open, |parser| parser.range(open))?))),
            Keyword::End => {
                self.expect_close("end")?;
                Ok(Step::Stop(Stop { at: open, kind: StopKind::End }))
            }
            Keyword::Else => {
                let kind = match self.peek().kind {
                    Kind::Keyword(arm @ (Keyword::If | Keyword::With)) => {
                        self.advance();
                        StopKind::ElseWith(arm)
                    }
                    _ => {
                        self.expect_close("else")?;
                        StopKind::Else
                    }
                };
                Ok(Step::Stop(Stop { at: open, kind }))
            }
            Keyword::Break | Keyword::Continue => {
                self.expect_close(keyword.name())?;
                if self.loops == 0 {
                    return Err(ParseError { offset: open, problem: Problem::OutsideRange(keyword.name()) });
                }
                Ok(Step::Node(if keyword == Keyword::Break { Node::Break } else { Node::Continue }))
            }
            Keyword::Block | Keyword::Define | Keyword::Template => {
                Err(ParseError { offset: open, problem: Problem::UnsupportedAction(keyword.name()) })
            }
        }
    }

    /// Parses the arms of `if` or `with` after the keyword, up to and with `{{end}}`. Variables of
    /// an arm stay in scope in the arms after it.
    fn branches(&mut self, open: usize, keyword: Keyword) -> Result<Branches, ParseError> {
        let mut arms = Vec::new();
        let outside = self.dot;
        loop {
            let (pipe, shape) = self.pipeline(keyword.name(), &Kind::Close)?;
            if keyword == Keyword::With {
                self.dot = shape;
            }
            let (body, stop) = self.list()?;
            self.dot = outside;
            arms.push((pipe, body));
            match stop.kind {
                StopKind::ElseWith(arm) if arm == keyword => {}
                _ => {
                    let otherwise = self.otherwise(open, keyword, stop)?;
                    return Ok(Branches { arms, otherwise });
                }
            }
        }
    }

    /// Parses a loop after its keyword, up to and with `{{end}}`.
    fn range(&mut self, open: usize) -> Result<Range, ParseError> {
        let (pipe, shape) = self.pipeline("range", &Kind::Close)?;
        if matches!(shape, Schema::Fields(_)) {
            return Err(ParseError { offset: open, problem: Problem::OfStructure("range") });
        }
        let outside = self.dot;
        self.dot = shape.element();
        self.loops += 1;
        let (body, stop) = self.list()?;
        self.loops -= 1;
        self.dot = outside;
        let otherwise = self.otherwise(open, Keyword::Range, stop)?;
        Ok(Range { pipe, body, otherwise })
    }

    /// Parses the part after the last arm of a control action that began at `open`: `{{else}}` with
    /// its list, or nothing.
    fn otherwise(&mut self, open: usize, keyword: Keyword, stop: Stop) -> Result<Vec<Node>, ParseError> {
        let (nodes, last) = match stop.kind {
            StopKind::Else => self.list()?,
            _ => (Vec::new(), stop),
        };
        match last.kind {
            StopKind::End => Ok(nodes),
            StopKind::Text => Err(ParseError { offset: open, problem: Problem::MissingEnd(keyword.name()) }),
            StopKind::Else => Err(last.error(Problem::Unopened("else"))),
            StopKind::ElseWith(arm) => {
                let found = format!("{:?}", arm.name());
                Err(last.error(Problem::Unexpected { found, context: "else" }))
            }
        }
    }

    /// Runs `inner` one level of nesting deeper, with a new scope for variables.
    fn nested<T>(
        &mut self,
        at: usize,
        inner: impl FnOnce(&mut Self) -> Result<T, ParseError>,
    ) -> Result<T, ParseError> {
        let variables = self.variables.len();
        self.deeper(at)?;
        let value = inner(self)?;
        self.depth -= 1;
        self.variables.truncate(variables);
        Ok(value)
    }

    /// Counts one level of nesting; the caller decrements it.
    fn deeper(&mut self, at: usize) -> Result<(), ParseError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(ParseError { offset: at, problem: Problem::TooDeep });
        }
        Ok(())
    }

    fn expect_close(&mut self, context: &'static str) -> Result<(), ParseError> {
        if self.peek().kind == Kind::Close {
            self.advance();
            return Ok(());
        }
        Err(self.unexpected(context))
    }

    /// Returns the error for a next token in the wrong place.
    fn unexpected(&self, context: &'static str) -> ParseError {
        let token = self.peek();
        ParseError {
            offset: token.at,
            problem: Problem::Unexpected { found: describe(&token.kind), context },
        }
    }

    /// Returns the next token without consuming it; after the last one always [`Kind::End`].
    fn peek(&self) -> &Token<'t> {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> &Token<'t> {
        let last = self.tokens.len() - 1;
        &self.tokens[(self.next + ahead).min(last)]
    }

    fn advance(&mut self) -> Token<'t> {
        let Token { kind, at, spaced } = self.peek();
        let token = Token { kind: kind.clone(), at: *at, spaced: *spaced };
        self.next += 1;
        token
    }
}

/// Describes a token for errors.
fn describe(kind: &Kind<'_>) -> String {
    match kind {
        Kind::Text(_) => "text".to_owned(),
        Kind::End => "end of template".to_owned(),
        Kind::Open => "\"{{\"".to_owned(),
        Kind::Close => "\"}}\"".to_owned(),
        Kind::OpenParenthesis => "\"(\"".to_owned(),
        Kind::CloseParenthesis => "\")\"".to_owned(),
        Kind::Pipe => "\"|\"".to_owned(),
        Kind::Declare => "\":=\"".to_owned(),
        Kind::Assign => "\"=\"".to_owned(),
        Kind::Comma => "\",\"".to_owned(),
        Kind::Dot => "\".\"".to_owned(),
        Kind::Field(name) => format!("{:?}", format!(".{}", excerpt(name))),
        Kind::Variable(name) | Kind::Identifier(name) => format!("{:?}", excerpt(name)),
        Kind::Keyword(keyword) => format!("{:?}", keyword.name()),
        Kind::Nil => "nil".to_owned(),
        Kind::Bool(value) => value.to_string(),
        Kind::Int(number) => number.to_string(),
        Kind::String(text) => format!("{:?}", excerpt(text)),
        Kind::Other(character) => format!("{character:?}"),
    }
}
