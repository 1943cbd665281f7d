//! The model card of a manifest: the README among its files, rendered once and remembered.

use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt;
use lode_model::recognise::{Artifact, ModelFile};
use lode_model::reference::Repository;
use serde_json::Value;

use super::{Registry, Revision};
use crate::Error;
use crate::auth::Caller;
use crate::card::{CardLinks, FRONT_MATTER_BYTES, MAX_CARD_BYTES, front_matter_json, render_card};

/// The name of a card's file, in any case.
const CARD: &str = "README.md";
/// How long a request waits for a card. Rendering continues afterwards, and a later request gets the result.
const WAIT: Duration = Duration::from_secs(2);

/// A rendered card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// The file that it is.
    pub(crate) path: String,
    pub(crate) html: CardHtml,
    /// Whether the file is longer than what is shown.
    pub(crate) is_cut: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CardHtml {
    Rendered(Arc<str>),
    /// It takes longer than a request waits.
    Late,
}

/// The card among a manifest's files: `README.md` in the model's folder, in any case.
pub(super) fn find_card_file(artifact: &Artifact) -> Option<&ModelFile> {
    let root = artifact.root();
    artifact.files.iter().filter(|file| file.is_plain()).find(|file| {
        let name = file.path.as_deref().and_then(|path| path.strip_prefix(root));
        name.is_some_and(|name| name.eq_ignore_ascii_case(CARD))
    })
}

impl Registry {
    /// The front matter of a revision's card as JSON. `None` if there is none that can be read.
    pub(crate) async fn card_front_matter(
        &self,
        caller: &Caller,
        revision: &Revision,
    ) -> Result<Option<Value>, Error> {
        let mut files = revision.files.files.iter();
        let Some((_, file)) = files.find(|(path, _)| path.eq_ignore_ascii_case(CARD)) else {
            return Ok(None);
        };
        let range = 0..file.size.min(FRONT_MATTER_BYTES);
        let bytes = match self.file_stream(caller, &revision.repository, file, range).await {
            Ok(bytes) => bytes.try_fold(Vec::new(), async |mut all, piece| {
                all.extend_from_slice(&piece);
                Ok(all)
            }),
            Err(Error::BlobUnknown { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let bytes = bytes.await.map_err(|error| Error::io("a model card", error))?;
        let read = tokio::task::spawn_blocking(move || front_matter_json(&String::from_utf8_lossy(&bytes)));
        read.await.map_err(|_| Error::Interrupted)
    }

    /// The card among the files of a manifest. `None` if it has none, or its blob is not stored.
    pub(crate) async fn card_render(
        &self,
        caller: &Caller,
        repository: &Repository,
        artifact: &Artifact,
        links: CardLinks,
    ) -> Result<Option<Card>, Error> {
        let Some(file) = find_card_file(artifact) else { return Ok(None) };
        let path = file.path.clone().unwrap_or_default();
        let is_cut = file.size > MAX_CARD_BYTES;
        let card = |html| Some(Card { path: path.clone(), html, is_cut });
        let range = file.offset..file.offset.saturating_add(file.size.min(MAX_CARD_BYTES));
        let key = (format!("{} {}", file.layer.digest, range.start), links.pages.clone());
        // Before what is remembered, because it asks the policy.
        let bytes = match self.blob_part(caller, repository, &file.layer.digest, range).await {
            Ok(bytes) => bytes,
            Err(Error::BlobUnknown { .. } | Error::RangeUnsatisfiable { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if let Some(html) = self.cards.rendered.get(&key) {
            return Ok(card(CardHtml::Rendered(html)));
        }
        let (cards, permits) = (self.cards.rendered.clone(), self.cards.permits.clone());
        let work = async move {
            let permit = permits.acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                // Kept until the end, because the thread continues after the request.
                let _permit = permit;
                let html: Arc<str> = render_card(&String::from_utf8_lossy(&bytes), &links).into();
                cards.insert(key, html.clone());
                html
            })
            .await
        };
        match tokio::time::timeout(WAIT, work).await {
            Ok(html) => Ok(card(CardHtml::Rendered(html.map_err(|_| Error::Interrupted)?))),
            Err(_) => Ok(card(CardHtml::Late)),
        }
    }
}
