//! `lode ps`: listing loaded models.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Ps {
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
