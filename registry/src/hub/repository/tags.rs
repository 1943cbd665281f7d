//! `/{name}/-/tags`: a row for each tag, and the manifests without one. Those who may delete have a button for each.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use http::request::Parts;
use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository};

use super::{Head, Tab, chosen, page_url};
use crate::app::{ContentKind, ModelSummary};
use crate::auth::{Action, Caller, Target};
use crate::http::links::own_base_url;
use crate::http::pages::{Form, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query};
use crate::hub::confirm::{Confirmation, is_confirmed};
use crate::hub::format::{bytes, minute, parameters, query as escape, short};
use crate::hub::page::{Shell, browse, framed, render, render_browsed};
use crate::{Error, Registry};

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
    can_delete: bool,
    /// A tag, or a manifest without one, that was just deleted.
    deleted: Option<Reference>,
    confirmation: Option<Confirmation>,
    problem: Option<String>,
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
    is_signed: bool,
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
    parts: Parts,
) -> Response {
    let page = async {
        Ok(render_browsed(&TagsPage::new(&registry, &caller, &name.parse()?, (&query, &parts)).await?))
    };
    browse(&registry, &caller, page).await
}

/// Deletes a tag, or a manifest, once the form confirms it.
pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
    parts: Parts,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        let repository: Repository = name.parse()?;
        // Before the form is read.
        registry.authorize(&caller, Action::Delete, Target::Repository(&repository)).await?;
        let form = Form::from_request(request, &server).await?;
        let reference = match form.get("manifest") {
            "" => Reference::Tag(form.get("tag").parse()?),
            digest => Reference::Digest(digest.parse()?),
        };
        let mut status = StatusCode::OK;
        let mut problem = None;
        if is_confirmed(&form) {
            match registry.manifest_delete(&caller, &repository, &reference).await {
                Ok(()) => {
                    let deleted = reference.to_string();
                    let query = [("deleted", Some(deleted.as_str())), ("tag", chosen(&query))];
                    return Ok(redirect(&page_url(&repository, "tags", &query)));
                }
                Err(error @ (Error::TagProtected { .. } | Error::ManifestUnknown { .. })) => {
                    let failure = Failure::Registry(error);
                    status = failure.status();
                    problem = Some(failure.message());
                }
                Err(error) => return Err(error.into()),
            }
        }
        let page = TagsPage::new(registry, &caller, &repository, (&query, &parts)).await?;
        let confirmation = match problem {
            Some(_) => None,
            None => Some(page.question(&form, &reference)),
        };
        Ok(render(status, &TagsPage { confirmation, problem, ..page }))
    };
    framed(registry, &caller, page).await
}

impl TagsPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
        (query, parts): (&Query, &Parts),
    ) -> Result<TagsPage, Failure> {
        let last = query.get("last");
        let page = registry.tag_summaries(caller, repository, None, last).await?;
        let digests: Vec<Digest> = page.items.iter().map(|tag| tag.content.digest.clone()).collect();
        let models = registry.model_summaries(caller, repository, &digests).await?;
        let next = page.items.last().filter(|_| page.more).map(|tag| escape(tag.tag.as_str()));
        let is_first = last.is_none();
        let (untagged, has_more_untagged) = match is_first {
            true => untagged(registry, caller, repository).await?,
            false => (Vec::new(), false),
        };
        let base = own_base_url(parts, registry.config()).unwrap_or_default();
        let protection = registry.tag_protection(caller, repository).await?;
        let tags = page.items.into_iter().map(|tag| TagLine {
            is_protected: protection.has(tag.tag.as_str()),
            facts: facts(models.get(&tag.content.digest)),
            digest: short(&tag.content.digest),
            kind: kind_name(tag.content.kind),
            size: bytes(tag.content.size_bytes),
            modified: minute(tag.modified_at),
            actor: tag.actor,
            is_signed: tag.is_signed,
            tag: tag.tag.to_string(),
        });
        Ok(TagsPage {
            shell: Shell::of(registry, caller).await?,
            head: Head::of_repository(registry, caller, repository, (chosen(query), Tab::Tags)).await?,
            host: base.split_once("://").map_or(String::new(), |(_, host)| host.to_owned()),
            tags: tags.collect(),
            next,
            is_first,
            untagged,
            has_more_untagged,
            can_delete: registry.may(caller, Action::Delete, repository).await?,
            deleted: query.get("deleted").and_then(|reference| reference.parse().ok()),
            confirmation: None,
            problem: None,
        })
    }

    /// What to ask before a tag or a manifest is deleted.
    fn question(&self, form: &Form, reference: &Reference) -> Confirmation {
        let page = self.head.page("/-/tags");
        let (title, text, button) = match reference {
            Reference::Tag(tag) => (
                format!("Delete the tag {tag}?"),
                "Clients cannot pull it by this name any more. \
                 Its manifest stays, and the history of the tags can bring the tag back.",
                "Delete the tag",
            ),
            Reference::Digest(digest) => (
                format!("Delete the manifest {}?", short(digest)),
                "Clients cannot pull it by its digest any more, and tags that name it are deleted with it. \
                 An operator can restore it for a while.",
                "Delete the manifest",
            ),
        };
        Confirmation::new(form, (&page, &page), title, text, button)
    }
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
