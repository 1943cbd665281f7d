//! Checkpoints of MLX's tools: a weight's codes have its own name, with `.scales` and `.biases` next to it,
//! and config.json describes the quantisation, for the whole model or per module (mlx-lm `utils.py`). The
//! bytes are those of Lode's quantised blobs, so the names are translated and the tensors handled like all
//! others.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::quant::{Kind, Quantisation};
use crate::safetensors::{Dtype, Header, HeaderError};

/// The key of config.json.
const SECTION: &str = "quantization";
/// The quantised tensor of a module, and its companions in MLX's and in Lode's names.
const WEIGHT: &str = ".weight";
const COMPANIONS: [(&str, &str); 2] = [(".scales", ".scale"), (".biases", ".bias")];

/// How a checkpoint's weights were quantised.
pub(super) struct MlxQuantisation(Map<String, Value>);

/// A header with the names and the metadata of Lode's blobs.
pub(super) struct RenamedHeader {
    pub(super) header: Header,
    /// The number of weights that are quantised in a way that Lode does not support.
    pub(super) unsupported: usize,
}

impl MlxQuantisation {
    /// Reads a config.json; `None` if it describes no quantisation.
    pub(super) fn read(config: &Map<String, Value>) -> Option<MlxQuantisation> {
        config.get(SECTION)?.as_object().cloned().map(MlxQuantisation)
    }

    /// Returns the quantisation of a module. Its own entry takes precedence over the model's.
    fn quantisation(&self, module: &str) -> Option<Quantisation> {
        let config = match self.0.get(module) {
            None => &self.0,
            Some(own) => own.as_object()?,
        };
        let number = |key: &str| config.get(key).and_then(Value::as_u64);
        let mode = config.get("mode").and_then(Value::as_str).unwrap_or("affine");
        let kind = match (mode, number("bits")?) {
            ("affine", 4) => Kind::Int4,
            ("affine", 8) => Kind::Int8,
            ("mxfp4", 4) => Kind::Mxfp4,
            ("nvfp4", 4) => Kind::Nvfp4,
            ("mxfp8", 8) => Kind::Mxfp8,
            _ => return None,
        };
        let group_size = u32::try_from(number("group_size")?).ok()?;
        kind.allows_group_size(group_size).then_some(Quantisation { kind, group_size })
    }

    pub(super) fn rename(&self, header: &Header) -> Result<RenamedHeader, HeaderError> {
        let mut names = BTreeMap::new();
        let mut metadata = BTreeMap::new();
        let mut foreign = 0;
        for entry in header.tensors().iter().filter(|entry| entry.dtype == Dtype::U32) {
            let Some(module) = entry.name.strip_suffix(WEIGHT) else { continue };
            let companions = COMPANIONS.map(|(theirs, ours)| (format!("{module}{theirs}"), ours));
            if header.get(&companions[0].0).is_none() {
                continue;
            }
            let Some(Quantisation { kind, group_size }) = self.quantisation(module) else {
                foreign += 1;
                continue;
            };
            names.extend(companions.map(|(theirs, ours)| (theirs, format!("{}{ours}", entry.name))));
            metadata.insert(format!("{}.quant_type", entry.name), kind.to_string());
            metadata.insert(format!("{}.group_size", entry.name), group_size.to_string());
        }
        Ok(RenamedHeader { header: header.renamed(&names, metadata)?, unsupported: foreign })
    }
}

/// Returns the weight to which a companion's MLX name belongs.
pub(super) fn weight_of(name: &str) -> Option<String> {
    let module = COMPANIONS.iter().find_map(|(theirs, _)| name.strip_suffix(theirs))?;
    Some(format!("{module}{WEIGHT}"))
}
