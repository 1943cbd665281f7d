//! `lode completions SHELL`: prints a completion script to standard output. The script runs this program for each
//! completion, so that names of models are completed too.

use clap_complete::env::Shells;

use crate::{
    args::Completions,
    complete,
    error::{Failure, Outcome},
    ui,
};

pub(crate) fn run(args: Completions) -> Outcome {
    let shell = args.shell.to_string();
    let shells = Shells::builtins();
    let completer =
        shells.completer(&shell).ok_or_else(|| Failure::new(format!("no completion script for {shell}")))?;
    let mut script = Vec::new();
    completer.write_registration(complete::VARIABLE, "lode", "lode", "lode", &mut script)?;
    ui::print_bytes(&script)
}
