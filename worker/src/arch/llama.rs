//! The llama family from a Hugging Face checkpoint: grouped-query attention with rotary halves, RMS norms, SwiGLU.
//! Covers Llama 1 to 3.x, with biases, tied embeddings and the RoPE kinds of `arch::rope`.

use super::{Config, ConfigError, Forward, Output, RopeConfig, Shape, Tensors};
use crate::engine::LoadError;
use crate::kernels::{Batch, DeviceError, GateUp, Kernels, Linear, Norm, Pairing, Qkv, Rope};

/// The configuration, checked.
pub struct Plan {
    pub(super) shape: Shape,
    norm_eps: f32,
    rope: RopeConfig,
    tied: bool,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
}

impl Plan {
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let embedding_length = config.need("hidden_size", 1, 1 << 20)?;
        let n_heads = config.need("num_attention_heads", 1, 1 << 14)?;
        let n_kv_heads = config.integer("num_key_value_heads", 1, 1 << 14)?.unwrap_or(n_heads);
        let relation = |field, rule: String| Err(ConfigError::Relation { field, rule });
        if !n_heads.is_multiple_of(n_kv_heads) {
            return relation(
                "num_key_value_heads",
                format!("{n_heads} heads are no multiple of {n_kv_heads}"),
            );
        }
        let head_dim = match config.integer("head_dim", 2, 1 << 12)? {
            Some(head_dim) => head_dim,
            None if embedding_length.is_multiple_of(n_heads) => embedding_length / n_heads,
            None => {
                let rule =
                    format!("{embedding_length} is no multiple of {n_heads} heads, and there is no head_dim");
                return relation("hidden_size", rule);
            }
        };
        if !head_dim.is_multiple_of(2) {
            return relation("head_dim", format!("{head_dim} is odd, so it cannot be rotated in pairs"));
        }
        let unsupported = |field: &str, found: String, supported| {
            Err(ConfigError::Unsupported { field: field.to_owned(), found, supported })
        };
        match config.text("hidden_act")?.unwrap_or("silu") {
            "silu" | "swish" => {}
            other => return unsupported("hidden_act", format!("`{other}`"), "silu"),
        }
        let rotated = config.number("partial_rotary_factor", 1.0, 0.0, 1.0)?;
        if rotated != 1.0 {
            return unsupported("partial_rotary_factor", rotated.to_string(), "1");
        }
        let shape = Shape {
            architecture: "llama",
            vocab_size: config.need("vocab_size", 1, 1 << 24)?,
            context_length: config.integer("max_position_embeddings", 1, 1 << 26)?.unwrap_or(2048),
            embedding_length,
            hidden_dim: config.need("intermediate_size", 1, 1 << 22)?,
            layers: config.need("num_hidden_layers", 1, 1 << 12)?,
            n_heads,
            n_kv_heads,
            head_dim,
        };
        Ok(Self {
            shape,
            norm_eps: config.number("rms_norm_eps", 1e-6, 0.0, 1.0)? as f32,
            rope: config.rope(10_000.0)?,
            tied: config.flag("tie_word_embeddings", false)?,
            attention_bias: config.optional_flag("attention_bias")?,
            mlp_bias: config.optional_flag("mlp_bias")?,
        })
    }
}

struct Block<K: Kernels> {
    qkv: Qkv<K>,
    attention_out: Linear<K>,
    gate_up: GateUp<K>,
    down: Linear<K>,
}

/// The model on a device, with the buffers of its steps.
pub(super) struct Llama<K: Kernels> {
    embedding: K::Matrix,
    blocks: Vec<Block<K>>,
    norm: Norm<K>,
    /// `None`: the embedding table is the head too.
    head: Option<K::Matrix>,
    ropes: [Rope; 1],
    attention_scale: f32,
    /// `[R, embedding]`: what flows from block to block.
    x: K::Buffer,
    /// `[R, n_heads * head_dim]`
    q: K::Buffer,
    /// `[R, n_heads * head_dim]`
    mixed: K::Buffer,
    /// `[R, hidden_dim]`
    hidden: K::Buffer,
    out: K::Buffer,
}

/// Takes tensors by name and hands them to the device.
struct Loader<'a, K: Kernels> {
    tensors: &'a mut dyn Tensors,
    kernels: &'a mut K,
    eps: f32,
}

impl<K: Kernels> Loader<'_, K> {
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<K::Matrix, LoadError> {
        Ok(self.kernels.matrix(&self.tensors.matrix(name, rows, cols)?)?)
    }

    fn norm(&mut self, name: &str, len: usize) -> Result<Norm<K>, LoadError> {
        Ok(Norm { weight: self.kernels.vector(&self.tensors.vector(name, len)?)?, eps: self.eps })
    }

    /// A projection `prefix.weight`, with `prefix.bias` if the configuration wants one, or does not say and it is there.
    fn linear(
        &mut self,
        prefix: &str,
        (rows, cols): (usize, usize),
        bias: Option<bool>,
    ) -> Result<Linear<K>, LoadError> {
        let matrix = self.matrix(&format!("{prefix}.weight"), rows, cols)?;
        let name = format!("{prefix}.bias");
        let bias = match bias.unwrap_or_else(|| self.tensors.has(&name)) {
            true => Some(self.kernels.vector(&self.tensors.vector(&name, rows)?)?),
            false => None,
        };
        Ok(Linear { matrix, bias })
    }
}

