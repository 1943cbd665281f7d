//! The packed formats with NEON: unpacks 32 codes to signed bytes in order, with their scales and offsets.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::aarch64::*;

use lode_model::quant::float::{e4m3_to_f32, e8m0_to_f32};

use super::super::dtype::{BLOCK_Q8_0, Float};
use super::super::rows::{Rows, float_at};
use super::columns::QK;

/// The parts of a row.
#[derive(Clone, Copy)]
pub(super) struct RowAt<'a> {
    codes: *const u8,
    scales: &'a [u8],
    biases: &'a [u8],
    factor: f32,
}

impl<'a> RowAt<'a> {
    pub(super) fn new(rows: &Rows<'a>, row: usize) -> Self {
        let (codes, scales, biases) = rows.row(row);
        Self { codes: codes.as_ptr(), scales, biases, factor: rows.factor() }
    }

    /// Pointer to block n of this size.
    #[inline]
    fn block(self, n: usize, bytes: usize) -> *const u8 {
        self.codes.wrapping_add(n * bytes)
    }
}

/// Scale and offset of 32 codes of a row, for each half of them: value = `scale * code - offset`.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) scale: [f32; 2],
    pub(super) offset: [f32; 2],
}

impl Terms {
    fn scale(scale: f32) -> Self {
        Self::scales([scale; 2])
    }

    fn scales(scale: [f32; 2]) -> Self {
        Self { scale, offset: [0.0; 2] }
    }
}

/// Unpacks one format.
pub(super) trait Format: Copy {
    /// Whether both halves of 32 codes have the same scale and offset.
    const ONE_SCALE: bool = true;
    /// Whether there are offsets.
    const HAS_OFFSET: bool = false;

    /// Unpacks codes k..k + 32 of a row, with their scale and offset.
    ///
    /// # Safety
    /// The row is of this format and has these values.
    unsafe fn codes(self, row: RowAt<'_>, k: usize) -> ([int8x16_t; 2], Terms);
}

/// # Safety
/// There are two bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn half(at: *const u8) -> f32 {
    // SAFETY: guaranteed by the caller; the read is unaligned.
    let bits = unsafe { at.cast::<u16>().read_unaligned() };
    vgetq_lane_f32::<0>(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(bits))))
}

/// # Safety
/// There are 32 bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn bytes(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    unsafe { [vld1q_u8(at), vld1q_u8(at.add(16))] }
}

#[inline]
#[target_feature(enable = "neon")]
fn nibbles(bytes: uint8x16_t, high: bool) -> uint8x16_t {
    if high { vshrq_n_u8::<4>(bytes) } else { vandq_u8(bytes, vdupq_n_u8(15)) }
}

/// The low nibbles of sixteen bytes, then the high nibbles.
///
/// # Safety
/// There are sixteen bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn halves(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    let bytes = unsafe { vld1q_u8(at) };
    [nibbles(bytes, false), nibbles(bytes, true)]
}

/// The same, alternating low and high.
///
/// # Safety
/// There are sixteen bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn neighbours(at: *const u8) -> [uint8x16_t; 2] {
    // SAFETY: guaranteed by the caller.
    let [low, high] = unsafe { halves(at) };
    [vzip1q_u8(low, high), vzip2q_u8(low, high)]
}

/// Subtracts a number from codes.
#[inline]
#[target_feature(enable = "neon")]
fn below([a, b]: [uint8x16_t; 2], less: i8) -> [int8x16_t; 2] {
    let less = vdupq_n_s8(less);
    [vsubq_s8(vreinterpretq_s8_u8(a), less), vsubq_s8(vreinterpretq_s8_u8(b), less)]
}

/// Looks up each code in a table of sixteen.
#[inline]
#[target_feature(enable = "neon")]
fn look_up(table: &[i8; 16], [a, b]: [uint8x16_t; 2]) -> [int8x16_t; 2] {
    // SAFETY: sixteen bytes.
    let table = unsafe { vld1q_s8(table.as_ptr()) };
    [vqtbl1q_s8(table, a), vqtbl1q_s8(table, b)]
}

