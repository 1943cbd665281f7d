//! The decoder shared by all families here: attention, then a feed-forward part, each with its norm and added
//! to the residual stream. A family's file turns its configuration into a [`Plan`]; the forward pass is
//! written once. Encoders with the layers of a decoder use it too.

use super::plan::{ExpertPlan, Plan};
use super::{Forward, LoadError, Pass, RopeConfig, Shape, Tensors};
use lode_kernels::{
    Attention, DeviceError, Expert, Experts, GateUp, Kernels, Linear, Norm, Qkv, Rope, Weight,
};

struct Block<K: Kernels> {
    qkv: Qkv<K>,
    attention: Attention,
    out: Linear<K>,
    out_norm: Option<Norm<K>>,
    feed_forward: FeedForward<K>,
}

enum FeedForward<K: Kernels> {
    Gated { gate_up: GateUp<K>, down: Linear<K>, norm: Option<Norm<K>> },
    Experts(Experts<K>),
}

/// The model on a device, with the buffers of its steps.
pub(super) struct Decoder<K: Kernels> {
    embedding: K::Matrix,
    embedding_scale: f32,
    blocks: Vec<Block<K>>,
    norm: Norm<K>,
    /// `None`: the embedding table is also the head.
    head: Option<K::Matrix>,
    logits_cap: Option<f32>,
    ropes: Vec<Rope>,
    /// `[R, embedding]`: the residual stream.
    x: K::Buffer,
    /// `[R, n_heads * head_dim]`
    q: K::Buffer,
    /// `[R, n_heads * head_dim]`
    mixed: K::Buffer,
    /// `[R, hidden_dim]`
    hidden: K::Buffer,
    out: K::Buffer,
}

/// Reads tensors by name and uploads them to the device.
struct Loader<'a, K: Kernels> {
    plan: &'a Plan,
    tensors: &'a mut dyn Tensors,
    kernels: &'a mut K,
    /// The prefix of `layers` in tensor names.
    prefix: &'static str,
}

/// Tensor name prefixes of the decoder in a checkpoint: `model`, none, or that of a model with a vision
/// tower.
const PREFIXES: [&str; 4] = ["model.", "", "language_model.model.", "model.language_model."];

