//! Benchmarks matrix products for each format: bytes of packed weights per second with one column,
//! multiplications per second with many columns.
//!
//!     cargo run --release -p lode-kernels --example products -- Q4_K Q6_K Q8_0 int4 BF16
//!
//! Prints the best of many repetitions and, in brackets, the median, on one thread. `LODE_CPU` selects the
//! instruction level.

#![allow(clippy::print_stdout, reason = "prints its results")]

use std::error::Error;
use std::time::Instant;

use bytes::Bytes;
use lode_kernels::cpu::Cpu;
use lode_kernels::{BEST_LEVEL, Batch, Dtype, Float, Kernels, Linear, Ops, Scaled, Weight};
use lode_model::quant::ggml::{self, Type};

const ROWS: usize = 2048;
const COLS: usize = 8192;
const COLUMNS: [usize; 7] = [1, 2, 4, 8, 16, 32, 128];

fn main() -> Result<(), Box<dyn Error>> {
    let level = std::env::var("LODE_CPU").unwrap_or_else(|_| BEST_LEVEL.to_owned());
    let ops = Ops::of_level(&level)?;
    for name in std::env::args().skip(1) {
        let weight = weight(&name)?;
        let mut kernels = Cpu::new(Some(1), ops)?;
        let row = |kernels: &mut Cpu, numbers: Vec<f32>| {
            let bytes = Bytes::from(bytemuck::pod_collect_to_vec::<f32, u8>(&numbers));
            kernels
                .matrix(&Weight::floats(Float::F32, (1, numbers.len()), bytes)?)
                .map_err(Box::<dyn Error>::from)
        };
        let of_x = row(&mut kernels, (0..COLS).map(|k| ((k * 13) as f32).sin()).collect())?;
        let of_out = row(&mut kernels, vec![0.0; ROWS])?;
        let linear = Linear::<Cpu> { matrix: kernels.matrix(&weight)?, bias: None };
        print!("{name:>6}");
        for m in COLUMNS {
            let batch = Batch { tokens: vec![0; m], positions: vec![0; m], ..Batch::default() };
            let step = kernels.begin(&batch, &[]);
            let (mut x, mut out) = (kernels.buffer(), kernels.buffer());
            kernels.embed(&step, &of_x, 1.0, &mut x);
            kernels.embed(&step, &of_out, 1.0, &mut out);
            let mut seconds: Vec<f64> = (0..(200 / m).max(9))
                .map(|_| {
                    let begin = Instant::now();
                    kernels.matmul_add(&step, &x, &linear, None, &mut out);
                    begin.elapsed().as_secs_f64()
                })
                .collect();
            seconds.sort_by(f64::total_cmp);
            let (work, unit) =
                if m == 1 { (weight.size_bytes() as f64, " GB/s") } else { ((ROWS * COLS * m) as f64, "") };
            let [best, median] = [seconds[0], seconds[seconds.len() / 2]].map(|s| work / s / 1e9);
            print!("  {m}: {best:.1} ({median:.1}){unit}");
        }
        println!("  {}", kernels.describe());
    }
    Ok(())
}

fn weight(name: &str) -> Result<Weight, Box<dyn Error>> {
    let numbers = |n: usize| (0..n).map(|k| ((k * 37 + k / 991) as f32).sin() * 0.05).collect::<Vec<f32>>();
    let bytes = |n: usize, and: u8, or: u8| -> Bytes {
        (0..n).map(|k| (k * 131 + k / 7 * 17) as u8 & and | or).collect::<Vec<u8>>().into()
    };
    let halves = |n: usize| -> Bytes {
        numbers(n).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect::<Vec<u8>>().into()
    };
    let (shape, all, none) = ((ROWS, COLS), ROWS * COLS, Bytes::new);
    let affine = |bits| {
        let dtype = Dtype::Affine { bits, group: 64, scales: Float::BF16 };
        Weight::new(
            dtype,
            shape,
            bytes(all / 8 * usize::from(bits), 255, 0),
            halves(all / 64),
            halves(all / 64),
        )
    };
    let scaled = |format: Scaled, n: usize| {
        let scales = bytes(all / format.group(), 7, 40);
        Weight::new(Dtype::Scaled(format), shape, bytes(n, 0x77, 0), scales, none())
    };
    Ok(match name {
        "int4" => affine(4)?,
        "int8" => affine(8)?,
        "mxfp4" => scaled(Scaled::Mxfp4, all / 2)?,
        "nvfp4" => scaled(Scaled::Nvfp4, all / 2)?,
        "mxfp8" => scaled(Scaled::Mxfp8, all)?,
        "F32" => Weight::floats(Float::F32, shape, bytemuck::pod_collect_to_vec(&numbers(all)).into())?,
        "F16" => {
            let numbers = numbers(all).into_iter().map(|number| half::f16::from_f32(number).to_bits());
            Weight::floats(Float::F16, shape, numbers.flat_map(u16::to_le_bytes).collect::<Vec<u8>>().into())?
        }
        "BF16" => Weight::floats(Float::BF16, shape, halves(all))?,
        _ => {
            let ty: Type = name.parse()?;
            let row_bytes = ty.row_bytes(COLS as u64).ok_or("the row is not a whole number of blocks")?;
            let mut some = vec![0; 16 * row_bytes as usize];
            if ggml::encode(ty, &numbers(16 * COLS), &mut some).is_err() {
                // There is no encoder. Any bytes are blocks; their scales are not infinite.
                some = bytes(some.len(), 0x3f, 0).into();
            }
            Weight::new(Dtype::Ggml(ty), shape, some.repeat(ROWS / 16).into(), none(), none())?
        }
    })
}
