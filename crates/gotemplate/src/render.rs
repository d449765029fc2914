//! Renders a compiled template with data, within the bounds of steps and output.

use std::borrow::Cow;

use crate::ast::{Branches, Expression, Function, Node, Pipe, Range};
use crate::bounded_string::Sink;
use crate::errors::RenderError;
use crate::value::{Fields, Value, to_int};
use crate::{MAX_STEPS, format, functions};

/// Renders `body` with `data` and appends to `out`. After an error, `out` may have a part of the
/// output.
pub(crate) fn render<'v>(
    body: &'v [Node],
    slots: usize,
    data: &'v dyn Fields,
    out: &mut String,
) -> Result<(), RenderError> {
    let mut renderer =
        Renderer { data, variables: vec![Value::Nil; slots], out: Sink::new(out), steps: MAX_STEPS };
    renderer.list(body, &Value::Fields(data)).map(|_| ())
}

struct Renderer<'v, 'o> {
    data: &'v dyn Fields,
    /// The variables by slot. The parser ensures that a slot is set before it is read.
    variables: Vec<Value<'v>>,
    out: Sink<'o>,
    /// Remaining steps.
    steps: u32,
}

/// How a list of nodes ended.
#[derive(PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

impl<'v> Renderer<'v, '_> {
    fn list(&mut self, nodes: &'v [Node], dot: &Value<'v>) -> Result<Flow, RenderError> {
        for node in nodes {
            self.charge(1)?;
            let flow = match node {
                Node::Text(text) => {
                    self.out.push_str(text)?;
                    Flow::Next
                }
                Node::Action(pipe) => {
                    let value = self.pipe(pipe, dot)?;
                    if pipe.set.is_empty() {
                        format::action(&mut self.out, &value)?;
                    }
                    Flow::Next
                }
                Node::If(branches) => self.branches(branches, dot, false)?,
                Node::With(branches) => self.branches(branches, dot, true)?,
                Node::Range(range) => self.range(range, dot)?,
                Node::Break => Flow::Break,
                Node::Continue => Flow::Continue,
            };
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn branches(
        &mut self,
        branches: &'v Branches,
        dot: &Value<'v>,
        sets_dot: bool,
    ) -> Result<Flow, RenderError> {
        for (pipe, body) in &branches.arms {
            let value = self.pipe(pipe, dot)?;
            if value.is_true() {
                return self.list(body, if sets_dot { &value } else { dot });
            }
        }
        self.list(&branches.otherwise, dot)
    }

    fn range(&mut self, range: &'v Range, dot: &Value<'v>) -> Result<Flow, RenderError> {
        let over = self.pipe(&range.pipe, dot)?;
        let mut ran = false;
        let mut turn = |index: Option<Value<'v>>, element: Value<'v>| {
            ran = true;
            self.turn(range, index, element)
        };
        match &over {
            Value::Nil => {}
            Value::List(list) => {
                for (index, element) in list.iter().enumerate() {
                    if turn(Some(Value::Int(to_int(index))), element)? == Flow::Break {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                let mut keys = map.keys();
                keys.sort_unstable();
                for key in keys {
                    let element = map.get(key).unwrap_or(Value::Nil);
                    if turn(Some(Value::from(key)), element)? == Flow::Break {
                        break;
                    }
                }
            }
            Value::Int(_) | Value::Uint8(_) | Value::Uint16(_) | Value::Uint64(_)
                if range.pipe.set.len() > 1 =>
            {
                return Err(RenderError::RangeVariables);
            }
            Value::Int(end) => count(0..*end, Value::Int, turn)?,
            Value::Uint8(end) => count(0..*end, Value::Uint8, turn)?,
            Value::Uint16(end) => count(0..*end, Value::Uint16, turn)?,
            Value::Uint64(end) => count(0..*end, Value::Uint64, turn)?,
            Value::Bool(_) | Value::Text(_) | Value::Fields(_) => {
                return Err(RenderError::Unfit { function: "range", of: over.kind() });
            }
        }
        if ran { Ok(Flow::Next) } else { self.list(&range.otherwise, dot) }
    }

    /// Runs one iteration of a loop. A loop over a number has no index.
    fn turn(
        &mut self,
        range: &'v Range,
        index: Option<Value<'v>>,
        element: Value<'v>,
    ) -> Result<Flow, RenderError> {
        self.charge(1)?;
        match range.pipe.set.as_slice() {
            [] => {}
            [one] => self.variables[*one] = element.clone(),
            [first, second, ..] => {
                self.variables[*first] = index.unwrap_or(Value::Nil);
                self.variables[*second] = element.clone();
            }
        }
        self.list(&range.body, &element)
    }

    /// Evaluates a pipeline, and assigns the value to the pipeline's variables.
    fn pipe(&mut self, pipe: &'v Pipe, dot: &Value<'v>) -> Result<Value<'v>, RenderError> {
        let value = self.value(&pipe.value, dot)?;
        for slot in &pipe.set {
            self.charge_copy(&value)?;
            self.variables[*slot] = value.clone();
        }
        Ok(value)
    }

    fn value(&mut self, expression: &'v Expression, dot: &Value<'v>) -> Result<Value<'v>, RenderError> {
        self.charge(1)?;
        match expression {
            Expression::Nil => Ok(Value::Nil),
            Expression::Bool(value) => Ok(Value::Bool(*value)),
            Expression::Int(number) => Ok(Value::Int(*number)),
            Expression::Text(text) => Ok(Value::from(&**text)),
            Expression::Dot => {
                self.charge_copy(dot)?;
                Ok(dot.clone())
            }
            Expression::Root => Ok(Value::Fields(self.data)),
            Expression::Variable(slot) => {
                let value = self.variables[*slot].clone();
                self.charge_copy(&value)?;
                Ok(value)
            }
            Expression::Field { base, path } => self.value(base, dot)?.follow(path),
            Expression::Method { base, name, argument } => {
                let base = self.value(base, dot)?;
                let argument = self.value(argument, dot)?;
                base.call(name, &argument)
            }
            Expression::Call { function, arguments, piped } => {
                let piped = piped.as_ref().map(|piped| self.value(piped, dot)).transpose()?;
                self.call(*function, arguments, piped, dot)
            }
        }
    }

    fn call(
        &mut self,
        function: Function,
        arguments: &'v [Expression],
        piped: Option<Value<'v>>,
        dot: &Value<'v>,
    ) -> Result<Value<'v>, RenderError> {
        let mut values =
            arguments.iter().map(|argument| self.value(argument, dot)).chain(piped.into_iter().map(Ok));
        match function {
            Function::And | Function::Or => {
                let mut last = Value::Nil;
                for value in values {
                    last = value?;
                    if last.is_true() == (function == Function::Or) {
                        break;
                    }
                }
                Ok(last)
            }
            Function::Index => {
                let mut item = values.next().unwrap_or(Ok(Value::Nil))?;
                if matches!(item, Value::Nil) {
                    return Err(RenderError::Unfit { function: "index", of: item.kind() });
                }
                for index in values {
                    item = functions::index(&item, &index?)?;
                }
                Ok(item)
            }
            _ => {
                let values: Vec<Value<'v>> = values.collect::<Result<_, _>>()?;
                for value in &values {
                    self.charge_text(value)?;
                }
                functions::call(function, &values)
            }
        }
    }

    /// Counts the steps of a value's copy. Only an owned text is larger than a few machine words.
    fn charge_copy(&mut self, value: &Value<'_>) -> Result<(), RenderError> {
        if matches!(value, Value::Text(Cow::Owned(_))) { self.charge_text(value) } else { Ok(()) }
    }

    /// Counts the steps of reading or copying a value's text.
    fn charge_text(&mut self, value: &Value<'_>) -> Result<(), RenderError> {
        let Value::Text(text) = value else { return Ok(()) };
        self.charge(u32::try_from(text.len() / BYTES_PER_STEP).unwrap_or(u32::MAX))
    }

    fn charge(&mut self, steps: u32) -> Result<(), RenderError> {
        self.steps = self.steps.checked_sub(steps).ok_or(RenderError::TooManySteps)?;
        Ok(())
    }
}

/// Calls `turn` for each number, converted by `value`, until it returns [`Flow::Break`].
fn count<'v, N>(
    numbers: impl Iterator<Item = N>,
    value: impl Fn(N) -> Value<'v>,
    mut turn: impl FnMut(Option<Value<'v>>, Value<'v>) -> Result<Flow, RenderError>,
) -> Result<(), RenderError> {
    for number in numbers {
        if turn(None, value(number))? == Flow::Break {
            break;
        }
    }
    Ok(())
}

/// Bytes of text that are read or copied in one step.
const BYTES_PER_STEP: usize = 64;
