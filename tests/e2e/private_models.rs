//! Private models with the clients that run them: ollama, OpenAI's, ollama's and Hugging Face's Python libraries. An
//! owner, a reader, a stranger, wrong credentials and none, and the messages that people see.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lode_tests::access::{PASSWORD, add_user, create_token, make_public, start_team};
use lode_tests::browser::{Browser, between};
use lode_tests::checkpoint::demo;
use lode_tests::clients::{self, Ollama};
use lode_tests::command::{run_refused, run_successfully, run_to_failure};
use lode_tests::server::{Options, Server};

use crate::ollama::tiny_gguf;
use crate::python::script;

#[tokio::test(flavor = "multi_thread")]
async fn ollama_enrols_its_key() {
    let server = start_team(Options::new()).await;
    let scratch = server.folder().path().to_owned();
    let Some(ollama) = Ollama::start("private_models::ollama_enrols_its_key", &scratch) else { return };
    fs::write(scratch.join("tiny.gguf"), tiny_gguf()).unwrap();
    fs::write(scratch.join("Modelfile"), "FROM ./tiny.gguf\n").unwrap();
    let name = format!("{}/alice/tiny:v1", server.address);
    let modelfile = scratch.join("Modelfile");
    run_successfully(&mut ollama.command(&["create", &name, "-f", modelfile.to_str().unwrap()]));
    // 1. An unknown key: ollama prints the page to open.
    let refused = run_to_failure(&mut ollama.command(&["push", "--insecure", &name]));
    assert!(refused.contains("this key is not enrolled here; open "), "{refused}");
    let url = between(&refused, "not enrolled here; open ", " ").to_owned();
    let page = url.strip_prefix(&server.url()).unwrap();
    // 2. `ollama signin` at this server prints the same page.
    let signin = ollama
        .command(&["signin"])
        .env("OLLAMA_HOST", server.url())
        .env("OLLAMA_AUTH", "1")
        .output()
        .unwrap();
    let printed =
        format!("{}{}", String::from_utf8_lossy(&signin.stdout), String::from_utf8_lossy(&signin.stderr));
    assert!(printed.contains(page), "{printed}");
    // 3. A person adds the key, and the same commands work.
    let browser = Browser::sign_in(server.registry(), "alice", PASSWORD).await;
    let shown = browser.get(page).await.expect(200).text();
    let key = between(&shown, "name=\"key\" value=\"", "\"");
    browser.post("/connect", &[("key", key), ("name", "laptop")]).await.expect(200);
    run_successfully(&mut ollama.command(&["push", "--insecure", &name]));
    run_successfully(&mut ollama.command(&["rm", &name]));
    run_successfully(&mut ollama.command(&["pull", "--insecure", &name]));
    let asked = |args: &[&str]| {
        let mut command = ollama.command(args);
        command.env("OLLAMA_HOST", server.url()).env("OLLAMA_AUTH", "1");
        command
    };
    assert!(run_successfully(&mut asked(&["list"])).contains("alice/tiny:v1"));
    // 4. A removed key is out at once; public models need none.
    let listed =
        server.lode().run(&["key", "list", "--account", "alice", "--json"]).await.expect_success().json();
    let id = listed["keys"][0]["id"].as_str().unwrap();
    server.lode().run(&["key", "rm", id, "--account", "alice"]).await.expect_success();
    run_successfully(&mut ollama.command(&["rm", &name]));
    let refused = run_to_failure(&mut ollama.command(&["pull", "--insecure", &name]));
    assert!(refused.contains("this key is not enrolled here; open "), "{refused}");
    make_public(&server, "alice/tiny").await;
    run_successfully(&mut ollama.command(&["pull", "--insecure", &name]));
    // 5. The key can be pasted, too, here for a reader, who may pull and not push.
    let public = scratch.join("ollama/.ollama/id_ed25519.pub");
    let add = ["key", "add", public.to_str().unwrap(), "--name", "pasted", "--account", "bob"];
    server.lode().run(&add).await.expect_success();
    run_successfully(&mut ollama.command(&["pull", "--insecure", &name]));
    for (other, repository) in
        [(name.replace("v1", "v2"), "alice/tiny"), (name.replace("tiny", "new"), "alice/new")]
    {
        run_successfully(&mut ollama.command(&["cp", &name, &other]));
        let needs = format!("it needs the role `write` on `{repository}`");
        let denied =
            format!(r#"Error: 403: {{"errors":[{{"code":"DENIED","message":"not allowed: {needs}"}}]}}"#);
        run_refused(&mut ollama.command(&["push", "--insecure", &other]), &denied);
    }
    // 6. What a reader may not see looks missing.
    let foreign = name.replace("alice", "carol");
    run_successfully(&mut ollama.command(&["cp", &name, &foreign]));
    run_refused(&mut ollama.command(&["push", "--insecure", &foreign]), "Error: file does not exist");
    let pull = ["pull", "--insecure", &foreign];
    run_refused(&mut ollama.command(&pull), "Error: pull model manifest: file does not exist");
}

#[tokio::test(flavor = "multi_thread")]
async fn python_libraries_run_models() {
    let Some(python) = clients::python("private_models::python_libraries_run_models") else { return };
    let server = start_team(Options::new().worker()).await;
    let admin = server.lode();
    add_user(&admin, "carol").await;
    for model in ["alice/private", "alice/public"] {
        admin.create(model, &demo(), &[]).await.expect_success();
    }
    make_public(&server, "alice/public").await;
    let reader = create_token(&admin, &["python", "--account", "bob", "--access", "infer"]).await;
    let stranger = create_token(&admin, &["python", "--account", "carol"]).await;
    let output = Command::new(&python)
        .arg(script("private_models.py"))
        .args([&server.url(), &reader, &stranger])
        .env("HOME", server.folder().path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn hugging_face_clients_sign_in() {
    let Some(python) = clients::python("private_models::hugging_face_clients_sign_in") else { return };
    let server = start_team(Options::new()).await;
    let token = create_token(&server.lode(), &["python"]).await;
    let output = Command::new(&python)
        .arg(script("sign_in.py"))
        .args([&server.url(), &token])
        .env("HOME", server.folder().path())
        .env("HF_HOME", server.folder().path().join("hf"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    hf_logs_in(&python, &server).await;
}

/// `hf auth login`, with a browser.
async fn hf_logs_in(python: &Path, server: &Server) {
    let hf: PathBuf = python.with_file_name("hf");
    let run = |args: &[&str]| {
        let mut command = Command::new(&hf);
        command.args(args).env("HF_ENDPOINT", format!("{}/hf", server.url()));
        command.env("HOME", server.folder().path()).env("HF_HOME", server.folder().path().join("hf-cli"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let mut login = run(&["auth", "login", "--format", "agent"]).spawn().unwrap();
    let mut lines = BufReader::new(login.stdout.take().unwrap()).lines();
    let line = lines.find_map(|line| line.ok().filter(|line| line.contains("user_code="))).unwrap();
    let code = between(&line, "user_code=", " ").to_owned();
    let browser = Browser::sign_in(server.registry(), "alice", PASSWORD).await;
    browser.post("/device", &[("user_code", &code), ("decision", "allow")]).await.expect(200);
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(login.wait().unwrap().success() && rest.concat().contains("logged in as alice"), "{rest:?}");
    let shown = run_successfully(&mut run(&["auth", "whoami", "--format", "json"]));
    assert!(shown.contains("alice"), "{shown}");
}
