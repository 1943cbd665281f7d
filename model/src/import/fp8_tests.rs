//! FP8 checkpoints: stored as they are, and compared with their float twins where they are quantised or
//! converted. The decoding of codes and scales is written here independently, by the definition of E4M3.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use half::bf16;

use super::tests::{CONFIG, Folder, import, refused, small};
use super::*;
use crate::convert::FileType;
use crate::media_type;
use crate::quant::Kind;
use crate::safetensors::{Dtype, write_header};

/// A sign bit, four bits of exponent with a bias of 7, and three bits of fraction.
fn e4m3(code: u8) -> f32 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(-9),
        _ => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// Codes without the NaN codes.
pub(crate) fn codes(rows: usize, columns: usize) -> Vec<u8> {
    (0..rows * columns).map(|at| (at * 31 % 127 + (at / 3 % 2) * 128) as u8).collect()
}

/// One scale per block, with few enough bits to be exact in BF16.
pub(crate) fn scales(count: usize) -> Vec<f32> {
    (0..count).map(|at| bf16::from_f32(0.001 + (at * 7 % 11) as f32 * 0.0004).to_f32()).collect()
}

/// Decodes codes with their scales.
pub(crate) fn values(codes: &[u8], columns: usize, scales: &[f32], block: [usize; 2]) -> Vec<f32> {
    let across = columns.div_ceil(block[1]);
    let scale = |at: usize| scales[at / columns / block[0] * across + at % columns / block[1]];
    codes.iter().enumerate().map(|(at, code)| e4m3(*code) * scale(at)).collect()
}

pub(crate) type Array = (String, Dtype, Vec<u64>, Vec<u8>);

pub(crate) fn array(name: &str, dtype: Dtype, shape: &[u64], values: &[f32]) -> Array {
    let bytes = values.iter().flat_map(|x| match dtype {
        Dtype::BF16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    });
    (name.to_owned(), dtype, shape.to_vec(), bytes.collect())
}

pub(crate) fn file(arrays: &[Array]) -> Vec<u8> {
    let entries: Vec<(&str, Dtype, &[u64])> =
        arrays.iter().map(|(name, dtype, shape, _)| (name.as_str(), *dtype, shape.as_slice())).collect();
    let mut bytes = write_header(&entries, &BTreeMap::new());
    arrays.iter().for_each(|(.., data)| bytes.extend(data));
    bytes
}

const SAID: &str = r#","quantization_config":{"quant_method":"fp8","weight_block_size":[128,128]}}"#;

fn config() -> String {
    format!("{}{SAID}", CONFIG.trim_end_matches('}'))
}

/// Each weight, its scales, and the weight of the twin: blocks cut short at both edges, one scale per row,
/// one scale alone.
fn weights() -> Vec<(Array, Array, Array)> {
    let of = |name: &str, [rows, columns]: [usize; 2], end: &str, dtype, shape: &[u64], block: [usize; 2]| {
        let (codes, weight) = (codes(rows, columns), [rows as u64, columns as u64]);
        let scales = scales(rows.div_ceil(block[0]) * columns.div_ceil(block[1]));
        let twin = array(name, Dtype::BF16, &weight, &values(&codes, columns, &scales, block));
        let scales = array(&format!("{name}{end}"), dtype, shape, &scales);
        ((name.to_owned(), Dtype::F8_E4M3, weight.to_vec(), codes), scales, twin)
    };
    let layer = "model.layers.0";
    let name = |part: &str| format!("{layer}.{part}.weight");
    vec![
        of(&name("self_attn.q_proj"), [200, 320], "_scale_inv", Dtype::F32, &[2, 3], [128, 128]),
        of(&name("self_attn.v_proj"), [64, 640], "_scale_inv", Dtype::BF16, &[1, 5], [128, 128]),
        of(&name("mlp.up_proj"), [130, 64], "_scale", Dtype::BF16, &[130, 1], [1, 64]),
        of(&name("mlp.down_proj"), [64, 128], "_scale", Dtype::F32, &[], [64, 128]),
        of(&name("mlp.experts.0.gate_proj"), [128, 128], "_scale", Dtype::F32, &[1], [128, 128]),
        // Not quantised: a router, and a weight whose rows no group divides.
        of(&name("mlp.gate"), [16, 64], "_scale_inv", Dtype::F32, &[1, 1], [128, 128]),
        of(&name("self_attn.o_proj"), [64, 100], "_scale_inv", Dtype::F32, &[1, 1], [128, 128]),
    ]
}

