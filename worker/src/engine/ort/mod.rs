//! The engine for ONNX files: encoders, cross-encoders and decoders, run by the ONNX Runtime, which is loaded when
//! the first model needs it. [`open`] checks the graph before the runtime sees it.

mod cache;
mod decoder;
#[cfg(test)]
mod decoder_tests;
mod encoder;
mod engine;
mod grouping;
mod library;
mod ports;
mod run;
mod sequences;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use ::ort::ep::{ArenaExtendStrategy, CPU, CUDA, ExecutionProvider};
use ::ort::session::Session;
use ::ort::session::builder::GraphOptimizationLevel;
use bytes::Bytes;
use lode_model::onnx;
use lode_model::read_at::ReadAt;

use self::decoder::Decoder;
use self::encoder::Encoder;
use self::engine::Ort;
pub use self::grouping::RUN_TOKENS;
use self::grouping::Sharing;
use self::ports::{
    DecoderPorts, EncoderPorts, GraphKind, InputKind, OutputKind, graph_kind, has_fixed_batch,
};
use self::run::reason;
use self::sequences::Sequences;
use super::map::map;
use super::{BlobFile, Device, Engine, Format, LoadError, LoadOptions, ModelFiles, ModelInfo};
use crate::arch::Config;

/// The context of a model whose configuration does not state one.
const DEFAULT_CONTEXT: usize = 512;
/// Families whose positions start after the id of the padding token.
const SHIFTED_POSITIONS: [&str; 5] = ["camembert", "mpnet", "roberta", "xlm-roberta", "xmod"];

