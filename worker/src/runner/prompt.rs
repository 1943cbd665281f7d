//! Runs in the text helper: converts a request to the text and the ids of its prompt, and fits them into the
//! context as ollama does. A conversation loses its oldest messages first; then the middle of the text is
//! removed. A request that forbids truncation is refused.

use lode_model::error_chain;
use serde_json::{Value, json};

use super::helper::{EngineFacts, PreparedRequest, ReaderSettings};
use super::protocol::{GenerateRequest, Input, MIN_CONTEXT, RunnerError};
use super::text_side::TextProcessor;
use crate::text::template::Conversation;
use crate::text::{GoChat, KnownTools, PromptTemplate, Special, Think, Tokenizer};

/// The template for a model without one, as in ollama.
const PLAIN_PROMPT: &str = "{{ .Prompt }}";

const TOO_LONG: &str = "the input length exceeds the context length";
const TOO_LONG_TO_SHIFT: &str = "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust \
    the context length (num_ctx), or use a model with a longer context length";

/// A prompt for a model.
struct Prompt {
    /// The template's output. Still complete if the middle of the ids was removed.
    text: String,
    /// At least one.
    ids: Vec<u32>,
    /// Number of ids before it was truncated.
    whole_len: usize,
}

/// Maximum length of the sequence in tokens.
fn limit(request: &GenerateRequest, facts: EngineFacts) -> usize {
    let requested = request.num_ctx.unwrap_or(usize::MAX).max(MIN_CONTEXT);
    requested.min(facts.context_length).max(1)
}

impl TextProcessor {
    /// Converts a request's prompt to ids.
    pub(super) fn prepare(
        &self,
        mut request: GenerateRequest,
        facts: EngineFacts,
    ) -> Result<(PreparedRequest, Vec<u32>), RunnerError> {
        let tokenizer = self.check_generate(&mut request, facts)?;
        let limit = limit(&request, facts);
        let opening = self.require_call(tokenizer, &mut request)?;
        let Prompt { text, ids, .. } = self.prompt(tokenizer, &request, limit)?;
        let reading = |tools: &[Value]| {
            let (in_thoughts, tools) = (self.reply.ends_in_reasoning(&text), KnownTools::of(tools));
            Some(ReaderSettings { in_thoughts, tools })
        };
        let reading = match &request.input {
            Input::Chat { tools, .. } => reading(tools),
            // A raw prompt is split into its parts only if thinking is requested, and one with a suffix
            // never.
            Input::Raw { .. } if !request.think.is_some_and(Think::is_on) => None,
            Input::Prompt { suffix, .. } if !suffix.is_empty() => None,
            Input::Ids { .. } => None,
            Input::Raw { .. } | Input::Prompt { .. } => reading(&[]),
        };
        let echo = request.echo.then_some(text);
        let num_keep = self.kept_prefix_len(tokenizer, &request).min(ids.len());
        request.input = Input::Raw { prompt: String::new() };
        Ok((PreparedRequest { request, limit, num_keep, opening, echo, reading }, ids))
    }

    /// Renders the text of a request's prompt. Also returns its number of ids before it was truncated.
    pub(super) fn render(
        &self,
        mut request: GenerateRequest,
        facts: EngineFacts,
    ) -> Result<(usize, String), RunnerError> {
        let tokenizer = self.check_generate(&mut request, facts)?;
        let prompt = self.prompt(tokenizer, &request, limit(&request, facts))?;
        Ok((prompt.whole_len, prompt.text))
    }

    /// Checks that the model supports the request. Thinking is on by default if the model supports it.
    fn check_generate(
        &self,
        request: &mut GenerateRequest,
        facts: EngineFacts,
    ) -> Result<&Tokenizer, RunnerError> {
        if facts.encoder {
            return Err(RunnerError::unsupported(format!("{:?} does not support generate", self.name)));
        }
        if request.echo && request.logprobs {
            // A part of the prompt cannot be scored as if it were the whole.
            request.truncate = false;
        }
        let can_think = self.reply.thinking.is_some();
        if !can_think && request.think.is_some_and(Think::is_on) {
            return Err(RunnerError::unsupported(format!("{:?} does not support thinking", self.name)));
        }
        if can_think && !matches!(request.input, Input::Raw { .. } | Input::Ids { .. }) {
            request.think.get_or_insert(Think::On);
        }
        self.tokenizer()
    }

