//! What a device must be able to do, in the fused steps of a transformer, over buffers that only it understands.
//! The forward passes in `arch` are written once over [`Kernels`]; `cpu` implements it, a GPU gets its own file.
//!
//! A folder here is one operation: `mod.rs` has its contract, the scalar version that is right by definition, and the
//! test that holds the versions for instruction sets beside it to a written bound.

pub mod cpu;
mod decode;
mod dot_blocks;
mod dot_rows;
mod exp;
mod geglu;
mod gelu;
mod layer_norm;
mod mix_rows;
mod ops;
mod pool;
mod rms_norm;
mod rope;
mod rows;
mod soft_cap;
mod softmax;
#[cfg(test)]
mod suite;
mod swiglu;
#[cfg(test)]
mod testing;
mod weight;
mod window;

pub use ops::Ops;
pub use rows::{Kind, Rows};
pub use weight::{DTYPES, Dtype, Float, Scaled, Weight, WeightError};
pub use window::Window;

/// The device stopped working. The engine that used it is finished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error("out of device memory: {wanted_bytes} bytes wanted for {what}")]
    OutOfMemory { what: &'static str, wanted_bytes: u64 },
    #[error("cannot start the compute threads: {reason}")]
    Threads { reason: String },
}

/// One device's arithmetic. `R` below is the number of rows of the step, one a token.
///
/// Every method queues work and returns; only [`read`](Kernels::read) waits. A device that fails says so there.
/// Buffers take the shape that the last method wrote. Shapes are checked when a model is built, so a mismatch
/// here is a broken invariant and may panic.
pub trait Kernels: Send {
    /// A weight matrix `[rows, cols]`, in its stored form.
    type Matrix: Send;
    /// A small vector (norm weight, bias) as f32.
    type Vector: Send;
    /// Rows of activations.
    type Buffer: Send;
    /// Paged keys and values of all layers.
    type Cache: Send;
    /// A batch as the device holds it: ids, positions, page ids, cosines and sines.
    type Step: Send;

    /// For people: `cpu (avx2, 8 threads)`.
    fn describe(&self) -> String;

    /// Takes a weight matrix. It stays packed; the mapped bytes may be used where they lie.
    fn matrix(&mut self, weight: &Weight) -> Result<Self::Matrix, DeviceError>;

    /// Takes a weight of one row, `plus` added to each number.
    fn vector(&mut self, weight: &Weight, plus: f32) -> Result<Self::Vector, DeviceError>;

    /// An empty buffer.
    fn buffer(&mut self) -> Self::Buffer;

    /// Memory for keys and values, to be filled by [`qkv`](Kernels::qkv).
    fn cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, DeviceError>;

    /// Copies page `from` to page `to`, in every layer.
    fn copy_page(&mut self, cache: &mut Self::Cache, from: u32, to: u32);

    /// Takes the description of a step; `ropes` are the rotary tables that [`Qkv::rope`] points into.
    fn begin(&mut self, batch: &Batch, ropes: &[Rope]) -> Self::Step;

    /// `x[R, cols] = scale * table[id]` for each row's id.
    fn embed(&mut self, step: &Self::Step, table: &Self::Matrix, scale: f32, x: &mut Self::Buffer);

    /// `x[R, cols] += table[position] + plus`, for models that learn their positions.
    fn positions(
        &mut self,
        step: &Self::Step,
        table: &Self::Matrix,
        plus: &Self::Vector,
        x: &mut Self::Buffer,
    );

    /// Norm, projections, biases, norms of the heads, rotation; keys and values go to layer `layer` of the cache, at each row's position in
    /// its sequence's pages, and `q[R, n_heads * head_dim]` stays.
    fn qkv(
        &mut self,
        step: &Self::Step,
        x: &Self::Buffer,
        weights: &Qkv<Self>,
        cache: &mut Self::Cache,
        layer: usize,
        q: &mut Self::Buffer,
    );

