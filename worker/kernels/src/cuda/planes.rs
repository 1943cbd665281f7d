//! How weights are stored on the device: as planes. Of each block, the codes go to one plane and the other
//! fields to others, so that codes can be read in aligned loads of sixteen bytes whatever the size of a
//! block. No bytes are added except at the end of a row.

use lode_model::quant::ggml::Type;

use crate::dtype::{Dtype, Float};
use crate::weight::Weight;

/// Planes per matrix.
pub(super) const MAX_PLANES: usize = 5;
/// Rows of a plane start at multiples of this number of bytes.
const ALIGN: usize = 16;
/// A unit of floats is this number of values, see decode.cuh. Rows of other formats are whole units.
const FLOAT_UNIT: usize = 32;

/// One plane of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plane {
    /// The part of the weight from which it is copied.
    part: Part,
    /// The first byte in each block of the part.
    first: usize,
    /// Bytes per block in this plane.
    pub block_bytes: usize,
    /// Bytes between rows.
    pub stride: usize,
    /// The position of the plane in the memory of the matrix.
    pub offset: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Codes,
    Scales,
    Biases,
}

/// The memory of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub planes: Vec<Plane>,
    /// Bytes per block of the codes as they are stored.
    block_bytes: usize,
    blocks: usize,
    rows: usize,
    pub bytes: usize,
}

/// The fields of a block: first byte and length of each. Codes come first.
fn fields(ty: Type) -> Option<&'static [(usize, usize)]> {
    Some(match ty {
        Type::Q4_0 | Type::IQ4_NL | Type::Q1_0 | Type::Q2_0 => &[(2, 16), (0, 2)],
        Type::Q4_1 => &[(4, 16), (0, 4)],
        Type::Q5_0 => &[(6, 16), (2, 4), (0, 2)],
        Type::Q5_1 => &[(8, 16), (4, 4), (0, 4)],
        Type::Q8_0 => &[(2, 32), (0, 2)],
        Type::Q2_K => &[(16, 64), (0, 16), (80, 4)],
        Type::Q3_K => &[(32, 64), (0, 32), (96, 12), (108, 2)],
        Type::Q4_K => &[(16, 128), (0, 16)],
        Type::Q5_K => &[(48, 128), (16, 32), (0, 16)],
        Type::Q6_K => &[(0, 128), (128, 64), (192, 16), (208, 2)],
        Type::IQ4_XS => &[(8, 128), (0, 8)],
        Type::TQ1_0 => &[(0, 48), (48, 4), (52, 2)],
        Type::TQ2_0 => &[(0, 64), (64, 2)],
        Type::IQ1_S => &[(2, 32), (34, 16), (0, 2)],
        Type::IQ1_M => &[(0, 32), (32, 16), (48, 8)],
        Type::IQ2_XXS => &[(2, 64), (0, 2)],
        Type::IQ2_XS => &[(2, 64), (66, 8), (0, 2)],
        Type::IQ2_S => &[(2, 32), (34, 32), (66, 8), (74, 8), (0, 2)],
        Type::IQ3_XXS => &[(2, 64), (66, 32), (0, 2)],
        Type::IQ3_S => &[(2, 64), (74, 32), (66, 8), (106, 4), (0, 2)],
        Type::MXFP4 => &[(1, 16), (0, 1)],
        Type::NVFP4 => &[(4, 32), (0, 4)],
        _ => return None,
    })
}

