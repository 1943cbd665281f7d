//! `lode show`: showing a model.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Show {
    pub(crate) name: String,
    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
