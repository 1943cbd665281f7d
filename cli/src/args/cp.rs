//! Arguments of `lode cp`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
A copy within one registry transfers no blob data. Manifests keep their digests. An index is copied
with every manifest that it lists.

Examples:
  lode cp team/mini team/mini:stable
  lode cp team/mini hub.local/team/mini")]
pub(crate) struct Cp {
    /// Model or artifact to copy: [host/]repository[:tag|@digest]
    pub(crate) source: String,
    /// Name of the copy: [host/]repository[:tag|@digest]
    pub(crate) destination: String,
}
