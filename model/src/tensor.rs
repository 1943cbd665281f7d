//! Tensors as they lie in blobs: which bytes of which blob are a weight, its scales and its biases.
//! Reads every spelling of a tensor blob, and whole safetensors files, from their checked headers.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::quant::{self, DecodeError, Kind, Quantisation, Stored};
use crate::safetensors::{Dtype, Header, TensorEntry};

/// The key of the only tensor in very old blobs; its name is then the layer's.
const UNNAMED: &str = "data";

/// A run of bytes in a blob that is one stored array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub dtype: Dtype,
    /// The shape as stored, row-major: U32 words where `dtype` is U32 and the tensor quantised.
    pub shape: Vec<u64>,
    /// From the start of the blob. Nothing promises any alignment.
    pub offset: u64,
    pub size_bytes: u64,
}

/// Everything in a blob that makes up one tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    pub weight: Part,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bias: Option<Part>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub global_scale: Option<Part>,
}

impl Parts {
    pub fn iter(&self) -> impl Iterator<Item = &Part> {
        [Some(&self.weight), self.scale.as_ref(), self.bias.as_ref(), self.global_scale.as_ref()]
            .into_iter()
            .flatten()
    }
}

/// One tensor of a blob, companions folded in and their relations checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub name: String,
    /// `BF16`, `F32`, ..., or the quantisation: `int4`, `int8`, `nvfp4`, `mxfp4`, `mxfp8`.
    pub dtype: String,
    pub quantisation: Option<Quantisation>,
    /// Of the elements, row-major; for a quantised tensor not of the words that hold them.
    pub shape: Vec<u64>,
    pub parts: Parts,
}

/// A tensor and the blob it lies in: what the index keeps, and what `/lode/v1/tensors` lists.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: String,
    #[serde(rename = "quantization", default, skip_serializing_if = "Option::is_none")]
    pub quantisation: Option<Quantisation>,
    pub shape: Vec<u64>,
    pub digest: Digest,
    /// Where the weight begins in the blob.
    pub offset: u64,
    /// Of the weight and its companions together.
    pub size_bytes: u64,
    pub parts: Parts,
}

/// Why a blob's tensors do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    #[error("tensor `{name}` has quantisation `{text}`, expected int4, int8, nvfp4, mxfp4 or mxfp8")]
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

/// The tensors of a blob, ordered by where their weights lie.
///
/// `layer_name` is the descriptor's `name`; only blobs keyed `data` need it. A `X.scale` beside a U32 `X` makes `X` a
/// quantised weight; any other `.scale` or `.bias` is a tensor of its own, as it is in ordinary checkpoints.
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

/// The same entries without looking for companions: every array is a tensor of its own.
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

/// What the metadata says, per tensor or for the whole blob; where it says nothing, what the shapes leave as the only answer.
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

impl Tensor {
    /// How many elements it has.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Of the weight and its companions together.
    pub fn size_bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.size_bytes).sum()
    }

    /// The rows from `first` on, as a tensor of its own: how a large tensor is decoded piece by piece. All axes but the last
    /// count as rows. `None` where it has no such rows, or rows do not begin at whole bytes.
    pub fn rows(&self, first: u64, count: u64) -> Option<Tensor> {
        rows(&self.shape, &self.parts, first, count).map(|(shape, parts)| Tensor {
            shape,
            parts,
            ..self.clone()
        })
    }

    /// Decodes it from the bytes of its blob; see [`quant::decode_f32`] for the arithmetic. Row-major.
    pub fn decode_f32(&self, blob: &[u8]) -> Result<Vec<f32>, DecodeError> {
        quant::decode_f32(&self.stored(blob)?)
    }

    /// Its bytes, cut from those of its blob.
    pub fn stored<'a>(&self, blob: &'a [u8]) -> Result<Stored<'a>, DecodeError> {
        let cut = |name: &'static str, part: &Part| {
            let start = usize::try_from(part.offset).ok();
            let len = usize::try_from(part.size_bytes).ok();
            let range = start.zip(len).and_then(|(start, len)| Some(start..start.checked_add(len)?));
            range.and_then(|range| blob.get(range)).ok_or(DecodeError::Length {
                part: name,
                found: blob.len(),
                expected: usize::try_from(part.offset.saturating_add(part.size_bytes)).unwrap_or(usize::MAX),
            })
        };
        let optional = |name, part: &Option<Part>| part.as_ref().map(|part| cut(name, part)).transpose();
        stored(
            &self.parts,
            self.quantisation,
            cut("the blob, for the weight,", &self.parts.weight)?,
            optional("the blob, for the scale,", &self.parts.scale)?,
            optional("the blob, for the bias,", &self.parts.bias)?,
            optional("the blob, for the global scale,", &self.parts.global_scale)?,
        )
    }

    /// The tensor together with the blob it lies in.
    pub fn in_blob(self, digest: Digest) -> TensorInfo {
        TensorInfo {
            size_bytes: self.size_bytes(),
            name: self.name,
            dtype: self.dtype,
            quantisation: self.quantisation,
            shape: self.shape,
            digest,
            offset: self.parts.weight.offset,
            parts: self.parts,
        }
    }
}