    /// Builds the prompt of a request for a context of `limit` tokens.
    fn prompt(
        &self,
        tokenizer: &Tokenizer,
        request: &GenerateRequest,
        limit: usize,
    ) -> Result<Prompt, RunnerError> {
        let mut prompt = match &request.input {
            Input::Raw { prompt } => encode_prompt(tokenizer, prompt.clone(), Special::ALL)?,
            Input::Ids { ids } => {
                let text = match request.echo {
                    true => tokenizer.decode(ids).map_err(|e| RunnerError::invalid(error_chain(&e)))?,
                    false => Vec::new(),
                };
                let text = String::from_utf8_lossy(&text).into_owned();
                Prompt { text, ids: ids.clone(), whole_len: ids.len() }
            }
            Input::Prompt { context, .. } => {
                let turn = self.turn(tokenizer, request, limit)?;
                let ids = self.append_turn(context, turn.ids);
                Prompt { whole_len: turn.whole_len.max(ids.len()), ids, text: turn.text }
            }
            Input::Chat { messages, tools } => {
                self.conversation(tokenizer, messages, tools, request, limit)?
            }
        };
        if prompt.ids.is_empty() {
            // An empty prompt: start with the beginning-of-text token.
            prompt.ids.extend(self.special.bos);
        }
        if prompt.ids.is_empty() {
            return Err(RunnerError::invalid("the prompt has no tokens"));
        }
        prompt.whole_len = prompt.whole_len.max(prompt.ids.len());
        prompt.ids = fit_to_context(prompt.ids, request, self.kept_prefix_len(tokenizer, request), limit)?;
        Ok(prompt)
    }

    /// Number of ids at the front that are kept when the context is shifted: `num_keep`, and the
    /// beginning-of-text token.
    fn kept_prefix_len(&self, tokenizer: &Tokenizer, request: &GenerateRequest) -> usize {
        request.num_keep.saturating_add(usize::from(tokenizer.begin().is_some()))
    }

    /// Builds the prompt of one turn, with a template if there is one.
    fn turn(
        &self,
        tokenizer: &Tokenizer,
        request: &GenerateRequest,
        limit: usize,
    ) -> Result<Prompt, RunnerError> {
        let Input::Prompt { system, messages: earlier, prompt, context, template, suffix } = &request.input
        else {
            return Err(RunnerError::invalid("the input is not a single turn"));
        };
        let system = system.as_deref().filter(|system| !system.is_empty());
        let of_request = match template.as_deref().filter(|template| !template.is_empty()) {
            Some(source) => Some(
                GoChat::new(source)
                    .map_err(|error| RunnerError::invalid(format!("template error: {error}")))?,
            ),
            None => None,
        };
        let failed = |error: &dyn std::error::Error| RunnerError::invalid(format!("template error: {error}"));
        if !suffix.is_empty() {
            let own = self.template.as_ref().and_then(|template| template.go());
            let own = own.filter(|own| own.abilities().insert).ok_or_else(|| {
                RunnerError::unsupported(format!("{:?} does not support insert", self.name))
            })?;
            let template = of_request.as_ref().unwrap_or(own);
            let text = template.insert(prompt, suffix, request.think).map_err(|error| failed(&error))?;
            return Ok(with_bos(tokenizer, encode_prompt(tokenizer, text, Special::PARSE)?));
        }
        let mut messages = Vec::new();
        messages.extend(system.map(|system| json!({"role": "system", "content": system})));
        messages.extend_from_slice(earlier);
        messages.push(json!({"role": "user", "content": prompt}));
        if let Some(template) = of_request {
            let conversation = Conversation {
                messages: &messages,
                add_generation_prompt: true,
                tools: None,
                think: request.think,
            };
            let text = template.render(&conversation).map_err(|error| failed(&error))?;
            return Ok(with_bos(tokenizer, encode_prompt(tokenizer, text, Special::PARSE)?));
        }
        if self.template.is_some() {
            return self.conversation(tokenizer, &messages, &[], request, limit);
        }
        let text = system.map_or_else(|| prompt.clone(), |system| format!("{system}\n\n{prompt}"));
        let special = if context.is_empty() { Special::ALL } else { Special::PARSE };
        Ok(with_bos(tokenizer, encode_prompt(tokenizer, text, special)?))
    }

