//! LODE_* variables that no setting reads: most likely misspelled, so a server and a worker name them at start.

use std::collections::BTreeSet;

use clap::Command;

use crate::{command_line, settings, suggest::closest};

/// The beginning of the variables of this program.
const PREFIX: &str = "LODE_";
/// Variables without a setting or an option. The guides name `LODE_TOKEN` for the token of other programs.
const OTHERS: [&str; 4] = ["LODE_LOG", "LODE_ID_TOKEN", "LODE_COMPLETE", "LODE_TOKEN"];
/// The beginnings of variables that this repository's tests and their scripts read.
const TEST_SUITE: [&str; 7] =
    ["LODE_TEST_", "LODE_FUZZ_", "LODE_BIN", "LODE_FIGURES", "LODE_SKIPS", "LODE_TIMES", "LODE_MINUTES"];

/// Logs a warning for each unknown variable of this process.
pub(crate) fn warn_of_unknown() {
    let variables = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())));
    for (name, suggestion) in unknown(variables) {
        match suggestion {
            Some(known) => {
                tracing::warn!(
                    "the variable {name} has no effect: no setting has that name; did you mean {known}?"
                );
            }
            None => tracing::warn!("the variable {name} has no effect: no setting has that name"),
        }
    }
}

/// The unknown variables among these, each with a known one of a similar name.
fn unknown(variables: impl Iterator<Item = (String, String)>) -> Vec<(String, Option<String>)> {
    let known = known();
    let mut unknown: Vec<(String, Option<String>)> = variables
        .filter(|(name, value)| name.starts_with(PREFIX) && !known.contains(name) && !is_foreign(name, value))
        .map(|(name, _)| {
            // The common beginning would make all names similar.
            let rest = |name: &'_ str| name.strip_prefix(PREFIX).unwrap_or_default().to_owned();
            let candidates: Vec<String> = known.iter().map(|name| rest(name)).collect();
            let similar = closest(&rest(&name), candidates.iter().map(String::as_str));
            let similar = similar.map(|similar| format!("{PREFIX}{similar}"));
            (name, similar)
        })
        .collect();
    unknown.sort();
    unknown
}

/// Whether another program has set it: the tests, or Kubernetes, which describes a Service named `lode` to every
/// container of its namespace.
fn is_foreign(name: &str, value: &str) -> bool {
    TEST_SUITE.iter().any(|start| name.starts_with(start))
        || ["_SERVICE_HOST", "_SERVICE_PORT", "_TCP", "_UDP"].iter().any(|part| name.contains(part))
        || ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme))
}

fn known() -> BTreeSet<String> {
    let mut known: BTreeSet<String> = OTHERS.map(str::to_owned).into();
    known.extend(settings::keys().into_iter().map(|key| format!("LODE_{}", key.to_uppercase())));
    add_options(&command_line::command(), &mut known);
    known
}

fn add_options(command: &Command, known: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(|argument| argument.get_env());
    known.extend(variables.filter_map(|name| name.to_str()).map(str::to_owned));
    command.get_subcommands().for_each(|sub| add_options(sub, known));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variables_are_named_with_a_similar_one() {
        let check = |name: &str, value: &str, expect: Option<Option<&str>>| {
            let found = unknown([(name.to_owned(), value.to_owned())].into_iter());
            let found = found.first().map(|(_, similar)| similar.as_deref());
            assert_eq!(found, expect, "{name}");
        };
        for known in [
            "LODE_LISTEN",
            "LODE_GC_GRACE",
            "LODE_MAX_QUEUE",
            "LODE_HOST",
            "LODE_LOG",
            "LODE_DEMO",
            "LODE_LOG_FORMAT",
            "LODE_SECRET_KEY_FILE",
            "LODE_WORKER_TOKEN",
            "LODE_TOKEN",
            "LODE_TRUSTED_PROXY",
            "LODE_CA_FILE",
        ] {
            check(known, "x", None);
        }
        check("LODE_GC_GRACES", "1h", Some(Some("LODE_GC_GRACE")));
        check("LODE_LISEN", "x", Some(Some("LODE_LISTEN")));
        check("LODE_SOMETHING_ELSE", "x", Some(None));
        check("OTHER_LISTEN", "x", None);
        // The test suite, and Kubernetes.
        check("LODE_TEST_POSTGRES", "x", None);
        check("LODE_FIGURES", "x", None);
        check("LODE_SERVICE_HOST", "10.0.0.1", None);
        check("LODE_PORT", "tcp://10.0.0.1:5000", None);
        check("LODE_PORT_5000_TCP_ADDR", "10.0.0.1", None);
        check("LODE_PORT", "5000", Some(None));
    }
}
