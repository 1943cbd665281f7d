//! Compiles every kernel for GPUs with NVRTC, which needs no GPU, and reports the registers and the spilled
//! bytes of each. `LODE_NVRTC` names the folder of NVRTC's library. With `LODE_GPU_ARCHITECTURES=all`, every
//! program is compiled for every architecture, and the whole table is printed.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lode_model::quant::ggml::Type;

use super::super::emulator;
use super::super::nvrtc::{Architecture, NVRTC_FILES, Nvrtc};
use super::super::program::Program;
use crate::dtype::{Dtype, Float};
use crate::error::DeviceError;
use crate::report;
use crate::testing::EXAMPLES;

/// Each program once: examples that differ only in their group size have the same one.
fn programs() -> Vec<Program> {
    let mut programs: Vec<Program> = Vec::new();
    let of_formats = EXAMPLES.iter().map(|dtype| Program::of_format(*dtype).unwrap());
    let caches = [Dtype::Float(Float::F32), Dtype::Float(Float::F16), Dtype::Ggml(Type::Q8_0)];
    let of_caches = caches.map(|dtype| Program::of_cache(dtype).unwrap());
    let of_tiles = EXAMPLES.iter().filter_map(|dtype| Program::of_tensor_tiles(*dtype));
    for program in
        of_formats.chain(of_tiles).chain(of_caches).chain([Program::of_rows(), Program::of_samples()])
    {
        if !programs.contains(&program) {
            programs.push(program);
        }
    }
    programs
}

/// Whether it is one of the formats that most models use, or has no format.
fn is_hot(program: &Program) -> bool {
    let hot = ["BF16", "F16", "Q8_0", "Q4_0", "Q4K", "Q6K", "Affine<4, ScaleBF16>", "Mxfp4Block"];
    let name = program.name();
    let format = name.strip_prefix("weights ").or_else(|| name.strip_prefix(TENSOR_TILES));
    format.is_none_or(|format| hot.contains(&format))
}

/// The names of the programs for tensor cores.
const TENSOR_TILES: &str = "tensor tiles ";

/// What the assembler reports about a kernel.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    kernel: String,
    registers: u32,
    stack_bytes: u32,
    spilled_bytes: u32,
}

/// Parses the assembler's log.
fn usages(log: &str) -> Vec<Usage> {
    let mut found: Vec<Usage> = Vec::new();
    let before = |line: &str, word: &str| -> u32 {
        let number = line.split(word).next().and_then(|text| text.split_whitespace().next_back());
        number
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| panic!("no number before `{word}`: {line}"))
    };
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap().to_owned();
            found.push(Usage { kernel, registers: 0, stack_bytes: 0, spilled_bytes: 0 });
        } else if let Some(last) = found.last_mut() {
            if line.contains("bytes stack frame") {
                last.stack_bytes = before(line, " bytes stack frame");
                last.spilled_bytes = before(line, " bytes spill stores") + before(line, " bytes spill loads");
            } else if line.contains(" registers") {
                last.registers = before(line, " registers");
            }
        }
    }
    found
}

/// NVRTC; if it is not installed, the test is reported as skipped.
pub(super) fn compiler() -> Option<Nvrtc> {
    let folder = std::env::var_os("LODE_NVRTC").map(PathBuf::from);
    let files =
        NVRTC_FILES.map(|file| folder.as_ref().map_or(PathBuf::from(file), |folder| folder.join(file)));
    match Nvrtc::open(&files, None) {
        Ok(nvrtc) => Some(nvrtc),
        // Under emulation of a processor, the library is that of another one.
        Err(error) if *emulator::compiler() == emulator::Compiler::OtherArchitecture => {
            report::skip_optional(&report::current_test(), &error.to_string());
            None
        }
        Err(error) => {
            report::skip(&report::current_test(), &error.to_string());
            None
        }
    }
}

#[test]
fn every_kernel_compiles_without_spills() {
    let Some(nvrtc) = compiler() else { return };
    let is_long = std::env::var_os("LODE_GPU_ARCHITECTURES").is_some();
    let numbers: &[(u32, u32)] =
        if is_long { &[(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)] } else { &[(8, 0), (9, 0)] };
    let architectures: Vec<Architecture> =
        numbers.iter().map(|&(major, minor)| Architecture { major, minor }).collect();
    let programs = programs();
    // The short form compiles all programs for the first architecture and the most used ones for the second.
    let is_wanted = |program: &Program, a: &Architecture| {
        let is_supported = *a >= Architecture::TENSOR_CORES || !program.name().starts_with(TENSOR_TILES);
        is_supported && (is_long || a.major == 8 || is_hot(program))
    };
    let work: Vec<(&Program, Architecture)> = programs
        .iter()
        .flat_map(|program| {
            architectures.iter().filter(move |a| is_wanted(program, a)).map(move |a| (program, *a))
        })
        .collect();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((program, architecture)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let compiled = nvrtc.compile(program, *architecture).unwrap();
                    assert!(compiled.cubin.starts_with(b"\x7fELF"));
                    let usages = usages(&compiled.log);
                    assert_eq!(usages.len(), program.kernels().len(), "{}: {}", program.name(), compiled.log);
                    for usage in usages {
                        assert!(program.kernels().contains(&usage.kernel.as_str()), "{usage:?}");
                        rows.lock().unwrap().push((architecture.name(), program.name(), usage));
                    }
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap();
    rows.sort_by(|a, b| (&a.0, a.1, &a.2.kernel).cmp(&(&b.0, b.1, &b.2.kernel)));
    let mut table = String::new();
    for (architecture, program, usage) in &rows {
        let Usage { kernel, registers, stack_bytes, spilled_bytes } = usage;
        table += &format!(
            "{architecture:6} {program:24} {kernel:20} {registers:4} {stack_bytes:5} {spilled_bytes:5}\n"
        );
    }
    for architecture in architectures.iter().map(|a| a.name()) {
        let of = || rows.iter().filter(|row| row.0 == architecture);
        let most = of().max_by_key(|row| row.2.registers).unwrap();
        report::figure(
            &format!("CUDA kernels for {architecture}"),
            &format!(
                "{} kernels, at most {} registers ({}, {})",
                of().count(),
                most.2.registers,
                most.1,
                most.2.kernel
            ),
        );
    }
    let spilled = rows.iter().filter(|row| row.2.spilled_bytes > 0 || row.2.stack_bytes > 0).count();
    assert_eq!(spilled, 0, "architecture, program, kernel, registers, stack, spilled bytes:\n{table}");
    if is_long {
        report::figure("registers, stack and spilled bytes of each kernel", &format!("\n{table}"));
    }
}

#[test]
fn an_invalid_program_fails_with_the_compilers_message() {
    let Some(nvrtc) = compiler() else { return };
    let architecture = Architecture { major: 8, minor: 0 };
    let error =
        nvrtc.compile(&Program::of_text("KERNEL(k, RowOp, 64) { nonsense; }"), architecture).unwrap_err();
    assert!(matches!(&error, DeviceError::Compile { reason, .. } if reason.contains("nonsense")), "{error}");
}
