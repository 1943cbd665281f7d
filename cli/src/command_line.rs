//! The command line as clap sees it: the derived commands, with help that fits any terminal and that shows no
//! option without an effect.

use std::ffi::OsString;

use clap::{
    Arg, Command, CommandFactory, FromArgMatches,
    builder::Resettable,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::args::Cli;

/// Commands that connect to no registry by the global options. They accept these options, which have no effect
/// there, and do not show them. A worker uses one of them: `--ca-file`.
const WITHOUT_CONNECTION: [&str; 7] =
    ["serve", "worker", "backup", "migrate", "doctor", "completions", "runner"];

/// More than the number of options of any command, and less than that of `--help`.
const GLOBAL_ORDER: usize = 900;

/// The command line, as [`Cli`] describes it.
pub(crate) fn command() -> Command {
    // The options of a command come before those of all commands.
    let mut orders = GLOBAL_ORDER..;
    let command = Cli::command().mut_args(|argument| match orders.next() {
        Some(order) if argument.is_global_set() => argument.display_order(order),
        _ => argument,
    });
    let global: Vec<Arg> =
        command.get_arguments().filter(|argument| argument.is_global_set()).cloned().collect();
    let command = command.mut_subcommands(|sub| {
        if !WITHOUT_CONNECTION.contains(&sub.get_name()) {
            return sub;
        }
        let is_worker = sub.get_name() == "worker";
        let is_hidden = |argument: &Arg| !(is_worker && argument.get_id() == "ca_file");
        sub.args(global.iter().map(|argument| argument.clone().hide(is_hidden(argument))))
            // `lode worker` connects by options of its own, `lode worker list` by the global ones.
            .mut_subcommands(|below| below.args(global.iter().cloned()))
    });
    join_paragraphs(command)
}

/// Parses the command line of this process, or ends it with help or an error.
pub(crate) fn parse() -> Cli {
    let parsed = command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| {
        let error = with_usage_of_no_environment(error, command(), std::env::args_os());
        let error = without_hidden_suggestions(error);
        with_subcommands(error, std::env::args_os()).exit()
    })
}

