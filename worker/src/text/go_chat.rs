//! Renders prompts with the Go templates of `application/vnd.ollama.image.template` layers. By ollama's
//! conventions, a template is executed once for a whole conversation or once per turn (ollama
//! template/template.go).

use std::collections::BTreeSet;
use std::sync::Arc;

use lode_model::go_template::{
    Dates, ExecError, Field, List, Map, OmitRule, PrintStyle, Record, SyntaxError, Template, Value,
};
use lode_model::prompt_template::TemplateFeatures;
use serde_json::Value as Json;

use super::template::Conversation;
use super::think::Think;

/// A Go template that renders prompts.
#[derive(Debug)]
pub struct GoChat {
    template: Template,
    /// The template up to the beginning of the response, for the last turn if it is executed once per turn.
    up_to_response: Template,
    mentions: BTreeSet<String>,
    abilities: TemplateFeatures,
}

impl GoChat {
    pub fn new(source: &str) -> Result<GoChat, SyntaxError> {
        let mut template = Template::parse(source)?;
        let abilities = TemplateFeatures::from_go(&template, source);
        let mentions: BTreeSet<String> =
            template.mentioned_names().into_iter().map(str::to_lowercase).collect();
        if !mentions.contains("messages") && !mentions.contains("response") {
            template = template.append_field("Response");
        }
        let up_to_response = template.truncate_after("Response");
        Ok(GoChat { template, up_to_response, mentions, abilities })
    }

    /// The features that it supports.
    pub fn abilities(&self) -> TemplateFeatures {
        self.abilities
    }

    /// Renders the prompt for a conversation.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, ExecError> {
        let (system, messages) = collate(conversation.messages);
        if !self.mentions.contains("messages") {
            return self.render_turns(&messages, conversation.think);
        }
        let messages = messages.iter().map(Message::value).collect();
        let data = data(
            conversation.think,
            [
                ("System", Value::from(system)),
                ("Messages", list_or_nil(messages)),
                ("Tools", tools(conversation.tools)),
                ("Response", Value::from("")),
            ],
        );
        self.template.execute(&data, &dates())
    }

    /// Renders the prompt for inserting text between two texts.
    pub fn insert(&self, prompt: &str, suffix: &str, think: Option<Think>) -> Result<String, ExecError> {
        let data = data(
            think,
            [("Prompt", prompt.into()), ("Suffix", suffix.into()), ("Response", Value::from(""))],
        );
        self.template.execute(&data, &dates())
    }

    /// Executes the template once per turn, for templates without `.Messages`.
    fn render_turns(&self, messages: &[Message<'_>], think: Option<Think>) -> Result<String, ExecError> {
        let mut text = String::new();
        let (mut system, mut prompt, mut response) = ("", "", "");
        let run = |template: &Template, system: &str, prompt: &str, response: &str| {
            let data = data(
                think,
                [("System", system.into()), ("Prompt", prompt.into()), ("Response", response.into())],
            );
            template.execute(&data, &dates())
        };
        for message in messages {
            let ends_a_turn = match message.role {
                "system" => !prompt.is_empty() || !response.is_empty(),
                "user" => !response.is_empty(),
                _ => false,
            };
            if ends_a_turn {
                text.push_str(&run(&self.template, system, prompt, response)?);
                (system, prompt, response) = ("", "", "");
            }
            match message.role {
                "system" => system = &message.content,
                "user" => prompt = &message.content,
                "assistant" => response = &message.content,
                _ => {}
            }
        }
        text.push_str(&run(&self.up_to_response, system, prompt, response)?);
        Ok(text)
    }
}

fn data<const N: usize>(think: Option<Think>, entries: [(&str, Value); N]) -> Value {
    let level = match think {
        Some(Think::On) => "medium",
        Some(think) => think.level().unwrap_or_default(),
        None => "",
    };
    let thinking = [
        ("Think", Value::Bool(think.is_some_and(Think::is_on))),
        ("ThinkLevel", Value::from(level)),
        ("IsThinkSet", Value::Bool(think.is_some())),
    ];
    Value::map(entries.into_iter().chain(thinking).map(|(key, value)| (key.to_owned(), value)))
}

