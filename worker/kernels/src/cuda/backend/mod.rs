//! The kernels of a model on a CUDA device. Weights stay packed in the device's memory; activations stay
//! there, too, until they are read.
//!
//! Matrices of the same input are stored together and multiplied in one launch, and one launch does all between the
//! projections and attention.
//!
//! Methods queue work. The first failure is kept, later work is skipped, and `read` returns it.

mod attention;
mod experts;
mod matrix;
mod queue;

pub use self::attention::MAX_PARTIAL_BYTES;
use self::attention::Visible;
use self::experts::ExpertBuffers;
pub use self::experts::ExpertWeights;
pub use self::matrix::Matrix;
use self::queue::{Queue, in_place, unsupported};
use super::args::{DecodeRows, RowOp, StoreHeads};
use super::driver::Driver;
use super::memory::{Buffer, Memory, Reserved, View};
use super::program::{attention_kernel, cache_row_bytes};
use crate::batch::{Batch, PAGE_LEN, Span};
use crate::error::DeviceError;
use crate::kernels::{
    Attention, CacheShape, Expert, Experts, GateUp, Kernels, LayerNorm, Linear, Norm, Qkv, Rope,
};
use crate::ops::Ops;
use crate::rope::Pairing;
use crate::rows::Rows;
use crate::weight::Weight;

/// A CUDA device.
pub struct Cuda<D: Driver> {
    queue: Queue<D>,
    /// The first failure of queued work.
    failure: Option<DeviceError>,
    /// The number of the current step.
    step: u64,
    /// The host's part of a step.
    inputs: Reserved<D>,
    /// What the rows of the step see, for each kind of attention of the model.
    visible: Vec<Visible<D>>,
    /// Results of sections of attention.
    partials: Reserved<D>,
    normed: Buffer<D>,
    /// The results of products with the same input: queries, keys and values, or gate and up.
    projected: Buffer<D>,
    experts: ExpertBuffers<D>,
}

/// A vector of floats.
pub struct Vector<D: Driver>(Memory<D>);

/// Keys and values of all layers, in one allocation.
pub struct Cache<D: Driver> {
    memory: Memory<D>,
    shape: CacheShape,
    /// The number of its format's kernels.
    format: usize,
    attention: &'static str,
    row_bytes: usize,
}

/// The addresses of a batch. It is valid until the next step begins.
pub struct Step {
    number: u64,
    rows: usize,
    tokens: u64,
    positions: u64,
    slots: u64,
    pages: u64,
    /// Address and number of row ids.
    logits: (u64, usize),
    hidden: (u64, usize),
    rotations: Vec<Rotation>,
    spans: Vec<Span>,
}

#[derive(Clone, Copy)]
struct Rotation {
    cosines: u64,
    sines: u64,
    pairs: u32,
    pairing: Pairing,
}

impl<D: Driver> Vector<D> {
    fn address(&self) -> u64 {
        self.0.at().0
    }

    /// The weight of a norm, with its epsilon.
    fn norm(&self, eps: f32) -> (u64, f32) {
        (self.address(), eps)
    }
}

impl<D: Driver> Cache<D> {
    /// Bytes of a page in one layer.
    fn page_bytes(&self) -> u64 {
        (2 * self.shape.n_kv_heads * PAGE_LEN * self.row_bytes) as u64
    }

    fn layer_bytes(&self) -> u64 {
        self.shape.pages as u64 * self.page_bytes()
    }

    fn layer(&self, layer: usize) -> u64 {
        self.memory.at().plus(layer as u64 * self.layer_bytes()).0
    }
}

impl<D: Driver> Cuda<D> {
    /// Loads the kernels that every model needs.
    pub fn new(driver: D) -> Result<Self, DeviceError> {
        Ok(Self {
            queue: Queue::new(driver)?,
            failure: None,
            step: 0,
            inputs: Reserved::default(),
            visible: Vec::new(),
            partials: Reserved::default(),
            normed: Buffer::default(),
            projected: Buffer::default(),
            experts: ExpertBuffers::default(),
        })
    }

