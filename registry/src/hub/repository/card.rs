//! `/{name}/-/card`: the text of a model card, to preview and to save; with `of=repository`, that of the repository. The
//! form has the digest of what it was made from, so that no change of others is lost.

use askama::Template;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_model::digest::Digest;
use lode_model::import::CARD_NAME;
use lode_model::reference::{Reference, Repository, Tag};

use super::overview::card_links;
use super::{Head, Tab, chosen, show_queried};
use crate::Registry;
use crate::app::{CardError, CardHtml, CardPlace, check_card};
use crate::auth::Caller;
use crate::card::MAX_CARD_BYTES;
use crate::http::pages::{Form, Visitor, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query};
use crate::hub::confirm::{Confirmation, is_confirmed};
use crate::hub::page::{Shell, framed, render};

/// The largest form. A line break of a card has six bytes in it.
const MAX_FORM_BYTES: usize = 6 * MAX_CARD_BYTES as usize + (64 << 10);

#[derive(Template)]
#[template(path = "card.html")]
struct CardPage {
    shell: Shell,
    head: Head,
    subject: CardSubject,
    /// The file of the card.
    path: String,
    is_new: bool,
    is_attached: bool,
    /// Why there is no form.
    refusal: Option<String>,
    /// The digest of what the form was made from: a manifest, or the text of a repository's card. Empty: a repository
    /// without a card.
    base: String,
    text: String,
    problem: Option<String>,
    /// Whether no one can save: the tag is protected.
    is_protected: bool,
    preview: Option<CardHtml>,
    /// What is stored now, if it was changed since the form was made.
    stored: Option<String>,
    confirmation: Option<Confirmation>,
}

/// What has the card.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CardSubject {
    Tag,
    Repository,
}

fn is_of_repository(query: &Query) -> bool {
    query.get("of") == Some("repository")
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    Visitor(caller): Visitor,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let repository: Repository = name.parse()?;
        registry.check_push_manifest(&caller, &repository).await?;
        let page = CardPage::new(&registry, &caller, &repository, &query).await?;
        Ok(render(page.status(), &page))
    };
    framed(&registry, &caller, page).await
}

/// Saves the text, removes it once the form confirms it, or shows the page again with a preview: the field `action` says which.
pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        let repository: Repository = name.parse()?;
        // Before the form is read.
        registry.check_push_manifest(&caller, &repository).await?;
        let form = Form::read(request, &server, MAX_FORM_BYTES).await?;
        // Browsers send all line breaks so.
        let text = form.get("text").replace("\r\n", "\n");
        let base = form.get("base");
        let is_removal = form.get("action") == "remove" && is_of_repository(&query);
        let changed = match form.get("action") {
            "save" => Some(save(registry, &caller, &repository, (&query, base, &text)).await),
            "remove" if is_removal && is_confirmed(&form) => {
                Some(remove(registry, &caller, &repository, base).await)
            }
            _ => None,
        };
        let refused = match changed {
            Some(Ok(address)) => return Ok(redirect(&address)),
            Some(Err(failure)) if failure.status().is_server_error() => return Err(failure),
            Some(Err(failure)) => Some(failure),
            None => None,
        };
        let mut page = CardPage::new(registry, &caller, &repository, &query).await?;
        if page.refusal.is_some() {
            return Ok(render(page.status(), &page));
        }
        let stored = std::mem::replace(&mut page.text, text);
        match &refused {
            // From now on, the form replaces what it shows as stored.
            Some(Failure::Card(CardError::Changed { .. })) => page.stored = Some(stored),
            _ => page.base = base.to_owned(),
        }
        let status = match refused {
            Some(failure) => {
                page.problem = Some(failure.message());
                failure.status()
            }
            None if is_removal => {
                page.confirmation = Some(page.question(&form));
                StatusCode::OK
            }
            None => page.preview(registry, &caller).await?,
        };
        Ok(render(status, &page))
    };
    framed(registry, &caller, page).await
}

/// Saves a card; returns the address of its page.
async fn save(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
    (query, base, text): (&Query, &str, &str),
) -> Result<String, Failure> {
    if is_of_repository(query) {
        let base: Option<Digest> = if base.is_empty() { None } else { Some(base.parse()?) };
        registry.repository_card_save(caller, repository, (base.as_ref(), text)).await?;
        return Ok(format!("/{repository}"));
    }
    let tag = chosen(query);
    let tag: Tag =
        tag.ok_or(Failure::QueryMissing { name: "tag", expected: "the tag of the card" })?.parse()?;
    let base: Digest = base.parse()?;
    registry.card_save(caller, repository, &Reference::Tag(tag.clone()), (&base, text)).await?;
    Ok(format!("/{repository}?tag={tag}"))
}

