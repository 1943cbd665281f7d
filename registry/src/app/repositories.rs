//! What repositories contain: every repository, tag and manifest with its kind, size and time. Models have
//! listings of their own in `models.rs`.

use lode_model::digest::Digest;
use lode_model::media_type;
use lode_model::reference::{Repository, Tag};
use serde::Serialize;
use utoipa::ToSchema;

use super::{Page, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target};
use crate::store::{ContentRow, ListedManifestRow, TagRow};
use crate::time::as_rfc3339;

/// The longest page, and the default. Each row adds up the sizes of its blobs.
const PAGE: u32 = 100;

/// What a manifest is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContentKind {
    Model,
    /// A container image.
    Image,
    /// A list of manifests.
    Index,
    /// Anything else; the artifact type says what.
    Artifact,
    /// Not indexed yet: an image, or a model in the format of one.
    Pending,
}

/// A repository, and the totals of its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RepositorySummary {
    pub repository: Repository,
    pub tags: u64,
    pub manifests: u64,
    /// The total size of the blobs that are visible in it.
    pub size_bytes: u64,
    pub pulls_last_30_days: u64,
    pub pulls_all_time: u64,
    #[serde(serialize_with = "as_rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub modified_at: i64,
}

/// A manifest as listings show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ContentSummary {
    pub digest: Digest,
    pub kind: ContentKind,
    pub media_type: String,
    /// Its own artifact type, else the media type of its config.
    pub artifact_type: Option<String>,
    /// The total size of its blobs; for an index, of its manifests together.
    pub size_bytes: u64,
}

/// A tag and its manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct TagSummary {
    pub tag: Tag,
    #[serde(flatten)]
    pub content: ContentSummary,
    /// When the tag was last moved.
    #[serde(serialize_with = "as_rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub modified_at: i64,
    /// Who has set the tag; only for callers with an account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actor: Option<String>,
    /// A signature of the manifest is stored, by any signer; it was not verified.
    pub is_signed: bool,
}

/// A manifest and its tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ManifestSummary {
    #[serde(flatten)]
    pub content: ContentSummary,
    pub tags: Vec<Tag>,
    /// The manifest that it describes, for instance as a signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<Digest>,
    #[serde(serialize_with = "as_rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
}

impl Registry {
    /// Repositories after `last` (which need not exist), at most `n`, of those that the caller may read.
    /// `prefix`: only this repository and those below it.
    pub async fn repository_summaries(
        &self,
        caller: &Caller,
        prefix: Option<&Repository>,
        n: Option<u32>,
        last: Option<&str>,
    ) -> Result<Page<RepositorySummary>, Error> {
        self.authorize(caller, Action::List, Target::Catalog).await?;
        let limit = limit(n);
        let filter = self.list_filter(caller).await?;
        let prefix = prefix.map_or("", Repository::as_str);
        let after = last.unwrap_or_default();
        let rows = self.store.repository_page(&filter, prefix, after, i64::from(limit) + 1).await?;
        let items = rows.into_iter().map(|row| RepositorySummary {
            repository: row.repository,
            tags: row.tags,
            manifests: row.manifests,
            size_bytes: row.size_bytes,
            pulls_last_30_days: row.pulls.recent,
            pulls_all_time: row.pulls.all_time,
            modified_at: row.modified_at,
        });
        Ok(Page::cut(items.collect(), limit))
    }

