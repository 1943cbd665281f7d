//! `/lode/v1/models` and `/lode/v1/tensors`: models and tensors from the database.

use axum::extract::State;
use axum::response::Response;
use lode_model::digest::Digest;
use lode_model::manifest::Descriptor;
use lode_model::reference::{Reference, Repository, Tag};
use lode_model::tensor::TensorInfo;
use serde::Serialize;
use utoipa::ToSchema;

use super::MAX_PAGE;
use super::stated_facts::StatedFacts;
use crate::Registry;
use crate::app::{Lineage, ModelState, ModelSummary, TaggedModel};
use crate::auth::Caller;
use crate::http::{Failure, Json, Links, Path, Query, page};
use crate::time::rfc3339;

/// The maximum size of a page of tensors; most models have fewer.
const MAX_TENSOR_PAGE: u32 = 10_000;

#[derive(Serialize, ToSchema)]
pub(crate) struct ModelList {
    models: Vec<Entry>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ModelEntry)]
struct Entry {
    repository: Repository,
    tag: Tag,
    digest: Digest,
    #[schema(format = DateTime)]
    modified_at: String,
    /// It has not been indexed yet, so its details are not known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pending: bool,
    #[serde(flatten)]
    summary: Option<ModelSummary>,
    /// Why indexing of a pending model has failed so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ModelDetails {
    repository: Repository,
    reference: Reference,
    digest: Digest,
    media_type: String,
    #[schema(format = DateTime)]
    modified_at: String,
    /// Who has set the tag; only for callers with an account.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor: Option<String>,
    /// Null if the manifest is not a model.
    #[serde(flatten)]
    summary: Option<ModelSummary>,
    #[serde(flatten)]
    facts: StatedFacts,
    /// Why the workers cannot run it, if its files show that: "it has no tensors".
    #[serde(skip_serializing_if = "Option::is_none")]
    cannot_run: Option<String>,
    config: Option<Descriptor>,
    layers: Vec<Descriptor>,
    manifests: Vec<Descriptor>,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TensorList {
    tensors: Vec<TensorInfo>,
}

pub(crate) async fn list(
    State(registry): State<Registry>,
    caller: Caller,
    links: Links,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_PAGE).clamp(1, MAX_PAGE);
    let after = query.get("last").map(parse_tagged_name).transpose()?;
    let after = after.as_ref().map(|(repository, tag)| (repository, tag));
    let found = registry.model_list(&caller, after, n).await?;
    let next = found.next.map(|(repository, tag)| {
        let last = format!("{repository}:{tag}");
        links.next("/lode/v1/models", &[("n", &n.to_string()), ("last", &last)])
    });
    let models = found.models.into_iter().map(Entry::from).collect();
    Ok(page(Json(ModelList { models }), next))
}

/// Parses `team/mini:latest`, the name of a page's last entry.
fn parse_tagged_name(name: &str) -> Result<(Repository, Tag), Failure> {
    let parsed = name
        .rsplit_once(':')
        .and_then(|(repository, tag)| Some((repository.parse().ok()?, tag.parse().ok()?)));
    let expected = "the last name of a page, such as `team/mini:latest`";
    parsed.ok_or_else(|| Failure::Query { name: "last", value: name.to_owned(), expected })
}

pub(crate) async fn show(
    State(registry): State<Registry>,
    caller: Caller,
    Path((repository, reference)): Path<(Repository, Reference)>,
) -> Result<Json<ModelDetails>, Failure> {
    let model = registry.model_show(&caller, &repository, &reference).await?;
    let model = model.ok_or_else(|| unknown(&repository, &reference))?;
    let facts = registry.model_facts(&caller, &repository, &model.digest).await?;
    Ok(Json(ModelDetails {
        cannot_run: facts.obstacle().filter(|_| model.summary.is_some()).map(ToString::to_string),
        facts: facts.into(),
        digest: model.digest,
        media_type: model.manifest.media_type,
        modified_at: rfc3339(model.modified_at),
        actor: model.actor,
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
    links: Links,
    Path((repository, reference)): Path<(Repository, Reference)>,
    query: Query,
) -> Result<Response, Failure> {
    let n = query.limit("n")?.unwrap_or(MAX_TENSOR_PAGE).clamp(1, MAX_TENSOR_PAGE);
    // Tensors are numbered from 0 in the manifest's order; `last` is the number of the previous page's last
    // one.
    let from = query.number("last")?.map_or(0, |last| last.saturating_add(1));
    let found = registry.tensor_page(&caller, &repository, &reference, from, n).await?;
    let (digest, found) = found.ok_or_else(|| unknown(&repository, &reference))?;
    let last = from + found.items.len() as u64;
    let next = found.more.then(|| {
        // A tag may move between pages; a digest does not.
        let path = format!("/lode/v1/tensors/{repository}/{digest}");
        let last = last.saturating_sub(1).to_string();
        links.next(&path, &[("n", &n.to_string()), ("last", &last)])
    });
    Ok(page(Json(TensorList { tensors: found.items }), next))
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
        let TaggedModel { repository, tag, digest, modified_at, state } = model;
        let (pending, summary, problem) = match state {
            ModelState::Indexed(summary) => (false, Some(summary), None),
            ModelState::Pending { problem } => (true, None, problem),
        };
        Entry { repository, tag, digest, modified_at: rfc3339(modified_at), pending, summary, problem }
    }
}
