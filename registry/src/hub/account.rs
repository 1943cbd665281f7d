//! `/-/account`: a user's own tokens, keys, password and sessions.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use lode_client::Secret;
use uuid::Uuid;

use super::device::rights_text;
use super::format::{day, minute};
use super::page::{Shell, render};
use crate::Registry;
use crate::app::{AccountError, IdentityInfo, NewToken, ProviderInfo};
use crate::auth::{Access, AccessTarget, Caller, OllamaKey, Scope};
use crate::http::Failure;
use crate::http::pages::{Form, SignedIn, redirect};
use crate::time::now_ms;

const PAGE: &str = "/-/account";

#[derive(Template)]
#[template(path = "account.html")]
struct AccountPage {
    shell: Shell,
    server_role: Option<&'static str>,
    /// Of a token that was just created.
    secret: Option<String>,
    tokens: Vec<TokenLine>,
    keys: Vec<KeyLine>,
    sessions: Vec<SessionLine>,
    identities: Vec<IdentityInfo>,
    providers: Vec<ProviderInfo>,
    has_password: bool,
}

struct TokenLine {
    id: Uuid,
    name: String,
    last_four: String,
    rights: String,
    expires: String,
    used: String,
    is_valid: bool,
}

struct KeyLine {
    id: Uuid,
    name: String,
    fingerprint: String,
    used: String,
}

struct SessionLine {
    address: String,
    agent: String,
    began: String,
    used: String,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
) -> Result<Response, Failure> {
    show(&registry, &caller, None).await
}

pub(crate) async fn create_token(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    form: Form,
) -> Result<Response, Failure> {
    let access: Access = form.get("access").parse().map_err(Failure::UnknownName)?;
    let days: u64 = form.get("days").parse().map_err(|_| AccountError::TokenTime)?;
    let new = NewToken {
        name: form.get("name").to_owned(),
        scope: Scope { access, ..Scope::default() },
        valid: Some(Duration::from_secs(days.saturating_mul(24 * 3600))),
    };
    let (_, secret) = registry.token_create(&caller, None, new).await?;
    show(&registry, &caller, Some(secret)).await
}

pub(crate) async fn revoke_token(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    form: Form,
) -> Result<Response, Failure> {
    registry.token_revoke(&caller, None, id(&form)?).await?;
    Ok(redirect(PAGE))
}

pub(crate) async fn add_key(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    form: Form,
) -> Result<Response, Failure> {
    let (key, comment) = OllamaKey::parse_line(form.get("key")).map_err(AccountError::from)?;
    registry.key_add(&caller, None, key, comment.unwrap_or("ollama")).await?;
    Ok(redirect(PAGE))
}

pub(crate) async fn remove_key(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    form: Form,
) -> Result<Response, Failure> {
    registry.key_remove(&caller, None, id(&form)?).await?;
    Ok(redirect(PAGE))
}

/// Changes the password, which ends all sessions.
pub(crate) async fn change_password(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    form: Form,
) -> Result<Response, Failure> {
    let (current, new) = (Secret::new(form.get("current")), Secret::new(form.get("new")));
    registry.password_change(&caller, &current, new).await?;
    Ok(redirect("/login"))
}

pub(crate) async fn end_sessions(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    _request: Parts,
    _form: Form,
) -> Result<Response, Failure> {
    registry.sessions_end_all(&caller).await?;
    Ok(redirect("/login"))
}

async fn show(registry: &Registry, caller: &Caller, secret: Option<Secret>) -> Result<Response, Failure> {
    let now = now_ms();
    let tokens = registry.token_list(caller, None).await?.into_iter().map(|token| TokenLine {
        is_valid: token.revoked_at.is_none() && token.expires_at.is_none_or(|at| at > now),
        rights: rights(&token.scope),
        expires: match (token.revoked_at, token.expires_at) {
            (Some(_), _) => "revoked".to_owned(),
            (None, Some(at)) if at <= now => "expired".to_owned(),
            (None, Some(at)) => day(at),
            (None, None) => "never".to_owned(),
        },
        used: token.used_at.map_or_else(|| "never".to_owned(), day),
        id: token.id,
        name: token.name,
        last_four: token.last_four,
    });
    let keys = registry.key_list(caller, None).await?.into_iter().map(|key| KeyLine {
        used: key.used_at.map_or_else(|| "never".to_owned(), day),
        id: key.id,
        name: key.name,
        fingerprint: key.fingerprint,
    });
    let sessions = registry.session_list(caller).await?.into_iter().map(|session| SessionLine {
        began: minute(session.created_at),
        used: minute(session.used_at),
        address: session.address,
        agent: session.agent,
    });
    let page = AccountPage {
        shell: Shell::of(registry, caller).await?,
        server_role: caller.account().and_then(|account| account.server_role).map(|role| role.as_str()),
        secret: secret.map(|secret| secret.expose().to_owned()),
        tokens: tokens.collect(),
        keys: keys.collect(),
        sessions: sessions.collect(),
        identities: registry.identity_list(caller).await?,
        providers: registry.providers(),
        has_password: registry.has_password(caller).await?,
    };
    Ok(render(StatusCode::OK, &page))
}

fn rights(scope: &Scope) -> String {
    let text = rights_text(scope.access);
    if scope.targets.is_empty() {
        return text.to_owned();
    }
    let targets: Vec<String> = scope.targets.iter().map(AccessTarget::to_string).collect();
    format!("{text}, in {}", targets.join(", "))
}

fn id(form: &Form) -> Result<Uuid, Failure> {
    form.get("id").parse().map_err(|_| Failure::Id { id: form.get("id").to_owned() })
}
