//! Tokens a second of the native engine, for prompts and for generation, and the share of memory bandwidth reached.
//!
//!     cargo run --release -p lode-worker --example speed -- 1b bf16 [threads]     a random llama of 1.1 billion parameters
//!     cargo run --release -p lode-worker --example speed -- tests/models/lode-demo

#![allow(clippy::print_stdout, reason = "a program for people")]

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use lode_model::safetensors::{Dtype, write_header};
use lode_worker::engine::{BlobFile, Engine, Format, LoadOptions, ModelFiles, Slice, Want, native};

const PROMPT: usize = 256;
const GENERATED: usize = 48;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let model = args.first().map_or("1b", String::as_str);
    let dtype = args.get(1).map_or("bf16", String::as_str);
    let threads = args.get(2).map(|text| text.parse()).transpose()?;
    let folder = tempfile::tempdir()?;
    let files = if model == "1b" { random_1b(folder.path(), dtype)? } else { checkpoint(Path::new(model))? };

    let bandwidth =
        bandwidth(threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)));
    let begin = Instant::now();
    let options =
        LoadOptions { threads, max_sequences: 8, context_length: Some(2048), ..LoadOptions::default() };
    let mut engine = native::load(&files, options)?;
    let info = engine.info().clone();
    println!("{model} {dtype} on {}: loaded in {:.3} s", info.device, begin.elapsed().as_secs_f64());
    println!(
        "{:.0} MB of weights, memory reads {:.1} GB/s",
        info.weights_bytes as f64 / 1e6,
        bandwidth / 1e9
    );

    let tokens: Vec<u32> = (0..PROMPT as u32).map(|i| (i * 7919 + 13) % info.vocab_size as u32).collect();
    for round in 0..2 {
        let sequence = engine.open(PROMPT + GENERATED)?;
        let begin = Instant::now();
        engine.step(&[Slice { sequence, tokens: &tokens, want: Want::Last }])?;
        let prompt = begin.elapsed().as_secs_f64();
        let mut steps: Vec<f64> = (0..GENERATED)
            .map(|_| {
                let begin = Instant::now();
                engine
                    .step(&[Slice { sequence, tokens: &tokens[..1], want: Want::Last }])
                    .map(|_| begin.elapsed().as_secs_f64())
            })
            .collect::<Result<_, _>>()?;
        steps.sort_by(f64::total_cmp);
        engine.close(sequence);
        let (median, best) = (steps[GENERATED / 2], steps[0]);
        let rate = info.weights_bytes as f64 / median;
        println!(
            "round {round}: prompt {:.1} tok/s; generation {:.2} tok/s (best {:.2}), {:.1} GB/s, {:.0}% of what memory gives",
            PROMPT as f64 / prompt,
            1.0 / median,
            1.0 / best,
            rate / 1e9,
            100.0 * rate / bandwidth
        );
    }
    batch(engine.as_mut(), &tokens)
}

/// Generation of several sequences at once.
fn batch(engine: &mut dyn Engine, tokens: &[u32]) -> Result<(), Box<dyn Error>> {
    for n in [2, 4, 8] {
        let open = (0..n).map(|_| engine.open(64)).collect::<Result<Vec<_>, _>>()?;
        let slices: Vec<Slice<'_>> = open
            .iter()
            .map(|sequence| Slice { sequence: *sequence, tokens: &tokens[..1], want: Want::Last })
            .collect();
        let begin = Instant::now();
        for _ in 0..16 {
            engine.step(&slices)?;
        }
        println!("{n} sequences: {:.2} tok/s", 16.0 * f64::from(n) / begin.elapsed().as_secs_f64());
        open.into_iter().for_each(|sequence| engine.close(sequence));
    }
    Ok(())
}

