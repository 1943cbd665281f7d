//! `/lode/v1/accounts`, `/groups`, `/tokens`, `/keys`, `/grants`, `/visibility` and `/me`: who may do what.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use lode_client::Secret;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::MAX_PAGE;
use crate::Registry;
use crate::app::{
    AccountChange, AccountError, AccountInfo, Grant, Group, KeyInfo, NewAccount, NewToken, TargetVisibility,
    TokenInfo,
};
use crate::auth::{
    Access, AccessTarget, AccountKind, Action, Caller, Credential, OllamaKey, Role, Scope, ServerRole,
    Target, Visibility,
};
use crate::http::{Failure, Json, JsonBody, Links, Path, Query, RequestBody, page, pair};

/// A request to create an account.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccountRequest {
    name: String,
    /// By default `user`.
    #[serde(default = "user")]
    kind: AccountKind,
    #[schema(value_type = Option<String>)]
    password: Option<Secret>,
    server_role: Option<ServerRole>,
}

fn user() -> AccountKind {
    AccountKind::User
}

/// A request to change an account. `server_role` may be `none`. With `current_password` it changes the caller's own
/// password, for which it need not be an administrator.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangeRequest {
    #[schema(value_type = Option<String>)]
    password: Option<Secret>,
    #[schema(value_type = Option<String>)]
    current_password: Option<Secret>,
    server_role: Option<String>,
    disabled: Option<bool>,
}

/// A request to create a token.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenRequest {
    /// What the token is for.
    name: String,
    /// The account; by default that of the caller.
    account: Option<String>,
    #[serde(default)]
    access: Access,
    /// Where the token may be used; empty: everywhere.
    #[serde(default)]
    targets: Vec<AccessTarget>,
    /// By default 90 days.
    expires_in_seconds: Option<u64>,
}

