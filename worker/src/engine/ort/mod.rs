//! The engine for ONNX files: encoders and cross-encoders, run by the ONNX Runtime, which is loaded when the
//! first model needs it. [`open`] checks the graph before the runtime sees it.

mod grouping;
mod library;
mod ports;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use ::ort::ep::CPU;
use ::ort::session::builder::GraphOptimizationLevel;
use ::ort::session::{RunOptions, Session, SessionInputValue};
use ::ort::value::Tensor;
use bytes::Bytes;
use lode_model::onnx;
use lode_model::read_at::ReadAt;

pub use self::grouping::RUN_TOKENS;
use self::grouping::{Sharing, group};
use self::ports::{Input, InputKind, OutputKind, Ports};
use super::map::map;
use super::{
    AdmitError, BlobFile, Engine, Format, LoadError, LoadOptions, Logits, ModelFiles, ModelInfo,
    RowSelection, SequenceId, Slice, StepError, check_slices,
};
use crate::arch::Config;

/// How often a run checks whether its clients are gone.
const CANCEL_POLL: Duration = Duration::from_millis(10);
/// The context of a model whose configuration does not state one.
const DEFAULT_CONTEXT: usize = 512;
/// Families whose positions start after the id of the padding token.
const SHIFTED_POSITIONS: [&str; 5] = ["camembert", "mpnet", "roberta", "xlm-roberta", "xmod"];
/// The longest message of the runtime in an error, in bytes.
const MAX_REASON: usize = 500;

/// A model whose graph was checked. The runtime has not seen it yet.
pub struct OpenModel {
    facts: Facts,
    /// The path of the file in the model, for messages.
    name: String,
    graph: Bytes,
    /// The files that hold initializers, by their location in the graph.
    data: Vec<(String, Bytes)>,
    quantises_dynamically: bool,
    weights_bytes: u64,
}

/// The facts of config.json.
struct Facts {
    vocab_size: usize,
    context_length: usize,
    embedding_length: Option<usize>,
    layers: usize,
    pad_token: u32,
    /// Whether the second text of a pair has a token type of its own.
    has_types: bool,
    /// The number of classes of a classification head.
    classes: Option<usize>,
}

/// Checks an ONNX model: its configuration, its graph, and the files that the graph refers to.
pub fn open(files: &ModelFiles) -> Result<OpenModel, LoadError> {
    let facts = Facts::read(&Config::parse(&files.config_json)?)?;
    let mapped = |file: &BlobFile| {
        let source = |source| LoadError::File { path: file.path.clone(), source };
        map(&file.path, file.extent).map(|(bytes, _)| bytes).map_err(source)
    };
    let name = |file: &BlobFile| file.name.clone().unwrap_or_else(|| "model.onnx".to_owned());
    let main = files.tensors.iter().find(|file| file.format == Format::Onnx);
    let main = main.ok_or_else(|| LoadError::Onnx {
        file: "the model".to_owned(),
        reason: "it has no ONNX file".to_owned(),
    })?;
    let (main_name, graph) = (name(main), mapped(main)?);
    let folder = main_name.rfind('/').map_or("", |at| &main_name[..=at]);
    let mut others = BTreeMap::new();
    for file in files.tensors.iter().filter(|file| file.format == Format::OnnxData) {
        if let Some(location) = name(file).strip_prefix(folder) {
            others.insert(location.to_owned(), mapped(file)?);
        }
    }
    let size = |location: &str| others.get(location).map(|bytes: &Bytes| bytes.len() as u64);
    let checked = onnx::Graph::read(&FileBytes(graph.clone()), &size)
        .map_err(|source| LoadError::Graph { file: main_name.clone(), source })?;
    check_ports(&checked).map_err(|reason| LoadError::Onnx { file: main_name.clone(), reason })?;
    others.retain(|location, _| checked.locations.contains(location));
    let weights_bytes = others.values().map(Bytes::len).sum::<usize>() + graph.len();
    Ok(OpenModel {
        facts,
        name: main_name,
        graph,
        data: others.into_iter().collect(),
        quantises_dynamically: checked.quantises_dynamically,
        weights_bytes: weights_bytes as u64,
    })
}

/// The bytes of a mapped file.
struct FileBytes(Bytes);

impl ReadAt for FileBytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0[..].read_at(offset, buf)
    }
}

