//! The operations that run models. Their bodies pass through the gateway, and the types of their fields are the
//! workers'.

use utoipa::openapi::schema::{AnyOfBuilder, SchemaType};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, Ref, Schema, Type};

use super::Group;
use super::operation::{Named, Operation};

const INFER: &str = "`read` on the model's repository, or a token with access `infer`";

/// The JSON type of a field.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Flag,
    Integer,
    Number,
    Object,
    Any,
    Integers,
    Objects,
    /// A list of objects of the schema with this name.
    List(&'static str),
    /// A list of lists of numbers.
    Vectors,
    TextOrTexts,
    TextsOrObjects,
}

use Kind::{
    Any, Flag, Integer, Integers, List, Number, Object, Objects, Text, TextOrTexts, TextsOrObjects, Vectors,
};

/// A field: its name, type and description.
type Field = (&'static str, Kind, &'static str);

const MODEL: Field = ("model", Text, "Such as `team/mini:v1`.");

/// Fields of all requests.
const EVERY: [Field; 2] = [
    ("keep_alive", Any, "How long the model stays loaded: seconds, or a text such as `5m`. 0 unloads it."),
    ("options", Object, "Parameters such as `temperature`, `num_ctx` and `stop`."),
];

/// Fields of requests that generate text.
const GENERATING: [Field; 7] = [
    ("stream", Flag, "Whether the response is a stream, as by default."),
    ("format", Any, "`json`, or a JSON schema that the text follows."),
    ("think", Any, "Whether a reasoning model reasons: a boolean, or `low`, `medium` or `high`."),
    ("truncate", Flag, "Whether a prompt that is too long is truncated."),
    ("shift", Flag, "Whether the context moves on when it is full."),
    ("logprobs", Flag, "Whether the response has log probabilities."),
    ("top_logprobs", Integer, "How many alternatives each token has."),
];

const RANKED: [Field; 3] = [
    ("index", Integer, "Of the document in the request, from 0."),
    ("relevance_score", Number, "The higher, the more relevant."),
    ("document", Object, "Its `text`, if requested."),
];

/// Fields of a loaded model.
const LOADED: [Field; 9] = [
    ("name", Text, "Such as `team/mini:v1`."),
    ("model", Text, "The same name."),
    ("size", Integer, "Bytes of the weights and the cache."),
    ("digest", Text, "Of the manifest, in hexadecimal."),
    ("details", Object, "`format`, `family`, `families`, `parameter_size` and `quantization_level`."),
    ("expires_at", Text, "When the model is unloaded, unless it is used again; RFC 3339."),
    ("size_vram", Integer, "Bytes in the memory of a GPU."),
    ("device", Text, "Such as `cpu`."),
    ("context_length", Integer, "In tokens."),
];

/// Fields of responses that generate text. Those of the last record have counts and durations.
const GENERATED: [Field; 13] = [
    MODEL,
    ("created_at", Text, "RFC 3339."),
    ("logprobs", Objects, "`token`, `logprob`, `bytes` and `top_logprobs` of each token, if requested."),
    ("done", Flag, "Whether it is the last record."),
    ("done_reason", Text, "`stop`, `length`, `load` or `unload`."),
    ("total_duration", Integer, "Nanoseconds."),
    ("load_duration", Integer, "Nanoseconds."),
    ("prompt_eval_count", Integer, "Tokens of the prompt."),
    ("prompt_cached_count", Integer, "Those of them that an earlier request has computed."),
    ("prompt_eval_duration", Integer, "Nanoseconds."),
    ("eval_count", Integer, "Generated tokens."),
    ("eval_duration", Integer, "Nanoseconds."),
    ("error", Text, "Why the response ended early."),
];

