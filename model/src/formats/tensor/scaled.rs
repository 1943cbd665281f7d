//! FP8 and int8 weights and the arrays of scales that belong to them, by the names that checkpoints use and
//! by config.json. DeepSeek and Qwen have `X.weight_scale_inv`, compressed-tensors and ModelOpt
//! `X.weight_scale`. Whatever the name, codes are multiplied by the scales ([`crate::quant::scaled`]), and
//! the two may be in different files.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::info::TensorInfo;
pub use super::scaling::Scaling;
use crate::quant::scaled::{Grid, allows_scale, is_decoded};
use crate::safetensors::Dtype;

/// The suffixes that turn a weight's name into that of its scales.
const SCALES: [&str; 2] = ["_scale_inv", "_scale"];
/// The suffixes of other formats' scales, which may be E4M3 themselves.
const OTHER_SCALES: [&str; 2] = ["_scale_2", ".scales"];
/// The suffix of a weight's zero points. Symmetric weights may have some; then all are zero.
pub const ZERO_POINT: &str = "_zero_point";
/// The blocks of checkpoints that do not give theirs.
const BLOCK: [u64; 2] = [128, 128];
/// The keys of config.json that describe quantisation.
pub(crate) const SECTIONS: [&str; 2] = ["quantization_config", "compression_config"];

/// Whether a tensor may be a weight of codes, and is not a scale itself. An int8 tensor is one only if it has
/// scales.
pub fn is_weight(name: &str, dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2 | Dtype::I8)
        && !name.ends_with(ZERO_POINT)
        && !SCALES.iter().chain(&OTHER_SCALES).any(|end| name.ends_with(end))
}

/// Returns the possible names of a weight's scales.
pub fn names(weight: &str) -> [String; 2] {
    SCALES.map(|end| format!("{weight}{end}"))
}

/// Why the codes of weights cannot be decoded, or their blocks are unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    #[error("`config.json` gives the blocks of scaled weights as {found}, expected one size of two numbers")]
    Size { found: String },
    #[error("`config.json` has a `transform_config`: its weights are rotated, which is not supported")]
    Rotated,
    #[error("`config.json` describes asymmetric weights of 8 bits, which is not supported")]
    Asymmetric,
}

/// Returns the rows and columns that share a scale, from config.json.
pub fn block(config: Option<&Map<String, Value>>) -> Result<[u64; 2], BlockError> {
    let text = config.and_then(|config| config.get("text_config")?.as_object());
    let sections =
        config.into_iter().chain(text).flat_map(|map| SECTIONS.iter().filter_map(|key| map.get(*key)));
    let mut found: Option<[u64; 2]> = None;
    for section in sections {
        let rotated =
            section.get("transform_config").and_then(|transform| transform.get("config_groups")?.as_object());
        if rotated.is_some_and(|groups| !groups.is_empty()) {
            return Err(BlockError::Rotated);
        }
        let groups = section.get("config_groups").and_then(Value::as_object);
        let weights = || groups.into_iter().flat_map(Map::values).filter_map(|group| group.get("weights"));
        let is_asymmetric =
            |weights: &Value| weights["num_bits"] == 8 && weights["symmetric"] == Value::Bool(false);
        if weights().any(is_asymmetric) {
            return Err(BlockError::Asymmetric);
        }
        let structures = weights().filter_map(|weights| weights.get("block_structure"));
        let sizes = section.get("weight_block_size").into_iter().chain(structures);
        for value in sizes.filter(|value| !value.is_null()) {
            let wrong = || BlockError::Size { found: value.to_string().chars().take(40).collect() };
            let size = size(value).ok_or_else(wrong)?;
            if *found.get_or_insert(size) != size {
                return Err(wrong());
            }
        }
    }
    Ok(found.unwrap_or(BLOCK))
}

/// Parses `[128, 128]`, or `"128x128"` of older files.
fn size(value: &Value) -> Option<[u64; 2]> {
    let size = match value {
        Value::String(text) => {
            let (rows, columns) = text.split_once('x')?;
            [rows.parse().ok()?, columns.parse().ok()?]
        }
        list => {
            let numbers: Option<Vec<u64>> = list.as_array()?.iter().map(Value::as_u64).collect();
            <[u64; 2]>::try_from(numbers?).ok()?
        }
    };
    (!size.contains(&0)).then_some(size)
}

/// Attaches the scales of FP8 and int8 weights to their weights in the lists of a model's files: the scales
/// in the same file, or the only ones of that name. Arrays that do not match stay listed as separate tensors.
pub fn attach_scales(files: &mut [&mut Vec<TensorInfo>], config_json: Option<&[u8]>) {
    let config: Option<Map<String, Value>> = config_json.and_then(|json| serde_json::from_slice(json).ok());
    let Ok(block) = block(config.as_ref()) else { return };
    let mut homes: HashMap<&str, Vec<(usize, usize)>> = HashMap::new();
    for (file, tensors) in files.iter().enumerate() {
        for (position, tensor) in tensors.iter().enumerate() {
            if SCALES.iter().any(|end| tensor.name.ends_with(end)) {
                homes.entry(&tensor.name).or_default().push((file, position));
            }
        }
    }
    let mut pairs = Vec::new();
    for (file, tensors) in files.iter().enumerate() {
        let find = |name: &String| {
            let homes = homes.get(name.as_str())?;
            let own = homes.iter().find(|(home, _)| *home == file);
            own.or_else(|| homes.first().filter(|_| homes.len() == 1)).copied()
        };
        for (position, tensor) in tensors.iter().enumerate() {
            let dtype = tensor.parts.weight.dtype;
            if !is_decoded(dtype) || !is_weight(&tensor.name, dtype) {
                continue;
            }
            let ([Some(home), None] | [None, Some(home)]) = names(&tensor.name).each_ref().map(find) else {
                continue;
            };
            let scale = &files[home.0][home.1];
            let part = scale.parts.weight.clone();
            let grid = Grid::of(&tensor.shape, &part.shape, block).filter(|_| allows_scale(part.dtype));
            if let Some(grid) = grid {
                let (name, digest) = (scale.name.clone(), scale.digest.clone());
                let scaling = Scaling { name, digest, part, block: grid.block(), cut: None };
                pairs.push(((file, position), home, scaling));
            }
        }
    }
    let gone: HashSet<(usize, usize)> = pairs.iter().map(|(_, home, _)| *home).collect();
    for ((file, position), _, scaling) in pairs {
        let tensor = &mut files[file][position];
        tensor.size_bytes = tensor.size_bytes.saturating_add(scaling.part.size_bytes);
        tensor.scaling = Some(scaling);
    }
    for (file, tensors) in files.iter_mut().enumerate() {
        let mut position = 0..;
        tensors.retain(|_| !position.next().is_some_and(|position| gone.contains(&(file, position))));
    }
}
