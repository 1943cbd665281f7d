//! `/lode/v1/card`: the model card of a manifest as its author wrote it, and changes of it.

use axum::extract::State;
use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::models::unknown;
use crate::Registry;
use crate::app::CardText;
use crate::auth::{Action, Caller};
use crate::card::MAX_CARD_BYTES;
use crate::http::{Failure, Json, JsonBody, Path, RequestBody};

/// The card of a manifest.
#[derive(Serialize, ToSchema)]
pub(crate) struct Card {
    repository: Repository,
    reference: Reference,
    /// Of the manifest.
    digest: Digest,
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
    /// The manifest whose card was changed. If the tag points to another one meanwhile, nothing is saved.
    base: Digest,
    /// Markdown, at most 1 MiB of it.
    text: String,
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
    let found = registry.card_text(&caller, &repository, &tree.artifact).await?;
    let (is_cut, digest) = (found.as_ref().is_some_and(|card| card.is_cut), model.digest);
    let (path, text, metadata) = match found {
        Some(CardText { path, text, metadata, .. }) => (Some(path), Some(text), metadata),
        None => (None, None, None),
    };
    Ok(Json(Card { repository, reference, digest, path, text, is_cut, metadata }))
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
