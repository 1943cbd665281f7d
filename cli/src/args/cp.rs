//! `lode cp`: copying an artifact.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Within a registry nothing is transferred. Manifests arrive with the same digest, and an index with all it lists.

Examples:
  lode cp team/mini team/mini:stable
  lode cp team/mini hub.local/team/mini")]
pub(crate) struct Cp {
    pub(crate) source: String,
    pub(crate) destination: String,
}