/// Refuses graphs that are no encoders of texts, by the names of their inputs and outputs.
fn check_ports(graph: &onnx::Graph) -> Result<(), String> {
    let is_cache = |name: &String| {
        name.starts_with("past") || name.starts_with("present") || name.starts_with("use_cache")
    };
    if let Some(name) = graph.inputs.iter().chain(&graph.outputs).find(|name| is_cache(name)) {
        return Err(format!(
            "it is a decoder with a cache of keys and values (`{name}`); of ONNX models, only encoders can be run; \
             push a decoder as safetensors or GGUF"
        ));
    }
    if let Some(name) = graph.inputs.iter().find(|name| InputKind::of_name(name).is_none()) {
        let known = InputKind::NAMES.map(|(known, _)| known).join("`, `");
        return Err(format!("its input `{name}` is not supported (supported: `{known}`)"));
    }
    if !graph.inputs.iter().any(|name| name == "input_ids") {
        return Err("it has no input `input_ids`".to_owned());
    }
    Ok(())
}

impl Facts {
    fn read(config: &Config) -> Result<Facts, LoadError> {
        let pad_token = config.integer("pad_token_id", 0, 1 << 24)?;
        let vocab_size = config.require_integer("vocab_size", 1, 1 << 24)?;
        let positions = match config.integer("max_position_embeddings", 1, 1 << 26)? {
            Some(positions) => Some(positions),
            None => config.integer("n_positions", 1, 1 << 26)?,
        };
        let positions = positions.unwrap_or(DEFAULT_CONTEXT);
        let is_shifted = config.model_type().is_some_and(|kind| SHIFTED_POSITIONS.contains(&kind));
        let first = if is_shifted { pad_token.unwrap_or(1) + 1 } else { 0 };
        Ok(Facts {
            vocab_size,
            context_length: positions.saturating_sub(first).max(1),
            embedding_length: config.integer("hidden_size", 1, 1 << 20)?,
            layers: config.integer("num_hidden_layers", 0, 1 << 12)?.unwrap_or(0),
            pad_token: pad_token.filter(|id| *id < vocab_size).unwrap_or(0) as u32,
            has_types: !is_shifted && config.integer("type_vocab_size", 0, 1 << 16)?.unwrap_or(2) > 1,
            classes: config.classes().ok(),
        })
    }
}

impl OpenModel {
    /// Loads it into the runtime.
    pub fn load(self, options: LoadOptions) -> Result<Box<dyn Engine>, LoadError> {
        let runtime = library::runtime().map_err(|error| LoadError::Runtime(error.to_string()))?;
        let threads =
            options.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, Into::into));
        let threads = threads.clamp(1, 1024);
        let refused =
            |error: ::ort::Error| LoadError::Onnx { file: self.name.clone(), reason: reason(&error) };
        let data: Vec<(&str, Arc<[u8]>)> =
            self.data.iter().map(|(location, bytes)| (location.as_str(), Arc::from(&bytes[..]))).collect();
        let session = session(&runtime, threads, &data, &self.graph).map_err(refused)?;
        let ports =
            Ports::of(&session).map_err(|reason| LoadError::Onnx { file: self.name.clone(), reason })?;
        let is_classifier = ports.kind == OutputKind::Classes;
        let known = if is_classifier { self.facts.classes } else { self.facts.embedding_length };
        let Some(width) = ports.width.or(known) else {
            let reason =
                format!("neither its output `{}` nor config.json gives the size of its rows", ports.output);
            return Err(LoadError::Onnx { file: self.name, reason });
        };
        let has_mask = ports.inputs.iter().any(|input| input.kind == InputKind::Mask);
        let sharing = match (self.quantises_dynamically, has_mask) {
            (true, _) => Sharing::Alone,
            (false, true) => Sharing::Padded,
            (false, false) => Sharing::SameLength,
        };
        let plural = if threads == 1 { "" } else { "s" };
        let info = ModelInfo {
            architecture: "onnx",
            vocab_size: self.facts.vocab_size,
            context_length: options.context_length.unwrap_or(usize::MAX).clamp(1, self.facts.context_length),
            embedding_length: if is_classifier { self.facts.embedding_length.unwrap_or(1) } else { width },
            layers: self.facts.layers,
            encoder: true,
            kv_bytes_per_token: 0,
            device_bytes: 0,
            embeds: !is_classifier,
            classes: is_classifier.then_some(width),
            weights_bytes: self.weights_bytes,
            device: format!("cpu (onnxruntime {}, {threads} thread{plural})", runtime.version),
        };
        Ok(Box::new(Ort {
            info,
            session,
            ports,
            sharing,
            width,
            pad_token: self.facts.pad_token,
            has_types: self.facts.has_types,
            sequences: BTreeMap::new(),
            max_sequences: options.max_sequences.max(1),
            next_id: 0,
            _data: data.into_iter().map(|(_, bytes)| bytes).collect(),
        }))
    }
}

