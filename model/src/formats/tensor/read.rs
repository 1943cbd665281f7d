//! Reads the tensors of a blob from its checked header: which arrays belong together, and whether they match.
//! Metadata says how a weight is quantised; without it, only an unambiguous shape is accepted.

use super::info::Tensor;
use super::part::{Part, Parts};
use crate::quant::{Kind, Quantisation};
use crate::safetensors::{Dtype, Header, TensorEntry};

/// The key of the only tensor in very old blobs. Its name is that of the layer.
const UNNAMED: &str = "data";

/// Why a blob's tensors are inconsistent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("tensor `{name}` has quantisation `{text}`, expected {}", Kind::list_blob_kinds("or"))]
    Kind { name: String, text: String },
    #[error("tensor `{name}` has group size `{text}`, which {kind} does not have")]
    GroupSize { name: String, kind: Kind, text: String },
    #[error("tensor `{name}` is quantised, but neither metadata nor its shapes tell how")]
    Ambiguous { name: String },
    #[error("tensor `{name}` of {kind} lacks `{companion}`")]
    Missing { name: String, kind: Kind, companion: String },
    #[error("tensor `{name}` of {kind} must not have `{companion}`")]
    Unexpected { name: String, kind: Kind, companion: String },
    #[error("tensor `{companion}` is {dtype} {found:?}, expected {expected_dtype} {expected:?}")]
    Companion {
        companion: String,
        dtype: Dtype,
        found: Vec<u64>,
        expected_dtype: &'static str,
        expected: Vec<u64>,
    },
    #[error(
        "tensor `{name}` has rows of {columns} elements, expected a multiple of its group size {group_size}"
    )]
    Columns { name: String, columns: u64, group_size: u32 },
}

/// Returns the tensors of a blob, ordered by the offset of their weights.
///
/// `layer_name` is the descriptor's `name`; only blobs with the key `data` need it. An `X.scale` next to a
/// U32 `X` makes `X` a quantised weight; any other `.scale` or `.bias` is a separate tensor, as in ordinary
/// checkpoints.
pub fn read_blob(layer_name: Option<&str>, header: &Header) -> Result<Vec<Tensor>, TensorError> {
    let is_codes = |entry: &TensorEntry| {
        entry.dtype == Dtype::U32 && header.get(&format!("{}.scale", entry.name)).is_some()
    };
    let is_companion = |entry: &TensorEntry| {
        let base =
            [".scale", ".bias", ".global_scale"].iter().find_map(|suffix| entry.name.strip_suffix(suffix));
        base.and_then(|base| header.get(base)).is_some_and(is_codes)
    };
    header
        .tensors()
        .iter()
        .filter(|entry| !is_companion(entry))
        .map(|entry| {
            let mut tensor = if is_codes(entry) { quantised(header, entry)? } else { plain(header, entry) };
            if let (UNNAMED, Some(layer_name)) = (entry.name.as_str(), layer_name) {
                tensor.name = layer_name.to_owned();
            }
            Ok(tensor)
        })
        .collect()
}

/// Returns the same entries without pairing companions: every array is a separate tensor.
pub fn read_plain(header: &Header) -> Vec<Tensor> {
    header.tensors().iter().map(|entry| plain(header, entry)).collect()
}

fn part(header: &Header, entry: &TensorEntry) -> Part {
    Part {
        dtype: entry.dtype,
        shape: entry.shape.clone(),
        offset: header.data_start() + entry.begin,
        size_bytes: entry.size_bytes(),
    }
}

fn plain(header: &Header, entry: &TensorEntry) -> Tensor {
    Tensor {
        name: entry.name.clone(),
        dtype: entry.dtype.to_string(),
        quantisation: None,
        shape: entry.shape.clone(),
        parts: Parts { weight: part(header, entry), scale: None, bias: None, global_scale: None },
    }
}

