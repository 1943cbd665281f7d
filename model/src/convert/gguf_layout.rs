//! Lays out a whole GGUF from metadata and weights: gives every tensor a type and an offset, and its bytes a
//! recipe.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::ConvertError;
use super::file_type::FileType;
use super::mix::{self, Choice};
use super::rows::{MAX_ROW_ELEMENTS, RowOrder, Rows};
use super::weights::{Values, Weight};
use crate::gguf::{Header, Metadata, NewTensor, Value};
use crate::quant::ggml::Type;

/// The version of the block layouts, `general.quantization_version`.
const QUANTISATION_VERSION: u32 = 2;
/// The most tensors that a notice names.
const NAMED: usize = 6;

/// A planned GGUF, whose bytes are produced from its segments.
pub(crate) struct ConvertedGguf {
    pub(crate) header: Header,
    pub(crate) segments: Vec<Segment>,
    pub(crate) notices: Vec<String>,
}

/// A run of bytes of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Segment {
    Bytes(Vec<u8>),
    /// A range of a source file, unchanged.
    Range {
        path: Arc<str>,
        offset: u64,
        length: u64,
    },
    Rows(Rows),
}

pub(super) fn lay_out(
    mut metadata: Metadata,
    weights: Vec<Weight>,
    file_type: FileType,
) -> Result<ConvertedGguf, ConvertError> {
    let model = model_of(&metadata, &weights);
    metadata.set("general.quantization_version", QUANTISATION_VERSION);
    metadata.set("general.file_type", file_type.id());

    let mut types = Vec::with_capacity(weights.len());
    let mut raised: BTreeMap<(Type, Type), Vec<&str>> = BTreeMap::new();
    for weight in &weights {
        let choice = match weight.values {
            Values::Floats { .. } => mix::choose(file_type, &model, &weight.name, &weight.shape),
            Values::Verbatim { .. } | Values::Computed(_) => Choice::Keep,
        };
        if let Choice::Fallback { requested, given } = choice {
            raised.entry((requested, given)).or_default().push(&weight.name);
        }
        types.push(choice.chosen_type().unwrap_or(weight.kept));
    }
    let notices =
        raised.iter().map(|((requested, given), names)| type_notice(*requested, *given, names)).collect();

    let tensors = weights.iter().zip(&types).map(|(weight, ty)| NewTensor {
        name: weight.name.clone(),
        dims: weight.shape.iter().rev().copied().collect(),
        ty: *ty,
    });
    let header = Header::new(metadata, tensors)?;
    let mut segments = vec![Segment::Bytes(header.to_bytes())];
    for (weight, entry) in weights.into_iter().zip(&header.tensors) {
        let length = entry.size_bytes().unwrap_or(0);
        push(&mut segments, weight, entry.ty)?;
        let padding = length.next_multiple_of(header.alignment) - length;
        if padding > 0 {
            segments.push(Segment::Bytes(vec![0; padding as usize]));
        }
    }
    Ok(ConvertedGguf { header, segments, notices })
}

/// Reads the properties of the model that the mixes depend on.
fn model_of(metadata: &Metadata, weights: &[Weight]) -> mix::Model {
    // Some keys are one number, or a list with one number per layer.
    let number = |key: &str| match metadata.architecture_value(key) {
        Some(Value::Array(all)) => all.iter().filter_map(|value| value.as_u64()).max(),
        value => value.and_then(Value::as_u64),
    };
    let n_heads = number("attention.head_count").unwrap_or(0);
    mix::Model {
        n_layers: number("block_count").unwrap_or(0),
        n_heads,
        n_kv_heads: number("attention.head_count_kv").unwrap_or(n_heads),
        n_experts: number("expert_count").unwrap_or(0),
        is_llama: metadata.architecture() == Some("llama"),
        has_output: weights.iter().any(|weight| weight.name == "output.weight"),
    }
}

fn type_notice(requested: Type, given: Type, names: &[&str]) -> String {
    format!(
        "{}: {} instead of {}, whose blocks of {} do not divide the rows",
        format_names(names),
        given.as_str(),
        requested.as_str(),
        requested.block_elements()
    )
}

/// Formats names for a notice: the first few, and the number of the rest.
pub(crate) fn format_names(names: &[&str]) -> String {
    let first: Vec<String> = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(NAMED) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

fn push(segments: &mut Vec<Segment>, weight: Weight, ty: Type) -> Result<(), ConvertError> {
    let Weight { name, shape, values, .. } = weight;
    match values {
        Values::Verbatim { path, offset, length } => segments.push(Segment::Range { path, offset, length }),
        Values::Computed(values) => {
            segments.push(Segment::Bytes(values.iter().flat_map(|value| value.to_le_bytes()).collect()));
        }
        Values::Floats { arrays, order, add } => {
            let elements: u64 = shape.iter().product();
            let each = elements / arrays.len() as u64;
            let is_same = |dtype| ty.dtype() == Some(dtype);
            if order == RowOrder::Same && add == 0.0 && arrays.iter().all(|array| is_same(array.dtype)) {
                segments.extend(arrays.into_iter().map(|array| Segment::Range {
                    length: each * array.dtype.bitsize() as u64 / 8,
                    path: array.path,
                    offset: array.offset,
                }));
                return Ok(());
            }
            // A permuted bias is laid out as a column: each of its elements belongs to a row of the
            // projection.
            let columns = match shape.as_slice() {
                [_] if order != RowOrder::Same => 1,
                shape => shape.last().copied().unwrap_or(1),
            };
            if columns > MAX_ROW_ELEMENTS {
                return Err(ConvertError::LongRow { tensor: name, elements: columns, max: MAX_ROW_ELEMENTS });
            }
            segments.push(Segment::Rows(Rows {
                name,
                arrays,
                rows_each: each / columns,
                columns,
                order,
                add,
                to: ty,
            }));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::Dtype;
    use crate::source::FloatArray;

    #[test]
    fn long_rows_are_refused() {
        let check = |shape: &[u64], dtype: Dtype, is_allowed: bool| {
            let array =
                FloatArray { path: "model.safetensors".into(), offset: 0, dtype, scales: None, blocks: None };
            let values = Values::Floats { arrays: vec![array], order: RowOrder::Same, add: 0.0 };
            let weight =
                Weight { name: "a.weight".to_owned(), shape: shape.to_vec(), values, kept: Type::F32 };
            let made = lay_out(Metadata::default(), vec![weight], "q8_0".parse().unwrap());
            let error = made.err().map(|error| error.to_string());
            assert_eq!(error.is_none(), is_allowed, "{shape:?} {dtype:?}: {error:?}");
            assert!(error.is_none_or(|error| error.contains("`a.weight` has rows of 16777248 elements")));
        };
        check(&[2, MAX_ROW_ELEMENTS], Dtype::BF16, true);
        check(&[2, MAX_ROW_ELEMENTS + 32], Dtype::BF16, false);
        check(&[MAX_ROW_ELEMENTS + 32], Dtype::BF16, false);
        // An array that is copied is not decoded.
        check(&[MAX_ROW_ELEMENTS + 32], Dtype::F32, true);
    }
}