    /// Queues work, unless earlier work failed.
    fn queue(&mut self, work: impl FnOnce(&mut Self) -> Result<(), DeviceError>) {
        if self.failure.is_none() {
            self.failure = work(self).err();
        }
    }

    fn upload(&mut self, what: &'static str, bytes: &[u8]) -> Result<Memory<D>, DeviceError> {
        let mut memory = self.queue.driver.allocate(what, bytes.len() as u64)?;
        memory.write(0, bytes)?;
        Ok(memory)
    }

    /// Copies what the kernels need of a batch, in one transfer.
    fn upload_batch(&mut self, batch: &Batch, ropes: &[Rope]) -> Result<Step, DeviceError> {
        let mut words: Vec<u32> = Vec::new();
        let mut section = |part: &mut dyn Iterator<Item = u32>| {
            let first = 4 * words.len() as u64;
            words.extend(part);
            first
        };
        let mut step = Step {
            number: self.step,
            rows: batch.tokens.len(),
            tokens: section(&mut batch.tokens.iter().copied()),
            positions: section(&mut batch.positions.iter().copied()),
            slots: section(&mut batch.row_slots().flat_map(|(page, slot)| [page, slot as u32])),
            pages: section(&mut batch.pages.iter().copied()),
            logits: (section(&mut batch.logits.iter().copied()), batch.logits.len()),
            hidden: (section(&mut batch.hidden.iter().copied()), batch.hidden.len()),
            rotations: Vec::new(),
            spans: batch.spans.clone(),
        };
        for rope in ropes {
            // Computed on the host, so that all devices rotate by the same angles.
            let angles = || {
                batch.positions.iter().flat_map(|position| {
                    rope.inverse_frequencies.iter().map(move |frequency| *position as f32 * frequency)
                })
            };
            step.rotations.push(Rotation {
                cosines: section(&mut angles().map(|angle| (angle.cos() * rope.scale).to_bits())),
                sines: section(&mut angles().map(|angle| (angle.sin() * rope.scale).to_bits())),
                pairs: rope.inverse_frequencies.len() as u32,
                pairing: rope.pairing,
            });
        }
        let memory = self.inputs.at_least(&self.queue.driver, "a batch", 4 * words.len() as u64)?;
        memory.write(0, bytemuck::cast_slice(&words))?;
        let at = memory.at().0;
        let sections = [&mut step.tokens, &mut step.positions, &mut step.slots, &mut step.pages];
        let sections = sections.into_iter().chain([&mut step.logits.0, &mut step.hidden.0]);
        let rotations = step.rotations.iter_mut().flat_map(|r| [&mut r.cosines, &mut r.sines]);
        sections.chain(rotations).for_each(|section| *section += at);
        Ok(step)
    }

