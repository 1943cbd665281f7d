//! Two models held against each other, tensor by tensor: which belong together, whether their bytes are the same, and how far
//! their values are apart. Pure; the caller gives a way to read each blob.

mod compare;
mod names;

use std::collections::{BTreeSet, HashMap};

pub use compare::{Blobs, CompareError, Difference, compare};

use crate::digest::Digest;
use crate::manifest::Manifest;
use crate::tensor::TensorInfo;

/// What is known of the two models beyond their tensors.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The architecture of the GGUF model, where one of the two is one.
    pub gguf_architecture: Option<String>,
    /// Elements of a head of attention.
    pub head_dim: Option<u64>,
}

/// How the values of one side have to be changed before they can be compared, because GGUF stores them in another way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change {
    #[default]
    None,
    /// The rows of each head of this many stand in the order that rotates neighbours instead of halves.
    Heads(u64),
    /// One was added to each value.
    MinusOne,
}

/// Two tensors that belong together, or one that stands alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair<'a> {
    pub here: Option<&'a TensorInfo>,
    pub there: Option<&'a TensorInfo>,
    /// What to do to `here` before it is compared, and to `there`.
    pub change: (Change, Change),
}

impl Pair<'_> {
    /// The name on this side, or that on the other.
    pub fn name(&self) -> &str {
        self.here.or(self.there).map_or("", |tensor| tensor.name.as_str())
    }

    /// Whether both are the same bytes of the same blob, which needs no look at them.
    pub fn is_one(&self) -> bool {
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

/// Finds the partner of each tensor: by its name, or where one model has GGUF's names and the other its checkpoint's, by what
/// the conversion calls it. In the order of `here`, then what only `there` has.
pub fn pairs<'a>(here: &'a [TensorInfo], there: &'a [TensorInfo], hints: &Hints) -> Vec<Pair<'a>> {
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
    // The conversion's names, either way around.
    let alone: HashMap<&str, usize> = pairs
        .iter()
        .enumerate()
        .filter(|(_, pair)| pair.there.is_none())
        .filter_map(|(at, pair)| Some((pair.here?.name.as_str(), at)))
        .collect();
    let free = |taken: &[bool], name: &str| by_name.get(name).copied().filter(|at| !taken[*at]);
    for pair in pairs.iter_mut().filter(|pair| pair.there.is_none()) {
        let Some(tensor) = pair.here else { continue };
        let names = names::of_checkpoint(&tensor.name);
        if let Some(at) = names.iter().find_map(|name| free(&taken, name)) {
            taken[at] = true;
            pair.there = Some(&there[at]);
            pair.change = (names::change(&tensor.name, hints), Change::None);
        }
    }
    for (at, tensor) in there.iter().enumerate() {
        if taken[at] {
            continue;
        }
        let names = names::of_checkpoint(&tensor.name);
        let partner = names.iter().find_map(|name| alone.get(name.as_str()).copied());
        match partner.filter(|at| pairs[*at].there.is_none()) {
            Some(at) => {
                pairs[at].there = Some(tensor);
                pairs[at].change = (Change::None, names::change(&tensor.name, hints));
            }
            None => pairs.push(Pair { here: None, there: Some(tensor), change: Default::default() }),
        }
    }
    pairs
}

/// What two manifests weigh, and what they have in common: each blob once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weighed {
    pub here: u64,
    pub there: u64,
    pub shared: u64,
}

/// Weighs the layers of two manifests.
pub fn weigh(here: &Manifest, there: &Manifest) -> Weighed {
    let blobs = |manifest: &Manifest| -> BTreeSet<(Digest, u64)> {
        manifest.layers.iter().map(|layer| (layer.digest.clone(), layer.size)).collect()
    };
    let sum = |blobs: &mut dyn Iterator<Item = u64>| blobs.fold(0u64, u64::saturating_add);
    let (here, there) = (blobs(here), blobs(there));
    Weighed {
        here: sum(&mut here.iter().map(|(_, size)| *size)),
        there: sum(&mut there.iter().map(|(_, size)| *size)),
        shared: sum(&mut here.intersection(&there).map(|(_, size)| *size)),
    }
}

#[cfg(test)]
mod tests;
