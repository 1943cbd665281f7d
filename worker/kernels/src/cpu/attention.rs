//! Attention on the CPU: scores, softmax and weighted mean, for a few rows and the query heads of one key
//! head at a time. The result of a row depends only on its own position and window.

use std::ops::Range;

use super::super::batch::PAGE_LEN;
use super::super::kernels::{Attention, CacheShape};
use super::super::ops::Ops;
use super::super::pool::Scratch;
use super::super::window::{Shared, Window};
use super::{Buffer, Cache, Cpu, Step};

/// Columns (query rows times heads of a group) per task.
const COLUMNS: usize = 24;

/// A few query rows of a sequence, for the query heads of one key head.
struct Task<'a> {
    first_row: usize,
    rows: usize,
    /// Position of the first row.
    before: usize,
    /// Number of keys for the last row.
    keys: usize,
    head: usize,
    /// Pages with the keys that these rows see. They start at token `first_token`, the start of a page, which
    /// may precede the first visible key.
    first_token: usize,
    pages: &'a [u32],
}

impl Cpu {
    pub(super) fn attend(
        &mut self,
        step: &Step,
        q: &Buffer,
        how: &Attention,
        (cache, layer): (&Cache, usize),
        out: &mut Buffer,
    ) {
        let CacheShape { n_kv_heads, head_dim, .. } = cache.shape;
        let group = q.cols / head_dim / n_kv_heads;
        let rows_a_task = (COLUMNS / group).max(1);
        let tasks: Vec<Task<'_>> = (step.batch.spans.iter())
            .flat_map(|span| (0..span.rows).step_by(rows_a_task).map(move |row| (span, row)))
            .flat_map(|(span, row)| (0..n_kv_heads).map(move |head| (span, row, head)))
            .map(|(span, row, head)| {
                let (rows, before) = (rows_a_task.min(span.rows - row), span.start + row);
                let len = span.start + span.rows;
                let keys = how.visible(before + rows - 1, len).end;
                let unseen = how.visible(before, len).start / PAGE_LEN;
                let pages = unseen..keys.div_ceil(PAGE_LEN);
                let pages = &step.batch.pages[span.first_page + pages.start..span.first_page + pages.end];
                let (first_row, first_token) = (span.first_row + row, unseen * PAGE_LEN);
                Task { first_row, rows, before, keys, head, first_token, pages }
            })
            .collect();
        out.resize(step.batch.tokens.len(), q.cols);
        let out = Shared::new(&mut out.numbers, q.cols);
        let ops = self.ops;
        self.pool.run(tasks.len(), &|task, scratch| {
            let task = &tasks[task];
            let part = |row| {
                // SAFETY: each row's part for this head belongs to exactly one task.
                unsafe { out.part(task.first_row + row, task.head * group * head_dim, group * head_dim) }
            };
            attend(ops, task, &q.numbers, group, how, (cache, layer), part, scratch);
        });
    }
}

/// Computes scores, softmax and mean. The columns are (row, head of the group), in this order.
#[expect(clippy::too_many_arguments, reason = "called only once")]
fn attend<'a>(
    ops: &Ops,
    task: &Task<'_>,
    q: &[f32],
    group: usize,
    how: &Attention,
    (cache, layer): (&Cache, usize),
    part: impl Fn(usize) -> &'a mut [f32],
    scratch: &mut Scratch,
) {
    let (head_dim, row_len) = (cache.shape.head_dim, cache.shape.row_len());
    let (width, q_cols) = (group * head_dim, group * head_dim * cache.shape.n_kv_heads);
    // Tokens are counted from the first page.
    let kv_len = task.keys - task.first_token;
    let Scratch { rows: decoded, numbers: scores, more: queries, sums } = scratch;
    let columns = task.rows * group;
    queries.clear();
    for row in task.first_row..task.first_row + task.rows {
        for head in q[row * q_cols + task.head * width..][..width].chunks_exact(head_dim) {
            queries.extend_from_slice(head);
            queries.resize(queries.len() + row_len - head_dim, 0.0);
        }
    }
    scores.resize(columns * kv_len, 0.0);
    for (index, page) in task.pages.iter().enumerate() {
        let (first, n) = (index * PAGE_LEN, PAGE_LEN.min(kv_len - index * PAGE_LEN));
        let keys = cache.page(layer, *page, 0, task.head, n);
        ops.dot_rows(&keys, queries, &mut Window::new(scores, kv_len, first, n), decoded);
    }
    let seen = |column: usize| {
        let Range { start, end } = how.visible(task.before + column / group, task.keys);
        (start - task.first_token, end - task.first_token)
    };
    for (column, scores) in scores.chunks_exact_mut(kv_len).enumerate() {
        let (from, to) = seen(column);
        let scores = &mut scores[from..to];
        match how.cap {
            None => ops.softmax(scores, how.scale),
            Some(cap) => {
                ops.soft_cap(scores, how.scale, cap);
                ops.softmax(scores, 1.0);
            }
        }
    }
    sums.clear();
    sums.resize(columns * row_len, 0.0);
    for (index, page) in task.pages.iter().enumerate() {
        let (first, n) = (index * PAGE_LEN, PAGE_LEN.min(kv_len - index * PAGE_LEN));
        let values = cache.page(layer, *page, 1, task.head, n);
        for column in 0..columns {
            let (from, to) = seen(column);
            let (from, to) = (from.clamp(first, first + n), to.clamp(first, first + n));
            if from == to {
                continue;
            }
            let weights = &scores[column * kv_len..][from..to];
            let sum = &mut sums[column * row_len..(column + 1) * row_len];
            ops.mix_rows(&values.range(from - first, to - from), weights, sum, decoded);
        }
    }
    for (column, sum) in sums.chunks_exact(row_len).enumerate() {
        let out = &mut part(column / group)[column % group * head_dim..][..head_dim];
        out.copy_from_slice(&sum[..head_dim]);
    }
}
