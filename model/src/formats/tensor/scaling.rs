//! The scales of a tensor that are stored apart from its codes, and their mapping to the codes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::part::Part;
use crate::digest::Digest;
use crate::quant::scaled::Grid;

/// The scales of a tensor's codes, a separate array in any blob.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Scaling {
    /// The name in its file.
    pub name: String,
    pub digest: Digest,
    #[serde(flatten)]
    pub part: Part,
    /// Rows and columns that share a scale.
    pub block: [u64; 2],
    /// For rows cut out of a tensor: the tensor's shape, and the first element of the rows.
    #[serde(skip)]
    pub(super) cut: Option<(Vec<u64>, u64)>,
}

impl Scaling {
    /// Maps the scales to a tensor of this shape, and returns its first element; `None` if the shapes do not
    /// match.
    pub(super) fn grid(&self, shape: &[u64]) -> Option<(Grid, u64)> {
        let (whole, first) =
            self.cut.as_ref().map_or((shape, 0), |(whole, first)| (whole.as_slice(), *first));
        Some((Grid::of(whole, &self.part.shape, self.block)?, first))
    }
}