/// Bytes a second that `threads` threads read from a buffer larger than the caches, the best of three.
fn bandwidth(threads: usize) -> f64 {
    let buffer: Vec<u64> = (0..1u64 << 27).collect();
    let pass = || {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for part in buffer.chunks(buffer.len().div_ceil(threads)) {
                scope.spawn(|| std::hint::black_box(part.iter().fold(0, |sum, v| sum ^ v)));
            }
        });
        size_of_val(buffer.as_slice()) as f64 / begin.elapsed().as_secs_f64()
    };
    (0..3).map(|_| pass()).fold(0.0, f64::max)
}

fn checkpoint(folder: &Path) -> Result<ModelFiles, Box<dyn Error>> {
    let path = folder.join("model.safetensors");
    let tensors =
        vec![BlobFile { path, name: None, whole_file: true, format: Format::Safetensors, extent: None }];
    Ok(ModelFiles { config_json: std::fs::read(folder.join("config.json"))?, tensors })
}

/// TinyLlama's shape with random weights, one blob a tensor.
fn random_1b(folder: &Path, dtype: &str) -> Result<ModelFiles, Box<dyn Error>> {
    let config_json =
        br#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "intermediate_size": 5632,
        "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
        "max_position_embeddings": 2048, "tie_word_embeddings": false}"#;
    let mut shapes =
        vec![("model.embed_tokens.weight".to_owned(), 32000, 2048), ("lm_head.weight".into(), 32000, 2048)];
    for layer in 0..22 {
        for (name, rows, cols) in [
            ("self_attn.q_proj", 2048, 2048),
            ("self_attn.k_proj", 256, 2048),
            ("self_attn.v_proj", 256, 2048),
            ("self_attn.o_proj", 2048, 2048),
            ("mlp.gate_proj", 5632, 2048),
            ("mlp.up_proj", 5632, 2048),
            ("mlp.down_proj", 2048, 5632),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), rows, cols));
        }
        for name in ["input_layernorm", "post_attention_layernorm"] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), 2048, 0));
        }
    }
    shapes.push(("model.norm.weight".to_owned(), 2048, 0));
    let mut tensors = Vec::new();
    let mut state = 1u64;
    for (name, rows, cols) in shapes {
        let path = folder.join(&name);
        let mut file = BufWriter::new(File::create(&path)?);
        let scale = (format!("{name}.scale"), format!("{name}.bias"));
        let bits = match dtype {
            _ if cols == 0 || name.contains("embed") => 16,
            "int4" => 4,
            "int8" => 8,
            _ => 16,
        };
        let words = cols * bits / 32;
        let parts: Vec<(&str, Dtype, Vec<u64>)> = match (cols, bits) {
            (0, _) => vec![(&name, Dtype::BF16, vec![rows])],
            (_, 16) => vec![(&name, Dtype::BF16, vec![rows, cols])],
            _ => vec![
                (&name, Dtype::U32, vec![rows, words]),
                (&scale.0, Dtype::BF16, vec![rows, cols / 64]),
                (&scale.1, Dtype::BF16, vec![rows, cols / 64]),
            ],
        };
        let entries: Vec<_> =
            parts.iter().map(|(name, dtype, shape)| (*name, *dtype, shape.as_slice())).collect();
        let metadata =
            [("quant_type", dtype), ("group_size", "64")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let metadata = if bits == 16 { Default::default() } else { metadata.into() };
        file.write_all(&write_header(&entries, &metadata))?;
        for (_, dtype, shape) in &parts {
            let bytes = shape.iter().product::<u64>() * if *dtype == Dtype::U32 { 4 } else { 2 };
            for _ in 0..bytes / 8 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // BF16 between 2^-7 and 2^-6 of either sign; codes are any bits.
                let floats = (state >> 3) & 0x807f_807f_807f_807f | 0x3c00_3c00_3c00_3c00;
                file.write_all(
                    &(if *dtype == Dtype::U32 { state ^ state >> 29 } else { floats }).to_le_bytes(),
                )?;
            }
        }
        file.flush()?;
        tensors.push(BlobFile {
            path,
            name: Some(name),
            whole_file: false,
            format: Format::Safetensors,
            extent: None,
        });
    }
    Ok(ModelFiles { config_json: config_json.to_vec(), tensors })
}
