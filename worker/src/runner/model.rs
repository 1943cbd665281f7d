//! A loaded model's text side: tokenizer, template and special tokens, and how a request becomes a job.
//! Lives in the runner; reading files and encoding block, so the server calls it off its async threads.

use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::embed::{self, Embedding};
use super::generate::Job;
use super::prompt::Prompt;
use super::protocol::{
    EmbedRequest, Event, GenerateRequest, Input, LoadRequest, Loaded, ModelSpec, RunnerError,
};
use super::text_side::{TextSide, chain, parse_json, read_file};
use crate::engine::{BlobFile, Engine, KvType, LoadError, LoadOptions, ModelFiles, ModelInfo, native};
use crate::text::grammar::GrammarError;
use crate::text::{
    Grammar, Grammars, PromptTemplate, Reader, ReplyFormat, Sampler, SpecialTokens, StopMatcher, Think,
    Tokenizer,
};

/// "Until the model stops" means at most so many contexts.
const MAX_CONTEXTS: usize = 10;
/// The shortest context that can be asked for.
const MIN_CONTEXT: usize = 4;
/// Numbers that the vectors of one request may have together, which takes some 20 bytes for each.
const MAX_EMBEDDED: usize = 1 << 25;

/// What a loaded model needs to turn requests into jobs.
pub(crate) struct Model {
    pub(super) name: String,
    info: ModelInfo,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    pub(super) template: Option<PromptTemplate>,
    pub(super) special: SpecialTokens,
    reply: ReplyFormat,
    eos: Arc<std::collections::BTreeSet<u32>>,
    embedding: Embedding,
    /// Made when the first answer in a format is asked for.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
}