    /// Tags of a repository after `last` (which need not exist), at most `n`. It has what is stored here: of a
    /// mirrored repository, the tags that were pulled.
    pub async fn tag_summaries(
        &self,
        caller: &Caller,
        repository: &Repository,
        n: Option<u32>,
        last: Option<&str>,
    ) -> Result<Page<TagSummary>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let limit = limit(n);
        let after = last.unwrap_or_default();
        let rows = self.store.tag_details(repository, after, i64::from(limit) + 1).await?;
        self.check_repository_exists(repository, rows.is_empty()).await?;
        let is_known = caller.account().is_some();
        let digests: Vec<Digest> = rows.iter().map(|row| row.content.digest.clone()).collect();
        let signed = self.store.manifests_signed(repository, &digests).await?;
        let items = rows.into_iter().map(|TagRow { tag, modified_at, actor, content }| {
            let actor = actor.filter(|_| is_known);
            let is_signed = signed.contains(&content.digest);
            TagSummary { tag, content: content.into(), modified_at, actor, is_signed }
        });
        Ok(Page::cut(items.collect(), limit))
    }

    /// Manifests of a repository after the digest `last`, at most `n`, with and without tags.
    pub async fn manifest_summaries(
        &self,
        caller: &Caller,
        repository: &Repository,
        n: Option<u32>,
        last: Option<&Digest>,
    ) -> Result<Page<ManifestSummary>, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        let limit = limit(n);
        let after = last.map_or("", Digest::as_str);
        let rows = self.store.manifest_page(repository, after, i64::from(limit) + 1).await?;
        self.check_repository_exists(repository, rows.is_empty()).await?;
        let items = rows.into_iter().map(|ListedManifestRow { created_at, subject, tags, content }| {
            ManifestSummary { content: content.into(), tags, subject, created_at }
        });
        Ok(Page::cut(items.collect(), limit))
    }

    /// Whether a signature of the manifest is stored. It is not verified.
    pub(crate) async fn is_signed(
        &self,
        caller: &Caller,
        repository: &Repository,
        digest: &Digest,
    ) -> Result<bool, Error> {
        self.authorize(caller, Action::Pull, Target::Repository(repository)).await?;
        Ok(!self.store.manifests_signed(repository, std::slice::from_ref(digest)).await?.is_empty())
    }

    /// Fails if nothing was found because the repository does not exist.
    pub(super) async fn check_repository_exists(
        &self,
        repository: &Repository,
        is_empty: bool,
    ) -> Result<(), Error> {
        match is_empty && !self.store.repository_exists(repository).await? {
            true => Err(Error::NameUnknown { repository: repository.clone() }),
            false => Ok(()),
        }
    }
}

fn limit(n: Option<u32>) -> u32 {
    n.unwrap_or(PAGE).clamp(1, PAGE)
}

impl From<ContentRow> for ContentSummary {
    fn from(row: ContentRow) -> ContentSummary {
        let kind = content_kind(&row.media_type, row.artifact_type.as_deref(), row.format.as_deref());
        let ContentRow { digest, media_type, artifact_type, size_bytes, .. } = row;
        ContentSummary { digest, kind, media_type, artifact_type, size_bytes }
    }
}

/// The kind of a manifest; `format` is the format of its model, empty if it is not a model, absent if it is not
/// indexed yet.
pub(crate) fn content_kind(
    media_type: &str,
    artifact_type: Option<&str>,
    format: Option<&str>,
) -> ContentKind {
    let is_image = matches!(artifact_type, Some(media_type::OCI_CONFIG | media_type::DOCKER_CONFIG));
    match format {
        Some(format) if !format.is_empty() => ContentKind::Model,
        _ if media_type::is_index(media_type) => ContentKind::Index,
        _ if artifact_type == Some(media_type::LODE_MODEL) => ContentKind::Model,
        None if is_image => ContentKind::Pending,
        Some(_) if is_image => ContentKind::Image,
        _ => ContentKind::Artifact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_follows_from_the_types_and_the_model_index() {
        let check = |media_type: &str, artifact_type: &str, format: Option<&str>, expect: ContentKind| {
            let artifact_type = Some(artifact_type).filter(|text| !text.is_empty());
            assert_eq!(
                content_kind(media_type, artifact_type, format),
                expect,
                "{artifact_type:?} {format:?}"
            );
        };
        let oci = media_type::OCI_MANIFEST;
        check(oci, media_type::OCI_CONFIG, Some(""), ContentKind::Image);
        check(oci, media_type::OCI_CONFIG, None, ContentKind::Pending);
        check(media_type::DOCKER_MANIFEST, media_type::DOCKER_CONFIG, Some("gguf"), ContentKind::Model);
        check(oci, media_type::LODE_MODEL, None, ContentKind::Model);
        check(oci, "application/vnd.example.sbom", Some(""), ContentKind::Artifact);
        check(oci, "application/vnd.example.sbom", None, ContentKind::Artifact);
        check(oci, "application/vnd.example.files", Some("safetensors"), ContentKind::Model);
        check(media_type::OCI_INDEX, "", None, ContentKind::Index);
        check(media_type::DOCKER_MANIFEST_LIST, "", Some(""), ContentKind::Index);
    }
}
