//! Writes the config.json of a GGUF's keys. The reverse of `super::super::hyper`.

use serde_json::{Map, Value as Json, json};

use super::hyper::Hyper;
use super::keys::Keys;
use super::rope;
use super::tensors::List;
use crate::convert::error::ConvertError;
use crate::convert::family::{Family, Window};
use crate::convert::hyper::MAX_HEAD_DIM;
use crate::gguf::{Array, Metadata, Value};
use crate::source::Source;

/// The number of layers of the largest Gemma 2 and Gemma 3, which scale scores by the width per head rather
/// than by the head size.
const LARGEST_GEMMA_2: u64 = 46;
const LARGEST_GEMMA_3: u64 = 62;
/// The sliding pattern of Gemma 3 without a key: every sixth layer has full attention.
const GEMMA_3_PATTERN: u64 = 6;

pub(super) struct Config {
    pub(super) json: Map<String, Json>,
    pub(super) hyper: Hyper,
}

impl Config {
    pub(super) fn set(&mut self, key: &str, value: Json) {
        self.json.insert(key.to_owned(), value);
    }
}

pub(super) fn write(
    metadata: &Metadata,
    tensors: &List,
    source: &dyn Source,
    notices: &mut Vec<String>,
) -> Result<Config, ConvertError> {
    let architecture = metadata
        .architecture()
        .ok_or(ConvertError::MissingGgufKey { key: "general.architecture".to_owned() })?;
    let k = Keys { metadata, architecture };
    let has_experts = k.optional("expert_count")?.unwrap_or(0) > 0;
    let family = Family::of_gguf(architecture, has_experts).ok_or_else(|| ConvertError::Architecture {
        architecture: architecture.chars().take(60).collect(),
        form: if has_experts { " with experts" } else { "" },
        known: Family::known_architectures().join(", "),
    })?;
    let hyper = read_hyper(&k, family, tensors)?;
    let mut json = Map::new();
    let mut set = |key: &str, value: Json| json.insert(key.to_owned(), value);
    set("architectures", json!([family.class]));
    set("model_type", family.model_type.into());
    set("hidden_size", hyper.width.into());
    set("intermediate_size", hyper.n_ff.into());
    set("num_hidden_layers", hyper.n_layers.into());
    set("num_attention_heads", hyper.n_heads.into());
    set("num_key_value_heads", hyper.n_kv_heads.into());
    set("head_dim", hyper.head_dim.into());
    set("max_position_embeddings", hyper.context_length.into());
    set("vocab_size", hyper.vocab_size.into());
    set("tie_word_embeddings", hyper.is_tied.into());
    set("use_cache", true.into());
    let epsilon = "attention.layer_norm_rms_epsilon";
    set("rms_norm_eps", k.float(epsilon)?.ok_or_else(|| k.missing(epsilon))?.into());
    set("attention_bias", tensors.has("blk.0.attn_q.bias").into());
    if family.is_gemma {
        set("hidden_activation", "gelu_pytorch_tanh".into());
    } else {
        set("hidden_act", "silu".into());
        set("mlp_bias", tensors.has("blk.0.ffn_up.bias").into());
    }
    if let Some(key) = family.experts_key {
        set(key, hyper.n_experts.into());
        set("num_experts_per_tok", k.count("expert_used_count")?.into());
    }
    if family.has_expert_width {
        set("moe_intermediate_size", hyper.n_expert_ff.into());
        // A GGUF of this architecture has experts in every layer, and their weights are normalised.
        set("norm_topk_prob", true.into());
        set("decoder_sparse_step", 1.into());
        set("mlp_only_layers", json!([]));
    }
    let window = k.optional("attention.sliding_window")?.filter(|window| *window > 0);
    match family.window {
        Window::Ignored | Window::Lost => {}
        Window::Required => {
            let window = window.ok_or_else(|| k.missing("attention.sliding_window"))?;
            set("sliding_window", window.into());
        }
        Window::Optional => _ = set("sliding_window", window.map_or(Json::Null, Json::from)),
    }
    if family.has_soft_caps {
        for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
            set(key, k.float(key)?.ok_or_else(|| k.missing(key))?.into());
        }
    }
    if family.is_gemma {
        let is_gemma3 = architecture == "gemma3";
        let largest = if is_gemma3 { LARGEST_GEMMA_3 } else { LARGEST_GEMMA_2 };
        let is_largest = hyper.n_layers == largest;
        let scalar = if is_largest { hyper.width / hyper.n_heads } else { hyper.head_dim };
        set("query_pre_attn_scalar", scalar.into());
        if is_gemma3 {
            set("layer_types", layer_types(&k, hyper.n_layers)?);
            set("rope_local_base_freq", k.float("rope.freq_base_swa")?.unwrap_or(10_000.0).into());
        }
    }
    rope::write(&k, &hyper, tensors, source, &mut json, notices)?;
    Ok(Config { json, hyper })
}

fn read_hyper(k: &Keys, family: &'static Family, tensors: &List) -> Result<Hyper, ConvertError> {
    let (width, n_heads) = (k.count("embedding_length")?, k.count("attention.head_count")?);
    let head_dim = k.optional("attention.key_length")?.unwrap_or(width / n_heads);
    if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        return Err(k.invalid("attention.key_length", "an even number up to 65536"));
    }
    if k.optional("attention.value_length")?.is_some_and(|length| length != head_dim) {
        return Err(k.invalid("attention.value_length", "the length of keys"));
    }
    let n_layers = k.count("block_count")?;
    if n_layers > tensors.len() as u64 {
        return Err(k.invalid("block_count", "at most the number of tensors"));
    }
    let n_ff = k.count("feed_forward_length")?;
    let embedding = "token_embd.weight";
    let shape =
        tensors.shape(embedding).ok_or(ConvertError::MissingTensor { tensor: embedding.to_owned() })?;
    let vocab_size = shape.first().copied().unwrap_or(0);
    if k.optional("vocab_size")?.is_some_and(|size| size != vocab_size) {
        return Err(k.invalid("vocab_size", "the number of rows of `token_embd.weight`"));
    }
    let n_experts = if family.experts_key.is_some() { k.count("expert_count")? } else { 0 };
    Ok(Hyper {
        family,
        n_layers,
        width,
        n_heads,
        n_kv_heads: match k.optional("attention.head_count_kv")? {
            Some(_) => k.count("attention.head_count_kv")?,
            None => n_heads,
        },
        head_dim,
        n_ff,
        n_experts,
        n_expert_ff: if family.has_expert_width { k.count("expert_feed_forward_length")? } else { n_ff },
        vocab_size,
        context_length: k.count("context_length")?,
        is_tied: !tensors.has("output.weight"),
    })
}

/// Which layers of Gemma 3 have a sliding window.
fn layer_types(k: &Keys, n_layers: u64) -> Result<Json, ConvertError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let name = |slides: bool| if slides { "sliding_attention" } else { "full_attention" };
    if let Some(Array::Bool(slides)) = k.get(PATTERN).and_then(Value::as_array) {
        if slides.len() as u64 != n_layers {
            return Err(k.invalid(PATTERN, "one flag for each layer"));
        }
        return Ok(slides.iter().map(|slides| name(*slides)).collect());
    }
    let every = if k.get(PATTERN).is_some() { k.count(PATTERN)? } else { GEMMA_3_PATTERN };
    Ok((1..=n_layers).map(|layer| name(!layer.is_multiple_of(every))).collect())
}
