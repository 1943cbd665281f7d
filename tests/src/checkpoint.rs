//! Checkpoint folders: the demo model in this repository, fine-tunes of it that share tensors, and malformed
//! checkpoints. This module reads and writes safetensors itself, so that tests can also write invalid
//! headers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The folder of the demo model.
#[must_use]
pub fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/lode-demo")
}

/// The demo model's reference outputs.
#[must_use]
pub fn demo_expected() -> Value {
    let text = fs::read(demo().join("expected.json")).expect("the demo model has reference outputs");
    serde_json::from_slice(&text).expect("reference outputs are JSON")
}

/// Copies the regular files of a folder.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder to copy") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().expect("a file has a name"))).expect("a copy");
        }
    }
}

/// Writes a copy of the demo model that differs in one tensor, like a partial fine-tune.
pub fn write_demo_variant(to: &Path, changed_tensor: &str) {
    copy_folder(&demo(), to);
    let path = to.join("model.safetensors");
    let mut bytes = fs::read(&path).expect("weights");
    let tensors = read_tensor_headers(&bytes);
    let tensor = &tensors[changed_tensor];
    for byte in bytes[tensor.begin..tensor.end].iter_mut().step_by(2) {
        *byte ^= 1; // the last bit of every BF16 value
    }
    fs::write(&path, bytes).expect("changed weights");
}

/// Writes a model that generates fixed text. A prompt ends with a special token (the cue), and the model
/// generates the pieces that belong to it. It is a Llama whose only layer adds zero, so the last token
/// determines the next one. All pieces must differ.
pub fn write_scripted_model(to: &Path, template: &str, outputs: &[(&str, &[&str])]) {
    const WIDTH: usize = 64;
    let mut tokens = vec!["<|end|>"];
    let mut next = vec![0];
    for (cue, pieces) in outputs {
        tokens.push(cue);
        tokens.extend_from_slice(pieces);
        next.extend(next.len() + 1..=next.len() + pieces.len());
        next.push(0);
    }
    assert!(tokens.len() <= WIDTH, "each token needs its own dimension");
    let is_special = |token: &&str| *token == tokens[0] || outputs.iter().any(|(cue, _)| cue == token);
    // Byte-level BPE spells spaces and line feeds with other letters.
    let spelled = |token: &str| token.replace(' ', "\u{120}").replace('\n', "\u{10A}");
    let vocabulary: BTreeMap<String, usize> =
        tokens.iter().enumerate().map(|(id, token)| (spelled(token), id)).collect();
    let added = tokens.iter().enumerate().filter(|(_, token)| is_special(token)).map(|(id, token)| {
        json!({"id": id, "content": token, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false})
    });
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added.collect::<Value>(), "pre_tokenizer": bytes, "decoder": bytes,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": WIDTH,
        "intermediate_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1,
        "head_dim": WIDTH, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "vocab_size": tokens.len(), "tie_word_embeddings": false, "eos_token_id": 0,
    });
    let (rows, width) = (tokens.len() as u64, WIDTH as u64);
    let one_in_each_row = |column: &dyn Fn(usize) -> Option<usize>| {
        let mut values = vec![0.0; tokens.len() * WIDTH];
        (0..tokens.len())
            .for_each(|row| column(row).into_iter().for_each(|at| values[row * WIDTH + at] = 1.0));
        values
    };
    // The end token follows several tokens, so its row has a one for each of them.
    let mut head = one_in_each_row(&|row| next.iter().position(|after| *after == row));
    next.iter().enumerate().filter(|(_, after)| **after == 0).for_each(|(token, _)| head[token] = 1.0);
    let square = [width, width];
    let nothing = || vec![0.0; WIDTH * WIDTH];
    let mut tensors: Vec<(String, &[u64], Vec<f32>)> = ["q", "k", "v", "o"]
        .map(|name| (format!("model.layers.0.self_attn.{name}_proj.weight"), &square[..], nothing()))
        .into();
    tensors.extend(
        ["gate", "up", "down"]
            .map(|name| (format!("model.layers.0.mlp.{name}_proj.weight"), &square[..], nothing())),
    );
    let table = [rows, width];
    tensors.push(("model.embed_tokens.weight".to_owned(), &table, one_in_each_row(&Some)));
    tensors.push(("lm_head.weight".to_owned(), &table, head));
    for norm in ["model.norm", "model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm"] {
        tensors.push((format!("{norm}.weight"), &square[..1], vec![1.0; WIDTH]));
    }
    let tensors: Vec<_> =
        tensors.iter().map(|(name, shape, values)| (name.as_str(), *shape, values.clone())).collect();
    fs::create_dir_all(to).expect("a folder");
    let write = |name: &str, bytes: Vec<u8>| fs::write(to.join(name), bytes).expect("a file");
    write("model.safetensors", safetensors(&tensors));
    write("config.json", config.to_string().into_bytes());
    write("tokenizer.json", tokenizer.to_string().into_bytes());
    write("tokenizer_config.json", json!({"eos_token": tokens[0]}).to_string().into_bytes());
    write("chat_template.jinja", template.as_bytes().to_vec());
}

/// A ChatML template with tools, and with tool calls in Qwen's format.
const TOOL_TEMPLATE: &str = r#"{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"#;

/// Writes the demo model with a template that supports tools. It was not trained to call any, but its vocabulary
/// can write every call.
pub fn write_demo_with_tools(to: &Path) {
    copy_folder(&demo(), to);
    fs::write(to.join("chat_template.jinja"), TOOL_TEMPLATE).expect("a file");
}

