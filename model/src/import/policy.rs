//! Which tensors share a blob, and which are quantised to which format, by the rules of ollama's importer.
//! Names are kept as found; the experts of a layer are packed into one blob, each under its own name.

use std::collections::HashMap;

use super::checkpoint::{Checkpoint, IMAGE_INDEX};
use super::conversion::Conversion;
use super::error::ImportError;
use crate::quant::{Kind, Quantisation};
use crate::safetensors::Dtype;
use crate::tensor::Tensor;

/// Tensors with fewer elements are not quantised.
const MIN_ELEMENTS: u64 = 1024;

/// The tensor layers of an import, in the order of the files.
pub(super) struct TensorLayers {
    pub(super) layers: Vec<TensorLayer>,
    /// Tensors of a kind that is quantised, but whose shape does not allow it; they are stored as they are.
    pub(super) kept: Vec<String>,
    /// FP8 tensors that are not quantised again; they are decoded to BF16.
    pub(super) decoded: Vec<String>,
}

/// One blob: one tensor, or the packed experts of a layer.
pub(super) struct TensorLayer {
    pub(super) name: String,
    /// Sorted by name.
    pub(super) members: Vec<BlobMember>,
}

/// A tensor of a blob: its location (shard, then position there) and its new format.
pub(super) struct BlobMember {
    pub(super) shard: usize,
    pub(super) position: usize,
    pub(super) quantise: Option<Quantisation>,
}

impl TensorLayers {
    /// Whether the format of any tensor changes.
    pub(super) fn is_quantised(&self) -> bool {
        self.layers.iter().flat_map(|layer| &layer.members).any(|member| member.quantise.is_some())
    }
}

pub(super) fn plan_tensor_layers(
    checkpoint: &Checkpoint,
    conversion: Option<Conversion>,
) -> Result<TensorLayers, ImportError> {
    if conversion.is_some() {
        check_quantisable(checkpoint)?;
    }
    let kind = conversion.and_then(Conversion::kind);
    let dtype = |tensor: &Tensor| checkpoint.value_dtype(tensor);
    let target = |tensor: &Tensor| kind.and_then(|kind| target_format(tensor, dtype(tensor), kind));

    let is_unfit = |tensor: &Tensor| {
        let wanted = kind.and_then(|kind| preferred_format(tensor, dtype(tensor), kind));
        wanted.is_some_and(|quantisation| !is_divisible(tensor, quantisation))
    };
    let (mut kept, mut decoded) = (Vec::new(), Vec::new());
    for (_, tensor) in checkpoint.tensors() {
        if checkpoint.scales.contains_key(&tensor.name) {
            decoded.extend(target(tensor).is_none().then(|| tensor.name.clone()));
        } else if is_unfit(tensor) {
            kept.push(tensor.name.clone());
        }
    }

    // The experts of a layer are one blob if all are stored in the same format, otherwise one blob per
    // projection.
    let mut alike: HashMap<&str, (Option<Quantisation>, bool)> = HashMap::new();
    for (_, tensor) in checkpoint.tensors() {
        if let Some(expert) = expert(&tensor.name) {
            let seen = alike.entry(expert.group).or_insert((target(tensor), true));
            seen.1 &= seen.0 == target(tensor);
        }
    }

    let mut layers: Vec<TensorLayer> = Vec::new();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    for (shard, position, tensor) in checkpoint.shards.iter().enumerate().flat_map(|(shard, s)| {
        s.tensors.iter().enumerate().map(move |(position, tensor)| (shard, position, tensor))
    }) {
        let member = BlobMember { shard, position, quantise: target(tensor) };
        let Some(expert) = expert(&tensor.name) else {
            layers.push(TensorLayer { name: tensor.name.clone(), members: vec![member] });
            continue;
        };
        let name = match alike[expert.group] {
            (_, true) => expert.group.to_owned(),
            (_, false) => format!("{}.{}", expert.group, expert.projection),
        };
        let at = *by_name.entry(name.clone()).or_insert_with(|| {
            layers.push(TensorLayer { name, members: Vec::new() });
            layers.len() - 1
        });
        layers[at].members.push(member);
    }
    for layer in &mut layers {
        let name = |member: &BlobMember| &checkpoint.shards[member.shard].tensors[member.position].name;
        layer.members.sort_by(|a, b| name(a).cmp(name(b)));
    }
    Ok(TensorLayers { layers, kept, decoded })
}

/// `model.layers.1.mlp.experts.7.up_proj.weight`: the group `model.layers.1.mlp.experts` and the projection
/// `up_proj.weight`.
struct Expert<'a> {
    group: &'a str,
    projection: &'a str,
}

