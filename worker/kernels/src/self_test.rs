//! Compares the fused methods of a device with the scalar CPU, on awkward shapes: a short test of a device
//! before it is used ([`self_test`]), and the conformance tests. A new implementation of `Kernels` adds one
//! test that calls `check_device` with its constructor.

use bytes::Bytes;
use lode_model::quant::ggml::{self, Type};

use super::batch::{Batch, PAGE_LEN, Span};
use super::cpu::Cpu;
use super::dtype::{Dtype, Float};
use super::error::DeviceError;
#[cfg(test)]
use super::kernels::LayerNorm;
use super::kernels::{
    Activation, Attention, CacheShape, Expert, Experts, GateUp, Kernels, Linear, Norm, Qkv, Rope,
};
use super::ops::Ops;
use super::rope::Pairing;
use super::rows::Rows;
use super::weight::Weight;

/// Why a device does not pass its test.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SelfTestError {
    #[error(
        "its {what} differ from those of the scalar version by {error:e} (normalised mean squared error), at most {bound:e} is expected"
    )]
    Results { what: String, error: f64, bound: f64 },
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Bounds of the normalised mean squared error. With a cache of F16, the last bit of a key may be rounded
/// differently. Exponentials and roots of a GPU differ from the host's in their last bits.
const PRODUCT_BOUND: f64 = 1e-9;
/// If both operands may be rounded to BF16: a relative error of at most `2^-9` each, 2.5e-6 together.
const ROUNDED_PRODUCT_BOUND: f64 = 1e-5;
const MODEL_BOUND: f64 = 1e-6;

/// The formats of weights whose products are compared.
const TESTED: [Dtype; 6] = [
    Dtype::Float(Float::F32),
    Dtype::Float(Float::BF16),
    Dtype::Ggml(Type::Q8_0),
    Dtype::Ggml(Type::Q4_K),
    Dtype::Ggml(Type::Q6_K),
    Dtype::Affine { bits: 4, group: 64, scales: Float::BF16 },
];
/// Rows and columns of their matrices, and numbers of columns of activations: a few, and enough for tiles.
const SHAPE: (usize, usize) = (33, 512);
const COLUMNS: [usize; 2] = [1, 20];
/// The same of products that are large enough for the largest tiles.
const LARGE_TESTED: [Dtype; 2] = [Dtype::Ggml(Type::Q8_0), Dtype::Ggml(Type::Q4_K)];
const LARGE_SHAPE: (usize, usize) = (8_161, 256);
const LARGE_COLUMNS: [usize; 1] = [65];
/// With fewer columns, no device rounds the operands of a product with floats.
const MIN_ROUNDED_COLUMNS: usize = 9;

/// Computes two steps of a small model with all operations of decoders, and products of several formats, and
/// compares them with the scalar versions. For devices that multiply packed weights with floats: the CPU rounds
/// activations to eight bits.
pub fn self_test<K: Kernels>(kernels: &mut K) -> Result<(), SelfTestError> {
    let scalar = || Cpu::new(Some(1), Ops::scalar());
    let cache = Dtype::Float(Float::F16);
    // Products with F32 are exact on every device.
    let expect = run(&mut scalar()?, Float::F32, cache, Pairing::Halves)?;
    let found = run(kernels, Float::F32, cache, Pairing::Halves)?;
    compare("results of a small model", &found, &expect, MODEL_BOUND)?;
    let expect = attend_far(&mut scalar()?)?;
    compare("results of attention over a long context", &attend_far(kernels)?, &expect, MODEL_BOUND)?;
    for dtype in TESTED {
        compare_products(kernels, dtype, SHAPE, &COLUMNS)?;
    }
    LARGE_TESTED
        .into_iter()
        .try_for_each(|dtype| compare_products(kernels, dtype, LARGE_SHAPE, &LARGE_COLUMNS))
}

/// Compares the products of a matrix of a format with some numbers of columns.
fn compare_products<K: Kernels>(
    kernels: &mut K,
    dtype: Dtype,
    (rows, cols): (usize, usize),
    columns: &[usize],
) -> Result<(), SelfTestError> {
    let packed = packed(dtype, rows, cols);
    let mut floats = vec![0.0; rows * cols];
    for (row, to) in floats.chunks_exact_mut(cols).enumerate() {
        Ops::scalar().decode_row(&Rows::of(&packed), row, to);
    }
    let decoded = of_floats(&floats, rows, cols);
    for &columns in columns {
        let expect = product(&mut Cpu::new(Some(1), Ops::scalar())?, &decoded, columns)?;
        let found = product(kernels, &packed, columns)?;
        let what = format!("products of {dtype:?} with {columns} columns");
        let is_exact = dtype == Dtype::Float(Float::F32) || columns < MIN_ROUNDED_COLUMNS;
        compare(&what, &found, &expect, if is_exact { PRODUCT_BOUND } else { ROUNDED_PRODUCT_BOUND })?;
    }
    Ok(())
}

