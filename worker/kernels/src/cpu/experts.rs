//! Mixture of experts on the CPU: each expert is computed only for the rows that are routed to it. The scalar
//! routing in [`route`] is the specification.

use super::super::kernels::{Expert, Experts};
use super::super::ops::{Input, Packed};
use super::super::pool::Scratch;
use super::super::rows::Rows;
use super::super::weight::Weight;
use super::super::window::{Shared, Window};
use super::{Buffer, Cpu, Product, Step, activate, chunk_rows, prepare_input};

/// Buffers that are reused by all steps.
#[derive(Default)]
pub(super) struct ExpertBuffers {
    /// `[R, experts]`
    scores: Vec<f32>,
    /// `[slots, embedding]`. A slot is a row at one of its experts; the slots of an expert are contiguous.
    inputs: Vec<f32>,
    /// `[slots, hidden_dim]`
    hidden: Vec<f32>,
    /// `[slots, embedding]`
    outputs: Vec<f32>,
    /// The packed columns of each group.
    packed: Vec<Packed>,
}

/// A row, one of its experts and the expert's weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub(crate) row: usize,
    pub(crate) expert: usize,
    pub(crate) weight: f32,
}

/// The slots of one expert.
pub(crate) struct Group {
    pub(crate) expert: usize,
    pub(crate) first: usize,
    pub(crate) n: usize,
}

impl Cpu {
    pub(super) fn mix_experts(&mut self, step: &Step, w: &Experts<Self>, x: &mut Buffer) {
        self.normalise(x, &w.norm);
        let (rows, cols, count) = (step.batch.tokens.len(), x.cols, w.weights.len());
        let hidden_dim = w.weights.first().map_or(0, |expert| expert.gate.rows());
        let ExpertBuffers { scores, inputs, hidden, outputs, packed } = &mut self.experts;
        scores.resize(rows * count, 0.0);
        let router = Product { weight: &w.router, bias: None, out: Shared::new(scores, count) };
        Self::products(&mut self.pool, self.ops, &mut self.packed, &self.normed, &[router]);

        let mut choices = Vec::with_capacity(rows * w.used);
        for (row, scores) in scores.chunks_exact_mut(count).enumerate() {
            self.ops.softmax(scores, 1.0);
            route(scores, w.used, w.renormalise)
                .for_each(|(expert, weight)| choices.push(Choice { row, expert, weight }));
        }
        let (slots, groups) = group_by_expert(&choices);

        inputs.clear();
        for slot in &slots {
            let row = choices[*slot].row;
            inputs.extend_from_slice(&self.normed[row * cols..(row + 1) * cols]);
        }
        hidden.resize(slots.len() * hidden_dim, 0.0);
        outputs.resize(slots.len() * cols, 0.0);
        let (ops, threads) = (self.ops, self.pool.threads());

        packed.resize_with(groups.len().max(packed.len()), Packed::default);
        let columns: Vec<Input<'_>> = (groups.iter().zip(&mut *packed))
            .map(|(group, packed)| {
                let Expert { gate, up, .. } = &w.weights[group.expert];
                let x = &inputs[group.first * cols..(group.first + group.n) * cols];
                prepare_input(&mut self.pool, ops, packed, x, [gate, up])
            })
            .collect();
        let chunks = split_into_chunks(&groups, threads, hidden_dim, |group| {
            (&w.weights[group.expert].gate, 2 * group.n)
        });
        let out = Shared::new(hidden, hidden_dim);
        self.pool.run(chunks.len(), &|chunk, scratch| {
            let (index, first, n) = chunks[chunk];
            let (group, x) = (&groups[index], columns[index]);
            let Expert { gate, up, .. } = &w.weights[group.expert];
            let Scratch { rows: decoded, numbers: ups, .. } = scratch;
            ups.resize(group.n * n, 0.0);
            // SAFETY: each column of a group belongs to exactly one chunk.
            let mut gates = unsafe { out.block(group.first, group.n, first, n) };
            ops.product(&Rows::of(gate).range(first, n), x, &mut gates, decoded);
            ops.product(&Rows::of(up).range(first, n), x, &mut Window::new(ups, n, 0, n), decoded);
            for (row, up) in ups.chunks_exact(n).enumerate() {
                activate(ops, w.activation, gates.row(row), up);
            }
        });

        let columns: Vec<Input<'_>> = (groups.iter().zip(&mut *packed))
            .map(|(group, packed)| {
                let x = &hidden[group.first * hidden_dim..(group.first + group.n) * hidden_dim];
                prepare_input(&mut self.pool, ops, packed, x, [&w.weights[group.expert].down])
            })
            .collect();
        let chunks =
            split_into_chunks(&groups, threads, cols, |group| (&w.weights[group.expert].down, group.n));
        let out = Shared::new(outputs, cols);
        self.pool.run(chunks.len(), &|chunk, scratch| {
            let (index, first, n) = chunks[chunk];
            let group = &groups[index];
            // SAFETY: each column of a group belongs to exactly one chunk.
            let mut out = unsafe { out.block(group.first, group.n, first, n) };
            let down = Rows::of(&w.weights[group.expert].down);
            ops.product(&down.range(first, n), columns[index], &mut out, &mut scratch.rows);
        });

        let mut place = vec![0; slots.len()];
        slots.iter().enumerate().for_each(|(slot, choice)| place[*choice] = slot);
        // Accumulate in the order of the choices, highest weight first, so that a row's sum depends on that
        // row alone.
        for (choice, slot) in choices.iter().zip(place) {
            let to = &mut x.numbers[choice.row * cols..(choice.row + 1) * cols];
            for (to, from) in to.iter_mut().zip(&outputs[slot * cols..(slot + 1) * cols]) {
                *to += choice.weight * from;
            }
        }
    }
}

