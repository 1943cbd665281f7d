//! `/{name}/-/quantise`: a form that quantises a stored model in a job, and the progress of that job.

use std::time::Duration;

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_model::convert::FileType;
use lode_model::modelfile::Edits;
use lode_model::quant::Kind;
use lode_model::reference::{Name, Reference, Repository};
use serde_json::Value;
use uuid::Uuid;

use super::overview::page_of;
use super::{Head, ManifestPage, Tab, page_url, show_queried};
use crate::Registry;
use crate::app::{Job, ModelSource, NewModel};
use crate::auth::Caller;
use crate::http::pages::{Form, redirect};
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query};
use crate::hub::format::bytes;
use crate::hub::page::{Shell, browse, render};

#[derive(Template)]
#[template(path = "quantise.html")]
struct QuantisePage {
    shell: Shell,
    head: Head,
    /// The model, such as `team/mini:latest`.
    from: String,
    /// What was entered in the form.
    to: String,
    number_type: String,
    problem: Option<String>,
    job: Option<JobView>,
}

/// The state of a job.
struct JobView {
    /// The name of the new model.
    to: String,
    state: String,
    /// What it does, and how much of it is done.
    progress: Option<String>,
    problem: Option<String>,
    is_finished: bool,
    /// The address of the new model's page, once there is one.
    made: Option<String>,
    /// The address of this page.
    url: String,
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let shown = show_queried(&registry, &caller, &name, &query).await?;
        let mut page = QuantisePage::new(&registry, &caller, &shown).await?;
        if let Some(id) = query.get("job") {
            let id: Uuid = id.parse().map_err(|_| Failure::PageUnknown)?;
            let job = registry.job_show(&caller, id, Duration::ZERO).await?;
            let url = page_url(
                &shown.repository,
                "quantise",
                &[("job", query.get("job")), ("tag", Some(&shown.reference.to_string()))],
            );
            page.job = Some(job.and_then(|job| JobView::of(job, url)).ok_or(Failure::PageUnknown)?);
        }
        Ok(render(StatusCode::OK, &page))
    };
    browse(&registry, &caller, page).await
}

/// Adds the job, with the rights of the caller on the new model.
pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        // Before the form is read.
        let shown = show_queried(registry, &caller, &name, &query).await?;
        let mut page = QuantisePage::new(registry, &caller, &shown).await?;
        let form = Form::from_request(request, &server).await?;
        let failure = match start(registry, &caller, (&shown, &page.from), &form).await {
            Ok(job) => {
                let query = [("job", Some(&job.id[..])), ("tag", Some(&page.head.reference[..]))];
                return Ok(redirect(&page_url(&shown.repository, "quantise", &query)));
            }
            // Also a refusal: another name may be allowed.
            Err(failure) if failure.status().is_client_error() => failure,
            Err(failure) => return Err(failure),
        };
        page.to = form.get("to").to_owned();
        page.number_type = form.get("type").to_owned();
        page.problem = Some(failure.message());
        // The credentials of the page itself are not at fault, if there are any.
        let status = match failure.status() {
            StatusCode::UNAUTHORIZED => StatusCode::FORBIDDEN,
            status => status,
        };
        Ok(render(status, &page))
    };
    browse(registry, &caller, page).await
}

async fn start(
    registry: &Registry,
    caller: &Caller,
    (shown, from): (&ManifestPage, &str),
    form: &Form,
) -> Result<Job, Failure> {
    let conversion = form.get("type").parse().map_err(Failure::Conversion)?;
    let text = form.get("to").trim();
    let expected = "is not the name of a model here, such as team/model:q4_K_M";
    // Not `latest`, which is often the model itself.
    let has_tag = text.rsplit('/').next().is_some_and(|last| last.contains([':', '@']));
    let full = if has_tag { text.to_owned() } else { format!("{text}:{}", form.get("type")) };
    let to: Name = full.parse().map_err(|_| Failure::field(text, expected))?;
    if to.host.is_some() || !matches!(to.reference, Reference::Tag(_)) {
        return Err(Failure::field(text, expected));
    }
    if to.repository == shown.repository && to.reference == shown.reference {
        return Err(Failure::field(text, "is the model itself: the new model needs another name"));
    }
    let new = NewModel {
        repository: to.repository,
        reference: to.reference,
        from: ModelSource::Model {
            repository: shown.repository.clone(),
            reference: shown.reference.clone(),
            name: from.to_owned(),
        },
        extra: Vec::new(),
        edits: Edits::default(),
        conversion: Some(conversion),
    };
    Ok(registry.model_create_start(caller, new).await?)
}

/// The name of a model, as people write it.
fn name_of(repository: &Repository, reference: &Reference) -> String {
    match reference {
        Reference::Tag(tag) => format!("{repository}:{tag}"),
        Reference::Digest(digest) => format!("{repository}@{digest}"),
    }
}

impl QuantisePage {
    /// The page of a model. Other manifests have none.
    async fn new(
        registry: &Registry,
        caller: &Caller,
        shown: &ManifestPage,
    ) -> Result<QuantisePage, Failure> {
        if shown.model.summary.is_none() {
            return Err(Failure::PageUnknown);
        }
        let number_type = FileType::Q4_K_M.as_str();
        Ok(QuantisePage {
            shell: Shell::of(registry, caller).await?,
            head: shown.head(Tab::None),
            from: name_of(&shown.repository, &shown.reference),
            to: shown.repository.to_string(),
            number_type: number_type.to_owned(),
            problem: None,
            job: None,
        })
    }

    fn file_types(&self) -> Vec<&'static str> {
        FileType::ALL.map(FileType::as_str).to_vec()
    }

    fn blob_types(&self) -> Vec<&'static str> {
        Kind::BLOB.map(Kind::as_str).to_vec()
    }

    fn is_chosen(&self, number_type: &str) -> bool {
        self.number_type == number_type
    }
}

impl JobView {
    /// `None`: the job creates no model.
    fn of(job: Job, url: String) -> Option<JobView> {
        let parameters: Value = serde_json::from_str(job.parameters.get()).ok()?;
        let text = |name: &str| parameters[name].as_str();
        let reference: Reference = text("reference")?.parse().ok()?;
        let to = name_of(&text("repository")?.parse().ok()?, &reference);
        let progress = job.progress.as_ref().and_then(|progress| serde_json::from_str(progress.get()).ok());
        Some(JobView {
            progress: progress.filter(|_| job.finished_at.is_none()).map(|progress| progress_text(&progress)),
            is_finished: job.finished_at.is_some(),
            made: (job.state == "succeeded").then(|| page_of(&to)),
            problem: job.problem,
            state: job.state,
            to,
            url,
        })
    }
}

/// What a job does, and how much of it is done.
fn progress_text(progress: &Value) -> String {
    let phase = progress["phase"].as_str().unwrap_or_default();
    match (progress["done"].as_u64(), progress["total"].as_u64(), progress["unit"].as_str()) {
        (Some(done), Some(total), Some("bytes")) => format!("{phase}: {} of {}", bytes(done), bytes(total)),
        _ => phase.to_owned(),
    }
}
