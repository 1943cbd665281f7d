//! The model card of a manifest: the README among its files, or else the card that was attached to it last, or else the
//! card of its repository. It is rendered once and remembered. A page saves it as a commit of that file, or as another
//! attached card.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use lode_model::digest::Digest;
use lode_model::import::CARD_NAME;
use lode_model::manifest::Manifest;
use lode_model::media_type;
use lode_model::recognise::{Artifact, ModelFile};
use lode_model::reference::{Reference, Repository, Tag};
use serde_json::Value;

use super::attached_card::AttachedCard;
use super::{Commit, CommitError, CommitOperation, Registry, Revision, commit_id};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::card::{
    CardLinks, FRONT_MATTER_BYTES, MAX_CARD_BYTES, check_front_matter, front_matter_json, render_card,
    render_code,
};
use crate::error::chain;

/// How long a request waits for a card. Rendering continues afterwards, and a later request gets the result.
const WAIT: Duration = Duration::from_secs(2);
/// How long a card is rendered. The largest one takes a tenth of it, unless its HTML is malformed on purpose.
const MAX_RENDER_TIME: Duration = Duration::from_secs(1);

/// A rendered card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    /// The file that it is.
    pub(crate) path: String,
    pub(crate) origin: CardOrigin,
    pub(crate) html: CardHtml,
    /// Whether the file is longer than what is shown.
    pub(crate) is_cut: bool,
}

/// Where a card is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CardOrigin {
    /// Among the files of the manifest.
    Files,
    /// As a referrer of the manifest.
    Attached(AttachedCard),
    /// With the repository: the manifest has none.
    Repository,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CardHtml {
    Rendered(Arc<str>),
    /// It takes longer than a request waits, or than it may take.
    Late,
}

/// The text of a card, as its author wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardText {
    /// The file that it is.
    pub(crate) path: String,
    pub(crate) origin: CardOrigin,
    pub(crate) text: String,
    /// Whether the file is longer than the text.
    pub(crate) is_cut: bool,
    /// The front matter, if there is one that can be read.
    pub(crate) metadata: Option<Value>,
}

/// The card of a tag, to change it.
#[derive(Clone, Debug)]
pub(crate) struct CardSource {
    /// The manifest to which the tag points.
    pub(crate) head: Digest,
    /// The manifest that changes with the card: the last attached card, or else that of the tag.
    pub(crate) base: Digest,
    pub(crate) place: CardPlace,
    /// The file that the card is, or will be.
    pub(crate) path: String,
    /// `None`: the manifest has no card.
    pub(crate) text: Option<String>,
}

/// Where a card is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CardPlace {
    /// Among the files of the tag, as a commit.
    Files,
    /// As a referrer of the manifest, which keeps its digest.
    Attached,
}

/// The file of a card, and its bytes, at most [`MAX_CARD_BYTES`].
struct CardBytes {
    path: String,
    origin: CardOrigin,
    bytes: Vec<u8>,
    /// Names the bytes: what is rendered from them is remembered by it.
    key: String,
    is_cut: bool,
}

/// Why a card is not shown for editing, or not saved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CardError {
    #[error(transparent)]
    Commit(CommitError),
    #[error("{reason}")]
    NotEditable { reason: String },
    #[error(
        "{card} was changed after you read it, and your change was not made; compare it with the stored card, then repeat it to replace that card"
    )]
    Changed { card: String },
    #[error("the card has {bytes} bytes, expected at most {MAX_CARD_BYTES}")]
    TooLarge { bytes: usize },
    #[error("the card is empty; write a text")]
    Empty,
    #[error("{reason}")]
    FrontMatter { reason: String },
}

impl<E: Into<CommitError>> From<E> for CardError {
    fn from(error: E) -> CardError {
        CardError::Commit(error.into())
    }
}

/// Checks a text that is to become a card.
pub(crate) fn check_card(text: &str) -> Result<(), CardError> {
    if text.len() as u64 > MAX_CARD_BYTES {
        return Err(CardError::TooLarge { bytes: text.len() });
    }
    if text.trim().is_empty() {
        return Err(CardError::Empty);
    }
    check_front_matter(text).map_err(|reason| CardError::FrontMatter { reason })
}