fn expert(name: &str) -> Option<Expert<'_>> {
    const MARK: &str = ".experts.";
    let at = name.find(MARK)?;
    let (number, projection) = name[at + MARK.len()..].split_once('.')?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| Expert { group: &name[..at + MARK.len() - 1], projection })
}

/// Returns the format of a tensor of these values when a model is quantised to `kind`; `None` if it is stored
/// as it is.
fn target_format(tensor: &Tensor, dtype: Dtype, kind: Kind) -> Option<Quantisation> {
    preferred_format(tensor, dtype, kind).filter(|quantisation| is_divisible(tensor, *quantisation))
}

/// Whether groups of elements divide a tensor's rows.
fn is_divisible(tensor: &Tensor, quantisation: Quantisation) -> bool {
    tensor.shape.last().is_some_and(|columns| columns.is_multiple_of(u64::from(quantisation.group_size)))
}

/// Returns the format for a tensor of this kind, whatever its shape.
fn preferred_format(tensor: &Tensor, dtype: Dtype, kind: Kind) -> Option<Quantisation> {
    let name = tensor.name.as_str();
    let is_float = matches!(dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32);
    let is_stacked = tensor.shape.len() == 3 && name.contains(".experts.") && !name.ends_with("bias");
    let is_matrix = tensor.shape.len() == 2 && name.ends_with(".weight");
    let kept =
        ["embed", "norm", "ln_", "vision", "visual", "audio_tower"].iter().any(|part| name.contains(part));
    let is_gate = [
        ".mlp.gate.weight",
        ".mixer.gate.weight",
        ".block_sparse_moe.gate.weight",
        ".shared_expert_gate.weight",
        ".router.proj.weight",
    ]
    .iter()
    .any(|gate| name.ends_with(gate));
    if !is_float || !(is_matrix || is_stacked) || kept || is_gate || tensor.elements() < MIN_ELEMENTS {
        return None;
    }
    let has = |parts: &[&str]| name.split('.').any(|part| parts.contains(&part));
    let is_small_float = matches!(kind, Kind::Nvfp4 | Kind::Mxfp4);
    // Experts are most of such a model, and 4-bit floats represent them well enough.
    let is_promoted =
        has(&["k_proj", "v_proj", "down_proj"]) && !(is_small_float && name.contains(".experts."));
    let kind = match kind {
        kind if !is_promoted && !has(&["lm_head"]) => kind,
        kind if kind.is_affine() => Kind::Int8,
        _ => Kind::Mxfp8,
    };
    Some(Quantisation { kind, group_size: kind.default_group_size() })
}

