//! `/-/admin/deletions`: what a garbage collection would delete, and what was deleted and can be restored, for operators.

use std::time::Duration;

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_client::format_duration;
use lode_model::reference::Repository;
use serde_json::Value;
use uuid::Uuid;

use super::AdminTab;
use crate::app::{FindingKind, Job, JobKind, Removal};
use crate::auth::{Action, Caller, Target};
use crate::http::pages::{Form, Visitor, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Query};
use crate::hub::confirm::{Confirmation, is_confirmed};
use crate::hub::format::{bytes, counted, grouped, minute};
use crate::hub::page::{Shell, framed, is_about_form, render};
use crate::time::now_ms;
use crate::{GcWaiting, Registry};

const URL: &str = "/-/admin/deletions";
const PAGE: u32 = 50;

#[derive(Template)]
#[template(path = "admin_deletions.html")]
struct DeletionsPage {
    shell: Shell,
    tab: AdminTab,
    /// What waits for its deletion: a name and a value.
    facts: Vec<(&'static str, String)>,
    collection: Option<Collection>,
    /// What was removed, newest first.
    removed: Vec<RemovedRow>,
    /// The address of the next page.
    next: Option<String>,
    is_first: bool,
    may_change: bool,
    problem: Option<String>,
    confirmation: Option<Confirmation>,
}

/// A collection that this page started.
struct Collection {
    is_dry_run: bool,
    is_finished: bool,
    state: String,
    problem: Option<String>,
    summary: Option<String>,
    /// Of a dry run.
    removals: Vec<PlannedRow>,
    /// There are more than these.
    has_more: bool,
    url: String,
}

/// What a collection would remove.
struct PlannedRow {
    kind: String,
    content: String,
    size: String,
    reason: String,
}

struct RemovedRow {
    planned: PlannedRow,
    removed_at: String,
    actor: String,
    /// Until when it can be restored, or when it was.
    state: String,
    /// The repository and the reference with which it is restored.
    restore: Option<(String, String)>,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    Visitor(caller): Visitor,
    query: Query,
) -> Response {
    let page = async { Ok(render(StatusCode::OK, &DeletionsPage::new(&registry, &caller, &query).await?)) };
    framed(&registry, &caller, page).await
}

/// Starts a collection, or restores what was removed. The caller is checked before the form is read.
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
        if form.get("change") == "collect" && !is_confirmed(&form) {
            let title = "Delete what is due?".to_owned();
            let text = "Content whose grace period has ended is deleted, as it is on schedule.";
            let confirmation = Some(Confirmation::new(&form, (URL, URL), title, text, "Collect"));
            let page = DeletionsPage { confirmation, ..DeletionsPage::new(registry, &caller, &query).await? };
            return Ok(render(StatusCode::OK, &page));
        }
        let failure = match change(registry, &caller, &form).await {
            Ok(url) => return Ok(redirect(&url)),
            // What is to be restored may be in use or gone meanwhile.
            Err(failure)
                if is_about_form(&failure)
                    || [StatusCode::CONFLICT, StatusCode::NOT_FOUND].contains(&failure.status()) =>
            {
                failure
            }
            Err(failure) => return Err(failure),
        };
        let problem = Some(failure.message());
        let page = DeletionsPage { problem, ..DeletionsPage::new(registry, &caller, &query).await? };
        Ok(render(failure.status(), &page))
    };
    framed(registry, &caller, page).await
}

/// Returns the address of the page that shows the outcome.
async fn change(registry: &Registry, caller: &Caller, form: &Form) -> Result<String, Failure> {
    let change = form.get("change");
    match change {
        "preview" | "collect" => {
            let job = registry.job_start(caller, JobKind::Gc { dry_run: change == "preview" }).await?;
            Ok(format!("{URL}?job={}#collection", job.id))
        }
        "restore" => {
            let repository: Repository = form.get("repository").parse()?;
            registry.gc_undo(caller, &repository, &form.get("reference").parse()?).await?;
            Ok(format!("{URL}#removed"))
        }
        _ => Err(Failure::Unsupported("change must be `preview`, `collect` or `restore`")),
    }
}

impl DeletionsPage {
    async fn new(registry: &Registry, caller: &Caller, query: &Query) -> Result<DeletionsPage, Failure> {
        let after = query.get("last");
        let waiting = registry.gc_waiting(caller).await?;
        let found = registry.removals(caller, None, after, Some(PAGE)).await?;
        let collection = match query.id("job")? {
            Some(id) => Collection::find(registry, caller, id).await?,
            None => None,
        };
        let may_change = registry.may_administer(caller).await?;
        Ok(DeletionsPage {
            shell: Shell::of(registry, caller).await?,
            tab: AdminTab::Deletions,
            facts: facts(&waiting),
            collection,
            removed: found.removals.into_iter().map(|removal| RemovedRow::of(removal, may_change)).collect(),
            next: found.next.map(|last| format!("{URL}?last={last}#removed")),
            is_first: after.is_none(),
            may_change,
            problem: None,
            confirmation: None,
        })
    }
}

