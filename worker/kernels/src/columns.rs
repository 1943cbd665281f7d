//! Columns of activations in a form that products read faster than floats. They are converted once for all rows of all
//! matrices that they are multiplied with.

/// Some consecutive values of a column.
pub(super) trait ColumnBlock: Copy {
    /// Values per block. The last block of a column is padded with zeros.
    const VALUES: usize;
    /// Columns per tile, interleaved block by block, so that a product with all of them reads contiguous memory.
    const TILE: usize;
    const ZERO: Self;
}

/// `m` columns of `cols` values, in tiles of up to [`ColumnBlock::TILE`] columns. Block b of column c of a tile of t
/// columns is block `b * t + c` of the tile.
#[derive(Debug)]
pub(super) struct Columns<B> {
    blocks: Vec<B>,
    m: usize,
    cols: usize,
}

impl<B> Default for Columns<B> {
    fn default() -> Self {
        Self { blocks: Vec::new(), m: 0, cols: 0 }
    }
}

impl<B: ColumnBlock> Columns<B> {
    /// Resizes to this many columns, with unspecified content.
    pub(super) fn resize(&mut self, m: usize, cols: usize) -> &mut [B] {
        (self.m, self.cols) = (m, cols);
        self.blocks.resize(m * cols.div_ceil(B::VALUES), B::ZERO);
        &mut self.blocks
    }

    /// Packs columns of this length, tile by tile; `pack_tile` packs one tile.
    pub(super) fn pack(&mut self, x: &[f32], cols: usize, pack_tile: impl Fn(&[f32], &mut [B])) {
        let depth = cols.div_ceil(B::VALUES);
        let blocks = self.resize(x.len() / cols, cols);
        for (x, tile) in x.chunks(B::TILE * cols).zip(blocks.chunks_mut(B::TILE * depth)) {
            pack_tile(x, tile);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.m
    }

    pub(super) fn cols(&self) -> usize {
        self.cols
    }

    /// Blocks per column.
    pub(super) fn depth(&self) -> usize {
        self.cols.div_ceil(B::VALUES)
    }

    /// Iterates over the tiles: the first column and the blocks of each.
    pub(super) fn tiles(&self) -> impl Iterator<Item = (usize, &[B])> {
        self.blocks
            .chunks((B::TILE * self.depth()).max(1))
            .enumerate()
            .map(|(tile, blocks)| (tile * B::TILE, blocks))
    }

    /// The block that contains value k of column j.
    pub(super) fn block(&self, j: usize, k: usize) -> &B {
        let tile = j / B::TILE * B::TILE;
        &self.blocks[tile * self.depth() + k / B::VALUES * B::TILE.min(self.m - tile) + j % B::TILE]
    }
}
