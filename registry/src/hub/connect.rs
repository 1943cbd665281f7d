//! `/connect`: adds the key of an ollama that has just tried to sign in. Its address is in ollama's output.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;

use super::page::{Shell, message, render};
use crate::Registry;
use crate::app::AccountError;
use crate::auth::OllamaKey;
use crate::http::pages::{Form, SignedIn};
use crate::http::{Failure, Query};

#[derive(Template)]
#[template(path = "connect.html")]
struct ConnectPage {
    shell: Shell,
    key: String,
    fingerprint: String,
    name: String,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    query: Query,
) -> Result<Response, Failure> {
    let key = parse(query.get("key").unwrap_or_default())?;
    let page = ConnectPage {
        shell: Shell::of(&registry, &caller).await?,
        key: key.to_url(),
        fingerprint: key.fingerprint(),
        name: query.get("name").unwrap_or("ollama").chars().take(100).collect(),
    };
    Ok(render(StatusCode::OK, &page))
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    form: Form,
) -> Result<Response, Failure> {
    let added = registry.key_add(&caller, None, parse(form.get("key"))?, form.get("name")).await?;
    let shell = Shell::of(&registry, &caller).await?;
    let text = format!("The key {} is yours now. Repeat the command of ollama.", added.fingerprint);
    Ok(message(shell, "Key added", text))
}

fn parse(text: &str) -> Result<OllamaKey, AccountError> {
    Ok(OllamaKey::from_url(text)?)
}
