//! `/{name}/-/settings`: who may do what with a repository, and its deletion, for its owners.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_model::reference::Repository;

use super::{Head, Tab, chosen, page_url};
use crate::Registry;
use crate::auth::{AccessTarget, Action, Caller, Target};
use crate::http::pages::{Form, SignedIn, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query};
use crate::hub::access::{AccessSection, Changed};
use crate::hub::confirm::Confirmation;
use crate::hub::page::{Shell, browse, is_about_form, render};

/// The change that deletes the repository.
const DELETE: &str = "delete-repository";

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    shell: Shell,
    head: Head,
    access: AccessSection,
    /// Whether the caller owns the namespace, too.
    owns_namespace: bool,
    problem: Option<String>,
    /// What was saved.
    saved: Option<String>,
    confirmation: Option<Confirmation>,
    /// Why the repository was not deleted.
    delete_problem: Option<String>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let repository = name.parse()?;
        let page = SettingsPage::new(&registry, &caller, &repository, Some(&query)).await?;
        Ok(render(StatusCode::OK, &page))
    };
    browse(&registry, &caller, page).await
}

/// Changes one setting, or deletes the repository.
pub(crate) async fn post(
    State(server): State<ServerState>,
    SignedIn(caller): SignedIn,
    Path(name): Path<String>,
    query: Query,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        let repository: Repository = name.parse()?;
        let mut page = SettingsPage::new(registry, &caller, &repository, Some(&query)).await?;
        let form = Form::from_request(request, &server).await?;
        if form.get("change") == DELETE {
            let Err(failure) = delete(registry, &caller, &repository, &form).await else {
                return Ok(redirect(&format!("/models?q={}/&all=1", page.namespace_name())));
            };
            page.delete_problem = Some(failure.message());
            return Ok(render(failure.status(), &page));
        }
        match page.access.change(registry, &caller, &form).await {
            Ok(Changed::Saved(saved)) => {
                let query = [("saved", Some(saved)), ("tag", chosen(&query))];
                Ok(redirect(&page_url(&repository, "settings", &query)))
            }
            Ok(Changed::Asked(question)) => {
                page.confirmation = Some(question);
                Ok(render(StatusCode::OK, &page))
            }
            Err(failure) if !is_about_form(&failure) => Err(failure),
            Err(failure) => {
                page.problem = Some(failure.message());
                Ok(render(failure.status(), &page))
            }
        }
    };
    browse(registry, &caller, page).await
}

/// Deletes the repository, if its name was entered.
async fn delete(
    registry: &Registry,
    caller: &Caller,
    repository: &Repository,
    form: &Form,
) -> Result<(), Failure> {
    if form.get("confirm").trim() != repository.as_str() {
        return Err(Failure::field("confirm", format!("has to be the repository's name, `{repository}`")));
    }
    Ok(registry.repository_delete(caller, repository).await?)
}

impl SettingsPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
        query: Option<&Query>,
    ) -> Result<SettingsPage, Failure> {
        let target = AccessTarget::Repository(repository.clone());
        registry.authorize(caller, Action::Own, Target::Settings(&target)).await?;
        let head = Head::of_repository(registry, caller, repository, (query.and_then(chosen), Tab::Settings))
            .await?;
        let access = AccessSection::new(registry, caller, target, head.page("/-/settings"), query).await?;
        let saved = match query.and_then(|query| query.get("saved")) {
            Some("visibility") => Some(format!("Saved. {}.", head.visibility_text())),
            Some("role") => Some("Saved the roles.".to_owned()),
            _ => None,
        };
        Ok(SettingsPage {
            shell: Shell::of(registry, caller).await?,
            owns_namespace: registry.may_configure(caller, &access.namespace).await?,
            head,
            access,
            problem: None,
            saved,
            confirmation: None,
            delete_problem: None,
        })
    }

    /// The name of the namespace.
    fn namespace_name(&self) -> &str {
        self.head.parts.first().map(|(name, _)| name.as_str()).unwrap_or_default()
    }
}
