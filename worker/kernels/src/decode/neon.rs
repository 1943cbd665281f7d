//! Decoding with NEON: eight packed values to two vectors, for the formats that other operations read
//! without decoding them first.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::aarch64::*;

use super::super::dtype::{BLOCK_Q8_0, Dtype, Float, QK8_0};
use super::super::formats::formats_in_place;
use super::super::rows::{Rows, float_at};

/// Decodes rows of one format.
pub(crate) trait Load: Copy {
    /// Decodes values k..k + 8; k is a multiple of 8.
    ///
    /// # Safety
    /// `codes` belong to a row of this format that has these values.
    unsafe fn eight(self, codes: *const u8, k: usize) -> [float32x4_t; 2];
}

#[derive(Clone, Copy)]
pub(crate) struct F32;
#[derive(Clone, Copy)]
pub(crate) struct F16;
#[derive(Clone, Copy)]
pub(crate) struct BF16;
#[derive(Clone, Copy)]
pub(crate) struct Q8_0;

impl Load for F32 {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn eight(self, codes: *const u8, k: usize) -> [float32x4_t; 2] {
        // SAFETY: 32 bytes from 4 k belong to the row; byte loads accept any alignment.
        let [low, high] = [0, 16].map(|at| unsafe { vld1q_u8(codes.add(4 * k + at)) });
        [vreinterpretq_f32_u8(low), vreinterpretq_f32_u8(high)]
    }
}

impl Load for F16 {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn eight(self, codes: *const u8, k: usize) -> [float32x4_t; 2] {
        // SAFETY: 16 bytes from 2 k belong to the row.
        let halves = vreinterpretq_u16_u8(unsafe { vld1q_u8(codes.add(2 * k)) });
        [vget_low_u16(halves), vget_high_u16(halves)].map(|four| vcvt_f32_f16(vreinterpret_f16_u16(four)))
    }
}

impl Load for BF16 {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn eight(self, codes: *const u8, k: usize) -> [float32x4_t; 2] {
        // SAFETY: 16 bytes from 2 k belong to the row.
        let halves = vreinterpretq_u16_u8(unsafe { vld1q_u8(codes.add(2 * k)) });
        let four = |four| vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(four)));
        [four(vget_low_u16(halves)), four(vget_high_u16(halves))]
    }
}

impl Load for Q8_0 {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn eight(self, codes: *const u8, k: usize) -> [float32x4_t; 2] {
        // SAFETY: block k / 32 belongs to the row: two bytes of d, then 32 codes.
        let (d, codes) = unsafe {
            let block = codes.add(k / QK8_0 * BLOCK_Q8_0);
            (block.cast::<u16>().read_unaligned(), vld1_s8(block.add(2 + k % QK8_0).cast()))
        };
        let d = vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(d)));
        let halves = vmovl_s8(codes);
        let four = |four| vmulq_f32(d, vcvtq_f32_s32(vmovl_s16(four)));
        [four(vget_low_s16(halves)), four(vget_high_s16(halves))]
    }
}

#[target_feature(enable = "neon")]
pub(crate) fn decode_row(rows: &Rows<'_>, row: usize, to: &mut [f32]) {
    formats_in_place!(choose[rows.dtype(), format => decode(format, rows, row, to), else {
        super::scalar(rows, row, to)
    }]);
}

#[target_feature(enable = "neon")]
fn decode<L: Load>(loader: L, rows: &Rows<'_>, row: usize, to: &mut [f32]) {
    let codes = rows.row(row).0;
    let (eights, rest) = to[..rows.cols()].as_chunks_mut::<8>();
    for (at, to) in eights.iter_mut().enumerate() {
        // SAFETY: the row is as long as `to`.
        let [low, high] = unsafe { loader.eight(codes.as_ptr(), 8 * at) };
        // SAFETY: eight values.
        unsafe {
            vst1q_f32(to.as_mut_ptr(), low);
            vst1q_f32(to.as_mut_ptr().add(4), high);
        }
    }
    rest.copy_from_slice(&tail(rows, row)[..rest.len()]);
}

/// The values of a row after the last whole eight, padded with zeros.
pub(crate) fn tail(rows: &Rows<'_>, row: usize) -> [f32; 8] {
    let mut numbers = [0.0; 8];
    if let Dtype::Float(float) = rows.dtype() {
        let first = rows.cols() / 8 * 8;
        for (k, number) in (first..rows.cols()).zip(&mut numbers) {
            *number = float_at(float, rows.row(row).0, k);
        }
    }
    numbers
}

#[target_feature(enable = "neon")]
pub(crate) fn encode_row(dtype: Dtype, from: &[f32], to: &mut [u8]) {
    if dtype != Dtype::Float(Float::F16) || !from.len().is_multiple_of(4) {
        return super::encode_scalar(dtype, from, to);
    }
    assert!(to.len() >= 2 * from.len());
    for (four, to) in from.as_chunks::<4>().0.iter().zip(to.as_chunks_mut::<8>().0) {
        // SAFETY: four values, and eight bytes for them.
        unsafe {
            let halves = vreinterpret_u8_f16(vcvt_f16_f32(vld1q_f32(four.as_ptr())));
            vst1_u8(to.as_mut_ptr(), halves);
        }
    }
}
