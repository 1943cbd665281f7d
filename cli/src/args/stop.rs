//! Arguments of `lode stop`.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// Model: [host/]repository[:tag|@digest]
    pub(crate) name: String,
}