/// Selects the `used` experts with the highest weights, in descending order. Ties keep the order of the
/// experts.
pub(crate) fn route(weights: &[f32], used: usize, renormalise: bool) -> impl Iterator<Item = (usize, f32)> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    order.truncate(used);
    let sum = if renormalise { order.iter().map(|e| weights[*e]).sum() } else { 1.0 };
    order.into_iter().map(move |expert| (expert, weights[expert] / sum))
}

/// Sorts the choices by expert. Returns their indices and the range of each expert.
pub(crate) fn group_by_expert(choices: &[Choice]) -> (Vec<usize>, Vec<Group>) {
    let mut slots: Vec<usize> = (0..choices.len()).collect();
    slots.sort_by_key(|choice| choices[*choice].expert);
    let mut groups: Vec<Group> = Vec::new();
    for (slot, choice) in slots.iter().enumerate() {
        let expert = choices[*choice].expert;
        match groups.last_mut() {
            Some(group) if group.expert == expert => group.n += 1,
            _ => groups.push(Group { expert, first: slot, n: 1 }),
        }
    }
    (slots, groups)
}

/// Splits the products of all groups into chunks: (group, first row of its matrix, number of rows).
fn split_into_chunks<'a>(
    groups: &[Group],
    threads: usize,
    rows: usize,
    work: impl Fn(&Group) -> (&'a Weight, usize),
) -> Vec<(usize, usize, usize)> {
    let threads = threads.div_ceil(groups.len().max(1));
    let of_group = |(index, group)| {
        let (weight, columns) = work(group);
        let size = chunk_rows(weight, columns, threads);
        (0..rows).step_by(size).map(move |first| (index, first, size.min(rows - first)))
    };
    groups.iter().enumerate().flat_map(of_group).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes() {
        let check = |weights: &[f32], used, renormalise, expect: &[(usize, f32)]| {
            let found: Vec<(usize, f32)> = route(weights, used, renormalise).collect();
            assert_eq!(found, expect, "{weights:?}");
        };
        check(&[0.125, 0.5, 0.125, 0.25], 2, false, &[(1, 0.5), (3, 0.25)]);
        check(&[0.125, 0.375, 0.375, 0.125], 2, true, &[(1, 0.5), (2, 0.5)]);
        check(&[0.25, 0.25, 0.25, 0.25], 3, false, &[(0, 0.25), (1, 0.25), (2, 0.25)]);
        check(&[1.0], 1, true, &[(0, 1.0)]);
        assert_eq!(route(&[f32::NAN; 3], 2, true).count(), 2);
    }

    #[test]
    fn an_expert_sees_its_rows_only() {
        let choice = |row, expert| Choice { row, expert, weight: 1.0 };
        let choices = [choice(0, 4), choice(0, 1), choice(1, 1), choice(1, 2), choice(2, 4), choice(2, 0)];
        let (slots, groups) = group_by_expert(&choices);
        assert_eq!(slots, [5, 1, 2, 3, 0, 4]);
        let groups: Vec<_> = groups.iter().map(|g| (g.expert, g.first, g.n)).collect();
        assert_eq!(groups, [(0, 0, 1), (1, 1, 2), (2, 3, 1), (4, 4, 2)]);
    }
}
