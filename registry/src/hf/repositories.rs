//! Repositories, branches, tags and settings: what Hugging Face's clients create, change and delete
//! besides files.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::request::Parts;
use lode_model::reference::Repository;
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::{ERROR_MESSAGE, no_pull_requests};
use crate::Registry;
use crate::app::{CommitError, MAIN, commit_message};
use crate::auth::{Action, Caller, Visibility};
use crate::card::encode_path;
use crate::http::extract::RequestBody;
use crate::http::links::header_value;
use crate::http::pages::redirect;
use crate::http::{Failure, HfName, Json, JsonBody, Links, Path};

/// The repository that a request names in its body.
#[derive(Deserialize)]
pub(crate) struct NamedRepository {
    name: String,
    #[serde(default)]
    organization: Option<String>,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(default)]
    visibility: Option<String>,
    #[serde(default)]
    private: Option<bool>,
}

impl RequestBody for NamedRepository {
    const ACTION: Action = Action::Push;
}

impl NamedRepository {
    /// Its name here. Without an organisation it is in the caller's own namespace.
    fn repository(&self, caller: &Caller) -> Result<Repository, Failure> {
        check_kind(self.kind.as_deref())?;
        let owner = match (&self.organization, caller.account()) {
            (Some(organization), _) => organization.as_str(),
            (None, _) if self.name.contains('/') => return Ok(self.name.to_ascii_lowercase().parse()?),
            // A robot belongs to the namespace before the plus.
            (None, Some(account)) => account.name.split('+').next().unwrap_or_default(),
            // Clients cannot read the URL of a repository without a namespace.
            (None, None) => {
                let reason = "is missing: name the repository with a namespace, such as `team/mini`";
                return Err(Failure::field("organization", reason));
            }
        };
        let name = format!("{owner}/{}", self.name);
        Ok(name.to_ascii_lowercase().parse()?)
    }
}

fn check_kind(kind: Option<&str>) -> Result<(), Failure> {
    match kind.filter(|kind| *kind != "model") {
        Some(kind) => Err(Failure::field("type", format!("is `{kind}`, and this server has only models"))),
        None => Ok(()),
    }
}

/// The response to a request that creates a repository. Clients for which it may exist read the URL of a conflict, too.
fn created(url: &str, outcome: Result<Value, CommitError>) -> Result<Response, Failure> {
    match outcome {
        Ok(body) => Ok(Json(body).into_response()),
        Err(error @ CommitError::Exists { .. }) => {
            let body = json!({ "error": error.to_string(), "url": url });
            let headers = [(ERROR_MESSAGE, header_value(&error.to_string()))];
            Ok((StatusCode::CONFLICT, headers, Json(body)).into_response())
        }
        Err(error) => Err(error.into()),
    }
}

fn visibility(visibility: Option<&str>, private: Option<bool>) -> Result<Option<Visibility>, Failure> {
    match (visibility, private) {
        (Some("private"), _) | (None, Some(true)) => Ok(Some(Visibility::Private)),
        (Some("public"), _) | (None, Some(false)) => Ok(Some(Visibility::Public)),
        (None, None) => Ok(None),
        (Some(other), _) => {
            Err(Failure::field("visibility", format!("is `{other}`, expected `private` or `public`")))
        }
    }
}

pub(crate) async fn create(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    body: JsonBody<NamedRepository>,
) -> Result<Response, Failure> {
    let repository = body.repository(&caller)?;
    // Older clients send `private: false` for the default.
    let private = body.private.filter(|private| *private);
    let visibility = visibility(body.visibility.as_deref(), private)?;
    let url = Links::absolute(&parts, registry.config()).hub(repository.as_str());
    let name = repository.as_str();
    let body = json!({ "url": url, "name": name, "id": name });
    let outcome = registry.hf_repository_create(&caller, &repository, visibility).await;
    created(&url, outcome.map(|()| body))
}

#[derive(Deserialize)]
#[serde(transparent)]
pub(crate) struct DeletedRepository(NamedRepository);

impl RequestBody for DeletedRepository {
    const ACTION: Action = Action::Delete;
}

pub(crate) async fn delete(
    State(registry): State<Registry>,
    caller: Caller,
    body: JsonBody<DeletedRepository>,
) -> Result<Json<Value>, Failure> {
    let repository = body.0.repository(&caller)?;
    registry.repository_delete(&caller, &repository).await?;
    Ok(Json(json!({})))
}

#[derive(Deserialize)]
pub(crate) struct Move {
    #[serde(rename = "fromRepo")]
    from: String,
    #[serde(rename = "toRepo")]
    to: String,
    #[serde(default, rename = "type")]
    kind: Option<String>,
}

impl RequestBody for Move {
    const ACTION: Action = Action::Own;
}

pub(crate) async fn move_to(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    body: JsonBody<Move>,
) -> Result<Json<Value>, Failure> {
    check_kind(body.kind.as_deref())?;
    let from: Repository = body.from.to_ascii_lowercase().parse()?;
    let to: Repository = body.to.to_ascii_lowercase().parse()?;
    registry.repository_move(&caller, &from, &to).await?;
    let url = Links::absolute(&parts, registry.config()).hub(to.as_str());
    Ok(Json(json!({ "url": url, "id": to })))
}

#[derive(Deserialize)]
pub(crate) struct Duplicate {
    repository: String,
    #[serde(default)]
    visibility: Option<String>,
    #[serde(default)]
    private: Option<bool>,
}

