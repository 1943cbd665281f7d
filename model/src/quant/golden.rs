//! The vectors of tests/fixtures/mlx-quant. What MLX stored must decode bit for bit, and our quantised bytes
//! must equal it.

use std::path::Path;

use super::*;
use crate::quant::affine::{Quantised, quantise};
use crate::safetensors::{Dtype, Header};
use crate::tensor;

const WEIGHT: &str = "model.layers.0.mlp.up_proj.weight";

/// A file of vectors and its parsed header.
pub(super) struct File {
    bytes: Vec<u8>,
    header: Header,
}

impl File {
    fn open(name: &str) -> File {
        File::open_in("mlx-quant", name)
    }

    pub(super) fn open_in(folder: &str, name: &str) -> File {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let bytes = std::fs::read(fixtures.join(folder).join(name)).expect(name);
        let header = Header::read(&bytes).expect(name);
        File { bytes, header }
    }

    pub(super) fn has(&self, tensor: &str) -> bool {
        self.header.get(tensor).is_some()
    }

    pub(super) fn bytes(&self, tensor: &str) -> &[u8] {
        let entry = self.header.get(tensor).expect(tensor);
        let at = |offset: u64| (self.header.data_start() + offset) as usize;
        &self.bytes[at(entry.begin)..at(entry.end)]
    }

    pub(super) fn f32(&self, tensor: &str) -> Vec<f32> {
        let entry = self.header.get(tensor).expect(tensor);
        let mut out = vec![0.0; entry.elements() as usize];
        float::decode_f32_into(entry.dtype, self.bytes(tensor), &mut out).expect(tensor);
        out
    }
}

pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn cases() -> impl Iterator<Item = String> {
    let kinds = ["int4-g32", "int4-g64", "int8-g32", "int8-g64", "nvfp4", "mxfp4", "mxfp8"];
    kinds.into_iter().flat_map(|kind| ["bf16", "f32"].map(|dtype| format!("{kind}-{dtype}")))
}

#[test]
fn blobs_decode_bit_for_bit() {
    for case in cases() {
        let blob = File::open(&format!("{case}.blob.safetensors"));
        let expect = File::open(&format!("{case}.expect.safetensors"));
        let tensors = tensor::read_blob(None, &blob.header).expect(&case);
        let [tensor] = tensors.as_slice() else { panic!("{case}: one tensor, got {tensors:?}") };
        assert_eq!(tensor.name, WEIGHT);
        assert_eq!(tensor.shape, [3, 128], "{case}");
        assert!(case.starts_with(&tensor.dtype), "{case}");
        let decoded = tensor.decode_f32(&blob.bytes).expect(&case);
        assert_eq!(bits(&decoded), bits(&expect.f32("dequant")), "{case}");

        let rows = tensor.rows(1, 2).expect("three rows");
        assert_eq!(bits(&rows.decode_f32(&blob.bytes).unwrap()), bits(&decoded[128..]), "{case}");
    }
}

#[test]
fn quantising_makes_the_same_bytes() {
    for case in cases() {
        let blob = File::open(&format!("{case}.blob.safetensors"));
        let expect = File::open(&format!("{case}.expect.safetensors"));
        let [tensor] = tensor::read_blob(None, &blob.header).unwrap().try_into().unwrap();
        let Quantisation { kind, group_size } = tensor.quantisation.unwrap();
        let dtype = expect.header.get("input").unwrap().dtype;
        let mut made = Quantised::default();
        quantise(kind, group_size as usize, dtype, &expect.f32("input"), &mut made).unwrap();
        assert_eq!(made.codes, blob.bytes(WEIGHT), "{case}");
        assert_eq!(made.scales, blob.bytes(&format!("{WEIGHT}.scale")), "{case}");
        let bias = format!("{WEIGHT}.bias");
        assert_eq!(made.biases, if kind.is_affine() { blob.bytes(&bias) } else { &[] }, "{case}");
    }
}

#[test]
fn random_codes_decode_bit_for_bit() {
    let file = File::open("random-codes.safetensors");
    for kind in [Kind::Nvfp4, Kind::Mxfp4, Kind::Mxfp8] {
        let decoded = decode_f32(&StoredTensor {
            dtype: Dtype::U32,
            quantisation: Some(Quantisation { kind, group_size: kind.default_group_size() }),
            weight: file.bytes(&format!("{kind}.w")),
            scale: file.bytes(&format!("{kind}.scale")),
            scale_dtype: Dtype::U8,
            bias: &[],
            global_scale: None,
        })
        .unwrap();
        assert_eq!(bits(&decoded), bits(&file.f32(&format!("{kind}.dequant"))), "{kind}");
    }
}

#[test]
fn code_tables() {
    let file = File::open("code-tables.safetensors");
    assert_eq!(bits(&float::E2M1), bits(&file.f32("e2m1")));
    for (code, expect) in file.f32("e4m3").into_iter().enumerate() {
        let value = float::e4m3_to_f32(code as u8);
        assert!(value.to_bits() == expect.to_bits() || (value.is_nan() && expect.is_nan()), "{code:#x}");
    }
}

#[test]
fn rounding_to_e4m3() {
    let file = File::open("to-e4m3.safetensors");
    for (x, code) in file.f32("x").into_iter().zip(file.bytes("code")) {
        assert_eq!(float::f32_to_e4m3(x), *code, "{x}");
    }
}
