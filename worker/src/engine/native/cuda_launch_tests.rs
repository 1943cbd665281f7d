//! What a token costs on a GPU: the launches of a layer and of a step, and the bytes of weights that are read. Launches
//! of a few microseconds decide about the speed of small models, bytes about that of large ones.

use lode_kernels::cuda::{DecodeRows, DotExperts, DotRows, Matrix};

use super::cuda_tests::{counted, options};
use super::gguf_tests::{fixture, gguf};
use super::tests::checkpoint;
use super::*;
use crate::report;

/// A model and its bounds.
struct Case {
    name: &'static str,
    files: ModelFiles,
    /// Launches per layer.
    layer: usize,
    /// Launches of a step outside of the layers: embedding, selection of rows, norm and head, with a soft cap.
    outside: usize,
    /// The share of the weights that is read for a token: without an embedding table that is not the head, and without
    /// unused experts.
    share: f64,
}

/// Bytes of the weights that a launch reads: all rows of a product's matrix, or a row of the embedding table.
fn weight_bytes((kernel, args): &(String, Vec<u8>)) -> u64 {
    let row = |matrix: &Matrix| matrix.strides.iter().sum::<u64>();
    match kernel.as_str() {
        "decode_rows" => row(&bytemuck::pod_read_unaligned::<DecodeRows>(args).table),
        "dot_experts" => {
            let args: DotExperts = bytemuck::pod_read_unaligned(args);
            u64::from(args.slots * args.matrix.rows) * row(&args.matrix)
        }
        name if name.starts_with("dot_") => {
            let matrix = bytemuck::pod_read_unaligned::<DotRows>(args).matrix;
            u64::from(matrix.rows) * row(&matrix)
        }
        _ => 0,
    }
}

#[test]
fn a_token_needs_few_launches_and_reads_each_weight_once() {
    let arch = |name: &str| checkpoint(&format!("tests/fixtures/arch/{name}"));
    let case = |name, files, layer, outside, share| Case { name, files, layer, outside, share };
    let cases = [
        case("llama", arch("llama"), 9, 4, 0.77),
        case("llama, Q8_0", gguf(&[fixture("llama-q8_0")]), 9, 4, 0.88),
        // Queries, keys and values have three formats, gate and up two.
        case("llama, mixed", gguf(&[fixture("wide-k")]), 12, 4, 1.0),
        case("qwen2, biases", arch("qwen2"), 9, 4, 1.0),
        case("qwen3, head norms", arch("qwen3"), 9, 4, 1.0),
        case("phi3", arch("phi3"), 9, 4, 0.77),
        // Two norms more.
        case("gemma2", arch("gemma2"), 11, 5, 1.0),
        case("gemma3", arch("gemma3"), 11, 4, 1.0),
        // The router, the choice of experts, and their mix; all experts of a token share launches.
        case("mixtral, 2 experts", arch("mixtral"), 12, 4, 0.55),
        case("qwen3-moe, 2 experts", arch("qwen3-moe"), 12, 4, 0.38),
    ];
    for Case { name, files, layer, outside, share } in cases {
        let Some((mut engine, launches)) = counted(&files, &options(KvType::F16)) else { return };
        let layers = engine.info().layers;
        let weights = engine.info().weights_bytes as f64;
        let sequence = engine.open(8).unwrap();
        let mut step = |tokens: &[u32], want| {
            launches.lock().unwrap().clear();
            engine.step(&[Slice { sequence, tokens, want }]).unwrap();
            launches.lock().unwrap().clone()
        };
        step(&[1, 2, 3], RowSelection::Nothing);
        // Without logits, a step is the embedding and the layers.
        let of_layers = step(&[4], RowSelection::Nothing).len() - 1;
        let whole = step(&[5], RowSelection::Last);
        let read = whole.iter().map(weight_bytes).sum::<u64>() as f64;
        assert!(of_layers.is_multiple_of(layers), "{name}: all layers have the same launches");
        let (per_layer, per_step) = (of_layers / layers, whole.len());
        let [read_kib, kib] = [read, weights].map(|bytes| bytes / 1024.0);
        let cost = format!("{per_layer} per layer, {per_step} per step; reads {read_kib:.0} of {kib:.0} KiB");
        report::figure(&format!("launches on a GPU for a token of {name}"), &cost);
        assert!(per_layer <= layer, "{name}: {cost}");
        assert!(per_step - of_layers <= outside, "{name}: {cost}");
        // The padding of rows is read, too, and a row of the embedding table.
        assert!(read <= share * 1.05 * weights, "{name}: {cost}");
    }
}