    fn project_qkv(
        &mut self,
        step: &Step,
        x: &Buffer<D>,
        w: &Qkv<Self>,
        (cache, layer): (&Cache<D>, usize),
        q: &mut Buffer<D>,
    ) -> Result<(), DeviceError> {
        let driver = &self.queue.driver;
        let mut input = x.view();
        if let Some(norm) = &w.norm {
            let normed = self.normed.resize(driver, step.rows, input.cols as usize)?;
            self.queue.rms_norm(input, norm.weight.norm(norm.eps), normed, false)?;
            input = normed;
        }
        let [q_cols, kv_cols] = [&w.q, &w.k].map(|linear| linear.matrix.args.rows as usize);
        let projected = self.projected.resize(driver, step.rows, q_cols + 2 * kv_cols)?;
        self.queue.products(&[&w.q.matrix, &w.k.matrix, &w.v.matrix], input, projected)?;

        let queries = q.resize(driver, step.rows, q_cols)?;
        let CacheShape { n_kv_heads, head_dim, .. } = cache.shape;
        let [q_bias, k_bias, v_bias] =
            [&w.q, &w.k, &w.v].map(|linear| linear.bias.as_ref().map_or(0, Vector::address));
        let norms = w.head_norms.as_ref();
        let [(q_norm, q_eps), (k_norm, k_eps)] = norms
            .map_or_else(Default::default, |norms| norms.each_ref().map(|norm| norm.weight.norm(norm.eps)));
        let rotation = w.rope.map(|rope| step.rotations[rope]);
        let args = StoreHeads {
            x: projected.at,
            q: queries.at,
            cache: cache.layer(layer),
            slots: step.slots,
            cosines: rotation.map_or(0, |rotation| rotation.cosines),
            sines: rotation.map_or(0, |rotation| rotation.sines),
            q_norm,
            k_norm,
            q_bias,
            k_bias,
            v_bias,
            row_bytes: cache.row_bytes as u32,
            x_stride: projected.stride,
            q_stride: queries.stride,
            heads: (q_cols / head_dim) as u32,
            kv_heads: n_kv_heads as u32,
            head_dim: head_dim as u32,
            pairs: rotation.map_or(0, |rotation| rotation.pairs),
            adjacent: rotation.is_some_and(|rotation| rotation.pairing == Pairing::Adjacent).into(),
            q_eps,
            k_eps,
        };
        let grid = [args.heads + 2 * args.kv_heads, projected.rows, 1];
        self.queue.over_cache(cache.format, "store_heads", grid, 32, &args)
    }

    /// Copies rows of `x` to `out`.
    fn select(
        &self,
        (ids, n): (u64, usize),
        x: &Buffer<D>,
        norm: Option<&Norm<Self>>,
        out: &mut Buffer<D>,
    ) -> Result<View, DeviceError> {
        let x = x.view();
        let out = out.resize(&self.queue.driver, n, x.cols as usize)?;
        self.queue.gather(x, ids, out)?;
        if let Some(norm) = norm {
            self.queue.rms_norm(out, norm.weight.norm(norm.eps), out, false)?;
        }
        Ok(out)
    }

    fn assert_current(&self, step: &Step) {
        assert!(step.number == self.step, "a step ends when the next one begins");
    }
}

impl<D: Driver> Kernels for Cuda<D> {
    type Matrix = Matrix<D>;
    type Vector = Vector<D>;
    type ExpertWeights = ExpertWeights<D>;
    type Buffer = Buffer<D>;
    type Cache = Cache<D>;
    type Step = Step;

    fn describe(&self) -> String {
        self.queue.driver.lock().describe()
    }

    fn device_bytes(&self) -> u64 {
        self.queue.driver.allocated_bytes()
    }

    fn matrix(&mut self, weight: &Weight) -> Result<Matrix<D>, DeviceError> {
        self.stack(std::slice::from_ref(weight)).map(|mut matrices| matrices.remove(0))
    }

    fn matrices(&mut self, weights: &[Weight]) -> Result<Vec<Matrix<D>>, DeviceError> {
        self.load_matrices(weights)
    }

    fn expert_weights(&mut self, experts: Vec<Expert>) -> Result<ExpertWeights<D>, DeviceError> {
        self.load_experts(&experts)
    }

    fn vector(&mut self, weight: &Weight, plus: f32) -> Result<Vector<D>, DeviceError> {
        let mut numbers = vec![0.0; weight.cols()];
        Ops::best().decode_row(&Rows::of(weight), 0, &mut numbers);
        numbers.iter_mut().for_each(|v| *v += plus);
        Ok(Vector(self.upload("a vector", bytemuck::cast_slice(&numbers))?))
    }

    fn buffer(&mut self) -> Buffer<D> {
        Buffer::default()
    }

