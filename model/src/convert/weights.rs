//! The tensors of a planned GGUF before their types are chosen, and the sources of their values.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::ConvertError;
use super::family::TensorPlace;
use super::hyper::HyperParameters;
use super::rows::RowOrder;
use crate::gguf::Header;
use crate::quant::ggml::Type;
use crate::safetensors::Dtype;
use crate::source::{FloatArray, Scales};
use crate::tensor::Tensor;

/// One tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Weight {
    pub(super) name: String,
    /// Row-major.
    pub(super) shape: Vec<u64>,
    pub(super) values: Values,
    /// The type of the tensor if the mix does not choose one.
    pub(super) kept: Type,
}

/// The source of a tensor's values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Values {
    /// Arrays of one shape, concatenated.
    Floats { arrays: Vec<FloatArray>, order: RowOrder, add: f32 },
    /// Integers, copied unchanged.
    Verbatim { path: Arc<str>, offset: u64, length: u64 },
    /// Computed values.
    Computed(Vec<f32>),
}

/// A tensor of a checkpoint, its file and, for FP8, its scales.
pub(crate) struct CheckpointTensor<'a> {
    pub(crate) path: Arc<str>,
    pub(crate) tensor: &'a Tensor,
    pub(crate) scales: Option<&'a Scales>,
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32)
}

/// Lists the tensors of a GGUF, over all of its files in order. Quantised tensors are refused: their original
/// values are lost.
pub(super) fn list_gguf_weights(parts: &[(Arc<str>, Header)]) -> Result<Vec<Weight>, ConvertError> {
    let mut weights = Vec::new();
    for (path, header) in parts {
        for (entry, tensor) in header.tensors.iter().zip(header.to_tensors()) {
            let stored = &tensor.parts.weight;
            let path = Arc::clone(path);
            let values = match entry.ty {
                Type::F32 | Type::F16 | Type::BF16 => Values::Floats {
                    arrays: vec![FloatArray {
                        path,
                        offset: stored.offset,
                        dtype: stored.dtype,
                        scales: None,
                        blocks: None,
                    }],
                    order: RowOrder::Same,
                    add: 0.0,
                },
                Type::I8 | Type::I16 | Type::I32 | Type::I64 | Type::F64 => {
                    Values::Verbatim { path, offset: stored.offset, length: stored.size_bytes }
                }
                ty => {
                    let (path, tensor) = (path.to_string(), entry.name.clone());
                    return Err(ConvertError::Quantised { path, tensor, ty: ty.as_str() });
                }
            };
            weights.push(Weight { name: entry.name.clone(), shape: tensor.shape, values, kept: entry.ty });
        }
    }
    Ok(weights)
}

/// Lists the tensors of a checkpoint under their GGUF names: the embedding first, then layer by layer, the
/// output last.
pub(super) fn list_checkpoint_weights(
    stored: &[CheckpointTensor],
    hyper: &mut HyperParameters,
) -> Result<Vec<Weight>, ConvertError> {
    let mut weights: BTreeMap<(u64, String), Weight> = BTreeMap::new();
    let mut stacks: BTreeMap<(u64, String), BTreeMap<u64, &CheckpointTensor>> = BTreeMap::new();
    for one in stored {
        let tensor = one.tensor;
        let unknown = || ConvertError::UnknownTensor {
            tensor: tensor.name.clone(),
            architecture: hyper.family.architecture,
        };
        let (name, layer) = match hyper.family.place(&tensor.name).ok_or_else(unknown)? {
            TensorPlace::Dropped => continue,
            TensorPlace::Tensor { name, .. } if name == "output.weight" && hyper.is_tied => continue,
            TensorPlace::Tensor { name, layer } => (name, layer),
            TensorPlace::Expert { name, layer, expert } => {
                if layer >= hyper.n_layers || expert >= hyper.n_experts {
                    return Err(unknown());
                }
                stacks.entry((layer + 1, name)).or_default().insert(expert, one);
                continue;
            }
        };
        if layer.is_some_and(|layer| layer >= hyper.n_layers) {
            return Err(unknown());
        }
        let array = array(one)?;
        let is_permuted = hyper.family.rotates_pairs(&name);
        if is_permuted {
            let heads = if name.contains(".attn_q.") { hyper.n_heads } else { hyper.n_kv_heads };
            check_rows(tensor, heads.saturating_mul(hyper.head_dim))?;
        }
        let order = if is_permuted { RowOrder::Pairs { head_dim: hyper.head_dim } } else { RowOrder::Same };
        let add = if hyper.family.is_gemma && name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let values = Values::Floats { arrays: vec![array], order, add };
        let at = match layer {
            Some(layer) => layer + 1,
            None if name == "token_embd.weight" => 0,
            None => u64::MAX,
        };
        let weight = Weight { name: name.clone(), shape: tensor.shape.clone(), values, kept: Type::F32 };
        weights.insert((at, name), weight);
    }
    for (key, experts) in stacks {
        weights.insert(key.clone(), stack_experts(key.1, &experts, hyper.n_experts)?);
    }
    check_complete(&weights, hyper)?;
    let tables = std::mem::take(&mut hyper.tables).into_iter().map(|(name, values)| Weight {
        name: name.to_owned(),
        shape: vec![values.len() as u64],
        values: Values::Computed(values),
        kept: Type::F32,
    });
    Ok(weights.into_values().chain(tables).collect())
}

