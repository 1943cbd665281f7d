//! Prints commands as text.

use std::fmt;

use super::command::{Command, Modelfile};

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::From(text) => write!(f, "FROM {text}"),
            Command::Adapter(text) => write!(f, "ADAPTER {text}"),
            Command::Draft(text) => write!(f, "DRAFT {text}"),
            Command::Template(text) => write!(f, "TEMPLATE {text}"),
            Command::System(text) => write!(f, "SYSTEM {text}"),
            Command::License(text) => write!(f, "LICENSE {text}"),
            Command::Parameter { name, value } => write!(f, "PARAMETER {name} {value}"),
            Command::Message { role, text } => write!(f, "MESSAGE {role} {text}"),
            Command::Renderer(text) => write!(f, "RENDERER {text}"),
            Command::Parser(text) => write!(f, "PARSER {text}"),
            Command::Requires(text) => write!(f, "REQUIRES {text}"),
        }
    }
}

impl fmt::Display for Modelfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.commands.iter().try_for_each(|command| writeln!(f, "{command}"))
    }
}
