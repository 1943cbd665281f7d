//! Arguments of `lode login` and `lode logout`.

use clap::{ArgAction, Args};

#[derive(Debug, Args)]
#[command(after_help = "\
Checks the credentials with the registry, then saves them in credentials.json in the lode folder of
XDG_CONFIG_HOME or ~/.config.

Example:
  echo $TOKEN | lode login hub.local --username ci --password-stdin")]
pub(crate) struct Login {
    /// Registry host [default: the server that LODE_HOST names]
    #[arg(value_name = "HOST")]
    pub(crate) server: Option<String>,
    /// User name
    #[arg(long, short)]
    pub(crate) username: Option<String>,
    /// Read the password or token from standard input
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) password_stdin: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Logout {
    /// Registry host [default: the server that LODE_HOST names]
    #[arg(value_name = "HOST")]
    pub(crate) server: Option<String>,
}
