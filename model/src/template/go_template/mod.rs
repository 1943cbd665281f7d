//! Go's text/template, as far as ollama's prompt templates use it. Layers of type
//! `application/vnd.ollama.image.template` are written in it. The registry parses them to list a model's
//! capabilities; workers execute them over data that they build.
//!
//! The language is complete (pipelines, variables, ranges, definitions, trim markers, comparisons, `printf`),
//! with the functions that ollama adds. Values behave as in Go where a template can observe it: the zero
//! value of a missing key, the order of a map's keys, and JSON numbers as floats. Steps, output and nesting
//! are bounded.

use std::collections::{BTreeMap, BTreeSet};

mod error;
mod exec;
mod functions;
mod lex;
mod limits;
mod parse;
mod print;
mod value;

#[cfg(test)]
mod tests;

pub use error::{ExecError, SyntaxError};
pub use functions::Dates;
pub use limits::MAX_SOURCE_BYTES;
pub use value::{Field, List, Map, OmitRule, PrintStyle, Record, Value};

use parse::{Branch, Node, Operand, Pipeline};

/// A parsed template.
#[derive(Clone, Debug)]
pub struct Template {
    root: parse::List,
    defined: BTreeMap<String, parse::List>,
}

impl Template {
    pub fn parse(source: &str) -> Result<Template, SyntaxError> {
        if source.len() > MAX_SOURCE_BYTES {
            let what = format!("larger than {MAX_SOURCE_BYTES} bytes");
            return Err(SyntaxError { line: 1, column: 1, what });
        }
        let (root, defined) = parse::parse(source)?;
        Ok(Template { root, defined })
    }

    pub fn execute(&self, data: &Value, dates: &Dates) -> Result<String, ExecError> {
        exec::execute(&self.root, &self.defined, data, dates)
    }

    /// Returns the names of all fields and variables that the template mentions.
    pub fn mentioned_names(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        for list in self.defined.values().chain([&self.root]) {
            collect_names(list, &mut names);
        }
        names
    }

    /// Returns the template with a field printed at its end.
    pub fn append_field(mut self, field: &str) -> Template {
        let operand = Operand::Field(vec![field.to_owned()]);
        self.root.push(Node::Action(Pipeline {
            line: 0,
            variables: Vec::new(),
            assigns: false,
            commands: vec![vec![operand]],
        }));
        self
    }

    /// Returns the template without anything after the first mention of a field.
    pub fn truncate_after(&self, field: &str) -> Template {
        let mut template = self.clone();
        truncate_list(&mut template.root, field);
        template
    }
}

fn collect_names<'a>(list: &'a [Node], names: &mut BTreeSet<&'a str>) {
    for node in list {
        match node {
            Node::Text(_) | Node::Break | Node::Continue => {}
            Node::Action(pipeline) => collect_pipeline_names(pipeline, names),
            Node::If(branch) | Node::With(branch) | Node::Range(branch) => {
                collect_pipeline_names(&branch.pipeline, names);
                collect_names(&branch.list, names);
                branch.otherwise.iter().for_each(|list| collect_names(list, names));
            }
            Node::Call { pipeline, .. } => {
                pipeline.iter().for_each(|pipeline| collect_pipeline_names(pipeline, names))
            }
        }
    }
}

fn collect_pipeline_names<'a>(pipeline: &'a Pipeline, names: &mut BTreeSet<&'a str>) {
    pipeline.commands.iter().flatten().for_each(|operand| collect_operand_names(operand, names));
}

fn collect_operand_names<'a>(operand: &'a Operand, names: &mut BTreeSet<&'a str>) {
    match operand {
        Operand::Field(found) | Operand::Variable(found) => names.extend(found.iter().map(String::as_str)),
        Operand::Pipeline(pipeline) => collect_pipeline_names(pipeline, names),
        Operand::Chain(inner, found) => {
            collect_operand_names(inner, names);
            names.extend(found.iter().map(String::as_str));
        }
        _ => {}
    }
}

/// Removes everything after the first mention of a field, and returns whether there was one. A condition is
/// evaluated before both of its branches and does not count as a mention.
fn truncate_list(list: &mut Vec<Node>, field: &str) -> bool {
    let found = list.iter_mut().position(|node| match node {
        Node::Action(pipeline) => prints_field(pipeline, field),
        Node::If(branch) | Node::With(branch) | Node::Range(branch) => truncate_branch(branch, field),
        _ => false,
    });
    list.truncate(found.map_or(list.len(), |at| at + 1));
    found.is_some()
}

fn truncate_branch(branch: &mut Branch, field: &str) -> bool {
    if truncate_list(&mut branch.list, field) {
        branch.otherwise = None;
        return true;
    }
    branch.otherwise.as_mut().is_some_and(|list| truncate_list(list, field))
}

fn prints_field(pipeline: &Pipeline, field: &str) -> bool {
    pipeline.commands.iter().flatten().any(|operand| match operand {
        Operand::Field(names) => names.iter().any(|name| name == field),
        Operand::Pipeline(inner) => prints_field(inner, field),
        _ => false,
    })
}