fn quantised(header: &Header, entry: &TensorEntry) -> Result<Tensor, TensorError> {
    let name = &entry.name;
    let companion = |suffix: &str| header.get(&format!("{name}.{suffix}"));
    let named = |suffix: &str| format!("{name}.{suffix}");
    let (scale, bias, global_scale) = (companion("scale"), companion("bias"), companion("global_scale"));

    let Quantisation { kind, group_size } = quantisation_of(header, entry, scale, bias)?;
    let scale =
        scale.ok_or_else(|| TensorError::Missing { name: name.clone(), kind, companion: named("scale") })?;
    match bias {
        None if kind.is_affine() => {
            return Err(TensorError::Missing { name: name.clone(), kind, companion: named("bias") });
        }
        Some(_) if !kind.is_affine() => {
            return Err(TensorError::Unexpected { name: name.clone(), kind, companion: named("bias") });
        }
        _ => {}
    }
    if global_scale.is_some() && kind != Kind::Nvfp4 {
        return Err(TensorError::Unexpected { name: name.clone(), kind, companion: named("global_scale") });
    }

    let columns = |words: u64| words.checked_mul(u64::from(32 / kind.bits()));
    let mut shape = entry.shape.clone();
    let last = shape.last_mut().ok_or_else(|| TensorError::Ambiguous { name: name.clone() })?;
    *last = columns(*last).ok_or_else(|| TensorError::Ambiguous { name: name.clone() })?;
    let last = *last;
    if !last.is_multiple_of(u64::from(group_size)) {
        return Err(TensorError::Columns { name: name.clone(), columns: last, group_size });
    }
    let mut groups = shape.clone();
    groups.pop();
    groups.push(last / u64::from(group_size));

    let scale_types = if kind.is_affine() { "BF16, F16 or F32" } else { "U8" };
    check_companion(scale, kind.allows_scale(scale.dtype), scale_types, &groups)?;
    if let Some(bias) = bias {
        check_companion(bias, bias.dtype == scale.dtype, "the type of the scale", &groups)?;
    }
    if let Some(global_scale) = global_scale {
        let is_scalar = global_scale.elements() == 1;
        let expected = if is_scalar { global_scale.shape.as_slice() } else { &[] };
        check_companion(global_scale, global_scale.dtype == Dtype::F32, "F32", expected)?;
    }

    Ok(Tensor {
        name: name.clone(),
        dtype: kind.to_string(),
        quantisation: Some(Quantisation { kind, group_size }),
        shape,
        parts: Parts {
            weight: part(header, entry),
            scale: Some(part(header, scale)),
            bias: bias.map(|bias| part(header, bias)),
            global_scale: global_scale.map(|global| part(header, global)),
        },
    })
}

fn check_companion(
    entry: &TensorEntry,
    dtype_fits: bool,
    expected_dtype: &'static str,
    expected: &[u64],
) -> Result<(), TensorError> {
    if dtype_fits && entry.shape == expected {
        return Ok(());
    }
    Err(TensorError::Companion {
        companion: entry.name.clone(),
        dtype: entry.dtype,
        found: entry.shape.clone(),
        expected_dtype,
        expected: expected.to_vec(),
    })
}

/// Returns the quantisation from the metadata, per tensor or for the whole blob. Without metadata, returns
/// the only one that matches the shapes.
fn quantisation_of(
    header: &Header,
    entry: &TensorEntry,
    scale: Option<&TensorEntry>,
    bias: Option<&TensorEntry>,
) -> Result<Quantisation, TensorError> {
    let name = &entry.name;
    let metadata = |key: &str| {
        let metadata = header.metadata();
        metadata.get(&format!("{name}.{key}")).or_else(|| metadata.get(key))
    };
    let ambiguous = || TensorError::Ambiguous { name: name.clone() };
    let words_per_group = || {
        let words = *entry.shape.last()?;
        let groups = *scale?.shape.last()?;
        (groups > 0 && words.is_multiple_of(groups)).then(|| words / groups)
    };

    let kind = match metadata("quant_type") {
        Some(text) => text
            .parse()
            .map_err(|_| TensorError::Kind { name: name.clone(), text: text.chars().take(40).collect() })?,
        None => match (words_per_group().ok_or_else(ambiguous)?, bias.is_some()) {
            (4, true) => Kind::Int4,
            (16, true) => Kind::Int8,
            (2, false) => Kind::Nvfp4,
            (4, false) => Kind::Mxfp4,
            (8, false) => Kind::Mxfp8,
            _ => return Err(ambiguous()),
        },
    };
    let group_size = match metadata("group_size") {
        Some(text) => {
            let group_size =
                text.trim().parse().ok().filter(|group_size| kind.allows_group_size(*group_size));
            let text = || text.chars().take(40).collect();
            group_size.ok_or_else(|| TensorError::GroupSize { name: name.clone(), kind, text: text() })?
        }
        None => {
            let elements = words_per_group().and_then(|words| words.checked_mul(u64::from(32 / kind.bits())));
            let group_size = elements.and_then(|elements| u32::try_from(elements).ok());
            group_size.filter(|group_size| kind.allows_group_size(*group_size)).ok_or_else(ambiguous)?
        }
    };
    Ok(Quantisation { kind, group_size })
}
