//! What people read when something is wrong: TLS, names, variables, addresses, credentials of storage, full disks.
//! Each test checks the whole text that helps, and not only that the command failed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use lode_tests::checkpoint::demo;
use lode_tests::clients::is_root;
use lode_tests::command::{run_to_end, wait_until};
use lode_tests::disk::SmallDisk;
use lode_tests::report::skip;
use lode_tests::server::{Folder, Options, Server, lode_command, output_file};

/// A certificate for localhost that signs itself, and its key: the paths of two files.
fn write_certificate(folder: &Path) -> [String; 2] {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    [cert, key].map(|path| path.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn tls_errors_say_what_to_do() {
    let folder = Folder::new();
    let [cert, key] = write_certificate(folder.path());
    let options = Options::new().arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key).without_waiting();
    let server = folder.start(options).await;
    let port = server.address.port();
    let lode = server.lode();
    let secure = format!("https://localhost:{port}");

    let unknown = lode.run(&["list", "--host", &secure]).await;
    unknown.expect_failure(&["invalid peer certificate", "--ca-file", "LODE_CA_FILE", "SSL_CERT_FILE"]);
    for trusted in [
        lode.run(&["list", "--host", &secure, "--ca-file", &cert]).await,
        server.lode().env("LODE_CA_FILE", &cert).run(&["list", "--host", &secure]).await,
        server.lode().env("SSL_CERT_FILE", &cert).run(&["list", "--host", &secure]).await,
        lode.run(&["login", &format!("localhost:{port}"), "--host", &secure, "--ca-file", &cert]).await,
    ] {
        assert!(!trusted.stderr.contains("certificate"), "{trusted:?}");
    }
    lode.run(&["list", "--host", &secure, "--ca-file", &cert]).await.expect_success();
    let wrong = lode.run(&["list", "--host", &format!("https://127.0.0.1:{port}"), "--ca-file", &cert]).await;
    wrong.expect_failure(&["certificate is not for `127.0.0.1"]);
    lode.run(&["list", "--ca-file", &key]).await.expect_failure(&[&key, "no certificate"]);
    lode.run(&["list", "--ca-file", "/nowhere/ca.pem"])
        .await
        .expect_failure(&["--ca-file", "/nowhere/ca.pem"]);

    // A worker trusts the same file.
    for (file, expected) in [(None, "invalid peer certificate"), (Some(&cert), "registered")] {
        let log = folder.path().join("worker.log");
        let (stdout, stderr) = output_file(&log);
        let mut command = lode_command(folder.path());
        command.args(["worker", "--registry", &secure, "--cache"]);
        command.arg(folder.path().join("cache"));
        command.args(file.iter().flat_map(|file| ["--ca-file", file.as_str()]));
        let mut worker = command.stdout(stdout).stderr(stderr).spawn().unwrap();
        wait_until(expected, || async { std::fs::read_to_string(&log).unwrap().contains(expected) }).await;
        worker.kill().unwrap();
        worker.wait().unwrap();
    }

    let plain = format!("http://localhost:{port}");
    let without_tls = lode.run(&["list", "--host", &plain]).await;
    without_tls.expect_failure(&["uses https", &format!("write {secure}")]);
    assert!(!without_tls.stderr.contains("trying again"), "{without_tls:?}");
    let other = Server::fresh().await;
    let secure = format!("https://localhost:{}", other.address.port());
    lode.run(&["list", "--host", &secure]).await.expect_failure(&[
        "does not use https",
        &format!("http://localhost:{}", other.address.port()),
        "--plain-http",
    ]);
}

#[tokio::test]
async fn a_missing_model_gets_similar_names() {
    let server = Server::fresh().await;
    let lode = server.lode();
    lode.create("team/mini", &demo(), &[]).await.expect_success();
    for name in ["team/mni", "mini", "team/mini:v1"] {
        lode.run(&["show", name]).await.expect_failure(&[name, "did you mean `team/mini`?"]);
    }
    let tag = lode.run(&["show", "team/mini:v1"]).await;
    tag.expect_failure(&["`lode list team/mini` shows its tags"]);
    let far = lode.run(&["show", "something-else"]).await;
    assert!(far.code == 1 && !far.stderr.contains("did you mean"), "{far:?}");
    assert!(!far.stderr.contains("shows its tags") && far.stderr.contains("`lode repo list`"), "{far:?}");
    let stopped = lode.run(&["stop", "team/mini"]).await.expect_success();
    assert_eq!(stopped.stderr, "team/mini:latest is not loaded\n");
    lode.run(&["stop", "team/mni"]).await.expect_failure(&["did you mean `team/mini`?"]);
    let modelfile = server.folder().path().join("Modelfile");
    for (base, expect) in
        [("team/mni", "did you mean `team/mini`?"), ("Team/mini", "did you mean `team/mini`?")]
    {
        std::fs::write(&modelfile, format!("FROM {base}\nSYSTEM x\n")).unwrap();
        for more in [&[][..], &["--quantize", "int8"]] {
            let create = [&["create", "team/new", "-f", modelfile.to_str().unwrap()], more].concat();
            lode.run(&create).await.expect_failure(&["FROM", base, expect]);
        }
    }
    // An open server needs no sign-in.
    let login = lode.run(&["login"]).await.expect_success();
    assert!(login.stderr.contains("has no accounts: no sign-in is needed"), "{}", login.stderr);
    for command in [&["token", "list"][..], &["token", "create", "ci"]] {
        lode.run(command)
            .await
            .expect_failure(&["has no accounts", "lode user add admin --server-role admin"]);
    }
    // The other order of words.
    let path = demo();
    let path = path.to_str().unwrap();
    let swapped = lode.run(&["create", path, "team/swapped"]).await.expect_success();
    assert!(swapped.stdout.contains("created team/swapped:latest"), "{}", swapped.stdout);
    let file = format!("{path}/config.json");
    lode.run(&["push", "team/files", &file]).await.expect_success();
    assert_eq!(
        lode.run(&["cat", "team/files", "config.json"]).await.expect_success().stdout.as_bytes(),
        std::fs::read(file).unwrap()
    );
    // Completion of names, as the script of a shell asks for it.
    let complete = |words: &'static [&str], host: String| {
        let mut command = lode_command(server.folder().path());
        command.arg("--").args(words).env("LODE_HOST", host).env("LODE_COMPLETE", "bash");
        command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string()).env("_CLAP_IFS", "\n");
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        run_to_end(command, Vec::new())
    };
    let found = complete(&["lode", "show", "team/m"], server.url()).await.expect_success();
    assert_eq!((found.stdout.trim(), found.stderr.as_str()), ("team/mini", ""));
    let found = complete(&["lode", "tag", "list", "team/f"], server.url()).await.expect_success();
    assert_eq!(found.stdout.trim(), "team/files");
    let silent =
        complete(&["lode", "show", "team/m"], "http://127.0.0.1:1".to_owned()).await.expect_success();
    assert_eq!((silent.stdout.trim(), silent.stderr.as_str()), ("", ""));
}

