//! Inference with a pushed model: generate and chat, with and without streaming, context, options, load and
//! unload, concurrent requests. The reference outputs in tests/models/lode-demo/expected.json were computed
//! in float32 by another implementation.

use lode_tests::checkpoint::{demo, demo_expected};
use lode_tests::command::wait_until;
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

/// Starts a server with a worker, an f32 KV cache and the demo model as `team/demo`.
async fn with_model() -> Server {
    let server = Folder::new().start(Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32")).await;
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();
    server
}

fn records(ndjson: &str) -> Vec<Value> {
    ndjson.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn ids(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .unwrap_or_else(|| panic!("expected ids, got {value}"))
        .iter()
        .map(|id| id.as_u64().unwrap())
        .collect()
}

#[tokio::test]
async fn greedy_responses_match_the_reference() {
    let server = with_model().await;
    let registry = server.registry();
    let expected = demo_expected();
    for case in expected["cases"].as_array().unwrap() {
        let (question, expected_text) = (case["user"].as_str().unwrap(), case["answer"].as_str().unwrap());
        let options = json!({"temperature": 0, "num_predict": 100});
        let chat = json!({"model": "team/demo", "messages": [{"role": "user", "content": question}], "stream": false, "options": options});
        let got = registry.post_json("/api/chat", &chat).await.expect(200).json();
        assert_eq!(got["message"]["content"], expected_text, "{question}");
        assert_eq!(
            (got["message"]["role"].as_str(), got["done"].as_bool(), got["done_reason"].as_str()),
            (Some("assistant"), Some(true), Some("stop"))
        );
        assert_eq!(got["prompt_eval_count"], case["prompt_ids"].as_array().unwrap().len(), "{got}");
        let generate = json!({"model": "team/demo", "prompt": question, "stream": false, "options": options});
        let got = registry.post_json("/api/generate", &generate).await.expect(200).json();
        assert_eq!(got["response"], expected_text, "{question}");
        let known: Vec<u64> = [ids(&case["prompt_ids"]), ids(&case["answer_ids"])].concat();
        assert!(
            ids(&got["context"]).starts_with(&known),
            "context {:?} does not start with prompt and response {known:?}",
            got["context"]
        );
        for field in
            ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration", "eval_count"]
        {
            assert!(got[field].is_u64(), "{field} in {got}");
        }
    }
}

/// Levels that this processor has, except AMX, whose detection is not stable in Rust.
fn instruction_levels() -> Vec<&'static str> {
    let mut levels = vec!["scalar"];
    #[cfg(target_arch = "x86_64")]
    {
        let has_avx2 = is_x86_feature_detected!("avx2");
        let has_avx512 = is_x86_feature_detected!("avx512bw");
        let has_vnni = is_x86_feature_detected!("avx512vnni");
        let has_bf16 = is_x86_feature_detected!("avx512bf16");
        let known = [
            ("avx2", has_avx2),
            ("avx512", has_avx512),
            ("avx512-vnni", has_vnni),
            ("avx512-bf16", has_vnni && has_bf16),
        ];
        levels.extend(known.iter().filter(|(_, has)| *has).map(|(level, _)| level));
    }
    #[cfg(target_arch = "aarch64")]
    levels.push("neon");
    levels
}

/// The best level that does not round activations for BF16 weights, for comparisons with float32.
pub(crate) fn exact_level() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512vnni") {
        return "avx512-vnni";
    }
    "auto"
}

#[tokio::test]
async fn each_instruction_level_gives_the_reference_response() {
    let expected = demo_expected();
    let case = &expected["cases"][0];
    for level in instruction_levels() {
        let options = Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32").env("LODE_CPU", level);
        let server = Folder::new().start(options).await;
        server.lode().create("team/demo", &demo(), &[]).await.expect_success();
        let body = json!({"model": "team/demo", "prompt": case["user"], "stream": false, "options": {"temperature": 0, "num_predict": 100}});
        let got = server.registry().post_json("/api/generate", &body).await.expect(200).json();
        assert_eq!(got["response"], case["answer"], "{level}");
        server.wait_output(&format!("cpu ({level}, ")).await;
    }
    let options = Options::new().worker().env("LODE_CPU", "sse9");
    let (_, output) = Folder::new().start_refused(options).await;
    let mentions_levels = instruction_levels().iter().all(|level| output.contains(level));
    assert!(output.contains("instruction level `sse9` is not available") && mentions_levels, "{output}");
}

