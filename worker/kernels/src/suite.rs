//! The conformance tests of devices: compares the fused methods with the scalar CPU on awkward shapes. A new
//! implementation of `Kernels` adds one test that calls [`check_device`] with its constructor.

use bytes::Bytes;

use super::cpu::Cpu;
use super::testing::random;
use super::*;

const EMBEDDING: usize = 40;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 20;
const HIDDEN: usize = 52;
const VOCAB: usize = 37;

fn weight(float: Float, rows: usize, cols: usize, seed: u64) -> Weight {
    let numbers = random(rows * cols, seed).into_iter().map(|v| v * 0.2);
    let bytes: Vec<u8> = match float {
        Float::F32 => numbers.flat_map(|v| v.to_le_bytes()).collect(),
        Float::F16 => numbers.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
        Float::BF16 => numbers.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
    };
    Weight::floats(float, (rows, cols), Bytes::from(bytes)).unwrap()
}

/// Runs two steps of a small model, the second of which continues the first. Returns everything that they
/// compute.
fn run<K: Kernels>(kernels: &mut K, float: Float, dtype: Dtype, pairing: Pairing) -> Vec<f32> {
    let mut seed = 0;
    let mut next = |rows, cols| {
        seed += 1;
        weight(float, rows, cols, seed)
    };
    let linear = |kernels: &mut K, w: Weight, bias: Option<Weight>| Linear::<K> {
        matrix: kernels.matrix(&w).unwrap(),
        bias: bias.map(|bias| kernels.vector(&bias, 0.0).unwrap()),
    };
    let table = kernels.matrix(&next(VOCAB, EMBEDDING)).unwrap();
    let norm = |kernels: &mut K, w: Weight| {
        let weight = kernels.vector(&w, 0.75).unwrap();
        Norm::<K> { weight, eps: 1e-5 }
    };
    let (q_rows, kv_rows) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    // The first layer has llama's structure, the second the features of gemma and of a mixture of experts.
    let qkv = |kernels: &mut K, next: &mut dyn FnMut(usize, usize) -> Weight, head_norms: bool| Qkv {
        norm: Some(norm(kernels, next(1, EMBEDDING))),
        q: linear(kernels, next(q_rows, EMBEDDING), Some(next(1, q_rows))),
        k: linear(kernels, next(kv_rows, EMBEDDING), Some(next(1, kv_rows))),
        v: linear(kernels, next(kv_rows, EMBEDDING), None),
        head_norms: head_norms.then(|| [(); 2].map(|()| norm(kernels, next(1, HEAD_DIM)))),
        rope: Some(usize::from(head_norms)),
    };
    let qkvs = [qkv(kernels, &mut next, false), qkv(kernels, &mut next, true)];
    let attentions = [
        Attention { scale: 0.22, cap: None, window: None, causal: true },
        Attention { scale: 0.22, cap: Some(1.5), window: Some(37), causal: true },
    ];
    let out = linear(kernels, next(EMBEDDING, q_rows), Some(next(1, EMBEDDING)));
    let post_norms = [None, Some(norm(kernels, next(1, EMBEDDING)))];
    let gate_ups = [Activation::Silu, Activation::GeluTanh].map(|activation| GateUp {
        norm: norm(kernels, next(1, EMBEDDING)),
        gate: linear(kernels, next(HIDDEN, EMBEDDING), Some(next(1, HIDDEN))),
        up: linear(kernels, next(HIDDEN, EMBEDDING), None),
        activation,
    });
    let down = linear(kernels, next(EMBEDDING, HIDDEN), None);
    let expert = |kernels: &mut K, next: &mut dyn FnMut(usize, usize) -> Weight| Expert::<K> {
        gate: kernels.matrix(&next(HIDDEN, EMBEDDING)).unwrap(),
        up: kernels.matrix(&next(HIDDEN, EMBEDDING)).unwrap(),
        down: kernels.matrix(&next(EMBEDDING, HIDDEN)).unwrap(),
    };
    let experts = Experts {
        norm: norm(kernels, next(1, EMBEDDING)),
        router: kernels.matrix(&next(5, EMBEDDING)).unwrap(),
        experts: (0..5).map(|_| expert(kernels, &mut next)).collect(),
        used: 3,
        renormalise: true,
        activation: Activation::Silu,
    };
    let last = norm(kernels, next(1, EMBEDDING));

    let shape = CacheShape { layers: 2, pages: 7, n_kv_heads: KV_HEADS, head_dim: HEAD_DIM, dtype };
    let mut cache = kernels.cache(&shape).unwrap();
    let rope = |len: usize, scale| Rope {
        inverse_frequencies: (0..len).map(|p| 0.7f32.powi(p as i32)).collect(),
        scale,
        pairing,
    };
    // The second table rotates 16 of the 20 dimensions.
    let ropes = [rope(1, 1.0), rope(8, 1.25)];
    let (mut x, mut q, mut mixed, mut hidden, mut rows) =
        (kernels.buffer(), kernels.buffer(), kernels.buffer(), kernels.buffer(), kernels.buffer());
    let mut numbers = Vec::new();

    // Two sequences in scrambled pages. The second step completes one prompt and continues in a copy of its
    // last page.
    let first = [(0, 40, vec![5, 2]), (0, 1, vec![4])];
    let second = [(40, 3, vec![5, 6]), (1, 70, vec![4, 0, 3])];
    for (step, spans) in [first, second].into_iter().enumerate() {
        if step == 1 {
            kernels.copy_page(&mut cache, 2, 6);
        }
        let mut batch = Batch::default();
        for (start, n, pages) in spans {
            let (first_row, first_page) = (batch.tokens.len(), batch.pages.len());
            batch.spans.push(Span { first_row, rows: n, start, first_page });
            batch.tokens.extend((start..start + n).map(|t| (t * 11 % VOCAB) as u32));
            batch.positions.extend((start..start + n).map(|t| t as u32));
            batch.pages.extend(pages);
            batch.logits.push((first_row + n - 1) as u32);
        }
        batch.hidden = vec![0, 2];
        let step = kernels.begin(&batch, &ropes);
        kernels.embed(&step, &table, 1.5, &mut x);
        for layer in 0..2 {
            kernels.qkv(&step, &x, &qkvs[layer], &mut cache, layer, &mut q);
            kernels.attention(&step, &q, &attentions[layer], &cache, layer, &mut mixed);
            kernels.matmul_add(&step, &mixed, &out, post_norms[layer].as_ref(), &mut x);
            kernels.gate_up(&step, &x, &gate_ups[layer], &mut hidden);
            kernels.matmul_add(&step, &hidden, &down, post_norms[layer].as_ref(), &mut x);
        }
        kernels.experts(&step, &experts, &mut x);
        kernels.logits(&step, &x, &last, &table, Some(2.0), &mut rows);
        kernels.read(&rows, &mut numbers).unwrap();
        kernels.hidden(&step, &x, Some(&last), &mut rows);
        kernels.read(&rows, &mut numbers).unwrap();
        kernels.read(&x, &mut numbers).unwrap();
    }
    numbers
}

