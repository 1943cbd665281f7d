//! Real clients and private repositories: right and wrong credentials, accounts that may only read, public
//! repositories, and the messages that people see.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lode_tests::access::{PASSWORD, add_user, create_token, start_closed};
use lode_tests::browser::{Browser, between};
use lode_tests::clients::{self, Docker, Ollama};
use lode_tests::command::run_successfully;
use lode_tests::server::{Options, Server};

use crate::ollama::tiny_gguf;
use crate::python::script;

/// A server with alice, who owns `alice/*`, and bob, who may read it.
async fn serve() -> Server {
    let server = start_closed(Options::new()).await;
    let admin = server.lode();
    for name in ["alice", "bob"] {
        add_user(&admin, name).await;
    }
    admin.run(&["grant", "add", "bob", "read", "alice/*"]).await.expect_success();
    server
}

/// Runs a command that has to fail; returns its output.
#[track_caller]
fn run_refused(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success(), "{command:?} succeeded: {text}");
    text
}

async fn make_public(server: &Server, repository: &str) {
    server.lode().run(&["visibility", repository, "public"]).await.expect_success();
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_signs_in() {
    let server = serve().await;
    let scratch = server.folder().path().to_owned();
    let Some(docker) = Docker::start("private_clients::docker_signs_in", &scratch) else { return };
    let host = server.registry().host().to_owned();
    let login = |name: &str, password: &str| {
        let mut command = docker.command(&["login", &host, "-u", name, "--password-stdin"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(password.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let context = scratch.join("context");
    fs::create_dir_all(&context).unwrap();
    fs::write(context.join("file"), b"content").unwrap();
    fs::write(context.join("Dockerfile"), "FROM scratch\nCOPY file /file\n").unwrap();
    let image = format!("{host}/alice/image:v1");
    run_successfully(&mut docker.command(&["build", "-q", "-t", &image, context.to_str().unwrap()]));
    // 1. Without credentials, and with wrong ones.
    let refused = run_refused(&mut docker.command(&["push", &image]));
    assert!(refused.contains("authentication") || refused.contains("unauthorized"), "{refused}");
    let (is_in, message) = login("alice", "wrong");
    assert!(!is_in && message.contains("wrong user name or password"), "{message}");
    // 2. The owner pushes and pulls; a token takes the place of the password.
    assert!(login("alice", PASSWORD).0);
    run_successfully(&mut docker.command(&["push", &image]));
    run_successfully(&mut docker.command(&["image", "rm", &image]));
    run_successfully(&mut docker.command(&["pull", &image]));
    run_successfully(&mut docker.command(&["logout", &host]));
    let refused = run_refused(&mut docker.command(&["pull", &image]));
    assert!(refused.contains("authentication is required") || refused.contains("unauthorized"), "{refused}");
    // 3. A reader pulls, and is told that it may not push.
    assert!(login("bob", PASSWORD).0);
    run_successfully(&mut docker.command(&["pull", &image]));
    let refused = run_refused(&mut docker.command(&["push", &image.replace("v1", "v2")]));
    assert!(refused.contains("does not exist") || refused.contains("An image does not exist"), "{refused}");
    run_successfully(&mut docker.command(&["tag", &image, &image.replace("v1", "v2")]));
    let refused = run_refused(&mut docker.command(&["push", &image.replace("v1", "v2")]));
    assert!(refused.contains("denied") && refused.contains("not allowed"), "{refused}");
    run_successfully(&mut docker.command(&["logout", &host]));
    // 4. A public repository needs no credentials.
    make_public(&server, "alice/image").await;
    run_successfully(&mut docker.command(&["pull", &image]));
}

#[tokio::test(flavor = "multi_thread")]
async fn skopeo_signs_in() {
    let Some(program) = clients::skopeo("private_clients::skopeo_signs_in") else { return };
    let server = serve().await;
    let scratch = server.folder().path().to_owned();
    let source = scratch.join("source");
    crate::skopeo::layout(&source, 2, 100_000);
    let (from, there) =
        (format!("oci:{}:v1", source.display()), format!("docker://{}/alice/image:v1", server.address));
    let run = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--insecure-policy").args(args).env("HOME", &scratch).env("XDG_RUNTIME_DIR", &scratch);
        command.env("REGISTRY_AUTH_FILE", scratch.join("no-login.json"));
        command
    };
    let credentials = |name: &str| format!("{name}:{PASSWORD}");
    let push = |name: &str, to: &str| {
        run(&["copy", "--dest-tls-verify=false", "--dest-creds", &credentials(name), &from, to])
    };
    let refused = run_refused(&mut run(&["copy", "--dest-tls-verify=false", &from, &there]));
    assert!(refused.contains("authentication is required") || refused.contains("unauthorized"), "{refused}");
    run_successfully(&mut push("alice", &there));
    let inspect = |more: &[&str]| run(&[&["inspect", "--tls-verify=false", &there], more].concat());
    let refused = run_refused(&mut inspect(&[]));
    assert!(refused.contains("authentication is required") || refused.contains("unauthorized"), "{refused}");
    run_successfully(&mut inspect(&["--creds", &credentials("bob")]));
    let refused = run_refused(&mut push("bob", &there.replace("v1", "v2")));
    assert!(refused.contains("denied") || refused.contains("not allowed"), "{refused}");
    make_public(&server, "alice/image").await;
    run_successfully(&mut inspect(&[]));
}

#[tokio::test(flavor = "multi_thread")]
async fn oras_signs_in() {
    let Some(program) = clients::oras("private_clients::oras_signs_in") else { return };
    let server = serve().await;
    let scratch = server.folder().path().to_owned();
    fs::write(scratch.join("file.bin"), [7; 100_000]).unwrap();
    let name = format!("{}/alice/files:v1", server.address);
    let run = |args: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(args)
            .current_dir(&scratch)
            .env("HOME", &scratch)
            .env("DOCKER_CONFIG", scratch.join("docker"));
        command
    };
    let push = ["push", "--plain-http", &name, "file.bin"];
    let refused = run_refused(&mut run(&push));
    assert!(refused.contains("401: Unauthorized"), "{refused}");
    let login = |user: &str, password: &str| {
        run(&["login", "--plain-http", &server.address.to_string(), "-u", user, "-p", password])
    };
    run_refused(&mut login("alice", "wrong"));
    run_successfully(&mut login("alice", PASSWORD));
    run_successfully(&mut run(&push));
    run_successfully(&mut run(&[
        "copy",
        "--from-plain-http",
        "--to-plain-http",
        &name,
        &name.replace("files", "copy"),
    ]));
    run_successfully(&mut login("bob", PASSWORD));
    run_successfully(&mut run(&["pull", "--plain-http", "-o", "back", &name]));
    let refused = run_refused(&mut run(&["push", "--plain-http", &name.replace("v1", "v2"), "file.bin"]));
    assert!(refused.contains("not allowed"), "{refused}");
    run_successfully(&mut run(&["logout", &server.address.to_string()]));
    run_refused(&mut run(&["pull", "--plain-http", "-o", "none", &name]));
    make_public(&server, "alice/files").await;
    run_successfully(&mut run(&["pull", "--plain-http", "-o", "public", &name]));
}

#[tokio::test(flavor = "multi_thread")]
async fn cosign_signs_in() {
    let Some(program) = clients::cosign("private_clients::cosign_signs_in") else { return };
    let server = serve().await;
    let scratch = server.folder().path().to_owned();
    fs::write(scratch.join("file.bin"), b"content").unwrap();
    server.lode().run(&["push", "file.bin", "alice/signed:v1"]).await.expect_success();
    let image = format!("{}/alice/signed:v1", server.address);
    let run = |args: &[&str]| {
        let mut command = Command::new(&program);
        command.args(args).current_dir(&scratch).env("HOME", &scratch).env("COSIGN_PASSWORD", "");
        command.env("DOCKER_CONFIG", scratch.join("docker"));
        command
    };
    run_successfully(&mut run(&["generate-key-pair"]));
    let sign = |user: &str| {
        let credentials = [format!("--registry-username={user}"), format!("--registry-password={PASSWORD}")];
        let mut command =
            run(&["sign", "--key", "cosign.key", "--allow-insecure-registry", "--allow-http-registry"]);
        command
            .args(["--tlog-upload=false", "--use-signing-config=false", "-y"])
            .args(credentials)
            .arg(&image);
        command
    };
    run_refused(&mut sign("bob"));
    run_successfully(&mut sign("alice"));
}

#[tokio::test(flavor = "multi_thread")]
async fn ollama_enrols_its_key() {
    let server = serve().await;
    let scratch = server.folder().path().to_owned();
    let Some(ollama) = Ollama::start("private_clients::ollama_enrols_its_key", &scratch) else { return };
    fs::write(scratch.join("tiny.gguf"), tiny_gguf()).unwrap();
    fs::write(scratch.join("Modelfile"), "FROM ./tiny.gguf\n").unwrap();
    let name = format!("{}/alice/tiny:v1", server.address);
    let modelfile = scratch.join("Modelfile");
    run_successfully(&mut ollama.command(&["create", &name, "-f", modelfile.to_str().unwrap()]));
    // 1. An unknown key: ollama prints the page to open.
    let refused = run_refused(&mut ollama.command(&["push", "--insecure", &name]));
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
    run_refused(&mut ollama.command(&["pull", "--insecure", &name]));
    make_public(&server, "alice/tiny").await;
    run_successfully(&mut ollama.command(&["pull", "--insecure", &name]));
    // 5. The key can be pasted, too.
    let public = scratch.join("ollama/.ollama/id_ed25519.pub");
    server.lode().run(&["key", "add", public.to_str().unwrap(), "--name", "pasted"]).await.expect_success();
}

#[tokio::test(flavor = "multi_thread")]
async fn python_libraries_sign_in() {
    let Some(python) = clients::python("private_clients::python_libraries_sign_in") else { return };
    let server = serve().await;
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
