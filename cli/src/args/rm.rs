//! Arguments of `lode rm`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
`lode tag undo` restores a tag. A digest removes the manifest with all its tags, and `lode gc undo`
restores them. A collection deletes what no tag needs after the grace period of the server: see
`lode gc --help`.

Examples:
  lode rm team/mini:old
  lode rm team/image@sha256:0123...")]
pub(crate) struct Rm {
    /// Tag or manifest: [host/]repository[:tag|@digest]
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Succeed if the tag or manifest does not exist
    #[arg(long)]
    pub(crate) if_exists: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
