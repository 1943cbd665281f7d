//! The primitives of prelude.cuh, against the definitions of the formats.

use half::f16;
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
