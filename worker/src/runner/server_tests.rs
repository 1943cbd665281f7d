//! A runner on its socket, called with the worker's client.

use std::sync::Arc;

use futures::StreamExt;
use lode_kernels::BEST_LEVEL;
use serde_json::json;
use tokio::sync::oneshot;

use super::client::{CallError, Client};
use super::model::Model;
use super::protocol::{
    DoneReason, EmbedRequest, ErrorKind, Event, GenerateRequest, Input, LoadRequest, ModelSpec, RunnerError,
    ScoreRequest,
};
use super::server::{Loader, serve};
use super::testing::{FakeEngine, PANIC, demo_file, demo_tokenizer, greedy_output};
use crate::engine::{Engine, ModelInfo};
use crate::text::SamplerOptions;

const CONTEXT: usize = 256;

fn loader() -> Arc<Loader> {
    Arc::new(|request: &LoadRequest| {
        if request.model.name == "bad" {
            return Err(RunnerError::unsupported("bad: tensor `x` is missing"));
        }
        let engine = FakeEngine::new(request.context_length, request.num_parallel);
        let model = Model::read(request, &json!({"eos_token_id": 2}), engine.info().clone())?;
        Ok((model, Box::new(engine) as Box<dyn Engine>))
    })
}

fn load_request(name: &str) -> LoadRequest {
    let file = |name: &str| (name.to_owned(), demo_file(name).into());
    LoadRequest {
        model: ModelSpec {
            name: name.into(),
            files: ["config.json", "tokenizer.json", "tokenizer_config.json"].map(file).into(),
            tensors: Vec::new(),
            template: None,
            has_renderer: false,
        },
        kv_cache_type: "f32".into(),
        context_length: CONTEXT,
        num_parallel: 2,
        cache_tokens: 2 * CONTEXT,
        batch_tokens: 64,
        threads: None,
        cpu: BEST_LEVEL.into(),
        device: crate::device::Device::Cpu,
        text: super::TextLimits::default(),
    }
}

fn request(input: Input) -> GenerateRequest {
    GenerateRequest {
        input,
        sampling: SamplerOptions { temperature: 0.0, ..SamplerOptions::default() },
        num_predict: Some(12),
        num_ctx: None,
        num_keep: 4,
        stop: Vec::new(),
        truncate: true,
        shift: true,
        logprobs: false,
        top_logprobs: 0,
        whole: false,
        think: None,
        format: None,
        tool_choice: None,
        echo: false,
    }
}

fn continuing(context: Vec<u32>) -> Input {
    let (system, messages, template) = (None, Vec::new(), None);
    Input::Prompt { system, messages, prompt: "x".into(), context, template, suffix: String::new() }
}

async fn start() -> (Client, tempfile::TempDir, oneshot::Receiver<std::convert::Infallible>) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    let (lost, engine_lost) = oneshot::channel();
    tokio::spawn(serve(listener, loader(), lost));
    (Client::new(socket), folder, engine_lost)
}

async fn context(client: &Client, request: &GenerateRequest) -> Result<Vec<u32>, CallError> {
    let mut events = client.generate(request).await?;
    let mut last = None;
    while let Some(event) = events.next().await {
        last = Some(event);
    }
    match last {
        Some(Event::Done(done)) => Ok(done.context),
        Some(Event::Error(error)) => Err(error.into()),
        other => panic!("{other:?}"),
    }
}