pub(super) fn group() -> Group {
    let operations = vec![
        Operation::post("/lode/v1/generate", "generate", "Generates text, as Ollama's `/api/generate` does")
            .needs(INFER)
            .body(request(
                "GenerateRequest",
                &[
                    ("prompt", Text, "Without one, the model is loaded."),
                    ("system", Text, "Replaces the model's system prompt."),
                    ("template", Text, "Replaces the model's template."),
                    ("suffix", Text, "The text after the generated one."),
                    ("raw", Flag, "Whether the prompt is used without the template."),
                    ("prompt_ids", Integers, "Token ids instead of a prompt; with `raw`."),
                    ("echo", Flag, "Whether the response begins with the prompt."),
                    ("context", Integers, "The `context` of an earlier response."),
                ],
                &GENERATING,
            ))
            .streams(
                "Parts of the text, or all of it",
                response(
                    "GenerateResponse",
                    &[
                        ("response", Text, "The text, or a part of it."),
                        ("thinking", Text, "The reasoning, or a part of it."),
                        ("context", Integers, "The tokens of the prompt and the text."),
                    ],
                    &GENERATED,
                ),
                true,
            ),
        Operation::post("/lode/v1/chat", "chat", "Continues a conversation, as Ollama's `/api/chat` does")
            .needs(INFER)
            .body(request(
                "ChatRequest",
                &[
                    ("messages", Objects, "`role` and `content` of each; without them, the model is loaded."),
                    ("tools", Objects, "Functions that the model may call."),
                    ("tool_choice", Any, "`auto`, `none`, `required`, or a function."),
                ],
                &GENERATING,
            ))
            .streams(
                "Parts of the message, or all of it",
                response(
                    "ChatResponse",
                    &[("message", Object, "`role`, `content`, `thinking` and `tool_calls`.")],
                    &GENERATED,
                ),
                true,
            ),
        Operation::post("/lode/v1/embed", "embed", "Computes embeddings, as Ollama's `/api/embed` does")
            .needs(INFER)
            .body(request(
                "EmbedRequest",
                &[
                    ("input", TextOrTexts, "The texts."),
                    ("prompt_name", Text, "The model's prompt that precedes each text."),
                    ("truncate", Flag, "Whether a text that is too long is truncated."),
                    ("dimensions", Integer, "The length of the embeddings."),
                ],
                &[],
            ))
            .returns(
                200,
                "An embedding for each text",
                response(
                    "EmbedResponse",
                    &[
                        ("embeddings", Vectors, "L2-normalised, in the order of the texts."),
                        ("total_duration", Integer, "Nanoseconds."),
                        ("load_duration", Integer, "Nanoseconds."),
                        ("prompt_eval_count", Integer, "Tokens of the texts."),
                    ],
                    &[MODEL],
                ),
            ),
        Operation::post("/lode/v1/rerank", "rerank", "Ranks documents by their relevance to a query")
            .needs(INFER)
            .body(request(
                "RerankRequest",
                &[
                    ("query", Text, "The query."),
                    ("documents", TextsOrObjects, "Texts, or objects with a `text`."),
                    ("top_n", Integer, "How many documents the response has."),
                    ("return_documents", Flag, "Whether the response has the documents' texts."),
                    ("truncate", Flag, "Whether a document that is too long is truncated."),
                ],
                &[],
            ))
            .returns(
                200,
                "The documents, most relevant first",
                response(
                    "RerankResponse",
                    &[
                        ("results", List("RankedDocument"), "At most `top_n` of them."),
                        ("usage", Object, "`prompt_tokens` and `total_tokens`."),
                    ],
                    &[MODEL],
                )
                .with(response("RankedDocument", &RANKED, &[])),
            ),
        Operation::post("/lode/v1/score", "score", "Computes log probabilities of given tokens")
            .needs(INFER)
            .body(request(
                "ScoreRequest",
                &[
                    (
                        "windows",
                        Vectors,
                        "Token ids. Each but the first of a window is scored, given those before it.",
                    ),
                    ("logprobs", Flag, "Whether the response has every log probability, as by default."),
                    (
                        "top_logprobs",
                        Integer,
                        "How many of the likeliest tokens each position has, 20 at most.",
                    ),
                ],
                &[],
            ))
            .returns(
                200,
                "The scores of each window",
                response(
                    "ScoreResponse",
                    &[
                        (
                            "windows",
                            Objects,
                            "`nll`, the sum of the negative log probabilities, and `tokens`, their number.",
                        ),
                        ("logprobs", Vectors, "Of each token."),
                        ("top_logprobs", Any, "For each window and position, the likeliest tokens."),
                    ],
                    &[MODEL],
                ),
            ),
        Operation::get("/lode/v1/ps", "listLoadedModels", "Lists the loaded models of all workers")
            .needs("nothing; the list has what the caller may run")
            .pages(1000)
            .returns_page(
                response(
                    "LoadedModels",
                    &[("models", List("LoadedModel"), "Those that are unloaded last first.")],
                    &[],
                )
                .with(response("LoadedModel", &LOADED, &[])),
            ),
    ];
    Group { name: "Inference", description: "Requests that workers respond to.", operations }
}

fn request(name: &str, own: &[Field], shared: &[Field]) -> Named {
    let fields = [MODEL].iter().chain(own).chain(shared).chain(&EVERY);
    Named::new(name, object(fields).required("model"))
}

fn response(name: &str, own: &[Field], shared: &[Field]) -> Named {
    Named::new(name, object(shared.iter().chain(own)))
}

fn object<'a>(fields: impl Iterator<Item = &'a Field>) -> ObjectBuilder {
    fields.fold(ObjectBuilder::new(), |object, (name, kind, description)| {
        object.property(*name, schema(*kind, description))
    })
}

fn schema(kind: Kind, description: &str) -> Schema {
    let plain = |kind: Type| ObjectBuilder::new().schema_type(kind).description(Some(description)).build();
    let list = |item: ObjectBuilder| ArrayBuilder::new().items(item).description(Some(description));
    let of = |kind: Type| ObjectBuilder::new().schema_type(kind);
    match kind {
        Text => plain(Type::String).into(),
        Flag => plain(Type::Boolean).into(),
        Integer => plain(Type::Integer).into(),
        Number => plain(Type::Number).into(),
        Object => plain(Type::Object).into(),
        Any => ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(description)).into(),
        Integers => list(of(Type::Integer)).into(),
        Objects => list(of(Type::Object)).into(),
        List(name) => {
            ArrayBuilder::new().items(Ref::from_schema_name(name)).description(Some(description)).into()
        }
        Vectors => {
            let inner = ArrayBuilder::new().items(of(Type::Number));
            ArrayBuilder::new().items(inner).description(Some(description)).into()
        }
        TextOrTexts => AnyOfBuilder::new()
            .item(of(Type::String))
            .item(ArrayBuilder::new().items(of(Type::String)))
            .description(Some(description))
            .into(),
        TextsOrObjects => {
            let item = AnyOfBuilder::new().item(of(Type::String)).item(of(Type::Object));
            ArrayBuilder::new().items(item).description(Some(description)).into()
        }
    }
}
