//! Building prompts: Go templates as in ollama's models, and prompts that are too long for the context.

use std::path::Path;

use lode_tests::checkpoint::{copy_folder, demo, demo_expected};
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

/// A Go template that renders the same prompts as the demo model's template.
const CHATML_TEMPLATE: &str = "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}<|im_start|>assistant\n";
/// The same as a template of the older kind, which renders one turn at a time.
const TURN_TEMPLATE: &str = "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}{{ if .Prompt }}<|im_start|>user\n\
    {{ .Prompt }}<|im_end|>\n{{ end }}<|im_start|>assistant\n{{ .Response }}<|im_end|>\n";

/// Starts a server with a worker, the demo model as `team/demo`, and a copy with each Go template as
/// `team/NAME`.
async fn with_templates(templates: &[(&str, &str)]) -> Server {
    let options = Options::new().worker().env("LODE_KV_CACHE_TYPE", "f32").env("LODE_CONTEXT_LENGTH", "256");
    let server = Folder::new().start(options).await;
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();
    for (name, template) in templates {
        let body = json!({"model": format!("team/{name}"), "from": "team/demo", "template": template, "stream": false});
        server.registry().post_json("/api/create", &body).await.expect(200);
    }
    server
}

async fn post(server: &Server, path: &str, body: Value) -> Value {
    let mut body = body;
    body["stream"] = false.into();
    server.registry().post_json(path, &body).await.expect(200).json()
}

