//! `lode login` and `lode logout`: save and remove a user name with a password or token for a registry. Login
//! checks them with the registry first. Without a user name a person signs in with a browser.

use std::io::{BufRead, Read, Write};
use std::time::Duration;

use lode_client::{Client, ClientOptions, CredentialFile, Credentials, Login as Credential, Registry};
use serde_json::Value;

use super::access::read_password;
use crate::{
    args::{Login, Logout},
    connect::{self, Connection},
    error::{Failure, Outcome},
    ui,
};

/// The user name of a token whose account the registry knows.
const TOKEN_USER: &str = "token";
const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// How long to wait between two requests, if the server does not say; and at most.
const POLL_INTERVAL: u64 = 5;
const MAX_POLL_INTERVAL: u64 = 60;
/// The longest line that is read.
const MAX_LINE_BYTES: u64 = 4096;

pub(crate) async fn login(connection: &Connection, args: Login) -> Outcome {
    let registry = connection.registry(args.server.as_deref())?;
    let login = match (args.username, args.password_stdin) {
        (Some(username), _) => Credential { username, password: read_password()? },
        (None, true) => Credential { username: TOKEN_USER.to_owned(), password: read_password()? },
        (None, false) => match sign_in_by_browser(&registry).await? {
            Some(login) => login,
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

/// Signs in with a browser (RFC 8628). `None` if the registry does not offer it.
async fn sign_in_by_browser(registry: &Registry) -> Outcome<Option<Credential>> {
    let fields = [("client_id", "lode"), ("client_name", &client_name()), ("scope", "full")];
    let started: Result<(_, Value), _> = registry.form_post("hf/oauth/device", &fields).await;
    let started = match started {
        Ok((status, started)) if status.is_success() => started,
        // Another registry, or a server without accounts.
        Ok(_) | Err(lode_client::Error::Protocol { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let text = |key: &str| started[key].as_str().unwrap_or_default().to_owned();
    let (device_code, url) = (text("device_code"), text("verification_uri_complete"));
    if device_code.is_empty() || url.is_empty() {
        return Ok(None);
    }
    ui::print_message(format!("Open this page, and allow the code {}:\n  {url}", text("user_code")));
    let mut interval = started["interval"].as_u64().unwrap_or(POLL_INTERVAL).clamp(1, MAX_POLL_INTERVAL);
    loop {
        tokio::time::sleep(Duration::from_secs(interval)).await;
        let fields = [("grant_type", DEVICE_GRANT), ("device_code", &device_code), ("client_id", "lode")];
        let (_, polled): (_, Value) = registry.form_post("hf/oauth/token", &fields).await?;
        if let Some(token) = polled["access_token"].as_str() {
            return Ok(Some(Credential { username: TOKEN_USER.to_owned(), password: token.to_owned() }));
        }
        match polled["error"].as_str() {
            Some("authorization_pending") => {}
            Some("slow_down") => interval = (interval + POLL_INTERVAL).min(MAX_POLL_INTERVAL),
            Some("access_denied") => return Err(Failure::new("the sign-in was denied")),
            Some("expired_token") => {
                return Err(Failure::new("the code has expired").hint("run `lode login` again"));
            }
            _ => return Err(Failure::new(format!("{} sent an invalid response", registry.host()))),
        }
    }
}

/// The name under which the person finds the token later.
fn client_name() -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("lode on {host}")
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
    std::io::stdin().lock().take(MAX_LINE_BYTES).read_line(&mut text)?;
    Ok(text.trim().to_owned())
}
