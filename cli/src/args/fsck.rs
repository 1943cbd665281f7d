//! Arguments of `lode fsck`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Damage is a database row without its blob, a blob with wrong content or a dangling reference.
Blobs without a row and unfinished uploads are reported but are not damage.

Exit codes: 0 no damage, 1 damage found, 2 the check failed.")]
pub(crate) struct Fsck {
    /// Read every blob and compare its digest
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