/// Shifts bytes left, or right if `by` is negative.
#[inline]
#[target_feature(enable = "neon")]
fn up(bytes: [uint8x16_t; 2], by: i8) -> [uint8x16_t; 2] {
    let by = vdupq_n_s8(by);
    [vshlq_u8(bytes[0], by), vshlq_u8(bytes[1], by)]
}

/// The bits of bytes in `mask`.
#[inline]
#[target_feature(enable = "neon")]
fn masked(bytes: [uint8x16_t; 2], mask: u8) -> [uint8x16_t; 2] {
    let mask = vdupq_n_u8(mask);
    [vandq_u8(bytes[0], mask), vandq_u8(bytes[1], mask)]
}

#[inline]
#[target_feature(enable = "neon")]
fn or(a: [uint8x16_t; 2], b: [uint8x16_t; 2]) -> [uint8x16_t; 2] {
    [vorrq_u8(a[0], b[0]), vorrq_u8(a[1], b[1])]
}

/// Expands 32 bits to bytes of 16 or 0, to be added to their codes.
///
/// # Safety
/// There are four bytes.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn fifth(at: *const u8) -> [uint8x16_t; 2] {
    const BITS: [u8; 16] = [1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128];
    const BYTES: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
    // SAFETY: guaranteed by the caller; the constants have sixteen bytes each.
    let (word, bits, low) = unsafe {
        (vdupq_n_u32(at.cast::<u32>().read_unaligned()), vld1q_u8(BITS.as_ptr()), vld1q_u8(BYTES.as_ptr()))
    };
    let word = vreinterpretq_u8_u32(word);
    let spread = [vqtbl1q_u8(word, low), vqtbl1q_u8(word, vaddq_u8(low, vdupq_n_u8(2)))];
    masked([vtstq_u8(spread[0], bits), vtstq_u8(spread[1], bits)], 16)
}

/// Twice the values of E2M1.
const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
/// The values of IQ4_NL and IQ4_XS.
const NON_LINEAR: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Formats in which codes k..k + 32 are in one block with their scales. `$codes` unpacks them from the start
/// of the block and k.
macro_rules! formats {
    ($($name:ident: $bytes:literal for $numbers:literal, one scale $one:literal, offset $offset:literal,
        |$at:ident, $k:ident| $codes:expr;)+) => {$(
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Format for $name {
            const ONE_SCALE: bool = $one;
            const HAS_OFFSET: bool = $offset;

            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn codes(self, row: RowAt<'_>, $k: usize) -> ([int8x16_t; 2], Terms) {
                let $at = row.block($k / $numbers, $bytes);
                // SAFETY: the read is within this block, which belongs to the row.
                unsafe { $codes }
            }
        }
    )+};
}

