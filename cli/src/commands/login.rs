//! `lode login` and `lode logout`: save and remove a user name with a password or token for a registry. Login
//! checks them with the registry first. Without a user name a person signs in with a browser. Logout revokes
//! the token that this created.

use std::io::{BufRead, Read, Write};
use std::time::Duration;

use http::Method;
use lode_client::{
    Client, ClientOptions, CredentialFile, Credentials, Login as Credential, Registry, SavedLogin, TOKEN_USER,
};
use serde_json::Value;

use super::access::read_password;
use super::browser::sign_in_by_browser;
use crate::{
    args::{Login, Logout},
    connect::{self, Connection},
    error::{Failure, Outcome, chain},
    ui,
};

/// Begins the tokens of Lode.
const TOKEN_PREFIX: &str = "hf_lode";
/// Timeout of requests whose failure does not end the command.
const SHORT_TIMEOUT: Duration = Duration::from_secs(15);
/// The longest line that is read.
const MAX_LINE_BYTES: u64 = 4096;

pub(crate) async fn login(connection: &Connection, args: Login) -> Outcome {
    let registry = connection.registry(args.server.as_deref())?;
    if connection.needs_no_login(&registry).await {
        ui::print_message(format!("{} has no accounts: no sign-in is needed", registry.host()));
        return Ok(());
    }
    let mut owns_token = false;
    let login = match (args.username, args.password_stdin) {
        (Some(username), _) => Credential { username, password: read_password()? },
        (None, true) => Credential { username: TOKEN_USER.to_owned(), password: read_password()? },
        (None, false) => match sign_in_by_browser(&registry).await? {
            Some(password) => {
                owns_token = true;
                Credential { username: TOKEN_USER.to_owned(), password }
            }
            None if ui::stdin_is_terminal() => {
                Credential { username: prompt_line("Username: ")?, password: read_password()? }
            }
            None => {
                return Err(Failure::new("no user name").hint("--username NAME --password-stdin"));
            }
        },
    };
    if login.username.is_empty() || login.password.is_empty() {
        return Err(Failure::new("user name and password must not be empty"));
    }
    // Check these credentials, not saved ones.
    let options = ClientOptions {
        credentials: Credentials::fixed(registry.credential_key(), login.clone()),
        ..connection.anonymous_options()
    };
    let probe: Registry = Client::new(options)?.registry(registry.url().as_str())?;
    probe.ping().await.map_err(|error| match error {
        lode_client::Error::Unauthorized { .. } if login.username == TOKEN_USER => Failure::new(format!(
            "{} rejected this token: it is invalid, expired or revoked",
            registry.host()
        )),
        lode_client::Error::Unauthorized { .. } => {
            Failure::new(format!("{} rejected this user name and password", registry.host()))
        }
        other => other.into(),
    })?;
    file()?.set(&registry.credential_key(), SavedLogin { login, owns_token })?;
    ui::print_message(format!("logged in to {}", registry.host()));
    Ok(())
}

pub(crate) async fn logout(connection: &Connection, args: Logout) -> Outcome {
    let registry = connection.registry(args.server.as_deref())?;
    let Some(SavedLogin { login, owns_token }) = file()?.remove(&registry.credential_key())? else {
        ui::print_message(format!("no saved credentials for {}", registry.credential_key()));
        return Ok(());
    };
    ui::print_message(format!("logged out of {}", registry.host()));
    if !login.password.starts_with(TOKEN_PREFIX) {
        return Ok(());
    }
    if !owns_token {
        ui::print_message("notice: `lode login` did not create this token; it stays valid until it expires");
    } else if let Err(failure) = revoke_token(connection, &registry, login).await {
        ui::print_message(format!(
            "notice: the token was not revoked ({failure}); it stays valid until it expires. Revoke it on {}-/account, or after a new login with `lode token list` and `lode token revoke ID`",
            registry.url()
        ));
    }
    Ok(())
}

/// Revokes the token of `login`. Returns why it is still valid.
async fn revoke_token(connection: &Connection, registry: &Registry, login: Credential) -> Result<(), String> {
    let revoked = async {
        let options = ClientOptions {
            credentials: Credentials::fixed(registry.credential_key(), login),
            ..connection.anonymous_options()
        };
        let registry = Client::new(options)?.registry(registry.url().as_str())?;
        let me: Value = registry.json_get("lode/v1/me").await?;
        match me["token_id"].as_str() {
            Some(id) => registry
                .json_stream(Method::DELETE, &format!("lode/v1/tokens/{id}"), &Value::Null)
                .await
                .map(|_| true),
            // Without accounts, tokens have no effect.
            None => Ok(me.get("name") == Some(&Value::Null)),
        }
    };
    match tokio::time::timeout(SHORT_TIMEOUT, revoked).await {
        // The token has expired, or was revoked before.
        Ok(Ok(true) | Err(lode_client::Error::Unauthorized { .. })) => Ok(()),
        Ok(Ok(false)) => Err("the server did not report its id".to_owned()),
        Ok(Err(error)) => Err(chain(&error)),
        Err(_) => Err(format!("no response within {} seconds", SHORT_TIMEOUT.as_secs())),
    }
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
    std::io::stdin().lock().take(MAX_LINE_BYTES).read_line(&mut text)?;
    Ok(text.trim().to_owned())
}
