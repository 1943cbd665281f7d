//! Compares two models tensor by tensor: which tensors correspond, whether their bytes are equal, and how far
//! their values differ. Pure; the caller supplies a reader for each blob.

mod change;
mod compare;

use std::collections::{BTreeSet, HashMap};

pub use change::{Change, Hints};
pub use compare::{Blobs, CompareError, Difference, compare};

use crate::convert::checkpoint_names;
use crate::digest::Digest;
use crate::manifest::Manifest;
use crate::tensor::TensorInfo;

/// Two corresponding tensors, or one tensor without a counterpart.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair<'a> {
    pub here: Option<&'a TensorInfo>,
    pub there: Option<&'a TensorInfo>,
    /// The changes to `here` and to `there` before the comparison.
    pub change: (Change, Change),
}

impl Pair<'_> {
    /// The name on this side, else the name on the other side.
    pub fn name(&self) -> &str {
        self.here.or(self.there).map_or("", |tensor| tensor.name.as_str())
    }

    /// Whether both are the same bytes of the same blob, so that nothing has to be read.
    pub fn is_same_blob(&self) -> bool {
        match (self.here, self.there) {
            (Some(here), Some(there)) => {
                (&here.digest, &here.parts, &here.shape) == (&there.digest, &there.parts, &there.shape)
                    && here.scaling == there.scaling
                    && self.change == (Change::None, Change::None)
            }
            _ => false,
        }
    }
}

/// Pairs each tensor with its counterpart by name. If one model has GGUF names and the other checkpoint
/// names, the conversion's names are used too. The result has the order of `here`, followed by the tensors
/// that only `there` has.
pub fn pair_tensors<'a>(here: &'a [TensorInfo], there: &'a [TensorInfo], hints: &Hints) -> Vec<Pair<'a>> {
    let by_name: HashMap<&str, usize> =
        there.iter().enumerate().map(|(at, tensor)| (tensor.name.as_str(), at)).collect();
    let mut taken: Vec<bool> = vec![false; there.len()];
    let mut pairs: Vec<Pair<'a>> = Vec::with_capacity(here.len());
    for tensor in here {
        let partner = by_name.get(tensor.name.as_str()).copied().filter(|at| !taken[*at]);
        if let Some(at) = partner {
            taken[at] = true;
        }
        let there = partner.map(|at| &there[at]);
        pairs.push(Pair { here: Some(tensor), there, change: Default::default() });
    }
    // Pair the rest by the conversion's names, in both directions.
    let alone: HashMap<&str, usize> = pairs
        .iter()
        .enumerate()
        .filter(|(_, pair)| pair.there.is_none())
        .filter_map(|(at, pair)| Some((pair.here?.name.as_str(), at)))
        .collect();
    let free = |taken: &[bool], name: &str| by_name.get(name).copied().filter(|at| !taken[*at]);
    for pair in pairs.iter_mut().filter(|pair| pair.there.is_none()) {
        let Some(tensor) = pair.here else { continue };
        let names = checkpoint_names(&tensor.name);
        if let Some(at) = names.iter().find_map(|name| free(&taken, name)) {
            taken[at] = true;
            pair.there = Some(&there[at]);
            pair.change = (change::of_conversion(&tensor.name, hints), Change::None);
        }
    }
    for (at, tensor) in there.iter().enumerate() {
        if taken[at] {
            continue;
        }
        let names = checkpoint_names(&tensor.name);
        let partner = names.iter().find_map(|name| alone.get(name.as_str()).copied());
        match partner.filter(|at| pairs[*at].there.is_none()) {
            Some(at) => {
                pairs[at].there = Some(tensor);
                pairs[at].change = (Change::None, change::of_conversion(&tensor.name, hints));
            }
            None => pairs.push(Pair { here: None, there: Some(tensor), change: Default::default() }),
        }
    }
    pairs
}

/// The sizes of two manifests and of their common blobs; each blob counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeComparison {
    pub here: u64,
    pub there: u64,
    pub shared: u64,
}

/// Adds up the layer sizes of two manifests.
pub fn compare_sizes(here: &Manifest, there: &Manifest) -> SizeComparison {
    let blobs = |manifest: &Manifest| -> BTreeSet<(Digest, u64)> {
        manifest.layers.iter().map(|layer| (layer.digest.clone(), layer.size)).collect()
    };
    let sum = |blobs: &mut dyn Iterator<Item = u64>| blobs.fold(0u64, u64::saturating_add);
    let (here, there) = (blobs(here), blobs(there));
    SizeComparison {
        here: sum(&mut here.iter().map(|(_, size)| *size)),
        there: sum(&mut there.iter().map(|(_, size)| *size)),
        shared: sum(&mut here.intersection(&there).map(|(_, size)| *size)),
    }
}

#[cfg(test)]
mod tests;
