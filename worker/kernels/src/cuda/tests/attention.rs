//! The cache and attention, compared with float64 over the values that the cache holds.

use lode_model::quant::ggml::Type;

use super::super::args::{Attend, StoreHeads};
use super::super::program::{Program, attention_kernel, cache_row_bytes};
use super::harness::Harness;
use crate::batch::PAGE_LEN;
use crate::decode;
use crate::dtype::{Dtype, Float};
use crate::rows::Rows;
use crate::testing::random;

const PAGES: usize = 19;
/// The page of the only sequence at an index, scrambled.
fn page(index: usize) -> u32 {
    ((index * 7 + 5) % PAGES) as u32
}

/// The values that a row of the cache holds.
pub(super) fn stored(dtype: Dtype, from: &[f32]) -> Vec<f32> {
    let cols = from.len().next_multiple_of(dtype.multiple());
    let mut padded = from.to_vec();
    padded.resize(cols, 0.0);
    let mut bytes = vec![0; dtype.row_bytes(cols)];
    decode::encode_scalar(dtype, &padded, &mut bytes);
    let mut values = vec![0.0; cols];
    decode::scalar(&Rows::new(dtype, cols, &bytes), 0, &mut values);
    values.truncate(from.len());
    values
}

#[test]
fn attention_over_pages() {
    let dtypes = [Dtype::Float(Float::F32), Dtype::Float(Float::F16), Dtype::Ggml(Type::Q8_0)];
    for dtype in dtypes {
        let Some(mut harness) = Harness::new(&Program::of_cache(dtype).unwrap()) else { return };
        for (head_dim, heads, kv_heads, cap) in
            [(20, 6, 2, 0.0), (128, 2, 2, 1.5), (200, 2, 1, 0.0), (260, 1, 1, 2.0)]
        {
            // Three sections of eight pages.
            let tokens = 17 * PAGE_LEN + 7;
            let row_bytes = cache_row_bytes(dtype, head_dim);
            // New memory is NaN, so reading a slot that was not written shows in the result.
            let cache = harness.floats(PAGES * 2 * kv_heads * PAGE_LEN * row_bytes / 4);
            let width = kv_heads * head_dim;
            let kv = [random(tokens * width, 1), random(tokens * width, 2)];
            let slots: Vec<u32> =
                (0..tokens).flat_map(|t| [page(t / PAGE_LEN), (t % PAGE_LEN) as u32]).collect();
            let slots = harness.upload(&slots);
            let [keys, values] = kv.each_ref().map(|rows| rows.chunks_exact(width));
            let x: Vec<f32> = keys.zip(values).flat_map(|(k, v)| [k, v].concat()).collect();
            let args = StoreHeads {
                x: harness.upload(&x).0,
                cache: cache.0,
                slots: slots.0,
                row_bytes: row_bytes as u32,
                x_stride: 2 * width as u32,
                kv_heads: kv_heads as u32,
                head_dim: head_dim as u32,
                ..StoreHeads::default()
            };
            harness.launch("store_heads", [2 * kv_heads as u32, tokens as u32, 1], 32, &args);
            // A whole context, a prefix, one token, and windows within a page, over several pages and sections.
            let ranges =
                [(0, tokens), (0, 140), (0, 1), (37, 60), (250, 300), (300, tokens), (tokens - 1, tokens)];
            let rows: Vec<u32> = ranges.iter().flat_map(|(from, to)| [0, *from as u32, *to as u32]).collect();
            let q = random(ranges.len() * heads * head_dim, 3);
            let (q_at, pages, rows_at) = (
                harness.upload(&q),
                harness.upload(&(0..18).map(page).collect::<Vec<_>>()),
                harness.upload(&rows),
            );
            let out = harness.floats(q.len());
            let scale = 0.22;
            let args = Attend {
                q: q_at.0,
                out: out.0,
                cache: cache.0,
                pages: pages.0,
                rows: rows_at.0,
                partials: 0,
                sections: 3,
                row_bytes: row_bytes as u32,
                q_stride: (heads * head_dim) as u32,
                out_stride: (heads * head_dim) as u32,
                heads: heads as u32,
                kv_heads: kv_heads as u32,
                head_dim: head_dim as u32,
                scale,
                cap,
                reserved: 0,
            };
            let kernel = attention_kernel(head_dim).unwrap();
            harness.launch(kernel, [heads as u32, ranges.len() as u32, 1], 128, &args);
            let found: Vec<f32> = harness.read(out, q.len());

            // With a block for each section, the results have the same bits.
            let n = ranges.len() * heads * 3 * (head_dim + 2);
            let (partials, out) = (harness.floats(n).0, harness.floats(q.len()));
            let args = Attend { partials, out: out.0, ..args };
            harness.launch(kernel, [heads as u32, ranges.len() as u32, 3], 128, &args);
            harness.launch("merge_sections", [heads as u32, ranges.len() as u32, 1], 128, &args);
            assert_eq!(harness.read::<f32>(out, q.len()), found, "{dtype:?} {head_dim}");

            for (row, (from, to)) in ranges.into_iter().enumerate() {
                for head in 0..heads {
                    let at = (row * heads + head) * head_dim;
                    let kv_head = head / (heads / kv_heads);
                    let of = |which: usize, t: usize| {
                        stored(dtype, &kv[which][t * width + kv_head * head_dim..][..head_dim])
                    };
                    let mut size = 0.0f64;
                    let scores: Vec<f64> = (from..to)
                        .map(|t| {
                            let terms =
                                of(0, t).into_iter().zip(&q[at..]).map(|(k, q)| f64::from(k) * f64::from(*q));
                            let (sum, sizes) = terms.fold((0.0, 0.0), |(s, a), v| (s + v, a + v.abs()));
                            size = size.max(sizes * f64::from(scale));
                            let score = sum * f64::from(scale);
                            if cap == 0.0 { score } else { f64::from(cap) * (score / f64::from(cap)).tanh() }
                        })
                        .collect();
                    let max = scores.iter().fold(f64::MIN, |m, v| m.max(*v));
                    let weights: Vec<f64> = scores.iter().map(|v| (v - max).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    let mut expect = vec![0.0; head_dim];
                    for (t, weight) in (from..to).zip(&weights) {
                        for (sum, v) in expect.iter_mut().zip(of(1, t)) {
                            *sum += weight / total * f64::from(v);
                        }
                    }
                    // The error of a score, at most one ulp of its terms per dimension, is a relative error
                    // of its weight; values are below 2. The sums over the keys have an ulp for each.
                    let ulps = head_dim as f64 * size + (to - from) as f64 + 16.0;
                    let bound = 2.0 * 2.0 * f64::from(f32::EPSILON) * ulps;
                    for (d, (found, expect)) in found[at..].iter().zip(&expect).enumerate() {
                        let error = (f64::from(*found) - expect).abs();
                        assert!(
                            error <= bound,
                            "{dtype:?} {head_dim} {from}..{to} {head} {d}: {found} {expect}"
                        );
                    }
                }
            }
        }
    }
}
