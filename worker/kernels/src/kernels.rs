//! The interface of a compute device: the fused steps of a transformer over opaque buffers, and the weights
//! that they use. `arch` in the worker calls it; `cpu` and `cuda` implement it.

use std::ops::Range;

use super::batch::Batch;
use super::dtype::Dtype;
use super::error::DeviceError;
use super::rope::Pairing;
use super::weight::Weight;

/// The arithmetic of a device. `R` is the number of rows of the step, one per token.
///
/// Each method queues work and returns; only [`read`](Kernels::read) waits and reports errors of the device.
/// A buffer has the shape that the last method wrote. Shapes are validated when a model is built, so a
/// mismatch here is a broken invariant and may panic.
pub trait Kernels: Send {
    /// A weight matrix `[rows, cols]` in its stored form.
    type Matrix: Send;
    /// A small vector (norm weight, bias) as f32.
    type Vector: Send;
    /// The weights of all experts of a layer.
    type ExpertWeights: Send;
    /// Rows of activations.
    type Buffer: Send;
    /// Paged keys and values of all layers.
    type Cache: Send;
    /// A batch in the device's form: ids, positions, page ids, cosines and sines.
    type Step: Send;

    /// A description for users, such as `cpu (avx2, 8 threads)` or `cuda:0 NVIDIA H100 PCIe`.
    fn describe(&self) -> String;

    /// Bytes that are allocated in memory of the device's own; 0 if it computes in the host's memory.
    fn device_bytes(&self) -> u64;

    /// Loads a weight matrix. It stays packed; the mapped bytes may be used in place.
    fn matrix(&mut self, weight: &Weight) -> Result<Self::Matrix, DeviceError>;

    /// Loads matrices that are multiplied by the same rows. A device may store them together, and multiply by all of
    /// them at once.
    fn matrices(&mut self, weights: &[Weight]) -> Result<Vec<Self::Matrix>, DeviceError> {
        weights.iter().map(|weight| self.matrix(weight)).collect()
    }

    /// Loads the experts of a layer, which have the same shapes.
    fn expert_weights(&mut self, experts: Vec<Expert>) -> Result<Self::ExpertWeights, DeviceError>;

    /// Loads a weight of one row and adds `plus` to each value.
    fn vector(&mut self, weight: &Weight, plus: f32) -> Result<Self::Vector, DeviceError>;

    /// Creates an empty buffer.
    fn buffer(&mut self) -> Self::Buffer;

    /// Allocates memory for keys and values; [`qkv`](Kernels::qkv) fills it.
    fn cache(&mut self, shape: &CacheShape) -> Result<Self::Cache, DeviceError>;

    /// Copies page `from` to page `to`, in every layer.
    fn copy_page(&mut self, cache: &mut Self::Cache, from: u32, to: u32);

    /// Begins a step. `ropes` are the rotary tables that [`Qkv::rope`] refers to.
    fn begin(&mut self, batch: &Batch, ropes: &[Rope]) -> Self::Step;

    /// Token embeddings: `x[R, cols] = scale * table[id]` for the id of each row.
    fn embed(&mut self, step: &Self::Step, table: &Self::Matrix, scale: f32, x: &mut Self::Buffer);

    /// Learned position embeddings: `x[R, cols] += table[position] + plus`.
    fn positions(
        &mut self,
        step: &Self::Step,
        table: &Self::Matrix,
        plus: &Self::Vector,
        x: &mut Self::Buffer,
    );

    /// Norm, projections, biases, head norms and rotation. Keys and values are written to layer `layer` of
    /// the cache, at each row's position in the pages of its sequence. Queries are written to `q[R, n_heads *
    /// head_dim]`.
    fn qkv(
        &mut self,
        step: &Self::Step,
        x: &Self::Buffer,
        weights: &Qkv<Self>,
        cache: &mut Self::Cache,
        layer: usize,
        q: &mut Self::Buffer,
    );

    /// Attention, to `out[R, n_heads * head_dim]`: each row's query heads over the keys of its sequence that
    /// `how` makes visible. The output is the mean of the values, weighted by the softmax of the scores.
    /// Query head h reads key head `h / (n_heads / n_kv_heads)`.
    fn attention(
        &mut self,
        step: &Self::Step,
        q: &Self::Buffer,
        how: &Attention,
        cache: &Self::Cache,
        layer: usize,
        out: &mut Self::Buffer,
    );

    /// `x[R, rows] += norm(input[R, cols] * matrix^T + bias)`. Without a norm, the product itself is added.
    fn matmul_add(
        &mut self,
        step: &Self::Step,
        input: &Self::Buffer,
        linear: &Linear<Self>,
        norm: Option<&Norm<Self>>,
        x: &mut Self::Buffer,
    );

    /// Norm if there is one, gate and up projections with biases, then `out[R, hidden_dim] = activation(gate)
    /// * up`.
    fn gate_up(
        &mut self,
        step: &Self::Step,
        x: &Self::Buffer,
        weights: &GateUp<Self>,
        out: &mut Self::Buffer,
    );

    /// `x = layer_norm(x)`, in place.
    fn layer_norm(&mut self, step: &Self::Step, norm: &LayerNorm<Self>, x: &mut Self::Buffer);

    /// The ungated feed-forward projection: `out[R, hidden_dim] = gelu(x * matrix^T + bias)`, with the exact
    /// GELU.
    fn up(&mut self, step: &Self::Step, x: &Self::Buffer, linear: &Linear<Self>, out: &mut Self::Buffer);

