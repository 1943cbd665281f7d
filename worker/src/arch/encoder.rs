//! The encoder shared by all families here: learned or rotary positions, a layer norm after each part, and
//! GELU without a gate or SiLU with one. Every token attends to its whole sequence. A classification head
//! reads the first token of a sequence. A family's file turns its configuration into a [`Plan`].

use super::{Forward, LoadError, Pass, RopeConfig, Shape, Tensors};
use lode_kernels::{
    Activation, Attention, Batch, DeviceError, Float, GateUp, Kernels, LayerNorm, Linear, Ops, Pairing, Qkv,
    Rope, Rows, Weight,
};

/// A checked configuration.
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) norm_eps: f32,
    pub(super) positions: Positions,
    /// The spellings of the family. A model has the first one whose tensors are there, or else the last one.
    pub(super) names: &'static [Names],
    /// Number of rows of the token type table. Without a head, all tokens use the first row.
    pub(super) token_types: usize,
    pub(super) head: Option<HeadPlan>,
}

/// How tokens know their positions.
pub(super) enum Positions {
    /// From a table of this number of rows, of which `first` is that of the first token.
    Learned { rows: usize, first: usize },
    /// From the rotation of queries and keys.
    Rotary(RopeConfig),
}

/// The names of a checkpoint's tensors, of which some tell the form of its layers.
pub(super) struct Names {
    /// The norm of the embeddings.
    pub(super) embedding_norm: &'static str,
    /// Precedes the number of a layer; the others are within a layer.
    pub(super) layers: &'static str,
    /// The projections of q, k and v, or the only name if they are one matrix.
    pub(super) qkv: &'static [&'static str],
    pub(super) out: &'static str,
    pub(super) attention_norm: &'static str,
    /// With a gate, the activation is SiLU, else GELU.
    pub(super) gate: Option<&'static str>,
    pub(super) up: &'static str,
    pub(super) down: &'static str,
    pub(super) norm: &'static str,
    /// Whether every matrix has a bias; otherwise those do that have one in the file.
    pub(super) biases: bool,
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
    feed_forward: FeedForward<K>,
    down: Linear<K>,
    norm: LayerNorm<K>,
}

enum FeedForward<K: Kernels> {
    Plain(Linear<K>),
    Gated(GateUp<K>),
}

/// The classification head. Its second projection has a row for each class, and is computed on the host.
struct Head<K: Kernels> {
    dense: Linear<K>,
    /// `[classes, embedding]`
    out: Weight,
    /// `[classes]`
    bias: Vec<f32>,
}

/// How positions and token types are added to the embeddings. Rows of the type table are added as if they
/// were positions, together with `zeros` of `[embedding]`.
enum Added<K: Kernels> {
    /// The position table, and the first row of the type table, which all tokens have.
    Positions { positions: K::Matrix, token_type: K::Vector },
    /// The position table and the type table.
    PositionsAndTypes { positions: K::Matrix, types: K::Matrix, token_type: K::Vector, zeros: K::Vector },
    /// The type table alone: positions are rotations.
    Types { types: K::Matrix, zeros: K::Vector },
}

/// The model on a device, with the buffers of its steps.
pub(super) struct Encoder<K: Kernels> {
    embedding: K::Matrix,
    added: Added<K>,
    /// The rotation of queries and keys, if there is one.
    ropes: Vec<Rope>,
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
    plan: &'a Plan,
    names: &'static Names,
}

/// Tensor name prefixes of the encoder in a checkpoint: none, or that of a task-specific model.
const PREFIXES: [&str; 4] = ["", "bert.", "roberta.", "nomic_bert."];

/// The values of a vector.
fn numbers(vector: &Weight) -> Vec<f32> {
    let mut numbers = vec![0.0; vector.cols()];
    Ops::best().decode_row(&Rows::of(vector), 0, &mut numbers);
    numbers
}

fn vector_of(numbers: &[f32]) -> Weight {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Weight::floats(Float::F32, (1, numbers.len()), bytes).expect("four bytes for each value")
}