impl RequestBody for Duplicate {
    const ACTION: Action = Action::Push;
}

pub(crate) async fn duplicate(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    Path(HfName(from)): Path<HfName>,
    body: JsonBody<Duplicate>,
) -> Result<Response, Failure> {
    let to: Repository = body.repository.to_ascii_lowercase().parse()?;
    let visibility = visibility(body.visibility.as_deref(), body.private)?;
    let url = Links::absolute(&parts, registry.config()).hub(to.as_str());
    let outcome = registry.repository_copy(&caller, &from, &to, visibility).await;
    created(&url, outcome.map(|()| json!({ "url": url, "filesCopyPending": false })))
}

#[derive(Deserialize)]
pub(crate) struct Settings {
    #[serde(default)]
    visibility: Option<String>,
    #[serde(default)]
    private: Option<bool>,
    #[serde(default)]
    gated: Option<Value>,
}

impl RequestBody for Settings {
    const ACTION: Action = Action::Own;
}

pub(crate) async fn settings(
    State(registry): State<Registry>,
    caller: Caller,
    Path(HfName(repository)): Path<HfName>,
    body: JsonBody<Settings>,
) -> Result<Json<Value>, Failure> {
    if body.gated.as_ref().is_some_and(|gated| *gated != Value::Bool(false)) {
        return Err(Failure::field("gated", "cannot be set: this server has no gated models; use roles"));
    }
    let visibility = visibility(body.visibility.as_deref(), body.private)?;
    registry.hf_settings(&caller, &repository, visibility).await?;
    let private = visibility.map(|visibility| visibility != Visibility::Public);
    Ok(Json(json!({ "private": private, "gated": false })))
}

/// The addresses that clients print for people lead to the repository's page, which checks who may see it.
pub(crate) async fn page(Path(HfName(repository)): Path<HfName>) -> Response {
    redirect(&format!("/{repository}"))
}

/// `/hf/{name}/commit/{revision}`. The pages resolve the revision, because a browser's session counts there alone.
pub(crate) async fn page_of_commit(Path((HfName(repository), revision)): Path<(HfName, String)>) -> Response {
    redirect(&format!("/{repository}?tag={}", encode_part(&revision)))
}

pub(crate) async fn page_of_tree(Path((HfName(repository), revision)): Path<(HfName, String)>) -> Response {
    redirect(&format!("/{repository}/-/tree/{}", encode_part(&revision)))
}

pub(crate) async fn page_of_folder(
    Path((HfName(repository), revision, path)): Path<(HfName, String, String)>,
) -> Response {
    redirect(&format!("/{repository}/-/tree/{}/{}", encode_part(&revision), encode_path(&path)))
}

pub(crate) async fn page_of_file(
    Path((HfName(repository), revision, path)): Path<(HfName, String, String)>,
) -> Response {
    redirect(&format!("/{repository}/-/blob/{}/{}", encode_part(&revision), encode_path(&path)))
}

/// A revision as a part of an address.
fn encode_part(revision: &str) -> String {
    encode_path(revision).replace('/', "%2F")
}

#[derive(Deserialize)]
pub(crate) struct NewBranch {
    #[serde(default, rename = "startingPoint")]
    starting_point: Option<String>,
}

impl RequestBody for NewBranch {
    const ACTION: Action = Action::Push;
}

pub(crate) async fn create_branch(
    State(registry): State<Registry>,
    caller: Caller,
    Path((HfName(repository), branch)): Path<(HfName, String)>,
    body: JsonBody<NewBranch>,
) -> Result<Json<Value>, Failure> {
    let from = body.starting_point.as_deref().unwrap_or(MAIN);
    registry.hf_tag_create(&caller, &repository, &branch, from, None).await?;
    Ok(Json(json!({})))
}

#[derive(Deserialize)]
pub(crate) struct NewTag {
    tag: String,
    #[serde(default)]
    message: Option<String>,
}

impl RequestBody for NewTag {
    const ACTION: Action = Action::Push;
}

pub(crate) async fn create_tag(
    State(registry): State<Registry>,
    caller: Caller,
    Path((HfName(repository), revision)): Path<(HfName, String)>,
    body: JsonBody<NewTag>,
) -> Result<Json<Value>, Failure> {
    let message = body.message.as_deref().and_then(|message| commit_message(message, ""));
    registry.hf_tag_create(&caller, &repository, &body.tag, &revision, message.as_deref()).await?;
    Ok(Json(json!({})))
}

/// A branch is a tag, too.
pub(crate) async fn delete_tag(
    State(registry): State<Registry>,
    caller: Caller,
    Path((HfName(repository), tag)): Path<(HfName, String)>,
) -> Result<Json<Value>, Failure> {
    registry.hf_tag_delete(&caller, &repository, &tag).await?;
    Ok(Json(json!({})))
}

/// There are none. Clients ask before they commit to a pull request.
pub(crate) async fn discussions(
    State(registry): State<Registry>,
    caller: Caller,
    Path(HfName(repository)): Path<HfName>,
) -> Result<Json<Value>, Failure> {
    registry.revisions(&caller, &repository).await.map_err(crate::app::FilesError::from)?;
    Ok(Json(json!({ "discussions": [], "count": 0, "start": 0 })))
}

pub(crate) async fn create_discussion(
    State(registry): State<Registry>,
    caller: Caller,
    Path(HfName(repository)): Path<HfName>,
) -> Result<Json<Value>, Failure> {
    registry.commit_check(&caller, &repository, MAIN).await?;
    Err(no_pull_requests())
}
