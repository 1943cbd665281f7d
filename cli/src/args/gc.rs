//! `lode gc`: collecting, and what was removed.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  lode gc --dry-run
  lode gc history team/mini
  lode gc undo team/mini:v1")]
pub(crate) struct Gc {
    #[command(subcommand)]
    pub(crate) command: Option<GcCommand>,
    /// Only say what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GcCommand {
    /// List what was removed and why, newest first
    History(GcHistory),
    /// Bring back a removed manifest with the tags it had, or a removed tag
    Undo(GcUndo),
}

#[derive(Debug, Args)]
pub(crate) struct GcHistory {
    /// Only of this repository
    pub(crate) repository: Option<String>,
    /// How many lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: u32,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GcUndo {
    /// REPOSITORY:TAG or REPOSITORY@DIGEST
    pub(crate) name: String,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
