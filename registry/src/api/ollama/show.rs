//! `POST /api/show`: what a model's manifest, config and text layers say, as ollama's clients read it.

use axum::extract::State;
use lode_model::manifest::Descriptor;
use lode_model::media_type;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Details, Named};
use crate::Registry;
use crate::api::model_name;
use crate::api::time::rfc3339;
use crate::app::Model;
use crate::auth::Caller;
use crate::http::{Failure, Json};

#[derive(Deserialize)]
pub(crate) struct Show {
    #[serde(flatten)]
    named: Named,
    #[serde(default)]
    verbose: bool,
}

#[derive(Serialize)]
pub(crate) struct Shown {
    #[serde(skip_serializing_if = "String::is_empty")]
    license: String,
    modelfile: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    parameters: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    template: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    system: String,
    details: Details,
    model_info: Map<String, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<Tensor>,
    capabilities: Vec<String>,
    modified_at: String,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    #[serde(rename = "type")]
    dtype: String,
    shape: Vec<u64>,
}

pub(crate) async fn post(
    State(registry): State<Registry>,
    caller: Caller,
    Json(show): Json<Show>,
) -> Result<Json<Shown>, Failure> {
    let name = show.named.name();
    let (repository, reference) = model_name::parse(name)?;
    let unknown = || Failure::ModelUnknown { name: name.to_owned() };
    let model = registry.model_show(&caller, &repository, &reference).await?.ok_or_else(unknown)?;
    let summary = model.summary.clone().ok_or_else(unknown)?;

    let text = async |media_type: &str| -> Result<String, Failure> {
        let mut texts = Vec::new();
        for layer in model.manifest.layers.iter().filter(|layer| layer.media_type == media_type) {
            let bytes = registry.blob_text(&caller, &repository, layer).await?.unwrap_or_default();
            texts.push(String::from_utf8_lossy(&bytes).into_owned());
        }
        Ok(texts.join("\n"))
    };
    let (license, template) =
        (text(media_type::OLLAMA_LICENSE).await?, text(media_type::OLLAMA_TEMPLATE).await?);
    let (system, params) = (text(media_type::OLLAMA_SYSTEM).await?, text(media_type::OLLAMA_PARAMS).await?);
    let config = match model.manifest.layers.iter().find(|layer| is_config(layer)) {
        Some(layer) => registry.blob_text(&caller, &repository, layer).await?,
        None => None,
    };
    let config: Value = config.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let tensors = match show.verbose {
        true => registry.tensor_list(&caller, &repository, &reference).await?.unwrap_or_default(),
        false => Vec::new(),
    };
    Ok(Json(Shown {
        modelfile: modelfile(name, &template, &system),
        parameters: parameters(&params),
        details: Details::new(&summary, model.config.as_ref()),
        model_info: model_info(&model, &config),
        tensors: tensors
            .into_iter()
            .map(|t| Tensor { name: t.name, dtype: t.dtype, shape: t.shape })
            .collect(),
        capabilities: capabilities(&model, &config),
        modified_at: rfc3339(model.modified_at),
        license,
        template,
        system,
    }))
}

fn is_config(layer: &Descriptor) -> bool {
    layer.file_path() == Some("config.json")
}

fn modelfile(name: &str, template: &str, system: &str) -> String {
    let mut text = format!("# Modelfile of {name}\nFROM {name}\n");
    for (instruction, value) in [("TEMPLATE", template), ("SYSTEM", system)] {
        if !value.is_empty() {
            text.push_str(&format!("{instruction} \"\"\"{value}\"\"\"\n"));
        }
    }
    text
}

/// The stored options as text: a key padded to 30 columns and a value, one a line.
fn parameters(params: &str) -> String {
    let params: Map<String, Value> = serde_json::from_str(params).unwrap_or_default();
    let mut lines = Vec::new();
    for (key, value) in params {
        let values = if let Value::Array(values) = value { values } else { vec![value] };
        lines.extend(values.into_iter().map(|value| format!("{key:<30} {value}")));
    }
    lines.join("\n")
}

/// The checkpoint's numbers under GGUF's names.
fn model_info(model: &Model, config: &Value) -> Map<String, Value> {
    let mut info = Map::new();
    let Some(summary) = &model.summary else { return info };
    if let Some(parameters) = summary.parameters {
        info.insert("general.parameter_count".to_owned(), json!(parameters));
    }
    let Some(architecture) = &summary.architecture else { return info };
    info.insert("general.architecture".to_owned(), json!(architecture));
    for (ours, theirs) in [
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("block_count", "num_hidden_layers"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("rope.freq_base", "rope_theta"),
        ("vocab_size", "vocab_size"),
    ] {
        if let Some(number) = config.get(theirs).filter(|value| value.is_number()) {
            info.insert(format!("{architecture}.{ours}"), number.clone());
        }
    }
    info
}

/// What the config blob lists; where it lists nothing, what the checkpoint's class name tells.
fn capabilities(model: &Model, config: &Value) -> Vec<String> {
    if let Some(listed) =
        model.config.as_ref().map(|config| &config.capabilities).filter(|listed| !listed.is_empty())
    {
        return listed.clone();
    }
    let class = config["architectures"][0].as_str().unwrap_or_default();
    let is_generator =
        class.is_empty() || class.ends_with("CausalLM") || class.ends_with("ConditionalGeneration");
    vec![if is_generator { "completion" } else { "embedding" }.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_one_a_line() {
        let text = parameters(r#"{"temperature":0.5,"stop":["a","b"]}"#);
        let expect = format!("{:<30} 0.5\n{:<30} \"a\"\n{:<30} \"b\"", "temperature", "stop", "stop");
        assert_eq!(text, expect);
        assert_eq!(parameters("not JSON"), "");
    }
}
