//! The pages below `/-/admin` for operators. This one: the state of the server, and its workers.

pub(crate) mod accounts;
pub(crate) mod audit;
pub(crate) mod connections;
pub(crate) mod deletions;
pub(crate) mod quotas;

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use uuid::Uuid;

use crate::Registry;
use crate::app::{Job, Status, WorkerStatus};
use crate::auth::{Action, Caller, Target};
use crate::http::pages::{Form, Visitor, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Query};
use crate::hub::confirm::{Confirmation, is_confirmed};
use crate::hub::format::{bytes, counted, grouped, minute, minute_of};
use crate::hub::page::{Shell, render};

const PAGE: &str = "/-/admin";
/// How many workers are on a page.
const WORKERS: usize = 50;

/// The pages for operators.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AdminTab {
    Server,
    Accounts,
    Quotas,
    Deletions,
    Audit,
    Connections,
}

#[derive(Template)]
#[template(path = "admin.html")]
struct AdminPage {
    shell: Shell,
    tab: AdminTab,
    /// With the workers of this page only.
    status: Status,
    worker_count: usize,
    /// The last worker of the page, if another page follows.
    next: Option<Uuid>,
    is_first: bool,
    /// Of the server, database and storage: a name and a value.
    facts: Vec<(&'static str, String)>,
    may_change: bool,
    confirmation: Option<Confirmation>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    Visitor(caller): Visitor,
    query: Query,
) -> Result<Response, Failure> {
    let after: Option<Uuid> = query.get("after").and_then(|id| id.parse().ok());
    Ok(render(StatusCode::OK, &AdminPage::new(&registry, &caller, after).await?))
}

/// Drains a worker, resumes it, or removes it once the form confirms it. The caller is checked before the form is read.
pub(crate) async fn change_worker(
    State(server): State<ServerState>,
    caller: Caller,
    request: Request,
) -> Result<Response, Failure> {
    let registry = &server.registry;
    registry.authorize(&caller, Action::Administer, Target::Workers).await?;
    let form = Form::from_request(request, &server).await?;
    let id: Uuid = form.get("id").parse().map_err(|_| Failure::Id { id: form.get("id").to_owned() })?;
    if form.get("change") == "remove" && !is_confirmed(&form) {
        let page = AdminPage::new(registry, &caller, None).await?;
        let confirmation = Some(page.question(&form, id));
        return Ok(render(StatusCode::OK, &AdminPage { confirmation, ..page }));
    }
    let is_known = match form.get("change") {
        "drain" => registry.worker_drain(&caller, id, true).await?,
        "resume" => registry.worker_drain(&caller, id, false).await?,
        "remove" => registry.worker_remove(&caller, id).await?,
        _ => return Err(Failure::Unsupported("change must be `drain`, `resume` or `remove`")),
    };
    if is_known { Ok(redirect(PAGE)) } else { Err(Failure::WorkerUnknown) }
}

fn facts(status: &Status) -> Vec<(&'static str, String)> {
    let Status { server, database, storage, waiting, .. } = status;
    let mut all = vec![
        ("Version", server.version.to_owned()),
        ("Started", minute_of(&server.started_at)),
        ("Database", format!("{}, {} of {} connections", database.kind, database.connections, database.max)),
        ("Storage", format!("{}, {}", storage.kind, storage.location)),
    ];
    if server.read_only {
        all.push(("Mode", "read-only".to_owned()));
    }
    if let Some(content) = &storage.content {
        let (blobs, stored) = (grouped(content.blobs), bytes(content.stored_bytes));
        all.push(("Stored", format!("{stored} in {blobs} blobs")));
        let saved = content.logical_bytes.saturating_sub(content.stored_bytes);
        all.push(("Saved by sharing", bytes(saved)));
        all.push(("Measured", minute(content.measured_at)));
    }
    for disk in &storage.disks {
        let name = if disk.folder == "data" { "Free for data" } else { "Free for blobs" };
        all.push((name, format!("{} of {}", bytes(disk.free_bytes), bytes(disk.size_bytes))));
    }
    if let Some(waiting) = waiting {
        let blobs = counted(waiting.blobs + waiting.deletions, "blob", "blobs");
        all.push(("Waits for a collection", format!("{} in {blobs}", bytes(waiting.size_bytes))));
    }
    all
}

impl AdminPage {
    /// The page with the workers after `after`.
    async fn new(registry: &Registry, caller: &Caller, after: Option<Uuid>) -> Result<AdminPage, Failure> {
        let mut status = registry.status(caller).await?;
        let worker_count = status.workers.len();
        status.workers.retain(|worker| after.is_none_or(|after| worker.id > after));
        status.workers.sort_unstable_by_key(|worker| worker.id);
        let has_more = status.workers.len() > WORKERS;
        status.workers.truncate(WORKERS);
        Ok(AdminPage {
            shell: Shell::of(registry, caller).await?,
            tab: AdminTab::Server,
            facts: facts(&status),
            worker_count,
            next: status.workers.last().filter(|_| has_more).map(|worker| worker.id),
            is_first: after.is_none(),
            may_change: registry.may_administer(caller).await?,
            status,
            confirmation: None,
        })
    }

    /// What to ask before a worker is removed.
    fn question(&self, form: &Form, id: Uuid) -> Confirmation {
        // The worker may be on another page of the list.
        let worker = self.status.workers.iter().find(|worker| worker.id == id);
        let name = worker.map_or_else(|| id.to_string(), |worker| worker.address.clone());
        let title = format!("Remove the worker {name}?");
        let text = "Requests are not routed to it any more. If it still runs, it registers again.";
        let urls = ("/-/admin/workers", "/-/admin#workers");
        Confirmation::new(form, urls, title, text, "Remove the worker")
    }

    fn memory(&self, worker: &WorkerStatus) -> String {
        format!("{} of {}", bytes(worker.free_bytes), bytes(worker.memory_bytes))
    }

    /// The jobs that are not finished, then those that failed.
    fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.status.jobs.unfinished.iter().chain(&self.status.jobs.failed)
    }

    fn has_jobs(&self) -> bool {
        self.jobs().next().is_some()
    }
}