    /// `out[R, n_heads * head_dim]`: each row's query heads over the keys of its sequence that `how` lets it see: softmax of the scores, then the mean of v by it. Query head h reads key head
    /// `h / (n_heads / n_kv_heads)`.
    fn attention(
        &mut self,
        step: &Self::Step,
        q: &Self::Buffer,
        how: &Attention,
        cache: &Self::Cache,
        layer: usize,
        out: &mut Self::Buffer,
    );

    /// `x[R, rows] += norm(input[R, cols] * matrix^T + bias)`; without a norm the product itself is added.
    fn matmul_add(
        &mut self,
        step: &Self::Step,
        input: &Self::Buffer,
        linear: &Linear<Self>,
        norm: Option<&Norm<Self>>,
        x: &mut Self::Buffer,
    );

    /// Norm, gate and up projections with biases, `out[R, hidden_dim] = activation(gate) * up`.
    fn gate_up(
        &mut self,
        step: &Self::Step,
        x: &Self::Buffer,
        weights: &GateUp<Self>,
        out: &mut Self::Buffer,
    );

    /// `x = layer_norm(x)`, in place.
    fn layer_norm(&mut self, step: &Self::Step, norm: &LayerNorm<Self>, x: &mut Self::Buffer);

    /// `out[R, hidden_dim] = gelu(x * matrix^T + bias)`, GELU in its exact form: the ungated feed-forward part.
    fn up(&mut self, step: &Self::Step, x: &Self::Buffer, linear: &Linear<Self>, out: &mut Self::Buffer);

    /// A mixture of experts: norm, the softmax of the router's scores, and `x[R, embedding] += sum of weight * expert(norm(x))`
    /// over the experts with the highest weights. A row's sum begins with the highest, so it depends on that row alone.
    fn experts(&mut self, step: &Self::Step, weights: &Experts<Self>, x: &mut Self::Buffer);

    /// Norm and head for the rows of [`Batch::logits`]: `out[L, vocab_size]`, in that order, softly capped by `cap`.
    fn logits(
        &mut self,
        step: &Self::Step,
        x: &Self::Buffer,
        norm: &Norm<Self>,
        head: &Self::Matrix,
        cap: Option<f32>,
        out: &mut Self::Buffer,
    );

    /// The norm alone, if there is one, for the rows of [`Batch::hidden`]: `out[H, cols]`, in that order.
    fn hidden(
        &mut self,
        step: &Self::Step,
        x: &Self::Buffer,
        norm: Option<&Norm<Self>>,
        out: &mut Self::Buffer,
    );

    /// Waits for the queued work and appends a buffer's numbers to `to`. Errors of earlier methods surface here.
    fn read(&mut self, buffer: &Self::Buffer, to: &mut Vec<f32>) -> Result<(), DeviceError>;
}

/// A root-mean-square norm: `x / sqrt(mean(x^2) + eps) * weight`.
pub struct Norm<K: Kernels + ?Sized> {
    pub weight: K::Vector,
    pub eps: f32,
}

/// A norm that takes the mean away: `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`.
pub struct LayerNorm<K: Kernels + ?Sized> {
    pub weight: K::Vector,
    pub bias: K::Vector,
    pub eps: f32,
}

/// A matrix `[out, in]` and perhaps a bias `[out]`.
pub struct Linear<K: Kernels + ?Sized> {
    pub matrix: K::Matrix,
    pub bias: Option<K::Vector>,
}

/// The weights before attention.
pub struct Qkv<K: Kernels + ?Sized> {
    /// Of the input; encoders have none.
    pub norm: Option<Norm<K>>,
    /// `[n_heads * head_dim, embedding]`
    pub q: Linear<K>,
    /// `[n_kv_heads * head_dim, embedding]`
    pub k: Linear<K>,
    /// `[n_kv_heads * head_dim, embedding]`
    pub v: Linear<K>,
    /// Norms of each head of q and of k, before they are rotated.
    pub head_norms: Option<[Norm<K>; 2]>,
    /// Which of the step's rotary tables; `None` for models that learn their positions.
    pub rope: Option<usize>,
}

