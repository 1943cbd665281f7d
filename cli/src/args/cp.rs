//! Arguments of `lode cp`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
A copy within one registry transfers no blob data. Manifests keep their digests. An index is copied
with every manifest that it lists; signatures and other referrers are not copied.

If the destination is another Lode server, it fetches the blobs from the source itself, in a job. Ctrl-C
cancels the job; a lost connection does not, and a repeated command continues it. The login that is
saved for the source is sent to the destination if the source requires one, and is kept there until the
job ends. If the destination cannot fetch from the source, the blobs pass through this machine.

Examples:
  lode cp team/mini team/mini:stable
  lode cp team/mini hub.local/team/mini
  lode cp registry.example/team/mini team/mini")]
pub(crate) struct Cp {
    /// Model or artifact to copy: [host/]repository[:tag|@digest]
    pub(crate) source: String,
    /// Name of the copy: [host/]repository[:tag|@digest]
    pub(crate) destination: String,

    /// Copy through this machine, even if the destination could fetch from the source
    #[arg(long)]
    pub(crate) through_client: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
