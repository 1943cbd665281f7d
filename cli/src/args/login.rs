//! Arguments of `lode login`, `lode logout` and `lode whoami`.

use clap::{ArgAction, Args};

#[derive(Debug, Args)]
#[command(after_help = "\
Without a user name, it prints the address of a page on which you allow the sign-in. Otherwise it asks for
the password, or for a token in its place, and checks it with the registry. The credentials are saved in
credentials.json in the lode folder of XDG_CONFIG_HOME or ~/.config, and used for this scheme, host and port
only: a login for https is not sent over http. A server without accounts needs no sign-in, and nothing is saved.

Examples:
  lode login hub.local
  lode login hub.local --username alice
  lode login hub.local --password-stdin < token.txt")]
pub(crate) struct Login {
    /// Registry host [default: the server that LODE_HOST names]
    #[arg(value_name = "HOST")]
    pub(crate) server: Option<String>,
    /// User name
    #[arg(long, short)]
    pub(crate) username: Option<String>,
    /// Read the password or token from standard input; a token needs no user name
    #[arg(long, action = ArgAction::SetTrue)]
    pub(crate) password_stdin: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A token that `lode login` created in a browser is revoked. Other tokens stay valid until they expire.")]
pub(crate) struct Logout {
    /// Registry host [default: the server that LODE_HOST names]
    #[arg(value_name = "HOST")]
    pub(crate) server: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  lode whoami
  lode whoami lode.example --json")]
pub(crate) struct Whoami {
    /// Registry host [default: the server that LODE_HOST names]
    #[arg(value_name = "HOST")]
    pub(crate) server: Option<String>,
    /// Print the result as a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
