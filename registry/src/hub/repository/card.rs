//! `/{name}/-/card`: the text of a model card, to preview and to save. The form has the manifest that it was made from,
//! so that no change of others is lost.

use askama::Template;
use axum::extract::{Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository, Tag};

use super::overview::card_links;
use super::{Head, Tab, show_queried};
use crate::Registry;
use crate::app::{CardError, CardHtml, CardPlace, check_card};
use crate::auth::Caller;
use crate::card::MAX_CARD_BYTES;
use crate::http::pages::{Form, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query};
use crate::hub::page::{Shell, framed, render};

/// The largest form. A line break of a card has six bytes in it.
const MAX_FORM_BYTES: usize = 6 * MAX_CARD_BYTES as usize + (64 << 10);

#[derive(Template)]
#[template(path = "card.html")]
struct CardPage {
    shell: Shell,
    head: Head,
    reference: Reference,
    /// The file of the card.
    path: String,
    is_new: bool,
    is_attached: bool,
    /// Why there is no form.
    refusal: Option<String>,
    /// The manifest that the form was made from.
    base: String,
    text: String,
    problem: Option<String>,
    preview: Option<CardHtml>,
    /// What is stored now, if it was changed since the form was made.
    stored: Option<String>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let repository: Repository = name.parse()?;
        registry.check_push_manifest(&caller, &repository).await?;
        let page = CardPage::new(&registry, &caller, &repository, query.get("tag")).await?;
        Ok(render(page.status(), &page))
    };
    framed(&registry, &caller, page).await
}

/// Saves the text, or shows the page again with a preview: the field `action` says which.
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
        let mut refused = None;
        if form.get("action") == "save" {
            match save(registry, &caller, &repository, (query.get("tag"), base, &text)).await {
                Ok(saved) => return Ok(redirect(&saved)),
                Err(failure) if failure.status().is_server_error() => return Err(failure),
                Err(failure) => refused = Some(failure),
            }
        }
        let mut page = CardPage::new(registry, &caller, &repository, query.get("tag")).await?;
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
    (tag, base, text): (Option<&str>, &str, &str),
) -> Result<String, Failure> {
    let tag: Tag =
        tag.ok_or(Failure::QueryMissing { name: "tag", expected: "the tag of the card" })?.parse()?;
    let base: Digest = base.parse()?;
    registry.card_save(caller, repository, &Reference::Tag(tag.clone()), (&base, text)).await?;
    Ok(format!("/{repository}?tag={tag}"))
}

impl CardPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
        tag: Option<&str>,
    ) -> Result<CardPage, Failure> {
        let shown = show_queried(registry, caller, repository.as_str(), tag).await?;
        let mut page = CardPage {
            shell: Shell::of(registry, caller).await?,
            head: shown.head(Tab::Overview),
            path: String::new(),
            is_new: false,
            is_attached: false,
            refusal: None,
            base: String::new(),
            text: String::new(),
            problem: None,
            preview: None,
            stored: None,
            reference: shown.reference,
        };
        match registry.card_source(caller, repository, &page.reference).await {
            Ok(source) => {
                page.path = source.path;
                page.is_new = source.text.is_none();
                page.is_attached = source.place == CardPlace::Attached;
                page.base = source.base.to_string();
                page.text = source.text.unwrap_or_default();
            }
            Err(CardError::NotEditable { reason }) => page.refusal = Some(reason),
            Err(error) => return Err(error.into()),
        }
        Ok(page)
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
        let links = card_links(repository, &self.reference);
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
