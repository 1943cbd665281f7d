//! The kernels on a CPU, on all cores, with the operation table of the best instruction set. Weights are read
//! in place from mapped memory.
//!
//! The values of a row depend only on that row, so other sequences in the same step do not change a single
//! bit.
#![allow(unsafe_code)] // Distributes parts of one buffer to threads.

mod attention;
mod experts;

pub(crate) use experts::{Choice, Group, group_by_expert, route};

use super::batch::{Batch, PAGE_LEN};
use super::columns::{ColumnBlock, Columns};
use super::dot_blocks;
use super::error::DeviceError;
use super::kernels::{
    Activation, Attention, CacheShape, Expert, Experts, GateUp, Kernels, LayerNorm, Linear, Norm, Qkv, Rope,
};
use super::ops::{Input, Ops, Packed};
use super::pool::{Pool, Scratch};
use super::rope::Pairing;
use super::rows::Rows;
use super::weight::Weight;
use super::window::{Shared, Window};

pub struct Cpu {
    ops: &'static Ops,
    pool: Pool,
    normed: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    packed: Packed,
    experts: experts::ExpertBuffers,
}

/// Rows of `cols` values each.
#[derive(Default)]
pub struct Buffer {
    numbers: Vec<f32>,
    cols: usize,
}

impl Buffer {
    fn resize(&mut self, rows: usize, cols: usize) -> &mut [f32] {
        self.cols = cols;
        self.numbers.resize(rows * cols, 0.0);
        &mut self.numbers
    }
}

/// The KV cache, with one allocation per layer. The row of head h and slot s in page p is row `((2 p + kv) *
/// n_kv_heads + h) * PAGE_LEN + s`, where kv is 0 for keys and 1 for values. So the rows of a head in a page
/// are contiguous.
pub struct Cache {
    shape: CacheShape,
    layers: Vec<Box<[u8]>>,
}

impl Cache {
    fn row_bytes(&self) -> usize {
        self.shape.dtype.row_bytes(self.shape.row_len())
    }

    fn first_row(&self, page: u32, kv: usize, head: usize) -> usize {
        ((2 * page as usize + kv) * self.shape.n_kv_heads + head) * PAGE_LEN
    }

    /// The first `n` rows of a head in a page.
    fn page(&self, layer: usize, page: u32, kv: usize, head: usize, n: usize) -> Rows<'_> {
        let (first, row) = (self.first_row(page, kv, head), self.row_bytes());
        Rows::new(self.shape.dtype, self.shape.row_len(), &self.layers[layer][first * row..(first + n) * row])
    }
}

/// A batch with the rotation of each row.
pub struct Step {
    batch: Batch,
    rotations: Vec<Rotation>,
}

struct Rotation {
    pairing: Pairing,
    pairs: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// A matrix product: `out[R, rows] = x * weight^T + bias`.
struct Product<'a> {
    weight: &'a Weight,
    bias: Option<&'a Vec<f32>>,
    out: Shared<'a, f32>,
}

impl<'a> Product<'a> {
    fn new(linear: &'a Linear<Cpu>, out: Shared<'a, f32>) -> Self {
        Self { weight: &linear.matrix, bias: linear.bias.as_ref(), out }
    }
}

/// Chunks per thread, so that a delayed thread costs the others little.
const CHUNKS_PER_THREAD: usize = 16;
/// Chunks per thread with many columns, where each chunk processes all columns.
const LARGE_CHUNKS_PER_THREAD: usize = 6;
/// Minimum number of columns that count as many.
const MIN_MANY_COLUMNS: usize = 16;
/// Minimum work of a chunk, in bytes times columns. Less work costs more to distribute than to do.
const MIN_CHUNK_WORK: usize = 1 << 14;

impl Cpu {
    /// Creates the kernels with `threads` threads (`None`: one per core).
    pub fn new(threads: Option<usize>, ops: &'static Ops) -> Result<Self, DeviceError> {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.unwrap_or_else(cores).clamp(1, 1024);
        let (normed, keys, values, packed, experts) = Default::default();
        Ok(Self { ops, pool: Pool::new(threads)?, normed, keys, values, packed, experts })
    }

