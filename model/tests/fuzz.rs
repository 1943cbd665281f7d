//! Feeds the parsers of untrusted bytes with damaged copies of valid input. Nothing may panic, and nothing
//! may allocate more memory than its input justifies. Runs for seconds by default; LODE_FUZZ_SECONDS sets the
//! time of each target, LODE_FUZZ_SEED repeats a run, and LODE_FUZZ_CORPUS names a folder to which the valid
//! inputs are written. An input that makes a target panic is printed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use targets::Target;

/// A small generator, so that a seed gives the same numbers everywhere (Marsaglia's xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Numbers at which counters overflow.
const EDGES: [u64; 12] =
    [0, 1, 7, 0x7f, 0x80, 0xff, 0xffff, 0x7fff_ffff, 0xffff_ffff, i64::MAX as u64, 1 << 63, u64::MAX];

/// Returns a damaged copy of one seed, or of two combined.
fn damaged(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
                let len = [1, 2, 4, 8][random.below(4)].min(bytes.len() - at);
                bytes[at..at + len].copy_from_slice(&edge[..len]);
            }
            4 => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                let piece = other[from..].iter().copied().take(random.below(64)).collect::<Vec<_>>();
                bytes.splice(at..at, piece);
            }
            5 => {
                let end = (at + random.below(32)).min(bytes.len());
                bytes.drain(at..end);
            }
            6 => {
                // Replace a number in a text.
                let digits = EDGES[random.below(EDGES.len())].to_string();
                let run = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                if run > 0 {
                    bytes.splice(at..at + run, digits.into_bytes());
                }
            }
            _ => {
                let end = (at + random.below(16)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
        bytes.truncate(1 << 16);
    }
    bytes
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Feeds a target until its time is up.
fn run(Target { name: target, seeds, check }: Target) {
    seeds.iter().for_each(|seed| check(seed));
    if let Ok(folder) = std::env::var("LODE_FUZZ_CORPUS") {
        let folder = std::path::Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder).unwrap();
        for (at, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(at.to_string()), seed).unwrap();
        }
    }
    let time = Duration::from_secs(setting("LODE_FUZZ_SECONDS").unwrap_or(2));
    let seed = setting("LODE_FUZZ_SEED").unwrap_or_else(|| {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |now| now.as_nanos() as u64)
    });
    let (mut random, started, mut inputs) = (Random(seed | 1), Instant::now(), 0u64);
    while inputs.is_multiple_of(64) && started.elapsed() < time || !inputs.is_multiple_of(64) {
        let input = damaged(&mut random, &seeds);
        let began = Instant::now();
        if catch_unwind(AssertUnwindSafe(|| check(&input))).is_err() {
            panic!(
                "{target} panicked on {:?} (LODE_FUZZ_SEED={seed}, input {inputs})",
                String::from_utf8_lossy(&input)
            );
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{target} took {:?} for {input:02x?}",
            began.elapsed()
        );
        inputs += 1;
    }
    println!("{target}: {inputs} inputs in {:.1} s, seed {seed}", started.elapsed().as_secs_f64());
}

macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            let mut all = targets::all().into_iter();
            run(all.find(|target| target.name == stringify!($name)).unwrap());
        })*

        #[test]
        fn no_target_is_forgotten() {
            let names: Vec<&str> = targets::all().iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

tests!(
    safetensors,
    gguf,
    onnx,
    onnx_graph,
    conversion,
    checkpoint,
    modelfile,
    manifest,
    tar,
    reference,
    texts,
    template,
    xorb,
    shard
);