fn facts(waiting: &GcWaiting) -> Vec<(&'static str, String)> {
    let GcWaiting { manifests, links, blobs, size_bytes, first_at, is_partial, .. } = waiting;
    let least = if *is_partial { "at least " } else { "" };
    let span = |seconds: u64| format_duration(Duration::from_secs(seconds));
    let mut all = vec![
        ("Manifests that wait", format!("{least}{}", grouped(manifests))),
        ("References that wait", format!("{least}{}", grouped(links))),
        ("Blobs that wait", format!("{least}{}, {}", grouped(blobs), bytes(size_bytes))),
    ];
    all.extend(first_at.map(|at| ("Due first", minute(at))));
    all.push(("Grace period", span(waiting.grace_seconds)));
    all.push(("Restorable for", span(waiting.undo_seconds)));
    all
}

impl Collection {
    /// `None` if there is no such job, or if it is of another kind.
    async fn find(registry: &Registry, caller: &Caller, id: Uuid) -> Result<Option<Collection>, Failure> {
        let job = registry.job_show(caller, id, Duration::ZERO).await?.filter(|job| job.kind == "gc");
        let Some(job) = job else { return Ok(None) };
        let found = registry.job_findings(caller, id, FindingKind::Removal, None, PAGE).await?;
        let (planned, has_more) = found.map_or((Vec::new(), false), |page| (page.items, page.more));
        let parameters: Value = serde_json::from_str(job.parameters.get()).unwrap_or_default();
        Ok(Some(Collection {
            is_dry_run: parameters["dry_run"] == true,
            is_finished: job.finished_at.is_some(),
            summary: summary(&job),
            removals: planned.iter().map(|(_, removal)| PlannedRow::of_finding(removal)).collect(),
            has_more,
            url: format!("{URL}?job={id}#collection"),
            state: job.state,
            problem: job.problem,
        }))
    }
}

/// What a finished collection has counted.
fn summary(job: &Job) -> Option<String> {
    let result: Value = serde_json::from_str(job.result.as_ref()?.get()).ok()?;
    let number = |name: &str| result[name].as_u64().unwrap_or_default();
    let parts = [
        counted(number("tags"), "tag", "tags"),
        counted(number("manifests"), "manifest", "manifests"),
        counted(number("links"), "reference", "references"),
        counted(number("blobs"), "blob", "blobs"),
    ];
    Some(format!("{} of {}", parts.join(", "), bytes(number("size_bytes"))))
}

impl PlannedRow {
    fn new(
        kind: &str,
        (repository, tag, digest): (Option<&str>, Option<&str>, &str),
        size: Option<u64>,
        (reason, rule): (&str, Option<u64>),
    ) -> PlannedRow {
        let digest: String = digest.chars().take("sha256:".len() + 12).collect();
        let content = match (repository, tag) {
            (Some(repository), Some(tag)) => format!("{repository}:{tag}"),
            (Some(repository), None) => format!("{repository}@{digest}"),
            (None, _) => digest,
        };
        let rule = rule.map_or_else(String::new, |rule| format!("retention rule {rule}: "));
        let reason = match reason {
            "deleted" => "deleted on request",
            "unreferenced" => "nothing references it",
            "keep_last" => "not among the newest tags",
            "untagged" => "without a tag for too long",
            other => other,
        };
        let reason = format!("{rule}{reason}");
        PlannedRow { kind: kind.to_owned(), content, size: size.map(bytes).unwrap_or_default(), reason }
    }

    fn of_finding(removal: &Value) -> PlannedRow {
        let text = |name: &str| removal[name].as_str();
        let content = (text("repository"), text("tag"), text("digest").unwrap_or_default());
        let reason = (text("reason").unwrap_or_default(), removal["rule"].as_u64());
        PlannedRow::new(text("kind").unwrap_or_default(), content, removal["size_bytes"].as_u64(), reason)
    }
}

impl RemovedRow {
    fn of(removal: Removal, may_change: bool) -> RemovedRow {
        let Removal { repository, tag, digest, restored_at, undo_until, .. } = &removal;
        let is_restorable = restored_at.is_none() && undo_until.is_some_and(|until| until > now_ms());
        let state = match (restored_at, undo_until) {
            (Some(at), _) => format!("restored {}", minute(at)),
            (None, Some(until)) if is_restorable => format!("restorable until {}", minute(until)),
            _ => "not restorable any more".to_owned(),
        };
        let reference = tag.as_ref().unwrap_or(digest);
        let restore = repository.as_ref().filter(|_| is_restorable && may_change && removal.kind != "blob");
        RemovedRow {
            restore: restore.map(|repository| (repository.clone(), reference.clone())),
            planned: PlannedRow::new(
                &removal.kind,
                (repository.as_deref(), tag.as_deref(), digest),
                removal.size_bytes,
                (&removal.reason, removal.rule.map(u64::from)),
            ),
            removed_at: removal.removed_at.map(minute).unwrap_or_default(),
            actor: removal.actor.unwrap_or_default(),
            state,
        }
    }
}
