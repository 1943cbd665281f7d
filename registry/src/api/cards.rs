//! `/lode/v1/card`: the model card of a manifest as its author wrote it, and changes of it.
//! `/lode/v1/repositories/{name}/card`: the card of a repository.

use axum::extract::State;
use http::StatusCode;
use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::models::unknown;
use crate::Registry;
use crate::app::{CardOrigin, CardText};
use crate::auth::{Action, Caller};
use crate::card::MAX_CARD_BYTES;
use crate::http::{Failure, Json, JsonBody, Path, RequestBody};
use crate::time::rfc3339;

/// The card of a manifest.
#[derive(Serialize, ToSchema)]
pub(crate) struct Card {
    repository: Repository,
    reference: Reference,
    /// Of the manifest.
    digest: Digest,
    /// The manifest of the card, if it is attached to that manifest instead of one of its files.
    attached: Option<Digest>,
    /// Whether it is the card of the repository, because the manifest has none.
    is_of_repository: bool,
    /// The file that it is; null without a card.
    path: Option<String>,
    /// Markdown, at most 1 MiB of it.
    text: Option<String>,
    /// Whether the file is longer than the text.
    is_cut: bool,
    /// The metadata at the beginning of the text; null without such or if it cannot be read.
    metadata: Option<Value>,
}

/// A new text for the card of a tag.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CardRequest {
    /// The manifest that has the card that was changed: `attached`, or `digest` if that is null. If the tag points to
    /// another manifest meanwhile, or that has another card, nothing is saved.
    base: Digest,
    /// Markdown, at most 1 MiB of it.
    text: String,
}

/// The card of a repository: that of manifests without one of their own.
#[derive(Serialize, ToSchema)]
pub(crate) struct RepositoryCard {
    repository: Repository,
    /// Of the text; null without a card.
    digest: Option<Digest>,
    /// Markdown; null without a card.
    text: Option<String>,
    /// When it was saved; null without a card.
    #[schema(format = DateTime)]
    modified_at: Option<String>,
}

/// A new text for the card of a repository.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RepositoryCardRequest {
    /// The `digest` of the card that was changed; null if there was none. If the repository has another card meanwhile,
    /// nothing is saved.
    base: Option<Digest>,
    /// Markdown, at most 1 MiB of it.
    text: String,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct RepositoryCardSaved {
    repository: Repository,
    /// Of the text.
    digest: Digest,
}

impl RequestBody for RepositoryCardRequest {
    const ACTION: Action = Action::Push;
    const MAX_BYTES: usize = CardRequest::MAX_BYTES;
}

impl RequestBody for CardRequest {
    const ACTION: Action = Action::Push;
    /// A character of a text has up to six bytes in JSON.
    const MAX_BYTES: usize = 6 * MAX_CARD_BYTES as usize + 1024;
}

#[derive(Serialize, ToSchema)]
pub(crate) struct CardSaved {
    repository: Repository,
    /// The tag.
    reference: Reference,
    /// To which it points now.
    digest: Digest,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path((repository, reference)): Path<(Repository, Reference)>,
) -> Result<Json<Card>, Failure> {
    let model = registry.model_show(&caller, &repository, &reference).await?;
    let model = model.ok_or_else(|| unknown(&repository, &reference))?;
    let tree = registry.tree(&caller, &repository, &model.manifest).await?;
    let digest = model.digest;
    let found = registry.card_text(&caller, &repository, (&digest, &tree.artifact)).await?;
    let mut card = Card {
        repository,
        reference,
        digest,
        attached: None,
        is_of_repository: false,
        path: None,
        text: None,
        is_cut: false,
        metadata: None,
    };
    if let Some(found) = found {
        let CardText { path, origin, text, is_cut, metadata } = found;
        card = Card { path: Some(path), text: Some(text), is_cut, metadata, ..card };
        match origin {
            CardOrigin::Files => {}
            CardOrigin::Attached(attached) => card.attached = Some(attached.digest),
            CardOrigin::Repository => card.is_of_repository = true,
        }
    }
    Ok(Json(card))
}

pub(crate) async fn put(
    State(registry): State<Registry>,
    caller: Caller,
    Path((repository, reference)): Path<(Repository, Reference)>,
    body: JsonBody<CardRequest>,
) -> Result<Json<CardSaved>, Failure> {
    let digest = registry.card_save(&caller, &repository, &reference, (&body.base, &body.text)).await?;
    Ok(Json(CardSaved { repository, reference, digest }))
}

pub(crate) async fn get_of_repository(
    State(registry): State<Registry>,
    caller: Caller,
    Path(repository): Path<Repository>,
) -> Result<Json<RepositoryCard>, Failure> {
    let card = match registry.repository_card(&caller, &repository).await? {
        Some(card) => RepositoryCard {
            repository,
            digest: Some(card.digest),
            text: Some(card.text),
            modified_at: Some(rfc3339(card.updated_at)),
        },
        None => RepositoryCard { repository, digest: None, text: None, modified_at: None },
    };
    Ok(Json(card))
}

pub(crate) async fn put_of_repository(
    State(registry): State<Registry>,
    caller: Caller,
    Path(repository): Path<Repository>,
    body: JsonBody<RepositoryCardRequest>,
) -> Result<Json<RepositoryCardSaved>, Failure> {
    let digest =
        registry.repository_card_save(&caller, &repository, (body.base.as_ref(), &body.text)).await?;
    Ok(Json(RepositoryCardSaved { repository, digest }))
}

pub(crate) async fn delete_of_repository(
    State(registry): State<Registry>,
    caller: Caller,
    Path(repository): Path<Repository>,
) -> Result<StatusCode, Failure> {
    registry.repository_card_delete(&caller, &repository, None).await?;
    Ok(StatusCode::NO_CONTENT)
}