#[tokio::test]
async fn a_stream_is_the_same_answer_in_pieces() {
    let server = with_model().await;
    let registry = server.registry();
    let body = json!({"model": "team/demo", "prompt": "Define water.", "options": {"temperature": 0, "num_predict": 40}});
    let response = registry.post_json("/api/generate", &body).await.expect(200);
    assert_eq!(response.header("content-type"), Some("application/x-ndjson"));
    let pieces = records(&response.text());
    assert!(pieces.len() > 3, "{}", response.text());
    let (last, before) = pieces.split_last().unwrap();
    assert!(
        before.iter().all(|piece| piece["done"] == false && piece["model"] == "team/demo")
            && last["done"] == true
    );
    let streamed: String = pieces.iter().map(|piece| piece["response"].as_str().unwrap()).collect();
    let mut whole = body.clone();
    whole["stream"] = false.into();
    let whole = registry.post_json("/api/generate", &whole).await.expect(200).json();
    assert_eq!(streamed, whole["response"].as_str().unwrap());
    assert_eq!(last["context"], whole["context"]);

    let chat = json!({"model": "team/demo", "messages": [{"role": "user", "content": "Define water."}], "options": {"temperature": 0, "num_predict": 40}});
    let pieces = records(&registry.post_json("/api/chat", &chat).await.expect(200).text());
    let streamed: String = pieces.iter().map(|piece| piece["message"]["content"].as_str().unwrap()).collect();
    assert_eq!(streamed, whole["response"].as_str().unwrap());
}

#[tokio::test]
async fn the_context_continues_a_conversation() {
    let server = with_model().await;
    let registry = server.registry();
    let generate = async |prompt: &str, context: &Value| {
        let options = json!({"temperature": 0, "num_predict": 30});
        let body = json!({"model": "team/demo", "prompt": prompt, "context": context, "stream": false, "options": options});
        registry.post_json("/api/generate", &body).await.expect(200).json()
    };
    let first = generate("What is 40 plus 41?", &json!([])).await;
    let second = generate("Define water.", &first["context"]).await;
    let (before, after) = (ids(&first["context"]), ids(&second["context"]));
    assert!(after.starts_with(&before) && after.len() > before.len() + 10, "{before:?} {after:?}");
    let alone = generate("Define water.", &json!([])).await;
    assert!(
        after.len() > ids(&alone["context"]).len(),
        "the context of the second response does not contain the first exchange"
    );
    // With `raw`, the last record has a context too, but a request with a context is refused.
    let raw = json!({"model": "team/demo", "prompt": "In the beginning", "raw": true, "stream": false, "options": {"num_predict": 5}});
    let got = registry.post_json("/api/generate", &raw).await.expect(200).json();
    assert_eq!(
        ids(&got["context"]).len() as u64,
        got["prompt_eval_count"].as_u64().unwrap() + got["eval_count"].as_u64().unwrap()
    );
    let mut both = raw;
    both["context"] = got["context"].clone();
    let refused = registry.post_json("/api/generate", &both).await.expect(400);
    assert!(refused.json()["error"].as_str().unwrap().contains("raw"), "{}", refused.text());
}

#[tokio::test]
async fn sampling_options_are_applied() {
    let server = with_model().await;
    let registry = server.registry();
    let generate = async |options: Value| {
        let body = json!({"model": "team/demo", "prompt": "In the beginning", "raw": true, "stream": false, "options": options});
        registry.post_json("/api/generate", &body).await.expect(200).json()
    };
    let seeded = json!({"temperature": 1.0, "seed": 7, "num_predict": 24});
    let (a, b) = (generate(seeded.clone()).await, generate(seeded).await);
    assert_eq!(a["context"], b["context"], "the same seed gave different texts");
    let other = generate(json!({"temperature": 1.0, "seed": 8, "num_predict": 24})).await;
    assert_ne!(a["context"], other["context"]);
    let (greedy, one) = (
        generate(json!({"temperature": 0, "num_predict": 24})).await,
        generate(json!({"temperature": 2.0, "top_k": 1, "num_predict": 24})).await,
    );
    assert_eq!(greedy["response"], one["response"], "top_k 1 differs from greedy sampling");
    let text = greedy["response"].as_str().unwrap();
    let stop: String = text.chars().skip(10).take(5).collect();
    let stopped = generate(json!({"temperature": 0, "num_predict": 24, "stop": [stop]})).await;
    assert_eq!(
        stopped["response"].as_str().unwrap(),
        &text[..text.find(&stop).unwrap()],
        "the response does not end before the stop sequence"
    );
    assert_eq!(stopped["done_reason"], "stop");
    assert_eq!(generate(json!({"num_predict": 1})).await["eval_count"], 1);
}

