//! Real clients and private repositories: right and wrong credentials, accounts that may only read, public
//! repositories, and the messages that people see.

use std::fs;
use std::io::Write;
use std::process::Stdio;

use lode_tests::access::{PASSWORD, create_token, make_public, start_team};
use lode_tests::clients::{self, Client, Docker};
use lode_tests::command::{run_refused, run_successfully, run_to_failure};
use lode_tests::server::Options;

#[tokio::test(flavor = "multi_thread")]
async fn docker_signs_in() {
    let server = start_team(Options::new()).await;
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
    let run = |args: &[&str]| run_successfully(&mut docker.command(args));
    let refused = |args: &[&str], line: &str| run_refused(&mut docker.command(args), line);
    let context = scratch.join("context");
    fs::create_dir_all(&context).unwrap();
    fs::write(context.join("file"), b"content").unwrap();
    fs::write(context.join("Dockerfile"), "FROM scratch\nCOPY file /file\n").unwrap();
    let [image, other, foreign] =
        ["alice/image:v1", "alice/image:v2", "carol/image:v1"].map(|name| format!("{host}/{name}"));
    run(&["build", "-q", "-t", &image, context.to_str().unwrap()]);
    run(&["tag", &image, &other]);
    run(&["tag", &image, &foreign]);
    // 1. Without credentials, and with wrong ones.
    refused(&["push", &image], "unauthorized: authentication is required");
    let message = format!(
        "Error response from daemon: Get \"http://{host}/v2/\": unauthorized: wrong user name or password\n"
    );
    assert_eq!(login("alice", "wrong"), (false, message));
    // 2. The owner pushes and pulls.
    assert!(login("alice", PASSWORD).0);
    run(&["push", &image]);
    run(&["image", "rm", &image]);
    run(&["pull", &image]);
    run(&["logout", &host]);
    refused(&["pull", &image], "Error response from daemon: unauthorized: authentication is required");
    // 3. A reader pulls, and is told that it may not push.
    assert!(login("bob", PASSWORD).0);
    run(&["pull", &image]);
    refused(&["push", &other], "denied: not allowed: it needs the role `write` on `alice/image`");
    refused(
        &["push", &foreign],
        "name unknown: repository carol/image does not exist, or you may not write to it: it needs the role `write` on `carol/*`",
    );
    run(&["logout", &host]);
    // 4. A token takes the place of the password.
    let token = create_token(&server.lode(), &["docker", "--account", "alice"]).await;
    assert!(login("alice", &token).0);
    run(&["push", &other]);
    run(&["logout", &host]);
    // 5. A public repository needs no credentials.
    make_public(&server, "alice/image").await;
    run(&["pull", &image]);
}

#[tokio::test(flavor = "multi_thread")]
async fn skopeo_signs_in() {
    let Some(program) = clients::skopeo("private_clients::skopeo_signs_in") else { return };
    let skopeo = Client::new(program).arg("--insecure-policy");
    let server = start_team(Options::new()).await;
    let host = server.registry().host().to_owned();
    crate::skopeo::layout(&skopeo.path("source"), 2, 100_000);
    let image = format!("docker://{host}/alice/image:v1");
    let (alice, bob) = (format!("alice:{PASSWORD}"), format!("bob:{PASSWORD}"));
    let copy = |to| ["copy", "--dest-tls-verify=false", "oci:source:v1", to].to_vec();
    let copy_as = |user, to| [&copy(to)[..], &["--dest-creds", user]].concat();
    let inspect = ["inspect", "--tls-verify=false", &image];
    let inspect_as = |user| [&inspect[..], &["--creds", user]].concat();
    let fatal = |message: &str| format!("level=fatal msg={message:?}");
    let unreadable = format!("Error parsing image name \"{image}\": ");
    // 1. Without credentials, and with wrong ones. A missing image does not differ.
    let message =
        format!("reading manifest v1 in {host}/alice/image: unauthorized: authentication is required");
    skopeo.run_refused(&inspect, &fatal(&format!("{unreadable}{message}")));
    let refused = run_to_failure(&mut skopeo.command(&copy(&image)));
    assert!(refused.contains("unauthorized: authentication required"), "{refused}");
    skopeo.run(&copy_as(&alice, &image));
    skopeo.run_refused(&inspect, &fatal(&format!("{unreadable}{message}")));
    let message =
        "unable to retrieve auth token: invalid username/password: unauthorized: wrong user name or password";
    skopeo.run_refused(&inspect_as("alice:wrong"), &fatal(&format!("{unreadable}{message}")));
    let login = ["login", "--tls-verify=false", "-u", "alice", "-p", "wrong", &host];
    skopeo.run_refused(&login, &fatal(&format!("logging into \"{host}\": invalid username/password")));
    // 2. A reader.
    skopeo.run(&inspect_as(&bob));
    let other = image.replace("v1", "v2");
    let writing = format!("writing manifest: uploading manifest v2 to {host}/alice/image");
    skopeo.run_refused(
        &copy_as(&bob, &other),
        &fatal(&format!("{writing}: denied: not allowed: it needs the role `write` on `alice/image`")),
    );
    // 3. A public repository is read without credentials.
    make_public(&server, "alice/image").await;
    skopeo.run(&inspect);
    let message = "unauthorized: authentication is required";
    skopeo.run_refused(&copy(&other), &fatal(&format!("{writing}: {message}")));
}

