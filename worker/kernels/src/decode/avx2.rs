//! Decoding with AVX2 and F16C: 32 packed values to four vectors.
#![allow(unsafe_code)] // Writes vectors through pointers.

use std::arch::x86_64::*;

use super::super::dtype::{ByteCode, Dtype, Float, Scaled};
use super::super::formats::{formats_in_place, integer_formats, small_formats};
use super::super::rows::Rows;
use super::blocks::{
    Iq4Nl, Mxfp4, Mxfp4Block, Mxfp8, Nvfp4, Nvfp4Block, Q1_0, Q2_0, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0,
};
use super::k_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::load::{Affine, BF16, ByteCodes, F16, F32, Load, RowAt};
use super::small_codes::{Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Tq1, Tq2};

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn decode_row(rows: &Rows<'_>, row: usize, to: &mut [f32]) {
    assert!(to.len() >= rows.cols());
    let at = RowAt::new(rows, row);
    let to = &mut to[..rows.cols()];
    formats_in_place!(choose[rows.dtype(), format => decode(format, at, to), else {
        integer_formats!(choose[rows.dtype(), format => decode(format, at, to), else {
            small_formats!(choose[rows.dtype(), format => decode(format, at, to), else {
                decode_other(rows, row, to)
            }])
        }])
    }]);
}

/// Decodes the formats that are in none of the tables.
#[target_feature(enable = "avx2,fma,f16c")]
fn decode_other(rows: &Rows<'_>, row: usize, to: &mut [f32]) {
    match rows.dtype() {
        Dtype::Scaled(Scaled::Mxfp8) => decode(Mxfp8, RowAt::new(rows, row), to),
        Dtype::ByteCodes { code: ByteCode::E4m3, group } => {
            decode(ByteCodes::<false> { group }, RowAt::new(rows, row), to);
        }
        Dtype::ByteCodes { code: ByteCode::I8, group } => {
            decode(ByteCodes::<true> { group }, RowAt::new(rows, row), to);
        }
        _ => super::scalar(rows, row, to),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn decode<L: Load>(loader: L, row: RowAt, to: &mut [f32]) {
    let group = loader.group_len();
    let whole = to.len() / group * group;
    for first in (0..whole).step_by(group) {
        // SAFETY: the row is as long as `to`, and a group begins at `first`.
        let parts = unsafe { loader.group(row, first) };
        for k in (first..first + group).step_by(32) {
            // SAFETY: k + 32 is within the row and within `to`.
            let block = unsafe { loader.block(row, parts, k) };
            for (v, numbers) in block.into_iter().enumerate() {
                // SAFETY: as above.
                unsafe { _mm256_storeu_ps(to.as_mut_ptr().add(k + 8 * v), numbers) };
            }
        }
    }
    if whole < to.len() {
        // SAFETY: fewer than 32 values are left in the row.
        let block = unsafe { loader.tail(row, whole, to.len() - whole) };
        let mut padded = [0.0f32; 32];
        for (v, numbers) in block.into_iter().enumerate() {
            // SAFETY: 8 v + 8 <= 32.
            unsafe { _mm256_storeu_ps(padded.as_mut_ptr().add(8 * v), numbers) };
        }
        let tail = &mut to[whole..];
        tail.copy_from_slice(&padded[..tail.len()]);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn encode_row(dtype: Dtype, from: &[f32], to: &mut [u8]) {
    if dtype != Dtype::Float(Float::F16) || !from.len().is_multiple_of(8) {
        return super::encode_scalar(dtype, from, to);
    }
    assert!(to.len() >= 2 * from.len());
    for k in (0..from.len()).step_by(8) {
        // SAFETY: there are k + 8 values.
        let numbers = unsafe { _mm256_loadu_ps(from.as_ptr().add(k)) };
        let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(numbers);
        // SAFETY: there are 2 k + 16 bytes, by the assertion.
        unsafe { _mm_storeu_si128(to.as_mut_ptr().add(2 * k).cast(), halves) };
    }
}
