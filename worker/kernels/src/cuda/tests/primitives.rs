//! The primitives of prelude.cuh, against the definitions of the formats.

use half::{bf16, f16};
use lode_model::quant::float;

use super::super::args::RowOp;
use super::super::program::Program;
use super::harness::Harness;
use crate::testing::random;

const KERNELS: &str = "
KERNEL(halves, RowOp, 64) {
    u32 i = block_x() * 64 + thread_index();
    ((f32 *)a.out)[i] = half_to_f32(i);
}
KERNEL(to_halves, RowOp, 64) {
    u32 i = block_x() * 64 + thread_index();
    if (i < a.cols) ((u32 *)a.out)[i] = f32_to_half(((const f32 *)a.x)[i]);
}
KERNEL(bytes, RowOp, 64) {
    u32 i = block_x() * 64 + thread_index();
    ((f32 *)a.out)[i] = e4m3_to_f32(i);
    ((f32 *)a.out)[256 + i] = e8m0_to_f32(i);
}
KERNEL(products, RowOp, 64) {
    u32 i = thread_index();
    const u32 *x = (const u32 *)a.x;
    ((u32 *)a.out)[i] = (u32)dp4a(x[i], x[64 + i], (i32)x[128 + i]);
    ((u32 *)a.out)[64 + i] = count_ones(x[i]);
    ((u32 *)a.out)[128 + i] = shuffle(ALL_LANES, x[i], (i + 5) % 32);
}
KERNEL(to_bf16, RowOp, 64) {
    u32 i = block_x() * 64 + thread_index();
    const f32 *x = (const f32 *)a.x;
    if (2 * i < a.cols) ((u32 *)a.out)[i] = f32_to_bf16x2(x[2 * i], x[2 * i + 1]);
}
KERNEL(matrices, RowOp, 64) {
    SHARED(U4, rows, 64);
    u32 i = thread_index();
    // Each warp has its rows in the order of the other one.
    rows[63 - i] = load16((const u8 *)a.x + 16 * i);
    barrier();
    load_matrices((u32 *)a.out + 4 * i, rows + i);
}
KERNEL(tiles, RowOp, 64) {
    const u32 *x = (const u32 *)a.x + 10 * thread_index();
    f32 sums[4];
    for (u32 i = 0; i < 4; ++i) sums[i] = from_bits(x[6 + i]);
    multiply_tiles(sums, x, x + 4);
    for (u32 i = 0; i < 4; ++i) ((f32 *)a.out)[4 * thread_index() + i] = sums[i];
}
";

fn same(found: f32, expect: f32) -> bool {
    found.to_bits() == expect.to_bits() || found.is_nan() && expect.is_nan()
}

#[test]
fn conversions_have_the_bits_of_the_formats() {
    let Some(mut harness) = Harness::new(&Program::of_text(KERNELS)) else { return };
    let out = harness.floats(1 << 16);
    harness.launch("halves", [1024, 1, 1], 64, &RowOp { out: out.0, ..RowOp::default() });
    for (bits, found) in harness.read::<f32>(out, 1 << 16).into_iter().enumerate() {
        assert!(same(found, f16::from_bits(bits as u16).to_f32()), "{bits:#x}: {found}");
    }

    let mut values: Vec<f32> =
        random(2000, 1).iter().zip(random(2000, 2)).map(|(x, e)| x * (20.0 * e).exp2()).collect();
    values.extend([
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        65_504.0,
        65_519.9,
        65_520.0,
        1e30,
        6e-8,
        2.9e-8,
    ]);
    // Values half way between two half floats are rounded to even.
    values.extend((0..2000u16).map(|i| f16::from_bits(i * 15).to_f32() * (1.0 + 1.0 / 2048.0)));
    let x = harness.upload(&values);
    let args = RowOp { x: x.0, out: out.0, cols: values.len() as u32, ..RowOp::default() };
    harness.launch("to_halves", [(values.len() as u32).div_ceil(64), 1, 1], 64, &args);
    for (value, found) in values.iter().zip(harness.read::<u32>(out, values.len())) {
        assert_eq!(found, u32::from(f16::from_f32(*value).to_bits()), "{value}");
    }

    values.extend((0..2000u16).map(|i| f32::from_bits(u32::from(i * 31) << 16 | 0x8000)));
    values.truncate(values.len() / 2 * 2);
    let (n, x) = (values.len() / 2, harness.upload(&values));
    let args = RowOp { x: x.0, out: out.0, cols: values.len() as u32, ..RowOp::default() };
    harness.launch("to_bf16", [(n as u32).div_ceil(64), 1, 1], 64, &args);
    for (values, found) in values.chunks_exact(2).zip(harness.read::<[u16; 2]>(out, n)) {
        let is_same = |value: f32, found: u16| match value.is_nan() {
            true => found == 0x7fff,
            false => found == bf16::from_f32(value).to_bits(),
        };
        assert!(is_same(values[0], found[0]) && is_same(values[1], found[1]), "{values:?}: {found:x?}");
    }

    harness.launch("bytes", [4, 1, 1], 64, &RowOp { out: out.0, ..RowOp::default() });
    let found = harness.read::<f32>(out, 512);
    for code in 0..=255u8 {
        let (e4m3, e8m0) = (found[usize::from(code)], found[256 + usize::from(code)]);
        assert!(same(e4m3, float::e4m3_to_f32(code)), "{code:#x}: {e4m3}");
        assert!(same(e8m0, float::e8m0_to_f32(code)), "{code:#x}: {e8m0}");
    }
}

