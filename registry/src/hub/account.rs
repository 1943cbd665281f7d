//! `/-/account`: a user's own tokens, keys, password and sessions, and the namespaces that the user owns.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use lode_client::Secret;
use uuid::Uuid;

use super::confirm::{Confirmation, is_confirmed};
use super::format::{day, minute};
use super::page::{Shell, is_about_form, render};
use super::tokens::{self, TokenSection, form_id, query_id};
use crate::Registry;
use crate::app::{AccountError, IdentityInfo, ProviderInfo};
use crate::auth::{Caller, OllamaKey, Role};
use crate::http::pages::{Form, SignedIn, redirect};
use crate::http::{Failure, Query};

const PAGE: &str = "/-/account";
/// How many keys a page has.
const KEYS: u32 = 50;
/// How many namespaces are listed.
const NAMESPACES: usize = 100;

#[derive(Template)]
#[template(path = "account.html")]
struct AccountPage {
    shell: Shell,
    server_role: Option<&'static str>,
    tokens: TokenSection,
    /// Namespaces that the account owns.
    namespaces: Vec<String>,
    has_more_namespaces: bool,
    keys: Vec<KeyLine>,
    /// The last key of the page, if another page follows.
    next_key: Option<Uuid>,
    is_first_key: bool,
    sessions: Vec<SessionLine>,
    identities: Vec<IdentityInfo>,
    providers: Vec<ProviderInfo>,
    has_password: bool,
    confirmation: Option<Confirmation>,
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
    query: Query,
) -> Result<Response, Failure> {
    let page = AccountPage::new(&registry, &caller, Some(&query)).await?;
    Ok(render(StatusCode::OK, &page))
}

/// Creates, replaces or revokes a token.
pub(crate) async fn change_token(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    form: Form,
) -> Result<Response, Failure> {
    let mut page = AccountPage::new(&registry, &caller, None).await?;
    page.confirmation = page.tokens.question(&form);
    if page.confirmation.is_some() {
        return Ok(render(StatusCode::OK, &page));
    }
    let changed = match tokens::change(&registry, &caller, None, &form).await {
        Ok(None) => return Ok(redirect(PAGE)),
        Err(failure) if !is_about_form(&failure) => return Err(failure),
        changed => changed,
    };
    let mut page = AccountPage::new(&registry, &caller, None).await?;
    let status = page.tokens.show(&form, changed);
    Ok(render(status, &page))
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
    let id = form_id(&form)?;
    if is_confirmed(&form) {
        registry.key_remove(&caller, None, id).await?;
        return Ok(redirect(PAGE));
    }
    let page = AccountPage::new(&registry, &caller, None).await?;
    // The key may be on another page of the list.
    let key = page.keys.iter().find(|key| key.id == id);
    let name = key.map_or_else(|| id.to_string(), |key| key.name.clone());
    let urls = ("/-/account/keys/remove#keys", "/-/account#keys");
    let title = format!("Remove the key {name}?");
    let text = "Clients of ollama that sign with it are refused at once.";
    let confirmation = Some(Confirmation::new(&form, urls, title, text, "Remove the key"));
    Ok(render(StatusCode::OK, &AccountPage { confirmation, ..page }))
}

/// Disconnects the account from an identity at a provider.
pub(crate) async fn disconnect(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    form: Form,
) -> Result<Response, Failure> {
    let (issuer, subject) = (form.get("issuer"), form.get("subject"));
    if is_confirmed(&form) {
        registry.identity_remove(&caller, issuer, subject).await?;
        return Ok(redirect(PAGE));
    }
    let page = AccountPage::new(&registry, &caller, None).await?;
    let identity = page.identities.iter().find(|one| one.issuer == issuer && one.subject == subject);
    let provider = identity.map_or(issuer, |identity| &identity.title);
    let urls = ("/-/account/identities/remove#identities", "/-/account#identities");
    let title = format!("Remove the sign-in at {provider}?");
    let text =
        "You then cannot sign in there any more, and lose the groups and roles that the provider decides.";
    let confirmation = Some(Confirmation::new(&form, urls, title, text, "Remove the sign-in"));
    Ok(render(StatusCode::OK, &AccountPage { confirmation, ..page }))
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

impl AccountPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        query: Option<&Query>,
    ) -> Result<AccountPage, Failure> {
        let before = query_id(query, "keys_before", "the id of a key")?;
        let found = registry.key_page(caller, None, before, KEYS).await?;
        let next_key = found.items.last().filter(|_| found.more).map(|key| key.id);
        let keys = found.items.into_iter().map(|key| KeyLine {
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
        let granted = registry.namespaces_of(caller).await?.into_iter();
        let mut namespaces: Vec<String> =
            granted.filter(|(_, role)| *role == Role::Own).map(|(name, _)| name).collect();
        let has_more_namespaces = namespaces.len() > NAMESPACES;
        namespaces.truncate(NAMESPACES);
        let server_role = caller.account().and_then(|account| account.server_role);
        Ok(AccountPage {
            shell: Shell::of(registry, caller).await?,
            server_role: server_role.map(|role| role.as_str()),
            tokens: TokenSection::new(registry, caller, None, query).await?,
            namespaces,
            has_more_namespaces,
            keys: keys.collect(),
            next_key,
            is_first_key: before.is_none(),
            sessions: sessions.collect(),
            identities: registry.identity_list(caller).await?,
            providers: registry.providers(),
            has_password: registry.has_password(caller).await?,
            confirmation: None,
        })
    }
}