    fn cache(&mut self, shape: &CacheShape) -> Result<Cache<D>, DeviceError> {
        let format = self.queue.load_cache(shape.dtype)?;
        let attention = attention_kernel(shape.head_dim)
            .ok_or_else(|| unsupported(format!("attention heads of {} values", shape.head_dim)))?;
        let row_bytes = cache_row_bytes(shape.dtype, shape.head_dim);
        let rows = 2 * shape.layers as u128 * shape.pages as u128 * (shape.n_kv_heads * PAGE_LEN) as u128;
        let bytes = u64::try_from(rows * row_bytes as u128).unwrap_or(u64::MAX);
        let memory = self.queue.driver.allocate("the KV cache", bytes)?;
        Ok(Cache { memory, shape: *shape, format, attention, row_bytes })
    }

    fn copy_page(&mut self, cache: &mut Cache<D>, from: u32, to: u32) {
        self.queue(|_| {
            let (page, layer) = (cache.page_bytes(), cache.layer_bytes());
            (0..cache.shape.layers as u64).try_for_each(|l| {
                let at = |id: u32| l * layer + u64::from(id) * page;
                cache.memory.copy_within(at(to), at(from), page)
            })
        });
    }

    fn begin(&mut self, batch: &Batch, ropes: &[Rope]) -> Step {
        self.step += 1;
        match self.upload_batch(batch, ropes) {
            Ok(step) => step,
            Err(error) => {
                self.failure.get_or_insert(error);
                // Nothing is launched any more.
                Step {
                    number: self.step,
                    rows: 0,
                    tokens: 0,
                    positions: 0,
                    slots: 0,
                    pages: 0,
                    logits: (0, 0),
                    hidden: (0, 0),
                    rotations: Vec::new(),
                    spans: Vec::new(),
                }
            }
        }
    }

    fn embed(&mut self, step: &Step, table: &Matrix<D>, scale: f32, x: &mut Buffer<D>) {
        self.assert_current(step);
        self.queue(|this| {
            let out = x.resize(&this.queue.driver, step.rows, table.args.cols as usize)?;
            this.queue.look_up(table, out, DecodeRows { ids: step.tokens, scale, ..DecodeRows::default() })
        });
    }

    fn positions(&mut self, step: &Step, table: &Matrix<D>, plus: &Vector<D>, x: &mut Buffer<D>) {
        self.assert_current(step);
        let (ids, plus) = (step.positions, plus.address());
        let args = DecodeRows { ids, plus, accumulate: 1, scale: 1.0, ..DecodeRows::default() };
        self.queue(|this| this.queue.look_up(table, x.view(), args));
    }

    fn qkv(
        &mut self,
        step: &Step,
        x: &Buffer<D>,
        weights: &Qkv<Self>,
        cache: &mut Cache<D>,
        layer: usize,
        q: &mut Buffer<D>,
    ) {
        self.assert_current(step);
        self.queue(|this| this.project_qkv(step, x, weights, (cache, layer), q));
    }

    fn attention(
        &mut self,
        step: &Step,
        q: &Buffer<D>,
        how: &Attention,
        cache: &Cache<D>,
        layer: usize,
        out: &mut Buffer<D>,
    ) {
        self.assert_current(step);
        self.queue(|this| this.attend(step, q, how, (cache, layer), out));
    }

    fn matmul_add(
        &mut self,
        step: &Step,
        input: &Buffer<D>,
        linear: &Linear<Self>,
        norm: Option<&Norm<Self>>,
        x: &mut Buffer<D>,
    ) {
        self.assert_current(step);
        self.queue(|this| {
            let (queue, x) = (&this.queue, x.view());
            let bias = linear.bias.as_ref().map(Vector::address);
            let Some(norm) = norm else {
                return queue.product(&linear.matrix, bias, input.view(), x, true);
            };
            let product = this.normed.resize(&queue.driver, step.rows, x.cols as usize)?;
            queue.product(&linear.matrix, bias, input.view(), product, false)?;
            queue.rms_norm(product, norm.weight.norm(norm.eps), x, true)
        });
    }

