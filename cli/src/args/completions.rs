//! Arguments of `lode completions`.

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
#[command(after_help = "\
The script completes commands, options, and the names of models and repositories on the server that
LODE_HOST or --host names. The program must be in the PATH as `lode`.

Examples:
  lode completions bash > ~/.local/share/bash-completion/completions/lode
  lode completions zsh > ~/.zfunc/_lode
  lode completions fish > ~/.config/fish/completions/lode.fish")]
pub(crate) struct Completions {
    /// Shell to print the script for
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}