/// A request to grant or remove a role.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GrantRequest {
    target: AccessTarget,
    /// The name of an account or a group; `everyone` or `anyone`.
    subject: String,
    /// Absent: remove the role.
    role: Option<Role>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct VisibilityRequest {
    target: AccessTarget,
    /// Absent: a repository has that of its namespace.
    visibility: Option<Visibility>,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GroupRequest {
    name: String,
    /// The sign-in provider that decides its members.
    provider: Option<String>,
    /// The provider's name for the group; by default `name`.
    claim: Option<String>,
}

impl RequestBody for AccountRequest {
    const ACTION: Action = Action::Own;
}

impl RequestBody for ChangeRequest {
    const ACTION: Action = Action::Own;
}

impl RequestBody for TokenRequest {
    const ACTION: Action = Action::Own;
}

impl RequestBody for GrantRequest {
    const ACTION: Action = Action::Own;
}

impl RequestBody for VisibilityRequest {
    const ACTION: Action = Action::Own;
}

impl RequestBody for GroupRequest {
    const ACTION: Action = Action::Administer;
}

#[derive(Serialize, ToSchema)]
pub(crate) struct AccountList {
    accounts: Vec<AccountInfo>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TokenList {
    tokens: Vec<TokenInfo>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct CreatedToken {
    #[serde(flatten)]
    info: TokenInfo,
    /// Shown only here.
    secret: String,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct GroupList {
    groups: Vec<Group>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct KeyList {
    keys: Vec<KeyInfo>,
}

/// The account behind the request's credentials.
#[derive(Serialize, ToSchema)]
pub(crate) struct Me {
    /// Null: the caller has no account.
    name: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    account: Option<MyAccount>,
}

/// Present if the caller has an account.
#[derive(Serialize, ToSchema)]
struct MyAccount {
    id: Uuid,
    kind: AccountKind,
    server_role: Option<ServerRole>,
    access: Access,
    targets: Vec<AccessTarget>,
    /// The token that was used.
    token_id: Option<Uuid>,
    /// The token that scripts of this server's pages send with changes.
    csrf: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct GrantList {
    grants: Vec<Grant>,
    visibilities: Vec<TargetVisibility>,
}

pub(crate) async fn accounts(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let namespace = query.get("namespace");
    let found = registry.account_list(&caller, namespace, query.get("last"), n).await?;
    let last = found.items.last().filter(|_| found.more);
    let next = last.map(|last| links.after("/lode/v1/accounts", n, &last.name, ("namespace", namespace)));
    Ok(page(Json(AccountList { accounts: found.items }), next))
}

pub(crate) async fn create_account(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<AccountRequest>,
) -> Result<(StatusCode, Json<AccountInfo>), Failure> {
    let (AccountRequest { name, kind, password, server_role }, _charge) = body.into_parts();
    let created = registry.account_create(&caller, NewAccount { kind, name, password, server_role }).await?;
    Ok((StatusCode::CREATED, Json(created)))
}

pub(crate) async fn change_account(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
    body: JsonBody<ChangeRequest>,
) -> Result<Json<AccountInfo>, Failure> {
    let (ChangeRequest { password, current_password, server_role, disabled }, _charge) = body.into_parts();
    if let (Some(new), Some(current)) = (&password, current_password)
        && server_role.is_none()
        && disabled.is_none()
        && caller.account().is_some_and(|account| account.name == name)
    {
        return Ok(Json(registry.password_change(&caller, &current, new.clone()).await?));
    }
    let server_role = match server_role.as_deref() {
        None => None,
        Some("none") => Some(None),
        Some(text) => Some(Some(text.parse().map_err(Failure::UnknownName)?)),
    };
    let change = AccountChange { password, server_role, is_disabled: disabled };
    Ok(Json(registry.account_update(&caller, &name, change).await?))
}

pub(crate) async fn delete_account(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, Failure> {
    registry.account_delete(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Newest first.
pub(crate) async fn tokens(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let account = query.get("account");
    let before = query.id("last")?;
    let found = registry.token_page(&caller, account, before, n).await?;
    let last = found.items.last().filter(|_| found.more).map(|token| token.info.id.to_string());
    let next = last.map(|last| links.after("/lode/v1/tokens", n, &last, ("account", account)));
    let tokens = found.items.into_iter().map(|token| token.info).collect();
    Ok(page(Json(TokenList { tokens }), next))
}

pub(crate) async fn create_token(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<TokenRequest>,
) -> Result<(StatusCode, Json<CreatedToken>), Failure> {
    let (TokenRequest { name, account, access, targets, expires_in_seconds }, _charge) = body.into_parts();
    let new = NewToken {
        name,
        scope: Scope { access, targets, requested: None },
        valid: expires_in_seconds.map(Duration::from_secs),
    };
    let (info, secret) = registry.token_create(&caller, account.as_deref(), new).await?;
    Ok((StatusCode::CREATED, Json(CreatedToken { info, secret: secret.expose().to_owned() })))
}

pub(crate) async fn rotate_token(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
    query: Query,
) -> Result<(StatusCode, Json<CreatedToken>), Failure> {
    let (info, secret) = registry.token_rotate(&caller, query.get("account"), id).await?;
    Ok((StatusCode::CREATED, Json(CreatedToken { info, secret: secret.expose().to_owned() })))
}

pub(crate) async fn revoke_token(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
    query: Query,
) -> Result<StatusCode, Failure> {
    registry.token_revoke(&caller, query.get("account"), id).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn grants(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let target = query.get("target");
    let of = target.map(str::parse).transpose().map_err(Failure::UnknownName)?;
    let found = registry.rights_page(&caller, of.as_ref(), query.last_pair()?, n).await?;
    let last = found.next.map(|(last, subject)| pair(&last, &subject));
    let next = last.map(|last| links.after("/lode/v1/grants", n, &last, ("target", target)));
    Ok(page(Json(GrantList { grants: found.grants, visibilities: found.visibilities }), next))
}

pub(crate) async fn put_grant(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<GrantRequest>,
) -> Result<StatusCode, Failure> {
    let GrantRequest { target, subject, role } = &*body;
    match role {
        Some(role) => registry.grant_put(&caller, target, subject, *role).await?,
        None => registry.grant_delete(&caller, target, subject).await?,
    }
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn put_visibility(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<VisibilityRequest>,
) -> Result<StatusCode, Failure> {
    registry.visibility_put(&caller, &body.target, body.visibility).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn groups(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let found = registry.group_page(&caller, query.last_pair()?, n).await?;
    let next = found.items.last().filter(|_| found.more).map(|group| {
        let last = pair(&group.name, group.members.last().map_or("", String::as_str));
        links.next("/lode/v1/groups", &[("n", &n.to_string()), ("last", &last)])
    });
    Ok(page(Json(GroupList { groups: found.items }), next))
}

pub(crate) async fn create_group(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<GroupRequest>,
) -> Result<StatusCode, Failure> {
    let GroupRequest { name, provider, claim } = &*body;
    registry.group_create(&caller, name, provider.as_deref(), claim.as_deref()).await?;
    Ok(StatusCode::CREATED)
}

pub(crate) async fn delete_group(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, Failure> {
    registry.group_delete(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn add_member(
    State(registry): State<Registry>,
    caller: Caller,
    Path((group, account)): Path<(String, String)>,
) -> Result<StatusCode, Failure> {
    registry.group_member_put(&caller, &group, &account, true).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(crate) async fn remove_member(
    State(registry): State<Registry>,
    caller: Caller,
    Path((group, account)): Path<(String, String)>,
) -> Result<StatusCode, Failure> {
    registry.group_member_put(&caller, &group, &account, false).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// A request to add a key.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyRequest {
    /// The line of the public key file.
    key: String,
    /// By default the comment of the line.
    name: Option<String>,
    /// The account; by default that of the caller.
    account: Option<String>,
}

impl RequestBody for KeyRequest {
    const ACTION: Action = Action::Own;
}

/// Newest first.
pub(crate) async fn keys(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let account = query.get("account");
    let found = registry.key_page(&caller, account, query.id("last")?, n).await?;
    let last = found.items.last().filter(|_| found.more).map(|key| key.id.to_string());
    let next = last.map(|last| links.after("/lode/v1/keys", n, &last, ("account", account)));
    Ok(page(Json(KeyList { keys: found.items }), next))
}

pub(crate) async fn add_key(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<KeyRequest>,
) -> Result<(StatusCode, Json<KeyInfo>), Failure> {
    let KeyRequest { key, name, account } = &*body;
    let (key, comment) = OllamaKey::parse_line(key).map_err(AccountError::from)?;
    let name = name.as_deref().or(comment).unwrap_or("ollama");
    let added = registry.key_add(&caller, account.as_deref(), key, name).await?;
    Ok((StatusCode::CREATED, Json(added)))
}

pub(crate) async fn remove_key(
    State(registry): State<Registry>,
    caller: Caller,
    Path(id): Path<Uuid>,
    query: Query,
) -> Result<StatusCode, Failure> {
    registry.key_remove(&caller, query.get("account"), id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The account behind the request's credentials.
pub(crate) async fn me(State(registry): State<Registry>, caller: Caller) -> Result<Json<Me>, Failure> {
    registry.authorize(&caller, Action::SignIn, Target::Server).await?;
    let Some(account) = caller.account() else { return Ok(Json(Me { name: None, account: None })) };
    let csrf = registry.csrf_token(&caller).await?;
    let token_id = match account.credential {
        Credential::Token(id) => Some(id),
        _ => None,
    };
    let mine = MyAccount {
        id: account.id,
        kind: account.kind,
        server_role: account.server_role,
        access: account.scope.access,
        targets: account.scope.targets.clone(),
        token_id,
        csrf: csrf.map(|token| token.expose().to_owned()),
    };
    Ok(Json(Me { name: Some(account.name.clone()), account: Some(mine) }))
}