impl TensorInfo {
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product, dim| product.saturating_mul(*dim))
    }

    /// As [`Tensor::rows`], for what is fetched by range. Fields of a description from elsewhere are checked as they are used.
    pub fn rows(&self, first: u64, count: u64) -> Option<TensorInfo> {
        let (shape, parts) = rows(&self.shape, &self.parts, first, count)?;
        let size_bytes = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.size_bytes));
        let offset = parts.weight.offset;
        Some(TensorInfo { shape, parts, offset, size_bytes, ..self.clone() })
    }

    /// Decodes it from the bytes of its parts, in the order of [`Parts::iter`].
    pub fn decode_f32(&self, parts: &[&[u8]]) -> Result<Vec<f32>, DecodeError> {
        let mut bytes = parts.iter().copied();
        let weight = bytes.next().unwrap_or_default();
        let mut next = |there: bool| if there { bytes.next() } else { None };
        let scale = next(self.parts.scale.is_some());
        let bias = next(self.parts.bias.is_some());
        let global = next(self.parts.global_scale.is_some());
        quant::decode_f32(&stored(&self.parts, self.quantisation, weight, scale, bias, global)?)
    }
}

fn stored<'a>(
    parts: &Parts,
    quantisation: Option<Quantisation>,
    weight: &'a [u8],
    scale: Option<&'a [u8]>,
    bias: Option<&'a [u8]>,
    global_scale: Option<&'a [u8]>,
) -> Result<Stored<'a>, DecodeError> {
    let four = |bytes: &[u8]| {
        let wrong = DecodeError::Length { part: "global scale", found: bytes.len(), expected: 4 };
        <[u8; 4]>::try_from(bytes).map(f32::from_le_bytes).map_err(|_| wrong)
    };
    Ok(Stored {
        dtype: parts.weight.dtype,
        quantisation,
        weight,
        scale: scale.unwrap_or_default(),
        scale_dtype: parts.scale.as_ref().map_or(Dtype::F32, |scale| scale.dtype),
        bias: bias.unwrap_or_default(),
        global_scale: global_scale.map(four).transpose()?,
    })
}