impl<K: Kernels> Llama<K> {
    pub(super) fn build(plan: &Plan, tensors: &mut dyn Tensors, kernels: &mut K) -> Result<Self, LoadError> {
        let Shape { vocab_size, embedding_length: embedding, hidden_dim, head_dim, .. } = plan.shape;
        let q_rows = plan.shape.n_heads * head_dim;
        let kv_rows = plan.shape.n_kv_heads * head_dim;
        let mut load = Loader { tensors, kernels, eps: plan.norm_eps };

        let table = load.tensors.matrix("model.embed_tokens.weight", vocab_size, embedding);
        let table = load.kernels.matrix(&table.map_err(vocabulary)?)?;
        let head = match plan.tied {
            true => None,
            false => {
                let head = load.tensors.matrix("lm_head.weight", vocab_size, embedding);
                Some(load.kernels.matrix(&head.map_err(vocabulary)?)?)
            }
        };
        let mut blocks = Vec::new();
        for layer in 0..plan.shape.layers {
            let name = |part: &str| format!("model.layers.{layer}.{part}");
            let attention = plan.attention_bias;
            blocks.push(Block {
                qkv: Qkv {
                    norm: load.norm(&name("input_layernorm.weight"), embedding)?,
                    q: load.linear(&name("self_attn.q_proj"), (q_rows, embedding), attention)?,
                    k: load.linear(&name("self_attn.k_proj"), (kv_rows, embedding), attention)?,
                    v: load.linear(&name("self_attn.v_proj"), (kv_rows, embedding), attention)?,
                    rope: 0,
                },
                attention_out: load.linear(&name("self_attn.o_proj"), (embedding, q_rows), attention)?,
                gate_up: GateUp {
                    norm: load.norm(&name("post_attention_layernorm.weight"), embedding)?,
                    gate: load.linear(&name("mlp.gate_proj"), (hidden_dim, embedding), plan.mlp_bias)?,
                    up: load.linear(&name("mlp.up_proj"), (hidden_dim, embedding), plan.mlp_bias)?,
                },
                down: load.linear(&name("mlp.down_proj"), (embedding, hidden_dim), plan.mlp_bias)?,
            });
        }
        let norm = load.norm("model.norm.weight", embedding)?;
        Ok(Self {
            embedding: table,
            blocks,
            norm,
            head,
            ropes: [plan.rope.table(head_dim, Pairing::Halves)],
            attention_scale: 1.0 / (head_dim as f32).sqrt(),
            x: kernels.buffer(),
            q: kernels.buffer(),
            mixed: kernels.buffer(),
            hidden: kernels.buffer(),
            out: kernels.buffer(),
        })
    }
}

/// A table with another number of rows is a vocabulary that does not match.
fn vocabulary(error: LoadError) -> LoadError {
    match error {
        LoadError::TensorShape { name, expected, found }
            if expected.len() == 2 && found.len() == 2 && expected[1] == found[1] =>
        {
            LoadError::Vocabulary { name, config: expected[0], found: found[0] }
        }
        other => other,
    }
}

impl<K: Kernels> Forward<K> for Llama<K> {
    fn forward(
        &mut self,
        kernels: &mut K,
        batch: &Batch,
        cache: &mut K::Cache,
        output: &mut Output,
    ) -> Result<(), DeviceError> {
        let step = kernels.begin(batch, &self.ropes);
        kernels.embed(&step, &self.embedding, &mut self.x);
        for (layer, block) in self.blocks.iter().enumerate() {
            kernels.qkv(&step, &self.x, &block.qkv, cache, layer, &mut self.q);
            kernels.attention(&step, &self.q, self.attention_scale, cache, layer, &mut self.mixed);
            kernels.matmul_add(&step, &self.mixed, &block.attention_out, &mut self.x);
            kernels.gate_up(&step, &self.x, &block.gate_up, &mut self.hidden);
            kernels.matmul_add(&step, &self.hidden, &block.down, &mut self.x);
        }
        if !batch.logits.is_empty() {
            let head = self.head.as_ref().unwrap_or(&self.embedding);
            kernels.logits(&step, &self.x, &self.norm, head, &mut self.out);
            kernels.read(&self.out, &mut output.logits)?;
        }
        if !batch.hidden.is_empty() {
            kernels.hidden(&step, &self.x, &self.norm, &mut self.out);
            kernels.read(&self.out, &mut output.hidden)?;
        }
        Ok(())
    }
}
