//! Nomic BERT: an encoder with rotary positions, a gated feed-forward part, and matrices without biases
//! (transformers `modeling_nomic_bert.py`). Published configurations have GPT-2's names of fields, those that
//! transformers writes have BERT's.

use std::fmt::Display;

use serde_json::json;

use super::encoder::{Names, Plan, Positions};
use super::family::{Family, GgufFamily, Planner};
use super::gguf::keys::{GgufModel, Settings};
use super::{Config, ConfigError, Shape};

pub(super) const FAMILY: Family = Family {
    class: "NomicBertModel",
    model_type: Some("nomic_bert"),
    planner: Planner::Encoder(plan),
    gguf: Some(GgufFamily::new("nomic-bert", gguf_settings)),
};

const PUBLISHED: Names = Names {
    embedding_norm: "emb_ln",
    layers: "encoder.layers.",
    qkv: &["attn.Wqkv"],
    out: "attn.out_proj",
    attention_norm: "norm1",
    gate: Some("mlp.fc12"),
    up: "mlp.fc11",
    down: "mlp.fc2",
    norm: "norm2",
    biases: false,
};

const OF_TRANSFORMERS: Names = Names {
    embedding_norm: "embeddings.LayerNorm",
    layers: "layers.",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    out: "self_attn.o_proj",
    attention_norm: "post_attention_layernorm",
    gate: Some("mlp.gate_proj"),
    up: "mlp.up_proj",
    down: "mlp.down_proj",
    norm: "post_mlp_layernorm",
    biases: false,
};

fn gguf_settings(model: &GgufModel<'_>, settings: &mut Settings) -> Result<(), ConfigError> {
    settings.set("layer_norm_eps", json!(model.keys.require_float("attention.layer_norm_epsilon")?));
    settings.set("type_vocab_size", json!(model.rows("token_types.weight")));
    Ok(())
}

/// A field that must have this value, if it is present.
fn only<T: PartialEq + Display>(
    field: &'static str,
    found: Option<T>,
    known: T,
    supported: &'static str,
) -> Result<(), ConfigError> {
    match found {
        Some(found) if found != known => {
            let (field, found) = (field.to_owned(), format!("`{found}`"));
            Err(ConfigError::Unsupported { field, found, supported })
        }
        _ => Ok(()),
    }
}

fn plan(config: &Config) -> Result<Plan, ConfigError> {
    // The field of either spelling; errors name BERT's.
    let number = |field: &'static str, other: &'static str, max: u64| match config.integer(field, 1, max)? {
        Some(number) => Ok(number),
        None => config.integer(other, 1, max)?.ok_or(ConfigError::Missing { field }),
    };
    only("hidden_act", config.text("hidden_act")?, "silu", "silu")?;
    only("activation_function", config.text("activation_function")?, "swiglu", "swiglu")?;
    for field in ["prenorm", "use_rms_norm", "parallel_block", "causal", "rotary_emb_interleaved"] {
        only(field, config.optional_flag(field)?, false, "false")?;
    }
    only("rotary_emb_fraction", Some(config.number("rotary_emb_fraction", 1.0, 0.0, 1.0)?), 1.0, "1")?;
    // A mixture of experts is another model.
    only("num_experts", config.integer("num_experts", 0, 1 << 16)?, 0, "0")?;

    let embedding_length = number("hidden_size", "n_embd", 1 << 20)?;
    let n_heads = number("num_attention_heads", "n_head", 1 << 14)?;
    let head_dim = config.integer("head_dim", 2, 1 << 12)?.unwrap_or(embedding_length / n_heads);
    if n_heads * head_dim != embedding_length || !head_dim.is_multiple_of(2) {
        let rule = format!("{embedding_length} is not {n_heads} heads of {head_dim}, an even number");
        return Err(ConfigError::Relation { field: "hidden_size", rule });
    }
    let positions = match config.integer("max_position_embeddings", 1, 1 << 26)? {
        Some(positions) => positions,
        None => config.integer("n_positions", 1, 1 << 26)?.unwrap_or(2048),
    };
    // Beyond the positions of the training, published models need other rotations.
    let trained = config.integer("max_trained_positions", 1, 1 << 26)?.unwrap_or(positions);
    let vocabulary = config.require_integer("vocab_size", 1, 1 << 24)?;
    let multiple = config.integer("pad_vocab_size_multiple", 1, 1 << 16)?.unwrap_or(1);
    let theta = config.number("rotary_emb_base", 1000.0, 1.0, 1e12)?;
    let eps = config.number("layer_norm_epsilon", 1e-12, 0.0, 1.0)?;
    let rope = config.rope(theta)?;
    rope.check(head_dim)?;
    Ok(Plan {
        shape: Shape {
            architecture: "nomic-bert",
            vocab_size: vocabulary.next_multiple_of(multiple),
            context_length: positions.min(trained),
            embedding_length,
            hidden_dim: number("intermediate_size", "n_inner", 1 << 22)?,
            layers: number("num_hidden_layers", "n_layer", 1 << 12)?,
            n_heads,
            n_kv_heads: n_heads,
            head_dim,
        },
        norm_eps: config.number("layer_norm_eps", eps, 0.0, 1.0)? as f32,
        positions: Positions::Rotary(rope),
        token_types: config.integer("type_vocab_size", 1, 1 << 16)?.unwrap_or(2),
        names: &[OF_TRANSFORMERS, PUBLISHED],
        head: None,
    })
}
