//! Tests with real text helpers: forked, limited and killed. In tests, the runner starts this program as the
//! helper, in [`process`].

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::super::protocol::{ErrorKind, GenerateRequest, Input, ModelSpec, RunnerError};
use super::super::testing::demo_file;
use super::{EngineFacts, Helper, Poll};
use crate::runner::TextLimits;
use crate::text::SamplerOptions;

/// Set in the environment of the helper's process.
pub(super) const IS_HELPER: &str = "LODE_TEST_IS_HELPER";

/// Not a test, but the helper for all other tests.
#[test]
fn process() {
    if std::env::var_os(IS_HELPER).is_some() {
        super::main().unwrap();
    }
}

const FACTS: EngineFacts = EngineFacts { context_length: 2048, encoder: false };
/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(3600);

fn limits(timeout: Duration, mebibytes: u64) -> TextLimits {
    TextLimits { timeout, memory: mebibytes << 20 }
}

/// Builds a large text, and processes it for minutes.
const GROWN: &str =
    "{% set n = namespace(x='ab') %}{% for i in range(22) %}{% set n.x = n.x ~ n.x %}{% endfor %}";
const REPLACES: &str = "{% for i in range(100000) %}{% set q = n.x|replace('b','c')|length %}{% endfor %}";
/// Exceeds any memory limit.
const DOUBLES: &str = "{% set n = namespace(x='ab') %}{% for i in range(32) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x|length }}";

/// The demo model with one of its files changed.
fn demo_with(folder: &Path, name: &str, edit: impl FnOnce(&mut Value)) -> ModelSpec {
    let mut file: Value = serde_json::from_slice(&std::fs::read(demo_file(name)).unwrap()).unwrap();
    edit(&mut file);
    let path = folder.join(name);
    std::fs::write(&path, file.to_string()).unwrap();
    let mut model = demo();
    model.files.insert(name.to_owned(), path.into());
    model
}

fn demo() -> ModelSpec {
    let file = |name: &str| (name.to_owned(), demo_file(name).into());
    let files = ["tokenizer.json", "tokenizer_config.json"].map(file).into();
    ModelSpec { name: "demo".into(), files, ..ModelSpec::default() }
}

/// A template that runs `charge` for a message `boom`.
fn model_with_boom_template(folder: &Path, charge: &str) -> ModelSpec {
    let template = format!(
        "{{% if messages[-1].content == 'boom' %}}{charge}{{% endif %}}{{{{ messages[-1].content }}}}"
    );
    demo_with(folder, "tokenizer_config.json", |config| config["chat_template"] = json!(template))
}

async fn start(model: &ModelSpec, limits: TextLimits) -> Result<Helper, RunnerError> {
    Ok(Helper::start(model, &json!({"eos_token_id": 2}), limits).await?.0)
}

fn chat(text: &str) -> Vec<u8> {
    let messages = vec![json!({"role": "user", "content": text})];
    let request: GenerateRequest = GenerateRequest {
        input: Input::Chat { messages, tools: Vec::new() },
        sampling: SamplerOptions::default(),
        num_predict: None,
        num_ctx: None,
        num_keep: 0,
        stop: Vec::new(),
        truncate: true,
        shift: true,
        whole: false,
        logprobs: false,
        top_logprobs: 0,
        think: None,
        format: None,
        tool_choice: None,
        echo: false,
    };
    serde_json::to_vec(&request).unwrap()
}

async fn ids(helper: &Helper, text: &str) -> Result<Vec<u32>, RunnerError> {
    Ok(helper.prepare(FACTS, &chat(text)).await?.1)
}

fn refused<T>(result: Result<T, RunnerError>, kind: ErrorKind, limit: &str) {
    let Err(error) = result else { panic!("expected an error") };
    assert!(error.kind == kind && error.message.contains(limit), "{error:?}");
}

#[tokio::test]
async fn a_model_whose_template_exceeds_a_limit_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let template = |template: &str| {
        demo_with(folder.path(), "tokenizer_config.json", |config| config["chat_template"] = json!(template))
    };
    let model = template(DOUBLES);
    refused(start(&model, limits(NEVER, 64)).await, ErrorKind::Unsupported, "LODE_TEXT_MEMORY (64 MiB)");
    let model = template(&format!("{GROWN}{REPLACES}"));
    let limits = limits(Duration::from_millis(500), 256);
    refused(start(&model, limits).await, ErrorKind::Unsupported, "LODE_TEXT_TIMEOUT (500ms)");
}

#[tokio::test]
async fn a_model_whose_tokenizer_exceeds_a_limit_is_not_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let model = demo_with(folder.path(), "tokenizer.json", |tokenizer| {
        let split =
            json!({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": false});
        tokenizer["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": vec![split; 100_000]});
    });
    refused(start(&model, limits(NEVER, 64)).await, ErrorKind::Unsupported, "LODE_TEXT_MEMORY (64 MiB)");
}

