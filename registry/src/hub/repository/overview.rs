//! `GET /{name}`: what a repository holds. The card of its default tag, the facts computed from its bytes, and the
//! lines that use it.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use http::request::Parts;
use lode_model::lineage::Relation;
use lode_model::reference::Repository;

use super::pulls::Pulls;
use super::snippets::{SignIn, Snippet, Subject};
use super::{Head, ManifestPage, Tab, chosen, show};
use crate::Registry;
use crate::app::{Card, CardHtml, CardOrigin, ContentKind, DerivedModel};
use crate::auth::{Action, Caller};
use crate::card::{CardLinks, encode_path};
use crate::http::links::own_base_url;
use crate::http::{Failure, Path, Query};
use crate::hub::format::{bytes, counted, day, grouped, parameters, short};
use crate::hub::page::{Shell, browse, render_browsed};

/// The most tags, relatives and origins that this page names; others have pages of their own.
const MAX_NAMED: u32 = 8;
/// The most referrers that are counted.
const MAX_REFERRERS: u32 = 100;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    shell: Shell,
    head: Head,
    shown: Option<Overview>,
    tags: Vec<String>,
    has_more_tags: bool,
    /// A push to copy, for a repository without tags.
    push: String,
    /// The card of a repository without tags.
    untagged_card: Option<CardHtml>,
}

struct Overview {
    kind: &'static str,
    chips: Vec<String>,
    /// Why its content could not be read completely.
    problem: Option<String>,
    /// Why workers cannot run it.
    obstacle: Option<String>,
    description: Option<String>,
    card: Option<Card>,
    can_edit_card: bool,
    can_edit_repository_card: bool,
    /// Whether the caller may push a quantised model: every account may in its own namespace.
    can_quantise: bool,
    /// Of the side bar: a name and a value.
    facts: Vec<(&'static str, String)>,
    digest: String,
    license: Option<String>,
    size: String,
    shared: Option<String>,
    pulls: Pulls,
    modified: String,
    actor: Option<String>,
    origins: Vec<OriginLine>,
    derived: Vec<DerivedModel>,
    referrers: usize,
    is_signed: bool,
    workers: usize,
    snippets: Vec<Snippet>,
}

struct OriginLine {
    name: String,
    /// The address of its page, if it is stored here.
    url: Option<String>,
}

impl From<(String, bool)> for OriginLine {
    fn from((name, is_here): (String, bool)) -> OriginLine {
        OriginLine { url: is_here.then(|| page_of(&name)), name }
    }
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
        let shown = show(&registry, &caller, &repository, chosen(&query)).await?;
        let base =
            own_base_url(&request, registry.config()).unwrap_or_else(|| "http://localhost:5000".to_owned());
        let tags = registry.tag_list(&caller, &repository, Some(MAX_NAMED), None).await?;
        let shell = Shell::of(&registry, &caller).await?;
        let head = match &shown {
            Some(shown) => shown.head(Tab::Overview),
            None => Head::of_repository(&registry, &caller, &repository, (None, Tab::Overview)).await?,
        };
        let push = format!("{}/{repository}:latest", base.split_once("://").map_or("", |(_, host)| host));
        let shown = match shown {
            Some(shown) => Some(overview(&registry, &caller, shown, &base).await?),
            None => None,
        };
        let untagged_card = match shown {
            Some(_) => None,
            None => {
                registry.repository_card_render(&caller, &repository, card_links(&repository, "")).await?
            }
        };
        let (has_more_tags, tags) = (tags.more, tags.items.iter().map(ToString::to_string).collect());
        Ok(render_browsed(&OverviewPage { shell, head, shown, tags, has_more_tags, push, untagged_card }))
    };
    browse(&registry, &caller, page).await
}

