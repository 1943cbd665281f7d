//! Plans the bytes of every tensor layer, and how every shard is assembled from them again. Called once by
//! [`super::tensor_blobs`], after the policy has decided which tensors share a blob and are quantised.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;

use super::check::{self, CheckedRun};
use super::checkpoint::{Checkpoint, Shard};
use super::layer::{Content, Piece, QuantisedPiece};
use super::plan::PlannedLayer;
use super::policy::{BlobMember, TensorLayers};
use super::recipe::{FileOrigin, FileRecipe, RecipeSegment};
use crate::media_type;
use crate::quant::Quantisation;
use crate::safetensors::{Dtype, write_header};
use crate::source::FloatArray;
use crate::tensor::{Part, Tensor};

/// An array in a blob: its key, type and shape.
type Key = (String, Dtype, Vec<u64>);

/// The location of a tensor: the layer, the start of its data there, and its arrays in order.
struct PlacedTensor {
    quantisation: Option<Quantisation>,
    layer: usize,
    offset: u64,
    arrays: Vec<Array>,
}

struct Array {
    key: Key,
    length: u64,
    /// Its offset in the shard; `None` for the arrays that quantisation makes.
    from: Option<u64>,
}

/// Returns a layer for each blob of tensors, and a recipe for each shard (and for their index, if
/// quantisation changed it).
pub(super) fn shards(
    checkpoint: &Checkpoint,
    tensor_layers: TensorLayers,
) -> (Vec<PlannedLayer>, Vec<FileRecipe>) {
    let mut layers = Vec::with_capacity(tensor_layers.layers.len());
    let mut recipes = Vec::with_capacity(checkpoint.shards.len());
    let mut index = Index::default();
    let mut placed: Vec<Vec<Option<PlacedTensor>>> =
        checkpoint.shards.iter().map(|shard| shard.tensors.iter().map(|_| None).collect()).collect();
    let mut quantised: Vec<bool> = checkpoint.shards.iter().map(|shard| shard.is_changed).collect();

    for tensor_layer in tensor_layers.layers {
        let arrays: Vec<Vec<Array>> =
            tensor_layer.members.iter().map(|member| arrays(checkpoint, member)).collect();
        let keys: Vec<&Key> = arrays.iter().flatten().map(|array| &array.key).collect();
        let front = header(&keys, &metadata(checkpoint, &tensor_layer.members));

        let mut offset = front.len() as u64;
        let mut watched = Vec::new();
        let mut pieces = vec![Piece::Bytes(front)];
        for (member, arrays) in tensor_layer.members.iter().zip(arrays) {
            let shard = &checkpoint.shards[member.shard];
            let tensor = &shard.tensors[member.position];
            let start = offset;
            offset += arrays.iter().map(|array| array.length).sum::<u64>();
            let scales = checkpoint.scales.get(&tensor.name);
            let converted = checkpoint.converted.get(&tensor.name);
            let is_made = member.quantise.is_some() || scales.is_some() || converted.is_some();
            if let Some(segment) = converted {
                pieces.push(Piece::from(segment.clone()));
            } else if is_made {
                pieces.push(Piece::Quantised(QuantisedPiece {
                    name: tensor.name.clone(),
                    array: FloatArray {
                        path: Arc::clone(&shard.path),
                        offset: tensor.parts.weight.offset,
                        dtype: tensor.parts.weight.dtype,
                        scales: scales.cloned(),
                        blocks: None,
                    },
                    elements: tensor.elements(),
                    to: member.quantise,
                }));
            } else {
                pieces.extend(arrays.iter().filter_map(|array| {
                    Some(Piece::Range {
                        path: Arc::clone(&shard.path),
                        offset: array.from?,
                        length: array.length,
                    })
                }));
                watched.extend(watch_companions(tensor, &arrays, start));
            }
            quantised[member.shard] |= is_made;
            placed[member.shard][member.position] = Some(PlacedTensor {
                quantisation: member.quantise.or(tensor.quantisation),
                layer: layers.len(),
                offset: start,
                arrays,
            });
        }
        let content = Content::new(pieces).with_checks(watched.into());
        layers.push(PlannedLayer {
            media_type: media_type::OLLAMA_TENSOR,
            name: Some(tensor_layer.name),
            size: content.size(),
            content,
        });
    }

    let any_quantised = quantised.contains(&true);
    for ((shard, placed), quantised) in checkpoint.shards.iter().zip(placed).zip(quantised) {
        let placed: Vec<PlacedTensor> =
            placed.into_iter().map(|placed| placed.expect("every tensor is in one layer")).collect();
        for array in placed.iter().flat_map(|placed| &placed.arrays) {
            index.weight_map.insert(array.key.0.clone(), shard.path.to_string());
            index.metadata.total_size += array.length;
        }
        recipes.push(if quantised {
            assembled_shard(shard, &placed)
        } else {
            original_shard(shard, &placed)
        });
    }
    if let Some(path) = checkpoint.index.clone().filter(|_| any_quantised) {
        let bytes = serde_json::to_vec_pretty(&index).expect("a table of strings and numbers is JSON");
        recipes.push(FileRecipe {
            path,
            origin: FileOrigin::Assembled,
            segments: vec![RecipeSegment::Inline(bytes)],
        });
    }
    (layers, recipes)
}

