//! A whole worker against a small registry: join, load, generate, chat, score, leave; and refused requests.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::StatusCode;
use lode_model::digest::Digest;
use lode_model::media_type as mt;
use serde_json::{Value, json};

use crate::Config;
use crate::node::{Worker, start_with};
use crate::runner::testing::{PANIC, demo_file, demo_tokenizer};
use crate::testing::{InProcess, SECRET, TinyRegistry, repository};

pub(super) struct Bench {
    pub(super) tiny: TinyRegistry,
    pub(super) worker: Worker,
    http: reqwest::Client,
    pub(super) digest: Digest,
    _folder: tempfile::TempDir,
}

pub(super) async fn bench(launcher: InProcess, with_weights: bool) -> Bench {
    let tiny = TinyRegistry::default();
    let digest = tiny.put_demo(0, with_weights);
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        device: crate::device::DeviceSetting::Cpu,
        registry: format!("http://{}", tiny.start().await).parse().unwrap(),
        cache: folder.path().to_owned(),
        kv_cache_type: "f32".into(),
        context_length: 512,
        ..Config::default()
    };
    let worker = start_with(config, Arc::new(launcher)).await.unwrap();
    worker.wait_until_registered().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    Bench { tiny, worker, http, digest, _folder: folder }
}

/// Waits until a condition holds.
async fn until(what: &str, holds: &dyn Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), wait).await.unwrap_or_else(|_| panic!("{what}"));
}

impl Bench {
    async fn send(&self, path: &str, body: &Value) -> reqwest::Response {
        self.send_as("team/demo:latest", path, body).await
    }