async fn refused(server: &Server, path: &str, body: Value) -> String {
    let response = server.registry().post_json(path, &body).await.expect(400).json();
    response["error"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn go_templates_render_the_prompt() {
    let echo =
        "{{ range .Messages }}{{ .Role }}:{{ .Content }};{{ end }}{{ if .Tools }}{{ json .Tools }}{{ end }}";
    let fill = "{{ if .Suffix }}<a>{{ .Prompt }}<b>{{ .Suffix }}<c>{{ else }}{{ .Prompt }}{{ end }}";
    let server = with_templates(&[
        ("chatml", CHATML_TEMPLATE),
        ("turns", TURN_TEMPLATE),
        ("echo", echo),
        ("fill", fill),
    ])
    .await;
    let options = json!({"temperature": 0, "num_predict": 100});
    let expected = demo_expected();
    for case in expected["cases"].as_array().unwrap().iter().take(2) {
        for model in ["team/chatml", "team/turns"] {
            let messages = json!([{"role": "user", "content": case["user"]}]);
            let chat = json!({"model": model, "messages": messages, "options": options});
            let got = post(&server, "/api/chat", chat).await;
            assert_eq!(got["message"]["content"], case["answer"], "{model}");
            let generate = json!({"model": model, "prompt": case["user"], "options": options});
            assert_eq!(post(&server, "/api/generate", generate).await["response"], case["answer"], "{model}");
        }
    }

    let rendered = async |path: &str, mut body: Value| {
        body["_debug_render_only"] = true.into();
        let got = post(&server, path, body).await;
        got["_debug_info"]["rendered_template"].as_str().unwrap().to_owned()
    };
    let messages = json!([{"role": "system", "content": "S"}, {"role": "user", "content": "a"},
        {"role": "user", "content": "b"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]);
    let chat = |model: &str| json!({"model": model, "messages": messages});
    assert_eq!(rendered("/api/chat", chat("team/echo")).await, "system:S;user:a\n\nb;assistant:c;user:d;");
    let by_turns = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na\n\nb<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n\
        <|im_start|>user\nd<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(rendered("/api/chat", chat("team/turns")).await, by_turns);
    let tool = json!({"type": "function", "function": {"name": "f", "description": "d",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}});
    let with_tool =
        json!({"model": "team/echo", "messages": [{"role": "user", "content": "a"}], "tools": [tool]});
    let shown = r#"user:a;[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"x":{"type":"string"}}}}}]"#;
    assert_eq!(rendered("/api/chat", with_tool).await, shown);
    let fill = json!({"model": "team/fill", "prompt": "x", "suffix": "y"});
    assert_eq!(rendered("/api/generate", fill).await, "<a>x<b>y<c>");
    let own = json!({"model": "team/demo", "prompt": "x", "system": "s", "template": "[{{ .System }}|{{ .Prompt }}]"});
    assert_eq!(rendered("/api/generate", own).await, "[s|x]");

    let error =
        refused(&server, "/api/generate", json!({"model": "team/echo", "prompt": "x", "suffix": "y"})).await;
    assert!(error.contains("does not support insert"), "{error}");
    let bad = json!({"model": "team/demo", "prompt": "x", "template": "{{ nothing }}"});
    let error = refused(&server, "/api/generate", bad).await;
    assert!(error.contains("function \"nothing\" not defined (line 1, column "), "{error}");
}

#[tokio::test]
async fn a_full_context_is_handled_as_ollama_does() {
    let server = with_templates(&[]).await;
    let options = |num_predict: i64| json!({"temperature": 0, "num_predict": num_predict});
    let long = "word ".repeat(600);

    // A long conversation is truncated at its oldest messages. The system prompt is kept.
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let mut messages = vec![message("system", "Be brief.")];
    for turn in 0..60 {
        messages.push(message("user", &format!("question {turn}")));
        messages.push(message("assistant", &format!("answer {turn}")));
    }
    messages.push(message("user", "Define water."));
    let chat = json!({"model": "team/demo", "messages": messages, "options": options(1)});
    let mut seen = chat.clone();
    seen["_debug_render_only"] = true.into();
    let seen = post(&server, "/api/chat", seen).await;
    let text = seen["_debug_info"]["rendered_template"].as_str().unwrap();
    assert!(
        text.contains("system\nBe brief.") && text.contains("Define water.") && text.contains("answer 59"),
        "{text}"
    );
    assert!(!text.contains("question 3<"), "{text}");
    let count = post(&server, "/api/chat", chat.clone()).await["prompt_eval_count"].as_u64().unwrap();
    assert!((200..=256).contains(&count), "more messages were removed than necessary: {count}");
    let mut whole = chat;
    whole["truncate"] = false.into();
    let error = refused(&server, "/api/chat", whole).await;
    assert_eq!(error, "the input length exceeds the context length");

    // A long text is truncated in the middle, or refused.
    let prompt = |more: Value| {
        let mut body = json!({"model": "team/demo", "prompt": long, "raw": true, "options": options(1)});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let got = post(&server, "/api/generate", prompt(json!({}))).await;
    assert_eq!(got["prompt_eval_count"], 130, "half of the context beyond num_keep must be free: {got}");
    let error = refused(&server, "/api/generate", prompt(json!({"truncate": false}))).await;
    assert_eq!(error, "the input length exceeds the context length");
    let error = refused(&server, "/api/generate", prompt(json!({"shift": false}))).await;
    assert!(error.contains("longer than the context length"), "{error}");

    // Generation stops at the end of the context, or continues in a shifted context.
    let endless = json!({"temperature": 0.9, "seed": 5, "num_predict": 400, "num_ctx": 64});
    let body = json!({"model": "team/demo", "prompt": "In the beginning", "raw": true, "options": endless, "shift": false});
    let got = post(&server, "/api/generate", body.clone()).await;
    let tokens =
        |got: &Value| got["prompt_eval_count"].as_u64().unwrap() + got["eval_count"].as_u64().unwrap();
    assert!(tokens(&got) <= 65, "{got}");
    let mut goes_on = body;
    goes_on["shift"] = true.into();
    let on = post(&server, "/api/generate", goes_on).await;
    assert!(on["done_reason"] == "stop" || tokens(&on) > 65, "{on}");
    assert!(on["done_reason"] == "stop" || got["done_reason"] == "length", "{got} {on}");
}

/// Writes the demo model with a NaN in its last norm.
fn write_damaged_model(folder: &Path) {
    copy_folder(&demo(), folder);
    let path = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
    let norm = &header["model.norm.weight"];
    assert_eq!(norm["dtype"], "BF16");
    let at = 8 + len + norm["data_offsets"][0].as_u64().unwrap() as usize;
    bytes[at..at + 2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
}

#[tokio::test]
async fn bad_requests_and_damaged_models_do_not_affect_others() {
    let server = with_templates(&[]).await;
    let folder = server.folder().path().join("damaged");
    write_damaged_model(&folder);
    server.lode().create("team/damaged", &folder, &[]).await.expect_success();
    let registry = server.registry();
    let question = |model: &str| json!({"model": model, "prompt": "Define water.", "stream": false, "options": {"num_predict": 3}});
    for _ in 0..2 {
        let response = registry.post_json("/api/generate", &question("team/damaged")).await.expect(500);
        assert!(response.json()["error"].is_string(), "{}", response.text());
        assert_eq!(post(&server, "/api/generate", question("team/demo")).await["eval_count"], 3);
    }
    let raw = b"{\"model\":\"team/demo\",\"prompt\":\"\xff\xfe\",\"stream\":false}".to_vec();
    let response = registry.send(registry.request("POST", "/api/generate").body(raw)).await.expect(400);
    assert!(response.json()["error"].is_string(), "{}", response.text());
    assert_eq!(post(&server, "/api/generate", question("team/demo")).await["eval_count"], 3);
}
