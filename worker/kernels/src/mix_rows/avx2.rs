//! `mix_rows` with AVX2: 32 dimensions at a time stay in registers while all rows are added.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::decode::blocks::Q8_0;
use super::super::decode::load::{BF16, F16, F32, Load, RowAt};
use super::super::formats::formats_in_place;
use super::super::rows::Rows;

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn mix_rows(rows: &Rows<'_>, weights: &[f32], out: &mut [f32], _: &mut Vec<f32>) {
    assert!(out.len() == rows.cols() && weights.len() <= rows.len());
    if weights.is_empty() {
        return;
    }
    formats_in_place!(choose[rows.dtype(), format => mix(format, rows, weights, out), else {
        unreachable!("the cache does not support {:?}", rows.dtype())
    }]);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn mix<L: Load>(loader: L, rows: &Rows<'_>, weights: &[f32], out: &mut [f32]) {
    let whole = out.len() / 32 * 32;
    let mut d = 0;
    while d + 64 <= whole {
        strip::<L, 2>(loader, rows, weights, &mut out[d..d + 64], d);
        d += 64;
    }
    if d < whole {
        strip::<L, 1>(loader, rows, weights, &mut out[d..d + 32], d);
    }
    if whole < out.len() {
        let tail = &mut out[whole..];
        let mut padded = [0.0; 32];
        padded[..tail.len()].copy_from_slice(tail);
        for (t, weight) in weights.iter().enumerate() {
            // SAFETY: fewer than 32 values of the row are left from `whole`.
            let values = unsafe { loader.tail(RowAt::new(rows, t), whole, tail.len()) };
            for (v, values) in values.into_iter().enumerate() {
                add(&mut padded[8 * v..], values, *weight);
            }
        }
        tail.copy_from_slice(&padded[..tail.len()]);
    }
}

/// Adds `B` blocks of 32 dimensions from `d`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn strip<L: Load, const B: usize>(loader: L, rows: &Rows<'_>, weights: &[f32], out: &mut [f32], d: usize) {
    assert!(out.len() == 32 * B && d + 32 * B <= rows.cols() && weights.len() <= rows.len());
    let row_bytes = rows.dtype().row_bytes(rows.cols());
    let mut sums = [[_mm256_setzero_ps(); 4]; B];
    for (b, sums) in sums.iter_mut().enumerate() {
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: `out` has 32 B values, by the assertion.
            *sum = unsafe { _mm256_loadu_ps(out.as_ptr().add(32 * b + 8 * v)) };
        }
    }
    let mut row = RowAt::new(rows, 0);
    for weight in weights {
        let weight = _mm256_set1_ps(*weight);
        for (b, sums) in sums.iter_mut().enumerate() {
            let k = d + 32 * b;
            // SAFETY: there is a row per weight, with d + 32 B values; rows of the cache have groups of 32.
            let values = unsafe { loader.block(row, loader.group(row, k), k) };
            for (sum, values) in sums.iter_mut().zip(values) {
                *sum = _mm256_fmadd_ps(weight, values, *sum);
            }
        }
        row = row.next(row_bytes);
    }
    for (b, sums) in sums.iter().enumerate() {
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: as for the loads.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr().add(32 * b + 8 * v), *sum) };
        }
    }
}

/// `to[0..8] += weight * values`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn add(to: &mut [f32], values: __m256, weight: f32) {
    assert!(to.len() >= 8);
    // SAFETY: eight values, by the assertion.
    unsafe {
        let sum = _mm256_fmadd_ps(_mm256_set1_ps(weight), values, _mm256_loadu_ps(to.as_ptr()));
        _mm256_storeu_ps(to.as_mut_ptr(), sum);
    }
}
