//! `/lode/v1/models` and `/lode/v1/tensors`: what the index knows.

use axum::extract::State;
use lode_model::digest::Digest;
use lode_model::manifest::Descriptor;
use lode_model::reference::{Reference, Repository, Tag};
use lode_model::tensor::TensorInfo;
use serde::Serialize;

use crate::Registry;
use crate::app::{Lineage, ModelSummary, TaggedModel};
use crate::auth::Caller;
use crate::http::{Failure, Json, Path};
use crate::time::rfc3339;

#[derive(Serialize)]
pub(crate) struct ModelList {
    models: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    repository: Repository,
    tag: Tag,
    digest: Digest,
    modified_at: String,
    #[serde(flatten)]
    summary: ModelSummary,
}

#[derive(Serialize)]
pub(crate) struct Shown {
    repository: Repository,
    reference: Reference,
    digest: Digest,
    media_type: String,
    modified_at: String,
    /// Null where the manifest is no model.
    #[serde(flatten)]
    summary: Option<ModelSummary>,
    config: Option<Descriptor>,
    layers: Vec<Descriptor>,
    manifests: Vec<Descriptor>,
}

#[derive(Serialize)]
pub(crate) struct TensorList {
    tensors: Vec<TensorInfo>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
) -> Result<Json<ModelList>, Failure> {
    let models = registry.model_list(&caller).await?.into_iter().map(Entry::from).collect();
    Ok(Json(ModelList { models }))
}

pub(crate) async fn show(
    State(registry): State<Registry>,
    caller: Caller,
    Path((repository, reference)): Path<(Repository, Reference)>,
) -> Result<Json<Shown>, Failure> {
    let model = registry.model_show(&caller, &repository, &reference).await?;
    let model = model.ok_or_else(|| unknown(&repository, &reference))?;
    Ok(Json(Shown {
        digest: model.digest,
        media_type: model.manifest.media_type,
        modified_at: rfc3339(model.modified_at),
        summary: model.summary,
        config: model.manifest.config,
        layers: model.manifest.layers,
        manifests: model.manifest.manifests,
        repository,
        reference,
    }))
}

pub(crate) async fn tensors(
    State(registry): State<Registry>,
    caller: Caller,
    Path((repository, reference)): Path<(Repository, Reference)>,
) -> Result<Json<TensorList>, Failure> {
    let tensors = registry.tensor_list(&caller, &repository, &reference).await?;
    Ok(Json(TensorList { tensors: tensors.ok_or_else(|| unknown(&repository, &reference))? }))
}

pub(crate) async fn lineage(
    State(registry): State<Registry>,
    caller: Caller,
    Path((repository, reference)): Path<(Repository, Reference)>,
) -> Result<Json<Lineage>, Failure> {
    let lineage = registry.model_lineage(&caller, &repository, &reference).await?;
    Ok(Json(lineage.ok_or_else(|| unknown(&repository, &reference))?))
}

pub(super) fn unknown(repository: &Repository, reference: &Reference) -> Failure {
    let joint = if let Reference::Digest(_) = reference { '@' } else { ':' };
    Failure::ModelUnknown { name: format!("{repository}{joint}{reference}") }
}

impl From<TaggedModel> for Entry {
    fn from(model: TaggedModel) -> Entry {
        let TaggedModel { repository, tag, digest, modified_at, summary } = model;
        Entry { repository, tag, digest, modified_at: rfc3339(modified_at), summary }
    }
}
