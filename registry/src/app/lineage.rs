//! Where a model comes from, and what here has to do with it: what its manifest, its layers and its files say of a base, and
//! which other models hold the same bytes. Names are told as they were written; a name that means something here says so.

use std::collections::BTreeSet;

use lode_model::digest::Digest;
use lode_model::lineage::{self, Origin, Relation};
use lode_model::recognise::{Artifact, Role};
use lode_model::reference::{Name, Reference, Repository};
use serde::Serialize;

use super::{Model, Registry};
use crate::Error;
use crate::auth::{Action, Caller, Target, allow};
pub use crate::store::Relative;

/// How many relatives and how many referrers are told.
const MAX_RELATIVES: u32 = 100;
/// A blob smaller than this that two models share makes no relatives of them: an empty config, a license.
const MIN_SHARED_BYTES: u64 = 64 * 1024;
/// A text about a model is looked through up to this size.
const MAX_TEXT_BYTES: u64 = 1024 * 1024;

/// Where a model comes from, and its relatives.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lineage {
    pub digest: Digest,
    /// What it was made from, as its parts say.
    pub from: Vec<Ancestor>,
    /// Manifests of its repository that are about it: adapters, signatures, other forms of it.
    pub referrers: Vec<Descendant>,
    /// Tags whose models hold some of the same bytes, most of them first.
    pub relatives: Vec<Relative>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ancestor {
    pub relation: Relation,
    /// As it is written there.
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// What says so.
    pub source: &'static str,
    /// What the name means on this server, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Descendant {
    pub digest: Digest,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
}

impl Registry {
    /// Where a model comes from; None if there is no such manifest.
    pub async fn model_lineage(
        &self,
        caller: &Caller,
        repository: &Repository,
        reference: &Reference,
    ) -> Result<Option<Lineage>, Error> {
        let Some(model) = self.model_show(caller, repository, reference).await? else { return Ok(None) };
        let origins = self.origins(caller, repository, &model).await?;
        let mut from = Vec::with_capacity(origins.len());
        for origin in origins {
            from.push(self.ancestor(caller, &model, origin).await?);
        }
        let referrers = self.referrers(caller, repository, &model.digest, None, None, MAX_RELATIVES).await?;
        let referrers = referrers.items.into_iter();
        let rows = self.store().relatives(repository, &model.digest, MIN_SHARED_BYTES, MAX_RELATIVES).await?;
        let visible =
            |repository: &Repository| allow(caller, Action::Pull, Target::Repository(repository)).is_ok();
        Ok(Some(Lineage {
            from,
            referrers: referrers
                .map(|row| Descendant { digest: row.digest, artifact_type: row.artifact_type })
                .collect(),
            relatives: rows.into_iter().filter(|relative| visible(&relative.repository)).collect(),
            digest: model.digest,
        }))
    }

    /// What a model's parts say of where it comes from.
    async fn origins(
        &self,
        caller: &Caller,
        repository: &Repository,
        model: &Model,
    ) -> Result<Vec<Origin>, Error> {
        let manifest = &model.manifest;
        let config = match &manifest.config {
            Some(config) => self.blob_text(caller, repository, config).await?,
            None => None,
        };
        let artifact = Artifact::read(manifest, config.as_deref());
        let mut origins = lineage::of_manifest(manifest, &artifact, config.as_deref());
        for file in artifact.files.iter().filter(|file| file.is_layer() && file.size <= MAX_TEXT_BYTES) {
            let name = file.path.as_deref().map(|path| path.rsplit_once('/').map_or(path, |(_, name)| name));
            let Some(name) = name.filter(|name| file.role == Role::File && lineage::is_telling(name)) else {
                continue;
            };
            if let Some(bytes) = self.blob_text(caller, repository, &file.layer).await? {
                origins.extend(lineage::of_file(name, &bytes));
            }
        }
        let keys = self.gguf_look(repository, model, lineage::of_gguf).await?;
        origins.extend(keys.unwrap_or_default());
        // Several parts may say the same; the first says it.
        let mut seen = BTreeSet::new();
        origins.retain(|origin| seen.insert((origin.name.clone(), origin.digest.clone())));
        Ok(origins)
    }

    async fn ancestor(&self, caller: &Caller, model: &Model, origin: Origin) -> Result<Ancestor, Error> {
        let Origin { mut relation, name, digest, source } = origin;
        let mut here = None;
        if let Some(local) = lineage::local_name(&name).and_then(|name| name.parse::<Name>().ok())
            && local.host.is_none()
        {
            let (repository, reference) = match &digest {
                Some(digest) => (local.repository, Reference::Digest(digest.clone())),
                None => (local.repository, local.reference),
            };
            let found = self.model_show(caller, &repository, &reference).await;
            // What the caller may not see is not here for them.
            let found = match found {
                Err(Error::Denied | Error::Unauthorized) => None,
                found => found?,
            };
            if let Some(base) = found {
                here = Some(match &reference {
                    Reference::Tag(tag) => format!("{repository}:{tag}"),
                    Reference::Digest(digest) => format!("{repository}@{digest}"),
                });
                if relation == Relation::Base && is_quantised_from(model, &base) {
                    relation = Relation::Quantized;
                }
            }
        }
        Ok(Ancestor { relation, name, digest, source, here })
    }
}

/// The same architecture and as many parameters, stored another way.
fn is_quantised_from(model: &Model, base: &Model) -> bool {
    let (Some(ours), Some(theirs)) = (&model.summary, &base.summary) else { return false };
    ours.quantization != theirs.quantization
        && ours.parameters.is_some()
        && ours.parameters == theirs.parameters
        && ours.architecture == theirs.architecture
}
