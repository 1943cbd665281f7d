//! FP8 and int8 checkpoints that are quantised or converted: every weight is paired with its scales, which
//! are then no longer tensors of their own. If that fails, the import is refused with the weight's name.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::checkpoint::Checkpoint;
use super::error::ImportError;
use crate::convert::format_names;
use crate::quant::scaled::{Grid, allows_scale, is_decoded};
use crate::safetensors::Dtype;
use crate::source::Scales;
use crate::tensor::{Tensor, scaled};

/// Scales and zero points of computed values rather than stored ones: Lode keeps neither activations nor
/// caches in eight bits.
const DROPPED: [&str; 6] =
    [".input_scale", ".input_zero_point", ".activation_scale", ".k_scale", ".v_scale", ".kv_scale"];
/// The file that ModelOpt writes in addition to config.json. It only describes the original weights.
const MODELOPT_CONFIG: &str = "hf_quant_config.json";

/// A weight, the shard and tensor number of its scales, and the scales' location.
struct ScaledWeight {
    weight: String,
    at: (usize, usize),
    scales: Scales,
}

/// Removes the scales of weights, and other tensors that go with them, from the tensors, and stores the
/// scales by weight. Without such weights nothing changes.
pub(super) fn pair_scales(checkpoint: &mut Checkpoint) -> Result<(), ImportError> {
    // Image models are neither quantised nor converted.
    let pairs = if checkpoint.is_image_model { Vec::new() } else { pairs(checkpoint)? };
    if pairs.is_empty() {
        return Ok(());
    }
    let mut gone: HashSet<(usize, usize)> = pairs.iter().map(|pair| pair.at).collect();
    let mut dropped = Vec::new();
    for (shard, tensors) in checkpoint.shards.iter().map(|shard| &shard.tensors).enumerate() {
        for (position, tensor) in tensors.iter().enumerate() {
            if DROPPED.iter().any(|end| tensor.name.ends_with(end)) && gone.insert((shard, position)) {
                dropped.push(tensor.name.as_str());
            }
        }
    }
    if !dropped.is_empty() {
        let listed = format_names(&dropped);
        checkpoint
            .notices
            .push(format!("{listed}: left out, because activations and caches are not stored in eight bits"));
    }
    for (number, shard) in checkpoint.shards.iter_mut().enumerate() {
        let mut position = 0..;
        shard.tensors.retain(|_| !position.next().is_some_and(|position| gone.contains(&(number, position))));
        shard.is_changed |= gone.iter().any(|(shard, _)| *shard == number);
    }
    checkpoint.scales = pairs.into_iter().map(|pair| (pair.weight, pair.scales)).collect();
    Ok(())
}

/// Returns the notice about FP8 and int8 weights that cannot be run as they are stored, if there are any.
pub(super) fn notice(checkpoint: &Checkpoint) -> Option<String> {
    if checkpoint.is_image_model {
        return None;
    }
    let error = pairs(checkpoint).err()?;
    Some(format!("eight-bit weights are stored as they are, and can be neither run nor quantised: {error}"))
}

/// Removes the entries about eight-bit weights from a config.json; `None` if it has none.
pub(super) fn remove_scale_config(config: &[u8]) -> Option<Vec<u8>> {
    let mut config: Map<String, Value> = serde_json::from_slice(config).ok()?;
    let mut is_changed = false;
    let mut clear = |map: &mut Map<String, Value>| {
        scaled::SECTIONS.iter().for_each(|key| is_changed |= map.shift_remove(*key).is_some());
    };
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        clear(text);
    }
    clear(&mut config);
    is_changed.then(|| serde_json::to_vec_pretty(&config).ok()).flatten()
}

/// Whether a file only describes eight-bit weights that have been replaced.
pub(super) fn is_scale_description(checkpoint: &Checkpoint, path: &str) -> bool {
    path == MODELOPT_CONFIG && !checkpoint.scales.is_empty()
}

/// Pairs every weight of codes with its scales. Other int8 tensors have none.
fn pairs(checkpoint: &Checkpoint) -> Result<Vec<ScaledWeight>, ImportError> {
    let mut homes: HashMap<&str, (usize, usize)> = HashMap::new();
    for (shard, tensors) in checkpoint.shards.iter().map(|shard| &shard.tensors).enumerate() {
        homes.extend(
            tensors.iter().enumerate().map(|(position, tensor)| (tensor.name.as_str(), (shard, position))),
        );
    }
    let is_weight = |tensor: &Tensor| {
        let dtype = tensor.parts.weight.dtype;
        let is_scaled = || scaled::names(&tensor.name).iter().any(|name| homes.contains_key(name.as_str()));
        scaled::is_weight(&tensor.name, dtype) && (dtype != Dtype::I8 || is_scaled())
    };
    let weights: Vec<(usize, &Tensor)> =
        checkpoint.tensors().filter(|(_, tensor)| is_weight(tensor)).collect();
    if weights.is_empty() {
        return Ok(Vec::new());
    }
    let block = scaled::block(checkpoint.config.as_ref())?;
    weights.into_iter().map(|(shard, tensor)| pair(checkpoint, &homes, shard, tensor, block)).collect()
}

fn pair(
    checkpoint: &Checkpoint,
    homes: &HashMap<&str, (usize, usize)>,
    shard: usize,
    tensor: &Tensor,
    block: [u64; 2],
) -> Result<ScaledWeight, ImportError> {
    let wrong = |problem: String| ImportError::Scaled {
        path: checkpoint.shards[shard].path.to_string(),
        tensor: tensor.name.clone(),
        dtype: tensor.dtype.clone(),
        problem,
    };
    if !is_decoded(tensor.parts.weight.dtype) {
        return Err(wrong("which is not decoded".to_owned()));
    }
    let names = scaled::names(&tensor.name);
    let (name, at) = match names.each_ref().map(|name| homes.get(name.as_str())) {
        [Some(at), None] => (&names[0], *at),
        [None, Some(at)] => (&names[1], *at),
        [None, None] => {
            return Err(wrong(format!("without its scales: neither `{}` nor `{}`", names[0], names[1])));
        }
        [Some(_), Some(_)] => {
            return Err(wrong(format!("with two scales: `{}` and `{}`", names[0], names[1])));
        }
    };
    let home = &checkpoint.shards[at.0];
    let scale = &home.tensors[at.1].parts.weight;
    if !allows_scale(scale.dtype) {
        return Err(wrong(format!(
            "whose scales `{name}` are {}, expected F32, BF16, F16 or F8_E8M0",
            scale.dtype
        )));
    }
    let grid = Grid::of(&tensor.shape, &scale.shape, block).ok_or_else(|| {
        let [rows, columns] = block;
        wrong(format!(
            "whose shape {:?} does not go with scales `{name}` of {:?}: expected one, one a row, or one for each block of \
             {rows} by {columns}",
            tensor.shape, scale.shape
        ))
    })?;
    let scales = Scales {
        tensor: tensor.name.as_str().into(),
        path: Arc::clone(&home.path),
        offset: scale.offset,
        dtype: scale.dtype,
        grid,
    };
    Ok(ScaledWeight { weight: tensor.name.clone(), at, scales })
}
