//! The names in the commands of a chat: for completion, help and suggestions.

use std::fmt::Write;

use lode_model::modelfile::parameter_names;

use crate::{args::Think, error::Failure};

/// Maximum edits between a misspelt name and a suggestion for it.
const MAX_EDITS: usize = 2;

/// What `/show` prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Part {
    /// The settings, and a summary of the model.
    All,
    Settings,
    Info,
    System,
    Parameters,
    Template,
    License,
    Modelfile,
}

pub(super) struct Entry {
    pub(super) name: &'static str,
    /// The arguments.
    pub(super) usage: &'static str,
    help: &'static str,
}

pub(super) const COMMANDS: [Entry; 9] = [
    Entry { name: "/help", usage: "", help: "list the commands; /? is the same" },
    Entry { name: "/set", usage: "NAME VALUE", help: "change a setting, see below" },
    Entry { name: "/show", usage: "[PART]", help: "print the settings, or a part of the model" },
    Entry { name: "/clear", usage: "", help: "forget the conversation" },
    Entry { name: "/load", usage: "MODEL", help: "start again with another model" },
    Entry { name: "/save", usage: "MODEL", help: "save model, settings and conversation as a new model" },
    Entry { name: "/bye", usage: "", help: "leave; /exit, /quit and Ctrl-D are the same" },
    Entry { name: "/exit", usage: "", help: "" },
    Entry { name: "/quit", usage: "", help: "" },
];

pub(super) const SETTINGS: [Entry; 6] = [
    Entry { name: "system", usage: "TEXT", help: "system message; \"\"\" begins and ends several lines" },
    Entry {
        name: "parameter",
        usage: "NAME VALUE|none",
        help: "option such as temperature; `stop` takes several",
    },
    Entry { name: "format", usage: "json|FILE|none", help: "structured output: any JSON, or a JSON schema" },
    Entry { name: "think", usage: "LEVEL|none", help: "reasoning: true, false, low, medium or high" },
    Entry { name: "verbose", usage: "on|off", help: "print token counts and speeds" },
    Entry { name: "history", usage: "on|off", help: "keep what you type for later chats" },
];

pub(super) const PARTS: [(&str, Part); 7] = [
    ("settings", Part::Settings),
    ("info", Part::Info),
    ("system", Part::System),
    ("parameters", Part::Parameters),
    ("template", Part::Template),
    ("license", Part::License),
    ("modelfile", Part::Modelfile),
];

const SWITCHES: [&str; 2] = ["on", "off"];

/// The position of the last word of `line`, and the words that can replace it.
pub(super) fn complete(line: &str) -> (usize, Vec<String>) {
    let word = line.rsplit(char::is_whitespace).next().unwrap_or_default();
    let (before, word) = line.split_at(line.len() - word.len());
    let words: Vec<&str> = before.split_whitespace().collect();
    let choices: Vec<&str> = match words[..] {
        [] => COMMANDS.iter().map(|entry| entry.name).collect(),
        ["/set"] => SETTINGS.iter().map(|entry| entry.name).collect(),
        ["/set", "parameter"] => parameter_names().collect(),
        ["/set", "think"] => [&Think::NAMES[..], &["none"]].concat(),
        ["/set", "format"] => vec!["json", "none"],
        ["/set", "verbose" | "history"] => SWITCHES.to_vec(),
        ["/show"] => PARTS.iter().map(|(name, _)| *name).collect(),
        _ => Vec::new(),
    };
    let is_message = words.is_empty() && !word.starts_with('/');
    let fitting = choices.into_iter().filter(|choice| !is_message && choice.starts_with(word));
    (before.len(), fitting.map(str::to_owned).collect())
}

/// The text of `/help`.
pub(super) fn help() -> String {
    let mut text = String::new();
    let mut list = |title: &str, entries: &[Entry]| {
        let _always_fits = writeln!(text, "{title}");
        for Entry { name, usage, help } in entries.iter().filter(|entry| !entry.help.is_empty()) {
            let _always_fits = writeln!(text, "  {:<26}{help}", format!("{name} {usage}"));
        }
    };
    list("Commands:", &COMMANDS);
    list("Settings of /set:", &SETTINGS);
    let parts = listed(PARTS.iter().map(|(name, _)| *name));
    let _always_fits = write!(
        text,
        "Parts of /show: {parts}\n\
         Keys:\n\
         \x20 Up, Down, Ctrl-R          find an earlier input\n\
         \x20 Tab                       complete a command\n\
         \x20 Ctrl-C                    stop the response, or clear the line\n\
         \x20 Ctrl-D                    leave\n\
         A message of several lines begins and ends with \"\"\", or is pasted."
    );
    text
}

/// An error that suggests the most similar name, or lists all names.
pub(super) fn unknown(what: &str, name: &str, known: impl Iterator<Item = &'static str>) -> Failure {
    let known: Vec<&str> = known.collect();
    let distance = |known: &&&str| strsim::damerau_levenshtein(known, name);
    let similar = known.iter().min_by_key(distance).filter(|known| distance(known) <= MAX_EDITS);
    let failure = Failure::new(format!("unknown {what} `{name}`"));
    match similar {
        Some(similar) => failure.hint(format!("did you mean `{similar}`?")),
        None => failure.hint(format!("the {what}s are {}", listed(known))),
    }
}

pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_completed() {
        let check = |line: &str, start: usize, expect: &[&str]| {
            assert_eq!(
                complete(line),
                (start, expect.iter().map(|&word| word.to_owned()).collect()),
                "{line}"
            );
        };
        check("/s", 0, &["/set", "/show", "/save"]);
        check("/set sy", 5, &["system"]);
        check("/set parameter temp", 15, &["temperature"]);
        check("/show ", 6, &["settings", "info", "system", "parameters", "template", "license", "modelfile"]);
        check("/set verbose o", 13, &["on", "off"]);
        check("", 0, &[]);
        check("hello", 0, &[]);
        check("hello /s", 6, &[]);
        check("\u{a0}/s", 2, &["/set", "/show", "/save"]);
    }
}