    async fn send_as(&self, name: &str, path: &str, body: &Value) -> reqwest::Response {
        self.http
            .post(format!("http://{}{path}", self.worker.addr()))
            .bearer_auth(SECRET)
            .header("lode-model", format!("{}@{}", repository(), self.digest))
            .header("lode-model-name", name)
            .body(body.to_string())
            .send()
            .await
            .unwrap()
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Value {
        let response = self.send(path, &body).await;
        let (status, text) = (response.status(), response.text().await.unwrap());
        assert_eq!(status, StatusCode::OK, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(super) async fn refused(&self, path: &str, body: Value) -> (StatusCode, String) {
        self.refused_as("team/demo:latest", path, body).await
    }

    async fn refused_as(&self, name: &str, path: &str, body: Value) -> (StatusCode, String) {
        let response = self.send_as(name, path, &body).await;
        let status = response.status();
        let error: Value = response.json().await.unwrap();
        (status, error["error"].as_str().unwrap().to_owned())
    }

    pub(super) async fn stream(&self, path: &str, body: Value) -> Vec<Value> {
        let response = self.send(path, &body).await;
        assert_eq!(response.headers()["content-type"], "application/x-ndjson");
        let text = response.text().await.unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

#[tokio::test]
async fn the_demo_model_answers_as_expected() {
    let bench = bench(InProcess::native(), true).await;
    let expected: Value =
        serde_json::from_slice(&std::fs::read(demo_file("expected.json")).unwrap()).unwrap();
    let tokenizer = demo_tokenizer();
    for case in expected["cases"].as_array().unwrap().iter().take(5) {
        let both: Vec<Value> = [&case["prompt_ids"], &case["answer_ids"]]
            .iter()
            .flat_map(|ids| ids.as_array().unwrap().clone())
            .collect();
        let options = json!({"temperature": 0});
        let body = json!({"prompt": case["user"], "stream": false, "options": options});
        let response = bench.post("/api/generate", body).await;
        assert_eq!(
            (&response["response"], &response["context"]),
            (&case["answer"], &json!(both)),
            "{}",
            case["user"]
        );
        assert_eq!(
            (&response["done"], &response["done_reason"], &response["model"]),
            (&json!(true), &json!("stop"), &json!("team/demo:latest"))
        );
        let count = |key: &str| response[key].as_u64().unwrap() as usize;
        assert_eq!(count("prompt_eval_count") + count("eval_count"), both.len());
        for key in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
            assert!(count(key) > 0, "{key}");
        }

        let prompt: Vec<u32> = serde_json::from_value(case["prompt_ids"].clone()).unwrap();
        let prompt = String::from_utf8(tokenizer.decode(&prompt).unwrap()).unwrap();
        let records =
            bench.stream("/api/generate", json!({"prompt": prompt, "raw": true, "options": options})).await;
        let text: String = records.iter().map(|record| record["response"].as_str().unwrap()).collect();
        let (last, pieces) = records.split_last().unwrap();
        assert_eq!((json!(text), &last["context"]), (case["answer"].clone(), &json!(both)));
        assert!(pieces.iter().all(|piece| piece["done"] == false && piece.get("context").is_none()));

        let messages = json!([{"role": "user", "content": case["user"]}]);
        let records = bench.stream("/api/chat", json!({"messages": messages, "options": options})).await;
        let text: String =
            records.iter().map(|record| record["message"]["content"].as_str().unwrap()).collect();
        assert_eq!(json!(text), case["answer"]);
        assert!(records.last().unwrap().get("context").is_none());
    }

    let body = json!({"prompt": "Define water.", "stream": false, "logprobs": true, "top_logprobs": 2,
        "options": {"temperature": 0, "num_predict": 3}});
    let response = bench.post("/api/generate", body).await;
    let logprobs = response["logprobs"].as_array().unwrap();
    assert_eq!((logprobs.len(), &response["done_reason"]), (3, &json!("length")));
    assert!(logprobs.iter().all(|entry| entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        && entry["logprob"].as_f64() < Some(0.0)));

    // The perplexity of the first part of the held-out text is close to that of the whole text.
    let text = String::from_utf8(std::fs::read(demo_file("heldout.txt")).unwrap()).unwrap();
    let ids = tokenizer.encode(&text, false).unwrap();
    let windows: Vec<&[u32]> = ids.windows(257).step_by(256).take(4).collect();
    let scores = bench.post("/lode/v1/score", json!({"windows": windows, "logprobs": false})).await;
    let sum = |key: &str| {
        scores["windows"].as_array().unwrap().iter().map(|window| window[key].as_f64().unwrap()).sum::<f64>()
    };
    assert_eq!(sum("tokens"), 1024.0);
    let perplexity = (sum("nll") / 1024.0).exp();
    assert!((30.0..130.0).contains(&perplexity), "{perplexity}");
    bench.worker.stop().await;
}

/// One loaded model can have several names, and a caller may be allowed to know only one of them.
#[tokio::test]
async fn errors_use_the_name_of_the_request() {
    let mut bench = bench(InProcess::native(), true).await;
    let body = json!({"prompt": "x", "think": true});
    for name in ["secret/one", "pub/two:latest"] {
        let (status, error) = bench.refused_as(name, "/api/generate", body.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert_eq!(error, format!("\"{name}\" does not support thinking"));
    }
    let unloadable = [
        (vec![(mt::OCTET_STREAM, "model.safetensors", b"nonsense".to_vec())], ""),
        (
            vec![
                (mt::OLLAMA_JSON, "config.json", std::fs::read(demo_file("config.json")).unwrap()),
                (mt::OCTET_STREAM, "model.safetensors", b"nonsense".to_vec()),
            ],
            "blob ",
        ),
    ];
    let folder = bench._folder.path().to_str().unwrap().to_owned();
    for (layers, part) in unloadable {
        bench.digest = bench.tiny.put_model(&layers);
        for name in ["secret/one", "pub/two:latest"] {
            let (_, error) = bench.refused_as(name, "/api/generate", json!({"prompt": "x"})).await;
            assert!(error.contains(name) && error.contains(part), "{error}");
            assert!(!error.contains(&folder) && !error.contains(bench.digest.as_str()), "{error}");
        }
    }
    bench.worker.stop().await;
}

#[tokio::test]
async fn go_templates_make_the_prompt() {
    let mut bench = bench(InProcess::native(), true).await;
    let with = |template: &str| {
        let layer = (mt::OLLAMA_TEMPLATE, "", template.as_bytes().to_vec());
        bench.tiny.put_demo_with(0, true, &[layer])
    };
    let chatml = "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n";
    let by_turns = "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n\
        <|im_start|>assistant\n{{ .Response }}<|im_end|>\n";
    let fill = "{{ if .Suffix }}<a>{{ .Prompt }}<b>{{ .Suffix }}<c>{{ else }}{{ .Prompt }}{{ end }}";
    let [chatml, by_turns, fill, bad] = [chatml, by_turns, fill, "\n{{ nothing }}"].map(with);
    let expected: Value =
        serde_json::from_slice(&std::fs::read(demo_file("expected.json")).unwrap()).unwrap();
    let case = &expected["cases"][0];
    let options = json!({"temperature": 0});
    for digest in [chatml, by_turns] {
        bench.digest = digest;
        let messages = json!([{"role": "user", "content": case["user"]}]);
        let body = json!({"messages": messages, "stream": false, "options": options});
        assert_eq!(bench.post("/api/chat", body).await["message"]["content"], case["answer"]);
        let body = json!({"prompt": case["user"], "stream": false, "options": options});
        assert_eq!(bench.post("/api/generate", body).await["response"], case["answer"]);
        let body = json!({"prompt": "x", "system": "s", "_debug_render_only": true});
        let response = bench.post("/api/generate", body).await;
        let prompt =
            "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(response["_debug_info"]["rendered_template"], prompt);
    }
    let own = json!({"prompt": "x", "system": "s", "template": "[{{ .System }}|{{ .Prompt }}]", "_debug_render_only": true});
    let response = bench.post("/api/generate", own).await;
    assert_eq!(response["_debug_info"]["rendered_template"], "[s|x]");
    let (status, error) =
        bench.refused("/api/generate", json!({"prompt": "x", "template": "{{ nothing }}"})).await;
    assert!(
        status == StatusCode::BAD_REQUEST && error.contains("\"nothing\" not defined (line 1, column 4)"),
        "{error}"
    );
    bench.digest = fill;
    let body = json!({"prompt": "x", "suffix": "y", "_debug_render_only": true});
    let response = bench.post("/api/generate", body).await;
    assert_eq!(response["_debug_info"]["rendered_template"], "<a>x<b>y<c>");
    bench.digest = bad;
    let (status, error) = bench.refused("/api/generate", json!({"prompt": "x"})).await;
    assert!(
        status == StatusCode::BAD_REQUEST && error.contains("\"nothing\" not defined (line 2, column 4)"),
        "{error}"
    );
    bench.worker.stop().await;
}

#[tokio::test]
async fn embeddings_are_normalised() {
    let bench = bench(InProcess::native(), true).await;
    let vectors = async |body: Value| {
        let response = bench.post("/api/embed", body).await;
        let vectors: Vec<Vec<f32>> = serde_json::from_value(response["embeddings"].clone()).unwrap();
        (vectors, response["prompt_eval_count"].as_u64().unwrap())
    };
    let length = |vector: &[f32]| vector.iter().map(|value| value * value).sum::<f32>().sqrt();
    let texts = ["Define water.", "What is 40 plus 41?", "Define water."];
    let (many, tokens) = vectors(json!({"input": texts})).await;
    assert_eq!((many.len(), many[0].len()), (3, 256));
    assert!(many.iter().all(|vector| (length(vector) - 1.0).abs() < 1e-6));
    assert!(many[0] == many[2] && many[0] != many[1]);
    let (one, fewer) = vectors(json!({"input": texts[1]})).await;
    assert_eq!(one, many[1..2], "an embedding does not depend on the other inputs");
    assert!(0 < fewer && fewer < tokens);
    let (cut, _) = vectors(json!({"input": texts[1], "dimensions": 16})).await;
    assert_eq!((cut[0].len(), (length(&cut[0]) - 1.0).abs() < 1e-6), (16, true));
    let part = length(&one[0][..16]);
    assert!(cut[0].iter().zip(&one[0]).all(|(cut, one)| (cut * part - one).abs() < 1e-6));
    assert_eq!(vectors(json!({"input": []})).await, (Vec::new(), 0));
    assert_eq!(vectors(json!({})).await, (Vec::new(), 0));
    bench.worker.stop().await;
}

#[tokio::test]
async fn load_list_unload() {
    let launcher = InProcess::fake();
    let running = launcher.running.clone();
    let bench = bench(launcher, false).await;
    let response =
        bench.post("/api/generate", json!({"keep_alive": "10m", "options": {"num_ctx": 100}})).await;
    assert_eq!((&response["done_reason"], &response["response"]), (&json!("load"), &json!("")));
    let ps: Value = bench
        .http
        .get(format!("http://{}/api/ps", bench.worker.addr()))
        .bearer_auth(SECRET)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let model = &ps["models"][0];
    assert_eq!((&model["name"], &model["digest"]), (&json!("team/demo:latest"), &json!(bench.digest.hex())));
    assert_eq!((&model["details"]["family"], &model["context_length"]), (&json!("llama"), &json!(100)));
    let digest = json!(bench.digest);
    until("a heartbeat reports it as loaded", &|| bench.tiny.heartbeat()["loaded"][0]["digest"] == digest)
        .await;
    until("a heartbeat reports the cached model", &|| bench.tiny.heartbeat()["cached"] == json!([digest]))
        .await;
    assert!(bench.tiny.heartbeat()["devices"][0]["memory_bytes"].as_u64() > Some(0));
    let response = bench.post("/api/chat", json!({"messages": [], "keep_alive": 0})).await;
    assert_eq!((&response["done_reason"], &response["message"]["content"]), (&json!("unload"), &json!("")));
    until("it is unloaded", &|| running.load(Ordering::SeqCst) == 0).await;
    until("heartbeats no longer report it", &|| bench.tiny.heartbeat()["loaded"] == json!([])).await;

    // The worker registers again when the registry no longer knows it.
    bench.tiny.forget_workers();
    until("it registers again", &|| bench.tiny.joins() == 2).await;
    let tiny = bench.tiny.clone();
    bench.worker.stop().await;
    assert_eq!(tiny.left(), 1);
}

#[tokio::test]
async fn a_drained_worker_unloads_its_models_when_they_are_idle() {
    let launcher = InProcess::fake();
    let running = launcher.running.clone();
    let bench = bench(launcher, false).await;
    let load = json!({"prompt": "", "keep_alive": -1});
    assert_eq!(bench.post("/api/generate", load.clone()).await["done_reason"], "load");
    until("a heartbeat reports it", &|| bench.tiny.heartbeat()["loaded"][0]["digest"] == json!(bench.digest))
        .await;
    bench.tiny.drain(true);
    until("it is unloaded", &|| running.load(Ordering::SeqCst) == 0).await;
    until("heartbeats no longer report it", &|| bench.tiny.heartbeat()["loaded"] == json!([])).await;
    // What a request in progress loads is unloaded, too.
    assert_eq!(bench.post("/api/generate", load.clone()).await["done_reason"], "load");
    until("it is unloaded again", &|| running.load(Ordering::SeqCst) == 0).await;
    bench.tiny.drain(false);
    bench.tiny.forget_workers();
    until("it registers again", &|| bench.tiny.joins() == 2).await;
    bench.post("/api/generate", load).await;
    until("it stays loaded", &|| bench.tiny.heartbeat()["loaded"][0]["digest"] == json!(bench.digest)).await;
    assert_eq!(running.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn invalid_requests_are_refused() {
    let bench = bench(InProcess::fake(), false).await;
    let url = |path: &str| format!("http://{}{path}", bench.worker.addr());
    assert_eq!(bench.http.get(url("/healthz")).send().await.unwrap().status(), StatusCode::OK);
    for (path, token) in [("/api/generate", None), ("/api/chat", Some("wrong")), ("/lode/v1/score", Some(""))]
    {
        let request = bench.http.post(url(path)).body("{}");
        let request = token.map_or(request.try_clone().unwrap(), |token| request.bearer_auth(token));
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
        assert_eq!(response.json::<Value>().await.unwrap(), json!({"error": "unauthorized"}));
    }
    assert_eq!(bench.http.get(url("/api/ps")).send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    for path in ["/api/embeddings", "/v1/chat/completions", "/"] {
        let response = bench.http.post(url(path)).send().await.unwrap();
        assert_eq!(response.status(), StatusCode::NOT_FOUND);
        let error: Value = response.json().await.unwrap();
        assert_eq!(error["error"], format!("{path} is not served by this version of the worker"));
    }

    let check = async |path: &str, body: Value, expect: &str| {
        let (status, error) = bench.refused(path, body.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        assert!(error.contains(expect), "{body}: {error}");
    };
    let raw = "raw mode does not support template, system, or context";
    check("/api/generate", json!({"prompt": "x", "raw": true, "system": "s"}), raw).await;
    check("/api/generate", json!({"prompt": "x", "raw": true, "context": [1]}), raw).await;
    check("/api/generate", json!({"prompt": "x", "suffix": "y"}), "does not support insert").await;
    check("/api/generate", json!({"prompt": "x", "images": ["aGk="]}), "does not support images").await;
    let expected = "invalid format: \"xml\"; expected \"json\" or a valid JSON Schema object";
    check("/api/generate", json!({"prompt": "x", "format": "xml"}), expected).await;
    check("/api/generate", json!({"prompt": "x", "format": {"type": "thing"}}), "invalid format: ").await;
    check("/api/generate", json!({"prompt": "x", "think": true}), "does not support thinking").await;
    check(
        "/api/generate",
        json!({"prompt": "x", "top_logprobs": 21}),
        "top_logprobs must be between 0 and 20",
    )
    .await;
    check(
        "/api/generate",
        json!({"prompt": "x", "options": {"seed": "x"}}),
        "option \"seed\" must be of type integer",
    )
    .await;
    check("/api/generate", json!({"prompt": "x", "keep_alive": "soon"}), "not a duration").await;
    check("/api/generate", json!({"prompt": "x", "context": [-1]}), "invalid value").await;
    check("/api/generate", json!({"prompt": "x", "context": [5000]}), "outside the model's vocabulary").await;
    check("/api/chat", json!({"messages": [{"role": "x"}]}), "invalid role").await;
    check(
        "/api/chat",
        json!({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}),
        "does not support tools",
    )
    .await;
    check("/lode/v1/score", json!({"windows": [[1, 5000]]}), "outside the model's vocabulary").await;
    check("/api/generate", json!([]), "").await;
    check("/api/embed", json!({"input": 3}), "invalid input type").await;
    check("/api/embed", json!({"input": ["x", [1]]}), "invalid input type").await;
    check("/api/embed", json!({"input": "x", "dimensions": -1}), "dimensions").await;
    let nothing_left = "input after truncation exceeds maximum context length";
    for num_ctx in [0, 1, -1] {
        let body =
            json!({"input": "why is the sky blue?", "truncate": true, "options": {"num_ctx": num_ctx}});
        check("/api/embed", body, nothing_left).await;
    }
    let short = json!({"input": "why is the sky blue?", "options": {"num_ctx": 3}});
    assert_eq!(bench.post("/api/embed", short).await["prompt_eval_count"], 3);

    let long = "word ".repeat(2000);
    check(
        "/api/generate",
        json!({"prompt": long, "truncate": false}),
        "the input length exceeds the context length",
    )
    .await;
    check(
        "/api/embed",
        json!({"input": ["x", long], "truncate": false}),
        "the input length exceeds the context length",
    )
    .await;
    assert_eq!(bench.post("/api/embed", json!({"input": long})).await["prompt_eval_count"], 512);
    let generated = bench
        .post("/api/generate", json!({"prompt": long, "stream": false, "options": {"num_predict": 1}}))
        .await;
    assert_eq!(generated["prompt_eval_count"], 512 - (512 - 4) / 2);

    let response = bench.http.post(url("/api/generate")).bearer_auth(SECRET).body("{}").send().await.unwrap();
    assert_eq!(response.json::<Value>().await.unwrap(), json!({"error": "model is required"}));
    let (status, error) = bench.refused("/api/generate", Value::Null).await;
    assert_eq!((status, error.contains("invalid type: null")), (StatusCode::BAD_REQUEST, true));

    let request = bench.http.post(url("/api/generate")).bearer_auth(SECRET);
    let request = request.header("lode-model", format!("{}@{}", repository(), bench.digest));
    let response = request.body(b"{\"prompt\": \"\xff\xfe\"}".to_vec()).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    check("/api/generate", json!({"prompt": long, "shift": false}), "longer than the context length").await;
    check("/lode/v1/score", json!({"windows": [[1]], "top_logprobs": 21}), "between 0 and 20").await;

    // A crash fails the requests in flight, and the next request starts another runner.
    let (status, _) = bench.refused("/api/generate", json!({"prompt": "x", "context": [PANIC]})).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    let generated = bench
        .post(
            "/api/generate",
            json!({"prompt": "x", "stream": false, "options": {"num_predict": 1, "temperature": 0}}),
        )
        .await;
    assert_eq!(generated["eval_count"], 1);
}

#[tokio::test]
async fn bodies_are_limited() {
    let tiny = TinyRegistry::default();
    let digest = tiny.put_demo(0, false);
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        device: crate::device::DeviceSetting::Cpu,
        registry: format!("http://{}", tiny.start().await).parse().unwrap(),
        cache: folder.path().to_owned(),
        max_body: lode_client::ByteSize::mib(1),
        body_budget: lode_client::ByteSize::mib(4),
        ..Config::default()
    };
    let worker = start_with(config, Arc::new(InProcess::native())).await.unwrap();
    worker.wait_until_registered().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let bench = Bench { tiny, worker, http, digest, _folder: folder };

    let list = |field: &str, entry: Value, count: usize| json!({field: vec![entry; count]});
    let user = json!({"role": "user", "content": ""});
    for (path, field, entry) in [
        ("/api/chat", "messages", user.clone()),
        ("/api/chat", "tools", json!({})),
        ("/api/embed", "input", json!("")),
        ("/lode/v1/score", "windows", json!([])),
    ] {
        let expect = (StatusCode::BAD_REQUEST, format!("`{field}` has more than 10000 entries"));
        assert_eq!(bench.refused(path, list(field, entry, 10_001)).await, expect);
    }
    let (status, text) = bench.refused("/api/generate", json!({"prompt": "x".repeat(2 << 20)})).await;
    assert_eq!((status, text.contains("more than")), (StatusCode::PAYLOAD_TOO_LARGE, true), "{text}");
    // A small body with many values.
    let (status, text) = bench.refused("/api/chat", list("x", json!(1), 100_000)).await;
    assert_eq!((status, text.contains("once parsed")), (StatusCode::PAYLOAD_TOO_LARGE, true), "{text}");
    let (status, text) = bench.refused("/api/chat", json!({"messages": [user], "tools": [7]})).await;
    assert_eq!((status, text.as_str()), (StatusCode::BAD_REQUEST, "tools[0] must be an object"));
}
