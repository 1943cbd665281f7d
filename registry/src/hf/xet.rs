//! Xet: the token for an upload, and the part of a Xet server that uploads need. What is not served here,
//! clients do without: they look for chunks of other uploads, and for other ways to send xorbs, and take 404
//! as an answer.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::TryStreamExt;
use http::request::Parts;
use http::{HeaderName, HeaderValue, header};
use lode_model::xet::hash::XetHash;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::Registry;
use crate::app::{self, XetGrant};
use crate::auth::Caller;
use crate::http::extract::Segment;
use crate::http::links::header_value;
use crate::http::{Failure, HfName, Json, Links, Path};

const ACCESS_TOKEN: HeaderName = HeaderName::from_static("x-xet-access-token");
const TOKEN_EXPIRATION: HeaderName = HeaderName::from_static("x-xet-token-expiration");
const SERVER_URL: HeaderName = HeaderName::from_static("x-xet-cas-url");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

impl Segment for XetHash {
    fn parse(text: &str, _: &http::HeaderMap) -> Result<Self, Failure> {
        text.parse().map_err(|_| Failure::Id { id: text.chars().take(80).collect() })
    }
}

/// Clients ask for it before they upload large files, and again before it expires.
pub(crate) async fn write_token(
    State(registry): State<Registry>,
    caller: Caller,
    parts: Parts,
    Path((HfName(repository), branch)): Path<(HfName, String)>,
) -> Result<Response, Failure> {
    let XetGrant { token, expires, space } = registry.xet_grant(&caller, &repository, &branch).await?;
    let url = Links::absolute(&parts, registry.config()).hub(&format!("api/xet/{space}/{repository}"));
    let headers = [
        (ACCESS_TOKEN, header_value(token.expose())),
        (TOKEN_EXPIRATION, expires.into()),
        (SERVER_URL, header_value(&url)),
        (header::CACHE_CONTROL, NO_STORE),
    ];
    let body = json!({ "accessToken": token.expose(), "exp": expires, "casUrl": url });
    Ok((headers, Json(body)).into_response())
}

pub(crate) async fn post_xorb(
    State(registry): State<Registry>,
    caller: Caller,
    Path((_, HfName(repository), hash)): Path<(Uuid, HfName, XetHash)>,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let is_new = registry.xorb_put(&caller, &repository, &hash, stream(body)).await?;
    Ok(Json(json!({ "was_inserted": is_new })))
}

pub(crate) async fn post_shard(
    State(registry): State<Registry>,
    caller: Caller,
    Path((_, HfName(repository))): Path<(Uuid, HfName)>,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let is_new = registry.shard_put(&caller, &repository, stream(body)).await?;
    Ok(Json(json!({ "result": u8::from(is_new) })))
}

fn stream(body: Body) -> app::Body {
    Box::pin(body.into_data_stream().map_err(Into::into))
}