async fn overview(
    registry: &Registry,
    caller: &Caller,
    shown: ManifestPage,
    base: &str,
) -> Result<Overview, Failure> {
    let ManifestPage { repository, reference, model, facts, .. } = shown;
    let tree = registry.tree(caller, &repository, &model.manifest).await?;
    let links = card_links(&repository, &reference.to_string());
    let edited = (&reference, &model.manifest, &tree.artifact);
    let can_edit_card = registry.may_edit_card(caller, &repository, edited).await?;
    let card = registry.card_render(caller, &repository, (&model.digest, &tree.artifact), links).await?;
    let origins = registry.stored_bases(caller, &facts).await?;
    let referrers =
        registry.referrers(caller, &repository, &model.digest, None, None, MAX_REFERRERS).await?.items;
    let derived = registry.derived_models(caller, &repository, &model.digest).await?;
    let sizes = registry.shared_bytes(caller, &repository, &model.digest).await?;
    let kind = kind_of(&model);
    let subject = Subject {
        base,
        repository: &repository,
        reference: &reference,
        kind,
        manifest: &model.manifest,
        artifact: &tree.artifact,
        facts: &facts,
        needs_token: !registry.may(&Caller::ANONYMOUS, Action::Pull, &repository).await?,
    };
    let summary = model.summary.clone();
    let mut lines = Vec::new();
    let mut chips = Vec::new();
    if let Some(summary) = &summary {
        chips.extend(facts.task.clone());
        chips.push(summary.format.clone());
        chips.extend(summary.quantization.clone());
        if let Some(count) = summary.parameters {
            lines.push(("Parameters", parameters(count)));
        }
        if !facts.dtypes.is_empty() {
            let names: Vec<&str> = facts.dtypes.iter().map(|(name, _)| name.as_str()).collect();
            lines.push(("Tensor types", names.join(", ")));
        }
        lines.extend(summary.architecture.clone().map(|name| ("Architecture", name)));
        lines.extend(facts.context_length.map(|length| ("Context", counted(length, "token", "tokens"))));
        lines.extend(summary.quantization.clone().map(|name| ("Quantisation", name)));
        lines.push(("Format", summary.format.clone()));
        if summary.tensor_count > 0 {
            lines.push(("Tensors", grouped(summary.tensor_count)));
        }
    } else {
        lines.push(("Type", model.manifest.referrer_type().unwrap_or(&model.manifest.media_type).to_owned()));
        let parts = model.manifest.layers.len().max(model.manifest.manifests.len()) as u64;
        let is_index = model.manifest.is_index();
        lines.push((if is_index { "Manifests" } else { "Layers" }, grouped(parts)));
    }
    lines.extend(facts.library.clone().map(|name| ("Library", name)));
    if !facts.languages.is_empty() {
        lines.push(("Languages", facts.languages.join(", ")));
    }
    if !facts.datasets.is_empty() {
        lines.push(("Datasets", facts.datasets.join(", ")));
    }
    let is_new = |tag: &&String| !chips.iter().any(|chip| chip.eq_ignore_ascii_case(tag));
    let more: Vec<String> = facts.tags.iter().filter(is_new).take(12).cloned().collect();
    chips.extend(more);
    Ok(Overview {
        kind: kind_name(kind),
        chips,
        can_quantise: summary.is_some() && registry.may(caller, Action::Push, &repository).await?,
        obstacle: facts.obstacle().filter(|_| summary.is_some()).map(ToString::to_string),
        problem: summary.and_then(|summary| summary.problem),
        // A card says it itself.
        description: facts.description.clone().filter(|_| card.is_none()),
        card,
        can_edit_card,
        can_edit_repository_card: registry.may_edit_repository_card(caller, &repository).await?,
        facts: lines,
        digest: short(&model.digest),
        license: facts.license.clone(),
        size: bytes(sizes.size_bytes),
        shared: (sizes.shared_bytes > 0).then(|| bytes(sizes.shared_bytes)),
        pulls: registry.pull_history(caller, &repository).await?.into(),
        modified: day(model.modified_at),
        actor: model.actor.clone(),
        origins: origins.into_iter().map(OriginLine::from).collect(),
        derived: derived.into_iter().take(MAX_NAMED as usize).collect(),
        referrers: referrers.len(),
        is_signed: registry.is_signed(caller, &repository, &model.digest).await?,
        workers: registry.workers_with(caller, &repository, &model.digest).await?,
        snippets: subject.snippets(),
    })
}