    /// Writes the norm of all rows of x to `self.normed`.
    fn normalise(&mut self, x: &Buffer, norm: &Norm<Self>) {
        let (cols, ops) = (x.cols, self.ops);
        self.normed.resize(x.numbers.len(), 0.0);
        let rows = x.numbers.len() / cols;
        let chunk = MIN_CHUNK_WORK.div_ceil(cols);
        let out = Shared::new(&mut self.normed, cols);
        self.pool.run(rows.div_ceil(chunk), &|index, _| {
            for row in index * chunk..rows.min((index + 1) * chunk) {
                // SAFETY: each row belongs to exactly one chunk.
                let out = unsafe { out.part(row, 0, cols) };
                ops.rms_norm(&x.numbers[row * cols..(row + 1) * cols], &norm.weight, norm.eps, out);
            }
        });
    }

    /// Computes all products of one input in one job.
    fn products(pool: &mut Pool, ops: &Ops, packed: &mut Packed, x: &[f32], products: &[Product<'_>]) {
        let m = products.first().map_or(0, |p| x.len() / p.weight.cols());
        if m == 0 {
            return;
        }
        let x = prepare_input(pool, ops, packed, x, products.iter().map(|p| p.weight));
        let threads = pool.threads();
        let sizes: Vec<usize> = products.iter().map(|p| chunk_rows(p.weight, m, threads)).collect();
        let counts: Vec<usize> =
            products.iter().zip(&sizes).map(|(p, size)| p.weight.rows().div_ceil(*size)).collect();
        pool.run(counts.iter().sum(), &|mut chunk, scratch| {
            let mut which = 0;
            while chunk >= counts[which] {
                chunk -= counts[which];
                which += 1;
            }
            let Product { weight, bias, out } = &products[which];
            let first = chunk * sizes[which];
            let n = sizes[which].min(weight.rows() - first);
            // SAFETY: each column belongs to exactly one chunk.
            let mut out = unsafe { out.columns(first, n) };
            ops.product(&Rows::of(weight).range(first, n), x, &mut out, &mut scratch.rows);
            if let Some(bias) = bias {
                for row in 0..m {
                    add(out.row(row), &bias[first..first + n]);
                }
            }
        });
    }
}

/// The number of weight rows per chunk.
fn chunk_rows(weight: &Weight, m: usize, threads: usize) -> usize {
    let row_work = (weight.size_bytes() as usize / weight.rows().max(1)).max(1) * m;
    let chunks = if m < MIN_MANY_COLUMNS { CHUNKS_PER_THREAD } else { LARGE_CHUNKS_PER_THREAD };
    let share = weight.rows().div_ceil(threads * chunks);
    // A panel has sixteen rows.
    share.max(MIN_CHUNK_WORK.div_ceil(row_work)).next_multiple_of(16)
}

/// Prepares the input of products with these weights; packs it into `to` in the forms that they need.
fn prepare_input<'a, 'w>(
    pool: &mut Pool,
    ops: &Ops,
    to: &'a mut Packed,
    x: &'a [f32],
    weights: impl IntoIterator<Item = &'w Weight>,
) -> Input<'a> {
    let (mut cols, mut uses_integers, mut is_rounded) = (1, false, false);
    for weight in weights {
        cols = weight.cols();
        uses_integers |= dot_blocks::uses_integers(weight.dtype());
        is_rounded |= ops.rounds_columns(weight.dtype());
    }
    if uses_integers {
        pack(pool, &mut to.blocks, x, cols, |x, tile| ops.pack(x, cols, tile));
    }
    if is_rounded {
        pack(pool, &mut to.rounded, x, cols, |x, tile| ops.round(x, cols, tile));
    }
    Input { numbers: x, packed: to }
}

