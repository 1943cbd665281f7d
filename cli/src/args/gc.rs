//! Arguments of `lode gc` and its subcommands.

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Deletes manifests and blobs without references whose grace period has ended, and tags that a
retention rule removes. Removals can be undone within the undo window of the server.

Examples:
  lode gc --dry-run
  lode gc history team/mini
  lode gc undo team/mini:v1")]
pub(crate) struct Gc {
    #[command(subcommand)]
    pub(crate) command: Option<GcCommand>,
    /// List what a collection would remove, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GcCommand {
    /// List removed tags, manifests and blobs with the reason, newest first
    History(GcHistory),
    /// Restore a removed tag, or a removed manifest with its tags
    Undo(GcUndo),
}

#[derive(Debug, Args)]
pub(crate) struct GcHistory {
    /// Only removals in this repository
    pub(crate) repository: Option<String>,
    /// Number of removals to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub(crate) limit: u32,
    /// Show all columns, whatever the width of the terminal
    #[arg(long)]
    pub(crate) wide: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GcUndo {
    /// What to restore: REPOSITORY:TAG or REPOSITORY@DIGEST
    pub(crate) name: String,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