/// Names the commands of a group, such as `lode grant`, if a word after it is none of them.
fn with_subcommands(mut error: clap::Error, words: impl IntoIterator<Item = OsString>) -> clap::Error {
    let Some(ContextValue::String(invalid)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let mut group = command();
    let mut path = vec![group.get_name().to_owned()];
    for word in words.into_iter().take_while(|word| *word != **invalid) {
        if let Some(sub) = group.find_subcommand(&word).cloned() {
            path.push(sub.get_name().to_owned());
            group = sub;
        }
    }
    let is_suggested = error.get(ContextKind::SuggestedSubcommand).is_some();
    if path.len() > 1 && !is_suggested {
        let names: Vec<&str> = group.get_subcommands().map(Command::get_name).collect();
        let tip = format!("`{}` has the commands {}", path.join(" "), names.join(", "));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// Replaces the usage in an error by that of the same words without environment variables: clap shows options
/// that have a value from the environment as if they were required.
fn with_usage_of_no_environment(
    mut error: clap::Error,
    command: Command,
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> clap::Error {
    if error.get(ContextKind::Usage).is_some()
        && let Err(other) = without_environment(command).try_get_matches_from(words)
        && let Some(usage) = other.get(ContextKind::Usage)
    {
        error.insert(ContextKind::Usage, usage.clone());
    }
    error
}

/// The command with options that read no variables.
fn without_environment(command: Command) -> Command {
    command.mut_args(|argument| argument.env(Resettable::Reset)).mut_subcommands(without_environment)
}

/// Removes suggestions of commands that the help does not list.
fn without_hidden_suggestions(mut error: clap::Error) -> clap::Error {
    let suggested = match (error.kind(), error.get(ContextKind::SuggestedSubcommand)) {
        (ErrorKind::InvalidSubcommand, Some(ContextValue::Strings(names))) => names.clone(),
        (ErrorKind::InvalidSubcommand, Some(ContextValue::String(name))) => vec![name.clone()],
        _ => return error,
    };
    let command = Cli::command();
    let is_hidden = |name: &String| {
        command.get_subcommands().any(|sub| sub.is_hide_set() && sub.get_name() == name.as_str())
    };
    let shown: Vec<String> = suggested.into_iter().filter(|name| !is_hidden(name)).collect();
    error.remove(ContextKind::SuggestedSubcommand);
    if !shown.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(shown));
    }
    error
}

/// Joins the lines of each paragraph of the texts after the options, so that clap wraps them at the width of the
/// terminal. Indented lines, which are examples, stay as they are.
fn join_paragraphs(mut command: Command) -> Command {
    if let Some(text) = command.get_after_help().map(ToString::to_string) {
        command = command.after_help(joined(&text));
    }
    command.mut_subcommands(join_paragraphs)
}

fn joined(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let continues = |last: &String| !last.is_empty() && !last.starts_with(' ') && !last.ends_with(':');
        match lines.last_mut().filter(|last| continues(last)) {
            Some(last) if !line.is_empty() && !line.starts_with(' ') => {
                last.push(' ');
                last.push_str(line);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(words: &[&str]) -> String {
        let error = command().try_get_matches_from(words).unwrap_err();
        without_hidden_suggestions(error).to_string()
    }

    #[test]
    fn only_visible_commands_are_suggested() {
        let misspelled = error_of(&["lode", "runne"]);
        assert!(misspelled.contains("'run'") && !misspelled.contains("'runner'"), "{misspelled}");
        let misspelled = error_of(&["lode", "pulll"]);
        assert!(misspelled.contains("'pull'"), "{misspelled}");
    }

    #[test]
    fn numbers_may_be_negative_and_are_checked() {
        for option in ["--temperature", "--seed", "--num-predict"] {
            assert!(command().try_get_matches_from(["lode", "run", "x", option, "-1"]).is_ok(), "{option}");
            let wrong = error_of(&["lode", "run", "x", option, "hot"]);
            assert!(wrong.contains("expected a number") || wrong.contains("expected an integer"), "{wrong}");
        }
    }

    #[test]
    fn the_commands_of_a_group_are_named() {
        let words = ["lode", "--host", "x", "grant", "team/a", "alice", "read"];
        let error = command().try_get_matches_from(words).unwrap_err();
        let error = with_subcommands(error, words.map(OsString::from)).to_string();
        assert!(error.contains("tip: `lode grant` has the commands add, list, rm"), "{error}");
        let words = ["lode", "nothing"];
        let error = command().try_get_matches_from(words).unwrap_err();
        assert!(!with_subcommands(error, words.map(OsString::from)).to_string().contains("tip"));
    }

    #[test]
    fn commands_without_a_connection_do_not_show_its_options() {
        for name in WITHOUT_CONNECTION {
            let mut command = command();
            command.build();
            let sub = command.find_subcommand_mut(name).unwrap();
            let help = sub.render_long_help().to_string();
            assert!(!help.contains("--plain-http") && !help.contains("[env: LODE_HOST"), "{help}");
            assert_eq!(help.contains("--ca-file"), name == "worker", "{help}");
        }
        let mut built = command();
        built.build();
        let list = built.find_subcommand_mut("worker").unwrap().find_subcommand_mut("list").unwrap();
        assert!(list.render_long_help().to_string().contains("[env: LODE_HOST"));
        // They are accepted, before and after the command.
        for words in
            [["lode", "--host", "x", "completions", "bash"], ["lode", "completions", "bash", "--host", "x"]]
        {
            let matches = command().try_get_matches_from(words).unwrap();
            assert_eq!(Cli::from_arg_matches(&matches).unwrap().global.host, "x");
        }
        let matches =
            command().try_get_matches_from(["lode", "list", "--host", "x", "--plain-http"]).unwrap();
        let cli = Cli::from_arg_matches(&matches).unwrap();
        assert_eq!((cli.global.host.as_str(), cli.global.plain_http), ("x", true));
    }

    #[test]
    fn the_usage_does_not_change_with_the_environment() {
        // PATH is a variable that is set.
        let command = || command().mut_arg("host", |host| host.env("PATH"));
        let words = ["lode", "cat"];
        let error = command().try_get_matches_from(words).unwrap_err();
        assert!(error.to_string().contains("Usage: lode cat --host"), "{error}");
        let error = with_usage_of_no_environment(error, command(), words).to_string();
        assert!(error.contains("Usage: lode cat <NAME> <FILE>"), "{error}");
    }

    #[test]
    fn paragraphs_are_joined_and_examples_stay() {
        let text = "One two\nthree.\n\nExamples:\n  lode a\n  lode b";
        assert_eq!(joined(text), "One two three.\n\nExamples:\n  lode a\n  lode b");
    }

    /// A line that clap breaks loses its indentation and, in an example, its meaning.
    #[test]
    fn no_example_is_wider_than_a_terminal() {
        fn check(command: &Command) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }
}