/// An FP8 checkpoint in two files, with the scales in the second, and its twin in one file.
fn folders() -> (Folder, Folder) {
    let norm = array("model.norm.weight", Dtype::BF16, &[64], &[0.5; 64]);
    let (mut first, mut second, mut twin) = (Vec::new(), vec![norm.clone()], vec![norm]);
    for (weight, scales, float) in weights() {
        second.push(array(&weight.0.replace(".weight", ".input_scale"), Dtype::F32, &[1], &[1.0]));
        first.push(weight);
        second.push(scales);
        twin.push(float);
    }
    second.push(array("model.layers.0.self_attn.k_scale", Dtype::F32, &[1], &[1.0]));
    let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let places: BTreeMap<&str, &str> = (first.iter().map(|(name, ..)| (name.as_str(), one)))
        .chain(second.iter().map(|(name, ..)| (name.as_str(), two)))
        .collect();
    let index = serde_json::json!({"metadata": {}, "weight_map": places}).to_string();
    let fp8 = Folder::default()
        .with("config.json", config())
        .with("hf_quant_config.json", "{}")
        .with("model.safetensors.index.json", index)
        .with(one, file(&first))
        .with(two, file(&second));
    (fp8, Folder::default().with("config.json", CONFIG).with("model.safetensors", file(&twin)))
}

#[test]
fn unquantised_fp8_is_restored() {
    let (fp8, _) = folders();
    let imported = import(&fp8, None);
    assert_eq!(imported.files(), fp8.0);
    let notices = imported.notices();
    assert!(!notices.contains("eight-bit"), "{notices}");
    assert_eq!(imported.plan.config.file_type, "F8_E4M3");
    assert!(!import(&small(), None).notices().contains("F8"));
}

#[test]
fn fp8_quantises_like_its_float_twin() {
    let (fp8, twin) = folders();
    for quantize in [
        Conversion::Blobs(Kind::Int4),
        Conversion::Blobs(Kind::Int8),
        Conversion::Blobs(Kind::Nvfp4),
        Conversion::Blobs(Kind::Mxfp4),
        Conversion::Blobs(Kind::Mxfp8),
    ] {
        let (ours, theirs) = (import(&fp8, Some(quantize)), import(&twin, Some(quantize)));
        let blobs = |imported: &tests::Imported| -> BTreeMap<String, Vec<u8>> {
            let layers = imported.manifest.layers.iter();
            let tensors = layers.filter(|layer| layer.media_type == media_type::OLLAMA_TENSOR);
            tensors
                .map(|layer| (layer.name.clone().unwrap(), imported.blob(&layer.digest).to_vec()))
                .collect()
        };
        assert!(blobs(&ours) == blobs(&theirs), "{quantize}");
        assert_eq!((ours.plan.tensors, ours.plan.parameters), (theirs.plan.tensors, theirs.plan.parameters));
        assert_eq!(ours.plan.config.file_type, quantize.to_string());

        // The files of the result no longer mention FP8.
        let files = ours.files();
        let config: serde_json::Value = serde_json::from_slice(&files["config.json"]).unwrap();
        let expect: serde_json::Value = serde_json::from_str(CONFIG).unwrap();
        assert_eq!(config, expect);
        let names: Vec<&str> = files.keys().map(String::as_str).collect();
        let (one, two) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
        assert_eq!(names, ["config.json", one, two, "model.safetensors.index.json"]);
        let index: serde_json::Value =
            serde_json::from_slice(&files["model.safetensors.index.json"]).unwrap();
        let map = index["weight_map"].as_object().unwrap();
        assert!(
            !map.keys().any(|key| key.ends_with("_scale_inv") || key.ends_with("weight_scale")),
            "{map:?}"
        );
        let again = import(&Folder(files), None);
        assert!(blobs(&again) == blobs(&theirs), "{quantize}");
        let notices = ours.notices();
        let expect =
            "`model.layers.0.mlp.gate.weight`, `model.layers.0.self_attn.o_proj.weight`: decoded to BF16";
        assert!(notices.contains(expect) && notices.contains("assembled"), "{notices}");
        assert!(
            notices.contains("up_proj.input_scale`") && notices.contains("left out, because activations"),
            "{notices}"
        );
    }
}

#[test]
fn a_stack_of_experts_has_a_grid_for_each() {
    let (codes, scales) = (codes(3 * 96, 160), scales(3 * 2));
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    let experts = codes.chunks(96 * 160).zip(scales.chunks(2));
    let floats: Vec<f32> = experts.flat_map(|(codes, some)| values(codes, 160, some, [128, 128])).collect();
    let weight = (name.to_owned(), Dtype::F8_E4M3, vec![3, 96, 160], codes);
    let scales = array(&format!("{name}_scale_inv"), Dtype::F32, &[3, 1, 2], &scales);
    let fp8 = Folder::default().with("model.safetensors", file(&[weight, scales]));
    let twin = array(name, Dtype::BF16, &[3, 96, 160], &floats);
    let twin = Folder::default().with("model.safetensors", file(&[twin]));
    let made = |folder: &Folder| {
        import(folder, Some(Conversion::Blobs(Kind::Mxfp8))).files()["model.safetensors"].clone()
    };
    assert!(made(&fp8) == made(&twin));
}

/// A folder with one weight, its scales and a config.
fn one(weight: Array, scales: Option<Array>, config: &str) -> Folder {
    let arrays: Vec<Array> = [Some(weight), scales].into_iter().flatten().collect();
    Folder::default().with("config.json", config).with("a.safetensors", file(&arrays))
}

