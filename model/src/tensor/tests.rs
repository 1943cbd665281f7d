//! Blobs in every spelling, blobs that contradict themselves, and blobs made at random.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::quant::Kind;
use crate::safetensors::{Header, byte_size, write_header};

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
    let dtype = proptest::sample::select(vec![U32, BF16, Dtype::U8, Dtype::F32, Dtype::F8_E4M3, Dtype::F4]);
    let dim = proptest::sample::select(vec![0u64, 1, 2, 4, 8, 16]);
    let shape = proptest::collection::vec(dim, 0..4);
    let tensors = proptest::collection::btree_map(name, (dtype, shape), 0..6);
    let kind = proptest::sample::select(vec!["int4", "int8", "nvfp4", "mxfp4", "mxfp8", "FP8", "int5"]);
    let group_size = proptest::sample::select(vec!["0", "16", "32", "64", "-1", ""]);
    let metadata = proptest::option::of((kind, proptest::option::of(group_size)));
    (tensors, metadata).prop_filter_map("whole bytes", |(tensors, metadata)| {
        let list: Vec<_> =
            tensors.iter().map(|(name, (dtype, shape))| (*name, *dtype, shape.as_slice())).collect();
        let len = list.iter().try_fold(0, |sum, (_, dtype, shape)| Some(sum + byte_size(*dtype, shape)?))?;
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