/// A shard index, as transformers writes it.
#[derive(Default, Serialize)]
struct Index {
    metadata: IndexMetadata,
    weight_map: BTreeMap<String, String>,
}

#[derive(Default, Serialize)]
struct IndexMetadata {
    total_size: u64,
}

/// Returns the arrays of a tensor as stored in its blob, ordered by key.
fn arrays(checkpoint: &Checkpoint, member: &BlobMember) -> Vec<Array> {
    let tensor = &checkpoint.shards[member.shard].tensors[member.position];
    let (Tensor { name, shape, parts, .. }, dtype) = (tensor, checkpoint.value_dtype(tensor));
    let made = |suffix: &str, dtype: Dtype, shape: Vec<u64>| {
        let length = shape.iter().product::<u64>() * dtype.bitsize() as u64 / 8;
        Array { key: (format!("{name}{suffix}"), dtype, shape), length, from: None }
    };
    let Some(Quantisation { kind, group_size }) = member.quantise else {
        if checkpoint.scales.contains_key(name) {
            return vec![made("", dtype, shape.clone())];
        }
        let stored = |suffix: &str, part: &Part| Array {
            key: (format!("{name}{suffix}"), part.dtype, part.shape.clone()),
            length: part.size_bytes,
            from: Some(part.offset),
        };
        let companions =
            [(".bias", &parts.bias), (".global_scale", &parts.global_scale), (".scale", &parts.scale)];
        let companions =
            companions.into_iter().filter_map(|(suffix, part)| Some(stored(suffix, part.as_ref()?)));
        return std::iter::once(stored("", &parts.weight)).chain(companions).collect();
    };
    let with_last = |per: u64| {
        let (last, leading) = shape.split_last().expect("only matrices are quantised");
        [leading, &[last / per]].concat()
    };
    let codes = made("", Dtype::U32, with_last(u64::from(32 / kind.bits())));
    let groups = with_last(u64::from(group_size));
    if kind.is_affine() {
        vec![codes, made(".bias", dtype, groups.clone()), made(".scale", dtype, groups)]
    } else {
        vec![codes, made(".scale", Dtype::U8, groups)]
    }
}

/// Watches the scales and biases of a tensor that was quantised before the import. Its arrays are stored one
/// after the other from `start` on.
fn watch_companions(tensor: &Tensor, arrays: &[Array], start: u64) -> Vec<CheckedRun> {
    let Some(Quantisation { kind, .. }) = tensor.quantisation else { return Vec::new() };
    let mut offset = start;
    let mut all = Vec::new();
    for array in arrays {
        let (key, dtype, _) = &array.key;
        let run = (offset, array.length);
        let part = match key.strip_prefix(tensor.name.as_str()) {
            Some("") => {
                all.extend(check::watch_codes(&tensor.name, kind, run));
                None
            }
            Some(".scale") => Some("scale"),
            Some(".bias") => Some("bias"),
            Some(".global_scale") => Some("global scale"),
            _ => None,
        };
        all.extend(part.and_then(|part| check::watch_numbers(&tensor.name, part, kind, *dtype, run)));
        offset += array.length;
    }
    all
}

