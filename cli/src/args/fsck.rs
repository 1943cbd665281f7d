//! `lode fsck`: comparing the index with the bytes.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Exit code 0: clean. 1: damage, which is a row without its bytes, wrong bytes or a dangling reference. 2: it could not
be checked. Bytes without a row and unfinished uploads are reported and are no damage.")]
pub(crate) struct Fsck {
    /// Read all bytes and compare their digests
    #[arg(long)]
    pub(crate) verify: bool,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
