//! What the server knows about the model of a chat.

use lode_model::modelfile::Role;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    connect::Target,
    error::{Failure, Outcome},
    ui,
};

/// The relevant fields of a response of `/api/show`.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(super) struct Model {
    pub(super) system: String,
    pub(super) parameters: String,
    pub(super) template: String,
    pub(super) license: String,
    pub(super) modelfile: String,
    messages: Vec<Message>,
    details: Details,
    model_info: Map<String, Value>,
    capabilities: Vec<String>,
}

#[derive(Deserialize)]
struct Message {
    role: String,
    content: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Details {
    format: String,
    family: String,
    parameter_size: String,
    quantization_level: String,
}

impl Model {
    pub(super) async fn fetch(target: &Target) -> Outcome<Model> {
        let request = json!({ "model": target.model() });
        target.registry.json_post("lode/v1/show", &request).await.map_err(|error| target.not_found(error))
    }

    /// Whether the model reasons; `true` if the server does not report what the model does.
    pub(super) fn can_reason(&self) -> bool {
        self.capabilities.is_empty() || self.capabilities.iter().any(|capability| capability == "thinking")
    }

    /// The conversation that is part of the model.
    pub(super) fn messages(&self) -> Outcome<Vec<(Role, String)>> {
        let message = |Message { role, content }: &Message| {
            let role = role
                .parse::<Role>()
                .map_err(|error| Failure::with_source("cannot read the messages of the model", &error))?;
            Ok((role, content.clone()))
        };
        self.messages.iter().map(message).collect()
    }

    /// Prints the conversation that is part of the model.
    pub(super) fn print_conversation(&self) -> Outcome {
        self.messages.iter().try_for_each(|Message { role, content }| match role.as_str() {
            "user" => ui::print_line(format!(">>> {content}")),
            "assistant" => ui::print_line(format!("{content}\n")),
            _ => Ok(()),
        })
    }

    /// Prints a summary.
    pub(super) fn print_info(&self, target: &Target) -> Outcome {
        let Details { format, family, parameter_size, quantization_level } = &self.details;
        let context_length = self.model_info.get(&format!("{family}.context_length"));
        let context_length = context_length.map(Value::to_string).unwrap_or_default();
        let capabilities = self.capabilities.join(", ");
        ui::print_line(target.to_string())?;
        [
            ("format", format),
            ("architecture", family),
            ("parameters", parameter_size),
            ("quantization", quantization_level),
            ("context", &context_length),
            ("capabilities", &capabilities),
        ]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .try_for_each(|(name, value)| ui::print_line(format!("  {name:<14}{value}")))
    }
}
