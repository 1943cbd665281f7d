//! On a machine with a GPU: products of every format compared with the scalar version, and the bandwidth that they
//! reach. `tests/gpu/run` calls these tests. Without a GPU, the emulator executes the same code on small matrices.
#![allow(clippy::print_stdout, reason = "tests/gpu/run reads the results")]

use std::time::Instant;

use lode_model::quant::ggml::Type;

use super::super::backend::Cuda;
use super::super::copies::Copies;
use super::super::cubin_cache::CubinCache;
use super::super::driver::Driver;
use super::super::emulator::Emulator;
use super::super::gpu::Gpu;
use super::harness::is_available;
use super::machine_code;
use super::products::weight;
use crate::batch::Batch;
use crate::dtype::{Dtype, Float};
use crate::kernels::{Kernels, Linear};
use crate::report;
use crate::testing::{EXAMPLES, Packed, random};
use crate::weight::Weight;

/// The first GPU; `None` without one.
fn gpu(folder: &tempfile::TempDir) -> Option<Gpu> {
    if !Gpu::count().is_ok_and(|count| count > 0) {
        report::skip_optional(&report::current_test(), "there is no GPU");
        return None;
    }
    Some(Gpu::open(0, machine_code::compiler()?, CubinCache::new(folder.path())).unwrap())
}

fn floats(shape: (usize, usize), numbers: &[f32]) -> Weight {
    let bytes: Vec<u8> = bytemuck::pod_collect_to_vec(numbers);
    Weight::floats(Float::F32, shape, bytes.into()).unwrap()
}

/// A step of `n` rows.
fn begin<K: Kernels>(kernels: &mut K, n: usize) -> K::Step {
    let n = n as u32;
    let batch = Batch { tokens: (0..n).collect(), positions: (0..n).collect(), ..Batch::default() };
    kernels.begin(&batch, &[])
}

/// Products of two matrices that are stored together, with several numbers of columns. From 9 columns on, tensor cores
/// round both operands to BF16, except for weights of F32.
fn check_products<D: Driver>(kernels: &mut Cuda<D>, has_tensor_cores: bool, dtype: Dtype, columns: &[usize]) {
    let (rows, cols) = (75, 1152_usize.next_multiple_of(dtype.multiple()));
    let packed = [7, 8].map(|seed| Packed::random(dtype, rows, cols, seed));
    let matrices = kernels.matrices(&packed.each_ref().map(weight)).unwrap();
    let linears: Vec<_> = matrices.into_iter().map(|matrix| Linear { matrix, bias: None }).collect();
    for &n in columns {
        let is_rounded = has_tensor_cores && n > 8 && dtype != Dtype::Float(Float::F32);
        // An operand of BF16 has an error of at most 2^-9 of its value.
        let rounding = if is_rounded { 2.0 / 512.0 } else { 0.0 };
        let inputs = random(n * cols, 1);
        let table = kernels.matrix(&floats((n, cols), &inputs)).unwrap();
        let zeros = kernels.matrix(&floats((n, rows), &vec![0.0; n * rows])).unwrap();
        let step = begin(kernels, n);
        let (mut x, mut out) = (kernels.buffer(), kernels.buffer());
        kernels.embed(&step, &table, 1.0, &mut x);
        kernels.embed(&step, &zeros, 1.0, &mut out);
        for linear in &linears {
            kernels.matmul_add(&step, &x, linear, None, &mut out);
        }
        let mut found = Vec::new();
        kernels.read(&out, &mut found).unwrap();
        for row in 0..rows {
            let decoded = packed.each_ref().map(|packed| packed.decoded(row));
            for column in 0..n {
                let x = &inputs[column * cols..][..cols];
                let terms =
                    decoded.iter().flat_map(|w| w.iter().zip(x)).map(|(w, x)| f64::from(*w) * f64::from(*x));
                let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), v| (sum + v, size + v.abs()));
                let found = f64::from(found[column * rows + row]);
                let bound = (2.0 * cols as f64 * f64::from(f32::EPSILON) + 1.01 * rounding) * size;
                assert!((found - sum).abs() <= bound, "{dtype:?}, {n} columns: row {row}: {found} {sum}");
            }
        }
    }
}

#[test]
fn every_format_multiplies_on_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    let Some(gpu) = gpu(&folder) else {
        if is_available() {
            for device in [Emulator::new(), Emulator::with_tensor_cores()] {
                let has_tensor_cores = device.has_tensor_cores();
                let mut kernels = Cuda::new(device).unwrap();
                check_products(&mut kernels, has_tensor_cores, Dtype::Ggml(Type::Q8_0), &[1, 20]);
            }
        }
        return;
    };
    let has_tensor_cores = gpu.has_tensor_cores();
    let mut kernels = Cuda::new(gpu).unwrap();
    for &dtype in EXAMPLES {
        check_products(&mut kernels, has_tensor_cores, dtype, &[1, 2, 3, 8, 9, 16, 17, 40, 67, 130]);
    }
    println!("LODE_GPU {{\"formats\": {}}}", EXAMPLES.len());
}

