//! The encoder shared by all families here: learned positions, a layer norm after each part, and GELU without
//! a gate. Every token attends to its whole sequence. A classification head reads the first token of a
//! sequence. A family's file turns its configuration into a [`Plan`].

use bytes::Bytes;

use super::{Forward, LoadError, Pass, Shape, Tensors};
use lode_kernels::{
    Attention, Batch, DeviceError, Float, Kernels, LayerNorm, Linear, Ops, Qkv, Rows, Weight,
};

/// A checked configuration.
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) norm_eps: f32,
    /// Number of rows of the position table, and the row of the first token.
    pub(super) positions: usize,
    pub(super) first_position: usize,
    /// Number of rows of the token type table. Without a head, all tokens use the first row.
    pub(super) token_types: usize,
    pub(super) head: Option<HeadPlan>,
}

/// A classification head: `out(tanh(dense(first token)))`.
pub(super) struct HeadPlan {
    pub(super) classes: usize,
    /// The names of its two projections.
    pub(super) dense: &'static str,
    pub(super) out: &'static str,
    /// Whether the second text of a pair has the second token type.
    pub(super) has_types: bool,
}

struct Block<K: Kernels> {
    qkv: Qkv<K>,
    out: Linear<K>,
    attention_norm: LayerNorm<K>,
    up: Linear<K>,
    down: Linear<K>,
    norm: LayerNorm<K>,
}

/// The classification head. Its second projection has a row for each class, and is computed on the host.
struct Head<K: Kernels> {
    dense: Linear<K>,
    /// `[classes, embedding]`
    out: Weight,
    /// `[classes]`
    bias: Vec<f32>,
    /// The table of token types, if pairs have different ones.
    types: Option<TokenTypes<K>>,
}

/// `[types, embedding]`, and zeros of `[embedding]`.
struct TokenTypes<K: Kernels> {
    table: K::Matrix,
    zeros: K::Vector,
}

/// The model on a device, with the buffers of its steps.
pub(super) struct Encoder<K: Kernels> {
    embedding: K::Matrix,
    positions: K::Matrix,
    token_type: K::Vector,
    norm: LayerNorm<K>,
    blocks: Vec<Block<K>>,
    attention: Attention,
    head: Option<Head<K>>,
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

impl<K: Kernels> Loader<'_, K> {
    /// A head, whose names are complete. `types` is the table of token types.
    fn head(&mut self, plan: &HeadPlan, width: usize, types: &Weight) -> Result<Head<K>, LoadError> {
        let HeadPlan { classes, dense, out, has_types } = *plan;
        let named = |name: &str, part: &str| format!("{name}.{part}");
        let matrix = self.tensors.matrix(&named(dense, "weight"), width, width)?;
        let bias = self.tensors.vector(&named(dense, "bias"), width)?;
        let dense =
            Linear { matrix: self.kernels.matrix(&matrix)?, bias: Some(self.kernels.vector(&bias, 0.0)?) };
        let bias_of_out = self.tensors.vector(&named(out, "bias"), classes)?;
        let out = self.tensors.matrix(&named(out, "weight"), classes, width)?;
        let mut bias = vec![0.0; classes];
        Ops::best().decode_row(&Rows::of(&bias_of_out), 0, &mut bias);
        let types = match has_types && types.rows() > 1 {
            false => None,
            true => {
                let zeros = Weight::floats(Float::F32, (1, width), Bytes::from(vec![0; 4 * width]));
                let zeros = zeros.expect("four bytes for each value");
                let zeros = self.kernels.vector(&zeros, 0.0)?;
                Some(TokenTypes { table: self.kernels.matrix(types)?, zeros })
            }
        };
        Ok(Head { dense, out, bias, types })
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
        let head = plan.head.as_ref().map(|head| load.head(head, width, &table)).transpose()?;
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
            head,
            x: kernels.buffer(),
            q: kernels.buffer(),
            mixed: kernels.buffer(),
            hidden: kernels.buffer(),
        })
    }
}

impl<K: Kernels> Encoder<K> {
    /// Begins the step, and writes the sum of the embeddings to `self.x`.
    fn embed(&mut self, kernels: &mut K, batch: &Batch, types: &[u32]) -> K::Step {
        let typed = self.head.as_ref().and_then(|head| head.types.as_ref());
        let Some(TokenTypes { table, zeros }) = typed.filter(|_| types.iter().any(|kind| *kind > 0)) else {
            let step = kernels.begin(batch, &[]);
            kernels.embed(&step, &self.embedding, 1.0, &mut self.x);
            kernels.positions(&step, &self.positions, &self.token_type, &mut self.x);
            return step;
        };
        // The rows of the type table are added as if they were positions.
        let step = kernels.begin(&Batch { positions: types.to_vec(), ..batch.clone() }, &[]);
        kernels.embed(&step, &self.embedding, 1.0, &mut self.x);
        kernels.positions(&step, table, zeros, &mut self.x);
        let step = kernels.begin(batch, &[]);
        kernels.positions(&step, &self.positions, zeros, &mut self.x);
        step
    }

    /// Appends the classes of the sequences that begin at these rows of `self.x`.
    fn classify(&mut self, kernels: &mut K, rows: &[u32], to: &mut Vec<f32>) -> Result<(), DeviceError> {
        let Some(head) = &self.head else { return Ok(()) };
        // A step with a row for each sequence, of which only the products are used.
        let batch = Batch { tokens: vec![0; rows.len()], hidden: rows.to_vec(), ..Batch::default() };
        let step = kernels.begin(&batch, &[]);
        kernels.hidden(&step, &self.x, None, &mut self.q);
        // Zeros, to which the product is added.
        kernels.embed(&step, &self.embedding, 0.0, &mut self.mixed);
        kernels.matmul_add(&step, &self.q, &head.dense, None, &mut self.mixed);
        let mut pooled = Vec::new();
        kernels.read(&self.mixed, &mut pooled)?;
        pooled.iter_mut().for_each(|value| *value = value.tanh());
        for row in pooled.chunks_exact(head.out.cols()) {
            let logits = Ops::best().matmul(&head.out, row);
            to.extend(logits.iter().zip(&head.bias).map(|(logit, bias)| logit + bias));
        }
        Ok(())
    }
}

impl<K: Kernels> Forward<K> for Encoder<K> {
    fn forward(&mut self, pass: Pass<'_, K>) -> Result<(), DeviceError> {
        let Pass { kernels, batch, scored, types, cache, output, is_cancelled } = pass;
        let step = self.embed(kernels, batch, types);
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
        if !scored.is_empty() {
            self.classify(kernels, scored, &mut output.scores)?;
        }
        Ok(())
    }
}
