//! The commands of a Modelfile, and what they set together.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::parameter::{STOP, is_deprecated, read_value};
use super::text::Text;

/// The commands of a Modelfile, in order. Comments and blank lines are not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modelfile {
    pub commands: Vec<Command>,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// A model, a file or a folder to start from.
    From(Text),
    /// The files of an adapter.
    Adapter(Text),
    /// A draft model for speculative decoding.
    Draft(Text),
    Template(Text),
    System(Text),
    License(Text),
    Parameter {
        name: String,
        value: Text,
    },
    Message {
        role: Role,
        text: Text,
    },
    Renderer(Text),
    Parser(Text),
    /// The oldest ollama that can run the model.
    Requires(Text),
}

/// The author of a [`Command::Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    User,
    Assistant,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The error for a text that is not a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is not a role, expected system, user or assistant")]
pub struct UnknownRole {
    pub found: String,
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(text: &str) -> Result<Role, UnknownRole> {
        [Role::System, Role::User, Role::Assistant]
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| UnknownRole { found: text.to_owned() })
    }
}

impl Modelfile {
    /// Returns the sources of the model, in order.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        self.texts(|command| if let Command::From(text) = command { Some(text) } else { None })
    }

    pub fn adapters(&self) -> impl Iterator<Item = &str> {
        self.texts(|command| if let Command::Adapter(text) = command { Some(text) } else { None })
    }

    pub fn drafts(&self) -> impl Iterator<Item = &str> {
        self.texts(|command| if let Command::Draft(text) = command { Some(text) } else { None })
    }

    fn texts(&self, of: impl Fn(&Command) -> Option<&Text>) -> impl Iterator<Item = &str> {
        self.commands.iter().filter_map(of).map(Text::as_str)
    }

    /// Returns the options that are set. The last value of an option counts; values of `stop` are collected.
    /// Deprecated options are left out.
    pub fn parameters(&self) -> Map<String, Value> {
        let mut options = Map::new();
        for command in &self.commands {
            let Command::Parameter { name, value } = command else { continue };
            // Parsed values have been checked. An invalid value of a command that was built in code is
            // ignored.
            let Ok(Some(value)) = read_value(name, value.as_str()) else { continue };
            match options.get_mut(name) {
                Some(Value::Array(all)) if name == STOP => all.push(value),
                _ if name == STOP => drop(options.insert(name.clone(), Value::Array(vec![value]))),
                _ => drop(options.insert(name.clone(), value)),
            }
        }
        options
    }

    /// Returns the names of options that no longer have an effect.
    pub fn deprecated(&self) -> impl Iterator<Item = &str> {
        self.commands.iter().filter_map(|command| match command {
            Command::Parameter { name, .. } if is_deprecated(name) => Some(name.as_str()),
            _ => None,
        })
    }
}