/// Whether a manifest has a format in which commits store files: that of ollama's models, or plain files. A commit
/// converts others.
fn is_commit_format(manifest: &Manifest) -> bool {
    let config = manifest.config.as_ref().map(|config| media_type::essence(&config.media_type));
    match manifest.artifact_type.as_deref() {
        Some(kind) => [media_type::LODE_MODEL, media_type::LODE_FILES].contains(&kind),
        None => config == Some(media_type::DOCKER_CONFIG) && !manifest.layers.is_empty(),
    }
}

/// The tag whose card is edited.
fn editable_tag(reference: &Reference) -> Result<&Tag, CardError> {
    match reference {
        Reference::Tag(tag) => Ok(tag),
        Reference::Digest(_) => Err(CardError::NotEditable {
            reason: "the content of a digest never changes; choose a tag".to_owned(),
        }),
    }
}

fn check_editable_size(path: &str, size: u64) -> Result<(), CardError> {
    if size <= MAX_CARD_BYTES {
        return Ok(());
    }
    let reason = format!("`{path}` has {size} bytes; a page edits at most {MAX_CARD_BYTES}");
    Err(CardError::NotEditable { reason })
}

fn editable_text(path: &str, bytes: Vec<u8>) -> Result<String, CardError> {
    let reason = || format!("`{path}` is not UTF-8");
    String::from_utf8(bytes).map_err(|_| CardError::NotEditable { reason: reason() })
}

fn render_markdown(text: &str, links: &CardLinks) -> Option<String> {
    let started = Instant::now();
    render_card(text, links, &|| started.elapsed() > MAX_RENDER_TIME)
}

async fn text_digest(text: Arc<str>) -> Result<String, Error> {
    let hashed = tokio::task::spawn_blocking(move || Digest::sha256(text.as_bytes()).to_string());
    hashed.await.map_err(|_| Error::Interrupted)
}

fn is_card_path(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|name| name.eq_ignore_ascii_case(CARD_NAME))
}

/// The card among a manifest's files: `README.md` in the model's folder, in any case.
pub(super) fn find_card_file(artifact: &Artifact) -> Option<&ModelFile> {
    let root = artifact.root();
    let is_card = |file: &&ModelFile| file.path.as_deref().is_some_and(|path| is_card_path(path, root));
    artifact.files.iter().filter(|file| file.is_plain()).find(is_card)
}

