//! Measures tokens per second of the native engine, for prompts and for generation, and the share of memory
//! bandwidth reached.
//!
//!     cargo run --release -p lode-worker --example speed -- 1b bf16 [threads]     a random llama of 1.1 billion parameters
//!     cargo run --release -p lode-worker --example speed -- 1b Q4_K [threads]     the same as a GGUF of one type
//!     cargo run --release -p lode-worker --example speed -- tests/models/lode-demo
//!
//! Types: bf16, int4, int8, nvfp4, mxfp4, mxfp8, and every GGUF block type that this program can generate.

#![allow(clippy::print_stdout, reason = "a command-line program")]

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use lode_model::gguf::{Header, Metadata, NewTensor, Value};
use lode_model::quant::ggml;
use lode_model::safetensors::{Dtype, write_header};
use lode_worker::engine::{BlobFile, Engine, Format, LoadOptions, ModelFiles, RowSelection, Slice, native};

const PROMPT: usize = 256;
const GENERATED: usize = 48;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let model = args.first().map_or("1b", String::as_str);
    let dtype = args.get(1).map_or("bf16", String::as_str);
    let threads = args.get(2).map(|text| text.parse()).transpose()?;
    let folder = tempfile::tempdir()?;
    let files = match (model, dtype.parse::<ggml::Type>()) {
        // `MXFP4` is ggml's type, `mxfp4` that of tensor blobs.
        ("1b", Ok(ty)) if ty.as_str() == dtype && ty.is_quantised() => random_gguf(folder.path(), ty)?,
        ("1b", _) => random_1b(folder.path(), dtype)?,
        (path, _) => checkpoint(Path::new(path))?,
    };

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
        engine.step(&[Slice { sequence, tokens: &tokens, want: RowSelection::Last }])?;
        let prompt = begin.elapsed().as_secs_f64();
        let mut steps: Vec<f64> = (0..GENERATED)
            .map(|_| {
                let begin = Instant::now();
                engine
                    .step(&[Slice { sequence, tokens: &tokens[..1], want: RowSelection::Last }])
                    .map(|_| begin.elapsed().as_secs_f64())
            })
            .collect::<Result<_, _>>()?;
        steps.sort_by(f64::total_cmp);
        engine.close(sequence);
        let (median, best) = (steps[GENERATED / 2], steps[0]);
        let rate = info.weights_bytes as f64 / median;
        println!(
            "round {round}: prompt {:.1} tok/s; generation {:.2} tok/s (best {:.2}), {:.1} GB/s, {:.0}% of memory bandwidth",
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
            .map(|sequence| Slice { sequence: *sequence, tokens: &tokens[..1], want: RowSelection::Last })
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

/// Bytes per second that `threads` threads read from a buffer larger than the caches, the best of three runs.
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

/// The folder of a checkpoint, or a GGUF.
fn checkpoint(folder: &Path) -> Result<ModelFiles, Box<dyn Error>> {
    if folder.is_file() {
        let path = folder.to_owned();
        let tensors =
            vec![BlobFile { path, name: None, whole_file: true, format: Format::Gguf, extent: None }];
        return Ok(ModelFiles { config_json: Vec::new(), tensors });
    }
    let path = folder.join("model.safetensors");
    let tensors =
        vec![BlobFile { path, name: None, whole_file: true, format: Format::Safetensors, extent: None }];
    Ok(ModelFiles { config_json: std::fs::read(folder.join("config.json"))?, tensors })
}

/// TinyLlama's shape with random weights, one blob per tensor.
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
            "int4" | "nvfp4" | "mxfp4" => 4,
            "int8" | "mxfp8" => 8,
            _ => 16,
        };
        let group = match dtype {
            "nvfp4" => 16,
            "mxfp4" | "mxfp8" => 32,
            _ => 64,
        };
        let words = cols * bits / 32;
        let parts: Vec<(&str, Dtype, Vec<u64>)> = match (cols, bits) {
            (0, _) => vec![(&name, Dtype::BF16, vec![rows])],
            (_, 16) => vec![(&name, Dtype::BF16, vec![rows, cols])],
            _ if group < 64 => {
                vec![(&name, Dtype::U32, vec![rows, words]), (&scale.0, Dtype::U8, vec![rows, cols / group])]
            }
            _ => vec![
                (&name, Dtype::U32, vec![rows, words]),
                (&scale.0, Dtype::BF16, vec![rows, cols / 64]),
                (&scale.1, Dtype::BF16, vec![rows, cols / 64]),
            ],
        };
        let entries: Vec<_> =
            parts.iter().map(|(name, dtype, shape)| (*name, *dtype, shape.as_slice())).collect();
        let metadata = [("quant_type", dtype), ("group_size", &group.to_string())]
            .map(|(k, v)| (k.to_owned(), v.to_owned()));
        let metadata = if bits == 16 { Default::default() } else { metadata.into() };
        file.write_all(&write_header(&entries, &metadata))?;
        for (_, dtype, shape) in &parts {
            let bytes = shape.iter().product::<u64>() * dtype.bitsize() as u64 / 8;
            for _ in 0..bytes / 8 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // BF16 between 2^-7 and 2^-6 of either sign; codes are random bits.
                let floats = (state >> 3) & 0x807f_807f_807f_807f | 0x3c00_3c00_3c00_3c00;
                let bytes = match dtype {
                    Dtype::U32 => state ^ state >> 29,
                    // Scales between 2^-3 and 1 as E4M3, far smaller as E8M0.
                    Dtype::U8 => (state >> 5) & 0x0707_0707_0707_0707 | 0x2020_2020_2020_2020,
                    _ => floats,
                };
                file.write_all(&bytes.to_le_bytes())?;
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

/// The same shape as a GGUF whose matrices all have one type. The rows are copies of a few.
fn random_gguf(folder: &Path, ty: ggml::Type) -> Result<ModelFiles, Box<dyn Error>> {
    let mut metadata = Metadata::new();
    metadata.set("general.architecture", "llama");
    for (key, value) in [
        ("context_length", 2048),
        ("embedding_length", 2048),
        ("block_count", 22),
        ("feed_forward_length", 5632),
        ("attention.head_count", 32),
        ("attention.head_count_kv", 4),
        ("vocab_size", 32000),
    ] {
        metadata.set(format!("llama.{key}"), Value::U32(value));
    }
    metadata.set("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let mut shapes = vec![
        ("token_embd".to_owned(), 32000, 2048),
        ("output".into(), 32000, 2048),
        ("output_norm".into(), 0, 2048),
    ];
    for layer in 0..22 {
        for (name, rows, cols) in [
            ("attn_q", 2048, 2048),
            ("attn_k", 256, 2048),
            ("attn_v", 256, 2048),
            ("attn_output", 2048, 2048),
            ("ffn_gate", 5632, 2048),
            ("ffn_up", 5632, 2048),
            ("ffn_down", 2048, 5632),
            ("attn_norm", 0, 2048),
            ("ffn_norm", 0, 2048),
        ] {
            shapes.push((format!("blk.{layer}.{name}"), rows, cols));
        }
    }
    let tensors = shapes.iter().map(|(name, rows, cols)| NewTensor {
        name: format!("{name}.weight"),
        dims: if *rows == 0 { vec![*cols] } else { vec![*cols, *rows] },
        ty: if *rows == 0 { ggml::Type::F32 } else { ty },
    });
    let header = Header::new(metadata, tensors)?;
    let path = folder.join("model.gguf");
    let mut file = BufWriter::new(File::create(&path)?);
    file.write_all(&header.to_bytes())?;
    for (entry, (_, rows, cols)) in header.tensors.iter().zip(&shapes) {
        let numbers =
            |seed: u64| (0..*cols).map(move |n| ((n * 37 + seed * 101) as f32).sin() * 0.02).collect();
        let rows_of = |n: u64| -> Result<Vec<Vec<u8>>, Box<dyn Error>> {
            let row = |seed| {
                let (numbers, len): (Vec<f32>, _) = (numbers(seed), entry.ty.row_bytes(*cols).unwrap_or(0));
                let mut bytes = vec![0; len as usize];
                ggml::encode(entry.ty, &numbers, &mut bytes)?;
                Ok(bytes)
            };
            (0..n).map(row).collect()
        };
        let some = rows_of(if *rows == 0 { 1 } else { 16 })?;
        for row in 0..(*rows).max(1) {
            file.write_all(&some[row as usize % some.len()])?;
        }
    }
    file.flush()?;
    let tensors = vec![BlobFile { path, name: None, whole_file: true, format: Format::Gguf, extent: None }];
    Ok(ModelFiles { config_json: Vec::new(), tensors })
}