/// Shapes and times of a measurement.
struct Measurement {
    shape: (usize, usize),
    /// Matrices that are read in turn, so that together they exceed the cache.
    matrices: usize,
    copy_bytes: usize,
    /// Products after those that are not timed.
    rounds: usize,
}

/// Bytes that copies within a device read and write in a second.
fn copied<D: Driver>(device: D, how: &Measurement) -> f64 {
    let mut copies = Copies::new(device, how.copy_bytes).unwrap();
    copies.within_device().unwrap();
    let started = Instant::now();
    (0..how.rounds).for_each(|_| copies.within_device().unwrap());
    2.0 * (how.rounds * how.copy_bytes) as f64 / started.elapsed().as_secs_f64()
}

/// A matrix of random rows that repeat, because encoding so many values would take minutes.
fn repeated(dtype: Dtype, (rows, cols): (usize, usize)) -> Weight {
    let some = weight(&Packed::random(dtype, rows.min(128), cols, 1));
    let times = rows / some.rows();
    let [codes, scales, biases] =
        [some.codes(), some.scales(), some.biases()].map(|part| part.repeat(times).into());
    Weight::new(dtype, (some.rows() * times, cols), codes, scales, biases).unwrap()
}

/// Bytes of packed weights that products with one column read in a second.
fn multiplied<D: Driver>(kernels: &mut Cuda<D>, dtype: Dtype, how: &Measurement) -> f64 {
    let (rows, cols) = how.shape;
    let before = kernels.device_bytes();
    let weight = repeated(dtype, how.shape);
    let load = |_| Linear { matrix: kernels.matrix(&weight).unwrap(), bias: None };
    let linears: Vec<_> = (0..how.matrices).map(load).collect();
    let bytes = kernels.device_bytes() - before;
    let table = kernels.matrix(&floats((1, cols), &random(cols, 2))).unwrap();
    let zeros = kernels.matrix(&floats((1, rows), &vec![0.0; rows])).unwrap();
    let step = begin(kernels, 1);
    let (mut x, mut out, mut read) = (kernels.buffer(), kernels.buffer(), Vec::new());
    kernels.embed(&step, &table, 1.0, &mut x);
    kernels.embed(&step, &zeros, 1.0, &mut out);
    let mut multiply = |rounds: usize| {
        let started = Instant::now();
        for _ in 0..rounds {
            linears.iter().for_each(|linear| kernels.matmul_add(&step, &x, linear, None, &mut out));
        }
        kernels.read(&out, &mut read).unwrap();
        bytes as f64 * rounds as f64 / started.elapsed().as_secs_f64()
    };
    multiply(2);
    multiply(how.rounds)
}

fn measure<D: Driver>(open: impl Fn() -> D, how: &Measurement) {
    let copied = copied(open(), how);
    println!("LODE_GPU {{\"copy_bytes_per_second\": {copied:.0}}}");
    let mut kernels = Cuda::new(open()).unwrap();
    for (name, dtype) in [
        ("BF16", Dtype::Float(Float::BF16)),
        ("Q8_0", Dtype::Ggml(Type::Q8_0)),
        ("int8", Dtype::Affine { bits: 8, group: 64, scales: Float::BF16 }),
        ("Q6_K", Dtype::Ggml(Type::Q6_K)),
        ("Q4_K", Dtype::Ggml(Type::Q4_K)),
        ("Q4_0", Dtype::Ggml(Type::Q4_0)),
        ("int4", Dtype::Affine { bits: 4, group: 64, scales: Float::BF16 }),
    ] {
        let rate = multiplied(&mut kernels, dtype, how);
        println!("LODE_GPU {{\"format\": \"{name}\", \"bytes_per_second\": {rate:.0}}}");
    }
}

/// Matrices of 4096 x 14336, as in an 8B model; the smallest of them is 33 MB.
#[test]
fn products_are_measured_on_a_gpu() {
    let folder = tempfile::tempdir().unwrap();
    if gpu(&folder).is_some() {
        let how = Measurement { shape: (14336, 4096), matrices: 8, copy_bytes: 1 << 30, rounds: 30 };
        measure(|| gpu(&folder).unwrap(), &how);
    } else if is_available() {
        let how = Measurement { shape: (8, 256), matrices: 2, copy_bytes: 1 << 10, rounds: 1 };
        measure(Emulator::new, &how);
    }
}
