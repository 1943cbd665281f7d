//! Large files: git's batch API, and the URLs that it hands out. Clients send the bytes without credentials, so the URLs
//! carry them.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;
use http::request::Parts;
use http::{HeaderValue, StatusCode, header};
use lode_client::{Secret, read_body};
use lode_model::digest::Digest;
use lode_model::reference::Repository;
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Registry;
use crate::app::{self, LfsObject, LfsPlan, MAIN, MAX_OBJECTS};
use crate::auth::{Action, Caller};
use crate::http::extract::{RequestBody, parse};
use crate::http::links::header_value;
use crate::http::{Failure, GitName, Json, JsonBody, Links, Path, Query};

const LFS_JSON: HeaderValue = HeaderValue::from_static("application/vnd.git-lfs+json");
/// The largest list of parts.
const MAX_PARTS_BYTES: usize = 1 << 20;

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
    let named = body.objects.iter().map(|BatchObject { oid, size }| {
        let oid = digest(oid)?;
        Ok(LfsObject { oid, size: *size })
    });
    let plans = registry.lfs_plan(&caller, &repository, &files, named.collect(), with_parts).await?;
    let is_multipart = plans.iter().flatten().any(|(_, plan)| matches!(plan, LfsPlan::Parts { .. }));
    let links = Links::absolute(&parts, registry.config());
    let verify = links.hub(&format!("{repository}.git/info/lfs/verify"));
    let mut objects = Vec::with_capacity(plans.len());
    for (BatchObject { oid, size }, plan) in body.objects.iter().zip(plans) {
        let mut response =
            ObjectResponse { oid, size: *size, authenticated: true, actions: None, error: None };
        match plan {
            Ok((_, LfsPlan::Stored)) => {}
            Ok((object, plan)) => {
                let link = registry.lfs_link(&caller, &repository, &object.oid).await?;
                let upload = UploadAction { links: &links, object, plan, link };
                let verify = VerifyAction { href: &verify, header: NoHeader {} };
                response.actions = Some(Actions { upload, verify });
            }
            Err(message) => response.error = Some(ObjectError { code: 422, message }),
        }
        objects.push(response);
    }
    // Clients with Xet offer it here, too, and follow this choice.
    let transfer = if is_multipart { "multipart" } else { "basic" };
    let mut response = Json(BatchResponse { transfer, objects, hash_algo: "sha256" }).into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, LFS_JSON);
    Ok(response)
}

#[derive(Serialize)]
struct BatchResponse<'a> {
    transfer: &'static str,
    objects: Vec<ObjectResponse<'a>>,
    hash_algo: &'static str,
}

#[derive(Serialize)]
struct ObjectResponse<'a> {
    oid: &'a str,
    size: u64,
    authenticated: bool,
    /// Absent for an object that is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    actions: Option<Actions<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ObjectError>,
}

#[derive(Serialize)]
struct ObjectError {
    code: u16,
    message: String,
}

#[derive(Serialize)]
struct Actions<'a> {
    upload: UploadAction<'a>,
    verify: VerifyAction<'a>,
}

#[derive(Serialize)]
struct VerifyAction<'a> {
    href: &'a str,
    header: NoHeader,
}

#[derive(Serialize)]
struct NoHeader {}

/// Where and how the client sends an object. The URLs of its parts are written one after another.
struct UploadAction<'a> {
    links: &'a Links,
    object: LfsObject,
    plan: LfsPlan,
    link: Secret,
}

impl UploadAction<'_> {
    /// A URL of the object, with what follows its id.
    fn url(&self, rest: &str) -> String {
        self.links.hub(&format!("api/lfs/{}{rest}&link={}", self.object.oid.hex(), self.link.expose()))
    }
}

impl Serialize for UploadAction<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let size = self.object.size;
        let mut action = serializer.serialize_map(Some(2))?;
        match &self.plan {
            LfsPlan::Parts { upload, .. } => {
                action.serialize_entry("href", &self.url(&format!("/{upload}?size={size}")))?;
                action.serialize_entry("header", &PartUrls(self))?;
            }
            LfsPlan::Stored | LfsPlan::Whole => {
                action.serialize_entry("href", &self.url(&format!("?size={size}")))?;
                action.serialize_entry("header", &NoHeader {})?;
            }
        }
        action.end()
    }
}

/// The header of an upload in parts: the size of the parts, and a URL by the number of each.
struct PartUrls<'a>(&'a UploadAction<'a>);

impl Serialize for PartUrls<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut header = serializer.serialize_map(None)?;
        if let LfsPlan::Parts { upload, part_bytes, parts } = &self.0.plan {
            let size = self.0.object.size;
            header.serialize_entry("chunk_size", &part_bytes.to_string())?;
            for number in 1..=*parts {
                let url = self.0.url(&format!("/{upload}/{number}?size={size}&part={part_bytes}"));
                header.serialize_entry(&number.to_string(), &url)?;
            }
        }
        header.end()
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