fn compare(what: &str, found: &[f32], expect: &[f32], bound: f64) -> Result<(), SelfTestError> {
    let error = if found.len() == expect.len() { error(found, expect) } else { f64::NAN };
    // NaN is no small error.
    match error <= bound {
        true => Ok(()),
        false => Err(SelfTestError::Results { what: what.to_owned(), error, bound }),
    }
}

/// `n` values between -2 and 2 (splitmix64), the same for a seed.
pub(super) fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..n)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 22) as f32 - 2.0
        })
        .collect()
}

fn of_floats(numbers: &[f32], rows: usize, cols: usize) -> Weight {
    let bytes: Vec<u8> = numbers.iter().flat_map(|v| v.to_le_bytes()).collect();
    Weight::floats(Float::F32, (rows, cols), Bytes::from(bytes)).expect("there are rows times cols values")
}

/// A matrix of a format, with random values.
fn packed(dtype: Dtype, rows: usize, cols: usize) -> Weight {
    if let Dtype::Float(float) = dtype {
        return weight(float, rows, cols, 6);
    }
    let mut codes = vec![0; rows * dtype.row_bytes(cols)];
    let halves = |n: usize, seed: u64| -> Bytes {
        random(n, seed).into_iter().flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect()
    };
    let (mut scales, mut biases) = (Bytes::new(), Bytes::new());
    match dtype {
        Dtype::Ggml(ty) => {
            ggml::encode(ty, &random(rows * cols, 7), &mut codes).expect("the tested formats have encoders");
        }
        _ => {
            let groups = rows * dtype.row_scale_bytes(cols) / 2;
            codes
                .iter_mut()
                .zip(random(rows * cols, 8))
                .for_each(|(code, v)| *code = (v.abs() * 127.0) as u8);
            (scales, biases) = (halves(groups, 9), halves(groups, 10));
        }
    }
    Weight::new(dtype, (rows, cols), Bytes::from(codes), scales, biases).expect("the sizes are the format's")
}

/// The product of a matrix with some columns of activations.
fn product<K: Kernels>(kernels: &mut K, weight: &Weight, columns: usize) -> Result<Vec<f32>, DeviceError> {
    let (rows, cols) = (weight.rows(), weight.cols());
    let inputs = kernels.matrix(&of_floats(&random(columns * cols, 11), columns, cols))?;
    let zeros = kernels.matrix(&of_floats(&vec![0.0; columns * rows], columns, rows))?;
    let linear = Linear::<K> { matrix: kernels.matrix(weight)?, bias: None };
    let batch = Batch {
        tokens: (0..columns as u32).collect(),
        positions: (0..columns as u32).collect(),
        pages: (0..columns.div_ceil(PAGE_LEN) as u32).collect(),
        spans: vec![Span { first_row: 0, rows: columns, start: 0, first_page: 0 }],
        ..Batch::default()
    };
    let (mut x, mut out) = (kernels.buffer(), kernels.buffer());
    let step = kernels.begin(&batch, &[]);
    kernels.embed(&step, &inputs, 1.0, &mut x);
    kernels.embed(&step, &zeros, 1.0, &mut out);
    kernels.matmul_add(&step, &x, &linear, None, &mut out);
    let mut numbers = Vec::new();
    kernels.read(&out, &mut numbers)?;
    Ok(numbers)
}

const EMBEDDING: usize = 40;
const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 20;
const HIDDEN: usize = 52;
const VOCAB: usize = 37;
/// The tokens of a long context.
const FAR: usize = 523;

fn weight(float: Float, rows: usize, cols: usize, seed: u64) -> Weight {
    let numbers = random(rows * cols, seed).into_iter().map(|v| v * 0.2);
    let bytes: Vec<u8> = match float {
        Float::F32 => numbers.flat_map(|v| v.to_le_bytes()).collect(),
        Float::F16 => numbers.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect(),
        Float::BF16 => numbers.flat_map(|v| half::bf16::from_f32(v).to_le_bytes()).collect(),
    };
    Weight::floats(float, (rows, cols), Bytes::from(bytes)).expect("there are rows times cols values")
}

