//! The extractors that handlers take: path segments, query, JSON body and caller, each already parsed or refused in the surface's words.
//! axum's own would answer bad input in theirs.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use lode_model::digest::Digest;
use lode_model::reference::{Reference, Repository};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use super::{Failure, agent};
use crate::api::model_name;
use crate::app::Spellings;
use crate::auth::Caller;

/// The largest JSON body that our own APIs take, prompts and base64 images included.
pub(crate) const MAX_JSON_BYTES: usize = 64 * 1024 * 1024;

/// The parameters of the path, in order.
pub(crate) struct Path<T>(pub(crate) T);

/// One parameter of a path.
pub(crate) trait Segment: Sized {
    fn parse(text: &str, headers: &HeaderMap) -> Result<Self, Failure>;
}

impl Segment for Repository {
    fn parse(text: &str, _: &HeaderMap) -> Result<Self, Failure> {
        Ok(text.parse()?)
    }
}

/// A repository as ollama's registry clients and all others name it.
impl Segment for Spellings {
    fn parse(text: &str, headers: &HeaderMap) -> Result<Self, Failure> {
        match agent::is_ollama(headers) {
            true => model_name::sent_by_client(text),
            false => Ok(text.parse::<Repository>()?.into()),
        }
    }
}

impl Segment for Reference {
    fn parse(text: &str, _: &HeaderMap) -> Result<Self, Failure> {
        Ok(text.parse()?)
    }
}

impl Segment for Digest {
    fn parse(text: &str, _: &HeaderMap) -> Result<Self, Failure> {
        Ok(text.parse()?)
    }
}

impl Segment for Uuid {
    fn parse(text: &str, _: &HeaderMap) -> Result<Self, Failure> {
        text.parse().map_err(|_| Failure::Id { id: text.to_owned() })
    }
}

impl Segment for String {
    fn parse(text: &str, _: &HeaderMap) -> Result<Self, Failure> {
        Ok(text.to_owned())
    }
}

impl<T: Segment, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let params = params(parts, state).await?;
        let [text] = segments(&params)?;
        Ok(Path(T::parse(text, &parts.headers)?))
    }
}

impl<A: Segment, B: Segment, S: Send + Sync> FromRequestParts<S> for Path<(A, B)> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let params = params(parts, state).await?;
        let [first, second] = segments(&params)?;
        Ok(Path((A::parse(first, &parts.headers)?, B::parse(second, &parts.headers)?)))
    }
}

async fn params<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<RawPathParams, Failure> {
    RawPathParams::from_request_parts(parts, state).await.map_err(|_| Failure::Path)
}

fn segments<const N: usize>(params: &RawPathParams) -> Result<[&str; N], Failure> {
    let segments: Vec<&str> = params.iter().map(|(_, value)| value).collect();
    segments.try_into().map_err(|_| Failure::RouteUnknown)
}

/// The query, decoded; keys may repeat.
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn digest(&self, name: &str) -> Result<Option<Digest>, Failure> {
        Ok(self.get(name).map(str::parse).transpose()?)
    }

    /// A number that limits a listing.
    pub(crate) fn limit(&self, name: &'static str) -> Result<Option<u32>, Failure> {
        Ok(self.number(name)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
    }

    /// Anything else in a number's place is refused, never ignored.
    pub(crate) fn number(&self, name: &'static str) -> Result<Option<u64>, Failure> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        if !digits {
            return Err(Failure::Query {
                name,
                value: value.to_owned(),
                expected: "a number that is not negative",
            });
        }
        Ok(Some(value.parse().unwrap_or(u64::MAX)))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let query = parts.uri.query().unwrap_or_default();
        Ok(Query(url::form_urlencoded::parse(query.as_bytes()).into_owned().collect()))
    }
}

/// A JSON body, or a JSON answer. `Content-Type` is not asked for: ollama's clients do not all send it.
pub(crate) struct Json<T>(pub(crate) T);

/// A body that is to be passed on as JSON, not yet looked into.
pub(crate) struct RawJson(pub(crate) Bytes);

impl<S: Send + Sync> FromRequest<S> for RawJson {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        let bytes = read_to_end(request.into_body(), MAX_JSON_BYTES).await?;
        if bytes.is_empty() { Err(Failure::BodyMissing) } else { Ok(RawJson(bytes)) }
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &S) -> Result<Self, Failure> {
        let RawJson(bytes) = RawJson::from_request(request, state).await?;
        parse(&bytes).map(Json)
    }
}

/// What a body says; where it says something else than is expected, the failure names the field.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Failure> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    T::deserialize(serde_path_to_error::Deserializer::new(&mut json, &mut track))
        .and_then(|parsed| json.end().map(|()| parsed))
        .map_err(|error| Failure::Json(serde_path_to_error::Error::new(track.path(), error)))
}

/// For fields with a default: clients may say null for what they do not say.
pub(crate) fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.0).expect("answers are structs of texts, numbers and lists");
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
    }
}

/// Collects a body that may have at most `limit_bytes`.
pub(crate) async fn read_to_end(body: Body, limit_bytes: usize) -> Result<Bytes, Failure> {
    match Limited::new(body, limit_bytes).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Failure::BodyTooLarge { limit_bytes }),
        Err(error) => Err(Failure::BodyCut(axum::Error::new(error))),
    }
}

/// The caller that authentication found and put beside the request. Nobody can show who they are yet, so it is anonymous.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or(Caller::Anonymous))
    }
}