/// Packs columns of `cols` values on all threads; `pack_tile` packs one tile.
fn pack<B: ColumnBlock + Send>(
    pool: &mut Pool,
    to: &mut Columns<B>,
    x: &[f32],
    cols: usize,
    pack_tile: impl Fn(&[f32], &mut [B]) + Sync,
) {
    let m = x.len() / cols;
    let blocks = to.resize(m, cols);
    let (all, tile) = (blocks.len(), B::TILE * blocks.len() / m);
    let blocks = Shared::new(blocks, all);
    pool.run(m.div_ceil(B::TILE), &|index, _| {
        let x = &x[index * B::TILE * cols..x.len().min((index + 1) * B::TILE * cols)];
        // SAFETY: each index has its own tile.
        let blocks = unsafe { blocks.part(0, index * tile, tile.min(all - index * tile)) };
        pack_tile(x, blocks);
    });
}

/// Normalises numbers in place.
fn normalise(ops: &Ops, numbers: &mut [f32], norm: &Norm<Cpu>, scratch: &mut Scratch) {
    scratch.numbers.clear();
    scratch.numbers.extend_from_slice(numbers);
    ops.rms_norm(&scratch.numbers, &norm.weight, norm.eps, numbers);
}

/// `gate = activation(gate) * up`.
fn activate(ops: &Ops, activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => ops.swiglu(gate, up),
        Activation::GeluTanh => ops.geglu(gate, up),
    }
}

fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

impl Kernels for Cpu {
    type Matrix = Weight;
    type Vector = Vec<f32>;
    type ExpertWeights = Vec<Expert>;
    type Buffer = Buffer;
    type Cache = Cache;
    type Step = Step;

    fn describe(&self) -> String {
        let threads = self.pool.threads();
        format!("cpu ({}, {threads} thread{})", self.ops.name, if threads == 1 { "" } else { "s" })
    }

    fn device_bytes(&self) -> u64 {
        0
    }

    fn matrix(&mut self, weight: &Weight) -> Result<Weight, DeviceError> {
        Ok(weight.clone())
    }

    fn expert_weights(&mut self, experts: Vec<Expert>) -> Result<Vec<Expert>, DeviceError> {
        Ok(experts)
    }

    fn vector(&mut self, weight: &Weight, plus: f32) -> Result<Vec<f32>, DeviceError> {
        let mut numbers = vec![0.0; weight.cols()];
        self.ops.decode_row(&Rows::of(weight), 0, &mut numbers);
        numbers.iter_mut().for_each(|v| *v += plus);
        Ok(numbers)
    }

    fn buffer(&mut self) -> Buffer {
        Buffer::default()
    }

    fn cache(&mut self, shape: &CacheShape) -> Result<Cache, DeviceError> {
        let row = shape.dtype.row_bytes(shape.row_len()) as u128;
        let bytes = 2 * shape.pages as u128 * shape.n_kv_heads as u128 * PAGE_LEN as u128 * row;
        let wanted_bytes = u64::try_from(bytes * shape.layers as u128).unwrap_or(u64::MAX);
        let full = || DeviceError::OutOfMemory { what: "the KV cache", wanted_bytes };
        let bytes = usize::try_from(bytes).map_err(|_| full())?;
        // Zeroed memory is not allocated by the system until it is written.
        let layer = |_| bytemuck::try_zeroed_slice_box(bytes).map_err(|()| full());
        Ok(Cache { shape: *shape, layers: (0..shape.layers).map(layer).collect::<Result<_, _>>()? })
    }

    fn copy_page(&mut self, cache: &mut Cache, from: u32, to: u32) {
        let rows = |page| cache.first_row(page, 0, 0) * cache.row_bytes();
        let (from, to, end) = (rows(from), rows(to), rows(from + 1));
        for layer in &mut cache.layers {
            layer.copy_within(from..end, to);
        }
    }

    fn begin(&mut self, batch: &Batch, ropes: &[Rope]) -> Step {
        let rotation = |rope: &Rope| {
            let angles = batch.positions.iter().flat_map(|&position| {
                rope.inverse_frequencies.iter().map(move |frequency| position as f32 * frequency)
            });
            let (cos, sin) = angles.map(|angle| (angle.cos() * rope.scale, angle.sin() * rope.scale)).unzip();
            Rotation { pairing: rope.pairing, pairs: rope.inverse_frequencies.len(), cos, sin }
        };
        Step { rotations: ropes.iter().map(rotation).collect(), batch: batch.clone() }
    }

