//! A decoder's structure as its configuration describes it: dimensions, norms, windows, rotations, experts. A
//! family's file adapts llama's [`Plan`]; `decoder` builds and runs it.

use super::{Config, ConfigError, RopeConfig, Shape};
use lode_kernels::{Activation, Pairing};

/// A checked configuration. [`Plan::of`] builds llama's; other families change the parts that differ.
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) norm_eps: f32,
    /// A constant added to every norm's weight.
    pub(super) norm_plus: f32,
    pub(super) embedding_scale: f32,
    /// Whether the embedding table is also the head.
    pub(super) tied: bool,
    /// The rotary embeddings; [`Layer::rope`] is an index into them.
    pub(super) ropes: Vec<RopeConfig>,
    /// Number of dimensions of a head that rotate.
    pub(super) rotated: usize,
    pub(super) pairing: Pairing,
    /// Whether a token attends only to itself and the tokens before it. Otherwise the model is an encoder.
    pub(super) causal: bool,
    pub(super) attention_scale: f32,
    pub(super) attention_cap: Option<f32>,
    pub(super) logits_cap: Option<f32>,
    /// Whether q, k and v have biases; `None`: if the file has them. Likewise below.
    pub(super) qkv_bias: Option<bool>,
    pub(super) out_bias: Option<bool>,
    pub(super) mlp_bias: Option<bool>,
    /// Whether each head of q and k has a norm.
    pub(super) head_norms: bool,
    /// Whether the outputs of attention and of the feed-forward part have a norm before they are added.
    pub(super) post_norms: bool,
    /// Whether q, k and v are one matrix in the file, and gate and up another.
    pub(super) fused: bool,
    pub(super) activation: Activation,
    pub(super) experts: Option<ExpertPlan>,
    pub(super) layers: Vec<Layer>,
}

/// The settings that differ between the layers of a model.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layer {
    /// A row attends to keys whose distance from it is below this; `None`: to all.
    pub(super) window: Option<usize>,
    /// Index into [`Plan::ropes`].
    pub(super) rope: usize,
    /// Whether it has a mixture of experts instead of one gated part.
    pub(super) experts: bool,
}

pub(super) struct ExpertPlan {
    pub(super) count: usize,
    pub(super) used: usize,
    pub(super) hidden_dim: usize,
    pub(super) renormalise: bool,
    /// Names within a layer: the router, the prefix of an expert's number, and its gate, up and down.
    pub(super) names: [&'static str; 5],
}

/// The defaults of transformers for missing configuration values.
pub(super) struct FamilyDefaults {
    pub(super) theta: f64,
    pub(super) norm_eps: f64,
    /// `None`: the width divided by the number of heads.
    pub(super) head_dim: Option<usize>,
    pub(super) tied: bool,
    /// The numbers of query and key heads. `None`: the number of query heads is required, and the number of
    /// key heads defaults to it.
    pub(super) heads: Option<[usize; 2]>,
    pub(super) vocab_size: Option<usize>,
    pub(super) context_length: usize,
}

/// The defaults for llama and most other families.
pub(super) const LLAMA_DEFAULTS: FamilyDefaults = FamilyDefaults {
    theta: 10_000.0,
    norm_eps: 1e-6,
    head_dim: None,
    tied: false,
    heads: None,
    vocab_size: None,
    context_length: 2048,
};

impl Plan {
    /// A plain decoder: pre-norms, SwiGLU, no windows, biases only if the file has them.
    pub(super) fn of(
        config: &Config,
        architecture: &'static str,
        silent: &FamilyDefaults,
    ) -> Result<Self, ConfigError> {
        let embedding_length = config.require_integer("hidden_size", 1, 1 << 20)?;
        let field = |name, silent: Option<usize>, max| match config.integer(name, 1, max)?.or(silent) {
            Some(found) => Ok(found),
            None => Err(ConfigError::Missing { field: name }),
        };
        let n_heads = field("num_attention_heads", silent.heads.map(|heads| heads[0]), 1 << 14)?;
        let n_kv_heads =
            field("num_key_value_heads", silent.heads.map(|heads| heads[1]).or(Some(n_heads)), 1 << 14)?;
        let relation = |field, rule: String| Err(ConfigError::Relation { field, rule });
        if !n_heads.is_multiple_of(n_kv_heads) {
            return relation(
                "num_key_value_heads",
                format!("{n_heads} heads are not a multiple of {n_kv_heads}"),
            );
        }
        let head_dim = match config.integer("head_dim", 2, 1 << 12)?.or(silent.head_dim) {
            Some(head_dim) => head_dim,
            None if embedding_length.is_multiple_of(n_heads) => embedding_length / n_heads,
            None => {
                let rule = format!(
                    "{embedding_length} is not a multiple of {n_heads} heads, and there is no head_dim"
                );
                return relation("hidden_size", rule);
            }
        };
        if !head_dim.is_multiple_of(2) {
            return relation("head_dim", format!("{head_dim} is odd, so it cannot be rotated in pairs"));
        }
        let layers = config.require_integer("num_hidden_layers", 1, 1 << 12)?;
        let shape = Shape {
            architecture,
            vocab_size: field("vocab_size", silent.vocab_size, 1 << 24)?,
            context_length: field("max_position_embeddings", Some(silent.context_length), 1 << 26)?,
            embedding_length,
            hidden_dim: config.require_integer("intermediate_size", 1, 1 << 22)?,
            layers,
            n_heads,
            n_kv_heads,
            head_dim,
        };
        Ok(Self {
            shape,
            norm_eps: config.number("rms_norm_eps", silent.norm_eps, 0.0, 1.0)? as f32,
            norm_plus: 0.0,
            embedding_scale: 1.0,
            tied: config.flag("tie_word_embeddings", silent.tied)?,
            ropes: vec![config.rope(silent.theta)?],
            rotated: rotated(config, head_dim)?,
            pairing: Pairing::Halves,
            causal: true,
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            attention_cap: None,
            logits_cap: None,
            qkv_bias: config.optional_flag("attention_bias")?,
            out_bias: config.optional_flag("attention_bias")?,
            mlp_bias: config.optional_flag("mlp_bias")?,
            head_norms: false,
            post_norms: false,
            fused: false,
            activation: activation(config)?,
            experts: None,
            layers: vec![Layer::default(); layers],
        })
    }

