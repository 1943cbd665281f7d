//! BERT and RoBERTa: encoders whose positions begin at different rows of the table, and whose classification
//! heads have different names (transformers `modeling_bert.py`, `modeling_roberta.py`).

use serde_json::json;

use super::encoder::{HeadPlan, Names, Plan, Positions};
use super::family::{Family, Form, GgufFamily, Planner};
use super::gguf::keys::{GgufModel, Settings};
use super::{Config, ConfigError, Container, Shape};

pub(super) const BERT: Family = Family {
    class: "BertModel",
    model_type: Some("bert"),
    planner: Planner::Encoder(bert),
    gguf: Some(GgufFamily::new("bert", gguf_settings)),
};

pub(super) const ROBERTA: Family = Family {
    class: "RobertaModel",
    model_type: Some("roberta"),
    planner: Planner::Encoder(roberta),
    gguf: None,
};

pub(super) const XLM_ROBERTA: Family =
    Family { class: "XLMRobertaModel", model_type: Some("xlm-roberta"), ..ROBERTA };

/// The same encoders with a classification head, such as cross-encoders.
pub(super) const BERT_CLASSIFIER: Family = Family {
    class: "BertForSequenceClassification",
    model_type: None,
    planner: Planner::Encoder(bert_classifier),
    gguf: None,
};

pub(super) const ROBERTA_CLASSIFIER: Family = Family {
    class: "RobertaForSequenceClassification",
    planner: Planner::Encoder(roberta_classifier),
    ..BERT_CLASSIFIER
};

/// In a GGUF, RoBERTa is a BERT, and its positions begin with the first row of the table.
pub(super) const XLM_ROBERTA_CLASSIFIER: Family = Family {
    class: "XLMRobertaForSequenceClassification",
    gguf: Some(GgufFamily { form: Form::Classifier, ..GgufFamily::new("bert", gguf_classifier_settings) }),
    ..ROBERTA_CLASSIFIER
};

const NAMES: Names = Names {
    embedding_norm: "embeddings.LayerNorm",
    layers: "encoder.layer.",
    qkv: &["attention.self.query", "attention.self.key", "attention.self.value"],
    out: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    gate: None,
    up: "intermediate.dense",
    down: "output.dense",
    norm: "output.LayerNorm",
    biases: true,
};

fn gguf_settings(model: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    settings.set("layer_norm_eps", json!(model.keys.require_float("attention.layer_norm_epsilon")?));
    settings.set("type_vocab_size", json!(model.rows("token_types.weight")));
    settings.set("hidden_act", json!("gelu"));
    Ok(())
}

fn gguf_classifier_settings(model: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    settings.set("num_labels", json!(model.rows("cls.output.weight")));
    gguf_settings(model, settings)
}

fn bert(config: &Config) -> Result<Plan, ConfigError> {
    of(config, "bert", 0)
}

/// BERT pools the first token in the encoder itself, so that the pooler has the encoder's prefix.
fn bert_classifier(config: &Config) -> Result<Plan, ConfigError> {
    let (dense, out) = ("bert.pooler.dense", "classifier");
    let head = HeadPlan { classes: config.classes()?, dense, out, has_types: true };
    Ok(Plan { head: Some(head), ..bert(config)? })
}

/// RoBERTa's tokenizers give every token the first type, also in pairs.
fn roberta_classifier(config: &Config) -> Result<Plan, ConfigError> {
    let (dense, out) = ("classifier.dense", "classifier.out_proj");
    let head = HeadPlan { classes: config.classes()?, dense, out, has_types: false };
    Ok(Plan { head: Some(head), ..roberta(config)? })
}

/// RoBERTa's positions start after the padding token's id. A GGUF does not have the rows before.
fn roberta(config: &Config) -> Result<Plan, ConfigError> {
    let first = match config.container() {
        Container::Checkpoint => config.integer("pad_token_id", 0, 1 << 20)?.unwrap_or(1) + 1,
        Container::Gguf => 0,
    };
    of(config, "roberta", first)
}

fn of(config: &Config, architecture: &'static str, first_position: usize) -> Result<Plan, ConfigError> {
    let embedding_length = config.require_integer("hidden_size", 1, 1 << 20)?;
    let n_heads = config.require_integer("num_attention_heads", 1, 1 << 14)?;
    if !embedding_length.is_multiple_of(n_heads) {
        let rule = format!("{embedding_length} is not a multiple of {n_heads} heads");
        return Err(ConfigError::Relation { field: "hidden_size", rule });
    }
    let only = |field: &'static str, known: &'static str| match config.text(field)? {
        Some(found) if found != known => {
            let (field, found) = (field.to_owned(), format!("`{found}`"));
            Err(ConfigError::Unsupported { field, found, supported: known })
        }
        _ => Ok(()),
    };
    only("hidden_act", "gelu")?;
    only("position_embedding_type", "absolute")?;
    let positions = config.integer("max_position_embeddings", 1, 1 << 26)?.unwrap_or(512);
    if positions <= first_position {
        let rule = format!("{positions} leaves no position after the padding token's");
        return Err(ConfigError::Relation { field: "max_position_embeddings", rule });
    }
    Ok(Plan {
        shape: Shape {
            architecture,
            vocab_size: config.require_integer("vocab_size", 1, 1 << 24)?,
            context_length: positions - first_position,
            embedding_length,
            hidden_dim: config.require_integer("intermediate_size", 1, 1 << 22)?,
            layers: config.require_integer("num_hidden_layers", 1, 1 << 12)?,
            n_heads,
            n_kv_heads: n_heads,
            head_dim: embedding_length / n_heads,
        },
        norm_eps: config.number("layer_norm_eps", 1e-12, 0.0, 1.0)? as f32,
        positions: Positions::Learned { rows: positions, first: first_position },
        names: &[NAMES],
        token_types: config.integer("type_vocab_size", 1, 1 << 16)?.unwrap_or(2),
        head: None,
    })
}