/// A model whose graph was checked. The runtime has not seen it yet.
pub struct OpenModel {
    facts: Facts,
    kind: GraphKind,
    /// The path of the file in the model, for messages.
    name: String,
    graph: Bytes,
    /// The files that hold initializers, by their location in the graph.
    data: Vec<(String, Bytes)>,
    quantises_dynamically: bool,
    fuses_attention: bool,
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
    let kind = graph_kind(&checked).map_err(|reason| LoadError::Onnx { file: main_name.clone(), reason })?;
    others.retain(|location, _| checked.locations.contains(location));
    let weights_bytes = others.values().map(Bytes::len).sum::<usize>() + graph.len();
    Ok(OpenModel {
        facts,
        kind,
        name: main_name,
        graph,
        data: others.into_iter().collect(),
        quantises_dynamically: checked.quantises_dynamically,
        fuses_attention: checked.fuses_attention,
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

impl Facts {
    fn read(config: &Config) -> Result<Facts, LoadError> {
        let pad_token = config.integer("pad_token_id", 0, 1 << 24)?;
        let vocab_size = config.require_integer("vocab_size", 1, 1 << 24)?;
        // GPT-2 and others have names of their own.
        let either = |name, other, max| match config.integer(name, 1, max)? {
            None => config.integer(other, 1, max),
            found => Ok(found),
        };
        let positions = either("max_position_embeddings", "n_positions", 1 << 26)?;
        let positions = positions.unwrap_or(DEFAULT_CONTEXT);
        let is_shifted = config.model_type().is_some_and(|kind| SHIFTED_POSITIONS.contains(&kind));
        let first = if is_shifted { pad_token.unwrap_or(1) + 1 } else { 0 };
        Ok(Facts {
            vocab_size,
            context_length: positions.saturating_sub(first).max(1),
            embedding_length: either("hidden_size", "n_embd", 1 << 20)?,
            layers: either("num_hidden_layers", "n_layer", 1 << 12)?.unwrap_or(0),
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
        let card = match &options.device {
            Device::Cuda(card) => {
                on_card(card.ordinal, || session(&runtime, threads, &data, &self.graph, Some(card.ordinal)))
            }
            Device::Cpu => None,
        };
        let version = &runtime.version;
        let plural = if threads == 1 { "" } else { "s" };
        let (mut session, device_bytes, device) = match card {
            Some((session, name)) => (session, self.weights_bytes, format!("{name} (onnxruntime {version})")),
            None => {
                let session = session(&runtime, threads, &data, &self.graph, None).map_err(refused)?;
                (session, 0, format!("cpu (onnxruntime {version}, {threads} thread{plural})"))
            }
        };
        let info = ModelInfo {
            architecture: "onnx",
            vocab_size: self.facts.vocab_size,
            context_length: options.context_length.unwrap_or(usize::MAX).clamp(1, self.facts.context_length),
            embedding_length: self.facts.embedding_length.unwrap_or(1),
            layers: self.facts.layers,
            encoder: false,
            embeds: false,
            pools: false,
            classes: None,
            kv_bytes_per_token: 0,
            weights_bytes: self.weights_bytes,
            device_bytes,
            device,
        };
        let _data = data.into_iter().map(|(_, bytes)| bytes).collect();
        let wrong = |reason| LoadError::Onnx { file: self.name.clone(), reason };
        match self.kind {
            GraphKind::Encoder => {
                let (info, graph) = self.encoder(&session, info).map_err(wrong)?;
                let sequences = Sequences::new(options.max_sequences, info.context_length);
                Ok(Box::new(Ort { info, session, graph, sequences, _data }))
            }
            GraphKind::Decoder => {
                let (info, mut graph) = self.decoder(&session, info).map_err(wrong)?;
                graph.probe(&mut session, info.context_length);
                let sequences = Sequences::new(options.max_sequences, info.context_length);
                Ok(Box::new(Ort { info, session, graph, sequences, _data }))
            }
        }
    }

    /// Adds the facts of the graph to those of the configuration.
    fn encoder(&self, session: &Session, info: ModelInfo) -> Result<(ModelInfo, Encoder), String> {
        let ports = EncoderPorts::of(session)?;
        let is_classifier = ports.kind == OutputKind::Classes;
        let known = if is_classifier { self.facts.classes } else { self.facts.embedding_length };
        let width = ports.width.or(known).ok_or_else(|| {
            format!("neither its output `{}` nor config.json gives the size of its rows", ports.output)
        })?;
        let has_mask = ports.inputs.iter().any(|input| input.kind == InputKind::Mask);
        let sharing = self.sharing(session, has_mask);
        let info = ModelInfo {
            embedding_length: if is_classifier { self.facts.embedding_length.unwrap_or(1) } else { width },
            encoder: true,
            embeds: !is_classifier,
            pools: ports.kind == OutputKind::Pooled,
            classes: is_classifier.then_some(width),
            ..info
        };
        let Facts { pad_token, has_types, .. } = self.facts;
        Ok((info, Encoder { ports, sharing, width, pad_token, has_types }))
    }

    /// Adds the facts of the graph to those of the configuration.
    fn decoder(&self, session: &Session, info: ModelInfo) -> Result<(ModelInfo, Decoder), String> {
        let ports = DecoderPorts::of(session)?;
        let width = ports.width.unwrap_or(info.vocab_size);
        let bytes = ports.cache.iter().fold(0, |sum: usize, port| sum.saturating_add(port.token_bytes()));
        let info = ModelInfo { vocab_size: width, kv_bytes_per_token: bytes, ..info };
        let has = |kind| ports.inputs.iter().any(|input| input.kind == kind);
        // Without an input for them, graphs compute positions from the number of tokens before, which padding changes.
        // Fused attention expects padding at the end.
        let ignores_padding = has(InputKind::Mask) && has(InputKind::Positions) && !self.fuses_attention;
        let sharing = self.sharing(session, ignores_padding);
        Ok((info, Decoder { ports, sharing, width, appends_several: true }))
    }

    /// Which texts may share a run of the graph.
    fn sharing(&self, session: &Session, ignores_padding: bool) -> Sharing {
        match (self.quantises_dynamically || has_fixed_batch(session), ignores_padding) {
            (true, _) => Sharing::Alone,
            (false, true) => Sharing::Padded,
            (false, false) => Sharing::SameLength,
        }
    }
}

/// Creates a session on a GPU, and names the GPU. `None` if the runtime cannot use it, which is logged.
fn on_card(ordinal: usize, create: impl FnOnce() -> ::ort::Result<Session>) -> Option<(Session, String)> {
    if !CUDA::is_available().unwrap_or(false) {
        tracing::info!(
            "computing an ONNX model on the CPU: this ONNX Runtime is built without CUDA; PyPI's onnxruntime-gpu has it"
        );
        return None;
    }
    match create() {
        Ok(session) => Some((session, format!("cuda:{ordinal}"))),
        Err(error) => {
            let reason = reason(&error);
            tracing::warn!(reason, "computing an ONNX model on the CPU: the ONNX Runtime cannot use the GPU");
            None
        }
    }
}

/// Creates a session on the CPU, or on the GPU with this number. All bytes come from memory, so the runtime opens no
/// file.
fn session(
    runtime: &library::Runtime,
    threads: usize,
    data: &[(&str, Arc<[u8]>)],
    graph: &[u8],
    card: Option<usize>,
) -> ::ort::Result<Session> {
    // Without the arena, memory is returned after each run: an arena keeps the most that any batch needed.
    let cpu = CPU::default().with_arena_allocator(false).build();
    // TF32 would round the factors of a product to 10 bits.
    let cuda = |ordinal: usize| {
        let provider = CUDA::default().with_device_id(i32::try_from(ordinal).unwrap_or(i32::MAX));
        let provider =
            provider.with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested).with_tf32(false);
        provider.build().error_on_failure()
    };
    let providers: Vec<_> = card.map(cuda).into_iter().chain([cpu]).collect();
    let mut builder = Session::builder(&runtime.environment)?
        .with_execution_providers(providers)?
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
