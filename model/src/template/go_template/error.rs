//! The errors of templates, with the positions that they name.

/// The error for a text that is not a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} (line {line}, column {column})")]
pub struct SyntaxError {
    pub line: usize,
    /// Counted in characters.
    pub column: usize,
    pub what: String,
}

/// The error of a template that fails on its data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} (line {line})")]
pub struct ExecError {
    pub line: usize,
    pub what: String,
}