#[tokio::test]
async fn a_server_names_what_it_does_not_use_and_where_its_data_is() {
    let folder = Folder::new();
    let mut command = lode_command(folder.path());
    command.args(["serve", "--no-worker", "--listen", "0", "--data", "some-data"]);
    command.current_dir(folder.path()).env("LODE_GC_GRACES", "1h");
    let log = folder.path().join("log");
    let output = std::fs::File::create(&log).unwrap();
    command.stdout(output.try_clone().unwrap()).stderr(output);
    let mut child = command.spawn().unwrap();
    let text = lode_tests::command::wait_for("the server prints its folder", || async {
        let text = std::fs::read_to_string(&log).unwrap();
        text.contains("data folder:").then_some(text)
    })
    .await;
    child.kill().unwrap();
    child.wait().unwrap();
    let data = folder.path().canonicalize().unwrap().join("some-data");
    assert!(text.contains(&format!("data folder: {}\n", data.display())), "{text}");
    assert!(text.contains("listening on http://127.0.0.1:"), "a port alone is an address: {text}");
    let warning =
        "the variable LODE_GC_GRACES has no effect: no setting has that name; did you mean LODE_GC_GRACE?";
    assert!(text.contains(warning), "{text}");
    let (_, refused) = Folder::new().start_refused(Options::new().listen(":7301")).await;
    assert!(
        refused.contains("--listen is `:7301`") && refused.contains("hint: an address has a port"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_repeated_request_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    // Busy once; it ends with the process.
    std::thread::spawn(move || {
        for (stream, number) in listener.incoming().zip(0..) {
            let Ok(mut stream) = stream else { return };
            let _request = stream.read(&mut [0; 8192]);
            let (status, body) = match number {
                0 => ("503 Busy\r\nretry-after: 1", r#"{"error":"starting"}"#),
                _ => ("200 OK", r#"{"models":[]}"#),
            };
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            let _sent = stream.write_all((head + body).as_bytes());
        }
    });
    let folder = Folder::new();
    let mut command = lode_command(folder.path());
    command.args(["list", "--json"]).env("LODE_HOST", &server);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let listed = run_to_end(command, Vec::new()).await.expect_success();
    let expect = format!("{server} returned 503 Service Unavailable: starting; trying again in 1 s\n");
    assert_eq!(listed.stderr, expect);
}

#[tokio::test]
async fn a_run_without_a_worker_says_how_to_get_one() {
    let server = Server::fresh().await;
    let lode = server.lode();
    lode.create("team/mini", &demo(), &[]).await.expect_success();
    let refused = lode.run(&["run", "team/mini", "Hello"]).await;
    refused
        .expect_failure(&["no worker is attached", "`lode serve` starts a worker unless --no-worker is set"]);
}

#[tokio::test]
async fn a_mistake_in_the_filter_of_the_log_is_refused() {
    let server = Server::fresh().await;
    for (filter, expect) in [
        ("debgu", "`debgu` is not a level; did you mean `debug`?"),
        ("lode_registry=loud", "expected one of"),
    ] {
        let refused = server.lode().env("LODE_LOG", filter).run(&["list"]).await;
        assert_eq!(refused.code, 2, "{}", refused.stderr);
        let begin = format!("error: LODE_LOG is `{filter}`: ");
        assert!(refused.stderr.starts_with(&begin) && refused.stderr.contains(expect), "{}", refused.stderr);
    }
}

/// A wrong key of the bucket is one line: the storage's own code and message.
#[tokio::test]
async fn a_wrong_key_of_the_bucket_is_one_line() {
    let storage = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", storage.local_addr().unwrap());
    // Responds as S3 does; it ends with the process.
    std::thread::spawn(move || {
        for stream in storage.incoming() {
            let Ok(mut stream) = stream else { return };
            let _request = stream.read(&mut [0; 8192]);
            let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>InvalidAccessKeyId</Code><Message>The AWS access key ID you provided does not exist in our records.</Message></Error>";
            let head = format!(
                "HTTP/1.1 403 Forbidden\r\ncontent-type: application/xml\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            let _sent = stream.write_all((head + body).as_bytes());
        }
    });
    let options = Options::new()
        .arg("--storage")
        .arg("s3://models/lode")
        .env("LODE_STORAGE_ENDPOINT", endpoint)
        .env("LODE_STORAGE_REGION", "us-east-1")
        .env("LODE_STORAGE_ACCESS_KEY_ID", "wrong")
        .env("LODE_STORAGE_SECRET_ACCESS_KEY", "wrong");
    let (status, output) = Folder::new().start_refused(options).await;
    let expected = "error: cannot start: invalid `storage`: s3://models/lode: the object storage refused the request: InvalidAccessKeyId: The AWS access key ID you provided does not exist in our records.\n";
    assert!(!status.success() && output.contains(expected), "{output}");
    assert!(output.contains("hint: --storage names the bucket"), "{output}");
}

/// `minio:9000` is a URL with the scheme `minio`.
#[tokio::test]
async fn an_address_of_the_storage_without_a_scheme_is_refused() {
    let cases = [
        ("s3://models", "LODE_STORAGE_ENDPOINT", "error: LODE_STORAGE_ENDPOINT is `***`: expected a URL"),
        ("s3://models", "AWS_ENDPOINT_URL", "invalid `storage`: AWS_ENDPOINT_URL: expected a URL"),
        ("minio:9000", "AWS_REGION", "expected file:, s3:, gs: or az:, got minio:"),
    ];
    for (storage, variable, expected) in cases {
        let options = Options::new()
            .arg("--storage")
            .arg(storage)
            .env("LODE_STORAGE_ACCESS_KEY_ID", "key")
            .env("LODE_STORAGE_SECRET_ACCESS_KEY", "key")
            .env(variable, "minio:9000");
        let (status, output) = Folder::new().start_refused(options).await;
        assert!(!status.success() && output.contains(expected), "{output}");
        assert!(!output.contains("panicked"), "{output}");
    }
}

#[tokio::test]
async fn a_full_disk_is_named() {
    if !is_root() {
        skip("errors::a_full_disk_is_named", "only root can mount a small file system");
        return;
    }
    let outer = Folder::new();
    let disk = SmallDisk::mount(outer.path().join("disk"), 4);
    let server = Server::fresh().await;
    server.lode().create("team/mini", &demo(), &[]).await.expect_success();
    let to = disk.path().join("copy");
    let to = to.to_str().unwrap();
    server.lode().run(&["pull", "team/mini", to]).await.expect_failure(&[to, "No space left on device"]);
    // A server whose folder has no space.
    let mut size = 4 << 20;
    let mut ballast = std::fs::File::create(disk.path().join("ballast")).unwrap();
    while size >= 512 {
        if ballast.write_all(&vec![7; size]).is_err() {
            size /= 2;
        }
    }
    let data = disk.path().join("data");
    let folder = Folder::with_data(data.clone());
    let (status, output) = folder.start_refused(Options::new()).await;
    let data = data.to_str().unwrap();
    assert!(
        !status.success() && output.contains(data) && output.to_lowercase().contains("no space left"),
        "{output}"
    );
}
