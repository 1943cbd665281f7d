//! The pages about a repository: an overview, and one for each aspect of a manifest. Every one asks the policy through
//! the methods of `app`; what is missing and what is hidden are one page.

pub(crate) mod card;
pub(crate) mod diff;
pub(crate) mod files;
pub(crate) mod history;
pub(crate) mod lineage;
pub(crate) mod overview;
mod pulls;
pub(crate) mod quantise;
pub(crate) mod referrers;
pub(crate) mod rules;
pub(crate) mod settings;
mod snippets;
pub(crate) mod tags;
mod tensor_groups;
pub(crate) mod tensors;
pub(crate) mod try_model;

use lode_model::reference::{Reference, Repository};

use crate::app::{Model, ModelFacts};
use crate::auth::{AccessTarget, Caller, Visibility};
use crate::http::{Failure, Query};
use crate::hub::access::VISIBILITIES;
use crate::hub::format::reference as reference_text;
use crate::{Error, Registry};

/// The most tags that a page names for one that does not exist.
const MAX_NAMED_TAGS: u32 = 8;

/// The head of each page: the name, the visibility, and the tabs.
struct Head {
    repository: Repository,
    /// Its parts, each with the repository's name up to it.
    parts: Vec<(String, String)>,
    /// The tag or digest that the tabs show; empty if the repository has no tags.
    reference: String,
    /// Whether the address names the reference. The tabs keep it then.
    is_chosen: bool,
    tab: Tab,
    is_model: bool,
    /// Whether the workers may be able to run it.
    can_try: bool,
    title: Option<String>,
    /// `None` on a server without accounts.
    visibility: Option<Visibility>,
    manages: Manages,
}

/// The pages with which the caller manages a repository.
#[derive(Clone, Copy, Default)]
struct Manages {
    rules: bool,
    settings: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tab {
    Overview,
    Files,
    Tensors,
    Try,
    Tags,
    Lineage,
    Referrers,
    Rules,
    Settings,
    None,
}

struct TabLink {
    name: &'static str,
    url: String,
    is_current: bool,
}

impl Head {
    /// The head of a page about the repository as a whole. Its tabs show the chosen reference if there is such a
    /// manifest, else the default tag.
    async fn of_repository(
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
        (chosen, tab): (Option<&str>, Tab),
    ) -> Result<Head, Failure> {
        let mut shown = show(registry, caller, repository, chosen).await;
        if chosen.is_some() && shown.is_err() {
            shown = show(registry, caller, repository, None).await;
        }
        if let Ok(Some(shown)) = shown {
            return Ok(shown.head(tab));
        }
        // A repository without tags, or whose manifest is missing or damaged. Who may not read it gets an error here.
        Ok(Head {
            repository: repository.clone(),
            parts: parts_of(repository),
            reference: String::new(),
            is_chosen: false,
            tab,
            is_model: false,
            can_try: false,
            title: None,
            visibility: registry.visibility(caller, repository).await?,
            manages: manages(registry, caller, repository).await?,
        })
    }

    /// The tabs of every page about the repository.
    fn tabs(&self) -> Vec<TabLink> {
        let Head { repository, reference, .. } = self;
        let (has_manifest, has_tensors) = (!reference.is_empty(), self.is_model);
        let tabs = [
            (true, Tab::Overview, "Overview", self.page("")),
            (has_manifest, Tab::Files, "Files", format!("/{repository}/-/tree/{reference}")),
            (has_tensors, Tab::Tensors, "Tensors", format!("/{repository}/-/tensors/{reference}")),
            (self.can_try, Tab::Try, "Try", self.page("/-/try")),
            (true, Tab::Tags, "Tags", self.page("/-/tags")),
            (has_manifest, Tab::Lineage, "Lineage", self.page("/-/lineage")),
            (has_manifest, Tab::Referrers, "Referrers", self.page("/-/referrers")),
            (self.manages.rules, Tab::Rules, "Rules", self.page("/-/rules")),
            (self.manages.settings, Tab::Settings, "Settings", self.page("/-/settings")),
        ];
        let link = |(_, tab, name, url)| TabLink { name, url, is_current: self.tab == tab };
        tabs.into_iter().filter(|(is_shown, ..)| *is_shown).map(link).collect()
    }

    /// The address of a page of the repository, such as `/-/tags`, with the chosen reference.
    fn page(&self, page: &str) -> String {
        format!("/{}{page}{}", self.repository, self.chosen('?'))
    }

    /// The part of a query that keeps the chosen reference.
    fn chosen(&self, separator: impl std::fmt::Display) -> String {
        match self.is_chosen {
            true => format!("{separator}tag={}", self.reference),
            false => String::new(),
        }
    }

