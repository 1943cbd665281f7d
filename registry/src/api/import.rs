//! `POST /lode/v1/import`: creates a model from one on a server with the API of the Hugging Face Hub. The token of the
//! request is used for this request and stored nowhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use lode_client::Secret;
use serde::Deserialize;
use serde_json::json;
use utoipa::ToSchema;

use super::ollama::records;
use crate::Registry;
use crate::app::{CreateStep, HubImportError, HubModel, ImportSink, ImportStep, ImportTarget};
use crate::auth::{Action, Caller};
use crate::http::model_name::{self, ModelName};
use crate::http::{Failure, JsonBody, OwnHosts, RequestBody};

const SCHEME: &str = "hf://";
const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
const DEFAULT_REVISION: &str = "main";

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ImportRequest)]
pub(crate) struct Import {
    /// The name here.
    model: String,
    /// `hf://NAMESPACE/MODEL[:VARIANT][@REVISION]`
    from: String,
    /// By default `https://huggingface.co`.
    #[serde(default)]
    endpoint: Option<String>,
    /// A token for the endpoint. It is used for this request and not stored.
    #[serde(default)]
    token: Option<String>,
    /// The number format of the weights, such as `int4` or `Q4_K_M`.
    #[serde(default)]
    quantize: Option<String>,
    /// Annotations of the manifest.
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    /// Whether the response is a stream, as by default.
    #[serde(default)]
    stream: Option<bool>,
}

impl RequestBody for Import {
    const ACTION: Action = Action::Push;
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    own: OwnHosts,
    body: JsonBody<Import>,
) -> Result<Response, Failure> {
    let (import, charge) = body.into_parts();
    let is_stream = import.stream.unwrap_or(true);
    let ModelName { repositories, reference } = model_name::parse_any(&import.model, &own)?;
    let repository = registry.spelling_to_write(&caller, &repositories).await?;
    let source = import.source()?;
    let quantize = match import.quantize.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => Some(text.parse().map_err(Failure::Quantize)?),
        None => None,
    };
    let target = ImportTarget { repository, reference, quantize, annotations: import.annotations };
    records::respond(is_stream, move |records| async move {
        drop(charge);
        let progress = records.clone();
        let tell: ImportSink = Arc::new(move |step| match step {
            ImportStep::Selected { commit, files, bytes } => {
                progress
                    .record(json!({"status": "fetching", "commit": commit, "files": files, "bytes": bytes}));
            }
            ImportStep::File { path, total, completed } => {
                progress.progress(&format!("fetching {path}"), &path, total, completed);
            }
            ImportStep::Create(CreateStep::Reading) => progress.status("reading files"),
            ImportStep::Create(CreateStep::Notice(notice)) => progress.record(json!({"notice": notice})),
            ImportStep::Create(CreateStep::Quantising { to, total, completed }) => {
                let to = to.to_string();
                progress.progress(&format!("quantizing to {to}"), &to, total, completed);
            }
            ImportStep::Create(CreateStep::WritingManifest) => progress.status("writing manifest"),
            ImportStep::Create(CreateStep::Existing(_) | CreateStep::Created(_)) => {}
        });
        let digest = registry.hub_import(&caller, &source, target, &tell).await?;
        records.last(json!({"status": "created", "digest": digest})).await;
        Ok(())
    })
    .await
}

impl Import {
    fn source(&self) -> Result<HubModel, Failure> {
        let invalid = |reason| Failure::ModelName { name: self.from.clone(), reason };
        let text = self.from.strip_prefix(SCHEME);
        let text = text.ok_or_else(|| invalid("expected hf://NAMESPACE/MODEL[:VARIANT][@REVISION]"))?;
        let (text, revision) = match text.split_once('@') {
            Some((text, revision)) => (text, revision),
            None => (text, DEFAULT_REVISION),
        };
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
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Ok(HubModel {
            endpoint: given(&self.endpoint).unwrap_or_else(|| DEFAULT_ENDPOINT.to_owned()),
            token: given(&self.token).map(Secret::new),
            name: name.to_owned(),
            revision: revision.to_owned(),
            variant,
        })
    }
}

impl From<HubImportError> for Failure {
    fn from(error: HubImportError) -> Failure {
        match error {
            HubImportError::Registry(error) => Failure::Registry(error),
            HubImportError::Create(error) => error.into(),
            error => Failure::Import(error),
        }
    }
}