fn rows(shape: &[u64], parts: &Parts, first: u64, count: u64) -> Option<(Vec<u64>, Parts)> {
    let (columns, leading) = shape.split_last()?;
    let total = leading.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
    if first.checked_add(count)? > total {
        return None;
    }
    let cut = |part: &Part| {
        let row_bytes = part.size_bytes.checked_div(total)?;
        if row_bytes.checked_mul(total)? != part.size_bytes {
            return None;
        }
        Some(Part {
            dtype: part.dtype,
            shape: vec![count, *part.shape.last()?],
            offset: part.offset.checked_add(row_bytes.checked_mul(first)?)?,
            size_bytes: row_bytes.checked_mul(count)?,
        })
    };
    let optional = |part: &Option<Part>| match part {
        Some(part) => cut(part).map(Some),
        None => Some(None),
    };
    let parts = Parts {
        weight: cut(&parts.weight)?,
        scale: optional(&parts.scale)?,
        bias: optional(&parts.bias)?,
        global_scale: parts.global_scale.clone(),
    };
    Some((vec![count, *columns], parts))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::safetensors::{byte_size, write_header};

    fn blob(tensors: &[(&str, Dtype, &[u64])], metadata: &[(&str, &str)]) -> Header {
        let metadata: BTreeMap<String, String> =
            metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let bytes = write_header(tensors, &metadata);
        let len = tensors
            .iter()
            .map(|(_, dtype, shape)| shape.iter().product::<u64>() * dtype.bitsize() as u64 / 8)
            .sum();
        Header::parse(&bytes[8..], len).unwrap()
    }

    const U32: Dtype = Dtype::U32;
    const BF16: Dtype = Dtype::BF16;

    #[test]
    fn both_spellings() {
        let named = read_blob(Some("w"), &blob(&[("w", BF16, &[2, 3])], &[])).unwrap();
        let unnamed = read_blob(Some("w"), &blob(&[("data", BF16, &[2, 3])], &[])).unwrap();
        assert_eq!(named[0].name, "w");
        assert_eq!(unnamed[0].name, "w");
        assert_eq!((named[0].dtype.as_str(), named[0].size_bytes()), ("BF16", 12));
        let quantised = blob(
            &[("data.scale", BF16, &[2, 1]), ("data", U32, &[2, 8]), ("data.bias", BF16, &[2, 1])],
            &[("quant_type", "Q4"), ("group_size", "64")],
        );
        let tensors = read_blob(Some("w"), &quantised).unwrap();
        assert_eq!(tensors.len(), 1);
        assert_eq!((tensors[0].name.as_str(), tensors[0].dtype.as_str()), ("w", "int4"));
        assert_eq!(tensors[0].shape, [2, 64]);
    }

    #[test]
    fn packed_experts_of_two_kinds() {
        let header = blob(
            &[
                ("e.0.up", U32, &[4, 8]),
                ("e.0.up.bias", BF16, &[4, 1]),
                ("e.0.up.scale", BF16, &[4, 1]),
                ("e.down", U32, &[2, 4, 16]),
                ("e.down.bias", BF16, &[2, 4, 1]),
                ("e.down.scale", BF16, &[2, 4, 1]),
                ("router.scale", BF16, &[4]),
                ("attn.bias", BF16, &[4]),
            ],
            &[
                ("e.0.up.quant_type", "int4"),
                ("e.0.up.group_size", "64"),
                ("quant_type", "int8"),
                ("group_size", "64"),
            ],
        );
        let tensors = read_blob(Some("e"), &header).unwrap();
        let seen: Vec<_> =
            tensors.iter().map(|t| (t.name.as_str(), t.dtype.as_str(), t.shape.as_slice())).collect();
        assert_eq!(
            seen,
            [
                ("e.0.up", "int4", &[4u64, 64] as &[u64]),
                ("e.down", "int8", &[2, 4, 64]),
                ("router.scale", "BF16", &[4]),
                ("attn.bias", "BF16", &[4])
            ]
        );
    }

    #[test]
    fn inferred_from_shapes() {
        let affine = |words: u64| {
            blob(&[("w", U32, &[1, words]), ("w.bias", BF16, &[1, 2]), ("w.scale", BF16, &[1, 2])], &[])
        };
        let fp = |words: u64| blob(&[("w", U32, &[1, words]), ("w.scale", Dtype::U8, &[1, 2])], &[]);
        for (header, expect) in [
            (affine(8), Some((Kind::Int4, 32))),
            (affine(32), Some((Kind::Int8, 64))),
            (affine(16), None),
            (fp(4), Some((Kind::Nvfp4, 16))),
            (fp(8), Some((Kind::Mxfp4, 32))),
            (fp(16), Some((Kind::Mxfp8, 32))),
            (fp(3), None),
        ] {
            let found = read_blob(None, &header).map(|tensors| tensors[0].quantisation.unwrap());
            match expect {
                Some((kind, group_size)) => assert_eq!(found, Ok(Quantisation { kind, group_size })),
                None => assert_eq!(found, Err(TensorError::Ambiguous { name: "w".into() })),
            }
        }
    }

    #[test]
    fn relations_are_checked() {
        let int4 = [("quant_type", "int4"), ("group_size", "64")];
        let refused = |tensors: &[(&str, Dtype, &[u64])], metadata: &[(&str, &str)]| {
            read_blob(None, &blob(tensors, metadata)).unwrap_err().to_string()
        };
        let w = ("w", U32, &[2u64, 8] as &[u64]);
        let scale = ("w.scale", BF16, &[2u64, 1] as &[u64]);
        let bias = ("w.bias", BF16, &[2u64, 1] as &[u64]);
        assert_eq!(refused(&[w, scale], &int4), "tensor `w` of int4 lacks `w.bias`");
        assert_eq!(
            refused(&[w, scale, ("w.bias", BF16, &[1, 1])], &int4),
            "tensor `w.bias` is BF16 [1, 1], expected the type of the scale [2, 1]"
        );
        assert_eq!(
            refused(&[w, ("w.scale", Dtype::U8, &[2, 1]), bias], &int4),
            "tensor `w.scale` is U8 [2, 1], expected BF16, F16 or F32 [2, 1]"
        );
        assert_eq!(
            refused(&[w, scale, bias], &[("quant_type", "int3")]),
            "tensor `w` has quantisation `int3`, expected int4, int8, nvfp4, mxfp4 or mxfp8"
        );
        assert_eq!(
            refused(&[w, scale, bias], &[("quant_type", "int4"), ("group_size", "48")]),
            "tensor `w` has group size `48`, which int4 does not have"
        );
        assert_eq!(
            refused(&[("w", U32, &[2, 7]), scale, bias], &int4),
            "tensor `w` has rows of 56 elements, expected a multiple of its group size 64"
        );
        assert_eq!(
            refused(&[w, ("w.scale", Dtype::U8, &[2, 2]), bias], &[("quant_type", "mxfp4")]),
            "tensor `w` of mxfp4 must not have `w.bias`"
        );
        assert!(refused(&[("w", U32, &[]), ("w.scale", BF16, &[])], &int4).contains("`w`"));
    }

    /// Entries that are likely to look like parts of each other, over shapes that mostly do not fit.
    fn any_blob() -> impl Strategy<Value = Header> {
        let name = proptest::sample::select(vec![
            "w",
            "w.scale",
            "w.bias",
            "w.global_scale",
            "data",
            "data.scale",
            "w.scale.scale",
            "x",
        ]);
        let dtype =
            proptest::sample::select(vec![U32, BF16, Dtype::U8, Dtype::F32, Dtype::F8_E4M3, Dtype::F4]);
        let dim = proptest::sample::select(vec![0u64, 1, 2, 4, 8, 16]);
        let shape = proptest::collection::vec(dim, 0..4);
        let tensors = proptest::collection::btree_map(name, (dtype, shape), 0..6);
        let kind = proptest::sample::select(vec!["int4", "int8", "nvfp4", "mxfp4", "mxfp8", "FP8", "int5"]);
        let group_size = proptest::sample::select(vec!["0", "16", "32", "64", "-1", ""]);
        let metadata = proptest::option::of((kind, proptest::option::of(group_size)));
        (tensors, metadata).prop_filter_map("whole bytes", |(tensors, metadata)| {
            let list: Vec<_> =
                tensors.iter().map(|(name, (dtype, shape))| (*name, *dtype, shape.as_slice())).collect();
            let len =
                list.iter().try_fold(0, |sum, (_, dtype, shape)| Some(sum + byte_size(*dtype, shape)?))?;
            let mut said = BTreeMap::new();
            if let Some((kind, group_size)) = metadata {
                said.insert("quant_type".to_owned(), kind.to_owned());
                said.extend(group_size.map(|group_size| ("group_size".to_owned(), group_size.to_owned())));
            }
            Some(Header::parse(&write_header(&list, &said)[8..], len).expect("a header that was written"))
        })
    }

    proptest! {
        #[test]
        fn what_is_read_can_be_decoded(header in any_blob(), first in 0u64..20, count in 0u64..20) {
            let Ok(tensors) = read_blob(Some("layer"), &header) else { return Ok(()) };
            let end = header.tensors().last().map_or(0, |last| last.end);
            let blob = vec![0x55; (header.data_start() + end) as usize];
            for tensor in tensors {
                let decoded = tensor.decode_f32(&blob);
                if tensor.quantisation.is_some() {
                    prop_assert_eq!(decoded.as_ref().map(Vec::len), Ok(tensor.elements() as usize));
                }
                if let (Ok(all), Some(rows)) = (decoded, tensor.rows(first, count)) {
                    let columns = *tensor.shape.last().unwrap();
                    let range = (first * columns) as usize..((first + count) * columns) as usize;
                    let some = rows.decode_f32(&blob).unwrap();
                    prop_assert!(some.iter().zip(&all[range]).all(|(a, b)| a.to_bits() == b.to_bits()));
                }
            }
        }
    }

    #[test]
    fn rows_of_a_tensor() {
        let header = blob(&[("w", BF16, &[2, 3, 4])], &[]);
        let [tensor] = read_blob(None, &header).unwrap().try_into().unwrap();
        let rows = tensor.rows(4, 2).unwrap();
        assert_eq!(rows.shape, [2, 4]);
        assert_eq!(rows.parts.weight.offset, tensor.parts.weight.offset + 4 * 8);
        assert_eq!(rows.parts.weight.size_bytes, 16);
        assert_eq!(tensor.rows(5, 2), None);
        assert_eq!(tensor.rows(u64::MAX, 2), None);
        assert!(tensor.decode_f32(&[0; 10]).is_err());
    }
}
