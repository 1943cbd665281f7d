//! `/{name}/-/try`: a model in the browser. A chat, the continuation of a text, or the similarity of texts. The
//! server keeps nothing: a conversation is a field of its form. Without scripts, each message is a form that comes
//! back with the response; with them, the script of the pages streams the response into the same page.

use askama::Template;
use axum::extract::{FromRequest, Request, State};
use axum::response::Response;
use http::StatusCode;
use lode_model::reference::{Reference, Repository};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{Head, ManifestPage, Tab, show_queried};
use crate::Registry;
use crate::api::inference::read_json;
use crate::auth::Caller;
use crate::gateway::{InferenceRequest, RequestClient};
use crate::http::forwarded::RequestOrigin;
use crate::http::pages::Form;
use crate::http::state::ServerState;
use crate::http::{Failure, Path, Query};
use crate::hub::page::{Shell, browse, render};

const MAX_TURNS: usize = 100;
/// The most tokens of a response, and the number without a setting.
const MAX_TOKENS: u32 = 4096;
const DEFAULT_TOKENS: u32 = 512;
/// The most texts that are compared.
const MAX_TEXTS: usize = 32;

#[derive(Template)]
#[template(path = "try.html")]
struct TryPage {
    shell: Shell,
    head: Head,
    mode: Mode,
    /// Why workers cannot run it.
    obstacle: Option<String>,
    /// `repository:tag`, for the script.
    model: String,
    has_workers: bool,
    fields: Fields,
    turns: Vec<Turn>,
    /// The turns as JSON, for the next form.
    history: String,
    /// Each text, with its similarity to the first one.
    similarities: Vec<(String, String)>,
    /// The number of tokens, and the speed.
    speed: Option<String>,
    problem: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Chat,
    Complete,
    Compare,
    /// The server does not run this model, or models of this kind here.
    None,
}

impl Mode {
    fn of(task: Option<&str>, wanted: Option<&str>) -> Mode {
        match task {
            Some("feature-extraction" | "sentence-similarity") => Mode::Compare,
            Some("text-to-image" | "text-classification" | "text-ranking") => Mode::None,
            // A model without a chat template has no task: it continues texts.
            None if wanted != Some("chat") => Mode::Complete,
            _ if wanted == Some("complete") => Mode::Complete,
            _ => Mode::Chat,
        }
    }

    fn is(self, other: Mode) -> bool {
        self == other
    }
}

/// What the form contains, as it was typed.
#[derive(Default)]
struct Fields {
    message: String,
    system: String,
    temperature: String,
    tokens: String,
    think: String,
    schema: String,
    tools: String,
}

impl Fields {
    fn of(form: &Form) -> Fields {
        let field = |name| form.get(name).replace("\r\n", "\n");
        Fields {
            message: field("message"),
            system: field("system"),
            temperature: field("temperature"),
            tokens: field("tokens"),
            think: field("think"),
            schema: field("schema"),
            tools: field("tools"),
        }
    }

    /// The options of a request to a worker, or what is wrong with the field.
    fn options(&self) -> Result<Value, String> {
        let tokens = match self.tokens.trim() {
            "" => DEFAULT_TOKENS,
            text => text
                .parse()
                .ok()
                .filter(|tokens| (1..=MAX_TOKENS).contains(tokens))
                .ok_or(format!("Length: expected a number of tokens from 1 to {MAX_TOKENS}"))?,
        };
        let mut options = json!({ "num_predict": tokens });
        if !self.temperature.trim().is_empty() {
            let temperature: Option<f32> = self.temperature.trim().parse().ok();
            let temperature = temperature.filter(|value| (0.0..=2.0).contains(value));
            options["temperature"] = json!(temperature.ok_or("Temperature: expected a number from 0 to 2")?);
        }
        Ok(options)
    }

    /// The JSON of a field; `expected` names its kind.
    fn json(
        (name, text): (&str, &str),
        (expected, is_right): (&str, fn(&Value) -> bool),
    ) -> Result<Option<Value>, String> {
        if text.trim().is_empty() {
            return Ok(None);
        }
        let value: Value = serde_json::from_str(text).map_err(|error| format!("{name}: {error}"))?;
        if is_right(&value) { Ok(Some(value)) } else { Err(format!("{name}: expected {expected}")) }
    }
}

/// A message of the conversation.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Turn {
    role: Role,
    #[serde(default)]
    content: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    thinking: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    #[default]
    User,
    Assistant,
}

impl Turn {
    fn is_user(&self) -> bool {
        self.role == Role::User
    }

    /// The calls, as a reader wants to see them.
    fn calls(&self) -> Vec<String> {
        let show = |call: &Value| serde_json::to_string_pretty(&call["function"]).unwrap_or_default();
        self.tool_calls.iter().map(show).collect()
    }
}

