//! `GET /{name}/-/tags`: a row for each tag, and the manifests without one.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::request::Parts;
use lode_model::digest::Digest;
use lode_model::reference::Repository;

use super::{Head, Tab, chosen};
use crate::Registry;
use crate::app::{ContentKind, ModelSummary};
use crate::auth::Caller;
use crate::http::links::own_base_url;
use crate::http::{Failure, Path, Query};
use crate::hub::format::{bytes, minute, parameters, query as escape, short};
use crate::hub::page::{Shell, browse, render_browsed};

#[derive(Template)]
#[template(path = "tags.html")]
struct TagsPage {
    shell: Shell,
    head: Head,
    host: String,
    tags: Vec<TagLine>,
    next: Option<String>,
    is_first: bool,
    untagged: Vec<UntaggedLine>,
    has_more_untagged: bool,
}

struct TagLine {
    tag: String,
    digest: String,
    kind: &'static str,
    facts: Vec<String>,
    size: String,
    modified: String,
    actor: Option<String>,
    is_protected: bool,
}

struct UntaggedLine {
    digest: Digest,
    kind: String,
    /// Begins a link to what it describes.
    subject: Option<Digest>,
    size: String,
    created: String,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
    request: Parts,
) -> Response {
    let page = async {
        let repository: Repository = name.parse()?;
        let last = query.get("last");
        let page = registry.tag_summaries(&caller, &repository, None, last).await?;
        let digests: Vec<Digest> = page.items.iter().map(|tag| tag.content.digest.clone()).collect();
        let models = registry.model_summaries(&caller, &repository, &digests).await?;
        let next = page.items.last().filter(|_| page.more).map(|tag| escape(tag.tag.as_str()));
        let is_first = last.is_none();
        let (untagged, has_more_untagged) = match is_first {
            true => untagged(&registry, &caller, &repository).await?,
            false => (Vec::new(), false),
        };
        let base = own_base_url(&request, registry.config()).unwrap_or_default();
        let protection = registry.tag_protection(&caller, &repository).await?;
        let tags = page.items.into_iter().map(|tag| TagLine {
            is_protected: protection.has(tag.tag.as_str()),
            facts: facts(models.get(&tag.content.digest)),
            digest: short(&tag.content.digest),
            kind: kind_name(tag.content.kind),
            size: bytes(tag.content.size_bytes),
            modified: minute(tag.modified_at),
            actor: tag.actor,
            tag: tag.tag.to_string(),
        });
        Ok(render_browsed(&TagsPage {
            shell: Shell::of(&registry, &caller).await?,
            head: Head::of_repository(&registry, &caller, &repository, (chosen(&query), Tab::Tags)).await?,
            host: base.split_once("://").map_or(String::new(), |(_, host)| host.to_owned()),
            tags: tags.collect(),
            next,
            is_first,
            untagged,
            has_more_untagged,
        }))
    };
    browse(&registry, &caller, page).await
}

/// Manifests without a tag, from the first page of all manifests, and whether there may be more.
async fn untagged(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
) -> Result<(Vec<UntaggedLine>, bool), Failure> {
    let page = registry.manifest_summaries(caller, repository, None, None).await?;
    let lines =
        page.items.into_iter().filter(|manifest| manifest.tags.is_empty()).map(|manifest| UntaggedLine {
            kind: manifest.content.artifact_type.unwrap_or(manifest.content.media_type),
            size: bytes(manifest.content.size_bytes),
            created: minute(manifest.created_at),
            subject: manifest.subject,
            digest: manifest.content.digest,
        });
    Ok((lines.collect(), page.more))
}

fn facts(summary: Option<&ModelSummary>) -> Vec<String> {
    let Some(summary) = summary else { return Vec::new() };
    let mut facts = vec![summary.format.clone()];
    facts.extend(summary.quantization.clone());
    facts.extend(summary.parameters.map(parameters));
    facts
}

fn kind_name(kind: ContentKind) -> &'static str {
    match kind {
        ContentKind::Model => "model",
        ContentKind::Image => "image",
        ContentKind::Index => "index",
        ContentKind::Artifact => "artifact",
        ContentKind::Pending => "not read yet",
    }
}