/// Runs two steps of a small model, the second of which continues the first. Returns everything that they
/// compute.
fn run<K: Kernels>(
    kernels: &mut K,
    float: Float,
    dtype: Dtype,
    pairing: Pairing,
) -> Result<Vec<f32>, DeviceError> {
    let mut seed = 0;
    let mut next = |rows, cols| {
        seed += 1;
        weight(float, rows, cols, seed)
    };
    let linear = |kernels: &mut K, w: Weight, bias: Option<Weight>| {
        let matrix = kernels.matrix(&w)?;
        let bias = bias.map(|bias| kernels.vector(&bias, 0.0)).transpose()?;
        Ok::<_, DeviceError>(Linear::<K> { matrix, bias })
    };
    let table = kernels.matrix(&next(VOCAB, EMBEDDING))?;
    let norm = |kernels: &mut K, w: Weight| {
        let weight = kernels.vector(&w, 0.75)?;
        Ok::<_, DeviceError>(Norm::<K> { weight, eps: 1e-5 })
    };
    let (q_rows, kv_rows) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    // The first layer has llama's structure, the second the features of gemma and of a mixture of experts.
    let qkv = |kernels: &mut K, next: &mut dyn FnMut(usize, usize) -> Weight, head_norms: bool| {
        Ok::<_, DeviceError>(Qkv {
            norm: Some(norm(kernels, next(1, EMBEDDING))?),
            q: linear(kernels, next(q_rows, EMBEDDING), Some(next(1, q_rows)))?,
            k: linear(kernels, next(kv_rows, EMBEDDING), Some(next(1, kv_rows)))?,
            v: linear(kernels, next(kv_rows, EMBEDDING), None)?,
            head_norms: match head_norms {
                true => Some([norm(kernels, next(1, HEAD_DIM))?, norm(kernels, next(1, HEAD_DIM))?]),
                false => None,
            },
            rope: Some(usize::from(head_norms)),
        })
    };
    let qkvs = [qkv(kernels, &mut next, false)?, qkv(kernels, &mut next, true)?];
    let attentions = [
        Attention { scale: 0.22, cap: None, window: None, causal: true },
        Attention { scale: 0.22, cap: Some(1.5), window: Some(37), causal: true },
    ];
    let out = linear(kernels, next(EMBEDDING, q_rows), Some(next(1, EMBEDDING)))?;
    let post_norms = [None, Some(norm(kernels, next(1, EMBEDDING))?)];
    let gate_up = |kernels: &mut K, next: &mut dyn FnMut(usize, usize) -> Weight, activation| {
        Ok::<_, DeviceError>(GateUp {
            norm: Some(norm(kernels, next(1, EMBEDDING))?),
            gate: linear(kernels, next(HIDDEN, EMBEDDING), Some(next(1, HIDDEN)))?,
            up: linear(kernels, next(HIDDEN, EMBEDDING), None)?,
            activation,
        })
    };
    let gate_ups =
        [gate_up(kernels, &mut next, Activation::Silu)?, gate_up(kernels, &mut next, Activation::GeluTanh)?];
    let down = linear(kernels, next(EMBEDDING, HIDDEN), None)?;
    let expert = |next: &mut dyn FnMut(usize, usize) -> Weight| Expert {
        gate: next(HIDDEN, EMBEDDING),
        up: next(HIDDEN, EMBEDDING),
        down: next(EMBEDDING, HIDDEN),
    };
    let experts = Experts {
        norm: norm(kernels, next(1, EMBEDDING))?,
        router: kernels.matrix(&next(5, EMBEDDING))?,
        weights: kernels.expert_weights((0..5).map(|_| expert(&mut next)).collect())?,
        used: 3,
        renormalise: true,
        activation: Activation::Silu,
    };
    let last = norm(kernels, next(1, EMBEDDING))?;

    let shape = CacheShape { layers: 2, pages: 7, n_kv_heads: KV_HEADS, head_dim: HEAD_DIM, dtype };
    let mut cache = kernels.cache(&shape)?;
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
    // last page. The third one is a step of generation.
    let first = [(0, 40, vec![5, 2]), (0, 1, vec![4])];
    let second = [(40, 3, vec![5, 6]), (1, 70, vec![4, 0, 3])];
    let third = [(43, 1, vec![5, 6]), (71, 2, vec![4, 0, 3])];
    for (step, spans) in [first, second, third].into_iter().enumerate() {
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
        kernels.read(&rows, &mut numbers)?;
        kernels.hidden(&step, &x, Some(&last), &mut rows);
        kernels.read(&rows, &mut numbers)?;
        kernels.read(&x, &mut numbers)?;
    }
    Ok(numbers)
}

