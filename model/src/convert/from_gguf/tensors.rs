//! Lists the tensors of a checkpoint from those of a GGUF: names, types, and the reverse of stacking experts and
//! of reordering the rows of queries and keys.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::ConvertedTensor;
use super::hyper::Hyper;
use crate::convert::error::ConvertError;
use crate::convert::family::{CheckpointPlace, GgufName};
use crate::convert::float_type::FloatType;
use crate::convert::gguf_layout::{Segment, format_names};
use crate::convert::rows::{MAX_ROW_ELEMENTS, RowOrder, Rows};
use crate::gguf::Header;
use crate::quant::ggml::Type;
use crate::safetensors::Dtype;
use crate::source::{FloatArray, Source};
use crate::tensor::Tensor;

/// Tensors that config.json has as numbers.
const TABLES: [&str; 3] = ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
/// The most tensors of a checkpoint. The largest models have some 50,000, and a small file can declare very
/// many experts.
const MAX_TENSORS: usize = 262_144;

/// A tensor of the GGUF with its file.
struct Listed {
    path: Arc<str>,
    ty: Type,
    tensor: Tensor,
}

/// The tensors of a GGUF, over all of its files in order.
pub(super) struct List {
    tensors: Vec<Listed>,
    by_name: HashMap<String, usize>,
}

pub(super) struct Converted {
    pub(super) tensors: Vec<ConvertedTensor>,
    /// Which tensors were decoded.
    pub(super) notice: Option<String>,
}

impl List {
    pub(super) fn new(parts: &[(Arc<str>, Header)]) -> List {
        let mut tensors = Vec::new();
        for (path, header) in parts {
            for (entry, tensor) in header.tensors.iter().zip(header.to_tensors()) {
                tensors.push(Listed { path: Arc::clone(path), ty: entry.ty, tensor });
            }
        }
        let by_name = tensors.iter().enumerate().map(|(at, one)| (one.tensor.name.clone(), at)).collect();
        List { tensors, by_name }
    }