#[tokio::test]
async fn concurrent_requests_get_the_same_responses() {
    let server = with_model().await;
    let registry = server.registry();
    let expected = demo_expected();
    let cases = expected["cases"].as_array().unwrap();
    let requests = (0..16).map(|i| {
        let (registry, case) = (registry.clone(), cases[i % cases.len()].clone());
        async move {
            let body = json!({"model": "team/demo", "prompt": case["user"], "stream": false, "options": {"temperature": 0, "num_predict": 100}});
            let got = registry.post_json("/api/generate", &body).await.expect(200).json();
            assert_eq!(got["response"], case["answer"]);
        }
    });
    futures::future::join_all(requests).await;
}

#[tokio::test]
async fn models_are_loaded_listed_and_stopped() {
    let server = with_model().await;
    let (registry, lode) = (server.registry(), server.lode());
    assert_eq!(registry.get("/api/ps").await.expect(200).json()["models"], json!([]));
    let out = lode.run(&["run", "team/demo", "What is 40 plus 41?"]).await.expect_success();
    assert!(!out.stdout.trim().is_empty(), "{out:?}");
    let listed = registry.get("/api/ps").await.expect(200).json();
    assert_eq!(listed["models"][0]["name"], "team/demo:latest", "{listed}");
    assert!(lode.run(&["ps"]).await.expect_success().stdout.contains("team/demo"));
    lode.run(&["stop", "team/demo"]).await.expect_success();
    wait_until("it is unloaded", || async { registry.get("/api/ps").await.json()["models"] == json!([]) })
        .await;
    // The next request loads it again, and with `keep_alive` 0 it is unloaded at once.
    let body = json!({"model": "team/demo", "prompt": "Define water.", "stream": false, "keep_alive": 0});
    registry.post_json("/api/generate", &body).await.expect(200);
    wait_until("it is unloaded", || async { registry.get("/api/ps").await.json()["models"] == json!([]) })
        .await;
    let absent = registry.post_json("/api/generate", &json!({"model": "team/absent", "prompt": "x"})).await;
    assert_eq!(absent.status, 404, "{}", absent.text());
    assert!(absent.json()["error"].as_str().unwrap().contains("team/absent"));
    let tags = registry.get("/api/tags").await.expect(200).json();
    assert!(tags["models"].as_array().unwrap().iter().any(|m| m["name"] == "team/demo:latest"), "{tags}");
    let shown = registry.post_json("/api/show", &json!({"model": "team/demo"})).await.expect(200).json();
    assert!(shown["details"].is_object(), "{shown}");
}

#[tokio::test]
async fn a_client_that_hangs_up_frees_the_model() {
    let server = with_model().await;
    let registry = server.registry();
    let body = json!({"model": "team/demo", "prompt": "And it came to pass", "raw": true, "options": {"num_predict": 100_000, "temperature": 1.0}});
    let request = registry.request("POST", "/api/generate").json(&body).send().await.unwrap();
    assert_eq!(request.status(), 200);
    drop(request);
    let short = json!({"model": "team/demo", "prompt": "What is 5 plus 5?", "stream": false, "options": {"temperature": 0, "num_predict": 20}});
    let got = registry.post_json("/api/generate", &short).await.expect(200).json();
    assert_eq!(got["response"], "10.");
}