impl Model {
    /// Reads everything a model consists of and hands its weights to an engine.
    pub(crate) fn load(request: &LoadRequest) -> Result<(Model, Box<dyn Engine>), RunnerError> {
        let spec = &request.model;
        let config_json = match read_file(spec, "config.json")? {
            Some(bytes) => bytes,
            // A GGUF's metadata is all of that.
            None if spec.is_gguf() => b"{}".to_vec(),
            None => {
                return Err(RunnerError::unsupported(format!(
                    "{}: has no config.json, so its architecture is unknown",
                    spec.name
                )));
            }
        };
        if spec.tensors.is_empty() {
            return Err(RunnerError::unsupported(format!("{}: has no tensors", spec.name)));
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
        let options = LoadOptions {
            kv_type,
            context_length: Some(request.context_length),
            threads: request.threads,
            max_sequences: request.num_parallel,
            ..LoadOptions::default()
        };
        let refused = |error: LoadError| {
            let message = format!("{}: {}", spec.name, chain(&error));
            match error {
                // No fault of the model's.
                LoadError::File { .. } | LoadError::Device(_) => RunnerError::failed(message),
                _ => RunnerError::unsupported(message),
            }
        };
        let opened = native::open(&files).map_err(refused)?;
        let metadata = opened.metadata();
        // A vocabulary of a hundred thousand tokens takes longer to read than its weights to map.
        let (engine, text) = std::thread::scope(|scope| {
            let text = scope.spawn(|| TextSide::read(spec, &config, metadata.as_deref()));
            let engine = opened.load(options).map_err(refused);
            let text =
                text.join().unwrap_or_else(|_| Err(RunnerError::failed("reading the tokenizer failed")));
            (engine, text)
        });
        let engine = engine?;
        let model = Model::new(spec, text?, engine.info().clone());
        Ok((model, engine))
    }

    /// The text side of a checkpoint alone.
    #[cfg(test)]
    pub(crate) fn read(
        spec: &ModelSpec,
        config: &serde_json::Value,
        info: ModelInfo,
    ) -> Result<Model, RunnerError> {
        Ok(Model::new(spec, TextSide::read(spec, config, None)?, info))
    }

    fn new(spec: &ModelSpec, text: TextSide, info: ModelInfo) -> Model {
        let TextSide { tokenizer, template, special, reply, embedding } = text;
        let eos = Arc::new(special.eos.clone());
        let (name, grammars) = (spec.name.clone(), OnceLock::new());
        Model { name, info, tokenizer, template, special, reply, eos, embedding, grammars }
    }

    pub(crate) fn loaded(&self) -> Loaded {
        Loaded {
            architecture: self.info.architecture.to_owned(),
            device: self.info.device.clone(),
            vocab_size: self.info.vocab_size,
            context_length: self.info.context_length,
            weights_bytes: self.info.weights_bytes,
            kv_bytes_per_token: self.info.kv_bytes_per_token,
            has_tokenizer: self.tokenizer.is_some(),
            has_template: self.template.is_some(),
        }
    }

    /// Turns a request into a job: renders, encodes, and fits the prompt into the context.
    pub(crate) fn prepare(
        &self,
        mut request: GenerateRequest,
        events: mpsc::Sender<Event>,
    ) -> Result<Job, RunnerError> {
        let tokenizer = self.can_generate(&mut request)?;
        let limit = self.limit(&request);
        let Prompt { text, ids: prompt } = self.prompt(&tokenizer, &request, limit)?;
        let reader = match &request.input {
            Input::Chat { tools, .. } => self.reply.reader(&text, tools),
            // What is as it is, or stands before a suffix, is read where that was asked for.
            Input::Raw { .. } if !request.think.is_some_and(Think::is_on) => Reader::default(),
            Input::Prompt { suffix, .. } if !suffix.is_empty() => Reader::default(),
            Input::Raw { .. } | Input::Prompt { .. } => self.reply.reader(&text, &[]),
        };
        self.check(&prompt)?;
        let format = request.format.take();
        let may_think = request.think.is_none_or(Think::is_on);
        let grammar =
            format.map(|schema| self.grammar(&tokenizer, schema, &reader, may_think)).transpose()?;
        let num_predict = request.num_predict.unwrap_or(usize::MAX).min(limit.saturating_mul(MAX_CONTEXTS));
        Ok(Job {
            limit,
            num_predict,
            num_keep: self.kept(&tokenizer, &request).min(prompt.len()),
            shift: request.shift,
            sampler: Sampler::new(request.sampling, limit),
            grammar,
            stop: StopMatcher::new(request.stop),
            reader,
            eos: self.eos.clone(),
            tokenizer,
            top_logprobs: request.logprobs.then_some(request.top_logprobs),
            whole: request.whole,
            prompt,
            events,
        })
    }

    /// What holds an answer to a schema.
    fn grammar(
        &self,
        tokenizer: &Arc<Tokenizer>,
        schema: Map<String, Value>,
        reader: &Reader,
        may_think: bool,
    ) -> Result<Grammar, RunnerError> {
        let grammars = self.grammars.get_or_init(|| Grammars::new(tokenizer.clone(), self.eos.clone()));
        let refused = |error: GrammarError| RunnerError::invalid(error);
        let grammars = grammars.as_ref().map_err(|error| refused(error.clone()))?;
        grammars.grammar(schema, reader, may_think).map_err(refused)
    }

    /// The text of a request's prompt.
    pub(super) fn render(&self, request: &GenerateRequest) -> Result<String, RunnerError> {
        let mut request = request.clone();
        let tokenizer = self.can_generate(&mut request)?;
        Ok(self.prompt(&tokenizer, &request, self.limit(&request))?.text)
    }

    /// Checks what a request asks of the model. One that can think does, unless it is told not to.
    fn can_generate(&self, request: &mut GenerateRequest) -> Result<Arc<Tokenizer>, RunnerError> {
        if self.info.encoder {
            return Err(RunnerError::unsupported(format!("{:?} does not support generate", self.name)));
        }
        let can_think = self.reply.thinking.is_some();
        if !can_think && request.think.is_some_and(Think::is_on) {
            return Err(RunnerError::unsupported(format!("{:?} does not support thinking", self.name)));
        }
        if can_think && !matches!(request.input, Input::Raw { .. }) {
            request.think.get_or_insert(Think::On);
        }
        self.tokenizer()
    }

    fn limit(&self, request: &GenerateRequest) -> usize {
        let asked = request.num_ctx.unwrap_or(usize::MAX).max(MIN_CONTEXT);
        asked.min(self.info.context_length).max(1)
    }

    pub(super) fn embedding(&self) -> &Embedding {
        &self.embedding
    }

    /// The ids of each text to embed.
    pub(super) fn prepare_embed(&self, request: &EmbedRequest) -> Result<Vec<Vec<u32>>, RunnerError> {
        let tokenizer = self.tokenizer()?;
        if let Some(what) = &self.embedding.refused {
            return Err(RunnerError::unsupported(format!(
                "{}: {what} is not supported in embeddings",
                self.name
            )));
        }
        let most = (MAX_EMBEDDED / self.info.embedding_length.max(1)).max(1);
        if request.inputs.len() > most {
            let n = request.inputs.len();
            return Err(RunnerError::invalid(format!(
                "{n} texts are too many for one request: {most} at most"
            )));
        }
        let own = self.embedding.max_tokens.unwrap_or(usize::MAX).min(self.info.context_length);
        let limit = request.num_ctx.unwrap_or(usize::MAX).min(own).max(1);
        let ids_of = |text: &String| {
            let ids = embed::ids_of(&tokenizer, text, limit, request.truncate)
                .map_err(|error| RunnerError::invalid(chain(&error)))?;
            let mut ids =
                ids.ok_or_else(|| RunnerError::invalid("the input length exceeds the context length"))?;
            if ids.is_empty() {
                ids.extend(self.special.bos);
            }
            if ids.is_empty() {
                return Err(RunnerError::invalid("the input has no tokens"));
            }
            self.check(&ids)?;
            Ok(ids)
        };
        request.inputs.iter().map(ids_of).collect()
    }

    fn tokenizer(&self) -> Result<Arc<Tokenizer>, RunnerError> {
        self.tokenizer.clone().ok_or_else(|| {
            RunnerError::unsupported(format!("{}: has no tokenizer, so it cannot read text", self.name))
        })
    }

    /// A tokenizer may have more ids than the model.
    fn check(&self, ids: &[u32]) -> Result<(), RunnerError> {
        match ids.iter().find(|&&id| id as usize >= self.info.vocab_size) {
            Some(id) => Err(RunnerError::invalid(format!(
                "token id {id} is outside the model's vocabulary of {}",
                self.info.vocab_size
            ))),
            None => Ok(()),
        }
    }
}