impl<K: Kernels> Loader<'_, K> {
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<K::Matrix, LoadError> {
        Ok(self.kernels.matrix(&self.tensors.matrix(name, rows, cols)?)?)
    }

    fn norm(&mut self, name: &str, len: usize) -> Result<Norm<K>, LoadError> {
        let weight = self.tensors.vector(name, len)?;
        Ok(Norm { weight: self.kernels.vector(&weight, self.plan.norm_plus)?, eps: self.plan.norm_eps })
    }

    /// A projection `prefix.weight`, with `prefix.bias` if `bias` is true, or if it is `None` and the file
    /// has one.
    fn linear(
        &mut self,
        prefix: &str,
        (rows, cols): (usize, usize),
        bias: Option<bool>,
    ) -> Result<Linear<K>, LoadError> {
        let matrix = self.matrix(&format!("{prefix}.weight"), rows, cols)?;
        let name = format!("{prefix}.bias");
        let bias = match bias.unwrap_or_else(|| self.tensors.has(&name)) {
            true => Some(self.kernels.vector(&self.tensors.vector(&name, rows)?, 0.0)?),
            false => None,
        };
        Ok(Linear { matrix, bias })
    }

    /// Projections of the same rows: for each the prefix of its names and its number of rows.
    fn linears<const N: usize>(
        &mut self,
        parts: [(&str, usize); N],
        name: impl Fn(&str) -> String,
        cols: usize,
        bias: Option<bool>,
    ) -> Result<[Linear<K>; N], LoadError> {
        let mut weights = Vec::with_capacity(N);
        for (part, rows) in parts {
            weights.push(self.tensors.matrix(&name(&format!("{part}.weight")), rows, cols)?);
        }
        let mut linears = self.together::<N>(&weights)?;
        for ((part, rows), linear) in parts.into_iter().zip(&mut linears) {
            let name = name(&format!("{part}.bias"));
            if bias.unwrap_or_else(|| self.tensors.has(&name)) {
                linear.bias = Some(self.kernels.vector(&self.tensors.vector(&name, rows)?, 0.0)?);
            }
        }
        Ok(linears)
    }

    /// Splits a matrix of the file into projections, in the order of their rows.
    fn split<const N: usize>(
        &mut self,
        name: &str,
        rows: [usize; N],
        cols: usize,
    ) -> Result<[Linear<K>; N], LoadError> {
        let whole: Weight = self.tensors.matrix(name, rows.iter().sum(), cols)?;
        let mut first = 0;
        let parts = rows.map(|n| {
            first += n;
            whole.row_range(first - n, n)
        });
        self.together(&parts)
    }

    /// Loads matrices with the same input.
    fn together<const N: usize>(&mut self, weights: &[Weight]) -> Result<[Linear<K>; N], LoadError> {
        let matrices = self.kernels.matrices(weights)?;
        let linears: Vec<_> = matrices.into_iter().map(|matrix| Linear { matrix, bias: None }).collect();
        Ok(linears.try_into().unwrap_or_else(|_| unreachable!("one matrix per weight")))
    }

    fn block(&mut self, index: usize) -> Result<Block<K>, LoadError> {
        let (plan, layer) = (self.plan, self.plan.layers[index]);
        let Shape { embedding_length: embedding, n_heads, n_kv_heads, head_dim, .. } = plan.shape;
        let (q_rows, kv_rows) = (n_heads * head_dim, n_kv_heads * head_dim);
        let prefix = self.prefix;
        let name = |part: &str| format!("{prefix}layers.{index}.{part}");

        let norm = self.norm(&name("input_layernorm.weight"), embedding)?;
        let [q, k, v] = if plan.fused {
            self.split(&name("self_attn.qkv_proj.weight"), [q_rows, kv_rows, kv_rows], embedding)?
        } else {
            let parts =
                [("self_attn.q_proj", q_rows), ("self_attn.k_proj", kv_rows), ("self_attn.v_proj", kv_rows)];
            self.linears(parts, name, embedding, plan.qkv_bias)?
        };
        let head_norms = match plan.head_norms {
            true => Some([
                self.norm(&name("self_attn.q_norm.weight"), head_dim)?,
                self.norm(&name("self_attn.k_norm.weight"), head_dim)?,
            ]),
            false => None,
        };
        let out = self.linear(&name("self_attn.o_proj"), (embedding, q_rows), plan.out_bias)?;
        let out_norm = match plan.post_norms {
            true => Some(self.norm(&name("post_attention_layernorm.weight"), embedding)?),
            false => None,
        };
        let feed_forward = match &plan.experts {
            Some(experts) if layer.experts => FeedForward::Experts(self.experts(experts, name)?),
            _ => self.gated(name)?,
        };
        Ok(Block {
            qkv: Qkv { norm: Some(norm), q, k, v, head_norms, rope: Some(layer.rope) },
            attention: Attention {
                scale: plan.attention_scale,
                cap: plan.attention_cap,
                window: layer.window,
                causal: plan.causal,
            },
            out,
            out_norm,
            feed_forward,
        })
    }

    /// The norm before the feed-forward part. In families with a norm after attention,
    /// `post_attention_layernorm` is the name of that one.
    fn feed_forward_norm(&mut self, name: impl Fn(&str) -> String) -> Result<Norm<K>, LoadError> {
        let own = if self.plan.post_norms { "pre_feedforward_layernorm" } else { "post_attention_layernorm" };
        self.norm(&name(&format!("{own}.weight")), self.plan.shape.embedding_length)
    }

    fn gated(&mut self, name: impl Fn(&str) -> String) -> Result<FeedForward<K>, LoadError> {
        let plan = self.plan;
        let Shape { embedding_length: embedding, hidden_dim, .. } = plan.shape;
        let norm = self.feed_forward_norm(&name)?;
        let [gate, up] = if plan.fused {
            self.split(&name("mlp.gate_up_proj.weight"), [hidden_dim; 2], embedding)?
        } else {
            let parts = [("mlp.gate_proj", hidden_dim), ("mlp.up_proj", hidden_dim)];
            self.linears(parts, &name, embedding, plan.mlp_bias)?
        };
        let gate_up = GateUp { norm: Some(norm), gate, up, activation: plan.activation };
        let down = self.linear(&name("mlp.down_proj"), (embedding, hidden_dim), plan.mlp_bias)?;
        let norm = match plan.post_norms {
            true => Some(self.norm(&name("post_feedforward_layernorm.weight"), embedding)?),
            false => None,
        };
        Ok(FeedForward::Gated { gate_up, down, norm })
    }

    fn experts(&mut self, of: &ExpertPlan, name: impl Fn(&str) -> String) -> Result<Experts<K>, LoadError> {
        let embedding = self.plan.shape.embedding_length;
        let [router, prefix, gate, up, down] = of.names;
        let norm = self.feed_forward_norm(&name)?;
        let router = self.matrix(&name(&format!("{router}.weight")), of.count, embedding)?;
        let mut experts = Vec::with_capacity(of.count);
        for expert in 0..of.count {
            let name = |part: &str| name(&format!("{prefix}.{expert}.{part}.weight"));
            experts.push(Expert {
                gate: self.tensors.matrix(&name(gate), of.hidden_dim, embedding)?,
                up: self.tensors.matrix(&name(up), of.hidden_dim, embedding)?,
                down: self.tensors.matrix(&name(down), embedding, of.hidden_dim)?,
            });
        }
        let weights = self.kernels.expert_weights(experts)?;
        let (used, renormalise, activation) = (of.used, of.renormalise, self.plan.activation);
        Ok(Experts { norm, router, weights, used, renormalise, activation })
    }
}

