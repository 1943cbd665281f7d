//! More real clients and private repositories: crane, regctl, containerd, and with `--long` helm. They differ in how
//! they ask for tokens: containerd sends the password in a form, regctl checks a login at once, crane does not.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lode_tests::access::{PASSWORD, make_public, start_team};
use lode_tests::clients::{Client, find_program};
use lode_tests::command::{run_successfully, wait_for};
use lode_tests::server::{Options, Server};

/// A team's server with the public repository `alice/public`.
async fn serve() -> Server {
    let server = start_team(Options::new()).await;
    make_public(&server, "alice/public").await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn crane_signs_in() {
    let test = "other_clients::crane_signs_in";
    let Some(crane) = find_program(test, "LODE_CRANE", &["/usr/local/bin/crane"]) else { return };
    let crane = Client::new(crane);
    let server = serve().await;
    let host = server.registry().host().to_owned();
    let [image, public, copy, other, foreign] =
        ["alice/image", "alice/public", "alice/copy", "alice/other", "bob/image"]
            .map(|repository| format!("{host}/{repository}:v1"));
    fs::write(crane.path("file"), "content").unwrap();
    run_successfully(Command::new("tar").args(["cf", "layer.tar", "file"]).current_dir(crane.path("")));
    let login = |name: &str, password: &str| crane.run(&["auth", "login", &host, "-u", name, "-p", password]);
    let push = ["append", "--insecure", "-f", "layer.tar", "-t"];
    let push = |name| [&push[..], &[name]].concat();
    let pull = |name| ["manifest", "--insecure", name];
    let fetching =
        |path: &str, why: &str| format!("Error: fetching manifest {image}: GET http://{host}/{path}: {why}");
    let pushing = |name: &str, repository: &str, why: &str| {
        format!("Error: pushing image {name}: POST http://{host}/v2/{repository}/blobs/uploads/: {why}")
    };
    // 1. crane saves what it is told, and learns that it is wrong when it uses it.
    login("alice", "wrong");
    let token = format!("token?scope=repository%3Aalice%2Fimage%3Apull&service={}", host.replace(':', "%3A"));
    let message = "UNAUTHORIZED: wrong user name or password";
    crane.run_refused(&pull(&image), &fetching(&token, message));
    // 2. The owner.
    login("alice", PASSWORD);
    crane.run(&push(&image));
    crane.run(&push(&public));
    crane.run(&["copy", "--insecure", &image, &copy]);
    let listed = crane.run(&["catalog", "--insecure", &host]);
    assert!(listed.contains("alice/image") && listed.contains("alice/copy"), "{listed}");
    crane.run(&["delete", "--insecure", &copy]);
    let message = "NAME_UNKNOWN: repository bob/image does not exist, or you may not write to it: it needs the role `write` on `bob/*`; map[name:bob/image]";
    crane.run_refused(&push(&foreign), &pushing(&foreign, "bob/image", message));
    // 3. A reader.
    login("bob", PASSWORD);
    crane.run(&pull(&image));
    crane.run_refused(
        &push(&other),
        &pushing(&other, "alice/other", "DENIED: not allowed: it needs the role `write` on `alice/other`"),
    );
    let message = format!(
        "Error: DELETE http://{host}/v2/alice/image/manifests/v1: DENIED: not allowed: it needs the role `maintain` on `alice/image`"
    );
    crane.run_refused(&["delete", "--insecure", &image], &message);
    // 4. Without credentials.
    crane.run(&["auth", "logout", &host]);
    crane.run(&pull(&public));
    let message = "UNAUTHORIZED: authentication is required";
    crane.run_refused(&pull(&image), &fetching("v2/alice/image/manifests/v1", message));
}

#[tokio::test(flavor = "multi_thread")]
async fn regctl_signs_in() {
    let test = "other_clients::regctl_signs_in";
    let Some(regctl) = find_program(test, "LODE_REGCTL", &["/usr/local/bin/regctl"]) else { return };
    let regctl = Client::new(regctl);
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
    let login = ["registry", "login", &host, "-u", "alice", "-p", "wrong"];
    regctl.run_refused(&login, &format!("failed to ping registry {host}: unauthorized"));
    // 2. The owner.
    regctl.run(&["registry", "login", &host, "-u", "alice", "-p", PASSWORD]);
    regctl.run(&push(&image));
    regctl.run(&push(&public));
    regctl.run(&["image", "copy", &image, &copy]);
    assert_eq!(regctl.run(&["tag", "ls", &format!("{host}/alice/copy")]).trim(), "v1");
    let pushing =
        |name: &str, why: &str| format!("failed to send blob post, ref {name}: request failed: {why}");
    let message = r#"not found [http 404]: {"errors":[{"code":"NAME_UNKNOWN","message":"repository bob/image does not exist, or you may not write to it: it needs the role `write` on `bob/*`","detail":{"name":"bob/image"}}]}"#;
    regctl.run_refused(&push(&foreign), &pushing(&foreign, message));
    // 3. A reader.
    regctl.run(&["registry", "login", &host, "-u", "bob", "-p", PASSWORD]);
    regctl.run(&pull(&image));
    let message = r#"unauthorized [http 403]: {"errors":[{"code":"DENIED","message":"not allowed: it needs the role `write` on `alice/other`"}]}"#;
    regctl.run_refused(&push(&other), &pushing(&other, message));
    // 4. Without credentials.
    regctl.run(&["registry", "logout", &host]);
    regctl.run(&pull(&public));
    regctl.run_refused(&pull(&image), &format!("failed to get manifest {image}: unauthorized"));
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
    let Some(ctr) = find_program(test, "LODE_CTR", &["/usr/bin/ctr"]) else { return };
    let ctr = Client::new(ctr);
    let Some(daemon) = find_program(test, "LODE_CONTAINERD", &["/usr/bin/containerd"]) else { return };
    let server = serve().await;
    let host = server.registry().host().to_owned();
    // 1. A daemon of its own.
    let mut command = Command::new(daemon);
    for (option, name) in [("--root", "root"), ("--state", "state"), ("--address", "socket")] {
        command.arg(option).arg(ctr.path(name));
    }
    let _daemon = Daemon(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let socket = ctr.path("socket").display().to_string();
    let ctr = ctr.arg("--address").arg(socket);
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
    let unresolved = format!("ctr: failed to resolve reference {image:?}:");
    let cause = "failed to authorize: failed to fetch oauth token: unexpected status: 401 Unauthorized";
    ctr.run_refused(&fetch_as("alice:wrong", &image), &format!("{unresolved} {cause}"));
    ctr.run(&fetch_as(&alice, &image));
    ctr.run(&fetch_as(&bob, &image));
    ctr.run(&[&fetch[..], &[&public]].concat());
    let cause = format!("pulling from host {host} failed with status code [manifests v1]: 401 Unauthorized");
    ctr.run_refused(&[&fetch[..], &[&image]].concat(), &format!("{unresolved} {cause}"));
    // 3. The owner pushes, and a reader does not.
    let copy = format!("{host}/alice/copy:v1");
    let push_as = |user, to| ["images", "push", "--plain-http", "--user", user, to, &image].to_vec();
    ctr.run(&push_as(&alice, &copy));
    let message = "ctr: unexpected status: 403 Forbidden";
    ctr.run_refused(&push_as(&bob, &copy.replace("copy", "other")), message);
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_signs_in() {
    let test = "other_clients::helm_signs_in";
    // It takes minutes to build, so only the long form has it.
    if std::env::var_os("LODE_HELM").is_none() {
        return;
    }
    let Some(helm) = find_program(test, "LODE_HELM", &["/usr/local/bin/helm"]) else { return };
    let helm = Client::new(helm);
    let server = serve().await;
    let host = server.registry().host().to_owned();
    fs::create_dir_all(helm.path("chart/templates")).unwrap();
    fs::write(helm.path("chart/Chart.yaml"), "apiVersion: v2\nname: serving\nversion: 1.0.0\n").unwrap();
    for version in ["1.0.0", "2.0.0"] {
        helm.run(&["package", "chart", "--version", version]);
    }
    let login = ["registry", "login", &host, "--plain-http"];
    let login = |name, password| [&login[..], &["-u", name, "-p", password]].concat();
    let [alice, carol] = ["alice", "carol"].map(|namespace| format!("oci://{host}/{namespace}"));
    let push = |file, to| ["push", "--plain-http", file, to];
    let (chart, v2) = (format!("{alice}/serving"), format!("http://{host}/v2"));
    let pull = ["pull", "--plain-http", &chart, "--version", "1.0.0"];
    let failed = |step: &str, side: &str, request: &str, status: &str| {
        format!("Error: failed to perform {step:?} on {side}: {request}: response status code {status}")
    };
    // 1. Wrong credentials.
    let token = format!("GET \"http://{host}/token?service={}\"", host.replace(':', "%3A"));
    let cause = format!("{token}: response status code 401: unauthorized: wrong user name or password");
    let message = format!("Error: authenticating to \"{host}\": GET \"{v2}/\": {cause}");
    helm.run_refused(&login("alice", "wrong"), &message);
    // 2. The owner.
    helm.run(&login("alice", PASSWORD));
    helm.run(&push("serving-1.0.0.tgz", &alice));
    // 3. A reader.
    helm.run(&login("bob", PASSWORD));
    helm.run(&pull);
    let unknown = "404: name unknown: repository carol/serving does not exist, or you may not write to it: it needs the role `write` on `carol/*`: map[name:carol/serving]";
    for (to, namespace, status) in [
        (&alice, "alice", "403: denied: not allowed: it needs the role `write` on `alice/serving`"),
        (&carol, "carol", unknown),
    ] {
        let post = format!("POST \"{v2}/{namespace}/serving/blobs/uploads/\"");
        helm.run_refused(&push("serving-2.0.0.tgz", to), &failed("Push", "destination", &post, status));
    }
    // 4. Without credentials: a public repository only.
    helm.run(&["registry", "logout", &host]);
    fs::remove_file(helm.path("serving-1.0.0.tgz")).unwrap();
    let get = format!("GET \"{v2}/alice/serving/manifests/1.0.0\"");
    let unauthorized = "401: unauthorized: authentication is required";
    helm.run_refused(&pull, &failed("FetchReference", "source", &get, unauthorized));
    make_public(&server, "alice/serving").await;
    helm.run(&pull);
    assert!(helm.path("serving-1.0.0.tgz").is_file());
    assert!(helm.run(&["show", "chart", "--plain-http", &chart]).contains("name: serving"));
    let post = format!("POST \"{v2}/alice/serving/blobs/uploads/\"");
    helm.run_refused(&push("serving-2.0.0.tgz", &alice), &failed("Push", "destination", &post, unauthorized));
}
