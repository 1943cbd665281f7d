//! `dot_blocks` with NEON: the numbers that the columns stand for, by way of `dot_rows`.
#![allow(unsafe_code)] // Functions for an instruction set are unsafe to call without it.

use super::super::dot_rows;
use super::super::rows::Rows;
use super::super::window::Window;
use super::Columns;

#[target_feature(enable = "neon")]
pub(in super::super) fn dot_blocks(
    rows: &Rows<'_>,
    x: &Columns,
    out: &mut Window<'_>,
    scratch: &mut Vec<f32>,
) {
    let numbers: Vec<f32> = (0..x.len()).flat_map(|j| (0..x.cols()).map(move |k| x.at(j, k))).collect();
    dot_rows::neon::dot_rows(rows, &numbers, out, scratch);
}
