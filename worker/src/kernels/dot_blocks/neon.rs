//! `dot_blocks` with NEON: four partial sums a product, group by group, for the formats that files mostly have; the others
//! by way of `dot_rows`, with the numbers that the columns stand for.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::aarch64::*;
use std::arch::asm;

use lode_model::quant::ggml::Type;

use super::super::dot_rows;
use super::super::rows::{BLOCK_Q8_0, Kind, Rows};
use super::super::window::Window;
use super::columns::{Block, TILE};
use super::{Columns, Order, QK};

/// What 32 codes of a row share, each half of them.
#[derive(Clone, Copy)]
struct Terms {
    scale: [f32; 2],
    /// Taken off each number.
    offset: f32,
}

/// Unpacks one format.
trait Format: Copy {
    /// Whether both halves of 32 codes have one scale.
    const ONE_SCALE: bool;
    /// Whether something is taken off.
    const HAS_OFFSET: bool;

    /// Codes k..k + 32 of a row, and what they share.
    ///
    /// # Safety
    /// `row` are the bytes of a row of this format, which has these numbers.
    unsafe fn codes(self, row: *const u8, k: usize) -> ([int8x16_t; 2], Terms);
}

#[derive(Clone, Copy)]
struct Q8_0;
#[derive(Clone, Copy)]
struct Q4_0;
#[derive(Clone, Copy)]
struct Q4K;
#[derive(Clone, Copy)]
struct Q5K;
#[derive(Clone, Copy)]
struct Q6K;

/// # Safety
/// Two bytes are there.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn half(at: *const u8) -> f32 {
    // SAFETY: by the caller's promise; an unaligned read.
    let bits = unsafe { at.cast::<u16>().read_unaligned() };
    vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))))
}

/// # Safety
/// 32 bytes are there.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn bytes(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: by the caller's promise.
    unsafe { [vld1q_u8(at), vld1q_u8(at.add(16))] }
}

#[inline]
#[target_feature(enable = "neon")]
fn nibbles(bytes: uint8x16_t, high: bool) -> uint8x16_t {
    if high { vshrq_n_u8::<4>(bytes) } else { vandq_u8(bytes, vdupq_n_u8(15)) }
}

impl Format for Q8_0 {
    const ONE_SCALE: bool = true;
    const HAS_OFFSET: bool = false;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn codes(self, row: *const u8, k: usize) -> ([int8x16_t; 2], Terms) {
        // SAFETY: block k / 32 belongs to the row: d, and 32 codes.
        let (d, codes) = unsafe {
            let block = row.add(k / 32 * BLOCK_Q8_0);
            (half(block), bytes(block.add(2)))
        };
        (codes.map(|codes| vreinterpretq_s8_u8(codes)), Terms { scale: [d; 2], offset: 0.0 })
    }
}

impl Format for Q4_0 {
    const ONE_SCALE: bool = true;
    const HAS_OFFSET: bool = false;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn codes(self, row: *const u8, k: usize) -> ([int8x16_t; 2], Terms) {
        // SAFETY: block k / 32 belongs to the row: d, and sixteen bytes.
        let (d, packed) = unsafe {
            let block = row.add(k / 32 * 18);
            (half(block), vld1q_u8(block.add(2)))
        };
        let codes =
            [false, true].map(|high| vsubq_s8(vreinterpretq_s8_u8(nibbles(packed, high)), vdupq_n_s8(8)));
        (codes, Terms { scale: [d; 2], offset: 0.0 })
    }
}

/// Scale and minimum of 32 codes of Q4_K and Q5_K, of which a block has eight.
///
/// # Safety
/// Sixteen bytes are there: d, dmin and twelve with numbers of six bits.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn six_bits(block: *const u8, group: usize) -> Terms {
    // SAFETY: by the caller's promise, as groups are below eight.
    let (d, dmin, at) = unsafe { (half(block), half(block.add(2)), |n: usize| *block.add(4 + n)) };
    let (scale, minimum) = if group < 4 {
        (at(group) & 63, at(group + 4) & 63)
    } else {
        (at(group + 4) & 15 | at(group - 4) >> 6 << 4, at(group + 4) >> 4 | at(group) >> 6 << 4)
    };
    Terms { scale: [d * f32::from(scale); 2], offset: dmin * f32::from(minimum) }
}

impl Format for Q4K {
    const ONE_SCALE: bool = true;
    const HAS_OFFSET: bool = true;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn codes(self, row: *const u8, k: usize) -> ([int8x16_t; 2], Terms) {
        let group = k % QK / 32;
        // SAFETY: block k / 256 belongs to the row: sixteen bytes of scales, and 128 of codes.
        let (packed, terms) = unsafe {
            let block = row.add(k / QK * 144);
            (bytes(block.add(16 + group / 2 * 32)), six_bits(block, group))
        };
        (packed.map(|packed| vreinterpretq_s8_u8(nibbles(packed, group % 2 == 1))), terms)
    }
}

