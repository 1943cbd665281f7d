//! More real clients and private repositories: crane, regctl, containerd, and with `--long` helm. They differ in how
//! they ask for tokens: containerd sends the password in a form, regctl checks a login at once, crane does not.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lode_tests::access::{PASSWORD, add_user, start_closed};
use lode_tests::clients::find_program;
use lode_tests::command::{run_successfully, wait_for};
use lode_tests::server::{Folder, Options, Server};

/// A server with alice, who owns `alice/*`, bob, who may read it, and the public repository `alice/public`.
async fn serve() -> Server {
    let server = start_closed(Options::new()).await;
    let admin = server.lode();
    for name in ["alice", "bob"] {
        add_user(&admin, name).await;
    }
    admin.run(&["grant", "add", "bob", "read", "alice/*"]).await.expect_success();
    admin.run(&["visibility", "alice/public", "public"]).await.expect_success();
    server
}

/// A client with a home of its own, and the arguments of each of its commands.
struct Client {
    program: PathBuf,
    home: Folder,
    always: Vec<String>,
}

impl Client {
    fn find(test: &str, variable: &str, place: &str) -> Option<Client> {
        Some(Client {
            program: find_program(test, variable, &[place])?,
            home: Folder::new(),
            always: Vec::new(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let home = self.home.path();
        command.args(&self.always).args(args).current_dir(home);
        command.env("HOME", home).env("DOCKER_CONFIG", home.join("docker"));
        command
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> String {
        run_successfully(&mut self.command(args))
    }

    /// Runs a command that has to fail with this text.
    #[track_caller]
    fn run_refused(&self, args: &[&str], expected: &str) {
        let output = self.command(args).output().unwrap();
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success() && text.contains(expected), "{args:?}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn crane_signs_in() {
    let test = "other_clients::crane_signs_in";
    let Some(crane) = Client::find(test, "LODE_CRANE", "/usr/local/bin/crane") else { return };
    let server = serve().await;
    let host = server.registry().host().to_owned();
    let [image, public, copy, other, foreign] =
        ["alice/image", "alice/public", "alice/copy", "alice/other", "bob/image"]
            .map(|repository| format!("{host}/{repository}:v1"));
    fs::write(crane.path("file"), "content").unwrap();
    run_successfully(Command::new("tar").args(["cf", "layer.tar", "file"]).current_dir(crane.home.path()));
    let login = |name: &str, password: &str| crane.run(&["auth", "login", &host, "-u", name, "-p", password]);
    let push = ["append", "--insecure", "-f", "layer.tar", "-t"];
    let push = |name| [&push[..], &[name]].concat();
    let pull = |name| ["manifest", "--insecure", name];
    // 1. crane saves what it is told, and learns that it is wrong when it uses it.
    login("alice", "wrong");
    crane.run_refused(&pull(&image), "UNAUTHORIZED: wrong user name or password");
    // 2. The owner.
    login("alice", PASSWORD);
    crane.run(&push(&image));
    crane.run(&push(&public));
    crane.run(&["copy", "--insecure", &image, &copy]);
    let listed = crane.run(&["catalog", "--insecure", &host]);
    assert!(listed.contains("alice/image") && listed.contains("alice/copy"), "{listed}");
    crane.run(&["delete", "--insecure", &copy]);
    crane.run_refused(&push(&foreign), "NAME_UNKNOWN");
    // 3. A reader.
    login("bob", PASSWORD);
    crane.run(&pull(&image));
    crane.run_refused(&push(&other), "DENIED: not allowed");
    crane.run_refused(&["delete", "--insecure", &image], "DENIED: not allowed");
    // 4. Nobody.
    crane.run(&["auth", "logout", &host]);
    crane.run(&pull(&public));
    crane.run_refused(&pull(&image), "UNAUTHORIZED: authentication is required");
}

#[tokio::test(flavor = "multi_thread")]
async fn regctl_signs_in() {
    let test = "other_clients::regctl_signs_in";
    let Some(regctl) = Client::find(test, "LODE_REGCTL", "/usr/local/bin/regctl") else { return };
    let server = serve().await;
    let host = server.registry().host().to_owned();
    let [image, public, copy, other, foreign] =
        ["alice/image", "alice/public", "alice/copy", "alice/other", "bob/image"]
            .map(|repository| format!("{host}/{repository}:v1"));
    fs::write(regctl.path("file"), "content").unwrap();
    let push = ["artifact", "put", "--artifact-type", "application/x-test", "-f", "file"];
    let push = |name| [&push[..], &[name]].concat();
    let pull = |name| ["manifest", "get", name];
    regctl.run(&["registry", "set", "--tls", "disabled", &host]);
    // 1. regctl checks what it is told.
    regctl.run_refused(&["registry", "login", &host, "-u", "alice", "-p", "wrong"], "unauthorized");
    // 2. The owner.
    regctl.run(&["registry", "login", &host, "-u", "alice", "-p", PASSWORD]);
    regctl.run(&push(&image));
    regctl.run(&push(&public));
    regctl.run(&["image", "copy", &image, &copy]);
    assert_eq!(regctl.run(&["tag", "ls", &format!("{host}/alice/copy")]).trim(), "v1");
    regctl.run_refused(&push(&foreign), "NAME_UNKNOWN");
    // 3. A reader.
    regctl.run(&["registry", "login", &host, "-u", "bob", "-p", PASSWORD]);
    regctl.run(&pull(&image));
    regctl.run_refused(&push(&other), "not allowed");
    // 4. Nobody.
    regctl.run(&["registry", "logout", &host]);
    regctl.run(&pull(&public));
    regctl.run_refused(&pull(&image), "unauthorized");
}

/// A program that is killed at the end.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_signs_in() {
    let test = "other_clients::containerd_signs_in";
    let Some(mut ctr) = Client::find(test, "LODE_CTR", "/usr/bin/ctr") else { return };
    let Some(daemon) = find_program(test, "LODE_CONTAINERD", &["/usr/bin/containerd"]) else { return };
    let server = serve().await;
    let host = server.registry().host().to_owned();
    // 1. A daemon of its own.
    let mut command = Command::new(daemon);
    for (option, name) in [("--root", "root"), ("--state", "state"), ("--address", "socket")] {
        command.arg(option).arg(ctr.path(name));
    }
    let _daemon = Daemon(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    ctr.always = vec!["--address".to_owned(), ctr.path("socket").display().to_string()];
    wait_for("containerd responds", || async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        ctr.command(&["version"]).output().unwrap().status.success().then_some(())
    })
    .await;
    // 2. Wrong, right, and no credentials.
    let file = ctr.path("weights.bin");
    fs::write(&file, "weights").unwrap();
    for repository in ["alice/image", "alice/public"] {
        let push = ["push", file.to_str().unwrap(), &format!("{repository}:v1")];
        server.lode().run(&push).await.expect_success();
    }
    let (image, public) = (format!("{host}/alice/image:v1"), format!("{host}/alice/public:v1"));
    let (alice, bob) = (format!("alice:{PASSWORD}"), format!("bob:{PASSWORD}"));
    let fetch = ["content", "fetch", "--plain-http"];
    let fetch_as = |user, name| [&fetch[..], &["--user", user, name]].concat();
    ctr.run_refused(&fetch_as("alice:wrong", &image), "401 Unauthorized");
    ctr.run(&fetch_as(&alice, &image));
    ctr.run(&fetch_as(&bob, &image));
    ctr.run(&[&fetch[..], &[&public]].concat());
    ctr.run_refused(&[&fetch[..], &[&image]].concat(), "401 Unauthorized");
    // 3. The owner pushes, and a reader does not.
    let copy = format!("{host}/alice/copy:v1");
    let push_as = |user, to| ["images", "push", "--plain-http", "--user", user, to, &image].to_vec();
    ctr.run(&push_as(&alice, &copy));
    ctr.run_refused(&push_as(&bob, &copy.replace("v1", "v2")), "403 Forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_signs_in() {
    let test = "other_clients::helm_signs_in";
    // It takes minutes to build, so only the long form has it.
    if std::env::var_os("LODE_HELM").is_none() {
        return;
    }
    let Some(helm) = Client::find(test, "LODE_HELM", "/usr/local/bin/helm") else { return };
    let server = serve().await;
    let host = server.registry().host().to_owned();
    fs::create_dir_all(helm.path("chart/templates")).unwrap();
    fs::write(helm.path("chart/Chart.yaml"), "apiVersion: v2\nname: serving\nversion: 1.0.0\n").unwrap();
    helm.run(&["package", "chart"]);
    let login = ["registry", "login", &host, "--plain-http"];
    let login = |name, password| [&login[..], &["-u", name, "-p", password]].concat();
    helm.run_refused(&login("alice", "wrong"), "wrong user name or password");
    helm.run(&login("alice", PASSWORD));
    let (to, chart) = (format!("oci://{host}/alice"), format!("oci://{host}/alice/serving"));
    helm.run(&["push", "--plain-http", "serving-1.0.0.tgz", &to]);
    helm.run(&login("bob", PASSWORD));
    helm.run(&["pull", "--plain-http", &chart, "--version", "1.0.0"]);
    helm.run_refused(&["push", "--plain-http", "serving-1.0.0.tgz", &to], "not allowed");
    helm.run(&["registry", "logout", &host]);
    helm.run_refused(&["pull", "--plain-http", &chart, "--version", "1.0.0"], "401");
}
