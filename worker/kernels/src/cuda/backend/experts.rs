//! Mixture of experts: the router's probabilities go to the host, which groups the rows by expert; the
//! products run on the device, for each expert with its rows only.

use super::super::args::MixExperts;
use super::super::driver::Driver;
use super::super::memory::{Buffer, Reserved};
use super::queue::in_place;
use super::{Cuda, Step};
use crate::cpu::{Choice, Group, group_by_expert, route};
use crate::error::DeviceError;
use crate::kernels::{Expert, Experts};

use super::super::args::RowOp;

/// Buffers that are reused by all steps. A slot is a row at one of its experts; the slots of an expert are
/// contiguous.
pub(super) struct ExpertBuffers<D: Driver> {
    /// `[R, experts]`
    scores: Buffer<D>,
    /// `[slots, embedding]`
    inputs: Buffer<D>,
    /// `[slots, 2 * hidden_dim]`: gate, then up.
    projected: Buffer<D>,
    /// `[slots, hidden_dim]`
    hidden: Buffer<D>,
    /// `[slots, embedding]`
    outputs: Buffer<D>,
    /// The row of each slot, then the slots of each row and their weights.
    routes: Reserved<D>,
}

impl<D: Driver> Default for ExpertBuffers<D> {
    fn default() -> Self {
        let (scores, inputs, projected, hidden, outputs) = Default::default();
        Self { scores, inputs, projected, hidden, outputs, routes: Reserved::default() }
    }
}

impl<D: Driver> Cuda<D> {
    pub(super) fn mix_experts(
        &mut self,
        step: &Step,
        w: &Experts<Self>,
        x: &Buffer<D>,
    ) -> Result<(), DeviceError> {
        let (rows, x, count) = (step.rows, x.view(), w.experts.len());
        let cols = x.cols as usize;
        let (queue, normed, buffers) = (&self.queue, &mut self.normed, &mut self.experts);
        let normed = normed.resize(&queue.driver, rows, cols)?;
        queue.rms_norm(x, w.norm.weight.norm(w.norm.eps), normed, false)?;
        let scores = buffers.scores.resize(&queue.driver, rows, count)?;
        queue.product(&w.router, None, normed, scores, false)?;
        queue.by_row("softmax", scores.rows, &RowOp { scale: 1.0, ..in_place(scores) })?;
        let mut probabilities = Vec::new();
        buffers.scores.read(&mut probabilities)?;

        let mut choices = Vec::with_capacity(rows * w.used);
        for (row, scores) in probabilities.chunks_exact(count).enumerate() {
            route(scores, w.used, w.renormalise)
                .for_each(|(expert, weight)| choices.push(Choice { row, expert, weight }));
        }
        let (slots, groups) = group_by_expert(&choices);
        let mut place = vec![0u32; slots.len()];
        slots.iter().enumerate().for_each(|(slot, choice)| place[*choice] = slot as u32);
        let n = slots.len();
        let mut routes: Vec<u32> = slots.iter().map(|choice| choices[*choice].row as u32).collect();
        routes.extend(place);
        routes.extend(choices.iter().map(|choice| choice.weight.to_bits()));
        let memory = buffers.routes.at_least(&queue.driver, "routes to experts", 4 * routes.len() as u64)?;
        memory.write(0, bytemuck::cast_slice(&routes))?;
        let at = memory.at();

        let hidden_dim = w.experts.first().map_or(0, |expert| expert.gate.args.rows as usize);
        let inputs = buffers.inputs.resize(&queue.driver, n, cols)?;
        let projected = buffers.projected.resize(&queue.driver, n, 2 * hidden_dim)?;
        let hidden = buffers.hidden.resize(&queue.driver, n, hidden_dim)?;
        let outputs = buffers.outputs.resize(&queue.driver, n, cols)?;
        queue.gather(normed, at.0, inputs)?;
        for Group { expert, first, n } in &groups {
            let Expert { gate, up, .. } = &w.experts[*expert];
            queue.products(&[gate, up], inputs.range(*first, *n), projected.range(*first, *n))?;
        }
        let (gate, up) = (projected.columns(0, hidden_dim), projected.columns(hidden_dim, hidden_dim));
        queue.activate(w.activation, gate, up, hidden)?;
        for Group { expert, first, n } in &groups {
            let out = outputs.range(*first, *n);
            queue.product(&w.experts[*expert].down, None, hidden.range(*first, *n), out, false)?;
        }
        let used = (n / rows.max(1)) as u32;
        let args = MixExperts {
            outputs: outputs.at,
            slots: at.plus(4 * n as u64).0,
            weights: at.plus(8 * n as u64).0,
            out: x.at,
            cols: x.cols,
            stride: outputs.stride,
            out_stride: x.stride,
            used,
        };
        queue.by_value("mix_experts", [x.rows, x.cols], &args)
    }
}
