//! `dot_blocks` with AVX-512 and VNNI: four byte products per instruction and lane. Four rows are unpacked
//! together, each in a quarter of every vector. With few columns these vectors are used directly, with many
//! columns they are first arranged as panels of rows. Both ways add in the same order.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::rows::{Kind, Rows};
use super::super::weight::Scaled;
use super::super::window::Window;
use super::columns::{Block, Columns, QK};
use super::{blocks, groups, k_blocks, panel};

/// Minimum number of columns for panels.
const PANELS: usize = 9;
/// Columns that share the codes of unpacked rows.
const FEW_COLUMNS: usize = 4;
/// Prefetch distance in bytes, in each of the four rows.
const PREFETCH_BYTES: usize = 1024;
/// Maximum size of four rows in bytes for which the next four rows are prefetched instead.
const MAX_NEAR_BYTES: usize = 1 << 14;
/// Rows that are unpacked together.
pub(super) const FOUR: usize = 4;

/// Location of 256 values of each of four rows.
#[derive(Clone, Copy)]
pub(super) struct BlockOfFourRows {
    pub(super) codes: StridedBytes,
    pub(super) scales: StridedBytes,
    pub(super) biases: StridedBytes,
    pub(super) factor: f32,
}

/// Location of one part of four rows: its offset in the first row, and the distances of the other rows.
#[derive(Clone, Copy)]
pub(super) struct StridedBytes {
    pub(super) first: *const u8,
    pub(super) stride: usize,
}

impl StridedBytes {
    #[inline]
    pub(super) fn row(self, row: usize) -> *const u8 {
        self.first.wrapping_add(row * self.stride)
    }

    #[inline]
    fn skip(self, bytes: usize) -> Self {
        Self { first: self.first.wrapping_add(bytes), ..self }
    }

    /// Loads sixteen bytes of each row, at this offset from its start.
    ///
    /// # Safety
    /// The bytes exist.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    pub(super) unsafe fn sixteen(self, after: usize) -> __m512i {
        // SAFETY: guaranteed by the caller.
        let row = |row: usize| unsafe { _mm_loadu_si128(self.row(row).wrapping_add(after).cast()) };
        join([row(0), row(1), row(2), row(3)])
    }

    /// Loads some of sixteen bytes of each row, and zeros for the rest.
    ///
    /// # Safety
    /// Those bytes exist.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    pub(super) unsafe fn load_partial(self, after: usize, n: usize) -> __m512i {
        let there = ((1u32 << n) - 1) as u16;
        // SAFETY: guaranteed by the caller; the mask ends with these bytes.
        let row =
            |row: usize| unsafe { _mm_maskz_loadu_epi8(there, self.row(row).wrapping_add(after).cast()) };
        join([row(0), row(1), row(2), row(3)])
    }

    /// Loads four bytes from the start of each of four blocks of a row; the blocks have this distance.
    ///
    /// # Safety
    /// The blocks exist and have at least sixteen bytes.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    pub(super) unsafe fn heads(self, after: usize, apart: usize) -> __m512i {
        let row = |row: usize| {
            // Except for the first lane, the bytes before the four bytes are read as well.
            // SAFETY: the read is within a block of at least sixteen bytes and its neighbours.
            let block = |n: usize| unsafe {
                _mm_loadu_si128(self.row(row).wrapping_add(after + n * apart - 4 * n).cast())
            };
            let (a, b) = (_mm_blend_epi32::<2>(block(0), block(1)), _mm_blend_epi32::<8>(block(2), block(3)));
            _mm_blend_epi32::<12>(a, b)
        };
        join([row(0), row(1), row(2), row(3)])
    }
}

/// Loads sixteen bytes of each of four rows.
#[inline]
#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
fn join(rows: [__m128i; FOUR]) -> __m512i {
    let joined = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(rows[0]), rows[1]);
    _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(joined, rows[2]), rows[3])
}

/// Unpacks a kind, 256 values of each of four rows at a time.
///
/// # Safety
/// For all methods: the processor has AVX-512, and each row has 256 values of this kind.
pub(super) trait Unpack: Copy {
    /// Scales per 256 values: one per 32 values or one per sixteen.
    type Lanes: Lanes;
    /// The excess of the codes over their values, as a right shift of 128. Without an excess the smallest
    /// code is zero; then a minimum may be subtracted from each value.
    const EXCESS_SHIFT: Option<u32>;
    /// Bytes of the codes of 256 values, including everything else in their blocks.
    const BYTES: usize;

    /// Bytes of the separate scales of 256 values, and of their biases.
    fn separate_scale_bytes(self) -> (usize, usize) {
        (0, 0)
    }

    /// The codes by sixteens, as non-negative bytes.
    unsafe fn codes(self, at: BlockOfFourRows) -> [__m512i; 16];

    /// The scales and, without an excess, the minima.
    unsafe fn scales(self, at: BlockOfFourRows) -> (Self::Lanes, Self::Lanes);
}

