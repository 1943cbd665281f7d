//! `mix_rows` with NEON: 32 dimensions at a time stay in registers while all rows are added.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::aarch64::*;

use super::super::decode::neon::{BF16, F16, F32, Load, Q8_0, tail};
use super::super::formats::formats_in_place;
use super::super::rows::Rows;

#[target_feature(enable = "neon")]
pub(crate) fn mix_rows(rows: &Rows<'_>, weights: &[f32], out: &mut [f32], _: &mut Vec<f32>) {
    assert!(out.len() == rows.cols() && weights.len() <= rows.len());
    formats_in_place!(choose[rows.dtype(), format => mix(format, rows, weights, out), else {
        unreachable!("the cache does not support {:?}", rows.dtype())
    }]);
}

#[target_feature(enable = "neon")]
fn mix<L: Load>(loader: L, rows: &Rows<'_>, weights: &[f32], out: &mut [f32]) {
    let (mut d, whole) = (0, out.len() / 8 * 8);
    while d + 32 <= whole {
        strip::<L, 4>(loader, rows, weights, out, d);
        d += 32;
    }
    while d < whole {
        strip::<L, 1>(loader, rows, weights, out, d);
        d += 8;
    }
    let rest = &mut out[whole..];
    if rest.is_empty() {
        return;
    }
    for (t, weight) in weights.iter().enumerate() {
        for (out, value) in rest.iter_mut().zip(tail(rows, t)) {
            *out = weight.mul_add(value, *out);
        }
    }
}

/// Adds `N` times eight dimensions from `d`.
#[inline]
#[target_feature(enable = "neon")]
fn strip<L: Load, const N: usize>(loader: L, rows: &Rows<'_>, weights: &[f32], out: &mut [f32], d: usize) {
    let out = &mut out[d..d + 8 * N];
    let mut sums = [[vdupq_n_f32(0.0); 2]; N];
    for (n, sums) in sums.iter_mut().enumerate() {
        // SAFETY: `out` has 8 N values.
        *sums = unsafe { [vld1q_f32(out.as_ptr().add(8 * n)), vld1q_f32(out.as_ptr().add(8 * n + 4))] };
    }
    for (t, weight) in weights.iter().enumerate() {
        let codes = rows.row(t).0.as_ptr();
        for (n, sums) in sums.iter_mut().enumerate() {
            // SAFETY: a row is as long as the whole `out`.
            let values = unsafe { loader.eight(codes, d + 8 * n) };
            for (sum, values) in sums.iter_mut().zip(values) {
                *sum = vfmaq_n_f32(*sum, values, *weight);
            }
        }
    }
    for (n, [low, high]) in sums.into_iter().enumerate() {
        // SAFETY: as for the loads.
        unsafe {
            vst1q_f32(out.as_mut_ptr().add(8 * n), low);
            vst1q_f32(out.as_mut_ptr().add(8 * n + 4), high);
        }
    }
}
