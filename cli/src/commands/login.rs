//! `lode login` and `lode logout`: a user name and a password or token for one registry, tried before it is kept.

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
        None if ui::stdin_is_terminal() && !args.password_stdin => ask("Username: ")?,
        None => return Err(Failure::new("no user name was given").hint("--username NAME --password-stdin")),
    };
    let password = if args.password_stdin || !ui::stdin_is_terminal() {
        let mut text = String::new();
        std::io::stdin().lock().take(64 << 10).read_to_string(&mut text)?;
        text.trim_end_matches(['\r', '\n']).to_owned()
    } else {
        return Err(Failure::new("a password typed here would show on the screen").hint(format!(
            "pipe it in: `lode login {} --username {username} --password-stdin < FILE`",
            registry.host()
        )));
    };
    if username.is_empty() || password.is_empty() {
        return Err(Failure::new("user name and password may not be empty"));
    }
    let login = Credential { username, password };
    // Asked with exactly this login, not with one that was kept before.
    let options = ClientOptions {
        credentials: Credentials::fixed(registry.host(), login.clone()),
        ..ClientOptions::default()
    };
    let probe: Registry = Client::new(options)?.registry(registry.url().as_str())?;
    probe.ping().await.map_err(|error| match error {
        lode_client::Error::Unauthorized { .. } => {
            Failure::new(format!("{} did not accept this user name and password", registry.host()))
        }
        other => other.into(),
    })?;
    file()?.set(&registry.host(), login)?;
    ui::say(format!("logged in to {}", registry.host()));
    Ok(())
}

pub(crate) fn logout(connection: &Connection, args: Logout) -> Outcome {
    let registry = connection.registry(args.server.as_deref())?;
    if file()?.remove(&registry.host())? {
        ui::say(format!("logged out of {}", registry.host()));
    } else {
        ui::say(format!("there was no login for {}", registry.host()));
    }
    Ok(())
}

fn file() -> Outcome<CredentialFile> {
    connect::credential_file().ok_or_else(|| {
        Failure::new("there is no folder to keep logins in").hint("set HOME or XDG_CONFIG_HOME")
    })
}

fn ask(question: &str) -> Outcome<String> {
    let mut err = std::io::stderr().lock();
    err.write_all(question.as_bytes())?;
    err.flush()?;
    let mut text = String::new();
    std::io::stdin().lock().read_line(&mut text)?;
    Ok(text.trim().to_owned())
}