#[test]
fn integers_and_lanes() {
    let Some(mut harness) = Harness::new(&Program::of_text(KERNELS)) else { return };
    let numbers: Vec<u32> = random(192, 3).iter().map(|v| v.to_bits().wrapping_mul(0x9e37_79b9)).collect();
    let (x, out) = (harness.upload(&numbers), harness.floats(192));
    harness.launch("products", [1, 1, 1], 64, &RowOp { x: x.0, out: out.0, ..RowOp::default() });
    let found = harness.read::<u32>(out, 192);
    for i in 0..64 {
        let pairs = numbers[i].to_le_bytes().into_iter().zip(numbers[64 + i].to_le_bytes());
        let sum = pairs.fold(numbers[128 + i].cast_signed(), |sum, (a, b)| {
            sum.wrapping_add(i32::from(a.cast_signed()) * i32::from(b.cast_signed()))
        });
        assert_eq!(found[i], sum.cast_unsigned());
        assert_eq!(found[64 + i], numbers[i].count_ones());
        assert_eq!(found[128 + i], numbers[i / 32 * 32 + (i + 5) % 32]);
    }
}

#[test]
fn matrices_from_shared_memory() {
    let Some(mut harness) = Harness::new(&Program::of_text(KERNELS)) else { return };
    // Sixteen bytes for each thread, which are a row of a matrix.
    let rows: Vec<u16> = (0..64 * 8).collect();
    let (x, out) = (harness.upload(&rows), harness.floats(64 * 4));
    harness.launch("matrices", [1, 1, 1], 64, &RowOp { x: x.0, out: out.0, ..RowOp::default() });
    for (thread, found) in harness.read::<[[u16; 2]; 4]>(out, 64).into_iter().enumerate() {
        let (first, lane) = (thread / 32 * 32, thread % 32);
        for (matrix, found) in found.into_iter().enumerate() {
            let row = 63 - (first + 8 * matrix + lane / 4);
            let at = (8 * row + 2 * (lane % 4)) as u16;
            assert_eq!(found, [at, at + 1], "{thread} {matrix}");
        }
    }
}

/// The fragments are those of `mma.m16n8k16` with `.bf16` in the PTX ISA. All sums are integers, which are exact in
/// whatever order they are added.
#[test]
fn tiles_are_multiplied() {
    let Some(mut harness) = Harness::new(&Program::of_text(KERNELS)) else { return };
    let integers =
        |n, seed| -> Vec<f32> { random(n, seed).into_iter().map(|v| (v * 100.0).round()).collect() };
    // One tile for each of two warps.
    let (a, b, c) = (integers(2 * 16 * 16, 1), integers(2 * 16 * 8, 2), integers(2 * 16 * 8, 3));
    let pair = |values: [f32; 2]| {
        let [low, high] = values.map(|v| u32::from(bf16::from_f32(v).to_bits()));
        low | high << 16
    };
    let mut words = Vec::new();
    for thread in 0..64 {
        let (tile, group, in_group) = (thread / 32, thread % 32 / 4, thread % 4);
        for i in [0, 2, 4, 6] {
            let row = if (0..2).contains(&i) || (4..6).contains(&i) { group } else { group + 8 };
            let col = in_group * 2 + if i >= 4 { 8 } else { 0 };
            words.push(pair([0, 1].map(|j| a[(tile * 16 + row) * 16 + col + j])));
        }
        for i in [0, 2] {
            let row = in_group * 2 + if i >= 2 { 8 } else { 0 };
            words.push(pair([0, 1].map(|j| b[(tile * 16 + row + j) * 8 + group])));
        }
        for i in 0..4 {
            let (row, col) = (if i < 2 { group } else { group + 8 }, in_group * 2 + (i & 1));
            words.push(c[(tile * 16 + row) * 8 + col].to_bits());
        }
    }
    let (x, out) = (harness.upload(&words), harness.floats(64 * 4));
    harness.launch("tiles", [1, 1, 1], 64, &RowOp { x: x.0, out: out.0, ..RowOp::default() });
    for (thread, found) in harness.read::<[f32; 4]>(out, 64).into_iter().enumerate() {
        let (tile, group, in_group) = (thread / 32, thread % 32 / 4, thread % 4);
        for (i, found) in found.into_iter().enumerate() {
            let (row, col) = (if i < 2 { group } else { group + 8 }, in_group * 2 + (i & 1));
            let products = (0..16).map(|k| a[(tile * 16 + row) * 16 + k] * b[(tile * 16 + k) * 8 + col]);
            assert_eq!(found, c[(tile * 16 + row) * 8 + col] + products.sum::<f32>(), "{thread} {i}");
        }
    }
}
