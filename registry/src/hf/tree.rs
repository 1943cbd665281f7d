//! `/hf/api/models/{name}/tree/{revision}`: the files of a revision, and `paths-info`: some of them.

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::request::Parts;
use http::{HeaderMap, header};
use lode_client::read_body;
use lode_model::reference::Repository;
use serde::Deserialize;

use super::entries::{EntryPage, LastCommit, TreeEntry, below, named};
use crate::Registry;
use crate::app::Revision;
use crate::auth::Caller;
use crate::http::extract::parse;
use crate::http::{Failure, HfName, Json, Links, Path, Query, page};

/// The longest page. Clients follow the link to the next one, as they do on the Hub.
const MAX_PAGE: usize = 1000;
/// The most paths of a request for some files. Clients ask for 500 at most, unless their users name more.
const MAX_PATHS: usize = 1000;
/// The largest body with paths.
const MAX_PATHS_BYTES: usize = 1 << 20;

pub(crate) async fn root(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    Path((HfName(repository), revision)): Path<(HfName, String)>,
    query: Query,
) -> Result<Response, Failure> {
    list(&registry, &caller, &parts, (&repository, &revision, ""), &query).await
}

pub(crate) async fn folder(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    Path((HfName(repository), revision, path)): Path<(HfName, String, String)>,
    query: Query,
) -> Result<Response, Failure> {
    list(&registry, &caller, &parts, (&repository, &revision, path.trim_matches('/')), &query).await
}

async fn list(
    registry: &Registry,
    caller: &Caller,
    parts: &Parts,
    (repository, name, folder): (&Repository, &str, &str),
    query: &Query,
) -> Result<Response, Failure> {
    let revision = registry.revision(caller, repository, name).await?;
    let last_commit = last_commit(registry, caller, &revision, query.is_true("expand")).await?;
    let limit = query.limit("limit")?.map_or(MAX_PAGE, |limit| (limit as usize).clamp(1, MAX_PAGE));
    let from = usize::try_from(query.number("cursor")?.unwrap_or_default()).unwrap_or(usize::MAX);
    let listed = below(&revision, folder, query.is_true("recursive"), last_commit.as_ref(), (from, limit));
    let EntryPage { entries, has_more } = listed.ok_or_else(|| revision.entry_unknown(folder))?;
    let next = has_more.then(|| {
        let path = parts.uri.path();
        let (limit, until) = (limit.to_string(), (from + limit).to_string());
        let mut parameters = vec![("limit", limit.as_str()), ("cursor", until.as_str())];
        let given = ["recursive", "expand"].into_iter().filter_map(|name| Some((name, query.get(name)?)));
        parameters.extend(given);
        Links::absolute(parts, registry.config()).next(path, &parameters)
    });
    Ok(page(Json(entries), next))
}

/// The body is a form or JSON.
pub(crate) async fn paths_info(
    State(registry): State<Registry>,
    caller: Caller,
    Path((HfName(repository), name)): Path<(HfName, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Vec<TreeEntry>>, Failure> {
    let revision = registry.revision(&caller, &repository, &name).await?;
    let mut charge = registry.body_budget().charge();
    let bytes = read_body(body, MAX_PATHS_BYTES, &mut charge).await?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let asked = match kind.is_some_and(|kind| kind.starts_with("application/json")) {
        true => parse::<PathsRequest>(&bytes)?,
        false => PathsRequest::of_form(&bytes),
    };
    if asked.paths.len() > MAX_PATHS {
        return Err(Failure::field(
            "paths",
            format!("has more than {MAX_PATHS} paths; send several requests"),
        ));
    }
    let last_commit = last_commit(&registry, &caller, &revision, asked.expand).await?;
    Ok(Json(named(&revision, &asked.paths, last_commit.as_ref())))
}

#[derive(Default, Deserialize)]
struct PathsRequest {
    paths: Vec<String>,
    #[serde(default)]
    expand: bool,
}

impl PathsRequest {
    fn of_form(bytes: &[u8]) -> PathsRequest {
        let mut asked = PathsRequest::default();
        for (name, value) in url::form_urlencoded::parse(bytes) {
            match name.as_ref() {
                "paths" => asked.paths.push(value.into_owned()),
                "expand" => asked.expand = value.eq_ignore_ascii_case("true"),
                _ => {}
            }
        }
        asked
    }
}

async fn last_commit(
    registry: &Registry,
    caller: &Caller,
    revision: &Revision,
    is_wanted: bool,
) -> Result<Option<LastCommit>, Failure> {
    if !is_wanted {
        return Ok(None);
    }
    let commits = registry.commits(caller, revision).await?;
    let own = commits.iter().find(|commit| commit.digest == revision.digest);
    Ok(own.map(|commit| LastCommit::of(&revision.repository, commit)))
}