/// Where the links of a card lead. `reference`: the tag or digest with their files; empty without any.
pub(super) fn card_links(repository: &Repository, reference: &str) -> CardLinks {
    let reference = encode_path(if reference.is_empty() { "latest" } else { reference });
    CardLinks {
        pages: format!("/{repository}/-/blob/{reference}/"),
        bytes: format!("/{repository}/-/raw/{reference}/"),
    }
}

/// The address of the page of `repository:tag` or `repository@digest`.
pub(super) fn page_of(name: &str) -> String {
    match name.split_once('@').or_else(|| name.rsplit_once(':')) {
        Some((repository, reference)) => format!("/{repository}?tag={}", encode_path(reference)),
        None => format!("/{name}"),
    }
}

pub(super) fn relation_name(relation: Relation) -> &'static str {
    match relation {
        Relation::Base => "Derived from",
        Relation::Finetune => "Fine-tuned from",
        Relation::Adapter => "Adapter for",
        Relation::Quantized => "Quantised from",
        Relation::Merge => "Merged from",
        Relation::Subject => "Describes",
        Relation::Source => "Published at",
    }
}

fn kind_of(model: &crate::app::Model) -> ContentKind {
    let artifact_type = model.manifest.referrer_type();
    let format = model.summary.as_ref().map_or("", |summary| summary.format.as_str());
    crate::app::content_kind(&model.manifest.media_type, artifact_type, Some(format))
}

fn kind_name(kind: ContentKind) -> &'static str {
    match kind {
        ContentKind::Model => "Model",
        ContentKind::Image => "Container image",
        ContentKind::Index => "Index",
        ContentKind::Artifact => "Artifact",
        ContentKind::Pending => "Not read yet",
    }
}

impl OverviewPage {
    /// The address of a section of the reader's account page.
    fn account_page(&self, section: &str) -> String {
        match self.shell.account {
            Some(_) => format!("/-/account#{section}"),
            None => "/login?next=%2F-%2Faccount".to_owned(),
        }
    }

    fn untagged_card_html(&self) -> Option<&str> {
        self.untagged_card.as_ref().and_then(rendered)
    }
}

fn rendered(html: &CardHtml) -> Option<&str> {
    match html {
        CardHtml::Rendered(html) => Some(html),
        CardHtml::Late => None,
    }
}

impl Overview {
    /// Where the bytes of the card are.
    fn card_url(&self, head: &Head, card: &Card) -> String {
        let Head { repository, reference, .. } = head;
        match &card.origin {
            CardOrigin::Files => format!("/{repository}/-/raw/{reference}/{}", encode_path(&card.path)),
            CardOrigin::Attached(card) => format!("/v2/{repository}/blobs/{}", card.blob),
            CardOrigin::Repository => format!("/lode/v1/repositories/{repository}/card"),
        }
    }

    /// What to say of the place of the card.
    fn card_note(&self, head: &Head) -> Option<String> {
        match &self.card.as_ref()?.origin {
            CardOrigin::Files => None,
            CardOrigin::Attached(_) => {
                Some("This card is attached to the manifest, and not one of its files.".to_owned())
            }
            CardOrigin::Repository => Some(format!(
                "This card is the repository's, because {} has none of its own.",
                head.reference
            )),
        }
    }

    fn is_repository_card(&self) -> bool {
        self.card.as_ref().is_some_and(|card| card.origin == CardOrigin::Repository)
    }

    fn card_html(&self) -> Option<&str> {
        rendered(&self.card.as_ref()?.html)
    }
}
