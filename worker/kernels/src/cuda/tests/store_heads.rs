//! The step between the projections and attention: biases, norms and rotations of heads, and the cache, compared with
//! the scalar versions.

use lode_model::quant::ggml::Type;

use super::super::args::StoreHeads;
use super::super::program::{Program, cache_row_bytes};
use super::attention::stored;
use super::harness::Harness;
use crate::batch::PAGE_LEN;
use crate::decode;
use crate::dtype::{Dtype, Float};
use crate::rope::{self, Pairing};
use crate::rows::Rows;
use crate::testing::random;

const ROWS: usize = 3;
const HEADS: usize = 3;
const KV_HEADS: usize = 2;
const PAGES: usize = 2;
/// Page and slot of each row.
const SLOTS: [u32; 2 * ROWS] = [1, 31, 0, 0, 1, 5];
const EPS: f32 = 1e-5;

struct Case {
    dtype: Dtype,
    head_dim: usize,
    pairs: usize,
    pairing: Pairing,
    biased: bool,
    normed: bool,
}

/// The heads of a row as they are stored: of queries, keys and values.
fn expected(case: &Case, x: &[f32], bias: &[f32], norms: &[f32], cos: &[f32], sin: &[f32]) -> Vec<Vec<f32>> {
    let dim = case.head_dim;
    let mut heads: Vec<Vec<f32>> =
        x[..(HEADS + 2 * KV_HEADS) * dim].chunks(dim).map(<[f32]>::to_vec).collect();
    for (index, head) in heads.iter_mut().enumerate() {
        if case.biased {
            head.iter_mut().zip(&bias[index * dim..]).for_each(|(v, bias)| *v += bias);
        }
        if index >= HEADS + KV_HEADS {
            continue;
        }
        if case.normed {
            let weight = &norms[if index < HEADS { 0 } else { dim }..][..dim];
            crate::rms_norm::scalar(&head.clone(), weight, EPS, head);
        }
        rope::scalar(head, cos, sin, case.pairing);
    }
    heads
}

/// The values of a row of the cache. Blocks are in planes: the codes of all, then their scales.
fn values(dtype: Dtype, cols: usize, row: &[u8]) -> Vec<f32> {
    let row = match dtype {
        Dtype::Ggml(Type::Q8_0) => {
            let (codes, scales) = row.split_at(cols);
            scales.chunks(2).zip(codes.chunks(32)).flat_map(|(d, codes)| [d, codes].concat()).collect()
        }
        _ => row.to_vec(),
    };
    let mut values = vec![0.0; cols];
    decode::scalar(&Rows::new(dtype, cols, &row[..dtype.row_bytes(cols)]), 0, &mut values);
    values
}

fn check(case: &Case) -> Option<()> {
    let mut harness = Harness::new(&Program::of_cache(case.dtype).unwrap())?;
    let (dim, pairs) = (case.head_dim, case.pairs);
    let width = (HEADS + 2 * KV_HEADS) * dim;
    let (stride, q_stride) = (width + 5, HEADS * dim + 3);
    let (x, bias, norms) = (random(ROWS * stride, 1), random(width, 2), random(2 * dim, 3));
    let (cos, sin): (Vec<f32>, Vec<f32>) =
        random(ROWS * pairs, 4).iter().map(|angle| (angle.cos(), angle.sin())).unzip();
    let row_bytes = cache_row_bytes(case.dtype, dim);
    let cache_bytes = PAGES * 2 * KV_HEADS * PAGE_LEN * row_bytes;
    let (cache, q) = (harness.floats(cache_bytes / 4), harness.floats(ROWS * q_stride));
    let [x_at, bias_at, norms_at, cos_at, sin_at] =
        [&x, &bias, &norms, &cos, &sin].map(|values| harness.upload(values));
    let of = |at: super::super::Address, is_used: bool, first: usize| {
        if is_used { at.plus(4 * first as u64).0 } else { 0 }
    };
    let args = StoreHeads {
        x: x_at.0,
        q: q.0,
        cache: cache.0,
        slots: harness.upload(&SLOTS).0,
        cosines: cos_at.0,
        sines: sin_at.0,
        q_norm: of(norms_at, case.normed, 0),
        k_norm: of(norms_at, case.normed, dim),
        q_bias: of(bias_at, case.biased, 0),
        k_bias: of(bias_at, case.biased, HEADS * dim),
        v_bias: of(bias_at, case.biased, (HEADS + KV_HEADS) * dim),
        row_bytes: row_bytes as u32,
        x_stride: stride as u32,
        q_stride: q_stride as u32,
        heads: HEADS as u32,
        kv_heads: KV_HEADS as u32,
        head_dim: dim as u32,
        pairs: pairs as u32,
        adjacent: (case.pairing == Pairing::Adjacent).into(),
        q_eps: EPS,
        k_eps: EPS,
    };
    harness.launch("store_heads", [(HEADS + 2 * KV_HEADS) as u32, ROWS as u32, 1], 32, &args);

    let queries: Vec<f32> = harness.read(q, ROWS * q_stride);
    let bytes: Vec<u8> = harness.read(cache, cache_bytes);
    let cols = dim.next_multiple_of(case.dtype.multiple());
    for row in 0..ROWS {
        let (cos, sin) = (&cos[row * pairs..][..pairs], &sin[row * pairs..][..pairs]);
        let (page, slot) = (SLOTS[2 * row] as usize, SLOTS[2 * row + 1] as usize);
        for (index, expect) in expected(case, &x[row * stride..], &bias, &norms, cos, sin).iter().enumerate()
        {
            let found = if index < HEADS {
                queries[row * q_stride + index * dim..][..dim].to_vec()
            } else {
                let (kv, head) = ((index - HEADS) / KV_HEADS, (index - HEADS) % KV_HEADS);
                let at = (((2 * page + kv) * KV_HEADS + head) * PAGE_LEN + slot) * row_bytes;
                values(case.dtype, cols, &bytes[at..at + row_bytes])[..dim].to_vec()
            };
            let expect = if index < HEADS { expect.clone() } else { stored(case.dtype, expect) };
            if case.normed {
                // The sum of squares has another order; values are below 4.
                let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 4.0 * dim as f32 * f32::EPSILON;
                assert!(found.iter().zip(&expect).all(close), "{dim} {row} {index}");
            } else {
                // The same roundings in the same order.
                assert_eq!(found, expect, "{dim} {row} {index}");
            }
        }
        assert!(queries[row * q_stride + HEADS * dim..(row + 1) * q_stride].iter().all(|v| v.is_nan()));
    }
    Some(())
}

#[test]
fn heads_are_stored() {
    let [f32, f16] = [Dtype::Float(Float::F32), Dtype::Float(Float::F16)];
    for (dtype, head_dim, pairs, pairing, biased, normed) in [
        (f32, 20, 8, Pairing::Halves, true, true),
        (f32, 2, 1, Pairing::Adjacent, false, true),
        (f32, 512, 0, Pairing::Halves, true, false),
        (f16, 160, 80, Pairing::Adjacent, false, false),
        (Dtype::Ggml(Type::Q8_0), 128, 64, Pairing::Halves, true, false),
    ] {
        if check(&Case { dtype, head_dim, pairs, pairing, biased, normed }).is_none() {
            return;
        }
    }
}
