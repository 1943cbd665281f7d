//! `lode completions SHELL`: prints a completion script to standard output. The script runs this program for each
//! completion, so that names of models are completed too. Packages contain the scripts in `cli/completions/`.

use clap_complete::{Shell, env::Shells};

use crate::{
    args::Completions,
    complete,
    error::{Failure, Outcome},
    ui,
};

/// clap's script for bash does not expect that bash splits names at colons.
const BASH: &str = include_str!("../../completions/lode.bash");
/// clap's script for zsh completes nothing the first time.
const ZSH: &str = include_str!("../../completions/_lode");
const FISH: &str = include_str!("../../completions/lode.fish");

pub(crate) fn run(args: Completions) -> Outcome {
    match args.shell {
        Shell::Bash => ui::print_bytes(BASH.as_bytes()),
        Shell::Zsh => ui::print_bytes(ZSH.as_bytes()),
        Shell::Fish => ui::print_bytes(FISH.as_bytes()),
        other => ui::print_bytes(&clap_script(&other.to_string())?),
    }
}

fn clap_script(shell: &str) -> Outcome<Vec<u8>> {
    let shells = Shells::builtins();
    let completer =
        shells.completer(shell).ok_or_else(|| Failure::new(format!("no completion script for {shell}")))?;
    let mut script = Vec::new();
    completer.write_registration(complete::VARIABLE, "lode", "lode", "lode", &mut script)?;
    Ok(script)
}
