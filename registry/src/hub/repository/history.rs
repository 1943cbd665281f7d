//! `/{name}/-/history`: who moved or deleted which tag, with a way back for those who may push.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_model::reference::{Repository, Tag};

use super::{Head, Tab};
use crate::app::TagMove;
use crate::auth::{Action, Caller};
use crate::http::pages::{Form, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query};
use crate::hub::page::{Shell, browse, render};
use crate::{Error, Registry};

#[derive(Template)]
#[template(path = "history.html")]
struct HistoryPage {
    shell: Shell,
    head: Head,
    /// Only the moves of this tag are listed.
    tag: Option<Tag>,
    moves: Vec<TagMove>,
    next: Option<i64>,
    is_first: bool,
    can_push: bool,
    problem: Option<String>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let repository: Repository = name.parse()?;
        let tag = query.get("tag").map(str::parse).transpose()?;
        let before = query.number("before")?.map(|position| i64::try_from(position).unwrap_or(i64::MAX));
        let page = HistoryPage::new(&registry, &caller, &repository, tag, before).await?;
        Ok(render(StatusCode::OK, &page))
    };
    browse(&registry, &caller, page).await
}

/// Moves a tag back: by the move at `position`.
pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    Path(name): Path<String>,
    request: Request,
) -> Result<Response, Failure> {
    let registry = &server.registry;
    let repository: Repository = name.parse()?;
    // Before the form is read.
    registry.check_push_manifest(&caller, &repository).await?;
    let form = Form::from_request(request, &server).await?;
    let tag: Tag = form.get("tag").parse()?;
    let position = form.get("position").parse().map_err(|_| Failure::Query {
        name: "position",
        value: form.get("position").to_owned(),
        expected: "the position of a move",
    })?;
    match registry.tag_move_back(&caller, &repository, &tag, Some(position)).await {
        Ok(_) => Ok(redirect(&format!("/{repository}/-/history"))),
        Err(
            error @ (Error::TagMoveUnknown { .. }
            | Error::TagWasNew { .. }
            | Error::TagTargetDeleted { .. }
            | Error::TagProtected { .. }),
        ) => {
            let failure = Failure::Registry(error);
            let page = HistoryPage::new(registry, &caller, &repository, None, None).await?;
            let page = HistoryPage { problem: Some(failure.message()), ..page };
            Ok(render(failure.status(), &page))
        }
        Err(error) => Err(error.into()),
    }
}

impl HistoryPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        repository: &Repository,
        tag: Option<Tag>,
        before: Option<i64>,
    ) -> Result<HistoryPage, Failure> {
        let page = registry.tag_history(caller, repository, tag.as_ref(), None, before).await?;
        let chosen = tag.as_ref().map(Tag::as_str);
        Ok(HistoryPage {
            shell: Shell::of(registry, caller).await?,
            head: Head::of_repository(registry, caller, repository, (chosen, Tab::Tags)).await?,
            tag,
            next: page.items.last().filter(|_| page.more).map(|last| last.position),
            moves: page.items,
            is_first: before.is_none(),
            can_push: registry.may(caller, Action::Push, repository).await?,
            problem: None,
        })
    }
}
