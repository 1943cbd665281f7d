//! Generates docs/reference/cli.md from the command-line help. A test compares the page with the program;
//! `UPDATE_DOCS=1 cargo test -p lode reference` updates it.

use std::{fmt::Write, path::Path};

use clap::Command;

use crate::command_line;

fn page() -> String {
    let mut text = String::from(
        "# Command-line reference\n\nGenerated from the help of `lode` by a test in `cli/src/reference.rs`; do not edit.\n",
    );
    let mut command = command_line::command().term_width(110);
    command.build();
    describe(&mut command, 2, &mut text);
    text
}

fn describe(command: &mut Command, level: usize, text: &mut String) {
    let help = command.render_long_help().to_string();
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    let _always_fits =
        write!(text, "\n{} {name}\n\n```text\n{}\n```\n", "#".repeat(level), lines.join("\n").trim_end());
    let visible = command.get_subcommands_mut().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    for sub in visible {
        describe(sub, level + 1, text);
    }
}

#[test]
fn the_reference_page_matches_the_help() {
    check("cli.md", &page());
}

/// Compares a file of docs/reference with the page that the program generates.
pub(crate) fn check(file: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference").join(file);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/reference/{file} is out of date: UPDATE_DOCS=1 cargo test -p lode reference"
    );
}

#[test]
fn the_command_line_is_well_formed() {
    command_line::command().debug_assert();
}

#[test]
fn every_command_and_argument_has_help() {
    fn check(command: &Command) {
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
        }
        command.get_subcommands().for_each(check);
    }
    check(&command_line::command());
}
