//! `lode rm`: removing a tag or a manifest.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Rm {
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}