    fn gate_up(&mut self, step: &Step, x: &Buffer<D>, w: &GateUp<Self>, out: &mut Buffer<D>) {
        self.assert_current(step);
        self.queue(|this| {
            let (queue, x, cols) = (&this.queue, x.view(), w.gate.matrix.args.rows as usize);
            let input = match &w.norm {
                None => x,
                Some(norm) => {
                    let normed = this.normed.resize(&queue.driver, step.rows, x.cols as usize)?;
                    queue.rms_norm(x, norm.weight.norm(norm.eps), normed, false)?;
                    normed
                }
            };
            let both = this.projected.resize(&queue.driver, step.rows, 2 * cols)?;
            let (gate, up) = (both.columns(0, cols), both.columns(cols, cols));
            match (&w.gate.bias, &w.up.bias) {
                (None, None) => queue.products(&[&w.gate.matrix, &w.up.matrix], input, both)?,
                biases => {
                    let address = |bias: &Option<Vector<D>>| bias.as_ref().map(Vector::address);
                    queue.product(&w.gate.matrix, address(biases.0), input, gate, false)?;
                    queue.product(&w.up.matrix, address(biases.1), input, up, false)?;
                }
            }
            queue.activate(w.activation, gate, up, out.resize(&queue.driver, step.rows, cols)?)
        });
    }

    fn layer_norm(&mut self, step: &Step, norm: &LayerNorm<Self>, x: &mut Buffer<D>) {
        self.assert_current(step);
        self.queue(|this| {
            let (weight, scale) = norm.weight.norm(norm.eps);
            let args = RowOp { weight, scale, bias: norm.bias.address(), ..in_place(x.view()) };
            this.queue.by_row("layer_norm", x.view().rows, &args)
        });
    }

    fn up(&mut self, step: &Step, x: &Buffer<D>, linear: &Linear<Self>, out: &mut Buffer<D>) {
        self.assert_current(step);
        self.queue(|this| {
            let (queue, cols) = (&this.queue, linear.matrix.args.rows as usize);
            let out = out.resize(&queue.driver, step.rows, cols)?;
            let bias = linear.bias.as_ref().map(Vector::address);
            queue.product(&linear.matrix, bias, x.view(), out, false)?;
            queue.by_value("gelu", [out.rows, out.cols], &in_place(out))
        });
    }

    fn experts(&mut self, step: &Step, weights: &Experts<Self>, x: &mut Buffer<D>) {
        self.assert_current(step);
        self.queue(|this| this.mix_experts(step, weights, x));
    }

    fn logits(
        &mut self,
        step: &Step,
        x: &Buffer<D>,
        norm: &Norm<Self>,
        head: &Matrix<D>,
        cap: Option<f32>,
        out: &mut Buffer<D>,
    ) {
        self.assert_current(step);
        self.queue(|this| {
            let mut normed = std::mem::take(&mut this.normed);
            let rows = this.select(step.logits, x, Some(norm), &mut normed);
            this.normed = normed;
            let rows = rows?;
            let out = out.resize(&this.queue.driver, rows.rows as usize, head.args.rows as usize)?;
            this.queue.product(head, None, rows, out, false)?;
            let Some(cap) = cap else { return Ok(()) };
            let args = RowOp { scale: 1.0, cap, ..in_place(out) };
            this.queue.by_value("soft_cap", [out.rows, out.cols], &args)
        });
    }

    fn hidden(&mut self, step: &Step, x: &Buffer<D>, norm: Option<&Norm<Self>>, out: &mut Buffer<D>) {
        self.assert_current(step);
        self.queue(|this| this.select(step.hidden, x, norm, out).map(drop));
    }

    fn read(&mut self, buffer: &Buffer<D>, to: &mut Vec<f32>) -> Result<(), DeviceError> {
        self.queue(|_| buffer.read(to));
        self.failure.clone().map_or(Ok(()), Err)
    }
}
