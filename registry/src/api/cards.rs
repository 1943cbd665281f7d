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
    /// The manifest of the card, if it is attached to that manifest instead of one of its files.
    attached: Option<Digest>,
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
        path: None,
        text: None,
        is_cut: false,
        metadata: None,
    };
    if let Some(found) = found {
        let CardText { path, attached, text, is_cut, metadata } = found;
        card = Card { attached, path: Some(path), text: Some(text), is_cut, metadata, ..card };
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
