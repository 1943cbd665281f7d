//! The encoder shared by all families here: learned positions, a layer norm after each part, and GELU without
//! a gate. Every token attends to its whole sequence. A family's file turns its configuration into a
//! [`Plan`].

use super::{Forward, LoadError, Pass, Shape, Tensors};
use lode_kernels::{Attention, DeviceError, Kernels, LayerNorm, Linear, Qkv};

/// A checked configuration.
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) norm_eps: f32,
    /// Number of rows of the position table, and the row of the first token.
    pub(super) positions: usize,
    pub(super) first_position: usize,
    /// Number of rows of the token type table; all tokens use the first row.
    pub(super) token_types: usize,
}

struct Block<K: Kernels> {
    qkv: Qkv<K>,
    out: Linear<K>,
    attention_norm: LayerNorm<K>,
    up: Linear<K>,
    down: Linear<K>,
    norm: LayerNorm<K>,
}

/// The model on a device, with the buffers of its steps.
pub(super) struct Encoder<K: Kernels> {
    embedding: K::Matrix,
    positions: K::Matrix,
    token_type: K::Vector,
    norm: LayerNorm<K>,
    blocks: Vec<Block<K>>,
    attention: Attention,
    /// `[R, embedding]`: the residual stream.
    x: K::Buffer,
    /// `[R, embedding]`
    q: K::Buffer,
    /// `[R, embedding]`
    mixed: K::Buffer,
    /// `[R, hidden_dim]`
    hidden: K::Buffer,
}

/// Reads tensors by name and uploads them to the device.
struct Loader<'a, K: Kernels> {
    tensors: &'a mut dyn Tensors,
    kernels: &'a mut K,
    prefix: &'static str,
    eps: f32,
}

/// Tensor name prefixes of the encoder in a checkpoint: none, or that of a task-specific model.
const PREFIXES: [&str; 3] = ["", "bert.", "roberta."];

impl<K: Kernels> Loader<'_, K> {
    fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Result<Linear<K>, LoadError> {
        let name = |part: &str| format!("{}{name}.{part}", self.prefix);
        let matrix = self.kernels.matrix(&self.tensors.matrix(&name("weight"), rows, cols)?)?;
        let bias = self.kernels.vector(&self.tensors.vector(&name("bias"), rows)?, 0.0)?;
        Ok(Linear { matrix, bias: Some(bias) })
    }

    fn norm(&mut self, name: &str, len: usize) -> Result<LayerNorm<K>, LoadError> {
        let mut vector = |part: &str| -> Result<K::Vector, LoadError> {
            let weight = self.tensors.vector(&format!("{}{name}.{part}", self.prefix), len)?;
            Ok(self.kernels.vector(&weight, 0.0)?)
        };
        Ok(LayerNorm { weight: vector("weight")?, bias: vector("bias")?, eps: self.eps })
    }

    fn block(&mut self, index: usize, width: usize, hidden_dim: usize) -> Result<Block<K>, LoadError> {
        let name = |part: &str| format!("encoder.layer.{index}.{part}");
        Ok(Block {
            qkv: Qkv {
                norm: None,
                q: self.linear(&name("attention.self.query"), width, width)?,
                k: self.linear(&name("attention.self.key"), width, width)?,
                v: self.linear(&name("attention.self.value"), width, width)?,
                head_norms: None,
                rope: None,
            },
            out: self.linear(&name("attention.output.dense"), width, width)?,
            attention_norm: self.norm(&name("attention.output.LayerNorm"), width)?,
            up: self.linear(&name("intermediate.dense"), hidden_dim, width)?,
            down: self.linear(&name("output.dense"), width, hidden_dim)?,
            norm: self.norm(&name("output.LayerNorm"), width)?,
        })
    }
}

impl<K: Kernels> Encoder<K> {
    pub(super) fn build(plan: &Plan, tensors: &mut dyn Tensors, kernels: &mut K) -> Result<Self, LoadError> {
        let Shape { vocab_size, embedding_length: width, hidden_dim, head_dim, .. } = plan.shape;
        let is_there = |prefix: &&str| tensors.has(&format!("{prefix}embeddings.word_embeddings.weight"));
        let prefix = PREFIXES.into_iter().find(is_there).unwrap_or(PREFIXES[0]);
        let mut load = Loader { tensors, kernels, prefix, eps: plan.norm_eps };
        let name = |part: &str| format!("{prefix}embeddings.{part}_embeddings.weight");

        let table =
            load.tensors.matrix(&name("word"), vocab_size, width).map_err(LoadError::of_vocabulary)?;
        let embedding = load.kernels.matrix(&table)?;
        let table = load.tensors.matrix(&name("position"), plan.positions, width)?;
        let table = table.row_range(plan.first_position, plan.shape.context_length);
        let positions = load.kernels.matrix(&table)?;
        let table = load.tensors.matrix(&name("token_type"), plan.token_types, width)?;
        let token_type = load.kernels.vector(&table.row_range(0, 1), 0.0)?;
        let norm = load.norm("embeddings.LayerNorm", width)?;
        let block = |index| load.block(index, width, hidden_dim);
        let blocks = (0..plan.shape.layers).map(block).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            embedding,
            positions,
            token_type,
            norm,
            blocks,
            attention: Attention {
                scale: 1.0 / (head_dim as f32).sqrt(),
                cap: None,
                window: None,
                causal: false,
            },
            x: kernels.buffer(),
            q: kernels.buffer(),
            mixed: kernels.buffer(),
            hidden: kernels.buffer(),
        })
    }
}

impl<K: Kernels> Forward<K> for Encoder<K> {
    fn forward(&mut self, pass: Pass<'_, K>) -> Result<(), DeviceError> {
        let Pass { kernels, batch, cache, output, is_cancelled } = pass;
        let step = kernels.begin(batch, &[]);
        kernels.embed(&step, &self.embedding, 1.0, &mut self.x);
        kernels.positions(&step, &self.positions, &self.token_type, &mut self.x);
        kernels.layer_norm(&step, &self.norm, &mut self.x);
        for block in &self.blocks {
            if is_cancelled() {
                return Ok(());
            }
            // Keys and values are used only within the layer, so all layers share one cache layer.
            kernels.qkv(&step, &self.x, &block.qkv, cache, 0, &mut self.q);
            kernels.attention(&step, &self.q, &self.attention, cache, 0, &mut self.mixed);
            kernels.matmul_add(&step, &self.mixed, &block.out, None, &mut self.x);
            kernels.layer_norm(&step, &block.attention_norm, &mut self.x);
            kernels.up(&step, &self.x, &block.up, &mut self.hidden);
            kernels.matmul_add(&step, &self.hidden, &block.down, None, &mut self.x);
            kernels.layer_norm(&step, &block.norm, &mut self.x);
        }
        if !batch.hidden.is_empty() {
            kernels.hidden(&step, &self.x, None, &mut self.hidden);
            kernels.read(&self.hidden, &mut output.hidden)?;
        }
        Ok(())
    }
}
