//! A loaded model in its runner: its text data from the text helper, and the conversion of requests to jobs.

use std::sync::Arc;

use bytes::Bytes;
use lode_kernels::{DeviceError, Ops};
use lode_model::error_chain;
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::embedding::{Embedding, Pooling};
use super::generate::{Format, Job};
use super::helper::{EngineFacts, Helper, PreparedRequest, TextData};
use super::projections::Projections;
use super::protocol::{
    EmbedRequest, Event, LoadRequest, LoadResponse, ModelSpec, RenderResponse, RunnerError,
};
use super::relevance::Relevance;
use super::small_files::{parse_json, read_file_up_to};
use crate::engine::open::open;
use crate::engine::{BlobFile, Engine, KvType, LoadError, LoadOptions, ModelFiles, ModelInfo};
use crate::text::{Constraint, Reader, Sampler, StopMatcher, Think, Vocabulary};

/// Maximum number of generated contexts for a request without `num_predict`.
const MAX_CONTEXTS: usize = 10;
/// Maximum number of values in all embeddings of a request; each takes about 20 bytes, in each process that has the
/// response.
const MAX_EMBEDDED: usize = 1 << 22;
/// Size limit of config.json: it usually has some kilobytes, but takes many times its length once parsed.
const MAX_CONFIG_BYTES: u64 = 4 << 20;
/// Maximum number and total size of the texts to embed that are tokenized in one call.
pub(super) const MAX_CALL_TEXTS: usize = 512;
pub(super) const MAX_CALL_BYTES: usize = 256 << 10;

/// The data of a loaded model for converting requests to jobs.
pub(crate) struct Model {
    pub(super) name: String,
    pub(super) info: ModelInfo,
    pub(super) helper: Helper,
    text: TextData,
    pub(super) projections: Projections,
    pub(super) relevance: Relevance,
}

/// The texts of a request for embeddings.
#[derive(Debug)]
pub(super) struct EmbedTexts {
    /// The ids of each text, with those of the prompt.
    pub(super) texts: Vec<Vec<u32>>,
    /// The number of first ids of each that the pooling leaves out.
    pub(super) prompt: usize,
}

impl Model {
    /// Reads all files of a model and loads its weights into an engine.
    pub(crate) fn load(request: &LoadRequest) -> Result<(Model, Box<dyn Engine>), RunnerError> {
        let spec = &request.model;
        let config_json = match read_file_up_to(spec, "config.json", MAX_CONFIG_BYTES)? {
            Some(bytes) => bytes,
            // A GGUF has its configuration in its metadata.
            None if spec.is_gguf() => b"{}".to_vec(),
            None => {
                return Err(RunnerError::unsupported(format!(
                    "{}: no config.json, so the architecture is unknown",
                    spec.name
                )));
            }
        };
        if spec.tensors.is_empty() {
            return Err(RunnerError::unsupported(format!("{}: no tensors", spec.name)));
        }
        let config = parse_json("config.json", &config_json)?;
        let blob = |tensor: &super::protocol::TensorFile| BlobFile {
            path: tensor.path.clone(),
            name: tensor.name.clone(),
            whole_file: tensor.whole_file,
            format: tensor.format,
            extent: tensor.extent,
        };
        let files = ModelFiles { config_json, tensors: spec.tensors.iter().map(blob).collect() };
        let kv_type: KvType = request.kv_cache_type.parse().map_err(RunnerError::invalid)?;
        let ops = Ops::of_level(&request.cpu).map_err(RunnerError::invalid)?;
        let options = LoadOptions {
            kv_type,
            ops,
            context_length: Some(request.context_length),
            threads: request.threads,
            max_sequences: request.num_parallel,
            cache_tokens: Some(request.cache_tokens),
            device: request.device.clone(),
        };
        let refused = |error: LoadError| {
            let message = format!("{}: {}", spec.name, error_chain(&error));
            match error {
                LoadError::Runtime(_) => RunnerError::unavailable(message),
                LoadError::Device(DeviceError::Unsupported { .. }) => RunnerError::unsupported(message),
                // Not an error of the model.
                LoadError::File { .. } | LoadError::Device(_) => RunnerError::failed(message),
                _ => RunnerError::unsupported(message),
            }
        };
        let mut opened = open(&files).map_err(refused)?;
        let projections = opened.projections().map_err(refused)?;
        let runtime = Handle::current();
        // Reading a vocabulary of a hundred thousand tokens takes longer than mapping the weights.
        let (engine, text) = std::thread::scope(|scope| {
            let text = scope.spawn(|| runtime.block_on(Helper::start(spec, &config, request.text)));
            let engine = opened.load(options).map_err(refused);
            let text =
                text.join().unwrap_or_else(|_| Err(RunnerError::failed("failed to read the tokenizer")));
            (engine, text)
        });
        let (engine, text) = (engine?, text?);
        let (dense, width) = (&text.1.embedding.dense, engine.info().embedding_length);
        let projections = Projections::read(spec, projections, dense, width, ops)?;
        let model = Model::new(spec, &config, text, projections, engine.info().clone());
        Ok((model, engine))
    }

