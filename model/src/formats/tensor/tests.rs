//! Blobs in every form, contradictory blobs, and random blobs.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::digest::Digest;
use crate::quant::{Kind, Quantisation};
use crate::safetensors::{Dtype, Header, byte_size, write_header};

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
fn both_tensor_blob_forms_are_read() {
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

/// Entries that are likely to look like parts of each other, with shapes that mostly do not match.
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
        let mut entries = BTreeMap::new();
        if let Some((kind, group_size)) = metadata {
            entries.insert("quant_type".to_owned(), kind.to_owned());
            entries.extend(group_size.map(|group_size| ("group_size".to_owned(), group_size.to_owned())));
        }
        Some(Header::parse(&write_header(&list, &entries)[8..], len).expect("a header that was written"))
    })
}

proptest! {
    #[test]
    fn read_tensors_can_be_decoded(header in any_blob(), first in 0u64..20, count in 0u64..20) {
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

/// An FP8 weight and its scales, each in its own blob, as the database has them.
fn fp8(shape: &[u64], scale_shape: &[u64], config: &str) -> (Vec<TensorInfo>, Vec<u8>, Vec<u8>) {
    let count = |shape: &[u64]| shape.iter().product::<u64>();
    let codes: Vec<u8> = (0..count(shape)).map(|at| (at * 31 % 127 + at % 2 * 128) as u8).collect();
    let scales: Vec<u8> = (0..count(scale_shape)).flat_map(|at| (0.5 + at as f32).to_le_bytes()).collect();
    let array = |name: &str, dtype: Dtype, shape: &[u64], offset: u64| {
        let weight =
            Part { dtype, shape: shape.to_vec(), offset, size_bytes: byte_size(dtype, shape).unwrap() };
        let parts = Parts { weight, scale: None, bias: None, global_scale: None };
        let dtype = dtype.to_string();
        Tensor { name: name.to_owned(), dtype, quantisation: None, shape: shape.to_vec(), parts }
            .in_blob(Digest::sha256(name.as_bytes()))
    };
    let mut norm = vec![array("norm.weight", BF16, &[4], 0)];
    let mut first = vec![array("a.weight", Dtype::F8_E4M3, shape, 3)];
    let mut second = vec![array("a.weight_scale_inv", Dtype::F32, scale_shape, 5)];
    super::scaled::attach_scales(&mut [&mut norm, &mut second, &mut first], Some(config.as_bytes()));
    let all = [norm, second, first].concat();
    (all, [vec![9; 3], codes].concat(), [vec![9; 5], scales].concat())
}

#[test]
fn scales_elsewhere_belong_to_their_weight() {
    let config = r#"{"quantization_config":{"weight_block_size":[2,3]}}"#;
    for (shape, scale_shape, block) in [
        (&[5u64, 7][..], &[3u64, 3][..], [2, 3]),
        (&[5, 7], &[], [5, 7]),
        (&[5, 7], &[5, 1], [1, 7]),
        (&[2, 5, 7], &[2, 3, 3], [2, 3]),
    ] {
        let (all, codes, scales) = fp8(shape, scale_shape, config);
        let names: Vec<&str> = all.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["norm.weight", "a.weight"]);
        let tensor = &all[1];
        let elements: usize = shape.iter().product::<u64>() as usize;
        let scale_count = scale_shape.iter().product::<u64>() as usize;
        assert_eq!(tensor.size_bytes as usize, elements + 4 * scale_count);
        // As JSON in the API.
        let json = serde_json::to_value(tensor).unwrap();
        assert_eq!(json["scales"]["block"], serde_json::json!(block));
        let tensor: TensorInfo = serde_json::from_value(json).unwrap();
        let read = |tensor: &TensorInfo| {
            let runs = tensor.runs().unwrap();
            assert_eq!((runs.len(), runs[1].digest), (2, &Digest::sha256(b"a.weight_scale_inv")));
            let cut = |blob: &[u8], run: &ByteRange| {
                blob[run.offset as usize..][..run.size_bytes as usize].to_vec()
            };
            let (codes, scales) = (cut(&codes, &runs[0]), cut(&scales, &runs[1]));
            tensor.decode_f32(&[&codes, &scales]).unwrap()
        };
        // By the definition: a code times the scale at its block's row and column.
        let [rows, columns] = [shape[shape.len() - 2] as usize, 7];
        let (down, across) = (rows.div_ceil(block[0]), columns.div_ceil(block[1]));
        let expect: Vec<f32> = (0..elements)
            .map(|at| {
                let (row, column) = (at / columns, at % columns);
                let scale = (row / rows * down + row % rows / block[0]) * across + column / block[1];
                crate::quant::float::e4m3_to_f32(codes[3 + at]) * (0.5 + scale as f32)
            })
            .collect();
        assert_eq!(read(&tensor), expect);
        let all_rows = elements / columns;
        for first in 0..all_rows {
            for count in 1..=all_rows - first {
                let some = tensor.rows(first as u64, count as u64).unwrap();
                assert_eq!(read(&some), expect[first * columns..][..count * columns], "{first} {count}");
                let last = some.rows(count as u64 - 1, 1).unwrap();
                assert_eq!(read(&last), expect[(first + count - 1) * columns..][..columns]);
            }
        }
    }
    // Two files with the same names each use their own scales; a third file's scales are ambiguous.
    let (one, ..) = fp8(&[5, 7], &[3, 3], "{}");
    let other = |tensor: &TensorInfo| TensorInfo { digest: Digest::sha256(b"other"), ..tensor.clone() };
    let (mut first, mut second) = (one.clone(), one.iter().map(other).collect::<Vec<_>>());
    super::scaled::attach_scales(&mut [&mut first, &mut second], Some(config.as_bytes()));
    let scales: Vec<&Digest> =
        first.iter().chain(&second).filter_map(|tensor| Some(&tensor.scaling.as_ref()?.digest)).collect();
    assert_eq!(scales, [&Digest::sha256(b"a.weight_scale_inv"), &Digest::sha256(b"other")]);
    let mut apart: Vec<Vec<TensorInfo>> = one.iter().map(|tensor| vec![tensor.clone()]).collect();
    apart.push(vec![other(&one[1])]);
    super::scaled::attach_scales(&mut apart.iter_mut().collect::<Vec<_>>(), Some(config.as_bytes()));
    assert!(apart.iter().all(|tensors| tensors.len() == 1 && tensors[0].scaling.is_none()));
    // Arrays that do not match stay separate.
    for (scale_shape, config) in [
        (&[3u64, 2][..], config),
        (&[3, 3], "{}"),
        (&[3, 3], r#"{"quantization_config":{"weight_block_size":"all"}}"#),
    ] {
        let (all, ..) = fp8(&[5, 7], scale_shape, config);
        assert!(
            all.len() == 3 && all.iter().all(|tensor| tensor.scaling.is_none()),
            "{scale_shape:?} {config}"
        );
    }
    // An invalid description is an error, not a panic.
    let (all, ..) = fp8(&[5, 7], &[3, 3], config);
    for (key, value) in [("block", serde_json::json!([0, 0])), ("shape", serde_json::json!([9, 9]))] {
        let mut json = serde_json::to_value(&all[1]).unwrap();
        json["scales"][key] = value;
        let tensor: TensorInfo = serde_json::from_value(json).unwrap();
        assert_eq!(tensor.runs(), None);
        assert!(tensor.decode_f32(&[&[0; 35], &[0; 36]]).is_err());
    }
}