formats! {
    Q8_0: 34 for 32, one scale true, offset false, |at, _k| {
        (below(bytes(at.add(2)), 0), Terms::scale(half(at)))
    };
    Q4_0: 18 for 32, one scale true, offset false, |at, _k| {
        (below(halves(at.add(2)), 8), Terms::scale(half(at)))
    };
    Q4_1: 20 for 32, one scale true, offset true, |at, _k| {
        (below(halves(at.add(4)), 0), Terms { scale: [half(at); 2], offset: [-half(at.add(2)); 2] })
    };
    Q5_0: 22 for 32, one scale true, offset false, |at, _k| {
        (below(or(halves(at.add(6)), fifth(at.add(2))), 16), Terms::scale(half(at)))
    };
    Q5_1: 24 for 32, one scale true, offset true, |at, _k| {
        let codes = below(or(halves(at.add(8)), fifth(at.add(4))), 0);
        (codes, Terms { scale: [half(at); 2], offset: [-half(at.add(2)); 2] })
    };
    Iq4Nl: 18 for 32, one scale true, offset false, |at, _k| {
        (look_up(&NON_LINEAR, halves(at.add(2))), Terms::scale(half(at)))
    };
    Mxfp4Block: 17 for 32, one scale true, offset false, |at, _k| {
        (look_up(&E2M1, halves(at.add(1))), Terms::scale(e8m0_to_f32(*at) * 0.5))
    };
    Q4K: 144 for 256, one scale true, offset true, |at, k| {
        let group = k % QK / 32;
        let packed = bytes(at.add(16 + group / 2 * 32));
        (below(packed.map(|packed| nibbles(packed, group % 2 == 1)), 0), six_bits(at, group))
    };
    Q5K: 176 for 256, one scale true, offset true, |at, k| {
        let group = k % QK / 32;
        let low = bytes(at.add(48 + group / 2 * 32)).map(|packed| nibbles(packed, group % 2 == 1));
        let fifth = masked(up(bytes(at.add(16)), 4 - group as i8), 16);
        (below(or(low, fifth), 0), six_bits(at, group))
    };
    Q6K: 210 for 256, one scale false, offset false, |at, k| {
        let group = k % QK / 32;
        let (n, r) = (group / 4, group % 4);
        let low = bytes(at.add(64 * n + r % 2 * 32)).map(|packed| nibbles(packed, r >= 2));
        let high = masked(up(bytes(at.add(128 + 32 * n)), 4 - 2 * r as i8), 0x30);
        let (d, scale) = (half(at.add(208)), |n: usize| f32::from((*at.add(192 + n)).cast_signed()));
        (below(or(low, high), 32), Terms::scales([d * scale(2 * group), d * scale(2 * group + 1)]))
    };
    Q2K: 84 for 256, one scale false, offset true, |at, k| {
        let group = k % QK / 32;
        let codes = masked(up(bytes(at.add(16 + group / 4 * 32)), -2 * (group % 4) as i8), 3);
        let (d, dmin, packed) = (half(at.add(80)), half(at.add(82)), |n: usize| *at.add(2 * group + n));
        let scale = [0, 1].map(|n| d * f32::from(packed(n) & 15));
        let offset = [0, 1].map(|n| dmin * f32::from(packed(n) >> 4));
        (below(codes, 0), Terms { scale, offset })
    };
    Q3K: 110 for 256, one scale false, offset false, |at, k| {
        let group = k % QK / 32;
        let low = masked(up(bytes(at.add(32 + group / 4 * 32)), -2 * (group % 4) as i8), 3);
        // A set bit subtracts nothing, a clear bit subtracts four.
        let kept = masked(up(bytes(at), 2 - group as i8), 4);
        let packed = |n: usize| *at.add(96 + n);
        // The low nibbles of scales 0 to 7 are in the low nibbles of eight bytes, those of scales 8 to 15 in
        // the high ones. The two high bits of each scale are in the last four bytes.
        let scale = |n: usize| {
            let low = packed(n % 8) >> (n / 8 * 4) & 15;
            let high = packed(8 + n % 4) >> (n / 4 * 2) & 3;
            f32::from(low | high << 4) - 32.0
        };
        let d = half(at.add(108));
        (below(or(low, kept), 4), Terms::scales([d * scale(2 * group), d * scale(2 * group + 1)]))
    };
    Iq4Xs: 136 for 256, one scale true, offset false, |at, k| {
        let group = k % QK / 32;
        let (high, low) = (at.add(2).cast::<u16>().read_unaligned(), at.add(4).cast::<u32>().read_unaligned());
        let scale = (low >> (4 * group) & 15) as u8 | ((high >> (2 * group) & 3) as u8) << 4;
        let codes = look_up(&NON_LINEAR, halves(at.add(8 + 16 * group)));
        (codes, Terms::scale(half(at) * (f32::from(scale) - 32.0)))
    };
}

/// The scale and minimum of 32 codes of Q4_K and Q5_K, of which a block has eight groups.
///
/// # Safety
/// There are sixteen bytes: d, dmin and twelve bytes of 6-bit numbers.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn six_bits(block: *const u8, group: usize) -> Terms {
    // SAFETY: guaranteed by the caller; group numbers are below eight.
    let (d, dmin, at) = unsafe { (half(block), half(block.add(2)), |n: usize| *block.add(4 + n)) };
    let (scale, minimum) = if group < 4 {
        (at(group) & 63, at(group + 4) & 63)
    } else {
        (at(group + 4) & 15 | at(group - 4) >> 6 << 4, at(group + 4) >> 4 | at(group) >> 6 << 4)
    };
    Terms { scale: [d * f32::from(scale); 2], offset: [dmin * f32::from(minimum); 2] }
}