fn array(stored: &CheckpointTensor) -> Result<FloatArray, ConvertError> {
    let Tensor { name, parts, shape, .. } = stored.tensor;
    let dtype = parts.weight.dtype;
    if stored.tensor.quantisation.is_some() || !(is_float(dtype) || stored.scales.is_some()) {
        return Err(ConvertError::NotFloat { tensor: name.clone(), dtype: stored.tensor.dtype.clone() });
    }
    if shape.is_empty() || shape.contains(&0) {
        return Err(ConvertError::Shape {
            tensor: name.clone(),
            found: shape.clone(),
            expected: "at least one element",
        });
    }
    let (path, offset) = (Arc::clone(&stored.path), parts.weight.offset);
    Ok(FloatArray { path, offset, dtype, scales: stored.scales.cloned(), blocks: None })
}

/// Stacks the experts of a layer in the order of their numbers.
fn stack_experts(
    name: String,
    experts: &BTreeMap<u64, &CheckpointTensor>,
    n_experts: u64,
) -> Result<Weight, ConvertError> {
    let missing = || ConvertError::MissingTensor { tensor: name.clone() };
    let shape = &experts.values().next().ok_or_else(missing)?.tensor.shape;
    let mut arrays = Vec::new();
    for number in 0..n_experts {
        let expert = experts.get(&number).ok_or_else(missing)?;
        if expert.tensor.shape != *shape || shape.len() != 2 {
            return Err(ConvertError::Shape {
                tensor: expert.tensor.name.clone(),
                found: expert.tensor.shape.clone(),
                expected: "the shape of the other experts",
            });
        }
        arrays.push(array(expert)?);
    }
    let shape = [&[n_experts], shape.as_slice()].concat();
    let values = Values::Floats { arrays, order: RowOrder::Same, add: 0.0 };
    Ok(Weight { name, shape, values, kept: Type::F32 })
}

fn check_rows(tensor: &Tensor, rows: u64) -> Result<(), ConvertError> {
    if tensor.shape.first() == Some(&rows) && tensor.shape.len() <= 2 {
        return Ok(());
    }
    Err(ConvertError::Shape {
        tensor: tensor.name.clone(),
        found: tensor.shape.clone(),
        expected: "a row for each element of each head",
    })
}

/// Checks that the tensors that every family requires are present; no runtime opens a file without them.
fn check_complete(
    weights: &BTreeMap<(u64, String), Weight>,
    hyper: &HyperParameters,
) -> Result<(), ConvertError> {
    let missing = |tensor: String| Err(ConvertError::MissingTensor { tensor });
    let has = |at: u64, name: &str| weights.contains_key(&(at, name.to_owned()));
    match weights.get(&(0, "token_embd.weight".to_owned())) {
        None => return missing("token_embd.weight".to_owned()),
        Some(weight) => {
            if !matches!(weight.shape[..], [rows, cols] if rows == hyper.vocab_size && cols > 0) {
                return Err(ConvertError::Shape {
                    tensor: weight.name.clone(),
                    found: weight.shape.clone(),
                    expected: "`vocab_size` rows",
                });
            }
        }
    }
    let outputs = ["output_norm.weight", "output.weight"];
    for name in outputs.into_iter().take(if hyper.is_tied { 1 } else { 2 }) {
        if !has(u64::MAX, name) {
            return missing(name.to_owned());
        }
    }
    for layer in 0..hyper.n_layers {
        for names in [
            &["attn_norm"] as &[&str],
            &["attn_q", "attn_qkv"],
            &["attn_output"],
            &["ffn_norm"],
            &["ffn_up", "ffn_up_exps"],
            &["ffn_down", "ffn_down_exps"],
        ] {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            if !names.iter().any(|part| has(layer + 1, &name(part))) {
                return missing(name(names[0]));
            }
        }
    }
    Ok(())
}