pub(crate) async fn get(
    State(registry): State<Registry>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
) -> Response {
    let page = async {
        let shown = show_queried(&registry, &caller, &name, &query).await?;
        let page = TryPage::new(&registry, &caller, &shown, query.get("mode")).await?;
        Ok(render(StatusCode::OK, &page))
    };
    browse(&registry, &caller, page).await
}

/// The response to a form. The caller is checked before the form is read.
pub(crate) async fn post(
    State(server): State<ServerState>,
    caller: Caller,
    Path(name): Path<String>,
    query: Query,
    client: RequestOrigin,
    request: Request,
) -> Response {
    let registry = &server.registry;
    let page = async {
        let shown = show_queried(registry, &caller, &name, &query).await?;
        let digest = registry.model_resolve(&caller, &shown.repository, &shown.reference).await?;
        let digest = digest.ok_or(Failure::PageUnknown)?;
        let mut page = TryPage::new(registry, &caller, &shown, query.get("mode")).await?;
        let form = Form::from_request(request, &server).await?;
        page.fields = Fields::of(&form);
        if !form.get("history").is_empty() {
            page.history = form.get("history").to_owned();
        }
        let (path, body) = match page.request() {
            Ok(request) => request,
            Err(problem) => {
                page.problem = Some(problem);
                return Ok(render(StatusCode::BAD_REQUEST, &page));
            }
        };
        let body = body.to_string();
        let mut charge = registry.body_budget().charge();
        charge.set(body.len())?;
        let inference = InferenceRequest {
            repository: shown.repository.clone(),
            digest,
            name: page.model.clone(),
            client: RequestClient::of(&caller, client.address, client.urgency),
            path,
            body: body.into(),
            _charge: charge,
        };
        let table = registry.workers_attached().await?;
        let answer: Result<(StatusCode, Value), Failure> = async {
            let response = server.gateway.forward(&table, inference).await?;
            let status = response.status;
            Ok((status, read_json(response).await?))
        }
        .await;
        let status = match answer {
            Ok((status, body)) if status.is_success() => {
                page.show(&body);
                status
            }
            Ok((status, body)) => {
                page.problem = Some(body["error"].as_str().unwrap_or("the worker failed").to_owned());
                status
            }
            Err(failure @ Failure::Gateway(_)) => {
                page.problem = Some(failure.message());
                failure.status()
            }
            Err(failure) => return Err(failure),
        };
        Ok(render(status, &page))
    };
    browse(registry, &caller, page).await
}

impl TryPage {
    async fn new(
        registry: &Registry,
        caller: &Caller,
        shown: &ManifestPage,
        mode: Option<&str>,
    ) -> Result<TryPage, Failure> {
        if shown.model.summary.is_none() {
            return Err(Failure::PageUnknown);
        }
        Ok(TryPage {
            shell: Shell::of(registry, caller).await?,
            head: shown.head(Tab::Try),
            mode: match shown.facts.obstacle() {
                Some(_) => Mode::None,
                None => Mode::of(shown.facts.task.as_deref(), mode),
            },
            obstacle: shown.facts.obstacle().map(ToString::to_string),
            model: model_name(&shown.repository, &shown.reference),
            has_workers: registry.workers_attached().await?.len() > 0,
            fields: Fields { tokens: DEFAULT_TOKENS.to_string(), ..Fields::default() },
            turns: Vec::new(),
            history: "[]".to_owned(),
            similarities: Vec::new(),
            speed: None,
            problem: None,
        })
    }

    /// The worker's path and the body of the request that the form asks for, or what is wrong with a field.
    fn request(&mut self) -> Result<(&'static str, Value), String> {
        if self.mode == Mode::Chat {
            self.turns = serde_json::from_str(&self.history)
                .map_err(|error| format!("The conversation could not be read ({error}). Begin a new one."))?;
            if self.turns.len() >= MAX_TURNS {
                return Err(format!("The conversation has {MAX_TURNS} messages. Begin a new one."));
            }
        }
        let options = self.fields.options()?;
        if self.fields.message.trim().is_empty() {
            return Err("Type a text first.".to_owned());
        }
        match self.mode {
            Mode::Chat => Ok(("/api/chat", self.chat(options)?)),
            Mode::Complete => {
                let body = json!({ "prompt": self.fields.message, "raw": true, "stream": false, "options": options });
                Ok(("/api/generate", body))
            }
            Mode::Compare => {
                let texts = self.texts();
                match texts.len() {
                    0..2 => Err("Type at least two texts, one on each line.".to_owned()),
                    2..=MAX_TEXTS => Ok(("/api/embed", json!({ "input": texts }))),
                    _ => Err(format!("Type at most {MAX_TEXTS} texts.")),
                }
            }
            Mode::None => Err("This server cannot run this model.".to_owned()),
        }
    }

