//! Executes a template over a value, within limits, because templates are untrusted.

use std::collections::BTreeMap;

use super::error::ExecError;
use super::functions::{Dates, Function};
use super::limits::{MAX_DEPTH, MAX_OUTPUT_BYTES, MAX_STEPS};
use super::parse::{Branch, List, Node, Operand, Pipeline};
use super::print;
use super::value::Value;

/// The number of characters of a value that an error quotes.
const MAX_QUOTED: usize = 100;

/// Returns the text that a template produces from a value.
pub(super) fn execute(
    root: &List,
    defined: &BTreeMap<String, List>,
    data: &Value,
    dates: &Dates,
) -> Result<String, ExecError> {
    let mut run = Run {
        defined,
        dates,
        out: String::new(),
        variables: vec![("$".to_owned(), data.clone())],
        first: 0,
        line: 1,
        steps: MAX_STEPS,
        depth: 0,
    };
    run.list(data, root)?;
    Ok(run.out)
}

struct Run<'a> {
    defined: &'a BTreeMap<String, List>,
    dates: &'a Dates,
    out: String,
    variables: Vec<(String, Value)>,
    /// The first variable that is visible to the running template.
    first: usize,
    line: usize,
    steps: usize,
    depth: usize,
}

/// How a list of nodes ended.
#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
}

impl<'a> Run<'a> {
    fn error(&self, what: impl Into<String>) -> ExecError {
        ExecError { line: self.line, what: what.into() }
    }

    fn spend(&mut self, steps: usize) -> Result<(), ExecError> {
        self.steps =
            self.steps.checked_sub(steps).ok_or_else(|| self.error("the template takes too many steps"))?;
        Ok(())
    }

    fn write(&mut self, text: &str) -> Result<(), ExecError> {
        if self.out.len() + text.len() > MAX_OUTPUT_BYTES {
            return Err(self.error("the prompt is too long"));
        }
        self.out.push_str(text);
        Ok(())
    }