    /// What the visibility means.
    fn visibility_text(&self) -> &'static str {
        let known = VISIBILITIES.iter().find(|(value, _)| Some(*value) == self.visibility);
        known.map_or("", |(_, text)| text)
    }

    /// The reference as pages show it: a digest is shortened.
    fn shown(&self) -> String {
        reference_text(&self.reference)
    }
}

/// The parts of a name, each with the name up to it.
fn parts_of(repository: &Repository) -> Vec<(String, String)> {
    let text = repository.as_str();
    let ends = text.match_indices('/').map(|(at, _)| at).chain([text.len()]);
    ends.map(|end| {
        let begin = text[..end].rfind('/').map_or(0, |at| at + 1);
        (text[begin..end].to_owned(), text[..end].to_owned())
    })
    .collect()
}

/// The address of a page of a repository, with those parts of its query that have a value.
fn page_url(repository: &Repository, page: &str, query: &[(&str, Option<&str>)]) -> String {
    let given = query.iter().filter_map(|(name, value)| Some((*name, (*value)?)));
    let query = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(given).finish();
    let mark = if query.is_empty() { "" } else { "?" };
    format!("/{repository}/-/{page}{mark}{query}")
}

/// The tag or digest in the query of a page. Addresses of earlier versions have `ref`.
fn chosen(query: &Query) -> Option<&str> {
    query.get("tag").or(query.get("ref"))
}

/// A manifest that a page is about.
struct ManifestPage {
    repository: Repository,
    reference: Reference,
    /// Whether the address names the reference.
    is_chosen: bool,
    model: Model,
    facts: ModelFacts,
    visibility: Option<Visibility>,
    manages: Manages,
}

impl ManifestPage {
    fn head(&self, tab: Tab) -> Head {
        let is_model = self.model.summary.is_some();
        Head {
            repository: self.repository.clone(),
            parts: parts_of(&self.repository),
            reference: self.reference.to_string(),
            is_chosen: self.is_chosen,
            tab,
            is_model,
            can_try: is_model && self.facts.obstacle().is_none(),
            title: self.facts.title.clone(),
            visibility: self.visibility,
            manages: self.manages,
        }
    }
}

/// The manifest of a reference, or of the default tag. `None`: the repository has no tags.
async fn show(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
    chosen: Option<&str>,
) -> Result<Option<ManifestPage>, Failure> {
    let reference = match chosen {
        // Also a revision of Hugging Face's clients, such as `main` or a commit id.
        Some(text) => match registry.revision_reference(caller, repository, text).await? {
            Some(reference) => reference,
            None => text.parse::<Reference>()?,
        },
        None => match registry.default_tag(caller, repository).await? {
            Some(tag) => Reference::Tag(tag),
            None => return Ok(None),
        },
    };
    let Some(model) = registry.model_show(caller, repository, &reference).await? else {
        // An error if the caller may not see the repository.
        let tags = registry.tag_list(caller, repository, Some(MAX_NAMED_TAGS), None).await?.items;
        return Err(Failure::ReferencePageUnknown { repository: repository.clone(), reference, tags });
    };
    let facts = registry.model_facts(caller, repository, &model.digest).await?;
    Ok(Some(ManifestPage {
        repository: repository.clone(),
        reference,
        is_chosen: chosen.is_some(),
        model,
        facts,
        visibility: registry.visibility(caller, repository).await?,
        manages: manages(registry, caller, repository).await?,
    }))
}

/// Settings are changed by people: who has no account has no page for it.
async fn manages(registry: &Registry, caller: &Caller, repository: &Repository) -> Result<Manages, Failure> {
    if caller.account().is_none() {
        return Ok(Manages::default());
    }
    Ok(Manages {
        rules: registry.may_maintain(caller, repository).await?,
        settings: registry.may_configure(caller, &AccessTarget::Repository(repository.clone())).await?,
    })
}

/// The manifest of a reference.
async fn show_one(
    registry: &Registry,
    caller: &Caller,
    (name, reference): (&str, &str),
) -> Result<ManifestPage, Failure> {
    let repository = name.parse()?;
    show(registry, caller, &repository, Some(reference)).await?.ok_or(Failure::PageUnknown)
}

/// The manifest that the query names, or of the default tag.
async fn show_queried(
    registry: &Registry,
    caller: &Caller,
    name: &str,
    query: &Query,
) -> Result<ManifestPage, Failure> {
    let repository: Repository = name.parse()?;
    let shown = show(registry, caller, &repository, chosen(query)).await?;
    shown.ok_or_else(|| Failure::Registry(Error::NameUnknown { repository }))
}
