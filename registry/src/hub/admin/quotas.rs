//! `/-/admin/quotas`: how much space namespaces may use, and do use, for operators. Administrators change it.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_client::ByteSize;
use lode_model::reference::Repository;

use super::AdminTab;
use crate::Registry;
use crate::app::Quota;
use crate::auth::{Action, Caller, Target};
use crate::http::pages::{Form, Visitor, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Query, check_namespace};
use crate::hub::confirm::{Confirmation, is_confirmed};
use crate::hub::format::query as escape;
use crate::hub::page::{Shell, framed, is_about_form, render};

const URL: &str = "/-/admin/quotas";
const PAGE: u32 = 50;

#[derive(Template)]
#[template(path = "admin_quotas.html")]
struct QuotasPage {
    shell: Shell,
    tab: AdminTab,
    quotas: Vec<Quota>,
    /// With which the names of the namespaces begin.
    name: String,
    /// The address of the next page.
    next: Option<String>,
    is_first: bool,
    may_change: bool,
    /// What was entered in the form, or the quota that it changes.
    namespace: String,
    limit: String,
    problem: Option<String>,
    confirmation: Option<Confirmation>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    Visitor(caller): Visitor,
    query: Query,
) -> Response {
    let page = async {
        let mut page = QuotasPage::new(&registry, &caller, &query).await?;
        if let Some(Ok(namespace)) = query.get("namespace").map(str::parse::<Repository>) {
            let limit = registry.quota_find(&caller, &namespace).await?.limit_bytes.map(ByteSize);
            page.limit = limit.map(|limit| limit.to_string()).unwrap_or_default();
            page.namespace = namespace.to_string();
        }
        Ok(render(StatusCode::OK, &page))
    };
    framed(&registry, &caller, page).await
}

/// Sets a quota, or removes it once the form confirms it. The caller is checked before the form is read.
pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    query: Query,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        registry.authorize(&caller, Action::Administer, Target::Server).await?;
        let form = Form::from_request(request, &server).await?;
        if form.get("change") == "remove" && !is_confirmed(&form) {
            let confirmation = Some(question(&form));
            let page = QuotasPage { confirmation, ..QuotasPage::new(registry, &caller, &query).await? };
            return Ok(render(StatusCode::OK, &page));
        }
        let failure = match change(registry, &caller, &form).await {
            Ok(()) => return Ok(redirect(URL)),
            Err(failure) if !is_about_form(&failure) => return Err(failure),
            Err(failure) => failure,
        };
        let page = QuotasPage {
            namespace: form.get("namespace").to_owned(),
            limit: form.get("limit").to_owned(),
            problem: Some(failure.message()),
            ..QuotasPage::new(registry, &caller, &query).await?
        };
        Ok(render(failure.status(), &page))
    };
    framed(registry, &caller, page).await
}

/// What to ask before a quota is removed.
fn question(form: &Form) -> Confirmation {
    let title = format!("Remove the quota of {}?", form.get("namespace"));
    let text = "The namespace may then use any amount of space.";
    Confirmation::new(form, (URL, URL), title, text, "Remove the quota")
}

async fn change(registry: &Registry, caller: &Caller, form: &Form) -> Result<(), Failure> {
    let namespace: Repository = form.get("namespace").trim().parse()?;
    check_namespace(&namespace)?;
    let limit = match form.get("change") {
        "set" => {
            let text = form.get("limit").trim();
            let ByteSize(limit) =
                text.parse().map_err(|_| Failure::field(text, "is not a size, such as 500GiB"))?;
            Some(limit)
        }
        "remove" => None,
        _ => return Err(Failure::Unsupported("change must be `set` or `remove`")),
    };
    Ok(registry.quota_put(caller, &namespace, limit).await?)
}

impl QuotasPage {
    async fn new(registry: &Registry, caller: &Caller, query: &Query) -> Result<QuotasPage, Failure> {
        let name = query.get("name").unwrap_or_default().trim().to_lowercase();
        let after = query.get("after");
        let found = registry.quota_page(caller, &name, after.unwrap_or_default(), PAGE).await?;
        let last = found.items.last().filter(|_| found.more);
        let next = last.map(|last| format!("{URL}?name={}&after={}", escape(&name), escape(&last.namespace)));
        Ok(QuotasPage {
            shell: Shell::of(registry, caller).await?,
            tab: AdminTab::Quotas,
            quotas: found.items,
            name,
            next,
            is_first: after.is_none(),
            may_change: registry.may_administer(caller).await?,
            namespace: String::new(),
            limit: String::new(),
            problem: None,
            confirmation: None,
        })
    }

    /// The limit as it was set.
    fn limit_of(&self, quota: &Quota) -> String {
        quota.limit_bytes.map(|limit| ByteSize(limit).to_string()).unwrap_or_default()
    }

    /// How much of its limit a namespace uses.
    fn percent(&self, quota: &Quota) -> String {
        match quota.limit_bytes {
            Some(limit) if limit > 0 => format!("{:.0} %", quota.used_bytes as f64 * 100.0 / limit as f64),
            _ => String::new(),
        }
    }
}
