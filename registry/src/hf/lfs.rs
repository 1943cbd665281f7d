//! Large files: git's batch API, and the URLs that it hands out. Clients send the bytes without credentials, so the URLs
//! carry them.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use lode_client::read_body;
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::Registry;
use crate::app::{self, CommitError, LfsObject, LfsPlan};
use crate::auth::{Action, Caller};
use crate::http::extract::{RequestBody, parse};
use crate::http::links::header_value;
use crate::http::{Failure, GitName, Json, JsonBody, Links, Path, Query};

const LFS_JSON: HeaderValue = HeaderValue::from_static("application/vnd.git-lfs+json");
/// Clients send 256 at most.
const MAX_OBJECTS: usize = 1000;
/// The largest list of parts.
const MAX_PARTS_BYTES: usize = 1 << 20;
/// The branch of requests that name none.
const MAIN: &str = "main";

#[derive(Deserialize)]
pub(crate) struct Batch {
    operation: String,
    #[serde(default)]
    transfers: Vec<String>,
    objects: Vec<BatchObject>,
    #[serde(default)]
    hash_algo: Option<String>,
    #[serde(default, rename = "ref")]
    branch: Option<BatchBranch>,
}

#[derive(Deserialize)]
struct BatchObject {
    oid: String,
    size: u64,
}

#[derive(Deserialize)]
struct BatchBranch {
    name: String,
}

impl RequestBody for Batch {
    const ACTION: Action = Action::Push;
}

pub(crate) async fn batch(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    Path(GitName(repository)): Path<GitName>,
    body: JsonBody<Batch>,
) -> Result<Response, Failure> {
    let branch = body.branch.as_ref().map_or(MAIN, |branch| branch.name.as_str());
    let files = registry.preupload_files(&caller, &repository, branch).await?;
    if body.operation != "upload" {
        return Err(Failure::field("operation", "is not `upload`; download files from `resolve`"));
    }
    if body.hash_algo.as_deref().is_some_and(|name| name != "sha256") {
        return Err(Failure::field("hash_algo", "is not `sha256`"));
    }
    if body.objects.len() > MAX_OBJECTS {
        return Err(Failure::field("objects", format!("has more than {MAX_OBJECTS} objects")));
    }
    let with_parts = body.transfers.iter().any(|name| name == "multipart");
    let links = Links::absolute(&parts, registry.config());
    let (mut objects, mut is_multipart) = (Vec::with_capacity(body.objects.len()), false);
    for BatchObject { oid, size } in &body.objects {
        let planned = match digest(oid) {
            Ok(digest) => {
                let object = LfsObject { oid: digest, size: *size };
                let plan = registry.lfs_plan(&caller, &repository, &files, &object, with_parts).await;
                plan.map(|plan| (object, plan))
            }
            Err(reason) => Err(CommitError::Object { reason }),
        };
        let mut answer = json!({ "oid": oid, "size": size, "authenticated": true });
        match planned {
            Ok((_, LfsPlan::Stored)) => {}
            Ok((object, plan)) => {
                is_multipart |= matches!(plan, LfsPlan::Parts { .. });
                let link = registry.lfs_link(&caller, &repository, &object.oid).await?;
                let upload = upload_action(&links, &object, &plan, link.expose());
                let verify = links.hub(&format!("{repository}.git/info/lfs/verify"));
                answer["actions"] = json!({ "upload": upload, "verify": { "href": verify, "header": {} } });
            }
            Err(CommitError::Object { reason }) => {
                answer["error"] = json!({ "code": 422, "message": reason });
            }
            Err(error) => return Err(error.into()),
        }
        objects.push(answer);
    }
    // Clients with Xet offer it here, too, and follow this choice.
    let transfer = if is_multipart { "multipart" } else { "basic" };
    let answer = json!({ "transfer": transfer, "objects": objects, "hash_algo": "sha256" });
    let mut response = Json(answer).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, LFS_JSON);
    Ok(response)
}

/// Where and how the client sends an object.
fn upload_action(links: &Links, object: &LfsObject, plan: &LfsPlan, link: &str) -> Value {
    let LfsObject { oid, size } = object;
    let base = format!("api/lfs/{}", oid.hex());
    match plan {
        LfsPlan::Parts { upload, part_bytes, parts } => {
            let end = links.hub(&format!("{base}/{upload}?size={size}&link={link}"));
            let mut header = Map::from_iter([("chunk_size".to_owned(), part_bytes.to_string().into())]);
            for number in 1..=*parts {
                let path = format!("{base}/{upload}/{number}?size={size}&part={part_bytes}&link={link}");
                header.insert(number.to_string(), links.hub(&path).into());
            }
            json!({ "href": end, "header": header })
        }
        LfsPlan::Stored | LfsPlan::Whole => {
            json!({ "href": links.hub(&format!("{base}?size={size}&link={link}")), "header": {} })
        }
    }
}

