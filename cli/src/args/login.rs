//! `lode login`: keeping and forgetting logins.

use clap::{ArgAction, Args};

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  echo $TOKEN | lode login hub.local --username ci --password-stdin")]
pub(crate) struct Login {
    /// The registry [default: the server named by LODE_HOST]
    #[arg(value_name = "HOST")]
    pub(crate) server: Option<String>,
    #[arg(long, short)]
    pub(crate) username: Option<String>,
    /// Read the password or token from standard input
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) password_stdin: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Logout {
    /// The registry [default: the server named by LODE_HOST]
    #[arg(value_name = "HOST")]
    pub(crate) server: Option<String>,
}
