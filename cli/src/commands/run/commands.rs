//! The syntax of a chat: what is a message, what is a command. Nothing here has an effect.

use lode_model::modelfile::{ParameterError, is_deprecated, parameter_names, read_value};
use serde_json::Value;

use super::names::{COMMANDS, PARTS, Part, SETTINGS, listed, unknown};
use crate::{
    args::Think,
    error::{Failure, Outcome},
};

/// Begins and ends a text of several lines.
const QUOTES: &str = "\"\"\"";

/// What the user typed: a message to the model, or a command.
#[derive(Debug, PartialEq)]
pub(super) enum Line<'a> {
    Empty,
    Message(&'a str),
    Command(Command<'a>),
}

#[derive(Debug, PartialEq)]
pub(super) enum Command<'a> {
    Help,
    Set(Setting<'a>),
    Show(Part),
    Clear,
    Load(&'a str),
    Save(&'a str),
    Bye,
}

/// An assignment of `/set`.
#[derive(Debug, PartialEq)]
pub(super) enum Setting<'a> {
    System(&'a str),
    /// `None`: the option is obsolete.
    Parameter(&'a str, Option<Value>),
    /// Back to the model's own value.
    ResetParameter(&'a str),
    /// `None`: text without constraints.
    Format(Option<&'a str>),
    /// `None`: the model's default.
    Think(Option<Think>),
    Verbose(bool),
    History(bool),
}

/// Parses what the user typed.
pub(super) fn parse(text: &str) -> Outcome<Line<'_>> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Line::Empty);
    }
    let (name, arguments) = split_word(text);
    if !is_command_name(name) {
        return Ok(Line::Message(unquote(text)));
    }
    let command = match name {
        "/help" | "/?" => Command::Help,
        "/set" => Command::Set(setting(arguments)?),
        "/show" => Command::Show(part(arguments)?),
        "/clear" => Command::Clear,
        "/load" => Command::Load(model(name, arguments)?),
        "/save" => Command::Save(model(name, arguments)?),
        "/bye" | "/exit" | "/quit" => Command::Bye,
        _ => {
            let names = COMMANDS.iter().map(|entry| entry.name);
            return Err(unknown("command", name, names)
                .hint("to send a message that begins with a slash, put it between \"\"\""));
        }
    };
    Ok(Line::Command(command))
}

/// Whether the word has the form of a command. Paths and comments that begin with a slash are messages.
fn is_command_name(word: &str) -> bool {
    word.strip_prefix('/').is_some_and(|name| {
        name == "?" || !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphabetic())
    })
}

fn setting(arguments: &str) -> Outcome<Setting<'_>> {
    let (name, value) = split_word(arguments);
    let usage = |name: &str| {
        let entry = SETTINGS.iter().find(|entry| entry.name == name);
        let usage = entry.map_or("NAME VALUE".to_owned(), |entry| format!("{} {}", entry.name, entry.usage));
        Failure::new(format!("expected `/set {usage}`"))
    };
    let switch = || match value {
        "" | "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(usage(name)),
    };
    Ok(match name {
        "system" if value.is_empty() => return Err(usage(name)),
        // Empty, as in a Modelfile.
        "system" if value == "\"\"" => Setting::System(""),
        "system" => Setting::System(unquote(value)),
        "parameter" => {
            let (parameter, value) = split_word(value);
            if value.is_empty() {
                return Err(usage(name).hint(format!("the parameters are {}", listed(parameter_names()))));
            }
            match value {
                "none" if parameter_names().any(|name| name == parameter) => {
                    Setting::ResetParameter(parameter)
                }
                value => Setting::Parameter(parameter, parameter_value(parameter, value)?),
            }
        }
        "format" if value.is_empty() => return Err(usage(name)),
        "format" => Setting::Format(Some(value).filter(|value| *value != "none")),
        "think" if value.is_empty() => Setting::Think(Some(Think::True)),
        "think" if value == "none" => Setting::Think(None),
        "think" => Setting::Think(Some(Think::parse(value).ok_or_else(|| {
            Failure::new(format!("`{value}` is not a level of reasoning"))
                .hint(format!("the levels are {}; `none` is the model's default", listed(Think::NAMES)))
        })?)),
        "verbose" => Setting::Verbose(switch()?),
        "history" => Setting::History(switch()?),
        // ollama's names.
        "quiet" => Setting::Verbose(false),
        "nohistory" => Setting::History(false),
        "noformat" => Setting::Format(None),
        "nothink" => Setting::Think(Some(Think::False)),
        "" => {
            return Err(usage(name)
                .hint(format!("the settings are {}", listed(SETTINGS.iter().map(|entry| entry.name)))));
        }
        _ => return Err(unknown("setting", name, SETTINGS.iter().map(|entry| entry.name))),
    })
}

/// The value of an option. `stop` has a list of texts, which may be quoted.
fn parameter_value(name: &str, text: &str) -> Outcome<Option<Value>> {
    if is_deprecated(name) {
        return Ok(None);
    }
    if name == "stop" {
        return Ok(Some(Value::from(texts(text)?)));
    }
    read_value(name, text).map_err(|error| match error {
        ParameterError::Unknown { .. } => unknown("parameter", name, parameter_names()),
        ParameterError::Value { .. } => Failure::new(error.to_string()),
    })
}

/// Splits at spaces, except between double quotes. A backslash in quotes begins an escape, as in JSON.
fn texts(mut rest: &str) -> Outcome<Vec<String>> {
    let mut texts = Vec::new();
    while !rest.is_empty() {
        if rest.starts_with('"') {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
            let text = values.next().and_then(Result::ok).ok_or_else(|| {
                Failure::new(format!("cannot read the text {rest}"))
                    .hint("a quoted text is a JSON string, such as \"\\n\"")
            })?;
            texts.push(text);
            rest = rest[values.byte_offset()..].trim_start();
        } else {
            let (word, after) = split_word(rest);
            texts.push(word.to_owned());
            rest = after;
        }
    }
    Ok(texts)
}

fn part(name: &str) -> Outcome<Part> {
    if name.is_empty() {
        return Ok(Part::All);
    }
    let found = PARTS.iter().find(|(known, _)| *known == name).map(|(_, part)| *part);
    found.ok_or_else(|| unknown("part", name, PARTS.iter().map(|(name, _)| *name)))
}

/// The single argument of `/load` or `/save`.
fn model<'a>(command: &str, arguments: &'a str) -> Outcome<&'a str> {
    match split_word(arguments) {
        (name, "") if !name.is_empty() => Ok(name),
        _ => Err(Failure::new(format!("expected `{command} MODEL`"))),
    }
}