/// Removes the card of a repository; returns the address of its page.
async fn remove(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
    base: &str,
) -> Result<String, Failure> {
    registry.repository_card_delete(caller, repository, Some(&base.parse()?)).await?;
    Ok(format!("/{repository}"))
}

impl CardPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
        query: &Query,
    ) -> Result<CardPage, Failure> {
        if is_of_repository(query) {
            return CardPage::of_repository(registry, caller, repository, query).await;
        }
        let shown = show_queried(registry, caller, repository.as_str(), query).await?;
        let mut page = CardPage::empty(registry, caller, shown.head(Tab::Overview)).await?;
        page.subject = CardSubject::Tag;
        match registry.card_source(caller, repository, &shown.reference).await {
            Ok(source) => {
                page.path = source.path;
                page.is_new = source.text.is_none();
                page.is_attached = source.place == CardPlace::Attached;
                page.is_protected = !page.is_attached
                    && registry.tag_protection(caller, repository).await?.has(&page.head.reference);
                page.base = source.base.to_string();
                page.text = source.text.unwrap_or_default();
            }
            Err(CardError::NotEditable { reason }) => page.refusal = Some(reason),
            Err(error) => return Err(error.into()),
        }
        Ok(page)
    }

    async fn of_repository(
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
        query: &Query,
    ) -> Result<CardPage, Failure> {
        let card = registry.repository_card(caller, repository).await?;
        let head = Head::of_repository(registry, caller, repository, (chosen(query), Tab::Overview)).await?;
        let page = CardPage::empty(registry, caller, head).await?;
        let (base, text) = card.map(|card| (card.digest.to_string(), card.text)).unzip();
        Ok(CardPage {
            path: CARD_NAME.to_owned(),
            is_new: text.is_none(),
            base: base.unwrap_or_default(),
            text: text.unwrap_or_default(),
            ..page
        })
    }

    async fn empty(registry: &Registry, caller: &Caller, head: Head) -> Result<CardPage, Failure> {
        Ok(CardPage {
            shell: Shell::of(registry, caller).await?,
            head,
            subject: CardSubject::Repository,
            path: String::new(),
            is_new: false,
            is_attached: false,
            refusal: None,
            base: String::new(),
            text: String::new(),
            problem: None,
            is_protected: false,
            preview: None,
            stored: None,
            confirmation: None,
        })
    }

    /// What to ask before the card is removed.
    fn question(&self, form: &Form) -> Confirmation {
        let url = format!("/{}/-/card?{}", self.head.repository, self.query());
        let title = format!("Remove the card of {}?", self.head.repository);
        let text = "Its text is deleted and cannot be brought back.";
        Confirmation::new(form, (&url, &url), title, text, "Remove the card")
    }

    /// The query of the addresses of this page.
    fn query(&self) -> String {
        match self.subject {
            CardSubject::Tag => format!("tag={}", self.head.reference),
            CardSubject::Repository => format!("of=repository{}", self.head.chosen('&')),
        }
    }

    /// The page that shows the card.
    fn shown_at(&self) -> String {
        let Head { repository, reference, .. } = &self.head;
        match self.subject {
            CardSubject::Tag => format!("/{repository}?tag={reference}"),
            CardSubject::Repository => self.head.page(""),
        }
    }

    fn is_of_repository(&self) -> bool {
        self.subject == CardSubject::Repository
    }

    fn status(&self) -> StatusCode {
        if self.refusal.is_some() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK }
    }

    /// Shows how the text will look, and what is wrong with it.
    async fn preview(&mut self, registry: &Registry, caller: &Caller) -> Result<StatusCode, Failure> {
        if let Err(error) = check_card(&self.text) {
            let failure = Failure::from(error);
            self.problem = Some(failure.message());
            if failure.status() == StatusCode::PAYLOAD_TOO_LARGE {
                return Ok(failure.status());
            }
        }
        let repository = &self.head.repository;
        let links = card_links(repository, &self.head.reference);
        self.preview = Some(registry.card_preview(caller, repository, &self.text, links).await?);
        Ok(StatusCode::OK)
    }

    fn preview_html(&self) -> Option<&str> {
        match self.preview.as_ref()? {
            CardHtml::Rendered(html) => Some(html),
            CardHtml::Late => None,
        }
    }
}
