//! Mixture of experts. With few rows, as in generation, the device chooses the experts, and each choice reads the weights of
//! its expert. With many, the router's probabilities go to the host, which groups the rows by expert, so that the
//! weights of an expert are read once for all of its rows.

use super::super::args::{self, ExpertPlanes, MixExperts, Route, RowOp};
use super::super::driver::Driver;
use super::super::memory::{Buffer, Memory, Reserved, View};
use super::super::program::FEW_COLUMNS;
use super::queue::in_place;
use super::{Cuda, Matrix, Step};
use crate::cpu::{Choice, Group, group_by_expert, route};
use crate::error::DeviceError;
use crate::kernels::{Expert, Experts};

/// Buffers that are reused by all steps. A slot is a row at one of its experts.
pub(super) struct ExpertBuffers<D: Driver> {
    /// `[R, experts]`
    scores: Buffer<D>,
    /// `[slots, embedding]`: if the slots of an expert are contiguous, the row of each.
    inputs: Buffer<D>,
    /// `[slots, 2 * hidden_dim]`: gate, then up.
    projected: Buffer<D>,
    /// `[slots, hidden_dim]`
    hidden: Buffer<D>,
    /// `[slots, embedding]`
    outputs: Buffer<D>,
    /// With few rows: the expert of each choice, its slot and its weight. Otherwise: the row of each slot, and the slot
    /// and the weight of each choice.
    routes: Reserved<D>,
}

impl<D: Driver> Default for ExpertBuffers<D> {
    fn default() -> Self {
        let (scores, inputs, projected, hidden, outputs) = Default::default();
        Self { scores, inputs, projected, hidden, outputs, routes: Reserved::default() }
    }
}

/// The weights of all experts of a layer.
pub struct ExpertWeights<D: Driver> {
    /// Gate, up and down of each.
    experts: Vec<[Matrix<D>; 3]>,
    /// `None` if the formats of the experts differ.
    alike: Option<AlikeExperts<D>>,
}

/// Experts that one launch can multiply with.
struct AlikeExperts<D: Driver> {
    /// Gate and up: one matrix if they follow each other in memory.
    gate_up: Vec<AlikeMatrices>,
    down: AlikeMatrices,
    /// The planes of the matrices, to which their addresses point.
    _planes: Memory<D>,
}

/// Matrices of one format and one shape, one of each expert.
#[derive(Clone, Copy)]
pub(super) struct AlikeMatrices {
    pub(super) first: args::Matrix,
    pub(super) format: usize,
    /// The address of the [`ExpertPlanes`] of all.
    pub(super) planes: u64,
}

/// Whether matrices differ in their addresses and factors only.
fn are_alike(matrices: &[(usize, args::Matrix)]) -> bool {
    let kind = |(format, matrix): &(usize, args::Matrix)| {
        (*format, matrix.strides, matrix.rows, matrix.cols, matrix.group)
    };
    matrices.windows(2).all(|pair| kind(&pair[0]) == kind(&pair[1]))
}

/// A row of choices for each row of the step.
struct Routes {
    /// The addresses of the slots and of the weights of the choices.
    slots: u64,
    weights: u64,
}

impl<D: Driver> Cuda<D> {
    pub(super) fn load_experts(&mut self, experts: &[Expert]) -> Result<ExpertWeights<D>, DeviceError> {
        let mut loaded = Vec::with_capacity(experts.len());
        for Expert { gate, up, down } in experts {
            let mut matrices = self.load_matrices(&[gate.clone(), up.clone()])?;
            matrices.extend(self.stack(std::slice::from_ref(down))?);
            let matrices = <[Matrix<D>; 3]>::try_from(matrices);
            loaded.push(matrices.unwrap_or_else(|_| unreachable!("one matrix per weight")));
        }
        let alike = self.alike_experts(&loaded)?;
        Ok(ExpertWeights { experts: loaded, alike })
    }