/// Attention of one row over a context that is long enough for several blocks.
fn attend_far<K: Kernels>(kernels: &mut K) -> Result<Vec<f32>, DeviceError> {
    let mut seed = 200;
    let mut matrix = |kernels: &mut K, rows| {
        seed += 1;
        kernels.matrix(&weight(Float::F32, rows, EMBEDDING, seed))
    };
    let table = matrix(kernels, VOCAB)?;
    let mut linear = |kernels: &mut K, heads| {
        Ok::<_, DeviceError>(Linear::<K> { matrix: matrix(kernels, heads * HEAD_DIM)?, bias: None })
    };
    let weights = Qkv {
        norm: None,
        q: linear(kernels, HEADS)?,
        k: linear(kernels, KV_HEADS)?,
        v: linear(kernels, KV_HEADS)?,
        head_norms: None,
        rope: None,
    };
    let pages = FAR.div_ceil(PAGE_LEN);
    let dtype = Dtype::Float(Float::F16);
    let shape = CacheShape { layers: 1, pages, n_kv_heads: KV_HEADS, head_dim: HEAD_DIM, dtype };
    let mut cache = kernels.cache(&shape)?;
    let how = Attention { scale: 0.22, cap: None, window: None, causal: true };
    let [mut x, mut q, mut out] = [(); 3].map(|()| kernels.buffer());
    let mut numbers = Vec::new();
    for (start, rows) in [(0, FAR - 1), (FAR - 1, 1)] {
        let batch = Batch {
            // Each section has other tokens.
            tokens: (start..start + rows).map(|t| (t * VOCAB / FAR) as u32).collect(),
            positions: (start..start + rows).map(|t| t as u32).collect(),
            pages: (0..pages as u32).rev().collect(),
            spans: vec![Span { first_row: 0, rows, start, first_page: 0 }],
            ..Batch::default()
        };
        let step = kernels.begin(&batch, &[]);
        // Large enough for a few keys to have most of the weight.
        kernels.embed(&step, &table, 6.0, &mut x);
        kernels.qkv(&step, &x, &weights, &mut cache, 0, &mut q);
        if rows == 1 {
            kernels.attention(&step, &q, &how, &cache, 0, &mut out);
            kernels.read(&out, &mut numbers)?;
        }
    }
    Ok(numbers)
}

/// The same for a block of an encoder, whose rows see their whole sequence.
#[cfg(test)]
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
    for window in [None, Some(7)] {
        let how = Attention { scale: 0.2, cap: None, window, causal: false };
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

/// The bounds of [`check_device`] with a cache of f32, where only the order of additions differs, and of f16, where the
/// last bit of a key may be rounded differently.
#[cfg(test)]
const CHECK_BOUNDS: [f64; 2] = [1e-10, 1e-6];
/// The same if columns are rounded to BF16. Each product has an error of 2.5e-6; that of the small model is 4.3e-5.
#[cfg(test)]
const ROUNDED_BOUNDS: [f64; 2] = [1e-4, 1e-4];

/// Asserts the normalised mean squared error against the scalar CPU.
#[cfg(test)]
pub(crate) fn check_device<K: Kernels>(make: impl Fn() -> K) {
    for float in [Float::F32, Float::F16, Float::BF16] {
        check_float(float, CHECK_BOUNDS, &make);
    }
}

/// The same for a device that rounds the operands of products to BF16, unless the weights are F32.
#[cfg(test)]
pub(crate) fn check_rounding_device<K: Kernels>(make: impl Fn() -> K) {
    check_float(Float::BF16, ROUNDED_BOUNDS, &make);
}

/// The same for weights of one type.
#[cfg(test)]
fn check_float<K: Kernels>(float: Float, bounds: [f64; 2], make: impl Fn() -> K) {
    for (cache, bound) in [Float::F32, Float::F16].into_iter().zip(bounds) {
        for pairing in [Pairing::Halves, Pairing::Adjacent] {
            let dtype = Dtype::Float(cache);
            let expect = run(&mut Cpu::new(Some(1), Ops::scalar()).unwrap(), float, dtype, pairing).unwrap();
            let found = run(&mut make(), float, dtype, pairing).unwrap();
            let error = error(&found, &expect);
            assert!(error <= bound, "{float:?} {dtype:?} {pairing:?}: {error:e}");
        }
    }
    let expect = encode(&mut Cpu::new(Some(1), Ops::scalar()).unwrap(), float);
    let error = error(&encode(&mut make(), float), &expect);
    assert!(error <= bounds[0], "encoder {float:?}: {error:e}");
}

#[test]
fn the_cpu_agrees_with_its_scalar_version() {
    for ops in Ops::all() {
        for float in [Float::F32, Float::F16, Float::BF16] {
            let is_rounded = ops.rounds_columns(Dtype::Float(float));
            let bounds = if is_rounded { ROUNDED_BOUNDS } else { CHECK_BOUNDS };
            for threads in [1, 3] {
                check_float(float, bounds, || Cpu::new(Some(threads), ops).unwrap());
            }
        }
    }
}