    fn embed(&mut self, step: &Step, table: &Weight, scale: f32, x: &mut Buffer) {
        let (tokens, cols, ops) = (&step.batch.tokens, table.cols(), self.ops);
        let out = x.resize(tokens.len(), cols);
        for (token, out) in tokens.iter().zip(out.chunks_exact_mut(cols)) {
            ops.decode_row(&Rows::of(table), *token as usize, out);
            if scale != 1.0 {
                out.iter_mut().for_each(|v| *v *= scale);
            }
        }
    }

    fn positions(&mut self, step: &Step, table: &Weight, plus: &Vec<f32>, x: &mut Buffer) {
        let mut row = vec![0.0; x.cols];
        for (position, x) in step.batch.positions.iter().zip(x.numbers.chunks_exact_mut(x.cols)) {
            self.ops.decode_row(&Rows::of(table), *position as usize, &mut row);
            add(x, &row);
            add(x, plus);
        }
    }

    fn qkv(
        &mut self,
        step: &Step,
        x: &Buffer,
        w: &Qkv<Self>,
        cache: &mut Cache,
        layer: usize,
        q: &mut Buffer,
    ) {
        if let Some(norm) = &w.norm {
            self.normalise(x, norm);
        }
        let input = if w.norm.is_some() { &self.normed } else { &x.numbers };
        let rows = step.batch.tokens.len();
        let (q_cols, kv_cols) = (w.q.matrix.rows(), w.k.matrix.rows());
        q.resize(rows, q_cols);
        self.keys.resize(rows * kv_cols, 0.0);
        self.values.resize(rows * kv_cols, 0.0);
        let products = [
            Product::new(&w.q, Shared::new(&mut q.numbers, q_cols)),
            Product::new(&w.k, Shared::new(&mut self.keys, kv_cols)),
            Product::new(&w.v, Shared::new(&mut self.values, kv_cols)),
        ];
        Self::products(&mut self.pool, self.ops, &mut self.packed, input, &products);

        let CacheShape { n_kv_heads, head_dim, dtype, .. } = cache.shape;
        let (ops, rotation) = (self.ops, w.rope.map(|rope| &step.rotations[rope]));
        let (row_len, row_bytes) = (cache.shape.row_len(), cache.row_bytes());
        let places: Vec<(u32, usize)> = step.batch.row_slots().collect();
        let first_rows = |page, head| [cache.first_row(page, 0, head), cache.first_row(page, 1, head)];
        let first_rows: Vec<[usize; 2]> = places.iter().map(|&(page, _)| first_rows(page, 0)).collect();
        let entries = Shared::new(&mut cache.layers[layer], row_bytes);
        let queries = Shared::new(&mut q.numbers, q_cols);
        let keys = Shared::new(&mut self.keys, kv_cols);
        let values = &self.values;
        let chunk = (MIN_CHUNK_WORK / (q_cols + 2 * kv_cols)).max(1);
        self.pool.run(rows.div_ceil(chunk), &|index, scratch| {
            for row in index * chunk..rows.min((index + 1) * chunk) {
                // SAFETY: each row of q and of the keys belongs to exactly one chunk.
                let (query, key) = unsafe { (queries.part(row, 0, q_cols), keys.part(row, 0, kv_cols)) };
                let value = &values[row * kv_cols..(row + 1) * kv_cols];
                if let Some([of_q, of_k]) = &w.head_norms {
                    query.chunks_exact_mut(head_dim).for_each(|head| normalise(ops, head, of_q, scratch));
                    key.chunks_exact_mut(head_dim).for_each(|head| normalise(ops, head, of_k, scratch));
                }
                if let Some(Rotation { pairing, pairs, cos, sin }) = rotation {
                    let angles = row * pairs..(row + 1) * pairs;
                    let (cos, sin) = (&cos[angles.clone()], &sin[angles]);
                    query.chunks_exact_mut(head_dim).for_each(|head| ops.rotate(head, cos, sin, *pairing));
                    key.chunks_exact_mut(head_dim).for_each(|head| ops.rotate(head, cos, sin, *pairing));
                }
                for (from, first) in [(&*key, first_rows[row][0]), (value, first_rows[row][1])] {
                    for head in 0..n_kv_heads {
                        // SAFETY: the rows of a step have distinct places in the cache.
                        let to =
                            unsafe { entries.part(first + head * PAGE_LEN + places[row].1, 0, row_bytes) };
                        let from = &from[head * head_dim..(head + 1) * head_dim];
                        if row_len == head_dim {
                            ops.encode_row(dtype, from, to);
                        } else {
                            scratch.numbers.clear();
                            scratch.numbers.extend_from_slice(from);
                            scratch.numbers.resize(row_len, 0.0);
                            ops.encode_row(dtype, &scratch.numbers, to);
                        }
                    }
                }
            }
        });
    }