/// Creates a session. All bytes come from memory, so the runtime opens no file.
fn session(
    runtime: &library::Runtime,
    threads: usize,
    data: &[(&str, Arc<[u8]>)],
    graph: &[u8],
) -> ::ort::Result<Session> {
    // Without the arena, memory is returned after each run: an arena keeps the most that any batch needed.
    let cpu = CPU::default().with_arena_allocator(false).build();
    let mut builder = Session::builder(&runtime.environment)?
        .with_execution_providers([cpu])?
        .with_optimization_level(GraphOptimizationLevel::All)?
        .with_intra_threads(threads)?
        .with_intra_op_spinning(false)?
        .with_parallel_execution(false)?
        // Patterns help only if all batches have the same shape.
        .with_memory_pattern(false)?
        // Never the other format, whose files were not checked.
        .with_config_entry("session.load_model_format", "ONNX")?;
    for (location, bytes) in data {
        builder = builder.with_external_initializer_file_in_memory(location, bytes.clone())?;
    }
    builder.commit_from_memory(graph)
}

/// The message of an error of the runtime, in one line of bounded length.
fn reason(error: &::ort::Error) -> String {
    let text = error.to_string();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text[..text.floor_char_boundary(MAX_REASON)].to_owned()
}

/// A model in the runtime.
struct Ort {
    info: ModelInfo,
    session: Session,
    ports: Ports,
    sharing: Sharing,
    /// The number of values in a row of the output.
    width: usize,
    pad_token: u32,
    has_types: bool,
    sequences: BTreeMap<SequenceId, Sequence>,
    max_sequences: usize,
    next_id: u64,
    /// Initializers from other files, to which the session may refer.
    _data: Vec<Arc<[u8]>>,
}

struct Sequence {
    len: usize,
    max_len: usize,
}

/// The texts of one run, padded to the longest.
struct Padded {
    texts: usize,
    tokens: usize,
    /// The numbers of each input, [texts, tokens], in the order of the graph.
    inputs: Vec<Vec<i64>>,
}

impl Ort {
    fn insert(&mut self, len: usize, max_len: usize) -> Result<SequenceId, AdmitError> {
        let context_length = self.info.context_length;
        if max_len > context_length {
            return Err(AdmitError::Context { wanted: max_len, context_length });
        }
        if self.sequences.len() >= self.max_sequences {
            return Err(AdmitError::Sequences { max_sequences: self.max_sequences });
        }
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.sequences.insert(id, Sequence { len, max_len });
        Ok(id)
    }