    pub(super) fn len(&self) -> usize {
        self.tensors.len()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    pub(super) fn shape(&self, name: &str) -> Option<&[u64]> {
        self.by_name.get(name).map(|at| self.tensors[*at].tensor.shape.as_slice())
    }

    /// Reads a table of floats; `None` if there is none.
    pub(super) fn table(
        &self,
        name: &str,
        elements: u64,
        source: &dyn Source,
    ) -> Result<Option<Vec<f32>>, ConvertError> {
        let Some(at) = self.by_name.get(name) else { return Ok(None) };
        let one = &self.tensors[*at];
        check_shape(&one.tensor, &[elements])?;
        let float = FloatType::of(one.ty).ok_or_else(|| not_float(&one.tensor))?;
        let mut values = vec![0.0; elements as usize];
        let failed = |source| ConvertError::Table { tensor: name.to_owned(), source };
        let mut reader = one.array(0, float.dtype()).open(source).map_err(failed)?;
        reader.read(0, &mut values).map_err(failed)?;
        match values.iter().find(|value| !value.is_finite() || **value <= 0.0) {
            Some(value) => {
                let found = value.to_string();
                Err(ConvertError::GgufKey { key: name.to_owned(), found, expected: "positive numbers" })
            }
            None => Ok(Some(values)),
        }
    }
}

impl Listed {
    /// The values from a byte offset of the tensor on.
    fn array(&self, skip_bytes: u64, dtype: Dtype) -> FloatArray {
        FloatArray {
            path: Arc::clone(&self.path),
            offset: self.tensor.parts.weight.offset + skip_bytes,
            dtype,
            scales: None,
            blocks: self.ty.is_quantised().then_some(self.ty),
        }
    }
}

/// Converts the tensors. Every tensor of the family has to be present, with the shape that the keys give.
pub(super) fn convert(
    list: &List,
    hyper: &Hyper,
    float: Option<FloatType>,
) -> Result<Converted, ConvertError> {
    check_complete(list, hyper)?;
    let mut tensors = Vec::new();
    let mut decoded: BTreeMap<Type, Vec<&str>> = BTreeMap::new();
    for one in &list.tensors {
        let name = one.tensor.name.as_str();
        if TABLES.contains(&name) {
            continue;
        }
        let unknown = || ConvertError::UnknownTensor {
            tensor: name.chars().take(64).collect(),
            architecture: hyper.family.architecture,
        };
        let place = hyper.family.checkpoint_place(name).ok_or_else(unknown)?;
        let parsed = GgufName::parse(name).ok_or_else(unknown)?;
        if parsed.layer.is_some_and(|layer| layer >= hyper.n_layers) {
            return Err(unknown());
        }
        check_shape(&one.tensor, &expected_shape(hyper, parsed).ok_or_else(unknown)?)?;
        let to = target_type(one, float)?;
        if one.ty.is_quantised() {
            decoded.entry(one.ty).or_default().push(name);
        }
        match place {
            CheckpointPlace::Tensor { name } => {
                tensors.push(converted(one, name, one.tensor.shape.clone(), 0, to, hyper)?);
            }
            CheckpointPlace::Experts { group, projection } => {
                let shape = one.tensor.shape[1..].to_vec();
                let each = one.tensor.parts.weight.size_bytes / hyper.n_experts;
                if hyper.n_experts > (MAX_TENSORS - tensors.len()) as u64 {
                    return Err(ConvertError::TooManyTensors { max: MAX_TENSORS });
                }
                for expert in 0..hyper.n_experts {
                    let name = format!("{group}.experts.{expert}.{projection}.weight");
                    tensors.push(converted(one, name, shape.clone(), expert * each, to, hyper)?);
                }
            }
        }
    }
    let mut names = HashSet::new();
    if let Some(twice) = tensors.iter().find(|tensor| !names.insert(tensor.name.as_str())) {
        let architecture = hyper.family.architecture;
        return Err(ConvertError::UnknownTensor { tensor: twice.name.clone(), architecture });
    }
    let to = float.unwrap_or(FloatType::BF16);
    let parts: Vec<String> = decoded
        .iter()
        .map(|(ty, names)| format!("{} of {ty} ({})", names.len(), format_names(names)))
        .collect();
    let notice = (!parts.is_empty()).then(|| {
        format!(
            "quantised tensors were decoded to {to}, which does not restore what quantisation lost: {}",
            parts.join("; ")
        )
    });
    Ok(Converted { tensors, notice })
}

fn target_type(one: &Listed, float: Option<FloatType>) -> Result<FloatType, ConvertError> {
    match (FloatType::of(one.ty), one.ty.is_quantised()) {
        (None, false) => Err(not_float(&one.tensor)),
        (own, _) => Ok(float.or(own).unwrap_or(FloatType::BF16)),
    }
}

fn not_float(tensor: &Tensor) -> ConvertError {
    ConvertError::NotFloat { tensor: tensor.name.clone(), dtype: tensor.dtype.clone() }
}

fn converted(
    one: &Listed,
    name: String,
    shape: Vec<u64>,
    skip_bytes: u64,
    to: FloatType,
    hyper: &Hyper,
) -> Result<ConvertedTensor, ConvertError> {
    let gguf_name = one.tensor.name.as_str();
    let head_dim = hyper.head_dim;
    let order = match hyper.family.rotates_pairs(gguf_name) {
        true => RowOrder::Halves { head_dim },
        false => RowOrder::Same,
    };
    let add = if hyper.family.is_gemma && gguf_name.ends_with("norm.weight") { -1.0 } else { 0.0 };
    let elements: u64 = shape.iter().product();
    let array = one.array(skip_bytes, one.tensor.parts.weight.dtype);
    let is_copied = FloatType::of(one.ty) == Some(to) && order == RowOrder::Same && add == 0.0;
    let segment = if is_copied {
        let length = elements * to.dtype().bitsize() as u64 / 8;
        Segment::Range { path: array.path, offset: array.offset, length }
    } else {
        // Each element of a permuted bias belongs to a row of the projection.
        let columns = match shape.as_slice() {
            [_] if order != RowOrder::Same => 1,
            shape => shape.last().copied().unwrap_or(1),
        };
        if columns > MAX_ROW_ELEMENTS {
            return Err(ConvertError::LongRow { tensor: name, elements: columns, max: MAX_ROW_ELEMENTS });
        }
        if !columns.is_multiple_of(u64::from(one.ty.block_elements())) {
            return Err(not_float(&one.tensor));
        }
        Segment::Rows(Rows {
            name: name.clone(),
            arrays: vec![array],
            rows_each: elements / columns,
            columns,
            order,
            add,
            to: to.ggml(),
        })
    };
    Ok(ConvertedTensor { name, shape, dtype: to.dtype(), segment })
}

fn check_shape(tensor: &Tensor, expected: &[u64]) -> Result<(), ConvertError> {
    if tensor.shape == expected {
        return Ok(());
    }
    let (tensor, found) = (tensor.name.clone(), tensor.shape.clone());
    Err(ConvertError::GgufShape { tensor, found, expected: expected.to_vec() })
}

/// Returns the row-major shape of a tensor; `None` for a part that no family has.
fn expected_shape(hyper: &Hyper, name: GgufName) -> Option<Vec<u64>> {
    let Hyper { width, head_dim, n_ff, n_experts, n_expert_ff, vocab_size, .. } = *hyper;
    // The factors have at most 32 and 17 bits.
    let (q, kv) = (hyper.n_heads * head_dim, hyper.n_kv_heads * head_dim);
    let shape = match name.part {
        "token_embd" | "output" => vec![vocab_size, width],
        "output_norm" | "attn_norm" | "ffn_norm" | "post_attention_norm" | "post_ffw_norm" => vec![width],
        "attn_q_norm" | "attn_k_norm" => vec![head_dim],
        "attn_q" => vec![q, width],
        "attn_k" | "attn_v" => vec![kv, width],
        "attn_qkv" => vec![q + 2 * kv, width],
        "attn_output" => vec![width, q],
        "ffn_up" if hyper.family.has_fused_gate => vec![2 * n_ff, width],
        "ffn_gate" | "ffn_up" => vec![n_ff, width],
        "ffn_down" => vec![width, n_ff],
        "ffn_gate_inp" => vec![n_experts, width],
        "ffn_gate_exps" | "ffn_up_exps" => vec![n_experts, n_expert_ff, width],
        "ffn_down_exps" => vec![n_experts, width, n_expert_ff],
        _ => return None,
    };
    match name.leaf {
        "weight" => Some(shape),
        _ => shape.first().map(|rows| vec![*rows]),
    }
}

/// Checks that the tensors that every model of the family has are present.
fn check_complete(list: &List, hyper: &Hyper) -> Result<(), ConvertError> {
    let require = |names: &[String]| match names.iter().any(|name| list.has(name)) {
        true => Ok(()),
        false => Err(ConvertError::MissingTensor { tensor: names[0].clone() }),
    };
    for name in ["token_embd.weight", "output_norm.weight"] {
        require(&[name.to_owned()])?;
    }
    let family = hyper.family;
    for layer in 0..hyper.n_layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let mut required = vec!["attn_norm", "attn_output", "ffn_norm"];
        if !list.has(&name("attn_qkv")) {
            required.extend(["attn_q", "attn_k", "attn_v"]);
        }
        match (family.experts_key.is_some(), family.has_fused_gate) {
            (true, _) => required.extend(["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"]),
            (false, true) => required.extend(["ffn_up", "ffn_down"]),
            (false, false) => required.extend(["ffn_gate", "ffn_up", "ffn_down"]),
        }
        if family.is_gemma {
            required.extend(["post_attention_norm", "post_ffw_norm"]);
        }
        for part in required {
            require(&[name(part)])?;
        }
    }
    Ok(())
}