/// The same for a block of an encoder, whose rows see their whole sequence.
fn encode<K: Kernels>(kernels: &mut K, float: Float) -> Vec<f32> {
    let mut seed = 100;
    let mut next = |rows, cols| {
        seed += 1;
        weight(float, rows, cols, seed)
    };
    let mut linear = |kernels: &mut K, rows, cols| Linear::<K> {
        matrix: kernels.matrix(&next(rows, cols)).unwrap(),
        bias: Some(kernels.vector(&next(1, rows), 0.0).unwrap()),
    };
    let dtype = Dtype::Float(Float::F32);
    let shape = CacheShape { layers: 1, pages: 4, n_kv_heads: HEADS, head_dim: HEAD_DIM, dtype };
    let mut cache = kernels.cache(&shape).unwrap();
    let width = HEADS * HEAD_DIM;
    let (table, places) = (linear(kernels, VOCAB, width), linear(kernels, 40, width));
    let [q, k, v, out] = [(); 4].map(|()| linear(kernels, width, width));
    let (up, down) = (linear(kernels, HIDDEN, width), linear(kernels, width, HIDDEN));
    let norm = linear(kernels, width, 1);
    let norm = LayerNorm { weight: norm.bias.unwrap(), bias: q.bias.unwrap(), eps: 1e-6 };
    let q = Linear { matrix: q.matrix, bias: None };
    let qkv = Qkv { norm: None, q, k, v, head_norms: None, rope: None };
    let how = Attention { scale: 0.2, cap: None, window: None, causal: false };

    let mut batch = Batch { pages: vec![2, 0, 3], hidden: vec![0, 36, 37, 41], ..Batch::default() };
    for (rows, first_page) in [(37, 0), (5, 2)] {
        batch.spans.push(Span { first_row: batch.tokens.len(), rows, start: 0, first_page });
        batch.tokens.extend((0..rows).map(|t| (t * 11 % VOCAB) as u32));
        batch.positions.extend((0..rows).map(|t| t as u32));
    }
    let [mut x, mut q, mut mixed, mut hidden] = [(); 4].map(|()| kernels.buffer());
    let step = kernels.begin(&batch, &[]);
    kernels.embed(&step, &table.matrix, 1.0, &mut x);
    kernels.positions(&step, &places.matrix, &norm.bias, &mut x);
    for _ in 0..2 {
        kernels.layer_norm(&step, &norm, &mut x);
        kernels.qkv(&step, &x, &qkv, &mut cache, 0, &mut q);
        kernels.attention(&step, &q, &how, &cache, 0, &mut mixed);
        kernels.matmul_add(&step, &mixed, &out, None, &mut x);
        kernels.up(&step, &x, &up, &mut hidden);
        kernels.matmul_add(&step, &hidden, &down, None, &mut x);
    }
    kernels.hidden(&step, &x, None, &mut hidden);
    let mut numbers = Vec::new();
    kernels.read(&hidden, &mut numbers).unwrap();
    numbers
}

