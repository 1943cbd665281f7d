//! `POST /lode/v1/import`: copies a model from another server, as a job. Credentials in the request are kept for the
//! job alone, and deleted when it ends.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use lode_client::{Login, Secret};
use lode_model::reference::Name;
use serde::Deserialize;
use utoipa::ToSchema;

use super::jobs::accepted;
use crate::Registry;
use crate::app::{ImportError, ImportFrom, NewImport};
use crate::auth::{Action, Caller};
use crate::http::model_name::{self, ModelName};
use crate::http::{Failure, JsonBody, OwnHosts, RequestBody};

const HUB_SCHEME: &str = "hf://";
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
const DEFAULT_REVISION: &str = "main";

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ImportRequest)]
pub(crate) struct Import {
    /// The name here.
    model: String,
    /// On another registry: `[https://]HOST[:PORT]/REPOSITORY[:TAG|@DIGEST]`. On the Hugging Face Hub:
    /// `hf://NAMESPACE/MODEL[:VARIANT][@REVISION]`.
    from: String,
    /// The account on the other registry, if it requires a login.
    #[serde(default)]
    username: Option<String>,
    /// Its password or token.
    #[serde(default)]
    password: Option<String>,
    /// For `hf://`: the server, by default `https://huggingface.co`.
    #[serde(default)]
    endpoint: Option<String>,
    /// For `hf://`: a token for the endpoint.
    #[serde(default)]
    token: Option<String>,
    /// For `hf://`: the number format of the weights, such as `int4` or `Q4_K_M`.
    #[serde(default)]
    quantize: Option<String>,
    /// For `hf://`: annotations of the manifest.
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl RequestBody for Import {
    const ACTION: Action = Action::Push;
}

pub(crate) async fn start(
    State(registry): State<Registry>,
    caller: Caller,
    own: OwnHosts,
    body: JsonBody<Import>,
) -> Result<Response, Failure> {
    let (import, _charge) = body.into_parts();
    let ModelName { repositories, reference } = model_name::parse_any(&import.model, &own)?;
    let repository = registry.spelling_to_write(&caller, &repositories).await?;
    let new = NewImport { repository, reference, from: import.source()? };
    Ok(accepted(registry.import_start(&caller, new).await?))
}

impl Import {
    fn source(self) -> Result<ImportFrom, Failure> {
        match self.from.strip_prefix(HUB_SCHEME) {
            Some(model) => self.hf_model(model),
            None => self.registry_model(),
        }
    }

    fn registry_model(&self) -> Result<ImportFrom, Failure> {
        let Import { from, username, password, endpoint, token, quantize, annotations, .. } = self;
        let invalid = |reason| Failure::ModelName { name: from.clone(), reason };
        // 1. The name.
        let (scheme, bare) = match from.split_once("://") {
            Some((scheme @ ("http" | "https"), bare)) => (Some(scheme), bare),
            Some(_) => return Err(invalid("the scheme is neither http, https nor hf")),
            None => (None, &from[..]),
        };
        let (host, path) = bare.split_once('/').unwrap_or((bare, ""));
        if host.contains('@') {
            return Err(Failure::Unsupported("`from` has a login: send it as `username` and `password`"));
        }
        // Without a scheme, the first part is a host only if it looks like one. With a host before it, no part of
        // the path is taken for one.
        let name: Name =
            if scheme.is_some() { format!("localhost/{path}") } else { bare.to_owned() }.parse()?;
        if name.host.is_none() {
            return Err(invalid("expected hf://NAMESPACE/MODEL or HOST/REPOSITORY[:TAG|@DIGEST]"));
        }
        // 2. The other fields.
        if [endpoint, token, quantize].iter().any(|field| given(field).is_some()) || !annotations.is_empty() {
            return Err(Failure::Unsupported(
                "`endpoint`, `token`, `quantize` and `annotations` are for models from hf://",
            ));
        }
        let login = match (given(username), given(password)) {
            (None, None) => None,
            (Some(username), Some(password)) => Some(Login { username, password }),
            _ => return Err(Failure::Unsupported("send both `username` and `password`, or neither")),
        };
        let address = match scheme {
            Some(scheme) => format!("{scheme}://{host}"),
            None => host.to_owned(),
        };
        Ok(ImportFrom::Registry { address, repository: name.repository, reference: name.reference, login })
    }

    fn hf_model(&self, model: &str) -> Result<ImportFrom, Failure> {
        let invalid = |reason| Failure::ModelName { name: self.from.clone(), reason };
        if given(&self.username).is_some() || given(&self.password).is_some() {
            return Err(Failure::Unsupported("a model from hf:// needs a `token` instead of a login"));
        }
        let (text, revision) = model.split_once('@').unwrap_or((model, DEFAULT_REVISION));
        let (name, variant) = match text.split_once(':') {
            Some((name, variant)) => (name, Some(variant.to_owned())),
            None => (text, None),
        };
        let is_plain = |part: &str| {
            let safe = part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
            !part.is_empty() && safe && part.bytes().any(|byte| byte != b'.')
        };
        if !name.split('/').all(is_plain) {
            return Err(invalid("a name of the Hub consists of letters, digits, `-`, `_` and `.`"));
        }
        if revision.is_empty() || variant.as_ref().is_some_and(String::is_empty) {
            return Err(invalid("the revision or the variant is empty"));
        }
        let quantize = given(&self.quantize).map(|text| text.parse()).transpose();
        Ok(ImportFrom::Hub {
            endpoint: given(&self.endpoint).unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            token: given(&self.token).map(Secret::new),
            name: name.to_owned(),
            revision: revision.to_owned(),
            variant,
            quantize: quantize.map_err(Failure::Conversion)?,
            annotations: self.annotations.clone(),
        })
    }
}

/// A field that is set to more than nothing.
fn given(field: &Option<String>) -> Option<String> {
    field.clone().filter(|text| !text.is_empty())
}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Failure {
        match error {
            ImportError::Registry(error) => Failure::Registry(error),
            error => Failure::Import(error),
        }
    }
}
