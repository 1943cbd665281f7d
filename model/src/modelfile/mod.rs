//! Modelfiles: ollama's text format for the base, options and texts of a model (ollama `parser/parser.go`).
//! Parsing and printing are inverse on valid values. [`derive()`] makes the manifest of a new model from a
//! Modelfile.

mod command;
mod derive;
mod parameter;
mod parse;
mod print;
mod text;

#[cfg(test)]
mod tests;

pub use command::{Command, Modelfile, Role, UnknownRole};
pub use derive::{Base, DeriveError, DerivedModel, Edits, derive};
pub use parameter::{ParameterError, check_value, is_deprecated, parameter_names, read_value};
pub use parse::{ParseError, Problem, is_version};
pub use text::{Text, UnquotableText};