fn dates() -> Dates {
    let today = time::OffsetDateTime::now_utc().date();
    let text =
        |date: time::Date| format!("{:04}-{:02}-{:02}", date.year(), u8::from(date.month()), date.day());
    Dates { today: text(today), yesterday: text(today.previous_day().unwrap_or(today)) }
}

/// A message, or several consecutive ones of one role.
struct Message<'a> {
    role: &'a str,
    content: String,
    /// The first of them, for its fields other than the text.
    first: &'a Json,
}

/// The text of all system messages, and the messages with consecutive ones of the same role joined.
fn collate(messages: &[Json]) -> (String, Vec<Message<'_>>) {
    let mut system = Vec::new();
    let mut collated: Vec<Message<'_>> = Vec::new();
    for message in messages {
        let (role, content) = (text(message, "role"), text(message, "content"));
        if role == "system" {
            system.push(content);
        }
        match collated.last_mut() {
            Some(last) if last.role == role && role != "tool" => {
                last.content.push_str("\n\n");
                last.content.push_str(content);
            }
            _ => collated.push(Message { role, content: content.to_owned(), first: message }),
        }
    }
    (system.join("\n\n"), collated)
}

fn text<'a>(json: &'a Json, key: &str) -> &'a str {
    json.get(key).and_then(Json::as_str).unwrap_or_default()
}

fn array<'a>(json: &'a Json, key: &str) -> &'a [Json] {
    json.get(key).and_then(Json::as_array).map_or(&[], Vec::as_slice)
}

/// A struct whose fields have the same names in JSON.
fn record(name: &'static str, fields: Vec<(&'static str, Value)>) -> Value {
    let fields = fields.into_iter().map(|(name, value)| Field::new(name, name, OmitRule::Never, value));
    Value::Record(Arc::new(Record { name, fields: fields.collect(), ..Record::default() }))
}

fn list_or_nil(items: Vec<Value>) -> Value {
    if items.is_empty() { Value::nil_list(PrintStyle::Go) } else { Value::list(items) }
}

fn texts(json: &Json, key: &str) -> Value {
    list_or_nil(array(json, key).iter().filter_map(Json::as_str).map(Value::from).collect())
}

impl Message<'_> {
    fn value(&self) -> Value {
        let calls = array(self.first, "tool_calls").iter().map(tool_call).collect();
        record(
            "message",
            vec![
                ("Role", self.role.into()),
                ("Content", self.content.as_str().into()),
                ("Thinking", text(self.first, "thinking").into()),
                ("Images", Value::nil_list(PrintStyle::Go)),
                ("ToolCalls", list_or_nil(calls)),
                ("ToolName", text(self.first, "tool_name").into()),
                ("ToolCallID", text(self.first, "tool_call_id").into()),
            ],
        )
    }
}

fn tool_call(call: &Json) -> Value {
    let function = &call["function"];
    let arguments = match &function["arguments"] {
        // OpenAI's clients send them as a string.
        Json::String(text) => serde_json::from_str(text).unwrap_or_default(),
        other => other.clone(),
    };
    let entries = arguments.as_object().into_iter().flatten();
    let arguments = Value::Map(Arc::new(Map {
        entries: entries.map(|(key, value)| (key.clone(), Value::from_json(value))).collect(),
        printed: PrintStyle::Json,
        is_nil: !arguments.is_object(),
        ..Map::default()
    }));
    let function = record(
        "function",
        vec![
            ("Index", Value::Int(function["index"].as_i64().unwrap_or_default())),
            ("Name", text(function, "name").into()),
            ("Arguments", arguments),
        ],
    );
    record("tool call", vec![("ID", text(call, "id").into()), ("Function", function)])
}

fn tools(tools: Option<&[Json]>) -> Value {
    match tools {
        None => Value::nil_list(PrintStyle::Json),
        Some(tools) => Value::List(Arc::new(List {
            items: tools.iter().map(tool).collect(),
            printed: PrintStyle::Json,
            is_nil: false,
        })),
    }
}