    fn list(&mut self, dot: &Value, nodes: &'a List) -> Result<Flow, ExecError> {
        for node in nodes {
            self.spend(1)?;
            let flow = match node {
                Node::Text(text) => {
                    self.write(text)?;
                    Flow::On
                }
                Node::Action(pipeline) => {
                    let value = self.pipeline(dot, pipeline)?;
                    if pipeline.variables.is_empty() {
                        match &value {
                            Value::Nil => self.write("<no value>")?,
                            Value::Text(text) => self.write(text)?,
                            value => {
                                let text = print::format_plain(value);
                                self.spend(text.len() / 16)?;
                                self.write(&text)?;
                            }
                        }
                    }
                    Flow::On
                }
                Node::If(branch) => self.branch(dot, branch, false)?,
                Node::With(branch) => self.branch(dot, branch, true)?,
                Node::Range(branch) => self.range(dot, branch)?,
                Node::Call { name, pipeline, line } => {
                    self.line = *line;
                    self.call(dot, name, pipeline.as_ref())?;
                    Flow::On
                }
                Node::Break => Flow::Break,
                Node::Continue => Flow::Continue,
            };
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn branch(&mut self, dot: &Value, branch: &'a Branch, moves_dot: bool) -> Result<Flow, ExecError> {
        let mark = self.variables.len();
        let value = self.pipeline(dot, &branch.pipeline)?;
        let flow = match (value.is_true(), &branch.otherwise) {
            (true, _) => self.list(if moves_dot { &value } else { dot }, &branch.list)?,
            (false, Some(otherwise)) => self.list(dot, otherwise)?,
            (false, None) => Flow::On,
        };
        self.variables.truncate(mark);
        Ok(flow)
    }

    fn range(&mut self, dot: &Value, branch: &'a Branch) -> Result<Flow, ExecError> {
        let outer = self.variables.len();
        let value = self.pipeline(dot, &branch.pipeline)?;
        let mark = self.variables.len();
        let mut ran = false;
        let mut flow = Flow::On;
        let names = &branch.pipeline.variables;
        let mut once = |run: &mut Self, key: Option<Value>, item: Value| -> Result<bool, ExecError> {
            ran = true;
            run.spend(1)?;
            let key = key.unwrap_or_default();
            match (names.as_slice(), branch.pipeline.assigns) {
                ([], _) => {}
                ([name], true) => run.assign(name, item.clone())?,
                ([first, second], true) => {
                    run.assign(first, key)?;
                    run.assign(second, item.clone())?;
                }
                (names, _) => {
                    run.variables[mark - 1].1 = item.clone();
                    if names.len() > 1 {
                        run.variables[mark - 2].1 = key;
                    }
                }
            }
            let ended = run.list(&item, &branch.list)?;
            run.variables.truncate(mark);
            Ok(ended == Flow::Break)
        };
        match &value {
            Value::Nil => {}
            Value::List(list) => {
                for (at, item) in list.items.iter().enumerate() {
                    if once(self, Some(Value::Int(at as i64)), item.clone())? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for (key, item) in &map.entries {
                    if once(self, Some(key.as_str().into()), item.clone())? {
                        break;
                    }
                }
            }
            Value::Int(_) if names.len() > 1 => {
                return Err(self.error("can't use an int to iterate over more than one variable"));
            }
            Value::Int(count) => {
                for number in 0..*count {
                    if once(self, None, Value::Int(number))? {
                        break;
                    }
                }
            }
            other => {
                let other: String = print::format_plain(other).chars().take(MAX_QUOTED).collect();
                return Err(self.error(format!("range can't iterate over {other}")));
            }
        }
        if !ran && let Some(otherwise) = &branch.otherwise {
            flow = self.list(dot, otherwise)?;
        }
        self.variables.truncate(outer);
        Ok(flow)
    }

    fn call(&mut self, dot: &Value, name: &str, pipeline: Option<&'a Pipeline>) -> Result<(), ExecError> {
        let list =
            self.defined.get(name).ok_or_else(|| self.error(format!("template {name:?} not defined")))?;
        if self.depth >= MAX_DEPTH {
            return Err(self.error("exceeded maximum template depth"));
        }
        let dot = match pipeline {
            Some(pipeline) => self.pipeline(dot, pipeline)?,
            None => Value::Nil,
        };
        let mark = self.variables.len();
        let first = std::mem::replace(&mut self.first, mark);
        self.variables.push(("$".to_owned(), dot.clone()));
        self.depth += 1;
        self.list(&dot, list)?;
        self.depth -= 1;
        self.variables.truncate(mark);
        self.first = first;
        Ok(())
    }

    fn variable(&mut self, name: &str) -> Result<&mut Value, ExecError> {
        let at = self.variables[self.first..].iter().rposition(|(known, _)| known == name);
        match at {
            Some(at) => Ok(&mut self.variables[self.first + at].1),
            None => Err(self.error(format!("undefined variable: {name}"))),
        }
    }

    fn assign(&mut self, name: &str, value: Value) -> Result<(), ExecError> {
        *self.variable(name)? = value;
        Ok(())
    }

    fn pipeline(&mut self, dot: &Value, pipeline: &'a Pipeline) -> Result<Value, ExecError> {
        self.line = pipeline.line;
        let mut value = None;
        for command in &pipeline.commands {
            value = Some(self.command(dot, command, value)?);
        }
        let value = value.unwrap_or_default();
        for name in &pipeline.variables {
            if pipeline.assigns {
                self.assign(name, value.clone())?;
            } else {
                self.variables.push((name.clone(), value.clone()));
            }
        }
        Ok(value)
    }

    /// `last` is the value of the previous command in the pipeline.
    fn command(
        &mut self,
        dot: &Value,
        command: &'a [Operand],
        last: Option<Value>,
    ) -> Result<Value, ExecError> {
        self.spend(1)?;
        let (first, arguments) = command.split_first().ok_or_else(|| self.error("empty command"))?;
        if let Operand::Function(function) = first {
            return self.function(dot, *function, arguments, last);
        }
        if !arguments.is_empty() || last.is_some() {
            return Err(self.error("can't give argument to non-function"));
        }
        if matches!(first, Operand::Nil) {
            return Err(self.error("nil is not a command"));
        }
        self.operand(dot, first)
    }

    fn operand(&mut self, dot: &Value, operand: &'a Operand) -> Result<Value, ExecError> {
        self.spend(1)?;
        match operand {
            Operand::Dot => Ok(dot.clone()),
            Operand::Nil => Ok(Value::Nil),
            Operand::Bool(value) => Ok(Value::Bool(*value)),
            Operand::Int(number) => Ok(Value::Int(*number)),
            Operand::Float(number) => Ok(Value::Float(*number)),
            Operand::Str(text) => Ok(text.as_str().into()),
            Operand::Field(names) => self.fields(dot.clone(), names),
            Operand::Variable(names) => {
                let value = self.variable(&names[0])?.clone();
                self.fields(value, &names[1..])
            }
            Operand::Function(function) => self.function(dot, *function, &[], None),
            Operand::Pipeline(pipeline) => self.pipeline(dot, pipeline),
            Operand::Chain(inner, names) => {
                let value = self.operand(dot, inner)?;
                self.fields(value, names)
            }
        }
    }

    fn fields(&mut self, mut value: Value, names: &[String]) -> Result<Value, ExecError> {
        for (at, name) in names.iter().enumerate() {
            value = match &value {
                Value::Nil if at == 0 => Value::Nil,
                Value::Nil => return Err(self.error(format!("nil pointer evaluating {name}"))),
                Value::Map(map) => map.entries.get(name).unwrap_or(&map.missing).clone(),
                Value::Record(record) => {
                    let field =
                        record.fields.iter().find(|field| field.name == name).map(|field| &field.value);
                    let method =
                        || record.methods.iter().find(|(known, _)| known == name).map(|(_, value)| value);
                    field.or_else(method).cloned().ok_or_else(|| {
                        self.error(format!("can't evaluate field {name} in type {}", record.name))
                    })?
                }
                other => {
                    return Err(self.error(format!("can't evaluate field {name} in type {}", other.kind())));
                }
            };
        }
        Ok(value)
    }

    fn function(
        &mut self,
        dot: &Value,
        function: Function,
        arguments: &'a [Operand],
        last: Option<Value>,
    ) -> Result<Value, ExecError> {
        let mut values = Vec::with_capacity(arguments.len() + 1);
        let stops_at = match function {
            Function::And => Some(false),
            Function::Or => Some(true),
            _ => None,
        };
        for argument in arguments {
            let value = self.operand(dot, argument)?;
            if stops_at == Some(value.is_true()) {
                return Ok(value);
            }
            values.push(value);
        }
        values.extend(last);
        if let [Value::Text(a), Value::Text(b), ..] = values.as_slice() {
            // The function may compare them.
            self.spend(a.len().min(b.len()) / 16)?;
        }
        let value = function.call(&values, self.dates).map_err(|what| self.error(what))?;
        if let Value::Text(text) = &value {
            self.spend(text.len() / 16)?;
            if text.len() > MAX_OUTPUT_BYTES {
                return Err(self.error("a text is too long"));
            }
        }
        Ok(value)
    }
}
