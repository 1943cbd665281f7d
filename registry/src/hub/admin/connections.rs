//! `/-/admin/connections`: the registries that this server mirrors, and the webhooks that it calls, for operators.

use std::time::Duration;

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use uuid::Uuid;

use super::AdminTab;
use crate::Registry;
use crate::app::{Connections, MirrorSummary, WebhookDelivery, WebhookSummary};
use crate::auth::{Action, Caller, Target};
use crate::http::pages::{Form, Visitor, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Query};
use crate::hub::page::{Shell, framed, render};

const URL: &str = "/-/admin/connections";
const PAGE: u32 = 50;

#[derive(Template)]
#[template(path = "admin_connections.html")]
struct ConnectionsPage {
    shell: Shell,
    tab: AdminTab,
    mirrors: Vec<MirrorSummary>,
    webhooks: Vec<WebhookSummary>,
    /// Events that a webhook has not accepted.
    deliveries: Vec<WebhookDelivery>,
    /// The address of the next page of them.
    next: Option<String>,
    is_first: bool,
    may_change: bool,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    Visitor(caller): Visitor,
    query: Query,
) -> Response {
    let page = async {
        let after = query.get("last");
        let found = registry.webhook_list(&caller, after, PAGE).await?;
        let last = found.items.last().filter(|_| found.more);
        let next = last.map(|last| format!("{URL}?last={}#deliveries", last.id));
        let Connections { mirrors, webhooks } = registry.connections(&caller).await?;
        let page = ConnectionsPage {
            shell: Shell::of(&registry, &caller).await?,
            tab: AdminTab::Connections,
            mirrors,
            webhooks,
            deliveries: found.items,
            next,
            is_first: after.is_none(),
            may_change: registry.may_administer(&caller).await?,
        };
        Ok(render(StatusCode::OK, &page))
    };
    framed(&registry, &caller, page).await
}

/// Delivers an event again. The caller is checked before the form is read.
pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    let registry = &server.registry;
    registry.authorize(&caller, Action::Administer, Target::Server).await?;
    let form = Form::from_request(request, &server).await?;
    let id: Uuid = form.get("id").parse().map_err(|_| Failure::Id { id: form.get("id").to_owned() })?;
    match registry.webhook_retry(&caller, id).await? {
        true => Ok(redirect(&format!("{URL}#deliveries"))),
        false => Err(Failure::Id { id: id.to_string() }),
    }
}

impl ConnectionsPage {
    /// How long a tag is served before it is compared with the upstream.
    fn check_after(&self, mirror: &MirrorSummary) -> String {
        lode_client::format_duration(Duration::from_secs(mirror.check_after_seconds))
    }

    /// The kinds of events that a webhook receives.
    fn events(&self, webhook: &WebhookSummary) -> String {
        match webhook.events.is_empty() {
            true => "all but audit".to_owned(),
            false => webhook.events.join(", "),
        }
    }

    fn repositories(&self, webhook: &WebhookSummary) -> String {
        match webhook.repositories.is_empty() {
            true => "all".to_owned(),
            false => webhook.repositories.join(", "),
        }
    }
}
