//! `POST /api/create`: creates a model from another one of this registry, or from files that were sent to
//! `/api/blobs`. `POST /lode/v1/models` does the former as a job.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use lode_model::digest::Digest;
use lode_model::files_view::check_path;
use lode_model::import::Conversion;
use lode_model::media_type;
use lode_model::modelfile::{Edits, Role, check_value, is_version};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{ModelRequest, blobs, records};
use crate::Registry;
use crate::api::jobs::accepted;
use crate::app::{CreateError, CreateStep, ExtraFile, ModelSource, NewModel};
use crate::auth::{Action, Caller};
use crate::http::model_name::{self, ModelName};
use crate::http::{Failure, JsonBody, OwnHosts, RequestBody};

/// The digest in progress records that are not about a layer; ollama's clients need one to show a progress
/// bar.
const NO_DIGEST: &str = "0000000000000000000";

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object")]
#[schema(as = CreateRequest)]
pub(crate) struct Create {
    #[serde(flatten)]
    named: ModelRequest,
    /// Whether the response is a stream, as by default. A job has none.
    stream: Option<bool>,
    /// The stored model to begin with.
    from: Option<String>,
    /// Without `from`: paths, and the digests of blobs sent to `/api/blobs`.
    files: Option<BTreeMap<String, String>>,
    /// LoRA adapters, in the same form.
    adapters: Option<BTreeMap<String, String>>,
    /// The files of a draft model, in the same form.
    draft_files: Option<BTreeMap<String, String>>,
    /// Replaces the prompt template.
    template: Option<String>,
    /// Replaces the system prompt.
    system: Option<String>,
    /// Texts of licences.
    license: Option<StringOrList>,
    /// Default options of the model, such as `temperature`.
    parameters: Option<Map<String, Value>>,
    /// The beginning of each conversation.
    messages: Option<Vec<Message>>,
    /// The number format of the weights, such as `int4` or `Q4_K_M`.
    quantize: Option<String>,
    /// The format of the weights, which ollama does not have: `gguf` or `checkpoint`. `quantize` is then a type of it,
    /// by default that of the floats.
    format: Option<String>,
    /// An older name of `quantize`.
    quantization: Option<String>,
    /// Not supported.
    draft_quantize: Option<String>,
    /// ollama's name of the code that renders prompts.
    renderer: Option<String>,
    /// ollama's name of the code that parses responses.
    parser: Option<String>,
    /// The first version of ollama that runs the model.
    requires: Option<String>,
    /// Annotations of the manifest, which ollama does not have.
    annotations: Option<BTreeMap<String, String>>,
    /// Not supported.
    remote_host: Option<String>,
}

impl RequestBody for Create {
    const ACTION: Action = Action::Push;
}

#[derive(Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum StringOrList {
    One(String),
    Many(Vec<String>),
}

#[derive(Deserialize, ToSchema)]
#[schema(as = CreateMessage)]
struct Message {
    role: String,
    #[serde(default)]
    content: String,
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    own: OwnHosts,
    body: JsonBody<Create>,
) -> Result<Response, Failure> {
    let (create, charge) = body.into_parts();
    let is_stream = create.stream.unwrap_or(true);
    let new = create.read(&registry, &caller, &own, model_name::parse).await?;
    registry.model_create_check(&caller, &new).await?;
    records::respond(is_stream, move |records| async move {
        let report = |step| match step {
            CreateStep::Reading => records.status("reading files"),
            CreateStep::Notice(notice) => records.status(format!("notice: {notice}")),
            CreateStep::Converting { to, total, completed } => {
                let verb = if to.is_quantisation() { "quantizing" } else { "converting" };
                records.progress(&format!("{verb} to {to}"), NO_DIGEST, total, completed);
            }
            CreateStep::Existing(digest) => records.status(format!("using existing layer {digest}")),
            CreateStep::Created(digest) => records.status(format!("creating new layer {digest}")),
            CreateStep::WritingManifest => records.status("writing manifest"),
        };
        registry.model_create(&caller, new, &report).await?;
        drop(charge);
        Ok(())
    })
    .await
}

/// `POST /lode/v1/models`: the same request as a job. Names have any number of parts.
pub(crate) async fn start(
    State(registry): State<Registry>,
    caller: Caller,
    own: OwnHosts,
    body: JsonBody<Create>,
) -> Result<Response, Failure> {
    let (create, _charge) = body.into_parts();
    let new = create.read(&registry, &caller, &own, model_name::parse_any).await?;
    Ok(accepted(registry.model_create_start(&caller, new).await?))
}

