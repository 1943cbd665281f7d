//! Answers shells that complete a command line, with the names of models and repositories on the server. A script
//! of `lode completions` runs this program with a variable set. A server that does not respond in time has no
//! names; a completion never prints an error.

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    time::Duration,
};

use clap::{Command, FromArgMatches};
use clap_complete::{
    CompleteEnv,
    engine::{ArgValueCompleter, CompletionCandidate},
};
use lode_client::Registry;
use lode_model::reference::{Name, Repository};

use crate::{args::Global, command_line, connect::Connection, pages::fetch_all, suggest::model_names};

/// The variable with the name of the shell.
pub(crate) const VARIABLE: &str = "LODE_COMPLETE";
/// A person waits for the completion.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// Commands, and those of their arguments that name a model.
const MODELS: [(&[&str], &[&str]); 10] = [
    (&["run"], &["name"]),
    (&["embed"], &["name"]),
    (&["rerank"], &["name"]),
    (&["stop"], &["name"]),
    (&["diff"], &["here", "there"]),
    (&["create"], &["name"]),
    (&["tokenize"], &["name"]),
    (&["perplexity"], &["name"]),
    (&["tensor", "ls"], &["name"]),
    (&["tensor", "export"], &["name"]),
];
/// Commands, and those of their arguments that name a model or another artifact.
const ARTIFACTS: [(&[&str], &[&str]); 7] = [
    (&["pull"], &["name"]),
    (&["cat"], &["name"]),
    (&["show"], &["name"]),
    (&["rm"], &["names"]),
    (&["cp"], &["source", "destination"]),
    (&["manifest", "inspect"], &["name"]),
    (&["tag", "undo"], &["name"]),
];
/// Commands, and the argument that names a repository.
const REPOSITORIES: [(&[&str], &[&str]); 7] = [
    (&["list"], &["repository"]),
    (&["repo", "list"], &["prefix"]),
    (&["repo", "move"], &["from", "to"]),
    (&["tag", "list"], &["repository"]),
    (&["tag", "history"], &["repository"]),
    (&["manifest", "list"], &["repository"]),
    (&["gc", "history"], &["repository"]),
];

/// Answers the shell and ends the process, if a shell runs this program for a completion.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// The command line with the completion of names.
fn command() -> Command {
    let mut command = command_line::command();
    for (names, arguments) in MODELS {
        command = with_completer(command, names, arguments, models);
    }
    for (names, arguments) in ARTIFACTS {
        command = with_completer(command, names, arguments, artifacts);
    }
    for (names, arguments) in REPOSITORIES {
        command = with_completer(command, names, arguments, repositories);
    }
    command
}

fn with_completer(
    command: Command,
    names: &[&str],
    arguments: &[&str],
    complete: fn(&OsStr) -> Vec<CompletionCandidate>,
) -> Command {
    match names {
        [] => command.mut_args(|argument| match arguments.contains(&argument.get_id().as_str()) {
            true => argument.add(ArgValueCompleter::new(complete)),
            false => argument,
        }),
        [name, below @ ..] => command.mut_subcommands(|sub| match sub.get_name() == *name {
            true => with_completer(sub, below, arguments, complete),
            false => sub,
        }),
    }
}

fn models(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |registry| short_model_names(&registry).await)
}

fn artifacts(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |registry| {
        let (models, repositories) = tokio::join!(short_model_names(&registry), repository_names(&registry));
        BTreeSet::from_iter(models.into_iter().chain(repositories)).into_iter().collect()
    })
}

fn repositories(current: &OsStr) -> Vec<CompletionCandidate> {
    candidates(current, async |registry| repository_names(&registry).await)
}

/// The names of models, without the default tag.
async fn short_model_names(registry: &Registry) -> Vec<String> {
    let names = model_names(registry).await.into_iter().filter(|name| is_model_name(name));
    names.map(|name| name.strip_suffix(":latest").map(str::to_owned).unwrap_or(name)).collect()
}

async fn repository_names(registry: &Registry) -> Vec<String> {
    let found = fetch_all(registry, "lode/v1/repositories", "repositories").await.unwrap_or_default();
    let names = found.iter().filter_map(|found| found["repository"].as_str());
    names.filter(|name| is_repository(name)).map(str::to_owned).collect()
}

/// Whether the text is a valid `repository:tag`. A shell may expand or run any other text of a server.
fn is_model_name(text: &str) -> bool {
    text.parse::<Name>().is_ok()
}

fn is_repository(text: &str) -> bool {
    text.parse::<Repository>().is_ok()
}

/// The names that begin with `current`.
fn candidates(current: &OsStr, names: impl AsyncFn(Registry) -> Vec<String>) -> Vec<CompletionCandidate> {
    let fetch = || {
        let registry = Connection::silent(&global()?).ok()?.default_registry().ok()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
        let found = runtime.block_on(async { tokio::time::timeout(TIME_LIMIT, names(registry)).await });
        // A lookup of a host name may continue in a thread.
        runtime.shutdown_background();
        found.ok()
    };
    let current = current.to_string_lossy();
    let found = fetch().unwrap_or_default().into_iter();
    found.filter(|name| name.starts_with(&*current)).map(CompletionCandidate::new).collect()
}

/// The options before the word that is completed, such as `--host`.
fn global() -> Option<Global> {
    let words: Vec<OsString> = std::env::args_os().skip_while(|word| word != "--").skip(1).collect();
    let matches = command_line::command().ignore_errors(true).try_get_matches_from(words).ok()?;
    Global::from_arg_matches(&matches).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_of_a_server_are_not_candidates() {
        assert!(is_model_name("team/mini:Q4_K.m-1") && is_repository("team/mini"));
        for text in ["x;cmd", "$(cmd)", "`cmd`", "a b", "a*", "a\nb", "a\u{b}b", "~", "a'b"] {
            assert!(!is_repository(text), "{text:?}");
            assert!(!is_model_name(&format!("{text}:v1")), "{text:?}");
            assert!(!is_model_name(&format!("team/mini:v1{text}")), "{text:?}");
        }
    }

    /// Every named command and argument exists.
    #[test]
    fn the_command_line_with_completers_is_well_formed() {
        let count =
            |command: &Command| command.get_arguments().filter(|argument| argument.is_positional()).count();
        let plain = command_line::command();
        let completed = command();
        assert_eq!(count(&plain), count(&completed));
        for (names, arguments) in MODELS.iter().chain(&ARTIFACTS).chain(&REPOSITORIES) {
            let find = |from: &Command| {
                let mut at = from.clone();
                for name in *names {
                    at = at.find_subcommand(name).unwrap_or_else(|| panic!("{names:?}")).clone();
                }
                at.get_arguments().map(|argument| argument.get_id().to_string()).collect::<Vec<_>>()
            };
            assert_eq!(find(&plain), find(&completed), "{names:?}");
            for argument in *arguments {
                assert!(find(&plain).contains(&(*argument).to_owned()), "{names:?} {argument}");
            }
        }
        completed.debug_assert();
    }
}