    /// A mixture of experts: norm, softmax of the router's scores, then `x[R, embedding] += sum of weight *
    /// expert(norm(x))` over the experts with the highest weights. A row's sum starts with the highest
    /// weight, so it depends on that row alone.
    fn experts(&mut self, step: &Self::Step, weights: &Experts<Self>, x: &mut Self::Buffer);

    /// Norm and output head for the rows of [`Batch::logits`], in that order: `out[L, vocab_size]`,
    /// soft-capped by `cap`.
    fn logits(
        &mut self,
        step: &Self::Step,
        x: &Self::Buffer,
        norm: &Norm<Self>,
        head: &Self::Matrix,
        cap: Option<f32>,
        out: &mut Self::Buffer,
    );

    /// Hidden states for the rows of [`Batch::hidden`], in that order, normalised if there is a norm: `out[H,
    /// cols]`.
    fn hidden(
        &mut self,
        step: &Self::Step,
        x: &Self::Buffer,
        norm: Option<&Norm<Self>>,
        out: &mut Self::Buffer,
    );

    /// Waits for the queued work and appends the buffer's values to `to`. Returns errors of earlier methods.
    fn read(&mut self, buffer: &Self::Buffer, to: &mut Vec<f32>) -> Result<(), DeviceError>;
}

/// Root-mean-square norm: `x / sqrt(mean(x^2) + eps) * weight`.
pub struct Norm<K: Kernels + ?Sized> {
    pub weight: K::Vector,
    pub eps: f32,
}

/// Layer norm: `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`.
pub struct LayerNorm<K: Kernels + ?Sized> {
    pub weight: K::Vector,
    pub bias: K::Vector,
    pub eps: f32,
}

/// A matrix `[out, in]` with an optional bias `[out]`.
pub struct Linear<K: Kernels + ?Sized> {
    pub matrix: K::Matrix,
    pub bias: Option<K::Vector>,
}

/// The weights before attention.
pub struct Qkv<K: Kernels + ?Sized> {
    /// The norm of the input; encoders have none.
    pub norm: Option<Norm<K>>,
    /// `[n_heads * head_dim, embedding]`
    pub q: Linear<K>,
    /// `[n_kv_heads * head_dim, embedding]`
    pub k: Linear<K>,
    /// `[n_kv_heads * head_dim, embedding]`
    pub v: Linear<K>,
    /// Norms of each head of q and k, applied before the rotation.
    pub head_norms: Option<[Norm<K>; 2]>,
    /// Index of the rotary table in the step; `None` for models with learned positions.
    pub rope: Option<usize>,
}

/// The weights before the activation.
pub struct GateUp<K: Kernels + ?Sized> {
    /// The norm of the input; encoders have none.
    pub norm: Option<Norm<K>>,
    /// `[hidden_dim, embedding]`
    pub gate: Linear<K>,
    /// `[hidden_dim, embedding]`
    pub up: Linear<K>,
    pub activation: Activation,
}

/// The activation function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`
    GeluTanh,
}

/// The weights of a mixture of experts, in place of the gated projections.
pub struct Experts<K: Kernels + ?Sized> {
    pub norm: Norm<K>,
    /// `[experts, embedding]`
    pub router: K::Matrix,
    pub weights: K::ExpertWeights,
    /// Number of experts per row.
    pub used: usize,
    /// Whether the weights of the selected experts are scaled to a sum of 1.
    pub renormalise: bool,
    pub activation: Activation,
}

/// The weights of one expert, in their stored form.
pub struct Expert {
    /// `[hidden_dim, embedding]`
    pub gate: Weight,
    /// `[hidden_dim, embedding]`
    pub up: Weight,
    /// `[embedding, hidden_dim]`
    pub down: Weight,
}

/// The attention parameters of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// The score of a key is `scale * q.k`.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub cap: Option<f32>,
    /// A row sees only keys whose distance from its own position is below this; `None`: at any distance.
    pub window: Option<usize>,
    /// If set, a row sees the keys up to its own position. Otherwise it also sees later keys of its sequence,
    /// including those of the same step.
    pub causal: bool,
}

impl Attention {
    /// The keys that the row at `position` sees in a sequence of `len` tokens.
    pub fn visible(&self, position: usize, len: usize) -> Range<usize> {
        let first = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let end = match self.window {
            _ if self.causal => position + 1,
            None => len,
            Some(window) => position.saturating_add(window).min(len),
        };
        first..end
    }
}

/// The dimensions of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheShape {
    pub layers: usize,
    pub pages: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub dtype: Dtype,
}

impl CacheShape {
    /// Stored values per head: padded with zeros to whole blocks of a packed format.
    pub fn row_len(&self) -> usize {
        self.head_dim.next_multiple_of(self.dtype.multiple())
    }

    /// Bytes of the keys and values of one token in all layers.
    pub fn bytes_per_token(&self) -> usize {
        2 * self.layers * self.n_kv_heads * self.dtype.row_bytes(self.row_len())
    }
}

/// A rotary table.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per position, one value per pair. The first `2 * len` dimensions of a head are rotated, the
    /// others are unchanged.
    pub inverse_frequencies: Vec<f32>,
    /// Factor for cosines and sines.
    pub scale: f32,
    pub pairing: Pairing,
}
