//! Checkpoints as MLX's tools publish them: the codes of a weight under its own name, `.scales` and `.biases` beside it, and
//! config.json says how it was quantised, whole or module by module (mlx-lm `utils.py`). The bytes are those of our own
//! quantised blobs, so their names are read as ours, and the tensors are the same as any other's.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::quant::{Kind, Quantisation};
use crate::safetensors::{Dtype, Header, HeaderError};

/// The key of config.json.
const SECTION: &str = "quantization";
/// What is quantised of a module, and what lies beside it: there, and in our blobs.
const WEIGHT: &str = ".weight";
const COMPANIONS: [(&str, &str); 2] = [(".scales", ".scale"), (".biases", ".bias")];

/// How a checkpoint's weights were quantised.
pub(super) struct Mlx(Map<String, Value>);

/// A header with the names and the metadata of our blobs.
pub(super) struct Renamed {
    pub(super) header: Header,
    /// How many weights are quantised in a way that we have no kind for.
    pub(super) foreign: usize,
}

impl Mlx {
    /// What a config.json says, if it says anything of the sort.
    pub(super) fn read(config: &Map<String, Value>) -> Option<Mlx> {
        config.get(SECTION)?.as_object().cloned().map(Mlx)
    }

    /// A module's own entry counts before what is said of all.
    fn quantisation(&self, module: &str) -> Option<Quantisation> {
        let said = match self.0.get(module) {
            None => &self.0,
            Some(own) => own.as_object()?,
        };
        let number = |key: &str| said.get(key).and_then(Value::as_u64);
        let mode = said.get("mode").and_then(Value::as_str).unwrap_or("affine");
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

    pub(super) fn rename(&self, header: &Header) -> Result<Renamed, HeaderError> {
        let mut names = BTreeMap::new();
        let mut metadata = BTreeMap::new();
        let mut foreign = 0;
        for entry in header.tensors().iter().filter(|entry| entry.dtype == Dtype::U32) {
            let Some(module) = entry.name.strip_suffix(WEIGHT) else { continue };
            let beside = COMPANIONS.map(|(theirs, ours)| (format!("{module}{theirs}"), ours));
            if header.get(&beside[0].0).is_none() {
                continue;
            }
            let Some(Quantisation { kind, group_size }) = self.quantisation(module) else {
                foreign += 1;
                continue;
            };
            names.extend(beside.map(|(theirs, ours)| (theirs, format!("{}{ours}", entry.name))));
            metadata.insert(format!("{}.quant_type", entry.name), kind.to_string());
            metadata.insert(format!("{}.group_size", entry.name), group_size.to_string());
        }
        Ok(Renamed { header: header.renamed(&names, metadata)?, foreign })
    }
}

/// The weight that a name of MLX's belongs to, if it is that of a companion.
pub(super) fn weight_of(name: &str) -> Option<String> {
    let module = COMPANIONS.iter().find_map(|(theirs, _)| name.strip_suffix(theirs))?;
    Some(format!("{module}{WEIGHT}"))
}