#[tokio::test]
async fn only_the_request_at_fault_fails() {
    let folder = tempfile::tempdir().unwrap();
    let helper = start(&model_with_boom_template(folder.path(), DOUBLES), limits(NEVER, 64)).await.unwrap();
    let expected = ids(&helper, "peace").await.unwrap();
    let (bad, good) = tokio::join!(ids(&helper, "boom"), ids(&helper, "peace"));
    refused(bad, ErrorKind::Invalid, "LODE_TEXT_MEMORY (64 MiB)");
    assert_eq!(good.unwrap(), expected);

    let slow = model_with_boom_template(folder.path(), &format!("{GROWN}{REPLACES}"));
    let helper = start(&slow, limits(Duration::from_secs(1), 256)).await.unwrap();
    let (bad, good) = tokio::join!(ids(&helper, "boom"), ids(&helper, "peace"));
    refused(bad, ErrorKind::Invalid, "LODE_TEXT_TIMEOUT (1s)");
    assert_eq!(good.unwrap(), expected);
}

#[tokio::test]
async fn an_expanding_normalizer_fails_its_request() {
    let folder = tempfile::tempdir().unwrap();
    let model = demo_with(folder.path(), "tokenizer.json", |tokenizer| {
        let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": vec![double; 40]});
    });
    let helper = start(&model, limits(NEVER, 64)).await.unwrap();
    refused(ids(&helper, "a").await, ErrorKind::Invalid, "LODE_TEXT_MEMORY");
    let texts = vec!["a".to_owned()];
    refused(helper.encode(texts, 100, true).await, ErrorKind::Invalid, "LODE_TEXT_MEMORY");
    let texts = ["b".to_owned(), String::new(), "bb b".to_owned()];
    assert_eq!(helper.encode(texts[..1].to_vec(), 100, true).await.unwrap().len(), 1);
}

fn schema(value: Value) -> Map<String, Value> {
    let Value::Object(schema) = value else { panic!("{value}") };
    schema
}

#[tokio::test]
async fn an_endless_schema_fails_its_request() {
    let helper = start(&demo(), limits(Duration::from_secs(1), 256)).await.unwrap();
    let endless = schema(json!({"type": "integer", "multipleOf": 999_983}));
    let Err(error) = helper.begin(endless, || {}).await else { panic!("expected an error") };
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("LODE_TEXT_"), "{error:?}");
    // The evaluator ends with its request.
    let pid = helper.pid();
    until(|| evaluators(pid) == 0).await;

    // Other requests continue, and an evaluator ends with its response.
    let (woken, wakes) = std::sync::mpsc::channel();
    let wake = move || woken.send(()).unwrap();
    let (mut session, allowed) = helper.begin(schema(json!({"type": "object"})), wake).await.unwrap();
    let open = crate::runner::testing::demo_tokenizer().token_id("{").unwrap();
    assert!(allowed.mask[(open / 32) as usize] >> (open % 32) & 1 == 1);
    assert!(matches!(session.poll(), Poll::Pending));
    session.take(open);
    tokio::task::spawn_blocking(move || wakes.recv().unwrap()).await.unwrap();
    let Poll::Ready(Ok(next)) = session.poll() else { panic!("woken without a result") };
    assert!(!next.is_complete && next.mask != allowed.mask);
    assert_eq!(evaluators(pid), 1);
    drop(session);
    until(|| evaluators(pid) == 0).await;
}

#[tokio::test]
async fn work_ends_with_its_caller() {
    let folder = tempfile::tempdir().unwrap();
    let slow = model_with_boom_template(folder.path(), &format!("{GROWN}{REPLACES}"));
    let helper = start(&slow, limits(NEVER, 256)).await.unwrap();
    let pid = helper.pid();
    let work = ids(&helper, "boom");
    tokio::select! {
        _ = work => panic!("the call ended before it was cancelled"),
        () = until(|| evaluators(pid) == 1) => {}
    }
    until(|| evaluators(pid) == 0).await;
    assert!(ids(&helper, "peace").await.is_ok());
}

/// The reply of a call that was cancelled must not be taken for another one's, nor for the helper's end.
#[tokio::test]
async fn a_cancelled_preparation_of_grammars_keeps_the_helper() {
    let schema = || schema(json!({"type": "object", "properties": {"a": {"type": "integer"}}}));
    for delay in [0, 200, 500, 1000, 2000, 5000, 10_000, 20_000].map(Duration::from_micros) {
        let helper = start(&demo(), limits(NEVER, 512)).await.unwrap();
        let (pid, known) = (helper.pid(), ids(&helper, "hello").await.unwrap());
        let _ = tokio::time::timeout(delay, helper.begin(schema(), || {})).await;
        for _ in 0..2 {
            helper.begin(schema(), || {}).await.unwrap();
            assert_eq!(ids(&helper, "hello").await.unwrap(), known);
        }
        assert_eq!(helper.pid(), pid, "it was started again after {delay:?}");
    }
}

#[tokio::test]
async fn a_helper_that_ended_is_started_again() {
    let helper = start(&demo(), TextLimits::default()).await.unwrap();
    let expected = ids(&helper, "peace").await.unwrap();
    let pid = helper.pid();
    helper.kill_process();
    until(|| !is_alive(&pid.to_string())).await;
    assert_eq!(ids(&helper, "peace").await.unwrap(), expected);
}

/// Number of running evaluators.
fn evaluators(pid: u32) -> usize {
    // /proc lists children per thread, and tests run on several threads.
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    children.map(|children| children.split_whitespace().filter(|pid| is_alive(pid)).count()).sum()
}

/// Whether a process runs. One that has ended may still be listed.
fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

async fn until(is_so: impl Fn() -> bool) {
    while !is_so() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