/// Parses the name of a model in a request.
type ParseName = fn(&str, &OwnHosts) -> Result<ModelName, Failure>;

impl Create {
    /// Converts the request to a `NewModel`.
    async fn read(
        self,
        registry: &Registry,
        caller: &Caller,
        own: &OwnHosts,
        parse_name: ParseName,
    ) -> Result<NewModel, Failure> {
        let ModelName { repositories, reference } = parse_name(self.named.name(), own)?;
        let repository = registry.spelling_to_write(caller, &repositories).await?;
        if non_empty(&self.remote_host).is_some() {
            return Err(Failure::Unsupported("remote models are not supported; pull them instead"));
        }
        if non_empty(&self.draft_quantize).is_some() {
            return Err(Failure::Unsupported("draft models cannot be quantised"));
        }
        let format =
            non_empty(&self.format).map(|text| text.parse().map_err(Failure::Conversion)).transpose()?;
        let number_type = non_empty(&self.quantize).or(non_empty(&self.quantization));
        let conversion = Conversion::read(format, number_type).map_err(Failure::Conversion)?;
        if non_empty(&self.requires).is_some_and(|text| !is_version(text)) {
            return Err(Failure::Unsupported("'requires' is not a version such as 0.19.0"));
        }
        let from = match (non_empty(&self.from), self.files) {
            (Some(name), _) => {
                let ModelName { repositories, reference } = parse_name(name, own)?;
                let repository = registry.spelling_of_manifest(caller, &repositories, &reference).await?;
                ModelSource::Model { repository, reference, name: name.to_owned() }
            }
            (None, Some(files)) => ModelSource::Files(read_files(files)?),
            (None, None) => return Err(Failure::Unsupported("neither 'from' or 'files' was specified")),
        };
        let mut extra = Vec::new();
        for (media_type, folder, files) in [
            (media_type::OLLAMA_ADAPTER, "adapter", self.adapters),
            (media_type::OLLAMA_DRAFT, "draft", self.draft_files),
        ] {
            for (path, digest) in read_files(files.unwrap_or_default())? {
                let media_type = if path.ends_with(".json") { media_type::OLLAMA_JSON } else { media_type };
                extra.push(ExtraFile { media_type, path: format!("{folder}/{path}"), digest });
            }
        }
        let mut parameters = self.parameters.unwrap_or_default();
        for (name, value) in &mut parameters {
            check_value(name, value).map_err(Failure::Parameter)?;
            // A single stop string is a list of one.
            if name == "stop" && value.is_string() {
                *value = Value::Array(vec![value.take()]);
            }
        }
        let mut messages = Vec::new();
        for Message { role, content } in self.messages.unwrap_or_default() {
            let role: Role = role.parse().map_err(Failure::Role)?;
            messages.push((role, content));
        }
        let licenses = match self.license {
            None => Vec::new(),
            Some(StringOrList::One(text)) => vec![text],
            Some(StringOrList::Many(texts)) => texts,
        };
        let edits = Edits {
            // Clients send an empty string for an absent value.
            template: self.template.filter(|text| !text.is_empty()),
            system: self.system.filter(|text| !text.is_empty()),
            parameters,
            messages,
            licenses: licenses.into_iter().filter(|text| !text.is_empty()).collect(),
            renderer: self.renderer.filter(|text| !text.is_empty()),
            parser: self.parser.filter(|text| !text.is_empty()),
            requires: self
                .requires
                .filter(|text| !text.is_empty())
                .map(|text| text.strip_prefix('v').map(str::to_owned).unwrap_or(text)),
            layers: Vec::new(),
            annotations: self.annotations.unwrap_or_default(),
        };
        Ok(NewModel { repository, reference, from, extra, edits, conversion })
    }
}

/// Reports a full disk, a mirrored name and the like as errors of their own.
impl From<CreateError> for Failure {
    fn from(error: CreateError) -> Failure {
        match error {
            CreateError::Registry(error) => Failure::Registry(error),
            CreateError::BaseUnknown { name } => Failure::ModelUnknown { name },
            other => Failure::Create(other),
        }
    }
}

fn non_empty(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

fn read_files(files: BTreeMap<String, String>) -> Result<BTreeMap<String, Digest>, Failure> {
    files
        .into_iter()
        .map(|(path, digest)| {
            check_path(&path).map_err(|_| Failure::Unsupported("file path must be relative"))?;
            Ok((path, blobs::parse(&digest)?))
        })
        .collect()
}
