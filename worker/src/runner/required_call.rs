//! Runs in the text helper: constrains the response of a request to a tool call.

use serde_json::Value;

use super::protocol::{GenerateRequest, Input, RunnerError, ToolChoice};
use super::text_side::TextProcessor;
use crate::text::{Special, Tokenizer};

impl TextProcessor {
    /// Constrains the response to a call of the chosen tools, if the request requires one: sets its format and
    /// returns the ids that the content begins with.
    pub(super) fn require_call(
        &self,
        tokenizer: &Tokenizer,
        request: &mut GenerateRequest,
    ) -> Result<Vec<u32>, RunnerError> {
        let Some(choice) = request.tool_choice.clone() else { return Ok(Vec::new()) };
        let Input::Chat { tools, .. } = &request.input else {
            return Err(RunnerError::invalid("tool_choice requires messages and tools"));
        };
        let parts = |tool: &Value| {
            let name = tool.pointer("/function/name")?.as_str()?.to_owned();
            Some((name, tool.pointer("/function/parameters").cloned().unwrap_or_default()))
        };
        let mut tools: Vec<(String, Value)> = tools.iter().filter_map(parts).collect();
        match choice {
            ToolChoice::Required if tools.is_empty() => {
                return Err(RunnerError::invalid("tool_choice requires a tool call, but there are no tools"));
            }
            ToolChoice::Required => {}
            ToolChoice::Named(name) => {
                tools.retain(|tool| tool.0 == name);
                tools.truncate(1);
                if tools.is_empty() {
                    return Err(RunnerError::invalid(format!(
                        "tool_choice names {name:?}, which is not one of the tools"
                    )));
                }
            }
        }
        let tools: Vec<(&str, Value)> =
            tools.iter().map(|(name, parameters)| (name.as_str(), parameters.clone())).collect();
        let unsupported = |reason: &dyn std::fmt::Display| {
            RunnerError::unsupported(format!("{} does not support this tool_choice: {reason}", self.name))
        };
        let call = self.reply.calls.required_call(&tools).map_err(|error| unsupported(&error))?;
        let opening = tokenizer.encode_with(&call.opening, Special::PARSE).map_err(|e| unsupported(&e))?;
        let bytes: Vec<u8> = opening.iter().flat_map(|id| tokenizer.token_bytes(*id)).copied().collect();
        // Some tokenizers add a space before a text.
        if bytes.trim_ascii_start() != call.opening.trim_start().as_bytes() {
            return Err(unsupported(&"its vocabulary cannot write the beginning of a tool call"));
        }
        request.format = Some(call.schema);
        Ok(opening)
    }
}
