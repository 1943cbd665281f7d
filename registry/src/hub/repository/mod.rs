//! The pages about a repository: an overview, and one for each aspect of a manifest. Every one asks the policy through
//! the methods of `app`; what is missing and what is hidden are one page.

pub(crate) mod card;
pub(crate) mod diff;
pub(crate) mod files;
pub(crate) mod history;
pub(crate) mod lineage;
pub(crate) mod overview;
mod pulls;
pub(crate) mod referrers;
pub(crate) mod rules;
pub(crate) mod settings;
mod snippets;
pub(crate) mod tags;
mod tensor_groups;
pub(crate) mod tensors;
pub(crate) mod try_model;

use lode_model::reference::{Reference, Repository};

pub(super) use self::settings::{ROLES, by_name};

use crate::app::{Model, ModelFacts};
use crate::auth::{AccessTarget, Caller};
use crate::http::Failure;
use crate::{Error, Registry};

/// The most tags that a page names for one that does not exist.
const MAX_NAMED_TAGS: u32 = 8;

/// The head of each page: the name, the tabs, and the manifest that they show.
struct Head {
    repository: Repository,
    /// Its parts, each with the repository's name up to it.
    parts: Vec<(String, String)>,
    /// The tag or digest that the tabs show; empty if the repository has no tags.
    reference: String,
    tab: Tab,
    is_model: bool,
    /// Whether the workers may be able to run it.
    can_try: bool,
    title: Option<String>,
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

impl Head {
    fn new(repository: &Repository, reference: Option<&Reference>, tab: Tab, is_model: bool) -> Head {
        let mut parts = Vec::new();
        let text = repository.as_str();
        for end in text.match_indices('/').map(|(at, _)| at).chain([text.len()]) {
            let begin = text[..end].rfind('/').map_or(0, |at| at + 1);
            parts.push((text[begin..end].to_owned(), text[..end].to_owned()));
        }
        Head {
            repository: repository.clone(),
            parts,
            reference: reference.map(Reference::to_string).unwrap_or_default(),
            tab,
            is_model,
            can_try: is_model,
            title: None,
            manages: Manages::default(),
        }
    }

    fn shows(&self, tab: Tab) -> bool {
        self.tab == tab
    }
}

/// A manifest that a page is about.
struct ManifestPage {
    repository: Repository,
    reference: Reference,
    model: Model,
    facts: ModelFacts,
    manages: Manages,
}

impl ManifestPage {
    fn head(&self, tab: Tab) -> Head {
        let is_model = self.model.summary.is_some();
        let head = Head::new(&self.repository, Some(&self.reference), tab, is_model);
        let can_try = is_model && self.facts.obstacle().is_none();
        Head { title: self.facts.title.clone(), manages: self.manages, can_try, ..head }
    }
}

/// The manifest of a reference, or of the default tag. `None`: the repository has no tags.
async fn show(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
    reference: Option<&str>,
) -> Result<Option<ManifestPage>, Failure> {
    let reference = match reference {
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
    let manages = manages(registry, caller, repository).await?;
    Ok(Some(ManifestPage { repository: repository.clone(), reference, model, facts, manages }))
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

/// The manifest of the query's `ref`, or of the default tag.
async fn show_queried(
    registry: &Registry,
    caller: &Caller,
    name: &str,
    reference: Option<&str>,
) -> Result<ManifestPage, Failure> {
    let repository: Repository = name.parse()?;
    let shown = show(registry, caller, &repository, reference).await?;
    shown.ok_or_else(|| Failure::Registry(Error::NameUnknown { repository }))
}