    fn attention(
        &mut self,
        step: &Step,
        q: &Buffer,
        how: &Attention,
        cache: &Cache,
        layer: usize,
        out: &mut Buffer,
    ) {
        self.attend(step, q, how, (cache, layer), out);
    }

    fn matmul_add(
        &mut self,
        step: &Step,
        input: &Buffer,
        linear: &Linear<Self>,
        norm: Option<&Norm<Self>>,
        x: &mut Buffer,
    ) {
        let (rows, cols) = (step.batch.tokens.len(), linear.matrix.rows());
        self.normed.resize(rows * cols, 0.0);
        let out = Shared::new(&mut self.normed, cols);
        let product = Product::new(linear, out);
        Self::products(&mut self.pool, self.ops, &mut self.packed, &input.numbers, &[product]);
        let (ops, from) = (self.ops, Shared::new(&mut self.normed, cols));
        let (chunk, to) = (MIN_CHUNK_WORK.div_ceil(cols), Shared::new(&mut x.numbers, cols));
        self.pool.run(rows.div_ceil(chunk), &|index, scratch| {
            for row in index * chunk..rows.min((index + 1) * chunk) {
                // SAFETY: each row belongs to exactly one chunk.
                let (from, to) = unsafe { (from.part(row, 0, cols), to.part(row, 0, cols)) };
                if let Some(norm) = norm {
                    normalise(ops, from, norm, scratch);
                }
                add(to, from);
            }
        });
    }

    fn gate_up(&mut self, step: &Step, x: &Buffer, w: &GateUp<Self>, out: &mut Buffer) {
        if let Some(norm) = &w.norm {
            self.normalise(x, norm);
        }
        let input = if w.norm.is_some() { &self.normed } else { &x.numbers };
        let (rows, cols) = (step.batch.tokens.len(), w.gate.matrix.rows());
        let (ops, threads) = (self.ops, self.pool.threads());
        let out = Shared::new(out.resize(rows, cols), cols);
        let chunk = chunk_rows(&w.gate.matrix, 2 * rows, threads);
        let weights = [&w.gate.matrix, &w.up.matrix];
        let input = prepare_input(&mut self.pool, ops, &mut self.packed, input, weights);
        self.pool.run(cols.div_ceil(chunk), &|index, scratch| {
            let first = index * chunk;
            let n = chunk.min(cols - first);
            let Scratch { rows: decoded, numbers: up, .. } = scratch;
            up.resize(rows * n, 0.0);
            // SAFETY: each column belongs to exactly one chunk.
            let mut gate = unsafe { out.columns(first, n) };
            ops.product(&Rows::of(&w.gate.matrix).range(first, n), input, &mut gate, decoded);
            let up_rows = Rows::of(&w.up.matrix).range(first, n);
            ops.product(&up_rows, input, &mut Window::new(up, n, 0, n), decoded);
            for (row, up) in up.chunks_exact_mut(n).enumerate() {
                if let Some(bias) = &w.gate.bias {
                    add(gate.row(row), &bias[first..first + n]);
                }
                if let Some(bias) = &w.up.bias {
                    add(up, &bias[first..first + n]);
                }
                activate(ops, w.activation, gate.row(row), up);
            }
        });
    }

