//! `lode login` and `lode logout`: save and remove a user name with a password or token for a registry. Login
//! checks them with the registry first.

use std::io::{BufRead, Read, Write};

use lode_client::{Client, ClientOptions, CredentialFile, Credentials, Login as Credential, Registry};

use crate::{
    args::{Login, Logout},
    connect::{self, Connection},
    error::{Failure, Outcome},
    ui,
};

pub(crate) async fn login(connection: &Connection, args: Login) -> Outcome {
    let registry = connection.registry(args.server.as_deref())?;
    let username = match args.username {
        Some(username) => username,
        None if ui::stdin_is_terminal() && !args.password_stdin => prompt_line("Username: ")?,
        None => return Err(Failure::new("no user name").hint("--username NAME --password-stdin")),
    };
    let password = if args.password_stdin || !ui::stdin_is_terminal() {
        let mut text = String::new();
        std::io::stdin().lock().take(64 << 10).read_to_string(&mut text)?;
        text.trim_end_matches(['\r', '\n']).to_owned()
    } else {
        return Err(Failure::new("a password cannot be entered on the terminal, where it would be visible")
            .hint(format!(
                "read it from a file: `lode login {} --username {username} --password-stdin < FILE`",
                registry.host()
            )));
    };
    if username.is_empty() || password.is_empty() {
        return Err(Failure::new("user name and password must not be empty"));
    }
    let login = Credential { username, password };
    // Check these credentials, not saved ones.
    let options = ClientOptions {
        credentials: Credentials::fixed(registry.host(), login.clone()),
        ..ClientOptions::default()
    };
    let probe: Registry = Client::new(options)?.registry(registry.url().as_str())?;
    probe.ping().await.map_err(|error| match error {
        lode_client::Error::Unauthorized { .. } => {
            Failure::new(format!("{} rejected this user name and password", registry.host()))
        }
        other => other.into(),
    })?;
    file()?.set(&registry.host(), login)?;
    ui::print_message(format!("logged in to {}", registry.host()));
    Ok(())
}

pub(crate) fn logout(connection: &Connection, args: Logout) -> Outcome {
    let registry = connection.registry(args.server.as_deref())?;
    if file()?.remove(&registry.host())? {
        ui::print_message(format!("logged out of {}", registry.host()));
    } else {
        ui::print_message(format!("no saved credentials for {}", registry.host()));
    }
    Ok(())
}

fn file() -> Outcome<CredentialFile> {
    connect::credential_file()
        .ok_or_else(|| Failure::new("no folder for saved credentials").hint("set HOME or XDG_CONFIG_HOME"))
}

fn prompt_line(question: &str) -> Outcome<String> {
    let mut err = std::io::stderr().lock();
    err.write_all(question.as_bytes())?;
    err.flush()?;
    let mut text = String::new();
    std::io::stdin().lock().read_line(&mut text)?;
    Ok(text.trim().to_owned())
}