/// ggml's NVFP4: four times sixteen codes. The two halves of each sixteen are in the low and high nibbles.
#[derive(Clone, Copy)]
pub(super) struct Nvfp4Block;

impl Format for Nvfp4Block {
    const ONE_SCALE: bool = false;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn codes(self, row: RowAt<'_>, k: usize) -> ([int8x16_t; 2], Terms) {
        let at = row.block(k / 64, 36);
        // SAFETY: block k / 64 belongs to the row: four scales, and 32 bytes.
        let (packed, scale) =
            unsafe { (halves(at.add(4 + k % 64 / 2)), |n: usize| *at.add(k % 64 / 16 + n)) };
        let [low, high] = packed.map(|codes| vreinterpretq_u64_u8(codes));
        let codes =
            [vreinterpretq_u8_u64(vzip1q_u64(low, high)), vreinterpretq_u8_u64(vzip2q_u64(low, high))];
        let scales = [0, 1].map(|n| {
            // The scales have no sign. The code that is NaN in other formats is zero; with the sign bit set
            // it is an ordinary code.
            let scale = match scale(n) {
                0x7f => 0.0,
                0xff => 240.0,
                code => e4m3_to_f32(code & 0x7f) * 0.5,
            };
            scale * row.factor
        });
        (look_up(&E2M1, codes), Terms::scales(scales))
    }
}

/// MXFP4 of tensor blobs.
#[derive(Clone, Copy)]
pub(super) struct Mxfp4;

impl Format for Mxfp4 {
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn codes(self, row: RowAt<'_>, k: usize) -> ([int8x16_t; 2], Terms) {
        // SAFETY: sixteen bytes from k / 2 belong to the row.
        let codes = unsafe { neighbours(row.codes.add(k / 2)) };
        (look_up(&E2M1, codes), Terms::scale(e8m0_to_f32(row.scales[k / 32]) * 0.5))
    }
}

/// NVFP4 of tensor blobs.
#[derive(Clone, Copy)]
pub(super) struct Nvfp4;

impl Format for Nvfp4 {
    const ONE_SCALE: bool = false;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn codes(self, row: RowAt<'_>, k: usize) -> ([int8x16_t; 2], Terms) {
        // SAFETY: sixteen bytes from k / 2 belong to the row.
        let codes = unsafe { neighbours(row.codes.add(k / 2)) };
        let scale = |n: usize| e4m3_to_f32(row.scales[k / 16 + n]) * row.factor * 0.5;
        (look_up(&E2M1, codes), Terms::scales([scale(0), scale(1)]))
    }
}

/// Affine codes of tensor blobs, with groups of `1 << shift` codes. 8-bit codes are stored minus 128.
#[derive(Clone, Copy)]
pub(super) struct Affine<const BITS: u8> {
    pub(super) shift: u32,
    pub(super) scales: Float,
}

impl<const BITS: u8> Format for Affine<BITS> {
    const HAS_OFFSET: bool = true;

    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn codes(self, row: RowAt<'_>, k: usize) -> ([int8x16_t; 2], Terms) {
        let group = k >> self.shift;
        let scale = float_at(self.scales, row.scales, group);
        let bias = float_at(self.scales, row.biases, group);
        let (codes, below) = if BITS == 4 {
            // SAFETY: sixteen bytes from k / 2 belong to the row.
            (below(unsafe { neighbours(row.codes.add(k / 2)) }, 0), 0.0)
        } else {
            // SAFETY: 32 bytes from k belong to the row.
            (below(unsafe { bytes(row.codes.add(k)) }, i8::MIN), 128.0)
        };
        (codes, Terms { scale: [scale; 2], offset: [-scale.mul_add(below, bias); 2] })
    }
}

const _: () = assert!(BLOCK_Q8_0 == 34);
