//! Pairs by name and by the conversion's names, and figures that can be computed by hand.

use super::*;
use crate::read_at::ReadAt;
use crate::safetensors::Dtype;
use crate::tensor::{Part, Parts};

fn tensor(name: &str, dtype: Dtype, shape: &[u64], offset: u64) -> TensorInfo {
    let size_bytes = shape.iter().product::<u64>() * dtype.bitsize() as u64 / 8;
    let weight = Part { dtype, shape: shape.to_vec(), offset, size_bytes };
    TensorInfo {
        name: name.to_owned(),
        dtype: dtype.to_string(),
        quantisation: None,
        shape: shape.to_vec(),
        digest: Digest::sha256(name.as_bytes()),
        offset,
        size_bytes,
        parts: Parts { weight, scale: None, bias: None, global_scale: None },
        scaling: None,
    }
}

/// As [`super::compare`], for tensors whose bytes are all in one blob.
fn compare(
    here: (&TensorInfo, &dyn ReadAt),
    there: (&TensorInfo, &dyn ReadAt),
    change: (Change, Change),
) -> Result<Difference, CompareError> {
    let blobs = |weight| Blobs { weight, scales: None };
    super::compare((here.0, blobs(here.1)), (there.0, blobs(there.1)), change)
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn bf16s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| ((value.to_bits() >> 16) as u16).to_le_bytes()).collect()
}

#[test]
fn tensors_find_their_partners() {
    let of = |names: &[&str]| -> Vec<TensorInfo> {
        names.iter().map(|name| tensor(name, Dtype::F32, &[2, 2], 0)).collect()
    };
    let checkpoint =
        of(&["model.norm.weight", "model.layers.0.post_attention_layernorm.weight", "extra", "both"]);
    let gguf = of(&["both", "output_norm.weight", "blk.0.ffn_norm.weight", "rope_freqs.weight"]);
    let names = |pairs: &[Pair]| -> Vec<(String, String)> {
        let name = |tensor: Option<&TensorInfo>| tensor.map(|t| t.name.clone()).unwrap_or_default();
        pairs.iter().map(|pair| (name(pair.here), name(pair.there))).collect()
    };
    let found = names(&pair_tensors(&checkpoint, &gguf, &Hints::default()));
    let expect = [
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight"),
        ("extra", ""),
        ("both", "both"),
        ("", "rope_freqs.weight"),
    ];
    assert_eq!(found, expect.map(|(here, there)| (here.to_owned(), there.to_owned())));
    let back = names(&pair_tensors(&gguf, &checkpoint, &Hints::default()));
    assert_eq!(back.len(), 5);
    for (here, there) in found {
        assert!(back.contains(&(there, here)));
    }
    let hints = Hints { gguf_architecture: Some("gemma3".to_owned()), head_dim: None };
    assert_eq!(pair_tensors(&checkpoint, &gguf, &hints)[0].change, (Change::None, Change::SubtractOne));
    assert!(pair_tensors(&gguf, &gguf, &hints).iter().all(Pair::is_same_blob));
    assert!(!pair_tensors(&gguf, &checkpoint, &hints)[1].is_same_blob());
}

#[test]
fn differences_are_measured() {
    let (here, there) = (tensor("a", Dtype::F32, &[2, 2], 0), tensor("b", Dtype::F32, &[2, 2], 4));
    let none = (Change::None, Change::None);
    let ours = f32s(&[3.0, 0.0, 0.0, 4.0]);
    let theirs = [&[9; 4][..], &f32s(&[3.0, 0.0, 1.0, 4.0])].concat();
    let found = compare((&here, &ours), (&there, &theirs), none).unwrap();
    assert_eq!((found.relative_error, found.largest, found.same_bytes), (Some(0.2), 1.0, false));
    let same = compare((&here, &ours), (&there, &[&[9; 4][..], &ours].concat()), none).unwrap();
    assert_eq!((same.relative_error, same.same_bytes), (Some(0.0), true));
    // Another type: the bytes differ, but the values are equal.
    let half = tensor("c", Dtype::BF16, &[2, 2], 0);
    let found = compare((&here, &ours), (&half, &bf16s(&[3.0, 0.0, 0.0, 4.0])), none).unwrap();
    assert_eq!((found.relative_error, found.same_bytes), (Some(0.0), false));
    let zeros = compare((&here, &f32s(&[0.0; 4])), (&there, &theirs), none).unwrap();
    assert_eq!(zeros.relative_error, None);
    let odd = compare((&here, &f32s(&[f32::NAN, 0.0, 1.0, f32::INFINITY])), (&there, &theirs), none).unwrap();
    assert_eq!((odd.not_finite, odd.relative_error), (2, Some(0.0)));
}

