//! The handlers' extractors: path segments, query, JSON body and caller. Each parses its value or fails with
//! a `Failure`. axum's own extractors would reply in their own format. Bodies are read last: first the caller
//! is checked, then the length, then the budget.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;

use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, header};
use lode_client::{Charge, read_body};
use lode_model::digest::Digest;
use lode_model::json_outline::{Outline, OutlineError};
use lode_model::reference::{Reference, Repository};
use serde::de::{DeserializeOwned, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::state::ServerState;
use super::{Failure, agent, model_name};
use crate::app::Spellings;
use crate::auth::{Action, Caller};

/// The largest JSON body of routes other than inference.
const MAX_JSON_BYTES: usize = 1024 * 1024;

/// Larger bodies are parsed on a blocking thread.
const LARGE_BYTES: usize = 256 * 1024;

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

/// A repository, as named by ollama's registry clients and by all others.
impl Segment for Spellings {
    fn parse(text: &str, headers: &HeaderMap) -> Result<Self, Failure> {
        match agent::is_ollama(headers) {
            true => model_name::client_spellings(text),
            false => Ok(text.parse::<Repository>()?.into()),
        }
    }
}

/// A repository as Hugging Face's clients name it: case is ignored.
pub(crate) struct HfName(pub(crate) Repository);

impl Segment for HfName {
    fn parse(text: &str, _: &HeaderMap) -> Result<Self, Failure> {
        Ok(HfName(text.to_ascii_lowercase().parse()?))
    }
}

/// A repository as in the URL of its git objects: with `.git` at the end.
pub(crate) struct GitName(pub(crate) Repository);

impl Segment for GitName {
    fn parse(text: &str, headers: &HeaderMap) -> Result<Self, Failure> {
        let HfName(repository) = HfName::parse(text.strip_suffix(".git").unwrap_or(text), headers)?;
        Ok(GitName(repository))
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

impl<A: Segment, B: Segment, C: Segment, S: Send + Sync> FromRequestParts<S> for Path<(A, B, C)> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let params = params(parts, state).await?;
        let [first, second, third] = segments(&params)?;
        let headers = &parts.headers;
        Ok(Path((A::parse(first, headers)?, B::parse(second, headers)?, C::parse(third, headers)?)))
    }
}

async fn params<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<RawPathParams, Failure> {
    RawPathParams::from_request_parts(parts, state).await.map_err(|_| Failure::Path)
}

fn segments<const N: usize>(params: &RawPathParams) -> Result<[&str; N], Failure> {
    let segments: Vec<&str> = params.iter().map(|(_, value)| value).collect();
    segments.try_into().map_err(|_| Failure::RouteUnknown)
}

/// Returns an error for a name that is not a namespace.
pub(crate) fn check_namespace(name: &Repository) -> Result<(), Failure> {
    match name.as_str().contains('/') {
        true => Err(Failure::Unsupported("a namespace is the first part of its repositories' names")),
        false => Ok(()),
    }
}

/// A position in a list that is sorted by two names, neither of which has a space.
pub(crate) fn pair(first: &str, second: &str) -> String {
    format!("{first} {second}")
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

    /// A boolean; Python's spellings are accepted too.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1")
    }

    pub(crate) fn digest(&self, name: &str) -> Result<Option<Digest>, Failure> {
        Ok(self.get(name).map(str::parse).transpose()?)
    }

    pub(crate) fn id(&self, name: &str) -> Result<Option<Uuid>, Failure> {
        let parse = |text: &str| text.parse().map_err(|_| Failure::Id { id: text.to_owned() });
        self.get(name).map(parse).transpose()
    }

    /// The position `last` in a list that is sorted by two names, as [`pair`] writes it. Without one, the
    /// list starts at its first entry.
    pub(crate) fn last_pair(&self) -> Result<(&str, &str), Failure> {
        let text = self.get("last").unwrap_or_default();
        if !text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            let expected = "the `last` parameter of a `Link` to the next page";
            return Err(Failure::Query { name: "last", value: text.to_owned(), expected });
        }
        Ok(text.split_once(' ').unwrap_or((text, "")))
    }

    /// A number that limits a listing.
    pub(crate) fn limit(&self, name: &'static str) -> Result<Option<u32>, Failure> {
        Ok(self.number(name)?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
    }

    /// A value that is not a number is refused, never ignored.
    pub(crate) fn number(&self, name: &'static str) -> Result<Option<u64>, Failure> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        if !digits {
            return Err(Failure::Query { name, value: value.to_owned(), expected: "a non-negative number" });
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

/// A JSON response.
pub(crate) struct Json<T>(pub(crate) T);

/// A type that a route accepts as its JSON body.
pub(crate) trait RequestBody: DeserializeOwned + Send + 'static {
    /// The action that the caller must be allowed on some resource before the body is read.
    const ACTION: Action;
    const MAX_BYTES: usize = MAX_JSON_BYTES;
}

/// A parsed JSON body. `Content-Type` is not checked: not all of ollama's clients send it.
pub(crate) struct JsonBody<T> {
    value: T,
    charge: Charge,
}

impl<T> JsonBody<T> {
    /// The value, and its charge, which must be dropped with it.
    pub(crate) fn into_parts(self) -> (T, Charge) {
        (self.value, self.charge)
    }
}

impl<T> Deref for JsonBody<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: RequestBody> FromRequest<ServerState> for JsonBody<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &ServerState) -> Result<Self, Failure> {
        let (bytes, mut charge) = read_allowed(request, state, T::ACTION, T::MAX_BYTES).await?;
        let (value, charge) = blocking_if_large(bytes.len(), move || {
            let outline = outline::<T>(&bytes)?;
            charge.set(bytes.len().saturating_add(outline.parsed_bytes()))?;
            let value = parse(&bytes)?;
            drop(bytes);
            charge.set(outline.parsed_bytes())?;
            Ok::<_, Failure>((value, charge))
        })
        .await?;
        Ok(JsonBody { value, charge })
    }
}