    /// Sets `window` on the sliding layers of `layer_types`, or if that is absent, on those that `otherwise`
    /// selects.
    pub(super) fn set_layer_windows(
        &mut self,
        config: &Config,
        window: Option<usize>,
        otherwise: impl Fn(usize) -> bool,
    ) -> Result<(), ConfigError> {
        let types = config.layer_types(self.layers.len())?;
        for (index, layer) in self.layers.iter_mut().enumerate() {
            let slides = types.as_ref().map_or_else(|| otherwise(index), |t| t[index] == "sliding_attention");
            layer.window = window.filter(|_| slides);
        }
        Ok(())
    }

    /// Checks the plan after the family has changed it.
    pub(super) fn check(self) -> Result<Self, ConfigError> {
        self.ropes.iter().try_for_each(|rope| rope.check(self.rotated))?;
        Ok(self)
    }
}

/// How many of `count` experts process a row. The default is `silent`, if there are that many.
pub(super) fn experts_used(config: &Config, count: usize, silent: usize) -> Result<usize, ConfigError> {
    let field = "num_experts_per_tok";
    let family_defaults = (silent <= count).then_some(silent);
    config.integer(field, 1, count as u64)?.or(family_defaults).ok_or(ConfigError::Missing { field })
}

/// The sliding window in keys. 0 and null mean none; `silent` is the default for a missing field.
pub(super) fn window(config: &Config, silent: Option<usize>) -> Result<Option<usize>, ConfigError> {
    if !config.has_field("sliding_window") {
        return Ok(silent);
    }
    Ok(config.integer("sliding_window", 0, 1 << 32)?.filter(|window| *window > 0))
}

/// The soft cap of scores or logits; none for null.
pub(super) fn soft_cap(config: &Config, field: &'static str) -> Result<Option<f32>, ConfigError> {
    let cap = config.number(field, 0.0, 0.0, 1e9)?;
    Ok((cap > 0.0).then_some(cap as f32))
}

fn activation(config: &Config) -> Result<Activation, ConfigError> {
    let field = if config.has_field("hidden_activation") { "hidden_activation" } else { "hidden_act" };
    match config.text(field)? {
        None | Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
        Some(other) => Err(ConfigError::Unsupported {
            field: field.to_owned(),
            found: format!("`{other}`"),
            supported: "silu, gelu_pytorch_tanh",
        }),
    }
}

fn rotated(config: &Config, head_dim: usize) -> Result<usize, ConfigError> {
    let share = config.number("partial_rotary_factor", 1.0, 0.0, 1.0)?;
    let rotated = (head_dim as f64 * share) as usize;
    if rotated < 2 || !rotated.is_multiple_of(2) {
        let rule = format!("{share} of {head_dim} dimensions cannot be rotated in pairs");
        return Err(ConfigError::Relation { field: "partial_rotary_factor", rule });
    }
    Ok(rotated)
}