impl Layout {
    /// The layout of a matrix; `None` if the device does not support its format.
    pub fn of(dtype: Dtype, rows: usize, cols: usize) -> Option<Self> {
        // Part, first byte and length in a block, blocks per row, bytes of a padded row.
        let mut planes = Vec::new();
        let mut plane = |part, first, block_bytes, row_bytes: usize| {
            planes.push(Plane {
                part,
                first,
                block_bytes,
                stride: row_bytes.next_multiple_of(ALIGN),
                offset: 0,
            });
        };
        let (block_bytes, blocks) = match dtype {
            Dtype::Float(float) => {
                plane(Part::Codes, 0, float.size(), cols.next_multiple_of(FLOAT_UNIT) * float.size());
                (float.size(), cols)
            }
            Dtype::Affine { .. } | Dtype::Scaled(_) | Dtype::ByteCodes { .. } => {
                let parts = [
                    (Part::Codes, dtype.row_bytes(cols)),
                    (Part::Scales, dtype.row_scale_bytes(cols)),
                    (Part::Biases, dtype.row_bias_bytes(cols)),
                ];
                parts.into_iter().filter(|(_, bytes)| *bytes > 0).for_each(|(part, bytes)| {
                    plane(part, 0, bytes, bytes);
                });
                (dtype.row_bytes(cols), 1)
            }
            Dtype::Ggml(ty) => {
                let blocks = cols / ty.block_elements() as usize;
                fields(ty)?.iter().for_each(|(first, len)| plane(Part::Codes, *first, *len, len * blocks));
                (ty.block_bytes() as usize, blocks)
            }
        };
        let mut bytes = 0;
        for plane in &mut planes {
            plane.offset = bytes;
            bytes += rows * plane.stride;
        }
        Some(Self { planes, block_bytes, blocks, rows, bytes })
    }

    /// Writes rows `first..first + n` of one plane to `to`, which has `n` times its stride.
    ///
    /// # Panics
    /// If the weight does not have this layout, or `to` another length.
    pub fn pack(&self, weight: &Weight, plane: usize, first: usize, n: usize, to: &mut [u8]) {
        let plane = &self.planes[plane];
        assert!(to.len() == n * plane.stride && first + n <= self.rows);
        let part = match plane.part {
            Part::Codes => weight.codes(),
            Part::Scales => weight.scales(),
            Part::Biases => weight.biases(),
        };
        let row_bytes = part.len() / self.rows;
        let is_whole = plane.first == 0 && plane.block_bytes == self.block_bytes || plane.part != Part::Codes;
        for (row, to) in to.chunks_exact_mut(plane.stride).enumerate() {
            let from = &part[(first + row) * row_bytes..(first + row + 1) * row_bytes];
            let used = if is_whole {
                to[..row_bytes].copy_from_slice(from);
                row_bytes
            } else {
                let blocks = from.chunks_exact(self.block_bytes);
                for (block, to) in blocks.zip(to.chunks_exact_mut(plane.block_bytes)) {
                    to.copy_from_slice(&block[plane.first..plane.first + plane.block_bytes]);
                }
                self.blocks * plane.block_bytes
            };
            to[used..].fill(0);
        }
    }
}

/// The type of the scales of an affine format, as the kernels name it.
pub(super) fn scale_name(float: Float) -> &'static str {
    match float {
        Float::F32 => "F32",
        Float::F16 => "F16",
        Float::BF16 => "BF16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::EXAMPLES;

    #[test]
    fn fields_cover_each_block_once() {
        for ty in Type::ALL.iter().filter(|ty| fields(**ty).is_some()) {
            let mut bytes = vec![0; ty.block_bytes() as usize];
            for (first, len) in fields(*ty).unwrap() {
                bytes[*first..first + len].iter_mut().for_each(|count| *count += 1);
            }
            assert!(bytes.iter().all(|count| *count == 1), "{ty}: {bytes:?}");
            assert!(fields(*ty).unwrap().len() <= MAX_PLANES, "{ty}");
            assert_eq!(fields(*ty).unwrap()[0].1 % ALIGN, 0, "{ty}: codes are whole loads");
        }
    }

    #[test]
    fn every_format_has_a_layout_without_waste() {
        for &dtype in EXAMPLES {
            let layout = Layout::of(dtype, 3, 4096).unwrap();
            let stored =
                3 * (dtype.row_bytes(4096) + dtype.row_scale_bytes(4096) + dtype.row_bias_bytes(4096));
            assert_eq!(layout.bytes, stored.next_multiple_of(ALIGN), "{dtype:?}");
        }
    }
}
