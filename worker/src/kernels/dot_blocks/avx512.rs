//! `dot_blocks` with AVX-512 and VNNI: four products of bytes an instruction and lane. Few columns meet a row as it is unpacked,
//! many meet panels of rows; both add in the same order.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::rows::{Kind, Rows};
use super::super::weight::Scaled;
use super::super::window::Window;
use super::columns::Block;
use super::{Columns, Order, QK, blocks, groups, k_blocks, panel};

/// From this many columns on rows are laid out in panels first.
const PANELS: usize = 4;
/// Bytes ahead of the codes in use that are asked for: a few hundred cycles of work.
const AHEAD: usize = 1536;

/// Where 256 numbers of a row begin.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub(super) codes: *const u8,
    pub(super) scales: *const u8,
    pub(super) biases: *const u8,
    pub(super) factor: f32,
}

/// How a kind is unpacked, 256 numbers at a time.
pub(super) trait Unpack: Copy {
    /// A number for each scale of 256 numbers: one for each 32 in eight lanes or one for each sixteen in sixteen. See [`Order`].
    type Lanes: Lanes;
    /// Whether codes stand 128 above their values. If not, something may be taken off each number.
    const SIGNED: bool;
    /// Bytes of the codes of 256 numbers, with all else that a block has.
    const BYTES: usize;

    /// Bytes of the scales that 256 numbers have elsewhere, and of their biases.
    fn beside(self) -> (usize, usize) {
        (0, 0)
    }

    /// The codes, none of them negative.
    ///
    /// # Safety
    /// AVX-512 is there, and so are 256 numbers of this kind.
    unsafe fn codes(self, at: At) -> [__m512i; 4];

    /// Scales and, unless signed, what is taken off.
    ///
    /// # Safety
    /// As for `codes`.
    unsafe fn scales(self, at: At) -> (Self::Lanes, Self::Lanes);
}

/// Eight or sixteen floats.
///
/// # Safety
/// AVX-512 is there, for all of it.
pub(super) trait Lanes: Copy {
    const N: usize;
    unsafe fn zero() -> Self;
    /// The sums of sixteen codes each, added up to what a scale is for, as numbers of the column.
    unsafe fn dots(sums: __m512i, x: &Block, signed: bool) -> Self;
    /// `self + dots * scale`, or that less `minimum` times the column's sum.
    unsafe fn add(self, dots: Self, scale: Self, minimum: Option<Self>, x: &Block) -> Self;
    /// All lanes together.
    unsafe fn total(self) -> f32;
    /// With anything above.
    unsafe fn wide(self) -> __m512;
}

