//! Notices and errors about folders that are not quite a model.

use super::tests::{CONFIG, Folder, import, refused, safetensors, small};
use super::*;
use crate::quant::Kind;
use crate::safetensors::Dtype;

#[test]
fn every_part_has_to_be_there() {
    let weights = |name: &str| safetensors(&[(name, Dtype::F32, &[2])]);
    let first = Folder::default().with("m-00001-of-00002.safetensors", weights("a"));
    let alone = import(&first, None);
    assert!(alone.notices().contains("`m` is split over 2 files, and this is only one of them"));
    let half = first.clone().with("config.json", CONFIG);
    assert_eq!(refused(&half, None), "`m` is split over 2 files, and number 2 is missing");
    let whole = half.clone().with("m-00002-of-00002.safetensors", weights("b"));
    assert_eq!(import(&whole, None).plan.tensors, 2);
    let component = |name: &str| format!("transformer/{name}-00001-of-00003.safetensors");
    let image = Folder::default().with("model_index.json", "{}").with(&component("d"), weights("a"));
    assert_eq!(refused(&image, None), "`transformer/d` is split over 3 files, and number 2 is missing");
    // If an index lists the files of the model, their names do not matter.
    let index = r#"{"weight_map":{"a":"m-00001-of-00002.safetensors"}}"#;
    assert_eq!(import(&half.with("model.safetensors.index.json", index), None).plan.tensors, 1);
}

#[test]
fn files_that_a_loader_ignores_get_a_notice() {
    let weights = || safetensors(&[("linear.weight", Dtype::F32, &[2, 2])]);
    let notices = |path: &str| import(&small().with(path, weights()), None).notices();
    let ignored = notices("other/model.safetensors");
    assert!(ignored.contains("`other/model.safetensors` is not part of the checkpoint"), "{ignored}");
    // The linear layers of an embedding model are stored whole, too, but used.
    let dense = notices("2_Dense/model.safetensors");
    assert!(!dense.contains("2_Dense"), "{dense}");
}

#[test]
fn unquantised_tensors_get_a_notice() {
    let odd = [("b.weight", Dtype::F32, &[64u64, 64][..]), ("odd.weight", Dtype::BF16, &[100, 33])];
    let folder = Folder::default().with("Odd.SafeTensors", safetensors(&odd));
    let notices = import(&folder, Some(Conversion::Blobs(Kind::Int4))).notices();
    assert!(notices.contains("`odd.weight`: kept as they are"), "{notices}");
    assert!(!import(&folder, None).notices().contains("kept as they are"));

    // The weights below the top level are not assigned to a model, but they are weights.
    let below = Folder::default().with("unet/x.safetensors", safetensors(&odd));
    assert!(import(&below, None).notices().contains("there are no tensors"));

    let both = small().with("m.gguf", "GGUF").with("onnx/m.onnx", "");
    let imported = import(&both, None);
    assert!(imported.notices().contains("`m.gguf`, `onnx/m.onnx`: stored whole alongside the model"));
    assert_eq!(imported.files(), both.0);
}
