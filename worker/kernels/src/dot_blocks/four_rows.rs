//! Four rows, 256 values of each at a time, for the products with AVX-512: where the values are, and how a
//! format unpacks them. Each row is in a quarter of every vector.
#![allow(unsafe_code)] // Reads packed bytes through pointers at any alignment.

use std::arch::x86_64::*;

use super::super::prefetch::prefetch_rows;
use super::super::rows::Rows;

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

/// Unpacks a format, 256 values of each of four rows at a time.
///
/// # Safety
/// For all methods: the processor has AVX-512, and each row has 256 values of this format.
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

/// The blocks of four equidistant rows: whole blocks in place, the rest of each row padded with zeros.
pub(super) struct FourRows {
    whole: BlockOfFourRows,
    depth: usize,
    rest: Option<PaddedTail>,
    row_bytes: usize,
    /// The number of distinct rows: one if all four are the same.
    pub(super) distinct: usize,
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

    /// Prefetches as many bytes as block `b` has in four rows, further on.
    #[inline]
    #[target_feature(enable = "avx512bw,avx512vl,avx512vnni")]
    pub(super) fn prefetch(&self, b: usize, bytes: usize) {
        prefetch_rows(self.whole.codes.first, FOUR * self.row_bytes, FOUR * b * bytes, FOUR * bytes);
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