/// The digest of an object's id.
fn digest(oid: &str) -> Result<Digest, String> {
    format!("sha256:{oid}")
        .parse()
        .map_err(|_| "the oid is no sha256: expected 64 hexadecimal digits".to_owned())
}

/// What the URL of an upload says.
struct OpenedLink {
    caller: Caller,
    repository: Repository,
    object: LfsObject,
}

async fn open(registry: &Registry, caller: &Caller, oid: &str, query: &Query) -> Result<OpenedLink, Failure> {
    let oid = digest(oid).map_err(|_| Failure::Link)?;
    let link = query.get("link").ok_or(Failure::Link)?;
    let size = query.number("size")?.ok_or(Failure::Link)?;
    let (identity, repository) = registry.blob_link_open(link, &oid).await?.ok_or(Failure::Link)?;
    let caller = caller.with_identity(identity);
    Ok(OpenedLink { caller, repository, object: LfsObject { oid, size } })
}

/// `PUT`: a whole object.
pub(crate) async fn put(
    State(registry): State<Registry>,
    caller: Caller,
    Path(oid): Path<String>,
    query: Query,
    body: Body,
) -> Result<Response, Failure> {
    let OpenedLink { caller, repository, object } = open(&registry, &caller, &oid, &query).await?;
    let stored = registry.lfs_put(&caller, &repository, &object, stream(body)).await?;
    Ok(etag(stored.digest.hex()))
}

/// `PUT`: a part of an object.
pub(crate) async fn put_part(
    State(registry): State<Registry>,
    caller: Caller,
    Path((oid, upload, number)): Path<(String, Uuid, String)>,
    query: Query,
    body: Body,
) -> Result<Response, Failure> {
    let OpenedLink { caller, repository, object } = open(&registry, &caller, &oid, &query).await?;
    let number: u64 = number.parse().ok().filter(|number| *number > 0).ok_or(Failure::Link)?;
    let part_bytes = query.number("part")?.filter(|bytes| *bytes > 0).ok_or(Failure::Link)?;
    let first = (number - 1).saturating_mul(part_bytes);
    if first >= object.size {
        return Err(Failure::Link);
    }
    let length = part_bytes.min(object.size - first);
    registry.lfs_part(&caller, &repository, upload, (first, length), stream(body)).await?;
    Ok(etag(&format!("{upload}-{number}")))
}

#[derive(Deserialize)]
struct Completion {
    oid: String,
    parts: Vec<CompletedPart>,
}

#[derive(Deserialize)]
struct CompletedPart {
    #[serde(rename = "partNumber")]
    number: u64,
}

/// `POST`: all parts were sent.
pub(crate) async fn finish(
    State(registry): State<Registry>,
    caller: Caller,
    Path((oid, upload)): Path<(String, Uuid)>,
    query: Query,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let OpenedLink { caller, repository, object } = open(&registry, &caller, &oid, &query).await?;
    let mut charge = registry.body_budget().charge();
    let completion: Completion = parse(&read_body(body, MAX_PARTS_BYTES, &mut charge).await?)?;
    if completion.oid != object.oid.hex() {
        return Err(Failure::field("oid", "is not the object of this upload"));
    }
    if completion.parts.iter().enumerate().any(|(at, part)| part.number != at as u64 + 1) {
        return Err(Failure::field("parts", "expected each part once, in their order"));
    }
    registry.lfs_finish(&caller, &repository, upload, &object).await?;
    Ok(Json(json!({})))
}

#[derive(Deserialize)]
pub(crate) struct Verified {
    oid: String,
    size: u64,
}

impl RequestBody for Verified {
    const ACTION: Action = Action::Push;
}

pub(crate) async fn verify(
    State(registry): State<Registry>,
    caller: Caller,
    Path(GitName(repository)): Path<GitName>,
    body: JsonBody<Verified>,
) -> Result<Json<Value>, Failure> {
    registry.commit_check(&caller, &repository, MAIN).await?;
    let oid = digest(&body.oid).map_err(|reason| Failure::field("oid", reason))?;
    registry.lfs_verify(&caller, &repository, &LfsObject { oid, size: body.size }).await?;
    Ok(Json(json!({})))
}

fn stream(body: Body) -> app::Body {
    Box::pin(body.into_data_stream().map_err(Into::into))
}

/// Clients require one of each part.
fn etag(text: &str) -> Response {
    (StatusCode::OK, [(header::ETAG, header_value(&format!("\"{text}\"")))]).into_response()
}