    fn chat(&self, options: Value) -> Result<Value, String> {
        let fields = &self.fields;
        let mut messages = Vec::with_capacity(self.turns.len() + 2);
        if !fields.system.trim().is_empty() {
            messages.push(json!({ "role": "system", "content": fields.system }));
        }
        messages.extend(self.turns.iter().map(|turn| json!(turn)));
        messages.push(json!({ "role": "user", "content": fields.message }));
        let mut body = Map::new();
        body.insert("messages".to_owned(), messages.into());
        body.insert("stream".to_owned(), false.into());
        body.insert("options".to_owned(), options);
        match &fields.think[..] {
            "on" => drop(body.insert("think".to_owned(), true.into())),
            "off" => drop(body.insert("think".to_owned(), false.into())),
            _ => {}
        }
        let schema = Fields::json(("Schema", &fields.schema), ("a JSON object", Value::is_object))?;
        body.extend(schema.map(|value| ("format".to_owned(), value)));
        let tools = Fields::json(("Tools", &fields.tools), ("a JSON list", Value::is_array))?;
        body.extend(tools.map(|value| ("tools".to_owned(), value)));
        Ok(body.into())
    }

    /// The texts to compare.
    fn texts(&self) -> Vec<String> {
        let lines = self.fields.message.lines().map(str::trim);
        lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }

    /// Adds a worker's response.
    fn show(&mut self, body: &Value) {
        self.speed = speed(body);
        match self.mode {
            Mode::Chat => {
                let content = std::mem::take(&mut self.fields.message);
                self.turns.push(Turn { content, ..Turn::default() });
                let reply: Turn = Turn::deserialize(&body["message"]).unwrap_or_default();
                self.turns.push(Turn { role: Role::Assistant, ..reply });
                self.history = json!(self.turns).to_string();
            }
            Mode::Complete => {
                let prompt = std::mem::take(&mut self.fields.message);
                self.fields.message = format!("{prompt}{}", body["response"].as_str().unwrap_or_default());
            }
            Mode::Compare => {
                let vectors: Vec<Vec<f32>> = Vec::deserialize(&body["embeddings"]).unwrap_or_default();
                let first = vectors.first().cloned().unwrap_or_default();
                let cosines = vectors.iter().map(|vector| cosine(&first, vector));
                let mut rows: Vec<(f32, String)> = cosines.zip(self.texts()).skip(1).collect();
                rows.sort_by(|a, b| b.0.total_cmp(&a.0));
                let rows = rows.into_iter().map(|(cosine, text)| (format!("{cosine:.3}"), text));
                self.similarities = rows.collect();
            }
            Mode::None => {}
        }
    }
}

/// The name with which `/lode/v1` calls the model.
fn model_name(repository: &Repository, reference: &Reference) -> String {
    match reference {
        Reference::Tag(tag) => format!("{repository}:{tag}"),
        Reference::Digest(digest) => format!("{repository}@{digest}"),
    }
}

fn speed(body: &Value) -> Option<String> {
    let (tokens, nanoseconds) = (body["eval_count"].as_u64()?, body["eval_duration"].as_u64()?);
    let rate = tokens as f64 * 1e9 / nanoseconds.max(1) as f64;
    Some(format!("{tokens} tokens, {rate:.1} per second"))
}

fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt().max(f32::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_task_decides_what_can_be_tried() {
        for (task, wanted, mode) in [
            (Some("text-generation"), None, Mode::Chat),
            (Some("text-generation"), Some("complete"), Mode::Complete),
            (Some("feature-extraction"), Some("chat"), Mode::Compare),
            (Some("text-to-image"), None, Mode::None),
            (Some("text-ranking"), None, Mode::None),
            (None, None, Mode::Complete),
            (None, Some("chat"), Mode::Chat),
        ] {
            assert!(Mode::of(task, wanted).is(mode), "{task:?} {wanted:?}");
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        let options = |temperature: &str, tokens: &str| {
            let (temperature, tokens) = (temperature.to_owned(), tokens.to_owned());
            Fields { temperature, tokens, ..Fields::default() }.options()
        };
        assert_eq!(options("", "").unwrap(), json!({ "num_predict": 512 }));
        assert_eq!(options("0.5", " 7 ").unwrap(), json!({ "num_predict": 7, "temperature": 0.5 }));
        for (temperature, tokens, begin) in [
            ("3", "", "Temperature"),
            ("NaN", "", "Temperature"),
            ("", "0", "Length"),
            ("", "9999", "Length"),
            ("", "x", "Length"),
        ] {
            assert!(options(temperature, tokens).unwrap_err().starts_with(begin));
        }
        let schema = |text| Fields::json(("Schema", text), ("a JSON object", Value::is_object));
        assert!(schema("{").unwrap_err().starts_with("Schema: "));
        assert_eq!(schema("[]").unwrap_err(), "Schema: expected a JSON object");
        assert_eq!(schema(" ").unwrap(), None);
    }

    #[test]
    fn similarities_are_cosines() {
        assert!((cosine(&[1.0, 0.0], &[2.0, 0.0]) - 1.0).abs() < 1e-6);
        assert!(cosine(&[1.0, 0.0], &[0.0, 3.0]).abs() < 1e-6);
        assert_eq!(cosine(&[0.0], &[0.0]), 0.0);
    }
}
