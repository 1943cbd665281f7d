//! Measures how fast one thread quantises. `quantise FILE TYPE...` reads a file of float32 and prints
//! millions of elements per second for each type. `tests/bench/quantise` runs it.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::Instant;

use lode_model::quant::ggml::{self, Type};

/// The number of runs, of which the fastest is reported.
const RUNS: usize = 5;

fn main() {
    let mut args = std::env::args().skip(1);
    let bytes = std::fs::read(args.next().expect("a file of float32")).unwrap();
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect();
    for name in args {
        let ty: Type = name.parse().unwrap();
        let mut out = vec![0; ty.row_bytes(values.len() as u64).unwrap() as usize];
        let run = || {
            let start = Instant::now();
            ggml::encode(ty, &values, &mut out).unwrap();
            start.elapsed().as_secs_f64()
        };
        let best = std::iter::repeat_with(run).take(RUNS).fold(f64::INFINITY, f64::min);
        println!("{name} {:.1}", values.len() as f64 / best / 1e6);
    }
}