/// The first word, and what follows it.
fn split_word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    (word, rest.trim_start())
}

/// The part of a line that may have quotes: the message, or the text of `/set system`.
fn quotable(line: &str) -> &str {
    let line = line.trim();
    match split_word(line) {
        ("/set", setting) => match split_word(setting) {
            ("system", text) => text,
            _ => line,
        },
        _ => line,
    }
}

/// Whether a text begins with `"""` and does not end with it.
pub(super) fn has_open_quotes(line: &str) -> bool {
    let text = quotable(line).strip_prefix(QUOTES);
    text.is_some_and(|text| !text.ends_with(QUOTES))
}

/// Removes `"""` around a text, with the line breaks next to them.
fn unquote(text: &str) -> &str {
    let Some(inner) = text.strip_prefix(QUOTES) else { return text };
    let inner = inner.strip_suffix(QUOTES).unwrap_or(inner);
    let inner = inner.strip_prefix('\n').unwrap_or(inner);
    inner.strip_suffix('\n').unwrap_or(inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn command(text: &str) -> Command<'_> {
        match parse(text) {
            Ok(Line::Command(command)) => command,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn failure(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn messages_and_commands_are_distinguished() {
        for text in ["hello", "a /set b", "/etc/hosts: what is it?", "// a comment", "/", "/1"] {
            assert_eq!(parse(text).unwrap(), Line::Message(text));
        }
        assert_eq!(parse(" \n ").unwrap(), Line::Empty);
        assert_eq!(parse("\"\"\"\n/bye\n\"\"\"").unwrap(), Line::Message("/bye"));
        assert_eq!(command("/bye"), Command::Bye);
        assert_eq!(command(" /? "), Command::Help);
        assert_eq!(command("/load team/x:1"), Command::Load("team/x:1"));
        assert!(failure("/load").contains("/load MODEL") && failure("/save a b").contains("/save MODEL"));
        assert_eq!(command("/show"), Command::Show(Part::All));
        assert_eq!(command("/show template"), Command::Show(Part::Template));
    }

    #[test]
    fn settings_have_types() {
        let check =
            |text: &str, expect: Setting<'_>| assert_eq!(command(text), Command::Set(expect), "{text}");
        check("/set system be  brief", Setting::System("be  brief"));
        check("/set system \"\"\"be\nbrief\"\"\"", Setting::System("be\nbrief"));
        check("/set system \"\"\"\"\"\"", Setting::System(""));
        check("/set system \"\"", Setting::System(""));
        check("/set parameter temperature 0.5", Setting::Parameter("temperature", Some(json!(0.5))));
        check("/set parameter seed -1", Setting::Parameter("seed", Some(json!(-1))));
        check(
            r#"/set parameter stop a "b c" "\n""#,
            Setting::Parameter("stop", Some(json!(["a", "b c", "\n"]))),
        );
        check("/set parameter mirostat 1", Setting::Parameter("mirostat", None));
        check("/set format schemas/a b.json", Setting::Format(Some("schemas/a b.json")));
        check("/set format none", Setting::Format(None));
        check("/set parameter temperature none", Setting::ResetParameter("temperature"));
        check("/set parameter stop none", Setting::ResetParameter("stop"));
        check("/set parameter stop \"none\"", Setting::Parameter("stop", Some(json!(["none"]))));
        check("/set think", Setting::Think(Some(Think::True)));
        check("/set think low", Setting::Think(Some(Think::Low)));
        check("/set think none", Setting::Think(None));
        check("/set verbose", Setting::Verbose(true));
        check("/set history off", Setting::History(false));
        check("/set nothink", Setting::Think(Some(Think::False)));
    }

    #[test]
    fn errors_name_the_mistake_and_the_next_step() {
        let check = |text: &str, expect: &str| {
            let failure = failure(text);
            assert!(failure.contains(expect), "{text}: {failure}");
        };
        check("/sett", "unknown command `/sett`\n\nhint: did you mean `/set`?");
        check("/frobnicate", "hint: the commands are /help, /set");
        check("/set", "the settings are system, parameter");
        check("/set sytem x", "did you mean `system`?");
        check("/set parameter", "expected `/set parameter NAME VALUE|none`");
        check("/set parameter temprature 1", "did you mean `temperature`?");
        check("/set parameter temprature none", "did you mean `temperature`?");
        check("/set parameter temperature warm", "'temperature' is `warm`, expected a number");
        check("/set parameter top_k 1.5", "'top_k' is `1.5`, expected an integer");
        check("/set parameter stop \"a", "cannot read the text \"a");
        check("/set think hard", "`hard` is not a level of reasoning\n\nhint: the levels are true, false");
        check("/set verbose maybe", "expected `/set verbose on|off`");
        check("/show templat", "did you mean `template`?");
    }

    #[test]
    fn quotes_may_span_lines() {
        let check = |text: &str, expect: bool| assert_eq!(has_open_quotes(text), expect, "{text}");
        check("\"\"\"", true);
        check("\"\"\"a\nb", true);
        check("\"\"\"a\nb\"\"\" ", false);
        check("\"\"\"\"\"\"", false);
        check("say \"\"\"", false);
        check("/set system \"\"\"a", true);
        check("/set system \"\"\"a\n\"\"\"", false);
        check("/set system a", false);
    }
}
