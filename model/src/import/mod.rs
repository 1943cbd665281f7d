//! Import turns a checkpoint folder into layers, one blob per tensor, and a GGUF file into one layer, so that
//! every original file can be restored. It plans over [`Source`], a trait for reading files, and serves `lode
//! create`, the demo model and `/api/create`.
//!
//! ```text
//! plan(source) -> Plan -> read each layer (digest and push it) -> Plan::finish(digests) -> config, file view, manifest
//! ```

mod check;
mod checkpoint;
mod facts;
mod finish;
mod fp8;
mod gguf;
mod gguf_conversion;
mod layer;
mod mlx;
mod onnx;
mod place;
mod policy;
mod quantize;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

pub use check::CheckedReader;
pub use finish::{FinishError, FinishedImport, SmallBlob};
pub use layer::{Content, LayerReader};
pub use quantize::{Quantize, UnknownQuantize};

use crate::config::{ModelConfig, format_parameter_count};
use crate::convert::{self, ConvertError};
use crate::digest::{Algorithm, Digest, Hasher};
use crate::files_view::{self, PathError};
use crate::media_type;
pub use crate::read_at::ReadAt;
use crate::safetensors::HeaderError;
pub use crate::source::{Source, SourceFile};
use crate::tensor::TensorError;
use crate::tensor::fp8::BlockError;
use finish::{FileOrigin, FileRecipe};
use layer::Piece;

/// The largest JSON file that is parsed, in bytes; larger ones are stored unread.
pub const MAX_JSON_BYTES: u64 = 64 * 1024 * 1024;
/// The largest configuration that is parsed, in bytes. A parsed configuration takes many times its length;
/// real ones have a few kilobytes.
const MAX_CONFIG_BYTES: u64 = 4 * 1024 * 1024;

/// The options of an import.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub quantize: Option<Quantize>,
    /// The architectures that the workers run, as `config.json` names them; other architectures get a notice.
    /// Empty: no such notice.
    pub architectures: &'static [&'static str],
}

