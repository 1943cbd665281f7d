//! Single sign-on with a real OpenID Connect provider, the npm package oidc-provider, in a real browser.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lode_tests::access::{PASSWORD, log_in};
use lode_tests::clients::{find_program, node_packages, python};
use lode_tests::command::wait_for;
use lode_tests::server::{Folder, Options, Server, lode_command};

use crate::python::script;

const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A program of `tests/clients/node` that serves on a port, until it is dropped.
pub(crate) struct NodeServer {
    process: Child,
    /// The program ends when it writes to a closed pipe.
    _output: BufReader<ChildStdout>,
    pub(crate) url: String,
}

impl NodeServer {
    pub(crate) fn start(packages: &Path, script: &str, args: &[&str]) -> NodeServer {
        let mut command = Command::new("node");
        command.arg(packages.join(script)).args(args).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("node");
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let mut line = String::new();
            let read = output.read_line(&mut line);
            sender.send(read.map(|_| (line, output)))
        });
        let (line, output) = receiver.recv_timeout(START_TIMEOUT).expect("no line in time").unwrap();
        let url = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
        NodeServer { process, _output: output, url }
    }

    fn port(&self) -> String {
        self.url.rsplit(':').next().unwrap_or_default().to_owned()
    }
}

impl Drop for NodeServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A person in front of a browser.
struct Person {
    python: PathBuf,
    axe: PathBuf,
    shots: PathBuf,
    url: String,
}

impl Person {
    /// Opens a page, signs in there, and presses buttons and links; returns the text of the last page.
    async fn sign_in(&self, page: &str, name: &str, goal: &str, steps: &[&str]) -> Result<String, String> {
        let mut command = Command::new(&self.python);
        command.arg(script("single_sign_on.py")).args([&self.url, page, name, goal]).args(steps);
        command.env("LODE_AXE", &self.axe).env("LODE_SCREENSHOTS", &self.shots).env("HOME", &self.shots);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

/// A server with a provider, at a port that both know, and with another one that never responds.
async fn start(packages: &Path, groups: &Path) -> (Server, NodeServer) {
    let folder = Folder::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}");
    let provider = NodeServer::start(packages, "provider.mjs", &["0", &url, groups.to_str().unwrap()]);
    let config = folder.path().join("lode.toml");
    let text = format!(
        r#"
        [[oidc]]
        name = "corp"
        title = "Corporate login"
        issuer = "{}"
        client_id = "lode"
        client_secret = "secret of the provider"
        groups_claim = "groups"
        admin_group = "operators"

        [[oidc]]
        name = "lab"
        title = "Laboratory login"
        issuer = "http://127.0.0.1:1"
        client_id = "lode"
        "#,
        provider.url
    );
    std::fs::write(&config, text).unwrap();
    let options = Options::new()
        .listen(format!("127.0.0.1:{port}"))
        .arg("--config")
        .arg(config.to_str().unwrap())
        .env("LODE_ADMIN_PASSWORD", PASSWORD);
    let server = folder.start(options).await;
    log_in(&server.lode(), "admin").await;
    (server, provider)
}

#[tokio::test(flavor = "multi_thread")]
async fn people_sign_in_at_their_provider() {
    let test = "single_sign_on::people_sign_in_at_their_provider";
    let (Some(python), Some(packages)) = (python(test), node_packages(test)) else { return };
    if find_program(test, "LODE_CHROMEDRIVER", &["/usr/bin/chromedriver"]).is_none() {
        return;
    }
    let scratch = Folder::new();
    let groups = scratch.path().join("groups.json");
    std::fs::write(&groups, r#"["research"]"#).unwrap();
    let (server, provider) = start(&packages, &groups).await;
    let shots = std::env::var_os("LODE_SCREENSHOTS").map_or_else(|| scratch.path().to_owned(), Into::into);
    let axe = packages.join("node_modules/axe-core/axe.min.js");
    let person = Person { python, axe, shots, url: server.url() };
    let admin = server.lode();
    admin.run(&["group", "add", "ml", "--provider", "corp", "--claim", "research"]).await.expect_success();
    // 1. The first sign-in creates the account, a member of the provider's group.
    person.sign_in("/login", "alice", "Single sign-on", &[]).await.unwrap();
    let listed = admin.run(&["group", "list"]).await.expect_success();
    assert!(listed.stdout.contains("ml     corp      alice"), "{}", listed.stdout);
    // 2. A program on another device signs in the same way.
    let home = scratch.path().join("alice");
    std::fs::create_dir_all(&home).unwrap();
    let mut login = lode_command(&home);
    login.env("LODE_HOST", server.url()).arg("login").stderr(Stdio::piped());
    let mut login = login.spawn().unwrap();
    let mut lines = BufReader::new(login.stderr.take().unwrap()).lines();
    let page = lines
        .find_map(|line| Some(line.ok()?.split_once("/device?")?.1.to_owned()))
        .expect("the address of a page");
    let allowed =
        person.sign_in(&format!("/device?{page}"), "alice", "A program wants to sign in", &["Allow"]).await;
    assert!(allowed.unwrap().contains("The program is signed in"));
    assert!(login.wait().unwrap().success());
    // 3. The provider takes the group away, and makes her an administrator.
    std::fs::write(&groups, r#"["operators"]"#).unwrap();
    person.sign_in("/login", "alice", "Server role: admin", &[]).await.unwrap();
    let listed = admin.run(&["group", "list"]).await.expect_success();
    assert!(!listed.stdout.contains("alice"), "{}", listed.stdout);
    // 4. Signing out, here and there.
    let steps = ["Sign out", "Sign out of Corporate login", "Yes, sign me out"];
    let text = person.sign_in("/login", "alice", "Single sign-on", &steps).await.unwrap();
    assert!(text.contains("Sign in with Corporate login"), "{text}");
    // 5. The provider starts again with new keys.
    let (port, url) = (provider.port(), server.url());
    drop(provider);
    let provider = NodeServer::start(&packages, "provider.mjs", &[&port, &url, groups.to_str().unwrap()]);
    let began = Instant::now();
    wait_for("a sign-in works with the new keys", || async {
        person.sign_in("/login", "alice", "Single sign-on", &[]).await.ok()
    })
    .await;
    lode_tests::report::figure("sign-in after a rotation of keys, s", &began.elapsed().as_secs().to_string());
    // 6. Providers are down: the page says so, and passwords and tokens still work.
    drop(provider);
    let registry = server.registry();
    let failed = registry.get("/login/lab").await.expect(503).text();
    assert!(failed.contains("Laboratory login") && failed.contains("password"), "{failed}");
    registry.get("/login/corp/callback?code=x&state=y").await.expect(400);
    registry.get("/login").await.expect(200);
    admin.run(&["user", "list"]).await.expect_success();
    // 7. A disabled account loses its sign-in at once.
    let alice = server.lode().env("HOME", home.to_str().unwrap());
    let alice = alice.env("XDG_CONFIG_HOME", home.join(".config").to_str().unwrap());
    alice.run(&["token", "list"]).await.expect_success();
    admin.run(&["user", "set", "alice", "--disable"]).await.expect_success();
    alice.run(&["token", "list"]).await.expect_failure(&["requires a login"]);
}