/// Refuses to quantise image models, and weights that are already quantised, whose codes would be mistaken
/// for numbers.
pub(super) fn check_quantisable(checkpoint: &Checkpoint) -> Result<(), ImportError> {
    if checkpoint.is_image_model {
        return Err(ImportError::ImageModel { path: IMAGE_INDEX });
    }
    const MARKS: [&str; 8] = [
        ".scales",
        ".weight_scale",
        ".weight_packed",
        "_scale_inv",
        ".qweight",
        ".weight_scale_2",
        ".weight_global_scale",
        ".weight_zero_point",
    ];
    for (shard, tensor) in checkpoint.tensors() {
        let dtype = tensor.parts.weight.dtype;
        let is_decoded = checkpoint.scales.contains_key(&tensor.name);
        let small = !is_decoded && dtype.bitsize() <= 8 && dtype.to_string().starts_with('F');
        if tensor.quantisation.is_some() || small || MARKS.iter().any(|mark| tensor.name.ends_with(mark)) {
            let path = checkpoint.shards[shard].path.to_string();
            return Err(ImportError::AlreadyQuantised { path, tensor: tensor.name.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Part, Parts};

    fn tensor(name: &str, shape: &[u64]) -> Tensor {
        let weight = Part { dtype: Dtype::BF16, shape: shape.to_vec(), offset: 0, size_bytes: 0 };
        Tensor {
            name: name.to_owned(),
            dtype: "BF16".to_owned(),
            quantisation: None,
            shape: shape.to_vec(),
            parts: Parts { weight, scale: None, bias: None, global_scale: None },
        }
    }

    #[test]
    fn target_formats_by_tensor() {
        let int4 = Some(Kind::Int4);
        let int8 = Some(Kind::Int8);
        for (name, shape, to_int4, to_int8) in [
            ("model.layers.0.self_attn.q_proj.weight", &[64u64, 64] as &[u64], int4, int8),
            ("model.layers.0.self_attn.o_proj.weight", &[64, 64], int4, int8),
            ("model.layers.0.mlp.gate_proj.weight", &[64, 64], int4, int8),
            ("model.layers.0.mlp.up_proj.weight", &[64, 64], int4, int8),
            ("model.layers.0.self_attn.k_proj.weight", &[64, 64], int8, int8),
            ("model.layers.0.self_attn.v_proj.weight", &[64, 64], int8, int8),
            ("model.layers.0.mlp.down_proj.weight", &[64, 64], int8, int8),
            ("lm_head.weight", &[512, 64], int8, int8),
            ("model.layers.0.self_attn.qkv_proj.weight", &[64, 64], int4, int8),
            ("model.layers.1.mlp.experts.3.up_proj.weight", &[64, 64], int4, int8),
            ("model.layers.1.mlp.experts.3.down_proj.weight", &[64, 64], int8, int8),
            ("model.layers.1.mlp.experts.gate_up_proj", &[4, 64, 64], int4, int8),
            ("model.layers.1.mlp.experts.gate_up_proj_bias", &[4, 64, 64], None, None),
            ("model.embed_tokens.weight", &[512, 64], None, None),
            ("model.norm.weight", &[2048], None, None),
            ("model.layers.0.input_layernorm.weight", &[64, 64], None, None),
            ("transformer.h.0.ln_1.weight", &[64, 64], None, None),
            ("model.layers.0.self_attn.q_proj.bias", &[64, 64], None, None),
            ("model.layers.0.mlp.gate.weight", &[64, 64], None, None),
            ("model.layers.0.block_sparse_moe.gate.weight", &[64, 64], None, None),
            ("model.layers.0.mlp.shared_expert_gate.weight", &[64, 64], None, None),
            ("vision_model.layers.0.mlp.up_proj.weight", &[64, 64], None, None),
            ("model.layers.0.small.weight", &[15, 64], None, None),
            ("model.layers.0.odd.weight", &[64, 96], None, None),
            ("model.layers.0.conv.weight", &[64, 64, 64], None, None),
        ] {
            for (requested, expect) in [(Kind::Int4, to_int4), (Kind::Int8, to_int8)] {
                let found = target_format(&tensor(name, shape), Dtype::BF16, requested);
                assert_eq!(found.map(|q| q.kind), expect, "{name} to {requested}");
                assert!(found.is_none_or(|q| q.group_size == 64));
            }
        }
        let wide = tensor("model.layers.0.mlp.up_proj.weight", &[64, 64]);
        assert_eq!(target_format(&wide, Dtype::F64, Kind::Int8), None);
    }

    #[test]
    fn float_formats_use_eight_bit_floats() {
        let (nvfp4, mxfp4, mxfp8) = (Some(Kind::Nvfp4), Some(Kind::Mxfp4), Some(Kind::Mxfp8));
        for (name, shape, to_nvfp4, to_mxfp4) in [
            ("model.layers.0.self_attn.q_proj.weight", &[64u64, 64] as &[u64], nvfp4, mxfp4),
            ("model.layers.0.self_attn.v_proj.weight", &[64, 64], mxfp8, mxfp8),
            ("model.layers.0.mlp.down_proj.weight", &[64, 64], mxfp8, mxfp8),
            ("lm_head.weight", &[512, 64], mxfp8, mxfp8),
            ("model.layers.1.mlp.experts.3.down_proj.weight", &[64, 64], nvfp4, mxfp4),
            ("model.layers.1.mlp.experts.down_proj", &[4, 64, 64], nvfp4, mxfp4),
            ("model.layers.0.self_attn.q_proj.weight", &[64, 48], nvfp4, None),
            ("model.layers.0.self_attn.k_proj.weight", &[64, 48], None, None),
            ("model.embed_tokens.weight", &[512, 64], None, None),
        ] {
            for (requested, expect) in [(Kind::Nvfp4, to_nvfp4), (Kind::Mxfp4, to_mxfp4)] {
                let found = target_format(&tensor(name, shape), Dtype::BF16, requested);
                assert_eq!(found.map(|q| q.kind), expect, "{name} to {requested}");
                assert!(found.is_none_or(|q| q.group_size == q.kind.default_group_size()));
            }
        }
    }

    #[test]
    fn expert_names() {
        let split = |name| expert(name).map(|e| (e.group, e.projection));
        assert_eq!(
            split("model.layers.1.mlp.experts.17.up_proj.weight"),
            Some(("model.layers.1.mlp.experts", "up_proj.weight"))
        );
        assert_eq!(
            split("model.layers.0.block_sparse_moe.experts.0.w1.weight"),
            Some(("model.layers.0.block_sparse_moe.experts", "w1.weight"))
        );
        assert_eq!(split("model.layers.1.mlp.experts.down_proj"), None);
        assert_eq!(split("model.layers.1.mlp.shared_experts.down_proj.weight"), None);
        assert_eq!(split("model.layers.1.mlp.experts.3"), None);
    }
}