/// A value per scale of four rows: vector q has lanes 4 q to 4 q + 3 of each row, row after row. See
/// [`LaneOrder`](super::columns::LaneOrder) for the lanes.
pub(super) trait Lanes: Copy + AsRef<[__m512]> + AsMut<[__m512]> {
    /// The values of a row.
    const N: usize;
    const ZERO: Self;
}

impl Lanes for [__m512; 2] {
    const N: usize = 8;
    // SAFETY: any bits are floats.
    const ZERO: Self = unsafe { std::mem::zeroed() };
}

impl Lanes for [__m512; 4] {
    const N: usize = 16;
    // SAFETY: any bits are floats.
    const ZERO: Self = unsafe { std::mem::zeroed() };
}

#[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
pub(crate) fn dot_blocks(rows: &Rows<'_>, x: &Columns, out: &mut Window<'_>, scratch: &mut Vec<f32>) {
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
    let in_panels = if x.len() < PANELS { 0 } else { rows.len() / panel::R * panel::R };
    if in_panels > 0 {
        panel::products(unpack, &rows.range(0, in_panels), x, out, scratch);
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

/// The blocks of four equidistant rows: whole blocks in place, the rest of each row padded with zeros.
pub(super) struct FourRows {
    whole: BlockOfFourRows,
    depth: usize,
    rest: Option<PaddedTail>,
    row_bytes: usize,
    /// The number of distinct rows: one if all four are the same.
    distinct: usize,
}

/// Codes, scales and biases of at most 256 values.
struct PaddedTail {
    codes: [[u8; 272]; FOUR],
    scales: [[u8; 32]; FOUR],
    biases: [[u8; 32]; FOUR],
}

impl FourRows {
    /// Takes row `first` and the rows at multiples of `apart` after it.
    #[inline]
    pub(super) fn new<U: Unpack>(unpack: U, rows: &Rows<'_>, first: usize, apart: usize) -> Self {
        let parts = rows.row(first);
        assert!(first + 3 * apart < rows.len());
        let part = |bytes: &[u8]| StridedBytes { first: bytes.as_ptr(), stride: apart * bytes.len() };
        let (codes, scales, biases) = (part(parts.0), part(parts.1), part(parts.2));
        let whole = BlockOfFourRows { codes, scales, biases, factor: rows.factor() };
        let depth = parts.0.len() / U::BYTES;
        let rest = (depth * U::BYTES < parts.0.len()).then(|| {
            let mut rest =
                PaddedTail { codes: [[0; 272]; FOUR], scales: [[0; 32]; FOUR], biases: [[0; 32]; FOUR] };
            let separate = unpack.separate_scale_bytes();
            let pad = |to: &mut [u8], from: &[u8]| to[..from.len()].copy_from_slice(from);
            for row in 0..FOUR {
                let parts = rows.row(first + row * apart);
                pad(&mut rest.codes[row], &parts.0[depth * U::BYTES..]);
                pad(&mut rest.scales[row], &parts.1[depth * separate.0..]);
                pad(&mut rest.biases[row], &parts.2[depth * separate.1..]);
            }
            rest
        });
        let distinct = if apart == 0 { 1 } else { FOUR };
        Self { whole, depth, rest, row_bytes: parts.0.len(), distinct }
    }

    /// Prefetches codes after those of block `b`. Short rows are contiguous, so the same number of bytes of
    /// the next four rows is prefetched; otherwise, bytes further on in each row.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    fn prefetch(&self, b: usize, bytes: usize) {
        let (codes, all, done) = (self.whole.codes, FOUR * self.row_bytes, b * bytes);
        // Prefetching invalid addresses is harmless.
        let ask = |at: *const u8, lines: usize| {
            (0..lines).for_each(|line| _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64 * line).cast()));
        };
        if all <= MAX_NEAR_BYTES {
            return ask(codes.first.wrapping_add(all + FOUR * done), (FOUR * bytes).div_ceil(64));
        }
        let ahead = if done + PREFETCH_BYTES < self.row_bytes {
            PREFETCH_BYTES
        } else {
            PREFETCH_BYTES + all - self.row_bytes
        };
        (0..FOUR).for_each(|row| ask(codes.row(row).wrapping_add(done + ahead), bytes.div_ceil(64)));
    }

    /// Iterates over blocks of 256 values.
    #[inline]
    pub(super) fn blocks<U: Unpack>(&self, unpack: U) -> impl Iterator<Item = BlockOfFourRows> {
        let separate = unpack.separate_scale_bytes();
        let whole = (0..self.depth).map(move |b| BlockOfFourRows {
            codes: self.whole.codes.skip(b * U::BYTES),
            scales: self.whole.scales.skip(b * separate.0),
            biases: self.whole.biases.skip(b * separate.1),
            ..self.whole
        });
        whole.chain(self.rest.as_ref().map(|rest| BlockOfFourRows {
            codes: StridedBytes { first: rest.codes.as_ptr().cast(), stride: 272 },
            scales: StridedBytes { first: rest.scales.as_ptr().cast(), stride: 32 },
            biases: StridedBytes { first: rest.biases.as_ptr().cast(), stride: 32 },
            ..self.whole
        }))
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
