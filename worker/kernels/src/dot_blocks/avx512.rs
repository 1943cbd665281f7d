//! `dot_blocks` with AVX-512 and VNNI: four byte products per instruction and lane. Four rows are unpacked
//! together, each in a quarter of every vector. With few columns these vectors are used directly, with many
//! columns they are first arranged as panels of rows. Both ways add in the same order.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use lode_model::quant::ggml::Type;

use super::super::dtype::Dtype;
use super::super::formats::integer_formats;
use super::super::rows::Rows;
use super::super::window::Window;
use super::blocks::{Iq4Nl, Mxfp4Block, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::columns::{Block, Columns, QK};
use super::four_rows::{FOUR, FourRows, Lanes, Unpack};
use super::groups::{Affine, Mxfp4, Nvfp4, Nvfp4Block};
use super::k_blocks::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::panel;

/// Columns that share the codes of unpacked rows.
const FEW_COLUMNS: usize = 4;
/// Minimum number of columns for panels (measured).
const MIN_PANEL_COLUMNS: usize = 5;

/// Whether one column is multiplied with AVX2, one row after the other. Memory is then read in order, which is faster
/// for these formats, and the results have the same bits. Q4_K is faster with four rows: its few bytes take the most
/// instructions each, and one thread is slower than memory.
fn is_read_in_order(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::Ggml(Type::Q5_K | Type::Q6_K | Type::Q8_0))
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn dot_blocks(rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>, scratch: &mut Vec<f32>) {
    if super::has_small_codes(rows.dtype()) || (x.len() == 1 && is_read_in_order(rows.dtype())) {
        return super::avx2::dot_blocks(rows, x, out, scratch);
    }
    assert!(x.cols() == rows.cols() && out.rows() >= x.len() && out.cols() >= rows.len());
    integer_formats!(choose[rows.dtype(), format => products(format, rows, x, out, scratch), else {
        super::scalar(rows, x, out, scratch)
    }]);
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn products<U: Unpack>(
    unpack: U,
    rows: &Rows<'_>,
    x: &Columns,
    out: &mut Window<'_>,
    scratch: &mut Vec<f32>,
) {
    let in_panels = if x.len() < MIN_PANEL_COLUMNS { 0 } else { rows.len() / panel::R * panel::R };
    if in_panels > 0 {
        panel::products::<_, panel::Vnni>(unpack, &rows.range(0, in_panels), x, out, scratch);
    }
    // The last four rows may repeat earlier rows. If there are fewer than four rows, each is repeated four
    // times.
    let n = rows.len();
    let (at_once, apart) = if n < FOUR { (1, 0) } else { (FOUR, 1) };
    for i in (in_panels..n).step_by(at_once) {
        let first = i.min(n - at_once);
        let blocks = FourRows::new(unpack, rows, first, apart);
        for (j, tile) in x.tiles() {
            let t = tile.len() / x.depth();
            for c in (0..t).step_by(FEW_COLUMNS) {
                let run = match t - c {
                    1 => multiply_few_columns::<U, 1>,
                    2 => multiply_few_columns::<U, 2>,
                    3 => multiply_few_columns::<U, 3>,
                    _ => multiply_few_columns::<U, FEW_COLUMNS>,
                };
                run(unpack, &blocks, (tile, t, c), out, (j + c, first));
            }
        }
    }
}

/// Multiplies four rows by CN columns from column `c` of a tile of `t`. The results go to columns `i`.. of
/// `out`, in rows `j`...
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn multiply_few_columns<U: Unpack, const CN: usize>(
    unpack: U,
    rows: &FourRows,
    (tile, t, c): (&[Block], usize, usize),
    out: &mut Window<'_>,
    (j, i): (usize, usize),
) {
    assert!(c + CN <= t);
    let mut sums = [U::Lanes::ZERO; CN];
    for (b, (at, x)) in rows.blocks(unpack).zip(tile.chunks_exact(t)).enumerate() {
        rows.prefetch(b, U::BYTES);
        // SAFETY: a block of the rows.
        let (codes, (scales, minima)) = unsafe { (unpack.codes(at), unpack.scales(at)) };
        for (x, sums) in x[c..c + CN].iter().zip(&mut sums) {
            for (q, sum) in sums.as_mut().iter_mut().enumerate() {
                let dots = dots::<U>(&codes, x, q);
                *sum = _mm512_fmadd_ps(dots, scales.as_ref()[q], *sum);
                if U::EXCESS_SHIFT.is_none() {
                    let of_x = if U::Lanes::N == 16 { &x.fine_sums[4 * q..] } else { &x.sums[4 * q..] };
                    *sum = _mm512_fnmadd_ps(minima.as_ref()[q], each_row(of_x), *sum);
                }
            }
        }
    }
    for (c, sums) in sums.iter().enumerate() {
        let n = rows.distinct;
        out.row(j + c)[i..i + n].copy_from_slice(&totals(sums.as_ref())[..n]);
    }
}

/// Broadcasts four values to all rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn each_row(of: &[f32]) -> __m512 {
    let Some((of, _)) = of.split_first_chunk::<4>() else { unreachable!("eight or sixteen values") };
    // SAFETY: four numbers.
    _mm512_broadcast_f32x4(unsafe { _mm_loadu_ps(of.as_ptr()) })
}

/// Sums the products of four rows' codes with a column's codes, in the order that lanes 4 q to 4 q + 3 stand
/// for.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn dots<U: Unpack>(codes: &[__m512i; 16], x: &Block, q: usize) -> __m512 {
    let dot = |sum, n: usize| {
        // SAFETY: sixteen of the block's 256 codes.
        let x = unsafe { _mm_loadu_si128(x.codes.as_ptr().add(16 * n).cast()) };
        _mm512_dpbusd_epi32(sum, codes[n], _mm512_broadcast_i32x4(x))
    };
    let none = _mm512_setzero_si512();
    let fine = U::Lanes::N == 16;
    let lane =
        |i: usize| if fine { dot(none, q + 4 * i) } else { dot(dot(none, 2 * q + 4 * i), 2 * q + 4 * i + 1) };
    let mut sums = fold([lane(0), lane(1), lane(2), lane(3)]);
    if let Some(above) = U::EXCESS_SHIFT {
        let less = if fine { x.fine_less.as_ptr() } else { x.less.as_ptr() };
        // SAFETY: four of eight or sixteen.
        let less = _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(less.add(4 * q).cast()) });
        sums = _mm512_add_epi32(sums, _mm512_sra_epi32(less, _mm_cvtsi32_si128(above.cast_signed())));
    }
    // Sixteens q + 4 i are halves of the groups with lanes 4 (q / 2) + i.
    let d = &x.d[if fine { q / 2 * 4 } else { 4 * q }..];
    _mm512_mul_ps(_mm512_cvtepi32_ps(sums), each_row(d))
}

/// Adds groups of four lanes: lane 4 l + v of the result is the sum of lanes 4 l to 4 l + 3 of vector v.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn fold([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// Sums all lanes of each row: adds the first and second half, and so on.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn totals(sums: &[__m512]) -> [f32; FOUR] {
    let four = match *sums {
        [a, b, c, d] => _mm512_add_ps(_mm512_add_ps(a, c), _mm512_add_ps(b, d)),
        [a, b] => _mm512_add_ps(a, b),
        _ => unreachable!("eight or sixteen lanes"),
    };
    let two = _mm512_add_ps(four, _mm512_permute_ps::<0b01_00_11_10>(four));
    let one = _mm512_add_ps(two, _mm512_permute_ps::<0b10_11_00_01>(two));
    let mut found = [0.0; FOUR];
    // SAFETY: four values.
    unsafe {
        _mm_storeu_ps(found.as_mut_ptr(), _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, one)))
    };
    found
}

const _: () = assert!(QK == 256);