    fn layer_norm(&mut self, step: &Step, norm: &LayerNorm<Self>, x: &mut Buffer) {
        let (rows, cols, ops) = (step.batch.tokens.len(), x.cols, self.ops);
        let (chunk, x) = (MIN_CHUNK_WORK.div_ceil(cols), Shared::new(&mut x.numbers, cols));
        self.pool.run(rows.div_ceil(chunk), &|index, scratch| {
            for row in index * chunk..rows.min((index + 1) * chunk) {
                // SAFETY: each row belongs to exactly one chunk.
                let row = unsafe { x.part(row, 0, cols) };
                scratch.numbers.clear();
                scratch.numbers.extend_from_slice(row);
                ops.layer_norm(&scratch.numbers, &norm.weight, &norm.bias, norm.eps, row);
            }
        });
    }

    fn up(&mut self, step: &Step, x: &Buffer, linear: &Linear<Self>, out: &mut Buffer) {
        let (rows, cols, ops) = (step.batch.tokens.len(), linear.matrix.rows(), self.ops);
        let product = Product::new(linear, Shared::new(out.resize(rows, cols), cols));
        Self::products(&mut self.pool, ops, &mut self.packed, &x.numbers, &[product]);
        let (chunk, out) = (MIN_CHUNK_WORK.div_ceil(cols), Shared::new(&mut out.numbers, cols));
        self.pool.run(rows.div_ceil(chunk), &|index, _| {
            for row in index * chunk..rows.min((index + 1) * chunk) {
                // SAFETY: each row belongs to exactly one chunk.
                ops.gelu(unsafe { out.part(row, 0, cols) });
            }
        });
    }

    fn experts(&mut self, step: &Step, weights: &Experts<Self>, x: &mut Buffer) {
        self.mix_experts(step, weights, x);
    }

    fn logits(
        &mut self,
        step: &Step,
        x: &Buffer,
        norm: &Norm<Self>,
        head: &Weight,
        cap: Option<f32>,
        to: &mut Buffer,
    ) {
        let cols = x.cols;
        self.gather(&step.batch.logits, x, Some(norm));
        let out = to.resize(step.batch.logits.len(), head.rows());
        let out = Shared::new(out, head.rows());
        let rows = &self.normed[..step.batch.logits.len() * cols];
        Self::products(
            &mut self.pool,
            self.ops,
            &mut self.packed,
            rows,
            &[Product { weight: head, bias: None, out }],
        );
        if let Some(cap) = cap {
            self.ops.soft_cap(&mut to.numbers, 1.0, cap);
        }
    }

    fn hidden(&mut self, step: &Step, x: &Buffer, norm: Option<&Norm<Self>>, out: &mut Buffer) {
        self.gather(&step.batch.hidden, x, norm);
        out.resize(step.batch.hidden.len(), x.cols).copy_from_slice(&self.normed);
    }

    fn read(&mut self, buffer: &Buffer, to: &mut Vec<f32>) -> Result<(), DeviceError> {
        to.extend_from_slice(&buffer.numbers);
        Ok(())
    }
}

impl Cpu {
    /// Writes some rows of x to `self.normed`, normalised if there is a norm.
    fn gather(&mut self, rows: &[u32], x: &Buffer, norm: Option<&Norm<Self>>) {
        self.normed.resize(rows.len() * x.cols, 0.0);
        for (row, out) in rows.iter().zip(self.normed.chunks_exact_mut(x.cols)) {
            let first = *row as usize * x.cols;
            let row = &x.numbers[first..first + x.cols];
            match norm {
                Some(norm) => self.ops.rms_norm(row, &norm.weight, norm.eps, out),
                None => out.copy_from_slice(row),
            }
        }
    }
}
