//! In the helper process: from a request to the text of its prompt and its ids, fitted into the context as ollama does it: a conversation loses its oldest
//! messages, then the text its middle, and what must not be cut is refused.

use serde_json::{Value, json};

use super::helper::{EngineFacts, Prepared, Reading};
use super::protocol::{GenerateRequest, Input, MIN_CONTEXT, RunnerError};
use super::text_side::{TextSide, chain};
use crate::text::template::Conversation;
use crate::text::{GoChat, KnownTools, PromptTemplate, Special, Think, Tokenizer};

/// What a model without a template of its own is given: as ollama does it.
const PLAIN_PROMPT: &str = "{{ .Prompt }}";

const TOO_LONG: &str = "the input length exceeds the context length";
const TOO_LONG_TO_SHIFT: &str = "the prompt is longer than the context length currently available to the model; shorten the prompt, adjust \
    the context length (num_ctx), or use a model with a longer context length";

/// A prompt as a model gets it.
struct Prompt {
    /// As the template made it; of a prompt whose middle was cut out, still the whole.
    text: String,
    /// At least one.
    ids: Vec<u32>,
}

/// Tokens that the sequence may have.
fn limit(request: &GenerateRequest, facts: EngineFacts) -> usize {
    let asked = request.num_ctx.unwrap_or(usize::MAX).max(MIN_CONTEXT);
    asked.min(facts.context_length).max(1)
}

impl TextSide {
    /// A request with its prompt as ids.
    pub(super) fn prepare(
        &self,
        mut request: GenerateRequest,
        facts: EngineFacts,
    ) -> Result<(Prepared, Vec<u32>), RunnerError> {
        let tokenizer = self.can_generate(&mut request, facts)?;
        let limit = limit(&request, facts);
        let Prompt { text, ids } = self.prompt(tokenizer, &request, limit)?;
        let reading = |tools: &[Value]| {
            let (in_thoughts, tools) = (self.reply.ends_in_thoughts(&text), KnownTools::of(tools));
            Some(Reading { in_thoughts, tools })
        };
        let reading = match &request.input {
            Input::Chat { tools, .. } => reading(tools),
            // What is as it is, or stands before a suffix, is read where that was asked for.
            Input::Raw { .. } if !request.think.is_some_and(Think::is_on) => None,
            Input::Prompt { suffix, .. } if !suffix.is_empty() => None,
            Input::Raw { .. } | Input::Prompt { .. } => reading(&[]),
        };
        let num_keep = self.kept(tokenizer, &request).min(ids.len());
        request.input = Input::Raw { prompt: String::new() };
        Ok((Prepared { request, limit, num_keep, reading }, ids))
    }

    /// The text of a request's prompt.
    pub(super) fn render(
        &self,
        mut request: GenerateRequest,
        facts: EngineFacts,
    ) -> Result<String, RunnerError> {
        let tokenizer = self.can_generate(&mut request, facts)?;
        Ok(self.prompt(tokenizer, &request, limit(&request, facts))?.text)
    }

    /// Checks what a request asks of the model. One that can think does, unless it is told not to.
    fn can_generate(
        &self,
        request: &mut GenerateRequest,
        facts: EngineFacts,
    ) -> Result<&Tokenizer, RunnerError> {
        if facts.encoder {
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

    /// The prompt of a request in a context of `limit` tokens.
    fn prompt(
        &self,
        tokenizer: &Tokenizer,
        request: &GenerateRequest,
        limit: usize,
    ) -> Result<Prompt, RunnerError> {
        let mut prompt = match &request.input {
            Input::Raw { prompt } => encoded(tokenizer, prompt.clone(), Special::ALL)?,
            Input::Prompt { context, .. } => {
                let turn = self.turn(tokenizer, request, limit)?;
                Prompt { ids: self.after(context, turn.ids), text: turn.text }
            }
            Input::Chat { messages, tools } => {
                self.conversation(tokenizer, messages, tools, request, limit)?
            }
        };
        if prompt.ids.is_empty() {
            // Nothing to continue: begin as the model's texts begin.
            prompt.ids.extend(self.special.bos);
        }
        if prompt.ids.is_empty() {
            return Err(RunnerError::invalid("the prompt has no tokens"));
        }
        prompt.ids = fit(prompt.ids, request, self.kept(tokenizer, request), limit)?;
        Ok(prompt)
    }

    /// Ids at the front that stay when room is made: those asked for, and the beginning of text.
    fn kept(&self, tokenizer: &Tokenizer, request: &GenerateRequest) -> usize {
        request.num_keep.saturating_add(usize::from(tokenizer.begin().is_some()))
    }

    /// One turn of a conversation, through a template where there is one.
    fn turn(
        &self,
        tokenizer: &Tokenizer,
        request: &GenerateRequest,
        limit: usize,
    ) -> Result<Prompt, RunnerError> {
        let Input::Prompt { system, messages: earlier, prompt, context, template, suffix } = &request.input
        else {
            return Err(RunnerError::invalid("the prompt is no turn"));
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
            return Ok(begun(tokenizer, encoded(tokenizer, text, Special::PARSE)?));
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
            return Ok(begun(tokenizer, encoded(tokenizer, text, Special::PARSE)?));
        }
        if self.template.is_some() {
            return self.conversation(tokenizer, &messages, &[], request, limit);
        }
        let text = system.map_or_else(|| prompt.clone(), |system| format!("{system}\n\n{prompt}"));
        let special = if context.is_empty() { Special::ALL } else { Special::PARSE };
        Ok(begun(tokenizer, encoded(tokenizer, text, special)?))
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

    /// Renders a conversation, without as many of its oldest messages as it takes to fit. System messages and the last one stay.
    fn conversation(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Value],
        tools: &[Value],
        request: &GenerateRequest,
        limit: usize,
    ) -> Result<Prompt, RunnerError> {
        let plain;
        // A template spells the special tokens of a prompt; without one, the tokenizer adds them.
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
            Ok(begun(tokenizer, encoded(tokenizer, text, special)?))
        };
        let whole = without(0)?;
        if whole.ids.len() <= limit || !request.truncate {
            return Ok(whole);
        }
        // The fewest messages to drop. A template may refuse a conversation that begins in the wrong place: that is no fit either.
        let (mut fewest, mut most) = (1, messages.len().saturating_sub(1));
        let mut fitting = None;
        while fewest < most {
            let middle = fewest.midpoint(most);
            match without(middle) {
                Ok(prompt) if prompt.ids.len() <= limit => {
                    fitting = Some(prompt);
                    most = middle;
                }
                _ => fewest = middle + 1,
            }
        }
        fitting.map_or_else(|| without(most), Ok)
    }
}

fn encoded(tokenizer: &Tokenizer, text: String, special: Special) -> Result<Prompt, RunnerError> {
    let ids = tokenizer.encode_with(&text, special).map_err(|error| RunnerError::invalid(chain(&error)))?;
    Ok(Prompt { text, ids })
}

/// With the beginning of text in front where every text of the model has one and this one has not.
fn begun(tokenizer: &Tokenizer, mut prompt: Prompt) -> Prompt {
    if let Some(begin) = tokenizer.begin().filter(|begin| prompt.ids.first() != Some(begin)) {
        prompt.ids.insert(0, begin);
    }
    prompt
}

/// Ids that leave room for an answer: of those that are too many, the first `keep` and then the last, so many that half of
/// the rest of the context is free, as a shift would leave it.
fn fit(
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
