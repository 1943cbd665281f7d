//! Arguments of `lode pull`.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
The files of a model that was imported without quantisation are restored byte for byte. If the
command is interrupted, repeat it: it resumes where it stopped and keeps files that are already
complete and correct.

A pattern of --include or --exclude is compared with the whole path of each file. `*` matches any text,
`/` included, `?` one character and `{a,b}` either text. Data of other files is not downloaded.

Examples:
  lode pull team/mini --to ./mini
  lode pull team/mini --include '*.json' --include README.md
  lode pull hub.local/team/mini@sha256:0123...")]
pub(crate) struct Pull {
    /// Model or artifact: [host/]repository[:tag|@digest]
    pub(crate) name: String,
    /// Folder to write to [default: the last part of the repository name]
    #[arg(value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
    /// The same as DIR
    #[arg(long, value_name = "DIR", conflicts_with = "folder")]
    pub(crate) to: Option<PathBuf>,
    /// Only files that match this pattern. Repeatable
    #[arg(long, value_name = "PATTERN")]
    pub(crate) include: Vec<String>,
    /// No files that match this pattern, even if --include selects them. Repeatable
    #[arg(long, value_name = "PATTERN")]
    pub(crate) exclude: Vec<String>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
