//! `lode completions SHELL`: prints a completion script to standard output.

use clap::CommandFactory;

use crate::{
    args::{Cli, Completions},
    error::Outcome,
    ui,
};

pub(crate) fn run(args: Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "lode", &mut script);
    ui::print_bytes(&script)
}