#[test]
fn a_conversion_is_undone() {
    let here = tensor("blk.0.attn_q.weight", Dtype::F32, &[8, 1], 0);
    let there = tensor("model.layers.0.self_attn.q_proj.weight", Dtype::F32, &[8, 1], 0);
    let checkpoint = f32s(&[0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]);
    let gguf = f32s(&[0.0, 2.0, 1.0, 3.0, 10.0, 12.0, 11.0, 13.0]);
    let found =
        compare((&here, &gguf), (&there, &checkpoint), (Change::ReorderHeads(4), Change::None)).unwrap();
    assert_eq!((found.relative_error, found.same_bytes), (Some(0.0), false));
    let norm = tensor("n", Dtype::F32, &[2], 0);
    let found = compare(
        (&norm, &f32s(&[1.5, 0.0])),
        (&norm, &f32s(&[0.5, -1.0])),
        (Change::SubtractOne, Change::None),
    );
    assert_eq!(found.unwrap().relative_error, Some(0.0));
}

#[test]
fn heads_without_rows_are_not_reordered() {
    let tensor = tensor("blk.0.attn_q.weight", Dtype::F32, &[2, 1], 0);
    let values = f32s(&[1.0, 2.0]);
    let changes = (Change::ReorderHeads(0), Change::None);
    let found = compare((&tensor, &values), (&tensor, &values), changes).unwrap();
    assert_eq!(found.relative_error, Some(0.0));
}

#[test]
fn long_tensors_go_by_rows() {
    let (rows, columns) = (3000, 1000);
    let here = tensor("a", Dtype::BF16, &[rows, columns], 0);
    let mut bytes = vec![0x3f; (rows * columns * 2) as usize];
    let ours = bytes.clone();
    let last = bytes.len() - 1;
    bytes[last] = 0xbf;
    let none = (Change::None, Change::None);
    let found = compare((&here, &ours), (&here, &bytes), none).unwrap();
    assert!(!found.same_bytes && found.largest > 1.0 && found.relative_error.unwrap() < 0.01);
}

#[test]
fn incomparable_tensors_are_errors() {
    let none = (Change::None, Change::None);
    let (here, there) = (tensor("a", Dtype::F32, &[2], 0), tensor("b", Dtype::F32, &[3], 0));
    let bytes = f32s(&[0.0; 3]);
    assert!(matches!(compare((&here, &bytes), (&there, &bytes), none), Err(CompareError::Shapes { .. })));
    assert!(matches!(compare((&there, &vec![0; 11]), (&there, &bytes), none), Err(CompareError::Read(_))));
    let scalar = tensor("s", Dtype::F32, &[], 0);
    assert_eq!(compare((&scalar, &bytes), (&scalar, &bytes), none).unwrap().relative_error, Some(0.0));
    let empty = tensor("e", Dtype::F32, &[0, 4], 0);
    assert!(compare((&empty, &Vec::new()), (&empty, &Vec::new()), none).unwrap().same_bytes);
    let mut wrong = tensor("w", Dtype::F32, &[2, 2], 0);
    wrong.parts.weight.size_bytes = u64::MAX;
    assert!(compare((&wrong, &bytes), (&wrong, &bytes), none).is_err());
    let wide = tensor("x", Dtype::U8, &[1, 1 << 40], 0);
    assert!(matches!(compare((&wide, &bytes), (&wide, &bytes), none), Err(CompareError::Row { .. })));
}

#[test]
fn blobs_are_weighed_once() {
    let layer = |seed: u8, size: u64| serde_json::json!({"mediaType": "x/y", "digest": Digest::sha256(&[seed]), "size": size});
    let manifest = |layers: &[serde_json::Value]| {
        let config = layer(0, 2);
        let json = serde_json::json!({"schemaVersion": 2, "config": config, "layers": layers});
        Manifest::parse(None, json.to_string().as_bytes()).unwrap()
    };
    let weighed = compare_sizes(
        &manifest(&[layer(1, 10), layer(1, 10), layer(2, 5)]),
        &manifest(&[layer(1, 10), layer(3, 7)]),
    );
    assert_eq!(weighed, SizeComparison { here: 15, there: 17, shared: 10 });
}