fn header(keys: &[&Key], metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let entries: Vec<(&str, Dtype, &[u64])> =
        keys.iter().map(|(name, dtype, shape)| (name.as_str(), *dtype, shape.as_slice())).collect();
    write_header(&entries, metadata)
}

/// Returns the quantisation metadata of a blob: once if all members agree, otherwise for each tensor.
fn metadata(checkpoint: &Checkpoint, members: &[BlobMember]) -> BTreeMap<String, String> {
    let quantised: Vec<(&str, Quantisation)> = members
        .iter()
        .filter_map(|member| {
            let tensor = &checkpoint.shards[member.shard].tensors[member.position];
            Some((tensor.name.as_str(), member.quantise.or(tensor.quantisation)?))
        })
        .collect();
    match quantised.as_slice() {
        [(_, first), rest @ ..] if rest.iter().all(|(_, other)| other == first) => {
            quantisation_metadata("", *first).into()
        }
        _ => quantised.iter().flat_map(|(name, q)| quantisation_metadata(&format!("{name}."), *q)).collect(),
    }
}

/// Returns the two metadata keys of a quantisation.
fn quantisation_metadata(prefix: &str, quantisation: Quantisation) -> [(String, String); 2] {
    let Quantisation { kind, group_size } = quantisation;
    let key = |name: &str| format!("{prefix}{name}");
    [(key("quant_type"), kind.to_string()), (key("group_size"), group_size.to_string())]
}

/// Assembles the original file: its front unchanged, then its data from the layers.
fn original_shard(shard: &Shard, placed: &[PlacedTensor]) -> FileRecipe {
    let mut runs: Vec<(u64, usize, u64, u64)> = Vec::new();
    for placed in placed {
        let mut offset = placed.offset;
        for array in &placed.arrays {
            if let Some(from) = array.from.filter(|_| array.length > 0) {
                runs.push((from, placed.layer, offset, array.length));
            }
            offset += array.length;
        }
    }
    // The data has neither gaps nor overlaps, so the sorted runs are the file.
    runs.sort_unstable();
    let mut segments = vec![RecipeSegment::Inline(shard.front.clone())];
    for (_, layer, offset, length) in runs {
        push_run(&mut segments, layer, offset, length);
    }
    FileRecipe { path: shard.path.to_string(), origin: FileOrigin::Pieces, segments }
}

/// Assembles a file of the same name with the quantised tensors: a new header over the data of the blobs.
fn assembled_shard(shard: &Shard, placed: &[PlacedTensor]) -> FileRecipe {
    let mut metadata = shard.metadata.clone();
    for (tensor, placed) in shard.tensors.iter().zip(placed) {
        let entries = placed
            .quantisation
            .map(|quantisation| quantisation_metadata(&format!("{}.", tensor.name), quantisation));
        metadata.extend(entries.into_iter().flatten());
    }
    let keys: Vec<&Key> = placed.iter().flat_map(|placed| &placed.arrays).map(|array| &array.key).collect();
    let mut segments = vec![RecipeSegment::Inline(header(&keys, &metadata))];
    for placed in placed {
        let length = placed.arrays.iter().map(|array| array.length).sum();
        push_run(&mut segments, placed.layer, placed.offset, length);
    }
    FileRecipe { path: shard.path.to_string(), origin: FileOrigin::Assembled, segments }
}

/// Adds a run of a layer's bytes, and merges it with the previous run if they are adjacent.
fn push_run(segments: &mut Vec<RecipeSegment>, layer: usize, offset: u64, length: u64) {
    match segments.last_mut() {
        Some(RecipeSegment::Layer { layer: last, offset: start, length: so_far })
            if *last == layer && *start + *so_far == offset =>
        {
            *so_far += length;
        }
        _ if length == 0 => {}
        _ => segments.push(RecipeSegment::Layer { layer, offset, length }),
    }
}