fn tool(tool: &Json) -> Value {
    use OmitRule::{Empty, Never, Nil};
    let function = &tool["function"];
    let parameters = &function["parameters"];
    let plain = |name, fields| Value::Record(Arc::new(Record { name, fields, ..Record::default() }));
    let parameters = plain(
        "tool parameters",
        vec![
            Field::new("Type", "type", Never, text(parameters, "type")),
            Field::new("Defs", "$defs", Nil, Value::from_json(&parameters["$defs"])),
            Field::new("Items", "items", Nil, Value::from_json(&parameters["items"])),
            Field::new("Required", "required", Empty, texts(parameters, "required")),
            Field::new("Properties", "properties", Never, properties(&parameters["properties"], false)),
        ],
    );
    let function = plain(
        "tool function",
        vec![
            Field::new("Name", "name", Never, text(function, "name")),
            Field::new("Description", "description", Never, text(function, "description")),
            Field::new("Parameters", "parameters", Never, parameters),
        ],
    );
    Value::Record(Arc::new(Record {
        name: "tool",
        fields: vec![
            Field::new("Type", "type", Never, text(tool, "type")),
            Field::new("Items", "items", Nil, Value::from_json(&tool["items"])),
            Field::new("Function", "function", Never, function),
        ],
        printed: PrintStyle::Json,
        ..Record::default()
    }))
}

/// A tool's parameters are ordered by name. With `in_request_order`, nested properties are printed as JSON in
/// the order of the request.
fn properties(json: &Json, in_request_order: bool) -> Value {
    let Some(entries) = json.as_object() else {
        return Value::Map(Arc::new(Map { printed: PrintStyle::Json, is_nil: true, ..Map::default() }));
    };
    Value::Map(Arc::new(Map {
        entries: entries.iter().map(|(name, value)| (name.clone(), property(value))).collect(),
        printed: PrintStyle::Json,
        is_nil: false,
        missing: property(&Json::Null),
        json_order: if in_request_order { entries.keys().cloned().collect() } else { Vec::new() },
    }))
}

fn property(json: &Json) -> Value {
    use OmitRule::{Empty, Nil};
    let types = match json.get("type") {
        Some(Json::String(kind)) => vec![kind.as_str()],
        _ => array(json, "type").iter().filter_map(Json::as_str).collect(),
    };
    let any_of = array(json, "anyOf");
    let kinds = match any_of {
        [] => types.iter().map(|kind| type_script(kind).to_owned()).collect(),
        any_of => any_of.iter().map(type_script_of).collect::<Vec<String>>(),
    };
    let nested = match json.get("properties") {
        Some(nested) if nested.is_object() => properties(nested, true),
        _ => Value::Nil,
    };
    let types = Value::List(Arc::new(List {
        items: types.into_iter().map(Value::from).collect(),
        printed: PrintStyle::UnwrapSingle,
        is_nil: json.get("type").is_none(),
    }));
    Value::Record(Arc::new(Record {
        name: "tool property",
        fields: vec![
            Field::new("AnyOf", "anyOf", Empty, list_or_nil(any_of.iter().map(property).collect())),
            Field::new("Type", "type", Empty, types),
            Field::new("Items", "items", Nil, json.get("items").map_or(Value::Nil, Value::from_json)),
            Field::new("Description", "description", Empty, text(json, "description")),
            Field::new(
                "Enum",
                "enum",
                Empty,
                list_or_nil(array(json, "enum").iter().map(Value::from_json).collect()),
            ),
            Field::new("Properties", "properties", Nil, nested),
            Field::new("Required", "required", Empty, texts(json, "required")),
        ],
        methods: vec![(
            "ToTypeScriptType",
            if kinds.is_empty() { "any".into() } else { kinds.join(" | ").into() },
        )],
        printed: PrintStyle::Go,
    }))
}

fn type_script_of(json: &Json) -> String {
    match property(json) {
        Value::Record(record) => record.methods.first().and_then(|(_, kind)| match kind {
            Value::Text(kind) => Some(kind.to_string()),
            _ => None,
        }),
        _ => None,
    }
    .unwrap_or_default()
}

fn type_script(kind: &str) -> &'static str {
    match kind {
        "string" => "string",
        "number" | "integer" => "number",
        "boolean" => "boolean",
        "array" => "any[]",
        "object" => "Record<string, any>",
        "null" => "null",
        _ => "any",
    }
}

#[cfg(test)]
#[path = "go_chat_tests.rs"]
mod tests;
