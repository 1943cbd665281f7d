//! Templates, tokenizers and schemas that would use all memory or never end: each request gets an error that
//! names the limit, and other requests are not affected.

use std::fs;
use std::path::Path;

use lode_tests::checkpoint::{copy_folder, demo};
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};

/// Starts a server with small limits, which a hostile model exceeds quickly.
async fn server() -> Server {
    let options = Options::new().worker().env("LODE_TEXT_TIMEOUT", "1s").env("LODE_TEXT_MEMORY", "128MiB");
    let server = Folder::new().start(options).await;
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();
    server
}

/// Imports the demo model with one edited file.
async fn create(server: &Server, model: &str, file: &str, edit: impl FnOnce(&mut Value)) {
    let folder = server.folder().path().join(model.replace('/', "-"));
    copy_folder(&demo(), &folder);
    edit_json(&folder.join(file), edit);
    server.lode().create(model, &folder, &[]).await.expect_success();
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut file: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut file);
    fs::write(path, file.to_string()).unwrap();
}

fn chat(model: &str) -> Value {
    let messages = json!([{"role": "user", "content": "a a"}]);
    json!({"model": model, "messages": messages, "stream": false, "options": {"num_predict": 2}})
}

#[tokio::test]
async fn templates_over_the_limits_are_refused() {
    let server = server().await;
    let grow = |n: u32| {
        format!(
            "{{% set n = namespace(x='ab') %}}{{% for i in range({n}) %}}{{% set n.x = n.x ~ n.x %}}{{% endfor %}}"
        )
    };
    let search = "{% for i in range(100000) %}{% set q = n.x|replace('b','c')|length %}{% endfor %}done";
    let templates = [
        format!("{}{{{{ n.x|length }}}}", grow(32)),
        "{{ range(100000)|join('x' * 100000) }}".to_owned(),
        "{{ '%1000000000d'|format(1) }}".to_owned(),
        format!("{}{search}", grow(21)),
    ];
    for (at, template) in templates.into_iter().enumerate() {
        let model = format!("hostile/template{at}");
        create(&server, &model, "tokenizer_config.json", |config| config["chat_template"] = json!(template))
            .await;
        let registry = server.registry();
        let (body, honest_body) = (chat(&model), chat("team/demo"));
        let (hostile, honest) = tokio::join!(
            registry.post_json("/api/chat", &body),
            registry.post_json("/api/chat", &honest_body),
        );
        let text = hostile.text();
        assert!(hostile.status == 400 && text.contains("LODE_TEXT_"), "{at}: {} {text}", hostile.status);
        honest.expect(200);
    }
}

#[tokio::test]
async fn tokenizers_over_the_limits_are_refused() {
    let server = server().await;
    let split = json!({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": false});
    let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let splits = json!({"type": "Sequence", "pretokenizers": vec![split; 50_000]});
    let doubles = json!({"type": "Sequence", "normalizers": vec![double; 40]});
    let prepends = json!({"type": "Sequence", "normalizers": vec![json!({"type": "Prepend", "prepend": "aaaaaaaaaa"}); 20_000]});
    for (at, (key, value)) in
        [("pre_tokenizer", splits), ("normalizer", doubles), ("normalizer", prepends)].into_iter().enumerate()
    {
        let model = format!("hostile/tokenizer{at}");
        create(&server, &model, "tokenizer.json", |tokenizer| tokenizer[key] = value).await;
        let hostile = server.registry().post_json("/api/chat", &chat(&model)).await;
        let text = hostile.text();
        // Many split expressions are slow, but may stay within the limits on a fast machine.
        let is_within = hostile.status == 200 && key == "pre_tokenizer";
        let is_refused = hostile.status == 400 && text.contains("LODE_TEXT_");
        assert!(is_within || is_refused, "{at}: {} {text}", hostile.status);
        server.registry().post_json("/api/chat", &chat("team/demo")).await.expect(200);
    }
}

#[tokio::test]
async fn an_endless_schema_fails_only_its_own_request() {
    let server = server().await;
    let chat_with_format = |schema: Value| {
        let mut body = chat("team/demo");
        body["format"] = schema;
        body["options"]["num_predict"] = json!(200);
        body
    };
    let endless = chat_with_format(json!({"type": "integer", "multipleOf": 999_983}));
    let object = json!({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["n"]});
    let honest = chat_with_format(object);
    let registry = server.registry();
    let (hostile, honest) =
        tokio::join!(registry.post_json("/api/chat", &endless), registry.post_json("/api/chat", &honest),);
    let text = hostile.text();
    assert!(hostile.status == 400 && text.contains("LODE_TEXT_"), "{} {text}", hostile.status);
    // Only properties in the schema are generated, so the generated text ends.
    let response = honest.expect(200).json();
    assert_eq!(response["done_reason"], "stop", "{response}");
    let content: Value = serde_json::from_str(response["message"]["content"].as_str().unwrap()).unwrap();
    assert_eq!(content.as_object().unwrap().keys().collect::<Vec<_>>(), ["n"]);
}

#[tokio::test]
async fn a_model_without_a_template_chats_with_the_plain_prompt() {
    let server = server().await;
    create(&server, "team/plain", "tokenizer_config.json", |config| {
        config.as_object_mut().unwrap().remove("chat_template");
    })
    .await;
    let mut body = chat("team/plain");
    body["messages"] =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Define water."}]);
    body["_debug_render_only"] = json!(true);
    let rendered = server.registry().post_json("/api/chat", &body).await.expect(200).json();
    assert!(rendered.to_string().contains("Define water."), "{rendered}");
    body["_debug_render_only"] = json!(false);
    let response = server.registry().post_json("/api/chat", &body).await.expect(200).json();
    assert!(response["prompt_eval_count"].as_u64() > Some(0), "{response}");
}
