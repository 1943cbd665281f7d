//! `POST /api/show`: a model's manifest, config and text layers, in ollama's format.

use axum::extract::State;
use axum::routing::MethodRouter;
use lode_model::gguf::Metadata;
use lode_model::go_template::Template;
use lode_model::import::{is_cross_encoder, is_text_generator};
use lode_model::media_type::{self, BASE_NAME_ANNOTATION};
use lode_model::modelfile::{Command, Modelfile, Text, UnquotableText};
use lode_model::prompt_template::{TemplateFeatures, TemplateFiles, prefers_jinja};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{Details, ModelRequest};
use crate::Registry;
use crate::app::Model;
use crate::auth::{Action, Caller};
use crate::http::methods::post;
use crate::http::model_name::{ModelName, ReadName};
use crate::http::state::ServerState;
use crate::http::{Failure, Json, JsonBody, OwnHosts, RequestBody};
use crate::time::rfc3339;

#[derive(Deserialize, ToSchema)]
#[schema(as = ShowRequest)]
pub(crate) struct Show {
    #[serde(flatten)]
    named: ModelRequest,
    /// Whether the response has all tensors, and arrays of the metadata.
    #[serde(default)]
    verbose: bool,
}

impl RequestBody for Show {
    const ACTION: Action = Action::Pull;
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ShowResponse {
    #[serde(skip_serializing_if = "String::is_empty")]
    license: String,
    modelfile: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    parameters: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    template: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    system: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    renderer: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    parser: String,
    details: Details,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    messages: Vec<Message>,
    model_info: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<Tensor>,
    /// Empty if the workers cannot run it.
    capabilities: Vec<String>,
    #[schema(format = DateTime)]
    modified_at: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    requires: String,
}

#[derive(Serialize, Deserialize, ToSchema)]
#[schema(as = ShowMessage)]
struct Message {
    role: String,
    content: String,
}

#[derive(Serialize, ToSchema)]
#[schema(as = ShowTensor)]
struct Tensor {
    name: String,
    #[serde(rename = "type")]
    dtype: String,
    shape: Vec<u64>,
}

/// The show route of an API; `read_name` parses the API's names.
pub(crate) fn show(read_name: ReadName) -> MethodRouter<ServerState> {
    post(
        move |State(registry): State<Registry>, caller: Caller, own: OwnHosts, show: JsonBody<Show>| async move {
            let name = read_name(show.named.name(), &own)?;
            shown(&registry, &caller, &show, name).await.map(Json)
        },
    )
}

async fn shown(
    registry: &Registry,
    caller: &Caller,
    show: &Show,
    ModelName { repositories, reference }: ModelName,
) -> Result<ShowResponse, Failure> {
    let name = show.named.name();
    let repository = registry.spelling_of_manifest(caller, &repositories, &reference).await?;
    let unknown = || Failure::ModelUnknown { name: name.to_owned() };
    let model = registry.model_show(caller, &repository, &reference).await?.ok_or_else(unknown)?;
    let summary = model.summary.clone().ok_or_else(unknown)?;

    let text = async |media_type: &str| -> Result<String, Failure> {
        let mut texts = Vec::new();
        for layer in model.manifest.layers.iter().filter(|layer| layer.media_type == media_type) {
            let bytes = registry.blob_text(caller, &repository, layer).await?.unwrap_or_default();
            texts.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        Ok(texts.join("\n"))
    };
    let (license, template) =
        (text(media_type::OLLAMA_LICENSE).await?, text(media_type::OLLAMA_TEMPLATE).await?);
    let (system, params) = (text(media_type::OLLAMA_SYSTEM).await?, text(media_type::OLLAMA_PARAMS).await?);
    let file =
        async |path: &str| match model.manifest.layers.iter().find(|layer| layer.file_path() == Some(path)) {
            Some(layer) => registry.blob_text(caller, &repository, layer).await,
            None => Ok(None),
        };
    let json = |bytes: Option<Vec<u8>>| -> Value {
        bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    };
    let config = json(file("config.json").await?);
    let arrays = show.verbose;
    let look = move |keys: &Metadata| {
        (keys.to_json(arrays), keys.capabilities(), keys.chat_template().map(TemplateFeatures::from_jinja))
    };
    let (keys, able, jinja) = registry.gguf_inspect(&repository, &model, look).await?.unwrap_or_default();
    let jinja = match jinja {
        Some(jinja) => Some(jinja),
        None => {
            let text = file("chat_template.jinja").await?;
            let text = text.as_deref().map(String::from_utf8_lossy);
            let (older, oldest) =
                (json(file("chat_template.json").await?), json(file("tokenizer_config.json").await?));
            let files =
                TemplateFiles { jinja: text.as_deref(), json: Some(&older), tokenizer_config: Some(&oldest) };
            files.find().map(TemplateFeatures::from_jinja)
        }
    };
    let facts = registry.model_facts(caller, &repository, &model.digest).await?;
    let tensors = match show.verbose {
        true => registry.tensor_list(caller, &repository, &reference).await?.unwrap_or_default(),
        false => Vec::new(),
    };
    let messages: Vec<Message> =
        serde_json::from_str(&text(media_type::OLLAMA_MESSAGES).await?).unwrap_or_default();
    let params: Map<String, Value> = serde_json::from_str(&params).unwrap_or_default();
    let model_config = model.config.clone().unwrap_or_default();
    let mut details = Details::new(&summary, model.config.as_ref());
    details.parent_model = parent(&model).to_owned();
    let mut commands = ModelfileWriter::of(name);
    commands.texts(&[("TEMPLATE", &template, Command::Template), ("SYSTEM", &system, Command::System)]);
    commands.texts(&[
        ("RENDERER", &model_config.renderer, Command::Renderer),
        ("PARSER", &model_config.parser, Command::Parser),
    ]);
    commands.parameters(&params);
    commands.messages(&messages);
    commands.texts(&[
        ("LICENSE", &license, Command::License),
        ("REQUIRES", &model_config.requires, Command::Requires),
    ]);
    Ok(ShowResponse {
        modelfile: commands.text,
        parameters: parameters(&params),
        details,
        messages,
        model_info: model_info(&model, &config, keys),
        tensors: tensors
            .into_iter()
            .map(|t| Tensor { name: t.name, dtype: t.dtype, shape: t.shape })
            .collect(),
        capabilities: match facts.obstacle() {
            Some(_) => Vec::new(),
            None => {
                let can = template_abilities(&template, jinja, &model_config.renderer);
                capabilities(&model, &config, &able, can)
            }
        },
        modified_at: rfc3339(model.modified_at),
        renderer: model_config.renderer,
        parser: model_config.parser,
        requires: model_config.requires,
        license,
        template,
        system,
    })
}

/// The base model, if one is recorded.
fn parent(model: &Model) -> &str {
    let named = model.manifest.annotations.get(BASE_NAME_ANNOTATION).map(String::as_str);
    let noted = || model.manifest.layers.iter().find_map(|layer| layer.from.as_deref());
    named.or_else(noted).unwrap_or_default()
}

type TextCommand = fn(Text) -> Command;

/// A Modelfile that recreates the model. Comments name the texts that a Modelfile cannot express.
struct ModelfileWriter {
    text: String,
}

impl ModelfileWriter {
    fn of(name: &str) -> ModelfileWriter {
        ModelfileWriter { text: format!("# Modelfile of {name}\nFROM {name}\n") }
    }

    fn push(&mut self, what: &str, command: Result<Command, UnquotableText>) {
        self.text.push_str(&match command {
            Ok(command) => Modelfile { commands: vec![command] }.to_string(),
            Err(_) => format!("# {what} is left out: it cannot be quoted\n"),
        });
    }

    /// Adds texts, each with its name and its command.
    fn texts(&mut self, texts: &[(&str, &str, TextCommand)]) {
        for (what, text, command) in texts.iter().filter(|(_, text, _)| !text.is_empty()) {
            self.push(what, Text::new(*text).map(command));
        }
    }

    fn parameters(&mut self, params: &Map<String, Value>) {
        for (name, value) in params {
            let values = if let Value::Array(values) = value {
                values.as_slice()
            } else {
                std::slice::from_ref(value)
            };
            for value in values {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                self.push(
                    name,
                    Text::new(text).map(|value| Command::Parameter { name: name.clone(), value }),
                );
            }
        }
    }

    fn messages(&mut self, messages: &[Message]) {
        for Message { role, content } in messages {
            let Ok(role) = role.parse() else { continue };
            self.push("MESSAGE", Text::new(content).map(|text| Command::Message { role, text }));
        }
    }
}

/// The stored options as text, one per line: the key padded to 30 columns, and the value.
fn parameters(params: &Map<String, Value>) -> String {
    let mut lines = Vec::new();
    for (key, value) in params {
        let values =
            if let Value::Array(values) = value { values.as_slice() } else { std::slice::from_ref(value) };
        lines.extend(values.iter().map(|value| format!("{key:<30} {value}")));
    }
    lines.join("\n")
}

/// The checkpoint's hyperparameters under GGUF's names.
fn model_info(model: &Model, config: &Value, keys: Map<String, Value>) -> Map<String, Value> {
    // A GGUF file has the names and values that the others are translated to.
    let mut info = keys;
    let Some(summary) = &model.summary else { return info };
    if let Some(parameters) = summary.parameters {
        info.insert("general.parameter_count".to_owned(), json!(parameters));
    }
    let Some(architecture) =
        summary.architecture.as_ref().filter(|_| !info.contains_key("general.architecture"))
    else {
        return info;
    };
    info.insert("general.architecture".to_owned(), json!(architecture));
    // GPT-2 and others have names of their own.
    for (ours, theirs) in [
        ("context_length", &["max_position_embeddings", "n_positions"][..]),
        ("embedding_length", &["hidden_size", "n_embd"]),
        ("block_count", &["num_hidden_layers", "n_layer"]),
        ("feed_forward_length", &["intermediate_size", "n_inner"]),
        ("attention.head_count", &["num_attention_heads", "n_head"]),
        ("attention.head_count_kv", &["num_key_value_heads"]),
        ("rope.freq_base", &["rope_theta"]),
        ("vocab_size", &["vocab_size"]),
    ] {
        let mut numbers = theirs.iter().filter_map(|name| config.get(*name));
        if let Some(number) = numbers.find(|value| value.is_number()) {
            info.insert(format!("{architecture}.{ours}"), number.clone());
        }
    }
    info
}

/// The abilities of the template that a worker would use. An invalid template has none, because no worker
/// loads it.
fn template_abilities(go: &str, jinja: Option<TemplateFeatures>, renderer: &str) -> TemplateFeatures {
    let parsed = Some(go).filter(|go| !go.is_empty()).and_then(|go| Template::parse(go).ok());
    let chosen = match (parsed.map(|parsed| TemplateFeatures::from_go(&parsed, go)), jinja) {
        (Some(go), Some(jinja)) if prefers_jinja(go, jinja, !renderer.is_empty()) => Some(jinja),
        (go, jinja) => go.or(jinja),
    };
    chosen.unwrap_or_default()
}

/// The capabilities of a model: those that the config blob lists, or else those of the GGUF keys or the
/// checkpoint's class name; and for a generating model, the abilities of its template.
fn capabilities(model: &Model, config: &Value, keys: &[&'static str], can: TemplateFeatures) -> Vec<String> {
    let listed = model.config.as_ref().map(|config| config.capabilities.clone()).unwrap_or_default();
    let class = config["architectures"][0].as_str().unwrap_or_default();
    let is_generator =
        class.is_empty() || is_text_generator(class) || class.ends_with("ForConditionalGeneration");
    let has_projector =
        model.manifest.layers.iter().any(|layer| layer.media_type == media_type::OLLAMA_PROJECTOR);
    let mut all = match keys {
        _ if !listed.is_empty() => listed,
        [] if config.as_object().is_some_and(is_cross_encoder) => vec!["rerank".to_owned()],
        [] => vec![if is_generator { "completion" } else { "embedding" }.to_owned()],
        keys => keys.iter().copied().map(str::to_owned).collect(),
    };
    let can_complete = all.iter().any(|capability| capability == "completion");
    for (capability, has) in [
        ("vision", has_projector),
        ("tools", can_complete && can.tools),
        ("insert", can_complete && can.insert),
        ("thinking", can_complete && can.thinking),
    ] {
        if has && all.iter().all(|other| other != capability) {
            all.push(capability.to_owned());
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_one_a_line() {
        let params = json!({"temperature": 0.5, "stop": ["a", "b"]});
        let text = parameters(params.as_object().unwrap());
        let expect = format!("{:<30} 0.5\n{:<30} \"a\"\n{:<30} \"b\"", "temperature", "stop", "stop");
        assert_eq!(text, expect);
        assert_eq!(parameters(&Map::new()), "");
    }

    #[test]
    fn the_modelfile_can_be_read_again() {
        let mut written = ModelfileWriter::of("team/mini:8b");
        let params = json!({"temperature": 0.5, "stop": ["a ", "b"]});
        written.texts(&[("TEMPLATE", "{{ .Prompt }}\n", Command::Template), ("SYSTEM", "", Command::System)]);
        written.parameters(params.as_object().unwrap());
        written.messages(&[Message { role: "user".into(), content: "hi".into() }]);
        written.texts(&[("LICENSE", "a\"\"\"\nb", Command::License)]);
        let parsed = Modelfile::parse(written.text.as_bytes()).unwrap();
        assert_eq!(parsed.sources().collect::<Vec<_>>(), ["team/mini:8b"]);
        assert_eq!(Value::Object(parsed.parameters()), params);
        assert_eq!(parsed.commands.len(), 6);
        assert!(written.text.contains("# LICENSE is left out"));
    }
}