/// Normalised mean squared error of `found`.
fn error(found: &[f32], expect: &[f32]) -> f64 {
    assert_eq!(found.len(), expect.len());
    let size: f64 = expect.iter().map(|v| f64::from(*v).powi(2)).sum();
    assert!(size > 1.0);
    expect.iter().zip(found).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>() / size
}

/// Asserts the normalised mean squared error against the scalar CPU. The bound is 1e-10 with an f32 cache,
/// where only the order of additions differs, and 1e-6 with f16, where the last bit of a key may be rounded
/// differently.
pub(crate) fn check_device<K: Kernels>(make: impl Fn() -> K) {
    for float in [Float::F32, Float::F16, Float::BF16] {
        for (dtype, bound) in [(Dtype::Float(Float::F32), 1e-10), (Dtype::Float(Float::F16), 1e-6)] {
            for pairing in [Pairing::Halves, Pairing::Adjacent] {
                let expect = run(&mut Cpu::new(Some(1), Ops::scalar()).unwrap(), float, dtype, pairing);
                let found = run(&mut make(), float, dtype, pairing);
                let error = error(&found, &expect);
                assert!(error <= bound, "{float:?} {dtype:?} {pairing:?}: {error:e}");
            }
        }
        let expect = encode(&mut Cpu::new(Some(1), Ops::scalar()).unwrap(), float);
        let error = error(&encode(&mut make(), float), &expect);
        assert!(error <= 1e-10, "encoder {float:?}: {error:e}");
    }
}

#[test]
fn the_cpu_agrees_with_its_scalar_version() {
    for ops in Ops::all() {
        for threads in [1, 3] {
            check_device(|| Cpu::new(Some(threads), ops).unwrap());
        }
    }
}
