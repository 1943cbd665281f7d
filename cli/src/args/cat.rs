//! Arguments of `lode cat`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Only the data of that file is downloaded. `lode pull NAME --include PATTERN` writes several files to a folder.

Examples:
  lode cat team/mini config.json | jq .model_type
  lode cat team/mini README.md")]
pub(crate) struct Cat {
    /// Model or artifact: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Path of the file in the model, such as config.json
    pub(crate) file: String,
}