impl Registry {
    /// The front matter of a revision's card as JSON. `None` if there is none that can be read.
    pub(crate) async fn card_front_matter(
        &self,
        caller: &Caller,
        revision: &Revision,
    ) -> Result<Option<Value>, Error> {
        let mut files = revision.files.files.iter();
        let Some((_, file)) = files.find(|(path, _)| is_card_path(path, "")) else {
            return Ok(None);
        };
        let range = 0..file.size.min(FRONT_MATTER_BYTES);
        let bytes = match self.file_part(caller, &revision.repository, file, range).await {
            Ok(bytes) => bytes,
            Err(Error::BlobUnknown { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let read = tokio::task::spawn_blocking(move || front_matter_json(&String::from_utf8_lossy(&bytes)));
        read.await.map_err(|_| Error::Interrupted)
    }

    /// The card of a manifest. `None` if it has none, or its blob is not stored.
    pub(crate) async fn card_render(
        &self,
        caller: &Caller,
        repository: &Repository,
        (digest, artifact): (&Digest, &Artifact),
        links: CardLinks,
    ) -> Result<Option<Card>, Error> {
        // Before what is remembered, because it asks the policy.
        let Some(card) = self.card_bytes(caller, repository, (digest, artifact)).await? else {
            return Ok(None);
        };
        let key = (card.key, links.pages.clone());
        let html = self.card_html(card.bytes.into(), links, Some(key)).await?;
        Ok(Some(Card { path: card.path, origin: card.origin, html, is_cut: card.is_cut }))
    }

    /// The card of a repository. `None` if it has none.
    pub(crate) async fn repository_card_render(
        &self,
        caller: &Caller,
        repository: &Repository,
        links: CardLinks,
    ) -> Result<Option<CardHtml>, Error> {
        match self.repository_card(caller, repository).await? {
            Some(card) => Ok(Some(self.markdown_render(card.text.into(), links).await?)),
            None => Ok(None),
        }
    }

    /// The text of the card of a manifest. `None` if it has none, or its blob is not stored.
    pub(crate) async fn card_text(
        &self,
        caller: &Caller,
        repository: &Repository,
        (digest, artifact): (&Digest, &Artifact),
    ) -> Result<Option<CardText>, Error> {
        let Some(card) = self.card_bytes(caller, repository, (digest, artifact)).await? else {
            return Ok(None);
        };
        let read = tokio::task::spawn_blocking(move || {
            let CardBytes { path, origin, bytes, is_cut, .. } = card;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let metadata = front_matter_json(&text);
            CardText { path, origin, text, is_cut, metadata }
        });
        Ok(Some(read.await.map_err(|_| Error::Interrupted)?))
    }

    /// The card among the files of a manifest, or else the one that was attached to it last, or else its repository's.
    async fn card_bytes(
        &self,
        caller: &Caller,
        repository: &Repository,
        (digest, artifact): (&Digest, &Artifact),
    ) -> Result<Option<CardBytes>, Error> {
        let (path, blob, offset, size, origin) = match find_card_file(artifact) {
            Some(file) => {
                let path = file.path.clone().unwrap_or_default();
                (path, file.layer.digest.clone(), file.offset, file.size, CardOrigin::Files)
            }
            None => match self.attached_card(caller, repository, digest).await? {
                Some(card) => {
                    let (blob, size) = (card.blob.clone(), card.size);
                    (CARD_NAME.to_owned(), blob, 0, size, CardOrigin::Attached(card))
                }
                None => {
                    let stored = self.repository_card(caller, repository).await?;
                    return Ok(stored.map(|card| CardBytes {
                        path: CARD_NAME.to_owned(),
                        origin: CardOrigin::Repository,
                        key: format!("{} 0", card.digest),
                        bytes: card.text.into_bytes(),
                        is_cut: false,
                    }));
                }
            },
        };
        let range = offset..offset.saturating_add(size.min(MAX_CARD_BYTES));
        let bytes = match self.blob_part(caller, repository, &blob, range).await {
            Ok(bytes) => bytes,
            Err(Error::BlobUnknown { .. } | Error::RangeUnsatisfiable { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (key, is_cut) = (format!("{blob} {offset}"), size > MAX_CARD_BYTES);
        Ok(Some(CardBytes { path, origin, bytes, key, is_cut }))
    }

    /// Renders a card that is not stored.
    pub(crate) async fn card_preview(
        &self,
        caller: &Caller,
        repository: &Repository,
        text: &str,
        links: CardLinks,
    ) -> Result<CardHtml, Error> {
        self.authorize(caller, Action::Push, Target::Repository(repository)).await?;
        self.card_html(Bytes::copy_from_slice(text.as_bytes()), links, None).await
    }

    /// Renders a card, and remembers it under `key`.
    async fn card_html(
        &self,
        bytes: Bytes,
        links: CardLinks,
        key: Option<(String, String)>,
    ) -> Result<CardHtml, Error> {
        self.render(key, move || render_markdown(&String::from_utf8_lossy(&bytes), &links)).await
    }

    /// Renders Markdown of a file that the caller has read.
    pub(crate) async fn markdown_render(&self, text: Arc<str>, links: CardLinks) -> Result<CardHtml, Error> {
        let key = (text_digest(text.clone()).await?, links.pages.clone());
        self.render(Some(key), move || render_markdown(&text, &links)).await
    }

    /// Renders a file that the caller has read, as code with colours.
    pub(crate) async fn code_render(&self, path: &str, text: Arc<str>) -> Result<CardHtml, Error> {
        let key = (text_digest(text.clone()).await?, format!("code {path}"));
        let path = path.to_owned();
        self.render(Some(key), move || Some(render_code(&path, &text))).await
    }

    /// Returns what is remembered under `key`, or renders it, a few texts at a time.
    async fn render(
        &self,
        key: Option<(String, String)>,
        render: impl FnOnce() -> Option<String> + Send + 'static,
    ) -> Result<CardHtml, Error> {
        let (cards, permits) = (self.cards.rendered.clone(), self.cards.permits.clone());
        if let Some(html) = key.as_ref().and_then(|key| cards.get(key)) {
            return Ok(CardHtml::Rendered(html));
        }
        let work = async move {
            let permit = permits.acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                // Kept until the end, because the thread continues after the request.
                let _permit = permit;
                let html: Arc<str> = render()?.into();
                if let Some(key) = key {
                    cards.insert(key, html.clone());
                }
                Some(html)
            })
            .await
        };
        match tokio::time::timeout(WAIT, work).await {
            Ok(html) => Ok(html.map_err(|_| Error::Interrupted)?.map_or(CardHtml::Late, CardHtml::Rendered)),
            Err(_) => Ok(CardHtml::Late),
        }
    }

    /// Whether to offer the caller to edit the card of a manifest. [`Registry::card_source`] decides.
    pub(crate) async fn may_edit_card(
        &self,
        caller: &Caller,
        repository: &Repository,
        (reference, manifest, artifact): (&Reference, &Manifest, &Artifact),
    ) -> Result<bool, Error> {
        let is_fixed = matches!(reference, Reference::Digest(_))
            || !is_commit_format(manifest) && find_card_file(artifact).is_some();
        Ok(!is_fixed && self.may_edit_repository_card(caller, repository).await?)
    }

    /// Whether to offer the caller to edit the card of a repository.
    pub(crate) async fn may_edit_repository_card(
        &self,
        caller: &Caller,
        repository: &Repository,
    ) -> Result<bool, Error> {
        let is_fixed = self.check_writable().is_err() || self.is_mirrored(caller, repository);
        Ok(!is_fixed && self.may(caller, Action::Push, repository).await?)
    }

    /// The card of a tag, for a caller who may change it.
    pub(crate) async fn card_source(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<CardSource, CardError> {
        let refuse = |reason: String| Err(CardError::NotEditable { reason });
        let tag = editable_tag(reference)?;
        let branch = self.branch_find(caller, repository, tag.as_str()).await?;
        // An index has no files.
        if let Some(head) = &branch.head {
            let stored = self.manifest_get(caller, repository, &Reference::Digest(head.clone())).await?;
            if stored.parse()?.is_index() {
                let card = self.attached_card(caller, repository, head).await?;
                return self.attached_source(caller, repository, head.clone(), card).await;
            }
        }
        // 1. Read the files of the tag.
        let (base, files) = self.commit_base(caller, repository, &branch, tag.as_str()).await?;
        let (Some(base), Some(head)) = (base, branch.head) else {
            return Err(Error::ManifestUnknown { reference: reference.clone() }.into());
        };
        let artifact = base.artifact();
        let found = files.iter().find(|(path, _)| is_card_path(path, artifact.root()));
        // A commit keeps nothing but files.
        let can_commit = is_commit_format(base.manifest()) && base.is_listed(&files);
        // 2. Find the card among them, or the attached one.
        let (path, file) = match found {
            Some((path, file)) if can_commit => (path.clone(), file.clone()),
            Some((path, _)) => {
                return refuse(format!(
                    "`{path}` is in an artifact that would lose other content by an edit; change the file and push it again by the tool that made it"
                ));
            }
            None => match self.attached_card(caller, repository, &head).await? {
                None if can_commit => {
                    let (place, path) = (CardPlace::Files, format!("{}{CARD_NAME}", artifact.root()));
                    return Ok(CardSource { base: head.clone(), head, place, path, text: None });
                }
                card => return self.attached_source(caller, repository, head, card).await,
            },
        };
        // 3. Read it.
        check_editable_size(&path, file.size)?;
        let bytes = self.file_part(caller, repository, &file, 0..file.size).await?;
        let text = Some(editable_text(&path, bytes)?);
        Ok(CardSource { base: head.clone(), head, place: CardPlace::Files, path, text })
    }

    /// An attached card to change, or a new one.
    async fn attached_source(
        &self,
        caller: &Caller,
        repository: &Repository,
        head: Digest,
        card: Option<AttachedCard>,
    ) -> Result<CardSource, CardError> {
        let (place, path) = (CardPlace::Attached, CARD_NAME.to_owned());
        let Some(AttachedCard { digest, blob, size }) = card else {
            return Ok(CardSource { base: head.clone(), head, place, path, text: None });
        };
        check_editable_size(CARD_NAME, size)?;
        let bytes = self.blob_part(caller, repository, &blob, 0..size).await?;
        let text = Some(editable_text(CARD_NAME, bytes)?);
        Ok(CardSource { head, base: digest, place, path, text })
    }

    /// Saves the card of a tag, if `base` is still the manifest that changes with it. Returns the manifest to which the
    /// tag points then.
    pub(crate) async fn card_save(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
        (base, text): (&Digest, &str),
    ) -> Result<Digest, CardError> {
        let source = self.card_source(caller, repository, reference).await?;
        let tag = editable_tag(reference)?;
        if source.text.as_deref() == Some(text) {
            // The client has sent it again.
            return Ok(source.head);
        }
        let changed = || CardError::Changed { card: format!("tag {tag} or its card") };
        if source.base != *base {
            return Err(changed());
        }
        check_card(text)?;
        if source.place == CardPlace::Attached {
            self.attach_card(caller, repository, &source.head, text).await?;
            return Ok(source.head);
        }
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        let blob = self.commit_bytes(caller, repository, bytes).await?;
        let (digest, size) = (blob.digest, Some(blob.size_bytes));
        let commit = Commit {
            parent: Some(commit_id(&source.head).to_owned()),
            message: Some(format!("Edit {}", source.path)),
            operations: vec![CommitOperation::Add { path: source.path, digest, size }],
            keeps_model: true,
        };
        match self.commit(caller, repository, tag.as_str(), commit).await {
            Err(CommitError::ParentMoved { .. }) => Err(changed()),
            Err(CommitError::Create(error)) => {
                let reason = format!("the model cannot be stored with a card: {}", chain(&error));
                Err(CardError::NotEditable { reason })
            }
            outcome => Ok(outcome?.digest),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    #[tokio::test]
    async fn texts_are_rendered_a_few_at_a_time() {
        let data = tempfile::tempdir().unwrap();
        let config = Config { data: data.path().to_owned(), ..Config::default() };
        let registry = crate::open::open(config).await.unwrap();
        let links = CardLinks { pages: "/m/-/blob/v1/".to_owned(), bytes: "/m/-/raw/v1/".to_owned() };
        let permits = registry.cards.permits.clone();
        let all = u32::try_from(permits.available_permits()).unwrap();
        let html = "<span class=\"hl-name\">&quot;a&quot;</span>";
        let is_coloured =
            |rendered: CardHtml| matches!(rendered, CardHtml::Rendered(text) if text.contains(html));
        let taken = permits.clone().acquire_many_owned(all).await.unwrap();
        let code = || registry.code_render("a.json", "{\"a\": 1}".into());
        let (late, card) = tokio::join!(code(), registry.markdown_render("# A".into(), links.clone()));
        assert_eq!((late.unwrap(), card.unwrap()), (CardHtml::Late, CardHtml::Late));
        drop(taken);
        assert!(is_coloured(code().await.unwrap()));
        // What is remembered needs no permit. Another name can mean another language.
        let _taken = permits.acquire_many_owned(all).await.unwrap();
        assert!(is_coloured(code().await.unwrap()));
        let other = registry.code_render("b.json", "{\"a\": 1}".into()).await.unwrap();
        assert_eq!(other, CardHtml::Late);
    }
}