/// The weights before the activation.
pub struct GateUp<K: Kernels + ?Sized> {
    pub norm: Norm<K>,
    /// `[hidden_dim, embedding]`
    pub gate: Linear<K>,
    /// `[hidden_dim, embedding]`
    pub up: Linear<K>,
    pub activation: Activation,
}

/// What bends the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`
    GeluTanh,
}

/// A mixture of experts in place of the gated projections.
pub struct Experts<K: Kernels + ?Sized> {
    pub norm: Norm<K>,
    /// `[experts, embedding]`
    pub router: K::Matrix,
    pub experts: Vec<Expert<K>>,
    /// Experts a row goes to.
    pub used: usize,
    /// Whether the weights of those are scaled to a sum of 1.
    pub renormalise: bool,
    pub activation: Activation,
}

/// One of them.
pub struct Expert<K: Kernels + ?Sized> {
    /// `[hidden_dim, embedding]`
    pub gate: K::Matrix,
    /// `[hidden_dim, embedding]`
    pub up: K::Matrix,
    /// `[embedding, hidden_dim]`
    pub down: K::Matrix,
}

/// How a layer's scores are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The score of a key is `scale * q.k`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub cap: Option<f32>,
    /// How many keys a row sees, its own included; all for `None`.
    pub window: Option<usize>,
    /// A row sees the keys up to its own position; otherwise all keys of its sequence, later ones of its step too.
    pub causal: bool,
}

/// Tokens a page of the cache holds.
pub const PAGE_LEN: usize = 32;

/// How large a cache is.
#[derive(Clone, Copy, Debug)]
pub struct CacheShape {
    pub layers: usize,
    pub pages: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub kind: Kind,
}

impl CacheShape {
    /// Numbers of a head as they are kept: zeros fill up the last block of a packed kind.
    pub fn row_len(&self) -> usize {
        self.head_dim.next_multiple_of(self.kind.multiple())
    }

    /// Bytes of one token's keys and values in all layers.
    pub fn bytes_per_token(&self) -> usize {
        2 * self.layers * self.n_kv_heads * self.kind.row_bytes(self.row_len())
    }
}

/// A rotary table.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians a position, one a pair; the first `2 * len` dimensions of a head rotate, the others pass.
    pub inverse_frequencies: Vec<f32>,
    /// Cosines and sines are multiplied by it.
    pub scale: f32,
    pub pairing: Pairing,
}

/// Which two dimensions of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// p and p + n/2: Hugging Face checkpoints.
    Halves,
    /// 2p and 2p + 1: GGUF files of the llama family.
    Adjacent,
}

/// The tokens of one step: rows grouped by sequence.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// One id a row.
    pub tokens: Vec<u32>,
    /// One position a row: consecutive within a span.
    pub positions: Vec<u32>,
    /// The sequences of the step; their rows follow each other and cover all rows.
    pub spans: Vec<Span>,
    /// Page ids, cut up by the spans: token t of a sequence lies in its page `t / PAGE_LEN`, slot `t % PAGE_LEN`.
    pub pages: Vec<u32>,
    /// Rows whose logits are wanted, ascending.
    pub logits: Vec<u32>,
    /// Rows whose final hidden state is wanted, ascending.
    pub hidden: Vec<u32>,
}

/// One sequence's part of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub first_row: usize,
    pub rows: usize,
    /// Tokens already in the cache; the first row's position.
    pub start: usize,
    /// Where its page ids begin in [`Batch::pages`]; there are enough for `start + rows` tokens.
    pub first_page: usize,
}

impl Batch {
    /// The page and the slot of each row.
    pub fn places(&self) -> impl Iterator<Item = (u32, usize)> {
        self.spans.iter().flat_map(|span| {
            (span.start..span.start + span.rows)
                .map(|t| (self.pages[span.first_page + t / PAGE_LEN], t % PAGE_LEN))
        })
    }
}

#[cfg(target_endian = "big")]
compile_error!("packed numbers are little-endian and are read in place");