/// A tensor in the header of a safetensors file. Offsets count from the start of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// The dtype as written.
    pub dtype: String,
    /// The shape, row-major.
    pub shape: Vec<u64>,
    /// First byte in the file.
    pub begin: usize,
    /// One past the last byte in the file.
    pub end: usize,
}

/// Reads the header of a well-formed safetensors file.
#[must_use]
pub fn read_tensor_headers(file: &[u8]) -> BTreeMap<String, Tensor> {
    let length = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).expect("a header of JSON");
    let number = |value: &Value| value.as_u64().expect("a number");
    let entries =
        header.as_object().expect("a header is an object").iter().filter(|(name, _)| *name != "__metadata__");
    entries
        .map(|(name, entry)| {
            let offset = |i: usize| 8 + length + number(&entry["data_offsets"][i]) as usize;
            let tensor = Tensor {
                dtype: entry["dtype"].as_str().expect("a dtype").to_owned(),
                shape: entry["shape"].as_array().expect("a shape").iter().map(number).collect(),
                begin: offset(0),
                end: offset(1),
            };
            (name.clone(), tensor)
        })
        .collect()
}

/// A safetensors file of F32 tensors.
#[must_use]
pub fn safetensors(tensors: &[(&str, &[u64], Vec<f32>)]) -> Vec<u8> {
    let (mut header, mut data) = (json!({}), Vec::new());
    for (name, shape, values) in tensors {
        let begin = data.len();
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        header[*name] = json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, data.len()] });
    }
    safetensors_file(&header.to_string(), &data)
}

/// A safetensors file with any header text, valid or not.
#[must_use]
pub fn safetensors_file(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// The files in a folder and its subfolders: their relative paths and bytes.
#[must_use]
pub fn read_folder(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![path.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let entry = entry.expect("an entry").path();
            if entry.is_dir() {
                open.push(entry);
            } else {
                let name =
                    entry.strip_prefix(path).expect("a path in the folder").to_string_lossy().into_owned();
                files.insert(name, fs::read(&entry).expect("a readable file"));
            }
        }
    }
    files
}

/// Decodes BF16 or F32 bytes to F32 values.
#[must_use]
pub fn f32_values(dtype: &str, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        "BF16" => bytes
            .chunks_exact(2)
            .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
            .collect(),
        "F32" => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        other => panic!("f32_values does not support {other}"),
    }
}

/// Writes the demo model in the usual form of FP8 checkpoints: the layers' matrices as E4M3 codes, a scale
/// for each block of 128 by 128 that maps its largest value to the largest code, and a `quantization_config`.
pub fn write_fp8_demo(to: &Path) {
    copy_folder(&demo(), to);
    let path = to.join("model.safetensors");
    let bytes = fs::read(&path).expect("weights");
    let (mut header, mut data) = (json!({}), Vec::new());
    let mut push = |name: &str, dtype: &str, shape: &[u64], bytes: &[u8]| {
        let begin = data.len();
        data.extend_from_slice(bytes);
        header[name] = json!({ "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()] });
    };
    for (name, tensor) in &read_tensor_headers(&bytes) {
        let stored = &bytes[tensor.begin..tensor.end];
        match tensor.shape[..] {
            [rows, columns] if name.starts_with("model.layers.") => {
                let values = f32_values(&tensor.dtype, stored);
                let (codes, scales) = quantise_e4m3(&values, columns as usize);
                push(name, "F8_E4M3", &tensor.shape, &codes);
                let scales: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
                let blocks = [rows.div_ceil(128), columns.div_ceil(128)];
                push(&format!("{name}_scale_inv"), "F32", &blocks, &scales);
            }
            _ => push(name, &tensor.dtype, &tensor.shape, stored),
        }
    }
    fs::write(&path, safetensors_file(&header.to_string(), &data)).expect("weights");
    let path = to.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).expect("a config")).expect("JSON");
    config["quantization_config"] = json!({ "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128] });
    fs::write(&path, config.to_string()).expect("a config");
}

/// Quantises values to E4M3. Returns the codes and the scales of their blocks.
fn quantise_e4m3(values: &[f32], columns: usize) -> (Vec<u8>, Vec<f32>) {
    // The values of the positive codes, in ascending order.
    let table: Vec<f32> = (0..127u8)
        .map(|code| match (i32::from(code >> 3), f32::from(code & 7)) {
            (0, fraction) => fraction / 512.0,
            (exponent, fraction) => (1.0 + fraction / 8.0) * 2f32.powi(exponent - 7),
        })
        .collect();
    let (rows, across) = (values.len() / columns, columns.div_ceil(128));
    let block = |at: usize| at / columns / 128 * across + at % columns / 128;
    let mut scales = vec![0f32; rows.div_ceil(128) * across];
    for (at, value) in values.iter().enumerate() {
        let scale = &mut scales[block(at)];
        *scale = scale.max(value.abs() / 448.0);
    }
    let code = |(at, value): (usize, &f32)| {
        let x = value.abs() / scales[block(at)];
        let above = table.partition_point(|code| *code < x).clamp(1, 126);
        let nearest = if x - table[above - 1] < table[above] - x { above - 1 } else { above };
        nearest as u8 | if *value < 0.0 { 0x80 } else { 0 }
    };
    (values.iter().enumerate().map(code).collect(), scales)
}
