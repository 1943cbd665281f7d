//! A loaded model's text side: tokenizer, template and special tokens, and how a request becomes ids.
//! Lives in the runner; reading files and encoding block, so the server calls it off its async threads.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::embed::{self, Embedding};
use super::generate::Job;
use super::protocol::{
    EmbedRequest, Event, Format, GenerateRequest, Input, LoadRequest, Loaded, ModelSpec, RunnerError,
};
use super::text_side::{TextSide, chain, parse_json, read_file};
use crate::engine::{BlobFile, Engine, KvType, LoadOptions, ModelFiles, ModelInfo, native};
use crate::text::template::Conversation;
use crate::text::{ChatTemplate, Sampler, Special, SpecialTokens, StopMatcher, Tokenizer};

/// "Until the model stops" means at most so many contexts.
const MAX_CONTEXTS: usize = 10;

/// What a loaded model needs to turn requests into jobs.
pub(crate) struct Model {
    name: String,
    info: ModelInfo,
    tokenizer: Option<Arc<Tokenizer>>,
    template: Option<ChatTemplate>,
    special: SpecialTokens,
    eos: Arc<std::collections::BTreeSet<u32>>,
    embedding: Embedding,
}

impl Model {
    /// Reads everything a model consists of and hands its weights to an engine.
    pub(crate) fn load(request: &LoadRequest) -> Result<(Model, Box<dyn Engine>), RunnerError> {
        let spec = &request.model;
        // A GGUF's metadata is all of that.
        let is_gguf = spec.tensors.iter().any(|file| file.format == Format::Gguf);
        let config_json = match read_file(spec, "config.json")? {
            Some(bytes) => bytes,
            None if is_gguf => b"{}".to_vec(),
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
        // A vocabulary of a hundred thousand tokens takes longer to read than its weights to map.
        let (engine, text) = std::thread::scope(|scope| {
            let text = scope.spawn(|| TextSide::read(spec, &config));
            let engine = native::load(&files, options)
                .map_err(|error| RunnerError::unsupported(format!("{}: {}", spec.name, chain(&error))));
            let text =
                text.join().unwrap_or_else(|_| Err(RunnerError::failed("reading the tokenizer failed")));
            (engine, text)
        });
        let engine = engine?;
        let model = Model::new(spec, text?, engine.info().clone());
        Ok((model, engine))
    }

    /// The text side alone.
    #[cfg(test)]
    pub(crate) fn read(spec: &ModelSpec, config: &Value, info: ModelInfo) -> Result<Model, RunnerError> {
        Ok(Model::new(spec, TextSide::read(spec, config)?, info))
    }

    fn new(spec: &ModelSpec, text: TextSide, info: ModelInfo) -> Model {
        let TextSide { tokenizer, template, special, embedding } = text;
        let eos = Arc::new(special.eos.clone());
        Model { name: spec.name.clone(), info, tokenizer, template, special, eos, embedding }
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
        request: GenerateRequest,
        events: mpsc::Sender<Event>,
    ) -> Result<Job, RunnerError> {
        if self.info.encoder {
            return Err(RunnerError::unsupported(format!("{:?} does not support generate", self.name)));
        }
        let tokenizer = self.tokenizer()?;
        let limit = request.num_ctx.unwrap_or(usize::MAX).min(self.info.context_length).max(1);
        let prompt = self.prompt(&tokenizer, &request, limit)?;
        self.check(&prompt)?;
        let num_predict = request.num_predict.unwrap_or(usize::MAX).min(limit.saturating_mul(MAX_CONTEXTS));
        Ok(Job {
            limit,
            num_predict,
            num_keep: request.num_keep.min(prompt.len()),
            shift: request.shift,
            sampler: Sampler::new(request.sampling, limit),
            stop: StopMatcher::new(request.stop),
            eos: self.eos.clone(),
            tokenizer,
            top_logprobs: request.logprobs.then_some(request.top_logprobs),
            whole: request.whole,
            prompt,
            events,
        })
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

    fn prompt(
        &self,
        tokenizer: &Tokenizer,
        request: &GenerateRequest,
        limit: usize,
    ) -> Result<Vec<u32>, RunnerError> {
        let encode = |text: &str, special| {
            tokenizer.encode_with(text, special).map_err(|error| RunnerError::invalid(chain(&error)))
        };
        let mut ids = match &request.input {
            Input::Raw { prompt } => encode(prompt, Special::ALL)?,
            Input::Prompt { system, messages, prompt, context } => {
                let turn = self.turn(system.as_deref(), messages, prompt, tokenizer, context.is_empty())?;
                self.after(context, turn)
            }
            Input::Chat { messages, tools } => {
                return self.conversation(tokenizer, messages, tools, request, limit);
            }
        };
        if ids.is_empty() {
            // Nothing to continue: begin as the model's texts begin.
            ids.extend(self.special.bos);
        }
        self.fit(ids, request, limit)
    }

    /// One turn of a conversation, through the template where there is one.
    fn turn(
        &self,
        system: Option<&str>,
        earlier: &[Value],
        prompt: &str,
        tokenizer: &Tokenizer,
        first: bool,
    ) -> Result<Vec<u32>, RunnerError> {
        let system = system.filter(|system| !system.is_empty());
        let (text, special) = match &self.template {
            Some(template) => {
                let mut messages = Vec::new();
                messages.extend(system.map(|system| json!({"role": "system", "content": system})));
                messages.extend_from_slice(earlier);
                messages.push(json!({"role": "user", "content": prompt}));
                let conversation =
                    Conversation { messages: &messages, tools: None, add_generation_prompt: true };
                (template.render(&conversation).map_err(RunnerError::invalid)?, Special::PARSE)
            }
            None => {
                let text = system.map_or_else(|| prompt.to_owned(), |system| format!("{system}\n\n{prompt}"));
                (text, if first { Special::ALL } else { Special::PARSE })
            }
        };
        let ids =
            tokenizer.encode_with(&text, special).map_err(|error| RunnerError::invalid(chain(&error)))?;
        Ok(begun(tokenizer, ids))
    }

    /// Ids of earlier turns, the end of the last of them, then a new turn without a second beginning of text.
    fn after(&self, context: &[u32], mut turn: Vec<u32>) -> Vec<u32> {
        let Some(last) = context.last() else { return turn };
        let mut ids = context.to_vec();
        if self.template.is_some() && !self.special.eos.contains(last) {
            let named = self.special.names.get("eos_token").zip(self.tokenizer.as_ref());
            ids.extend(named.and_then(|(text, tokenizer)| tokenizer.token_id(text)));
        }
        if turn.first().is_some_and(|first| Some(*first) == self.special.bos) {
            turn.remove(0);
        }
        ids.extend(turn);
        ids
    }

    /// Renders a conversation, without its oldest messages where the whole is too long.
    fn conversation(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Value],
        tools: &[Value],
        request: &GenerateRequest,
        limit: usize,
    ) -> Result<Vec<u32>, RunnerError> {
        let template = self
            .template
            .as_ref()
            .ok_or_else(|| RunnerError::unsupported(format!("{:?} does not support chat", self.name)))?;
        if !tools.is_empty() && !template.has_tools() {
            return Err(RunnerError::unsupported(format!("{} does not support tools", self.name)));
        }
        let tools = (!tools.is_empty()).then_some(tools);
        let mut messages = messages.to_vec();
        loop {
            let conversation = Conversation { messages: &messages, tools, add_generation_prompt: true };
            let text = template.render(&conversation).map_err(RunnerError::invalid)?;
            let ids = tokenizer
                .encode_with(&text, Special::PARSE)
                .map_err(|error| RunnerError::invalid(chain(&error)))?;
            let ids = begun(tokenizer, ids);
            if ids.len() <= limit || !request.truncate {
                return self.fit(ids, request, limit);
            }
            // System messages and the last one stay; at least one of the others goes, more when far too long.
            let is_system = |message: &Value| message.get("role").and_then(Value::as_str) == Some("system");
            let old: Vec<usize> = (0..messages.len() - 1).filter(|&at| !is_system(&messages[at])).collect();
            if old.is_empty() {
                return self.fit(ids, request, limit);
            }
            let surplus = (ids.len() - limit) * messages.len() / ids.len();
            let drop = surplus.clamp(1, old.len());
            let dropped: std::collections::BTreeSet<usize> = old.into_iter().take(drop).collect();
            let mut at = 0;
            messages.retain(|_| {
                at += 1;
                !dropped.contains(&(at - 1))
            });
        }
    }

    /// Cuts the middle out of a prompt that is too long: its beginning and its end matter most.
    fn fit(
        &self,
        mut ids: Vec<u32>,
        request: &GenerateRequest,
        limit: usize,
    ) -> Result<Vec<u32>, RunnerError> {
        if ids.is_empty() {
            return Err(RunnerError::invalid("the prompt has no tokens"));
        }
        if ids.len() > limit {
            if !request.truncate {
                return Err(RunnerError::invalid("the input length exceeds the context length"));
            }
            let keep = request.num_keep.min(limit.saturating_sub(1));
            ids.drain(keep..keep + ids.len() - limit);
        }
        Ok(ids)
    }
}

/// The ids with the beginning of text in front where every text of the model has one and this one has not.
fn begun(tokenizer: &Tokenizer, mut ids: Vec<u32>) -> Vec<u32> {
    if let Some(begin) = tokenizer.begin().filter(|begin| ids.first() != Some(begin)) {
        ids.insert(0, begin);
    }
    ids
}