impl Lanes for __m256 {
    const N: usize = 8;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn zero() -> Self {
        _mm256_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn dots(sums: __m512i, x: &Block, signed: bool) -> Self {
        // Lanes 0 to 3 and 4 to 7 are halves of the same groups, and so are the next eight.
        let even = _mm512_castsi512_si256(_mm512_shuffle_i32x4::<0x88>(sums, sums));
        let odd = _mm512_castsi512_si256(_mm512_shuffle_i32x4::<0xdd>(sums, sums));
        let mut sums = _mm256_add_epi32(even, odd);
        if signed {
            // SAFETY: eight lanes.
            sums = _mm256_add_epi32(sums, unsafe { _mm256_loadu_si256(x.less.as_ptr().cast()) });
        }
        // SAFETY: eight lanes.
        _mm256_mul_ps(_mm256_cvtepi32_ps(sums), unsafe { _mm256_loadu_ps(x.d.as_ptr()) })
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn add(self, dots: Self, scale: Self, minimum: Option<Self>, x: &Block) -> Self {
        let sum = _mm256_fmadd_ps(dots, scale, self);
        match minimum {
            // SAFETY: eight lanes.
            Some(minimum) => _mm256_fnmadd_ps(minimum, unsafe { _mm256_loadu_ps(x.sums.as_ptr()) }, sum),
            None => sum,
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn total(self) -> f32 {
        super::avx2::total(self)
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn wide(self) -> __m512 {
        _mm512_castps256_ps512(self)
    }
}

impl Lanes for __m512 {
    const N: usize = 16;

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn zero() -> Self {
        _mm512_setzero_ps()
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn dots(mut sums: __m512i, x: &Block, signed: bool) -> Self {
        if signed {
            // SAFETY: sixteen lanes.
            sums = _mm512_add_epi32(sums, unsafe { _mm512_loadu_si512(x.fine_less.as_ptr().cast()) });
        }
        // SAFETY: eight lanes.
        let d = _mm512_castps256_ps512(unsafe { _mm256_loadu_ps(x.d.as_ptr()) });
        _mm512_mul_ps(_mm512_cvtepi32_ps(sums), _mm512_shuffle_f32x4::<0b01_01_00_00>(d, d))
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn add(self, dots: Self, scale: Self, minimum: Option<Self>, x: &Block) -> Self {
        let sum = _mm512_fmadd_ps(dots, scale, self);
        match minimum {
            // SAFETY: sixteen lanes.
            Some(minimum) => _mm512_fnmadd_ps(minimum, unsafe { _mm512_loadu_ps(x.fine_sums.as_ptr()) }, sum),
            None => sum,
        }
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn total(self) -> f32 {
        let high = _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(self)));
        super::avx2::total(_mm256_add_ps(_mm512_castps512_ps256(self), high))
    }

    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    unsafe fn wide(self) -> __m512 {
        self
    }
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(in super::super) fn dot_blocks(
    rows: &Rows<'_>,
    x: &Columns,
    out: &mut Window<'_>,
    scratch: &mut Vec<f32>,
) {
    use super::super::decode::avx2::with_loader_of;
    use lode_model::quant::ggml::Type;
    assert!(x.cols() == rows.cols() && out.rows() >= x.len() && out.cols() >= rows.len());
    with_loader_of! {
        rows.kind(), unpack => products(unpack, rows, x, out, scratch), else super::scalar(rows, x, out, scratch),
        Kind::Q8_0 = blocks::Q8_0,
        Kind::Ggml(Type::Q4_0) = blocks::Q4_0,
        Kind::Ggml(Type::Q4_1) = blocks::Q4_1,
        Kind::Ggml(Type::Q5_0) = blocks::Q5_0,
        Kind::Ggml(Type::Q5_1) = blocks::Q5_1,
        Kind::Ggml(Type::Q2_K) = k_blocks::Q2K,
        Kind::Ggml(Type::Q3_K) = k_blocks::Q3K,
        Kind::Ggml(Type::Q4_K) = k_blocks::Q4K,
        Kind::Ggml(Type::Q5_K) = k_blocks::Q5K,
        Kind::Ggml(Type::Q6_K) = k_blocks::Q6K,
        Kind::Ggml(Type::IQ4_NL) = blocks::Iq4Nl,
        Kind::Ggml(Type::IQ4_XS) = k_blocks::Iq4Xs,
        Kind::Ggml(Type::MXFP4) = blocks::Mxfp4,
        Kind::Ggml(Type::NVFP4) = groups::Nvfp4Block,
        Kind::Affine { bits: 4, group, scales } = groups::Affine::<4> { shift: group.trailing_zeros(), scales },
        Kind::Affine { group, scales, .. } = groups::Affine::<8> { shift: group.trailing_zeros(), scales },
        Kind::Scaled(Scaled::Nvfp4) = groups::Nvfp4,
        Kind::Scaled(Scaled::Mxfp4) = groups::Mxfp4,
    }
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn products<U: Unpack>(
    unpack: U,
    rows: &Rows<'_>,
    x: &Columns,
    out: &mut Window<'_>,
    scratch: &mut Vec<f32>,
) {
    match x.len() {
        0 => (),
        1 => by_rows::<U, 1>(unpack, rows, x, out),
        2..PANELS => by_rows::<U, PANELS>(unpack, rows, x, out),
        _ => panel::products(unpack, rows, x, out, scratch),
    }
}
/// The blocks of one row: whole ones as they lie, the rest of a row with zeros behind it.
pub(super) struct RowBlocks<'a> {
    parts: (&'a [u8], &'a [u8], &'a [u8]),
    factor: f32,
    whole: usize,
    rest: Option<Rest>,
}

/// Codes, scales and biases, as many bytes as 256 numbers can have.
type Rest = ([u8; 272], [u8; 32], [u8; 32]);

impl<'a> RowBlocks<'a> {
    #[inline]
    pub(super) fn new<U: Unpack>(unpack: U, rows: &Rows<'a>, i: usize) -> Self {
        let parts = rows.row(i);
        let whole = parts.0.len() / U::BYTES;
        let rest = (whole * U::BYTES < parts.0.len()).then(|| {
            let (beside, mut rest) = (unpack.beside(), ([0; 272], [0; 32], [0; 32]));
            let pad = |to: &mut [u8], from: &[u8]| to[..from.len()].copy_from_slice(from);
            pad(&mut rest.0, &parts.0[whole * U::BYTES..]);
            pad(&mut rest.1, &parts.1[whole * beside.0..]);
            pad(&mut rest.2, &parts.2[whole * beside.1..]);
            rest
        });
        Self { parts, factor: rows.factor(), whole, rest }
    }

    /// Where the whole blocks begin and how many there are, and the same of the rest: one or none.
    #[inline]
    pub(super) fn runs(&self) -> [(At, usize); 2] {
        let at = |codes: &[u8], scales: &[u8], biases: &[u8]| At {
            codes: codes.as_ptr(),
            scales: scales.as_ptr(),
            biases: biases.as_ptr(),
            factor: self.factor,
        };
        let whole = at(self.parts.0, self.parts.1, self.parts.2);
        match &self.rest {
            Some((codes, scales, biases)) => [(whole, self.whole), (at(codes, scales, biases), 1)],
            None => [(whole, self.whole), (whole, 0)],
        }
    }
}

impl At {
    /// Block b from here.
    #[inline]
    pub(super) fn block<U: Unpack>(self, unpack: U, b: usize) -> Self {
        let beside = unpack.beside();
        Self {
            codes: self.codes.wrapping_add(b * U::BYTES),
            scales: self.scales.wrapping_add(b * beside.0),
            biases: self.biases.wrapping_add(b * beside.1),
            ..self
        }
    }
}

/// Each row times all columns, of which there are at most CN.
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn by_rows<U: Unpack, const CN: usize>(unpack: U, rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>) {
    let (_, tile) = x.tiles().next().expect("there are columns");
    let t = if CN == 1 { 1 } else { x.len() };
    assert!(t <= CN && tile.len() == t * x.depth());
    for i in 0..rows.len() {
        let row = RowBlocks::new(unpack, rows, i);
        // SAFETY: as this function's.
        let mut sums = [unsafe { U::Lanes::zero() }; CN];
        let mut tile = tile.chunks_exact(t);
        for (first, n) in row.runs() {
            for (b, x) in (0..n).zip(&mut tile) {
                let at = first.block(unpack, b);
                for line in 0..U::BYTES.div_ceil(64) {
                    // Asking for what is not there does no harm.
                    _mm_prefetch::<_MM_HINT_T0>(at.codes.wrapping_add(AHEAD + 64 * line).cast());
                }
                // SAFETY: a block of the row.
                let (codes, (scale, minimum)) = unsafe { (unpack.codes(at), unpack.scales(at)) };
                let minimum = (!U::SIGNED).then_some(minimum);
                for (x, sums) in x.iter().zip(&mut sums) {
                    // SAFETY: as this function's.
                    *sums =
                        unsafe { sums.add(U::Lanes::dots(dots(codes, x), x, U::SIGNED), scale, minimum, x) };
                }
            }
        }
        for (j, sums) in sums.into_iter().enumerate().take(t) {
            // SAFETY: as this function's.
            out.row(j)[i] = unsafe { sums.total() };
        }
    }
}

/// Sums of sixteen products each, in the order of lanes.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn dots(codes: [__m512i; 4], x: &Block) -> __m512i {
    let x = x.codes.as_ptr();
    // SAFETY: 256 codes.
    let x = unsafe {
        [
            _mm512_loadu_si512(x.cast()),
            _mm512_loadu_si512(x.add(64).cast()),
            _mm512_loadu_si512(x.add(128).cast()),
            _mm512_loadu_si512(x.add(192).cast()),
        ]
    };
    let dot = |v: usize| _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes[v], x[v]);
    fold([dot(0), dot(1), dot(2), dot(3)])
}

/// Adds each four lanes: lane 4 l + v of what comes out has those of lanes 4 l to 4 l + 3 of vector v.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn fold([a, b, c, d]: [__m512i; 4]) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// A half, everywhere.
///
/// # Safety
/// Two bytes are there.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) unsafe fn half(at: *const u8) -> __m512 {
    // SAFETY: by the caller's promise; an unaligned read.
    _mm512_cvtph_ps(_mm256_set1_epi16(unsafe { at.cast::<i16>().read_unaligned() }))
}

/// Bytes in the order of lanes, or any other, without signs.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(super) fn ordered(bytes: __m128i, order: &[u8; 16]) -> __m128i {
    // SAFETY: sixteen bytes.
    _mm_shuffle_epi8(bytes, unsafe { _mm_loadu_si128(order.as_ptr().cast()) })
}

const _: () = assert!(QK == 256 && Order::COARSE.len() == 8);