/// The body of an inference request: well-formed JSON within the limits, not parsed.
pub(crate) struct InferenceBody {
    pub(crate) bytes: Bytes,
    pub(crate) outline: Outline,
    pub(crate) charge: Charge,
}

#[derive(Deserialize)]
struct ModelField {
    #[serde(default, rename = "model", deserialize_with = "null_as_default")]
    _model: String,
}

impl FromRequest<ServerState> for InferenceBody {
    type Rejection = Failure;

    async fn from_request(request: Request, state: &ServerState) -> Result<Self, Failure> {
        let limit_bytes = state.registry.config().max_body.as_usize();
        let (bytes, charge) = read_allowed(request, state, Action::Infer, limit_bytes).await?;
        let read = bytes.clone();
        let outline = blocking_if_large(bytes.len(), move || outline::<ModelField>(&read)).await?;
        Ok(InferenceBody { bytes, outline, charge })
    }
}

/// A translated body, and the other values that its response depends on.
pub(crate) type Translated<T> = Result<(Vec<u8>, T), Failure>;

/// The same for several translated bodies.
pub(crate) type TranslatedEach<T> = Result<(Vec<Bytes>, T), Failure>;

impl InferenceBody {
    /// Translates the body, on a blocking thread if it is large.
    pub(crate) async fn translate<T: Send + 'static>(
        self,
        translate: fn(&[u8]) -> Translated<T>,
    ) -> Result<(InferenceBody, T), Failure> {
        let InferenceBody { bytes, outline, mut charge } = self;
        charge.set(bytes.len().saturating_add(outline.parsed_bytes()))?;
        let (translated, more) = blocking_if_large(bytes.len(), move || translate(&bytes)).await?;
        charge.set(translated.len())?;
        Ok((InferenceBody { bytes: translated.into(), outline, charge }, more))
    }
}

impl InferenceBody {
    /// Translates the body to several ones, on a blocking thread if it is large.
    pub(crate) async fn translate_each<T: Send + 'static>(
        self,
        translate: fn(&[u8]) -> TranslatedEach<T>,
    ) -> Result<(Vec<InferenceBody>, T), Failure> {
        let InferenceBody { bytes, outline, mut charge } = self;
        charge.set(bytes.len().saturating_add(outline.parsed_bytes()))?;
        let (translated, more) = blocking_if_large(bytes.len(), move || translate(&bytes)).await?;
        charge.set(0)?;
        let bodies = translated.into_iter().map(|bytes| {
            let mut charge = charge.another();
            charge.set(bytes.len())?;
            Ok(InferenceBody { bytes, outline: outline.clone(), charge })
        });
        Ok((bodies.collect::<Result<_, Failure>>()?, more))
    }
}

/// Reads the body of a caller who may do `action` on some resource.
async fn read_allowed(
    request: Request,
    state: &ServerState,
    action: Action,
    limit_bytes: usize,
) -> Result<(Bytes, Charge), Failure> {
    let (mut parts, body) = request.into_parts();
    let Ok(caller) = Caller::from_request_parts(&mut parts, state).await;
    state.registry.authorize_some(&caller, action).await?;
    let mut charge = state.registry.body_budget().charge();
    let bytes = read_body(body, limit_bytes, &mut charge).await?;
    if bytes.is_empty() { Err(Failure::BodyMissing) } else { Ok((bytes, charge)) }
}

/// The outline of a body. If it has none, the failure is the parse error of the type that the route expects.
fn outline<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<Outline, Failure> {
    Outline::read(bytes).map_err(|error| match error {
        OutlineError::TooManyItems { .. } => Failure::Outline(error),
        OutlineError::Json(_) => parse::<T>(bytes).err().unwrap_or(Failure::Outline(error)),
    })
}

/// Runs work whose time grows with the length of a body, on a blocking thread if the body is large.
pub(super) async fn blocking_if_large<T: Send + 'static>(
    len: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if len <= LARGE_BYTES {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Parses a body; the failure names the field at fault.
pub(crate) fn parse<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Failure> {
    parse_tracked(bytes).map_err(Failure::Json)
}

/// The same for a part of a body.
pub(crate) fn parse_part<'de, T: Deserialize<'de>>(
    json: &'de RawValue,
    part: impl FnOnce() -> String,
) -> Result<T, Failure> {
    parse_tracked(json.get().as_bytes()).map_err(|source| Failure::JsonPart { part: part(), source })
}

fn parse_tracked<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
) -> Result<T, serde_path_to_error::Error<serde_json::Error>> {
    // Tracking the path takes memory for each key, so it is done only after a failure.
    let error = match serde_json::from_slice(bytes) {
        Ok(parsed) => return Ok(parsed),
        Err(error) => error,
    };
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let mut track = serde_path_to_error::Track::new();
    let tracked = T::deserialize(serde_path_to_error::Deserializer::new(&mut json, &mut track));
    Err(serde_path_to_error::Error::new(track.path(), tracked.err().unwrap_or(error)))
}

/// The members of an object in their order, with unparsed values.
pub(crate) struct Members<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((key, value)) = map.next_entry::<String, &RawValue>()? {
                    members.push((key.into(), value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(MembersVisitor)
    }
}

impl Serialize for Members<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

/// For fields with a default: clients may send null for an absent value.
pub(crate) fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self.0).expect("responses are structs of strings, numbers and lists");
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response()
    }
}

/// The caller that authentication found and stored in the request's extensions.
impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}