#[test]
fn unsupported_fp8_weights_are_named() {
    let weight = |dtype| ("a.weight".to_owned(), dtype, vec![256, 300], codes(256, 300));
    let scales = |name: &str, shape: &[u64]| {
        array(name, Dtype::F32, shape, &scales(shape.iter().product::<u64>() as usize))
    };
    let config = |text: &str| format!("{{\"quantization_config\":{text}}}");
    let fitting = || Some(scales("a.weight_scale_inv", &[2, 3]));
    let e4m3 = Dtype::F8_E4M3;
    let words = ("a.weight_scale".to_owned(), Dtype::I32, vec![2, 3], vec![0; 24]);
    for (folder, expect) in [
        (
            one(weight(e4m3), None, "{}"),
            "without its scales: neither `a.weight_scale_inv` nor `a.weight_scale`",
        ),
        (one(weight(Dtype::F8_E5M2), fitting(), "{}"), "of F8_E5M2, which is not decoded"),
        (
            one(weight(e4m3), Some(scales("a.weight_scale_inv", &[3, 2])), "{}"),
            "shape [256, 300] does not go with scales `a.weight_scale_inv` of [3, 2]: expected one, one a row, or one for each \
             block of 128 by 128",
        ),
        (one(weight(e4m3), fitting(), &config(r#"{"weight_block_size":[64,64]}"#)), "block of 64 by 64"),
        (
            one(weight(e4m3), fitting(), &config(r#"{"weight_block_size":[0,128]}"#)),
            "scaled weights as [0,128]",
        ),
        (
            one(weight(e4m3), fitting(), &config(r#"{"weight_block_size":"all"}"#)),
            "scaled weights as \"all\"",
        ),
        (
            one(
                weight(e4m3),
                fitting(),
                &config(
                    r#"{"config_groups":{"a":{"weights":{"block_structure":[128,128]}},"b":{"weights":{"block_structure":"64x128"}}}}"#,
                ),
            ),
            "scaled weights as \"64x128\"",
        ),
        (
            one(weight(e4m3), fitting(), &config(r#"{"transform_config":{"config_groups":{"R1":{}}}}"#)),
            "`transform_config`",
        ),
        (one(weight(e4m3), Some(words), "{}"), "whose scales `a.weight_scale` are I32"),
        (one(weight(Dtype::U8), fitting(), "{}"), "`a.weight_scale_inv`, which is quantised already"),
    ] {
        for quantize in [Conversion::Blobs(Kind::Mxfp8), Conversion::Gguf(Some(FileType::Q8_0))] {
            let message = refused(&folder, Some(quantize));
            assert!(message.contains(expect), "{message}\n  wanted {expect}");
        }
        // It can still be stored as it is.
        let stored = import(&folder, None);
        assert_eq!(stored.files(), folder.0);
    }
    // Any block size works if config.json gives it.
    let small = config(r#"{"config_groups":{"a":{"weights":{"block_structure":"64x100"}}}}"#);
    import(
        &one(weight(e4m3), Some(scales("a.weight_scale", &[4, 3])), &small),
        Some(Conversion::Blobs(Kind::Int8)),
    );
}

#[test]
fn non_finite_fp8_values_are_named() {
    let fine = || (codes(64, 64), 0.5);
    let with_code = |code: u8| {
        let (mut codes, scale) = fine();
        codes[1000] = code;
        (codes, scale)
    };
    for ((codes, scale), expect) in [
        (fine(), None),
        (with_code(0x7f), Some("element 1000 is NaN")),
        (with_code(0xff), Some("element 1000 is NaN")),
        ((codes(64, 64), f32::NAN), Some("scale 0 is NaN")),
        ((codes(64, 64), f32::INFINITY), Some("scale 0 is inf")),
        ((codes(64, 64), -0.5), Some("scale 0 is -0.5")),
        ((codes(64, 64), 0.0), Some("scale 0 is 0, expected a positive number")),
        ((vec![0; 64 * 64], 0.0), None),
        // A finite float32 that BF16 cannot represent.
        ((vec![0x7e; 64 * 64], f32::MAX / 448.0), Some("element 0 is inf")),
    ] {
        let weight = ("a.up_proj.weight".to_owned(), Dtype::F8_E4M3, vec![64, 64], codes);
        let scales = array("a.up_proj.weight_scale", Dtype::F32, &[], &[scale]);
        for quantize in [Conversion::Blobs(Kind::Int4), Conversion::Blobs(Kind::Mxfp8)] {
            let source: Arc<dyn Source> = Arc::new(one(weight.clone(), Some(scales.clone()), "{}"));
            let plan = plan(&*source, &Options { conversion: Some(quantize) }).unwrap();
            let read = io::Read::read_to_end(&mut plan.layers[0].reader(&source), &mut Vec::new());
            match (read.map_err(|error| error.to_string()), expect) {
                (Ok(_), None) => {}
                (Err(message), Some(expect)) => {
                    let is_named =
                        message.contains("`a.up_proj.weight`") && message.contains("`a.safetensors`");
                    assert!(is_named && message.contains(expect), "{message}\n  wanted {expect}");
                }
                (outcome, expect) => panic!("{outcome:?}, expected {expect:?}"),
            }
        }
    }
}