    /// Pads slices, of which the first is the longest.
    fn pad(&self, slices: &[&Slice<'_>]) -> Padded {
        let tokens = slices.first().map_or(0, |slice| slice.tokens.len());
        let numbers = |input: &Input| {
            let mut numbers = Vec::with_capacity(slices.len() * tokens);
            for slice in slices {
                let text = slice.tokens;
                // The first token with the second type.
                let second = match slice.want {
                    RowSelection::Score { second } if self.has_types => second,
                    _ => tokens,
                };
                for at in 0..tokens {
                    numbers.push(match input.kind {
                        InputKind::Ids => i64::from(text.get(at).copied().unwrap_or(self.pad_token)),
                        InputKind::Mask => i64::from(at < text.len()),
                        InputKind::Types => i64::from(at < text.len() && at >= second),
                        InputKind::Positions => at as i64,
                    });
                }
            }
            numbers
        };
        Padded { texts: slices.len(), tokens, inputs: self.ports.inputs.iter().map(numbers).collect() }
    }

    /// Runs the graph and returns the rows of all texts, with the rows of padding: [texts, tokens, width], or
    /// [texts, width] if the output has a row for each text. `None` if it was cancelled.
    fn run(&mut self, is_cancelled: &dyn Fn() -> bool, batch: Padded) -> Option<Result<Vec<f32>, String>> {
        let options = match RunOptions::new() {
            Ok(options) => options,
            Err(error) => return Some(Err(reason(&error))),
        };
        let (session, ports, width) = (&mut self.session, &self.ports, self.width);
        let mut was_cancelled = false;
        // The runtime checks between operators whether to end, and only another thread can ask it to.
        let result = std::thread::scope(|scope| {
            let (done, finished) = channel::<()>();
            let options = &options;
            let running = scope.spawn(move || {
                let result = compute(session, ports, width, batch, options);
                drop(done);
                result
            });
            while finished.recv_timeout(CANCEL_POLL) == Err(RecvTimeoutError::Timeout) {
                if !was_cancelled && is_cancelled() {
                    was_cancelled = options.terminate().is_ok();
                }
            }
            running.join()
        });
        if was_cancelled {
            return None;
        }
        Some(result.unwrap_or_else(|_| Err("the runtime's binding panicked".to_owned())))
    }

    /// Computes all slices, and returns the rows of each.
    fn compute(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Vec<Vec<f32>>, StepError> {
        let mut rows = vec![Vec::new(); slices.len()];
        let is_wanted = |want| matches!(want, RowSelection::Hidden | RowSelection::Score { .. });
        let wanted: Vec<usize> = (0..slices.len()).filter(|at| is_wanted(slices[*at].want)).collect();
        let lengths: Vec<usize> = wanted.iter().map(|at| slices[*at].tokens.len()).collect();
        let width = self.width;
        for members in group(&lengths, self.sharing) {
            if is_cancelled() {
                return Err(StepError::Cancelled);
            }
            let members: Vec<usize> = members.into_iter().map(|at| wanted[at]).collect();
            let batch = self.pad(&members.iter().map(|at| &slices[*at]).collect::<Vec<_>>());
            let tokens = batch.tokens;
            let values = match self.run(is_cancelled, batch) {
                None => return Err(StepError::Cancelled),
                Some(Ok(values)) => values,
                Some(Err(reason)) => {
                    // The others are computed again, in other groups.
                    return Err(StepError::Graph { sequence: slices[members[0]].sequence, reason });
                }
            };
            for (row, at) in members.into_iter().enumerate() {
                let len = slices[at].tokens.len();
                rows[at] = match self.ports.kind {
                    // Every way of pooling equal rows gives that row.
                    OutputKind::Pooled => values[row * width..(row + 1) * width].repeat(len),
                    OutputKind::Classes => values[row * width..(row + 1) * width].to_vec(),
                    OutputKind::Tokens => values[row * tokens * width..][..len * width].to_vec(),
                };
            }
        }
        Ok(rows)
    }
}

/// Runs the graph once. Returns the values of its output, whose shape is checked.
fn compute(
    session: &mut Session,
    ports: &Ports,
    width: usize,
    batch: Padded,
    options: &RunOptions,
) -> Result<Vec<f32>, String> {
    let shape = [batch.texts, batch.tokens];
    let failed = |error: ::ort::Error| reason(&error);
    let mut inputs: Vec<(&str, SessionInputValue<'_>)> = Vec::with_capacity(ports.inputs.len());
    for (input, numbers) in ports.inputs.iter().zip(batch.inputs) {
        let value = if input.is_long {
            Tensor::from_array((shape, numbers)).map_err(failed)?.into_dyn()
        } else {
            // Ids, positions and flags are far below the limit.
            let numbers: Vec<i32> = numbers.into_iter().map(|number| number as i32).collect();
            Tensor::from_array((shape, numbers)).map_err(failed)?.into_dyn()
        };
        inputs.push((&input.name, value.into()));
    }
    let outputs = session.run_with_options(inputs, options).map_err(failed)?;
    let output = outputs.get(&ports.output).ok_or_else(|| format!("no output `{}`", ports.output))?;
    let expected = match ports.kind {
        OutputKind::Pooled | OutputKind::Classes => vec![batch.texts as i64, width as i64],
        OutputKind::Tokens => vec![batch.texts as i64, batch.tokens as i64, width as i64],
    };
    let check = |found: &[i64]| match found == expected {
        true => Ok(()),
        false => Err(format!("output `{}` has shape {found:?}, expected {expected:?}", ports.output)),
    };
    if let Ok((found, values)) = output.try_extract_tensor::<f32>() {
        check(found)?;
        return Ok(values.to_vec());
    }
    let (found, values) = output.try_extract_tensor::<half::f16>().map_err(failed)?;
    check(found)?;
    Ok(values.iter().map(|value| value.to_f32()).collect())
}

impl Engine for Ort {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn open(&mut self, max_len: usize) -> Result<SequenceId, AdmitError> {
        self.insert(0, max_len)
    }

    fn close(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }

    fn truncate(&mut self, sequence: SequenceId, len: usize) {
        if let Some(sequence) = self.sequences.get_mut(&sequence) {
            sequence.len = sequence.len.min(len);
        }
    }

    fn len(&self, sequence: SequenceId) -> usize {
        self.sequences.get(&sequence).map_or(0, |sequence| sequence.len)
    }

    fn fork(&mut self, sequence: SequenceId, len: usize, max_len: usize) -> Result<SequenceId, AdmitError> {
        let source = self.sequences.get(&sequence).ok_or(AdmitError::UnknownSequence)?;
        let len = len.min(source.len);
        self.insert(len, max_len.max(len))
    }

    fn step_unless(
        &mut self,
        is_cancelled: &dyn Fn() -> bool,
        slices: &[Slice<'_>],
    ) -> Result<Logits, StepError> {
        let lengths = |id| self.sequences.get(&id).map(|sequence| (sequence.len, sequence.max_len));
        check_slices(&self.info, lengths, slices)?;
        let rows = self.compute(is_cancelled, slices)?;
        let mut logits = Logits::default();
        for (slice, rows) in slices.iter().zip(rows) {
            if let Some(sequence) = self.sequences.get_mut(&slice.sequence) {
                sequence.len += slice.tokens.len();
            }
            logits.push_slice(&rows, self.width);
        }
        Ok(logits)
    }
}
