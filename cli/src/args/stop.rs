//! `lode stop`: unloading a model.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Stop {
    pub(crate) name: String,
}