fn refusal(error: CallError) -> RunnerError {
    match error {
        CallError::Runner(error) => error,
        CallError::ConnectionLost(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn load_then_generate() {
    let (client, _folder, _lost) = start().await;
    assert!(!client.status().await.unwrap().loaded);
    let early = context(&client, &request(Input::Raw { prompt: "x".into() })).await.unwrap_err();
    assert_eq!(refusal(early).message, "no model is loaded");
    let bad = refusal(client.load(&load_request("bad")).await.unwrap_err());
    assert_eq!((bad.kind, bad.message.as_str()), (ErrorKind::Unsupported, "bad: tensor `x` is missing"));
    let loaded = client.load(&load_request("demo")).await.unwrap();
    assert!(loaded.has_template && loaded.has_tokenizer && loaded.context_length == CONTEXT);
    assert!(client.load(&load_request("demo")).await.is_err());
    assert!(client.status().await.unwrap().loaded);

    let tokenizer = demo_tokenizer();
    let raw = tokenizer.encode("Define water.", true).unwrap();
    let got = context(&client, &request(Input::Raw { prompt: "Define water.".into() })).await.unwrap();
    assert_eq!(got, [raw.clone(), greedy_output(&raw, 12)].concat());

    let turn =
        |system: &str| format!("{system}<|im_start|>user\nDefine water.<|im_end|>\n<|im_start|>assistant\n");
    let prompt = |system: Option<&str>, context: &[u32]| Input::Prompt {
        messages: Vec::new(),
        system: system.map(Into::into),
        prompt: "Define water.".into(),
        context: context.to_vec(),
        template: None,
        suffix: String::new(),
    };
    let ids = tokenizer.encode(&turn(""), true).unwrap();
    let first = context(&client, &request(prompt(None, &[]))).await.unwrap();
    assert_eq!(first, [ids.clone(), greedy_output(&ids, 12)].concat());
    let messages = vec![json!({"role": "user", "content": "Define water."})];
    let chat = request(Input::Chat { messages, tools: Vec::new() });
    assert_eq!(context(&client, &chat).await.unwrap(), first);

    let second = context(&client, &request(prompt(None, &first))).await.unwrap();
    assert_eq!(second[..first.len()], first);
    assert_eq!(second[first.len()], 2, "the earlier turn is closed");
    assert_eq!(second[first.len() + 1..first.len() + 1 + ids.len()], ids);

    let ids = tokenizer.encode(&turn("<|im_start|>system\nBe brief.<|im_end|>\n"), true).unwrap();
    let system = context(&client, &request(prompt(Some("Be brief."), &[]))).await.unwrap();
    assert_eq!(system[..ids.len()], ids);
}

#[tokio::test]
async fn prompts_are_fitted_to_the_context() {
    let (client, _folder, _lost) = start().await;
    client.load(&load_request("demo")).await.unwrap();
    let long = "one two three ".repeat(200);
    let mut raw = request(Input::Raw { prompt: long.clone() });
    raw.truncate = false;
    let error = refusal(context(&client, &raw).await.unwrap_err());
    assert_eq!(
        (error.kind, error.message.as_str()),
        (ErrorKind::Invalid, "the input length exceeds the context length")
    );
    raw.truncate = true;
    raw.num_predict = Some(1);
    let ids = demo_tokenizer().encode(&long, true).unwrap();
    let got = context(&client, &raw).await.unwrap();
    // Half of the context that is not kept is free.
    let len = CONTEXT - (CONTEXT - 4) / 2;
    assert_eq!(got[..len], [&ids[..4], &ids[ids.len() - len + 4..]].concat());
    assert_eq!(got.len(), len + 1);
    raw.shift = false;
    let error = refusal(context(&client, &raw).await.unwrap_err());
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("longer than the context"), "{error}");

    // Old turns are dropped first; the system message and the last turn are kept.
    let user = |content: &str| json!({"role": "user", "content": content});
    let messages = vec![json!({"role": "system", "content": "S"}), user(&long), user("old"), user("last")];
    let mut chat = request(Input::Chat { messages, tools: Vec::new() });
    chat.num_predict = Some(0);
    let text = demo_tokenizer().decode(&context(&client, &chat).await.unwrap()).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.starts_with("<|im_start|>system\nS<|im_end|>")
            && text.contains("last")
            && !text.contains("one two")
    );

    for (ids, expect) in [(vec![4096], "outside"), (vec![u32::MAX], "outside")] {
        let input = continuing(ids);
        assert!(refusal(context(&client, &request(input)).await.unwrap_err()).message.contains(expect));
    }
    let tools = Input::Chat { messages: vec![user("x")], tools: vec![json!({})] };
    assert!(
        refusal(context(&client, &request(tools)).await.unwrap_err())
            .message
            .contains("does not support tools")
    );
    let error =
        client.score(&ScoreRequest { windows: vec![vec![0; CONTEXT + 2]], top: 0 }).await.unwrap_err();
    assert!(refusal(error).message.contains("longer than the context"));
    let error = client.score(&ScoreRequest { windows: vec![vec![1, 9999]], top: 0 }).await.unwrap_err();
    assert!(refusal(error).message.contains("outside"));
    let error = client.score(&ScoreRequest { windows: vec![vec![1; 100]], top: 1 << 20 }).await.unwrap_err();
    assert!(refusal(error).message.contains("100 ids with 1048576 of the likeliest each"));
    let scores =
        client.score(&ScoreRequest { windows: vec![vec![300; 100], vec![1]], top: 0 }).await.unwrap();
    assert_eq!(scores.windows.iter().map(|window| window.logprobs.len()).collect::<Vec<_>>(), [99, 0]);
}

#[tokio::test]
async fn more_vectors_than_a_response_can_hold_are_refused() {
    let info = ModelInfo { embedding_length: 1 << 21, ..FakeEngine::new(CONTEXT, 1).info().clone() };
    let read = move || Model::read(&load_request("demo"), &json!({}), info).unwrap();
    let model = tokio::task::spawn_blocking(read).await.unwrap();
    let prepare = async |n: usize| {
        let inputs = vec!["a".to_owned(); n];
        model
            .prepare_embed(EmbedRequest {
                inputs,
                prompt_name: None,
                truncate: true,
                dimensions: None,
                num_ctx: None,
            })
            .await
    };
    assert_eq!(prepare(2).await.unwrap().texts.len(), 2);
    assert_eq!(
        prepare(3).await.unwrap_err().message,
        "3 texts are too many for one request, expected at most 2: send them in several requests"
    );
}

#[tokio::test]
async fn dropping_the_stream_cancels() {
    let (client, _folder, _lost) = start().await;
    client.load(&load_request("demo")).await.unwrap();
    let mut endless = request(Input::Raw { prompt: "x".into() });
    endless.num_predict = None;
    endless.sampling = SamplerOptions { temperature: 0.9, seed: 3, ..SamplerOptions::default() };
    // There are two sequences: without cancellation, later requests would wait for ten contexts of tokens.
    for _ in 0..6 {
        let mut events = client.generate(&endless).await.unwrap();
        assert!(matches!(events.next().await, Some(Event::Token { .. })));
    }
    // A request with `whole` has no events before its end.
    endless.whole = true;
    for _ in 0..6 {
        drop(client.generate(&endless).await.unwrap());
    }
    let mut short = request(Input::Raw { prompt: "y".into() });
    short.num_predict = Some(2);
    let events: Vec<Event> = client.generate(&short).await.unwrap().collect().await;
    assert!(
        matches!(events.last(), Some(Event::Done(done)) if done.reason == DoneReason::Length || done.eval_tokens < 2)
    );
}

#[tokio::test]
async fn a_lost_engine_ends_the_streams() {
    let (client, _folder, lost) = start().await;
    client.load(&load_request("demo")).await.unwrap();
    let input = continuing(vec![PANIC]);
    let error = refusal(context(&client, &request(input)).await.unwrap_err());
    assert_eq!(
        (error.kind, error.message.as_str()),
        (ErrorKind::Failed, "the model stopped while generating")
    );
    assert!(lost.await.is_err(), "`main` is notified");
    assert!(context(&client, &request(Input::Raw { prompt: "x".into() })).await.is_err());
}