/// Why a folder cannot be imported. Each variant names the file, and the key if there is one.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("there are no files to import")]
    Empty,
    #[error(
        "there is no model in the folder: no .safetensors, .gguf or .onnx file, no config.json and no tokenizer"
    )]
    NoModel,
    #[error("`{path}` is a Git LFS pointer, not the file itself")]
    Pointer { path: String },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("the folder lists `{path}` twice")]
    DuplicatePath { path: String },
    #[error("could not read `{path}`")]
    Read { path: String, source: io::Error },
    #[error("`{path}` is larger than {limit} bytes, the limit for such files")]
    TooLarge { path: String, limit: u64 },
    #[error("`{path}` is malformed")]
    Header { path: String, source: HeaderError },
    #[error("`{path}` is malformed")]
    Tensor { path: String, source: TensorError },
    #[error("`{path}` is not JSON of the expected form")]
    Json { path: String, source: serde_json::Error },
    #[error("`{index}` places tensor `{tensor}` in `{shard}`, which is missing")]
    MissingShard { index: String, tensor: String, shard: String },
    #[error("`{prefix}` is split over {count} files, and number {number} is missing")]
    MissingPart { prefix: String, count: u32, number: u32 },
    #[error("`{index}` places tensor `{tensor}` in `{shard}`, which does not have it")]
    MissingTensor { index: String, tensor: String, shard: String },
    #[error("tensor `{tensor}` is in `{first}` and in `{second}`, expected in one of them")]
    DuplicateTensor { tensor: String, first: String, second: String },
    #[error("`{path}` has token id {id} in `model.vocab`, but `{tensor}` has {rows} rows")]
    Vocabulary { path: String, id: u64, tensor: String, rows: u64 },
    #[error("`{path}` holds `{tensor}`, which is quantised already; import it as it is, without quantising")]
    AlreadyQuantised { path: String, tensor: String },
    #[error("`{path}` holds `{tensor}` of {dtype}, {problem}")]
    Fp8 { path: String, tensor: String, dtype: String, problem: String },
    #[error(transparent)]
    Blocks(#[from] BlockError),
    #[error("`{path}` makes this an image model, whose components are not quantised; import it as it is")]
    ImageModel { path: &'static str },
    #[error("`{path}` is malformed")]
    Gguf { path: String, source: crate::gguf::HeaderError },
    #[error(transparent)]
    Split(#[from] crate::gguf::SplitError),
    #[error("`{path}` is malformed")]
    Onnx { path: String, source: crate::onnx::OnnxError },
    #[error("`{path}` has tensor `{tensor}` in `{location}`, which {problem}")]
    OnnxData { path: String, tensor: String, location: String, problem: &'static str },
    #[error("`{path}` is an ONNX file, which cannot be quantised to {quantize}")]
    QuantizeOnnx { path: String, quantize: Quantize },
    #[error("`{path}` is a GGUF file, which cannot be quantised to {quantize}")]
    QuantizeGguf { path: String, quantize: Quantize },
    #[error(transparent)]
    Convert(#[from] ConvertError),
}

/// A layer to be pushed: its name, and how its bytes are produced.
#[derive(Clone, Debug)]
pub struct PlannedLayer {
    pub media_type: &'static str,
    /// The tensor or group of tensors, or the path of the file.
    pub name: Option<String>,
    pub size: u64,
    pub content: Content,
}

impl PlannedLayer {
    /// Reads the layer from the start. The same source always gives the same bytes. Memory is bounded: a few
    /// MiB, and for a quantised tensor its scales and biases.
    pub fn reader(&self, source: &Arc<dyn Source>) -> LayerReader {
        self.content.reader(source, 0, self.size)
    }

    /// As [`PlannedLayer::reader`], but fails if the imported data was already quantised and has a scale that
    /// is not finite.
    pub fn checked_reader(&self, source: &Arc<dyn Source>) -> CheckedReader {
        self.content.checked(self.reader(source))
    }

    /// Whether [`PlannedLayer::checked_reader`] checks anything.
    pub fn has_checks(&self) -> bool {
        self.content.is_watched()
    }

    /// Reads the layer from `offset` on, to resume an interrupted upload.
    pub fn reader_from(&self, source: &Arc<dyn Source>, offset: u64) -> LayerReader {
        self.content.reader(source, offset, self.size)
    }

    /// Reads `length` bytes from `offset` on, so that several threads can produce one layer.
    pub fn range_reader(&self, source: &Arc<dyn Source>, offset: u64, length: u64) -> LayerReader {
        self.content.reader(source, offset, offset.saturating_add(length).min(self.size))
    }

    /// Whether producing the bytes costs much more than reading them, so that it should be done only once,
    /// and [`PlannedLayer::range_reader`] is as fast in the middle as at the start.
    pub fn is_encoded(&self) -> bool {
        self.content.is_encoded()
    }

    /// Whether producing the bytes costs more than reading them, by any method.
    pub fn is_computed(&self) -> bool {
        self.content.is_made()
    }
}

/// The plan of an import. Only headers and JSON files have been read.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tensors first, in the order of the files, then JSON files, then all others.
    pub layers: Vec<PlannedLayer>,
    pub config: ModelConfig,
    /// Notices for the user, in whole sentences without a full stop.
    pub notices: Vec<String>,
    /// The number of tensors.
    pub tensors: u64,
    /// The number of elements of all tensors.
    pub parameters: u64,
    /// The annotations of the manifest.
    pub annotations: BTreeMap<String, String>,
    files: Vec<FileRecipe>,
}

/// Plans the layers of a folder. It reads headers and JSON files, but no tensors.
pub fn plan(source: &dyn Source, options: &Options) -> Result<Plan, ImportError> {
    let mut files = source.files();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    check_files(&files)?;
    check_pointers(source, &files)?;
    // A GGUF next to a checkpoint is another form of it and is stored like any other file; so is an ONNX file
    // next to either.
    let has = |is_form: fn(&SourceFile) -> bool| files.iter().any(is_form);
    let (has_checkpoint, has_gguf) = (has(checkpoint::is_safetensors), has(gguf::is_gguf));
    let mut plan = match options.quantize {
        _ if !has_checkpoint && has_gguf => gguf::plan(source, &files, options)?,
        _ if !has_checkpoint && has(onnx::is_onnx) => onnx::plan(source, &files, options)?,
        Some(Quantize::Gguf(file_type)) => gguf_conversion::from_checkpoint(source, &files, file_type)?,
        _ => plan_checkpoint(source, &files, options)?,
    };
    let is_other_format = |file: &&SourceFile| {
        has_checkpoint && gguf::is_gguf(file) || (has_checkpoint || has_gguf) && onnx::is_onnx(file)
    };
    let other_formats: Vec<&str> =
        files.iter().filter(is_other_format).map(|file| file.path.as_str()).collect();
    if !other_formats.is_empty() {
        let listed = convert::format_names(&other_formats);
        plan.notices.push(format!(
            "{listed}: stored whole alongside the model; to import one of them, name the file"
        ));
    }
    if plan.tensors == 0 {
        plan.notices.extend(unreadable_weights_notice(&files));
    }
    Ok(plan)
}

/// The extensions of weight files in formats that are not read.
const UNREADABLE_EXTENSIONS: [&str; 5] = [".bin", ".pt", ".pth", ".ckpt", ".h5"];
/// Files that mark a folder as a model even without weights.
const MODEL_FILES: [&str; 5] =
    ["config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "model_index.json"];

fn unreadable_weights_notice(files: &[SourceFile]) -> Option<String> {
    let is_pickle = |file: &&SourceFile| UNREADABLE_EXTENSIONS.iter().any(|end| file.path.ends_with(end));
    let path = &files.iter().find(is_pickle)?.path;
    Some(format!("weights in the format of `{path}` are not read; save them as .safetensors"))
}

/// Git LFS leaves a few lines of text in place of a large file that was not fetched.
fn check_pointers(source: &dyn Source, files: &[SourceFile]) -> Result<(), ImportError> {
    const MAX_BYTES: u64 = 1024;
    const ENDS: [&str; 4] = [".safetensors", ".gguf", ".onnx", "tokenizer.json"];
    for file in files.iter().filter(|file| file.size <= MAX_BYTES) {
        let path = file.path.to_ascii_lowercase();
        if ENDS.iter().any(|end| path.ends_with(end))
            && read_file(source, file)?.starts_with(b"version https://git-lfs.github.com/spec/")
        {
            return Err(ImportError::Pointer { path: file.path.clone() });
        }
    }
    Ok(())
}

/// Plans one blob per tensor.
fn plan_checkpoint(
    source: &dyn Source,
    files: &[SourceFile],
    options: &Options,
) -> Result<Plan, ImportError> {
    let mut checkpoint = checkpoint::read(source, files)?;
    let of_model =
        |file: &SourceFile| checkpoint::is_safetensors(file) || MODEL_FILES.contains(&file.path.as_str());
    if !files.iter().any(of_model) {
        return Err(ImportError::NoModel);
    }
    if options.quantize.is_some() {
        fp8::pair_scales(&mut checkpoint)?;
    }
    let checkpoint = checkpoint;
    let facts = facts::read(source, files, &checkpoint, options)?;
    let mut notices = facts.notices;
    notices.extend(fp8::notice(&checkpoint).filter(|_| options.quantize.is_none()));
    let tensor_layers = policy::plan_tensor_layers(&checkpoint, options.quantize)?;
    let quantised = options.quantize.filter(|_| tensor_layers.is_quantised());
    if let (Some(asked), None) = (options.quantize, quantised) {
        notices.push(format!("nothing was quantised: no tensor is of a kind that is quantised to {asked}"));
    }
    if quantised.is_some() || !checkpoint.scales.is_empty() {
        notices.push(
            "`lode pull --to` will give assembled safetensors files, because quantised tensors replace the originals"
                .to_owned(),
        );
    }
    if !tensor_layers.kept.is_empty() {
        let kept: Vec<&str> = tensor_layers.kept.iter().map(String::as_str).collect();
        let listed = convert::format_names(&kept);
        notices
            .push(format!("{listed}: kept as they are, because groups of elements do not divide their rows"));
    }
    if !tensor_layers.decoded.is_empty() {
        let decoded: Vec<&str> = tensor_layers.decoded.iter().map(String::as_str).collect();
        let listed = convert::format_names(&decoded);
        notices.push(format!(
            "{listed}: decoded to BF16, because tensors of their kind or shape are not quantised"
        ));
    }

    let (mut layers, mut recipes) = place::shards(&checkpoint, tensor_layers);
    let taken: BTreeSet<String> = recipes.iter().map(|recipe| recipe.path.clone()).collect();
    let is_left =
        |file: &&SourceFile| !taken.contains(&file.path) && !fp8::is_fp8_description(&checkpoint, &file.path);
    let rest = files.iter().filter(is_left);
    let (json, other): (Vec<_>, Vec<_>) = rest.partition(|file| facts.json_files.contains(&file.path));
    for (media_type, files) in [(media_type::OLLAMA_JSON, json), (media_type::OCTET_STREAM, other)] {
        for file in files {
            match file.path.as_str() {
                checkpoint::CONFIG if !checkpoint.scales.is_empty() => {
                    let config = read_file(source, file)?;
                    let config = fp8::remove_fp8_config(&config).unwrap_or(config);
                    push_replacement(&mut layers, &mut recipes, media_type, &file.path, config);
                }
                _ => push_whole(&mut layers, &mut recipes, media_type, file),
            }
        }
    }
    recipes.sort_by(|a, b| a.path.cmp(&b.path));

    let tensors = checkpoint.tensors().count() as u64;
    let parameters =
        checkpoint.tensors().fold(0u64, |sum, (_, tensor)| sum.saturating_add(tensor.elements()));
    let mut config = facts.config;
    config.model_format = "safetensors".to_owned();
    config.model_type = format_parameter_count(parameters);
    config.file_type = match quantised {
        Some(quantize) => quantize.to_string(),
        None => checkpoint.main_dtype().unwrap_or_default(),
    };
    let annotations = BTreeMap::new();
    Ok(Plan { layers, config, notices, tensors, parameters, annotations, files: recipes })
}

/// Returns the layer type of a file that is stored with a model: JSON only if the file is valid JSON.
fn side_file_type(source: &dyn Source, file: &SourceFile) -> Result<&'static str, ImportError> {
    if !file.path.ends_with(".json") || file.size > MAX_JSON_BYTES || file.path == files_view::LAYER_NAME {
        return Ok(media_type::OCTET_STREAM);
    }
    let is_json = parse_file::<serde::de::IgnoredAny>(source, file)?.is_ok();
    Ok(if is_json { media_type::OLLAMA_JSON } else { media_type::OCTET_STREAM })
}

/// Adds a file unchanged as a layer, unless it is empty.
fn push_whole(
    layers: &mut Vec<PlannedLayer>,
    recipes: &mut Vec<FileRecipe>,
    media_type: &'static str,
    file: &SourceFile,
) {
    recipes.push(FileRecipe::whole(file, layers.len()));
    if file.size > 0 {
        layers.push(PlannedLayer {
            media_type,
            name: Some(file.path.clone()),
            size: file.size,
            content: Content::file(&file.path, file.size),
        });
    }
}

/// Adds a file that replaces the original of the same name.
fn push_replacement(
    layers: &mut Vec<PlannedLayer>,
    recipes: &mut Vec<FileRecipe>,
    media_type: &'static str,
    path: &str,
    bytes: Vec<u8>,
) {
    let file = SourceFile { path: path.to_owned(), size: bytes.len() as u64 };
    recipes.push(FileRecipe { origin: FileOrigin::Assembled, ..FileRecipe::whole(&file, layers.len()) });
    let content = Content::new(vec![Piece::Bytes(bytes)]);
    layers.push(PlannedLayer { media_type, name: Some(file.path), size: file.size, content });
}

/// Hashes a file of the source, for the files that [`Plan::files_to_hash`] lists.
pub fn hash_file(source: &dyn Source, path: &str) -> io::Result<Digest> {
    const CHUNK: u64 = 1 << 20;
    let file = source.open(path)?;
    let mut hasher = Hasher::new(Algorithm::Sha256);
    let mut chunk = vec![0; CHUNK.min(file.len()) as usize];
    let mut at = 0;
    while at < file.len() {
        let chunk = &mut chunk[..CHUNK.min(file.len() - at) as usize];
        file.read_at(at, chunk)?;
        hasher.update(chunk);
        at += chunk.len() as u64;
    }
    Ok(hasher.finish())
}

fn check_files(files: &[SourceFile]) -> Result<(), ImportError> {
    if files.is_empty() {
        return Err(ImportError::Empty);
    }
    for file in files {
        files_view::check_path(&file.path)?;
    }
    if let Some(pair) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
        return Err(ImportError::DuplicatePath { path: pair[0].path.clone() });
    }
    Ok(())
}

/// Parses a JSON file piece by piece, without holding the file in memory.
fn parse_file<T: serde::de::DeserializeOwned>(
    source: &dyn Source,
    file: &SourceFile,
) -> Result<serde_json::Result<T>, ImportError> {
    let failed = |source| ImportError::Read { path: file.path.clone(), source };
    let reader = FileReader { file: source.open(&file.path).map_err(failed)?, at: 0 };
    let parsed = serde_json::from_reader(io::BufReader::with_capacity(PIECE_BYTES, reader));
    match parsed {
        Err(error) if error.is_io() => Err(failed(error.into())),
        parsed => Ok(parsed),
    }
}

/// The number of bytes of a file that are read at once.
const PIECE_BYTES: usize = 256 << 10;

/// Reads a file from start to end.
struct FileReader {
    file: Box<dyn ReadAt>,
    at: u64,
}

impl io::Read for FileReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.file.len() - self.at).unwrap_or(usize::MAX);
        let len = buf.len().min(rest);
        self.file.read_at(self.at, &mut buf[..len])?;
        self.at += len as u64;
        Ok(len)
    }
}

/// Reads the whole of a small file.
fn read_file(source: &dyn Source, file: &SourceFile) -> Result<Vec<u8>, ImportError> {
    let limit = if file.path == checkpoint::CONFIG { MAX_CONFIG_BYTES } else { MAX_JSON_BYTES };
    if file.size > limit {
        return Err(ImportError::TooLarge { path: file.path.clone(), limit });
    }
    let read = || {
        let opened = source.open(&file.path)?;
        let len = usize::try_from(opened.len().min(limit)).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        opened.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|source| ImportError::Read { path: file.path.clone(), source })
}

#[cfg(test)]
pub(crate) mod fp8_tests;
#[cfg(test)]
mod notice_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod whole_file_tests;
