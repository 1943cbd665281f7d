//! Columns of activations quantised to eight bits: a code per value, and the common data of 32 codes.
//! `Ops::pack` writes them; all operations in this folder read them.

use super::super::columns::{self, ColumnBlock};

/// Values per block of columns, and per longest block of weights.
pub(super) const QK: usize = 256;
/// Columns per tile.
pub(crate) const TILE: usize = 16;

/// The lane of each group of a block. Pairwise addition of four vectors of 64 codes each produces this order.
pub(super) struct LaneOrder;

impl LaneOrder {
    /// The group of 32 values in each lane.
    #[cfg(target_arch = "x86_64")]
    pub(super) const GROUPS_OF_32: [u8; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    /// The group of sixteen values in each lane.
    #[cfg(target_arch = "x86_64")]
    pub(super) const GROUPS_OF_16: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

    pub(super) const fn lane(group: usize) -> usize {
        4 * (group % 2) + group / 2
    }

    pub(super) const fn fine_lane(group: usize) -> usize {
        4 * (group % 4) + group / 4
    }
}

/// 256 values of a column. Value k is `d[lane of k / 32] * codes[k]`; see [`LaneOrder`] for the lanes.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// From -127 to 127.
    pub(super) codes: [i8; QK],
    /// A scale per 32 values; NaN if one of the values is NaN or infinite.
    pub(super) d: [f32; 8],
    /// `d` times the sum of each 32 codes.
    pub(super) sums: [f32; 8],
    /// The same for each sixteen.
    pub(super) fine_sums: [f32; 16],
    /// -128 times the sum of each 32 codes, which compensates the excess of weight codes over their values.
    pub(super) less: [i32; 8],
    /// The same for each sixteen.
    pub(super) fine_less: [i32; 16],
}

const ZERO: Block = Block {
    codes: [0; QK],
    d: [0.0; 8],
    sums: [0.0; 8],
    fine_sums: [0.0; 16],
    less: [0; 8],
    fine_less: [0; 16],
};

impl ColumnBlock for Block {
    const VALUES: usize = QK;
    const TILE: usize = TILE;
    const ZERO: Self = ZERO;
}

/// Columns in eight bits.
pub(crate) type Columns = columns::Columns<Block>;

impl Columns {
    /// Value k of column j.
    pub(crate) fn at(&self, j: usize, k: usize) -> f32 {
        let block = self.block(j, k);
        block.d[LaneOrder::lane(k % QK / 32)] * f32::from(block.codes[k % QK])
    }
}

/// Packs the `x.len() / cols` columns of a tile.
#[inline(always)]
pub(super) fn pack(x: &[f32], cols: usize, tile: &mut [Block]) {
    let t = x.len() / cols;
    assert!(x.len() == t * cols && tile.len() == t * cols.div_ceil(QK));
    for (c, x) in x.chunks_exact(cols).enumerate() {
        for (b, x) in x.chunks(QK).enumerate() {
            let block = &mut tile[b * t + c];
            match x.as_array() {
                Some(x) => pack_block(x, block),
                None => {
                    let mut padded = [0.0; QK];
                    padded[..x.len()].copy_from_slice(x);
                    pack_block(&padded, block);
                }
            }
        }
    }
}

#[inline(always)]
fn pack_block(x: &[f32; QK], block: &mut Block) {
    /// The last bit of this constant is worth one, so adding it rounds to the nearest integer, ties to even.
    const ROUND: f32 = (3 << 22) as f32;
    for (g, x) in x.as_chunks::<32>().0.iter().enumerate() {
        // Magnitudes have the same order as integers; those of infinity and NaN are the largest.
        let largest = x.iter().fold(0, |largest, v| largest.max(v.to_bits() & 0x7fff_ffff));
        let largest = f32::from_bits(largest);
        let inverse = 127.0 / largest;
        let (d, inverse) = match () {
            () if !largest.is_finite() => (f32::NAN, 0.0),
            // Zero, or too small to divide by.
            () if !inverse.is_finite() => (0.0, 0.0),
            () => (largest / 127.0, inverse),
        };
        let mut codes = [0; 32];
        if !d.is_nan() {
            for (code, v) in codes.iter_mut().zip(x) {
                *code = ((v * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
            }
        }
        for (to, code) in block.codes[32 * g..32 * g + 32].iter_mut().zip(codes) {
            *to = code as i8;
        }
        let lane = LaneOrder::lane(g);
        let mut whole = 0;
        for (half, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
            let sum: i32 = codes.iter().sum();
            let lane = LaneOrder::fine_lane(2 * g + half);
            (block.fine_sums[lane], block.fine_less[lane]) = (d * sum as f32, -128 * sum);
            whole += sum;
        }
        (block.d[lane], block.sums[lane], block.less[lane]) = (d, d * whole as f32, -128 * whole);
    }
}