#[tokio::test]
async fn text_is_tokenized_and_decoded() {
    let server = with_model().await;
    let lode = server.lode();
    let text = "What is 40 plus 41?\n  <|im_end|> \u{e4}\u{1f600}\n";
    let with = lode
        .run_with_input(&["tokenize", "team/demo", "--json"], text.as_bytes())
        .await
        .expect_success()
        .json();
    let without = lode
        .run_with_input(&["tokenize", "team/demo", "--json", "--no-special"], text.as_bytes())
        .await
        .expect_success()
        .json();
    assert!(ids(&with["ids"]).contains(&2) && !ids(&without["ids"]).contains(&2), "{with} {without}");
    let lines = lode
        .run_with_input(&["tokenize", "team/demo", "--no-special"], text.as_bytes())
        .await
        .expect_success()
        .stdout;
    let by_line: Vec<u64> = lines.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(by_line, ids(&without["ids"]));
    let back =
        lode.run_with_input(&["tokenize", "team/demo", "--decode"], lines.as_bytes()).await.expect_success();
    assert_eq!(back.stdout, text);
    assert_eq!(
        lode.run_with_input(&["tokenize", "team/demo", "--json"], b"").await.expect_success().json(),
        json!({"ids": []})
    );
}

#[tokio::test]
async fn a_killed_runner_affects_nothing_else() {
    let server = with_model().await;
    let registry = server.registry();
    let body = json!({"model": "team/demo", "prompt": "What is 5 plus 5?", "stream": false, "options": {"temperature": 0, "num_predict": 20}});
    registry.post_json("/api/generate", &body).await.expect(200);
    let runners = runners_of(server.pid());
    assert_eq!(runners.len(), 1, "expected one process per model");
    lode_tests::server::signal(runners[0], libc::SIGKILL);
    wait_until("the model responds again", || async {
        registry.post_json("/api/generate", &body).await.status == 200
    })
    .await;
    assert_ne!(runners_of(server.pid()), runners);
    let pid = server.pid();
    let runners = runners_of(pid);
    server.kill(); // a runner dies with its worker
    wait_until("the runner has ended", || async { runners.iter().all(|pid| !running(*pid)) }).await;
}

fn running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim().starts_with('Z'))
}

/// The child processes of a server: its runners.
fn runners_of(pid: u32) -> Vec<u32> {
    let is_child = |stat: &str| {
        stat.rsplit(')')
            .next()
            .and_then(|rest| rest.split_whitespace().nth(1))
            .is_some_and(|parent| parent == pid.to_string())
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_string_lossy().parse::<u32>().ok())
        .filter(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| is_child(&stat)))
        .collect()
}

/// A runner reads files of strangers, so it gets none of the server's secrets.
#[tokio::test]
async fn runners_do_not_inherit_secrets() {
    let secret = "do-not-pass-this-on";
    let options =
        Options::new().worker().env("LODE_SECRET_KEY", "ab".repeat(32)).env("AWS_SECRET_ACCESS_KEY", secret);
    let server = Folder::new().start(options).await;
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();
    let body = json!({"model": "team/demo", "prompt": "Define water.", "stream": false, "options": {"num_predict": 4}});
    server.registry().post_json("/api/generate", &body).await.expect(200);
    let variables = std::fs::read(format!("/proc/{}/environ", child_of(server.pid()))).unwrap();
    let variables = String::from_utf8_lossy(&variables);
    assert!(!variables.contains(secret) && !variables.contains("LODE_SECRET_KEY"), "{variables}");
    assert!(variables.contains("LODE_LOG_FORMAT="), "{variables}");
}

/// A local worker maps the weights from the registry's data folder.
#[tokio::test]
async fn weights_are_mapped_where_the_registry_keeps_them() {
    let server = with_model().await;
    let body = json!({"model": "team/demo", "prompt": "Define water.", "raw": true, "stream": false, "options": {"num_predict": 4}});
    server.registry().post_json("/api/generate", &body).await.expect(200);

    let data = server.folder().data().canonicalize().unwrap();
    let copies = walk(&data.join("worker/blobs"));
    assert!(copies.is_empty(), "the worker copied blobs: {copies:?}");
    let runner = child_of(server.pid());
    let maps = std::fs::read_to_string(format!("/proc/{runner}/maps")).unwrap();
    let mapped =
        maps.lines().filter(|line| line.contains(data.join("blobs/sha256").to_str().unwrap())).count();
    // The 28 matrices and the embedding. The norms are read, not mapped.
    assert!(mapped >= 29, "{maps}");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { walk(&path) } else { vec![path] }).collect()
}

/// The only child process of a process.
fn child_of(parent: u32) -> u32 {
    let is_child = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The process name before the last parenthesis may contain any characters.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(1) == Some(parent.to_string().as_str())
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    let ids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    let children: Vec<u32> = ids.filter(is_child).collect();
    assert_eq!(children.len(), 1, "{children:?}");
    children[0]
}