#[tokio::test(flavor = "multi_thread")]
async fn oras_signs_in() {
    let Some(program) = clients::oras("private_clients::oras_signs_in") else { return };
    let oras = Client::new(program);
    let server = start_team(Options::new()).await;
    let host = server.registry().host().to_owned();
    fs::write(oras.path("file.bin"), [7; 100_000]).unwrap();
    let [files, copy, other, foreign] =
        ["alice/files:v1", "alice/copy:v1", "alice/files:v2", "carol/files:v1"]
            .map(|name| format!("{host}/{name}"));
    let push = |name| ["push", "--plain-http", name, "file.bin"];
    let pull = |to| ["pull", "--plain-http", "-o", to, &files];
    let login = |user, password| ["login", "--plain-http", &host, "-u", user, "-p", password];
    // 1. Without credentials, and with wrong ones. oras begins a push with HEAD, whose response has no message.
    let message = run_to_failure(&mut oras.command(&push(&files)));
    assert!(message.contains("response status code 401: Unauthorized"), "{message}");
    let failed = format!("Error response from registry: failed to validate the credentials for {host}: ");
    let cause = format!("GET \"http://{host}/v2/\": unauthorized: wrong user name or password");
    oras.run_refused(&login("alice", "wrong"), &format!("{failed}{cause}"));
    // 2. The owner.
    oras.run(&login("alice", PASSWORD));
    oras.run(&push(&files));
    oras.run(&["copy", "--from-plain-http", "--to-plain-http", &files, &copy]);
    // 3. A reader.
    oras.run(&login("bob", PASSWORD));
    oras.run(&pull("back"));
    oras.run_refused(
        &push(&other),
        "Error response from registry: denied: not allowed: it needs the role `write` on `alice/files`",
    );
    let message = "name unknown: repository carol/files does not exist, or you may not write to it: it needs the role `write` on `carol/*`: map[name:carol/files]";
    oras.run_refused(&push(&foreign), &format!("Error response from registry: {message}"));
    // 4. A public repository is read without credentials.
    oras.run(&["logout", &host]);
    let message =
        "Error response from registry: failed to resolve v1: unauthorized: authentication is required";
    oras.run_refused(&pull("none"), message);
    make_public(&server, "alice/files").await;
    oras.run(&pull("public"));
}

#[tokio::test(flavor = "multi_thread")]
async fn cosign_signs_in() {
    let Some(program) = clients::cosign("private_clients::cosign_signs_in") else { return };
    let cosign = Client::new(program).env("COSIGN_PASSWORD", "");
    let server = start_team(Options::new()).await;
    let host = server.registry().host().to_owned();
    let file = server.folder().path().join("file.bin");
    fs::write(&file, b"content").unwrap();
    server.lode().run(&["push", file.to_str().unwrap(), "alice/signed:v1"]).await.expect_success();
    let image = format!("{host}/alice/signed:v1");
    cosign.run(&["generate-key-pair"]);
    let plain = ["--allow-insecure-registry", "--allow-http-registry", &image];
    let sign = ["sign", "--key", "cosign.key", "--tlog-upload=false", "--use-signing-config=false", "-y"];
    let sign = [&sign[..], &plain].concat();
    let verify = ["verify", "--key", "cosign.pub", "--insecure-ignore-tlog=true"];
    let verify = [&verify[..], &plain].concat();
    let password = format!("--registry-password={PASSWORD}");
    let alice = ["--registry-username=alice", &password];
    let bob = ["--registry-username=bob", &password];
    let wrong = ["--registry-username=alice", "--registry-password=wrong"];
    let refused = |command: &[&str], credentials: &[&str], message: &str| {
        cosign.run_refused(&[command, credentials].concat(), &format!("Error: {message}"));
    };
    let manifest = format!("GET http://{host}/v2/alice/signed/manifests/v1");
    let service = host.replace(':', "%3A");
    let token = format!("GET http://{host}/token?scope=repository%3Aalice%2Fsigned%3Apull&service={service}");
    let (no_credentials, wrong_password) =
        ("UNAUTHORIZED: authentication is required", "UNAUTHORIZED: wrong user name or password");
    let reading = format!("signing [{image}]: accessing entity");
    let writing = format!(
        "signing [{image}]: recursively signing: signing digest: failed to upload layer: \
        POST http://{host}/v2/alice/signed/blobs/uploads/"
    );
    // 1. Without credentials, and with wrong ones.
    refused(&sign, &[], &format!("{reading}: {manifest}: {no_credentials}"));
    refused(&sign, &wrong, &format!("{reading}: {token}: {wrong_password}"));
    // 2. A reader may look for signatures, but not add one.
    refused(&verify, &bob, "no signatures found");
    refused(
        &sign,
        &bob,
        &format!("{writing}: DENIED: not allowed: it needs the role `write` on `alice/signed`"),
    );
    // 3. The owner signs, and a reader verifies.
    cosign.run(&[&sign[..], &alice].concat());
    cosign.run(&[&verify[..], &bob].concat());
    refused(&verify, &wrong, &format!("{token}: {wrong_password}"));
    refused(&verify, &[], &format!("{manifest}: {no_credentials}"));
    // 4. An image of a public repository is verified without credentials, but not signed.
    make_public(&server, "alice/signed").await;
    cosign.run(&verify);
    refused(&sign, &[], &format!("{writing}: {no_credentials}"));
}