    /// Reads only the text data of a checkpoint.
    #[cfg(test)]
    pub(crate) fn read(request: &LoadRequest, config: &Value, info: ModelInfo) -> Result<Model, RunnerError> {
        let text = Handle::current().block_on(Helper::start(&request.model, config, request.text))?;
        let projections =
            Projections::read(&request.model, Vec::new(), &[], info.embedding_length, Ops::best())?;
        Ok(Model::new(&request.model, config, text, projections, info))
    }

    fn new(
        spec: &ModelSpec,
        config: &Value,
        (helper, text): (Helper, TextData),
        projections: Projections,
        info: ModelInfo,
    ) -> Model {
        let relevance = Relevance::of_config(config);
        Model { name: spec.name.clone(), info, helper, text, projections, relevance }
    }

    pub(crate) fn loaded(&self) -> LoadResponse {
        LoadResponse {
            architecture: self.info.architecture.to_owned(),
            device: self.info.device.clone(),
            vocab_size: self.info.vocab_size,
            context_length: self.info.context_length,
            weights_bytes: self.info.weights_bytes,
            device_bytes: self.info.device_bytes,
            kv_bytes_per_token: self.info.kv_bytes_per_token,
            has_tokenizer: self.text.vocabulary.is_some(),
            has_template: self.text.has_template,
        }
    }