    /// Joins the ids of earlier turns, the end of the last one, and a new turn without a second
    /// beginning-of-text token.
    fn append_turn(&self, context: &[u32], mut turn: Vec<u32>) -> Vec<u32> {
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

    /// Renders a conversation. Drops its oldest messages until it fits, except system messages and the last
    /// message.
    fn conversation(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Value],
        tools: &[Value],
        request: &GenerateRequest,
        limit: usize,
    ) -> Result<Prompt, RunnerError> {
        let plain;
        // A template writes the special tokens of a prompt; without one, the tokenizer adds them.
        let (template, special) = match &self.template {
            Some(template) => (template, Special::PARSE),
            None => {
                let source = GoChat::new(PLAIN_PROMPT).map_err(RunnerError::failed)?;
                plain = PromptTemplate::Go(Box::new(source));
                (&plain, Special::ALL)
            }
        };
        if !tools.is_empty() && !template.abilities().tools {
            return Err(RunnerError::unsupported(format!("{} does not support tools", self.name)));
        }
        let tools = (!tools.is_empty()).then_some(tools);
        let is_system = |message: &&Value| message.get("role").and_then(Value::as_str) == Some("system");
        let without = |dropped: usize| {
            let (old, kept) = messages.split_at(dropped);
            let messages: Vec<Value> = old.iter().filter(is_system).chain(kept).cloned().collect();
            let conversation = Conversation {
                messages: &messages,
                tools,
                add_generation_prompt: true,
                think: request.think,
            };
            let text = template.render(&conversation).map_err(RunnerError::invalid)?;
            Ok(with_bos(tokenizer, encode_prompt(tokenizer, text, special)?))
        };
        let whole = without(0)?;
        // As `fit_to_context`: there is space for at least one new token.
        let fits = |prompt: &Prompt| prompt.ids.len() < limit.max(2);
        if fits(&whole) || !request.truncate {
            return Ok(whole);
        }
        // Search for the fewest messages to drop. A conversation that the template rejects, because of its
        // first message for example, does not fit either.
        let (mut fewest, mut most) = (1, messages.len().saturating_sub(1));
        let mut fitting = None;
        while fewest < most {
            let middle = fewest.midpoint(most);
            match without(middle) {
                Ok(prompt) if fits(&prompt) => {
                    fitting = Some(prompt);
                    most = middle;
                }
                _ => fewest = middle + 1,
            }
        }
        let truncated = fitting.map_or_else(|| without(most), Ok)?;
        Ok(Prompt { whole_len: whole.ids.len(), ..truncated })
    }
}

fn encode_prompt(tokenizer: &Tokenizer, text: String, special: Special) -> Result<Prompt, RunnerError> {
    let ids =
        tokenizer.encode_with(&text, special).map_err(|error| RunnerError::invalid(error_chain(&error)))?;
    Ok(Prompt { text, whole_len: ids.len(), ids })
}

/// Adds the beginning-of-text token if the model requires one and the prompt has none.
fn with_bos(tokenizer: &Tokenizer, mut prompt: Prompt) -> Prompt {
    if let Some(begin) = tokenizer.begin().filter(|begin| prompt.ids.first() != Some(begin)) {
        prompt.ids.insert(0, begin);
    }
    prompt
}

/// Truncates ids that do not fit into the context: keeps the first `keep` and as many of the last that half
/// of the rest of the context is free, as after a shift.
fn fit_to_context(
    mut ids: Vec<u32>,
    request: &GenerateRequest,
    keep: usize,
    limit: usize,
) -> Result<Vec<u32>, RunnerError> {
    if ids.len() < limit.max(2) {
        return Ok(ids);
    }
    if !request.truncate {
        return Err(RunnerError::invalid(TOO_LONG));
    }
    if !request.shift {
        return Err(RunnerError::invalid(TOO_LONG_TO_SHIFT));
    }
    let keep = keep.min(limit.saturating_sub(1));
    let len = limit.saturating_sub(((limit - keep) / 2).max(1)).max(1);
    ids.drain(keep.min(len)..keep.min(len) + ids.len() - len);
    Ok(ids)
}