impl<K: Kernels> Loader<'_, K> {
    fn linear(&mut self, name: &str, rows: usize, cols: usize) -> Result<Linear<K>, LoadError> {
        let [linear] = self.split(name, [rows], cols)?;
        Ok(linear)
    }

    /// Splits a projection of the file, in the order of its rows.
    fn split<const N: usize>(
        &mut self,
        name: &str,
        rows: [usize; N],
        cols: usize,
    ) -> Result<[Linear<K>; N], LoadError> {
        let name = |part: &str| format!("{}{name}.{part}", self.prefix);
        let all = rows.iter().sum();
        let matrix = self.tensors.matrix(&name("weight"), all, cols)?;
        let bias = match self.names.biases || self.tensors.has(&name("bias")) {
            true => numbers(&self.tensors.vector(&name("bias"), all)?),
            false => Vec::new(),
        };
        let (mut parts, mut first) = (Vec::with_capacity(N), 0);
        for n in rows {
            let bias = bias.get(first..first + n).map(|bias| self.kernels.vector(&vector_of(bias), 0.0));
            let bias = bias.transpose()?;
            parts.push(Linear { matrix: self.kernels.matrix(&matrix.row_range(first, n))?, bias });
            first += n;
        }
        Ok(parts.try_into().unwrap_or_else(|_| unreachable!("one part per number of rows")))
    }

    fn norm(&mut self, name: &str, len: usize) -> Result<LayerNorm<K>, LoadError> {
        let mut vector = |part: &str| -> Result<K::Vector, LoadError> {
            let weight = self.tensors.vector(&format!("{}{name}.{part}", self.prefix), len)?;
            Ok(self.kernels.vector(&weight, 0.0)?)
        };
        Ok(LayerNorm { weight: vector("weight")?, bias: vector("bias")?, eps: self.plan.norm_eps })
    }

    fn block(&mut self, index: usize) -> Result<Block<K>, LoadError> {
        let Shape { embedding_length: width, hidden_dim, .. } = self.plan.shape;
        let names = self.names;
        let name = |part: &str| format!("{}{index}.{part}", names.layers);
        let [q, k, v] = match *names.qkv {
            [q, k, v] => [
                self.linear(&name(q), width, width)?,
                self.linear(&name(k), width, width)?,
                self.linear(&name(v), width, width)?,
            ],
            _ => self.split(&name(names.qkv[0]), [width; 3], width)?,
        };
        let rope = matches!(self.plan.positions, Positions::Rotary(_)).then_some(0);
        let out = self.linear(&name(names.out), width, width)?;
        let attention_norm = self.norm(&name(names.attention_norm), width)?;
        let up = self.linear(&name(names.up), hidden_dim, width)?;
        let feed_forward = match names.gate {
            None => FeedForward::Plain(up),
            Some(gate) => {
                let gate = self.linear(&name(gate), hidden_dim, width)?;
                FeedForward::Gated(GateUp { norm: None, gate, up, activation: Activation::Silu })
            }
        };
        Ok(Block {
            qkv: Qkv { norm: None, q, k, v, head_norms: None, rope },
            out,
            attention_norm,
            feed_forward,
            down: self.linear(&name(names.down), width, hidden_dim)?,
            norm: self.norm(&name(names.norm), width)?,
        })
    }

    /// Reads the tables that are added to the embeddings. `has_types` tells whether tokens may have other
    /// types than the first.
    fn added(&mut self, has_types: bool) -> Result<Added<K>, LoadError> {
        let (prefix, width) = (self.prefix, self.plan.shape.embedding_length);
        let name = |part: &str| format!("{prefix}embeddings.{part}_embeddings.weight");
        let types = self.tensors.matrix(&name("token_type"), self.plan.token_types, width)?;
        let mut zeros = || self.kernels.vector(&vector_of(&vec![0.0; width]), 0.0);
        let Positions::Learned { rows, first } = self.plan.positions else {
            let zeros = zeros()?;
            return Ok(Added::Types { types: self.kernels.matrix(&types)?, zeros });
        };
        let zeros = (has_types && types.rows() > 1).then(zeros).transpose()?;
        let positions = self.tensors.matrix(&name("position"), rows, width)?;
        let positions = positions.row_range(first, self.plan.shape.context_length);
        let positions = self.kernels.matrix(&positions)?;
        let token_type = self.kernels.vector(&types.row_range(0, 1), 0.0)?;
        Ok(match zeros {
            None => Added::Positions { positions, token_type },
            Some(zeros) => {
                Added::PositionsAndTypes { positions, types: self.kernels.matrix(&types)?, token_type, zeros }
            }
        })
    }
}