    /// Copies the addresses of all experts to the device, if they are alike.
    fn alike_experts(&mut self, experts: &[[Matrix<D>; 3]]) -> Result<Option<AlikeExperts<D>>, DeviceError> {
        let parts: Vec<Vec<(usize, args::Matrix)>> =
            match experts.iter().all(|[gate, up, _]| gate.is_followed_by(up)) {
                true => {
                    let both = |[gate, up, _]: &[Matrix<D>; 3]| {
                        let rows = gate.args.rows + up.args.rows;
                        (gate.format, args::Matrix { rows, ..gate.args })
                    };
                    let down = |[.., down]: &[Matrix<D>; 3]| (down.format, down.args);
                    vec![experts.iter().map(both).collect(), experts.iter().map(down).collect()]
                }
                false => (0..3)
                    .map(|part| experts.iter().map(|e| (e[part].format, e[part].args)).collect())
                    .collect(),
            };
        if experts.is_empty() || !parts.iter().all(|part| are_alike(part)) {
            return Ok(None);
        }
        let planes = |(_, matrix): &(usize, args::Matrix)| ExpertPlanes {
            planes: matrix.planes,
            factor: matrix.factor,
            reserved: 0,
        };
        let all: Vec<ExpertPlanes> = parts.iter().flatten().map(planes).collect();
        let memory = self.upload("the addresses of experts", bytemuck::cast_slice(&all))?;
        let part_bytes = (experts.len() * size_of::<ExpertPlanes>()) as u64;
        let mut gate_up: Vec<AlikeMatrices> = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            let (format, first) = part[0];
            gate_up.push(AlikeMatrices {
                first,
                format,
                planes: memory.at().plus(index as u64 * part_bytes).0,
            });
        }
        Ok(gate_up.pop().map(|down| AlikeExperts { gate_up, down, _planes: memory }))
    }

    pub(super) fn mix_experts(
        &mut self,
        step: &Step,
        w: &Experts<Self>,
        x: &Buffer<D>,
    ) -> Result<(), DeviceError> {
        let (rows, x, count) = (step.rows, x.view(), w.weights.experts.len());
        let (queue, normed, buffers) = (&self.queue, &mut self.normed, &mut self.experts);
        let normed = normed.resize(&queue.driver, rows, x.cols as usize)?;
        queue.rms_norm(x, w.norm.weight.norm(w.norm.eps), normed, false)?;
        let scores = buffers.scores.resize(&queue.driver, rows, count)?;
        queue.product(&w.router, None, normed, scores, false)?;
        let routes = match &w.weights.alike {
            Some(alike) if rows <= FEW_COLUMNS => self.run_chosen(w, alike, scores, normed)?,
            _ => self.run_grouped(w, normed)?,
        };
        let outputs = self.experts.outputs.view();
        let args = MixExperts {
            outputs: outputs.at,
            slots: routes.slots,
            weights: routes.weights,
            out: x.at,
            cols: x.cols,
            stride: outputs.stride,
            out_stride: x.stride,
            used: outputs.rows / x.rows.max(1),
        };
        self.queue.by_value("mix_experts", [x.rows, x.cols], &args)
    }

    /// Computes each row at its experts, which the device chooses.
    fn run_chosen(
        &mut self,
        w: &Experts<Self>,
        alike: &AlikeExperts<D>,
        scores: View,
        normed: View,
    ) -> Result<Routes, DeviceError> {
        let (queue, buffers) = (&self.queue, &mut self.experts);
        let used = w.used.min(scores.cols as usize);
        let n = scores.rows as usize * used;
        let memory = buffers.routes.at_least(&queue.driver, "routes to experts", 12 * n as u64)?;
        let [choices, slots, weights] = [0, 1, 2].map(|part| memory.at().plus(4 * part * n as u64).0);
        let args = Route {
            scores: scores.at,
            choices,
            slots,
            weights,
            count: scores.cols,
            stride: scores.stride,
            used: used as u32,
            renormalise: u32::from(w.renormalise),
        };
        queue.by_row("route", scores.rows, &args)?;

        let hidden_dim = alike.down.first.cols as usize;
        let projected = buffers.projected.resize(&queue.driver, n, 2 * hidden_dim)?;
        let hidden = buffers.hidden.resize(&queue.driver, n, hidden_dim)?;
        let outputs = buffers.outputs.resize(&queue.driver, n, normed.cols as usize)?;
        let mut first = 0;
        for matrices in &alike.gate_up {
            let rows = matrices.first.rows as usize;
            queue.chosen_product(matrices, choices, normed, projected.columns(first, rows))?;
            first += rows;
        }
        let (gate, up) = (projected.columns(0, hidden_dim), projected.columns(hidden_dim, hidden_dim));
        queue.activate(w.activation, gate, up, hidden)?;
        queue.chosen_product(&alike.down, choices, hidden, outputs)?;
        Ok(Routes { slots, weights })
    }

    /// Computes each expert for the rows that have it. The host chooses, from the scores in its buffer.
    fn run_grouped(&mut self, w: &Experts<Self>, normed: View) -> Result<Routes, DeviceError> {
        let (queue, buffers, experts) = (&self.queue, &mut self.experts, &w.weights.experts);
        let scores = buffers.scores.view();
        queue.by_row("softmax", scores.rows, &RowOp { scale: 1.0, ..in_place(scores) })?;
        let mut probabilities = Vec::new();
        buffers.scores.read(&mut probabilities)?;

        let mut choices = Vec::with_capacity(scores.rows as usize * w.used);
        for (row, scores) in probabilities.chunks_exact(experts.len()).enumerate() {
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
        let [rows, slots, weights] = [0, 1, 2].map(|part| memory.at().plus(4 * part * n as u64).0);

        let (cols, hidden_dim) =
            (normed.cols as usize, experts.first().map_or(0, |[gate, ..]| gate.args.rows as usize));
        let inputs = buffers.inputs.resize(&queue.driver, n, cols)?;
        let projected = buffers.projected.resize(&queue.driver, n, 2 * hidden_dim)?;
        let hidden = buffers.hidden.resize(&queue.driver, n, hidden_dim)?;
        let outputs = buffers.outputs.resize(&queue.driver, n, cols)?;
        queue.gather(normed, rows, inputs)?;
        for Group { expert, first, n } in &groups {
            let [gate, up, _] = &experts[*expert];
            queue.products(&[gate, up], inputs.range(*first, *n), projected.range(*first, *n))?;
        }
        let (gate, up) = (projected.columns(0, hidden_dim), projected.columns(hidden_dim, hidden_dim));
        queue.activate(w.activation, gate, up, hidden)?;
        for Group { expert, first, n } in &groups {
            let [.., down] = &experts[*expert];
            queue.product(down, None, hidden.range(*first, *n), outputs.range(*first, *n), false)?;
        }
        Ok(Routes { slots, weights })
    }
}
