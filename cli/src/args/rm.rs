//! Arguments of `lode rm`.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// Tag or manifest: [host/]repository[:tag|@digest]
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}