impl<K: Kernels> Loader<'_, K> {
    /// A head, whose names are complete.
    fn head(&mut self, plan: &HeadPlan, width: usize) -> Result<Head<K>, LoadError> {
        let HeadPlan { classes, dense, out, .. } = *plan;
        let named = |name: &str, part: &str| format!("{name}.{part}");
        let matrix = self.tensors.matrix(&named(dense, "weight"), width, width)?;
        let bias = self.tensors.vector(&named(dense, "bias"), width)?;
        let dense =
            Linear { matrix: self.kernels.matrix(&matrix)?, bias: Some(self.kernels.vector(&bias, 0.0)?) };
        let bias_of_out = numbers(&self.tensors.vector(&named(out, "bias"), classes)?);
        let out = self.tensors.matrix(&named(out, "weight"), classes, width)?;
        Ok(Head { dense, out, bias: bias_of_out })
    }
}

impl<K: Kernels> Encoder<K> {
    pub(super) fn build(
        plan: &Plan,
        tensors: &mut dyn Tensors,
        kernels: &mut K,
        context_length: usize,
    ) -> Result<Self, LoadError> {
        let Shape { vocab_size, embedding_length: width, head_dim, .. } = plan.shape;
        let is_there = |prefix: &&str| tensors.has(&format!("{prefix}embeddings.word_embeddings.weight"));
        let prefix = PREFIXES.into_iter().find(is_there).unwrap_or(PREFIXES[0]);
        let [.., last] = plan.names else { unreachable!("a family has a spelling") };
        let is_named =
            |names: &&Names| tensors.has(&format!("{prefix}{}0.{}.weight", names.layers, names.out));
        let names = plan.names.iter().find(is_named).unwrap_or(last);
        let mut load = Loader { tensors, kernels, prefix, plan, names };

        let table =
            load.tensors.matrix(&format!("{prefix}embeddings.word_embeddings.weight"), vocab_size, width);
        let embedding = load.kernels.matrix(&table.map_err(LoadError::of_vocabulary)?)?;
        let added = load.added(plan.head.as_ref().is_some_and(|head| head.has_types))?;
        let head = plan.head.as_ref().map(|head| load.head(head, width)).transpose()?;
        let norm = load.norm(names.embedding_norm, width)?;
        let blocks = (0..plan.shape.layers).map(|index| load.block(index)).collect::<Result<Vec<_>, _>>()?;
        let ropes = match &plan.positions {
            Positions::Learned { .. } => Vec::new(),
            Positions::Rotary(rope) => vec![rope.table(head_dim, Pairing::Halves, context_length)],
        };
        Ok(Self {
            embedding,
            added,
            ropes,
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
        let with_types = || Batch { positions: types.to_vec(), ..batch.clone() };
        match &self.added {
            Added::PositionsAndTypes { positions, types: table, zeros, .. }
                if types.iter().any(|kind| *kind > 0) =>
            {
                let step = kernels.begin(&with_types(), &[]);
                kernels.embed(&step, &self.embedding, 1.0, &mut self.x);
                kernels.positions(&step, table, zeros, &mut self.x);
                let step = kernels.begin(batch, &self.ropes);
                kernels.positions(&step, positions, zeros, &mut self.x);
                step
            }
            Added::Positions { positions, token_type }
            | Added::PositionsAndTypes { positions, token_type, .. } => {
                let step = kernels.begin(batch, &self.ropes);
                kernels.embed(&step, &self.embedding, 1.0, &mut self.x);
                kernels.positions(&step, positions, token_type, &mut self.x);
                step
            }
            Added::Types { types: table, zeros } => {
                let step = kernels.begin(&with_types(), &[]);
                kernels.embed(&step, &self.embedding, 1.0, &mut self.x);
                kernels.positions(&step, table, zeros, &mut self.x);
                kernels.begin(batch, &self.ropes)
            }
        }
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
            match &block.feed_forward {
                FeedForward::Plain(up) => kernels.up(&step, &self.x, up, &mut self.hidden),
                FeedForward::Gated(gate_up) => kernels.gate_up(&step, &self.x, gate_up, &mut self.hidden),
            }
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