impl Format for Q5K {
    const ONE_SCALE: bool = true;
    const HAS_OFFSET: bool = true;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn codes(self, row: *const u8, k: usize) -> ([int8x16_t; 2], Terms) {
        let group = k % QK / 32;
        // SAFETY: block k / 256 belongs to the row: sixteen bytes of scales, 32 of fifth bits, and 128 of codes.
        let (packed, fifth, terms) = unsafe {
            let block = row.add(k / QK * 176);
            (bytes(block.add(48 + group / 2 * 32)), bytes(block.add(16)), six_bits(block, group))
        };
        let codes = std::array::from_fn(|n| {
            let fifth = vandq_u8(vtstq_u8(fifth[n], vdupq_n_u8(1 << group)), vdupq_n_u8(16));
            vreinterpretq_s8_u8(vorrq_u8(nibbles(packed[n], group % 2 == 1), fifth))
        });
        (codes, terms)
    }
}

impl Format for Q6K {
    const ONE_SCALE: bool = false;
    const HAS_OFFSET: bool = false;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn codes(self, row: *const u8, k: usize) -> ([int8x16_t; 2], Terms) {
        let group = k % QK / 32;
        let (n, r) = (group / 4, group % 4);
        // SAFETY: block k / 256 belongs to the row: 128 bytes of low bits, 64 of high ones, sixteen scales, and d.
        let (low, high, scales, d) = unsafe {
            let block = row.add(k / QK * 210);
            let scale = |n: usize| f32::from((*block.add(192 + n)).cast_signed());
            let scales = [scale(2 * group), scale(2 * group + 1)];
            let (low, high) = (block.add(64 * n + r % 2 * 32), block.add(128 + 32 * n));
            (bytes(low), bytes(high), scales, half(block.add(208)))
        };
        let by = vdupq_n_s8(-2 * r as i8);
        let codes = std::array::from_fn(|n| {
            let high = vandq_u8(vshlq_u8(high[n], by), vdupq_n_u8(3));
            let code = vorrq_u8(nibbles(low[n], r >= 2), vshlq_n_u8::<4>(high));
            vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(32))
        });
        (codes, Terms { scale: scales.map(|scale| d * scale), offset: 0.0 })
    }
}

/// Sums of products by fours, for every processor of this architecture.
#[inline]
#[target_feature(enable = "neon")]
fn by_halves(a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // At most 128 * 127 each, which sixteen bits hold.
    let low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    vpadalq_s16(low, vmull_high_s8(a, b))
}

/// The same in one instruction.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn at_once(a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut sums = vdupq_n_s32(0);
    // SAFETY: it computes on registers alone, and this function has the instruction.
    unsafe {
        asm!("sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b", sums = inout(vreg) sums, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// `dot_blocks` by one of the two.
macro_rules! version {
    ($name:ident, $features:literal, $dot:ident) => {
        #[target_feature(enable = $features)]
        pub(in super::super) fn $name(
            rows: &Rows<'_>,
            x: &Columns,
            out: &mut Window<'_>,
            scratch: &mut Vec<f32>,
        ) {
            #[target_feature(enable = $features)]
            fn products<F: Format>(format: F, rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>) {
                for (j, tile) in x.tiles() {
                    let t = tile.len() / x.depth();
                    for i in 0..rows.len() {
                        let (row, mut sums) = (rows.row(i).0.as_ptr(), [vdupq_n_f32(0.0); TILE]);
                        let mut less = [0.0; TILE];
                        for k in (0..rows.cols()).step_by(32) {
                            // SAFETY: the row has as many numbers as the columns, and is of this format.
                            let (codes, terms) = unsafe { format.codes(row, k) };
                            let lane = Order::lane(k % QK / 32);
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
                                    less[c] += terms.offset * x.sums[lane];
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
            match rows.kind() {
                Kind::Q8_0 => products(Q8_0, rows, x, out),
                Kind::Ggml(Type::Q4_0) => products(Q4_0, rows, x, out),
                Kind::Ggml(Type::Q4_K) => products(Q4K, rows, x, out),
                Kind::Ggml(Type::Q5_K) => products(Q5K, rows, x, out),
                Kind::Ggml(Type::Q6_K) => products(Q6K, rows, x, out),
                _ => in_floats(rows, x, out, scratch),
            }
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

#[target_feature(enable = "neon")]
fn in_floats(rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    let numbers: Vec<f32> = (0..x.len()).flat_map(|j| (0..x.cols()).map(move |k| x.at(j, k))).collect();
    dot_rows::neon::dot_rows(rows, &numbers, out, scratch);
}