impl<K: Kernels> Decoder<K> {
    pub(super) fn build(
        plan: &Plan,
        tensors: &mut dyn Tensors,
        kernels: &mut K,
        context_length: usize,
    ) -> Result<Self, LoadError> {
        let Shape { vocab_size, embedding_length: embedding, .. } = plan.shape;
        let is_there = |prefix: &&str| tensors.has(&format!("{prefix}embed_tokens.weight"));
        let prefix = PREFIXES.into_iter().find(is_there).unwrap_or(PREFIXES[0]);
        let mut load = Loader { plan, tensors, kernels, prefix };

        let table = load.tensors.matrix(&format!("{prefix}embed_tokens.weight"), vocab_size, embedding);
        let table = load.kernels.matrix(&table.map_err(LoadError::of_vocabulary)?)?;
        let head = match plan.tied {
            true => None,
            false => {
                let head = load.tensors.matrix("lm_head.weight", vocab_size, embedding);
                Some(load.kernels.matrix(&head.map_err(LoadError::of_vocabulary)?)?)
            }
        };
        let blocks = (0..plan.shape.layers).map(|index| load.block(index)).collect::<Result<Vec<_>, _>>()?;
        let norm = load.norm(&format!("{prefix}norm.weight"), embedding)?;
        let rope = |rope: &RopeConfig| rope.table(plan.rotated, plan.pairing, context_length);
        Ok(Self {
            embedding: table,
            embedding_scale: plan.embedding_scale,
            blocks,
            norm,
            head,
            logits_cap: plan.logits_cap,
            ropes: plan.ropes.iter().map(rope).collect(),
            x: kernels.buffer(),
            q: kernels.buffer(),
            mixed: kernels.buffer(),
            hidden: kernels.buffer(),
            out: kernels.buffer(),
        })
    }
}

impl<K: Kernels> Forward<K> for Decoder<K> {
    fn forward(&mut self, pass: Pass<'_, K>) -> Result<(), DeviceError> {
        let Pass { kernels, batch, cache, output, is_cancelled, .. } = pass;
        let step = kernels.begin(batch, &self.ropes);
        kernels.embed(&step, &self.embedding, self.embedding_scale, &mut self.x);
        for (layer, block) in self.blocks.iter().enumerate() {
            if is_cancelled() {
                return Ok(());
            }
            // Keys and values of an encoder are used only within the layer, so all layers share one.
            let layer = if block.attention.causal { layer } else { 0 };
            kernels.qkv(&step, &self.x, &block.qkv, cache, layer, &mut self.q);
            kernels.attention(&step, &self.q, &block.attention, cache, layer, &mut self.mixed);
            kernels.matmul_add(&step, &self.mixed, &block.out, block.out_norm.as_ref(), &mut self.x);
            match &block.feed_forward {
                FeedForward::Gated { gate_up, down, norm } => {
                    kernels.gate_up(&step, &self.x, gate_up, &mut self.hidden);
                    kernels.matmul_add(&step, &self.hidden, down, norm.as_ref(), &mut self.x);
                }
                FeedForward::Experts(experts) => kernels.experts(&step, experts, &mut self.x),
            }
        }
        if !batch.logits.is_empty() {
            let head = self.head.as_ref().unwrap_or(&self.embedding);
            kernels.logits(&step, &self.x, &self.norm, head, self.logits_cap, &mut self.out);
            kernels.read(&self.out, &mut output.logits)?;
        }
        if !batch.hidden.is_empty() {
            kernels.hidden(&step, &self.x, Some(&self.norm), &mut self.out);
            kernels.read(&self.out, &mut output.hidden)?;
        }
        Ok(())
    }
}