    /// Converts the body of a request to a job: the helper renders and tokenizes its prompt and fits it into
    /// the context. `wake` is called when a job that waits for its grammar may continue.
    pub(crate) async fn prepare(
        &self,
        body: Bytes,
        events: mpsc::Sender<Event>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Job, RunnerError> {
        let (prepared, prompt) = self.helper.prepare(self.engine_facts(), &body).await?;
        drop(body);
        let PreparedRequest { mut request, limit, num_keep, opening, echo, reading } = prepared;
        let vocabulary = self.vocabulary()?;
        self.check(&prompt)?;
        self.check(&opening)?;
        let biased: Vec<u32> = request.sampling.logit_bias.iter().map(|(id, _)| *id).collect();
        self.check(&biased)?;
        if prompt.is_empty() || prompt.len() > limit {
            return Err(RunnerError::failed("the prompt does not fit the context"));
        }
        let reader = reading.map_or_else(Reader::default, |reading| {
            self.text.reply.reader(reading.in_thoughts, reading.tools)
        });
        let may_think = request.think.is_none_or(Think::is_on);
        let format = match request.format.take() {
            Some(schema) => {
                let begun = self.helper.begin(schema, wake).await;
                let (session, allowed) = begun.map_err(|error| match request.tool_choice {
                    Some(_) => RunnerError {
                        message: error.message.replacen("invalid format", "invalid parameters of a tool", 1),
                        ..error
                    },
                    None => error,
                })?;
                let eos = self.text.eos.clone();
                let constraint = Constraint::new(allowed, &reader, may_think, vocabulary.clone(), eos);
                Some(Format::new(constraint.with_opening(opening), session))
            }
            None => None,
        };
        let scores_prompt = echo.is_some() && request.logprobs;
        if let Some(text) = echo {
            let token =
                Event::Token { text, thinking: String::new(), calls: Vec::new(), logprobs: Vec::new() };
            // The queue is empty, so this fails only if the worker has disconnected.
            let _ = events.try_send(token);
        }
        let num_predict = request.num_predict.unwrap_or(usize::MAX).min(limit.saturating_mul(MAX_CONTEXTS));
        Ok(Job {
            limit,
            num_predict,
            num_keep: num_keep.min(prompt.len()),
            shift: request.shift,
            sampler: Sampler::new(request.sampling, limit),
            format,
            stop: StopMatcher::new(request.stop),
            reader,
            eos: self.text.eos.clone(),
            vocabulary,
            top_logprobs: request.logprobs.then_some(request.top_logprobs),
            scores_prompt,
            whole: request.whole,
            prompt,
            events,
        })
    }

    /// Renders the prompt of a request from its body.
    pub(super) async fn render(&self, body: &[u8]) -> Result<RenderResponse, RunnerError> {
        self.helper.render(self.engine_facts(), body).await
    }

    fn engine_facts(&self) -> EngineFacts {
        EngineFacts::of(&self.info)
    }

    pub(super) fn embedding(&self) -> &Embedding {
        &self.text.embedding
    }

    /// Encodes the texts to embed.
    pub(super) async fn prepare_embed(&self, request: EmbedRequest) -> Result<EmbedTexts, RunnerError> {
        self.vocabulary()?;
        if !self.info.embeds {
            return Err(RunnerError::unsupported(format!(
                "{}: it returns no hidden states, so it computes no embeddings",
                self.name
            )));
        }
        let embedding = &self.text.embedding;
        if let Some(what) = &embedding.refused {
            return Err(RunnerError::unsupported(format!(
                "{}: {what} is not supported in embeddings",
                self.name
            )));
        }
        let prompt = embedding.prompt(request.prompt_name.as_deref()).map_err(RunnerError::invalid)?;
        let width = self.projections.width().max(self.info.embedding_length);
        let most = (MAX_EMBEDDED / width.max(1)).max(1);
        if request.inputs.len() > most {
            let n = request.inputs.len();
            return Err(RunnerError::invalid(format!(
                "{n} texts are too many for one request, expected at most {most}: send them in several requests"
            )));
        }
        let own = embedding.max_tokens.unwrap_or(usize::MAX).min(self.info.context_length);
        let limit = request.num_ctx.unwrap_or(usize::MAX).min(own);
        let excluded = self.excluded_tokens(prompt, limit).await?;
        let mut inputs = request.inputs.into_iter().peekable();
        let mut all = Vec::new();
        while inputs.peek().is_some() {
            let (mut texts, mut bytes) = (Vec::new(), 0);
            let size = |text: &String| prompt.len() + text.len();
            while texts.len() < MAX_CALL_TEXTS
                && let Some(mut text) =
                    inputs.next_if(|text| texts.is_empty() || bytes + size(text) <= MAX_CALL_BYTES)
            {
                text.insert_str(0, prompt);
                bytes += text.len();
                texts.push(text);
            }
            let encoded = self.helper.encode(texts, limit, request.truncate).await?;
            for ids in &encoded {
                self.check(ids)?;
                if ids.is_empty() || ids.len() > limit {
                    return Err(RunnerError::failed("the input does not fit the context"));
                }
            }
            all.extend(encoded);
        }
        Ok(EmbedTexts { texts: all, prompt: excluded })
    }

    /// The number of a text's first tokens that the pooling leaves out: those of the prompt alone, without a special
    /// token at its end.
    async fn excluded_tokens(&self, prompt: &str, limit: usize) -> Result<usize, RunnerError> {
        let embedding = &self.text.embedding;
        if prompt.is_empty() || !embedding.excludes_prompt || embedding.pooling == Pooling::First {
            return Ok(0);
        }
        if self.info.pools {
            return Err(RunnerError::unsupported(format!(
                "{}: its ONNX file returns pooled embeddings, so the prompt cannot be left out, as `include_prompt` in \
                 1_Pooling/config.json requires; export it with hidden states for each token",
                self.name
            )));
        }
        let encoded = self.helper.encode(vec![prompt.to_owned()], limit, true).await?;
        let ids = encoded.first().map(Vec::as_slice).unwrap_or_default();
        let vocabulary = self.vocabulary()?;
        let ends_special = ids.last().is_some_and(|id| vocabulary.is_special(*id));
        Ok(ids.len() - usize::from(ends_special))
    }

    pub(super) fn vocabulary(&self) -> Result<Arc<Vocabulary>, RunnerError> {
        self.text.vocabulary.clone().ok_or_else(|| {
            RunnerError::unsupported(format!("{}: no tokenizer, so it does not support text", self.name))
        })
    }

    /// Checks ids, because a tokenizer may have more than the model.
    pub(super) fn check(&self, ids: &[u32]) -> Result<(), RunnerError> {
        match ids.iter().find(|&&id| id as usize >= self.info.vocab_size) {
            Some(id) => Err(RunnerError::invalid(format!(
                "token id {id} is outside the model's vocabulary of {}",
                self.info.vocab_size
            ))),
            None => Ok(()),
        }
    }
}
