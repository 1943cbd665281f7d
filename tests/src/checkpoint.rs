//! Checkpoint folders: the demo model that ships in the repository, relatives of it that share tensors, and malformed ones.
//! The safetensors here are written and read by hand, so that a wrong header can be written as easily as a right one.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// The trained model of the repository.
#[must_use]
pub fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("models/lode-demo")
}

/// The demo model's known answers.
#[must_use]
pub fn demo_expected() -> Value {
    let text = fs::read(demo().join("expected.json")).expect("the demo model has known answers");
    serde_json::from_slice(&text).expect("known answers are JSON")
}

/// Copies the plain files of a folder.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder to copy") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            fs::copy(&path, to.join(path.file_name().expect("a file has a name"))).expect("a copy");
        }
    }
}

/// A copy of the demo model that differs in one tensor, as a fine-tune of a part would.
pub fn demo_relative(to: &Path, changed_tensor: &str) {
    copy_folder(&demo(), to);
    let path = to.join("model.safetensors");
    let mut bytes = fs::read(&path).expect("weights");
    let tensors = tensors_of(&bytes);
    let tensor = &tensors[changed_tensor];
    for byte in bytes[tensor.begin..tensor.end].iter_mut().step_by(2) {
        *byte ^= 1; // the last bit of every BF16 value
    }
    fs::write(&path, bytes).expect("changed weights");
}

/// One tensor of a safetensors file: what its header says, offsets counted from the start of the file.
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
pub fn tensors_of(file: &[u8]) -> BTreeMap<String, Tensor> {
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
    file_of(&header.to_string(), &data)
}

/// A file with any text for a header, right or wrong.
#[must_use]
pub fn file_of(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// Names of files in a folder with their bytes, folders below it included.
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
                let name = entry.strip_prefix(path).expect("below the folder").to_string_lossy().into_owned();
                files.insert(name, fs::read(&entry).expect("a readable file"));
            }
        }
    }
    files
}

/// A value of BF16 or F32 bytes as F32.
#[must_use]
pub fn f32_values(dtype: &str, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        "BF16" => bytes
            .chunks_exact(2)
            .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
            .collect(),
        "F32" => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        other => panic!("no reader for {other} here"),
    }
}
