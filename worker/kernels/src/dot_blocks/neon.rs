//! `dot_blocks` with NEON: four partial sums per product, group by group.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::aarch64::*;
use std::arch::asm;

use super::super::formats::integer_formats;
use super::super::rows::Rows;
use super::super::window::Window;
use super::columns::{Block, Columns, LaneOrder, QK, TILE};
use super::neon_formats::*;

/// Sums of four products each, for every aarch64 processor.
#[inline]
#[target_feature(enable = "neon")]
fn by_halves(a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // At most 128 * 127 each, which fits in sixteen bits.
    let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    vpadalq_s16(low, vmull_high_s8(a, b))
}

/// The same with one instruction.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn at_once(a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sums = vdupq_n_s32(0);
    // SAFETY: the code uses only registers, and this function enables the instruction.
    unsafe {
        asm!("sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Defines `dot_blocks` with one of the two.
macro_rules! version {
    ($name:ident, $features:literal, $dot:ident) => {
        #[target_feature(enable = $features)]
        pub(crate) fn $name(rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>, scratch: &mut Vec<f32>) {
            #[target_feature(enable = $features)]
            fn products<F: Format>(format: F, rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>) {
                for (j, tile) in x.tiles() {
                    let t = tile.len() / x.depth();
                    for i in 0..rows.len() {
                        let (row, mut sums) = (RowAt::new(rows, i), [vdupq_n_f32(0.0); TILE]);
                        let mut less = [0.0; TILE];
                        for k in (0..rows.cols()).step_by(32) {
                            // SAFETY: the row is as long as the columns and of this format.
                            let (codes, terms) = unsafe { format.codes(row, k) };
                            let lane = LaneOrder::lane(k % QK / 32);
                            for (c, x) in tile[k / QK * t..][..t].iter().enumerate() {
                                let others = codes_of(x, k % QK);
                                let [a, b] = [$dot(codes[0], others[0]), $dot(codes[1], others[1])];
                                let d = x.d[lane];
                                if F::ONE_SCALE {
                                    let dots = vcvtq_f32_s32(vaddq_s32(a, b));
                                    sums[c] = vfmaq_n_f32(sums[c], dots, terms.scale[0] * d);
                                } else {
                                    sums[c] = vfmaq_n_f32(sums[c], vcvtq_f32_s32(a), terms.scale[0] * d);
                                    sums[c] = vfmaq_n_f32(sums[c], vcvtq_f32_s32(b), terms.scale[1] * d);
                                }
                                if F::HAS_OFFSET {
                                    if F::ONE_SCALE {
                                        less[c] += terms.offset[0] * x.sums[lane];
                                    } else {
                                        let fine = |n| x.fine_sums[LaneOrder::fine_lane(k % QK / 16 + n)];
                                        less[c] += terms.offset[0] * fine(0) + terms.offset[1] * fine(1);
                                    }
                                }
                            }
                        }
                        for c in 0..t {
                            out.row(j + c)[i] = vaddvq_f32(sums[c]) - less[c];
                        }
                    }
                }
            }
            assert!(x.cols() == rows.cols() && out.rows() >= x.len() && out.cols() >= rows.len());
            integer_formats!(choose[rows.dtype(), format => products(format, rows, x, out), else {
                super::scalar(rows, x, out, scratch)
            }]);
        }
    };
}

version!(dot_blocks, "neon", by_halves);
version!(dot_blocks_at_once, "neon,dotprod", at_once);

/// Codes k..k + 32 of a block.
#[inline]
#[target_feature(enable = "neon")]
fn codes_of(x: &Block, k: usize) -> [int8x16_t; 2] {
    let codes = &x.codes[k..k + 32];
    // SAFETY: 32 codes.
    unsafe { [vld1q_s8(codes.as_ptr()), vld1q_s8(codes.as_ptr().add(16))] }
}
