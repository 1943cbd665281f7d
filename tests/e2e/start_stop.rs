//! Starting and stopping: one server per folder, a port in use, restarts that keep all content, a shutdown
//! that completes requests in progress. The cold start is measured and printed; only a generous limit is
//! asserted.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use lode_tests::artifact::{Image, fresh_seed, random_bytes, sha256};
use lode_tests::command::wait_until;
use lode_tests::oci::{IMAGE_MANIFEST, Registry};
use lode_tests::raw;
use lode_tests::report::figure;
use lode_tests::server::{Folder, Options, lode_command};

#[tokio::test]
async fn a_second_server_on_one_folder_is_refused_until_the_first_is_gone() {
    let folder = Folder::new();
    let first = folder.serve().await;
    let (status, output) = folder.start_refused(Options::new()).await;
    assert!(!status.success() && output.contains("error:"), "{output}");
    assert!(output.contains(folder.data().to_str().unwrap()), "the error does not name the folder: {output}");
    first.registry().get("/v2/").await.expect(200);
    first.kill(); // the lock is released with the process
    folder.serve().await;
}

#[tokio::test]
async fn a_new_data_folder_is_closed_to_other_users_and_an_open_one_is_reported() {
    let folder = Folder::new();
    let mode = |path: &Path| fs::metadata(path).expect("it exists").permissions().mode() & 0o777;
    let (data, database) = (folder.data().to_owned(), folder.data().join("lode.db"));
    let server = folder.serve().await;
    assert_eq!((mode(&data), mode(&database)), (0o700, 0o600));
    assert_eq!(mode(&data.join("lode.db-wal")), 0o600);
    assert!(!server.output().contains("open to other users"), "{}", server.output());
    server.stop().await;

    fs::set_permissions(&data, Permissions::from_mode(0o755)).expect("the test owns the folder");
    fs::set_permissions(&database, Permissions::from_mode(0o644)).expect("the test owns the file");
    let server = folder.serve().await;
    for advice in ["chmod 700", "chmod 600"] {
        assert!(server.output().contains(advice), "{advice}: {}", server.output());
    }
    assert_eq!(
        (mode(&data), mode(&database)),
        (0o755, 0o644),
        "the server changed the modes of existing files"
    );
}

#[tokio::test]
async fn a_port_in_use_is_named_in_the_error() {
    let first = Folder::new().serve().await;
    let (status, output) =
        Folder::new().start_refused(Options::new().listen(first.address.to_string())).await;
    assert!(!status.success() && output.contains("error:"), "{output}");
    assert!(output.contains(&first.address.to_string()), "the error does not name the address: {output}");
}

#[tokio::test]
async fn a_restart_keeps_everything_however_it_ended() {
    let folder = Folder::new();
    let image = Image::random(fresh_seed(), 3, 200_000);
    let server = folder.serve().await;
    let digest = image.push(&server.registry(), "kept/image", "v1").await;
    assert!(server.stop().await.success(), "the server failed after SIGTERM");
    let server = folder.serve().await;
    image.check(&server.registry(), "kept/image", "v1").await;
    let registry = server.registry();
    registry.manifest_put("kept/image", "v2", IMAGE_MANIFEST, &image.manifest).await.expect(201);
    server.kill();
    let server = folder.serve().await;
    let registry = server.registry();
    image.check(&registry, "kept/image", "v2").await;
    image.check(&registry, "kept/image", &digest).await;
    assert_eq!(registry.tags("kept/image").await, ["v1", "v2"]);
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

#[tokio::test]
async fn a_server_waiting_for_its_database_stops_on_sigterm() {
    // No server listens on this port.
    let away = Options::new()
        .arg("--database")
        .arg("postgres://lode:very-secret@127.0.0.1:9/lode")
        .env("LODE_DATABASE_WAIT", "10m");
    let mut server = Folder::new().spawn(&away);
    let output = server.wait_output("for the database").await;
    assert!(!output.contains("very-secret"), "{output}");
    server.terminate();
    assert!(server.wait_end().await.success());
}

#[tokio::test]
async fn a_shutdown_finishes_the_request_in_flight() {
    let folder = Folder::new();
    let mut server = folder.serve().await;
    let registry = server.registry();
    let bytes = random_bytes(fresh_seed(), 20_000_000);
    let digest = sha256(&bytes);
    let location = registry.upload_open("team/graceful").await;
    let path = location.trim_start_matches(&server.url());
    let separator = if path.contains('?') { '&' } else { '?' };
    let mut stream = raw::connect(server.address);
    let head = format!(
        "PUT {path}{separator}digest={digest} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n\r\n",
        server.address,
        bytes.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&bytes[..10_000_000]).unwrap();
    // Stop the server only after it has stored a part of the body, so that the request is in progress.
    wait_until("the request is being served", || async { stored_bytes(&folder) > 1_000_000 }).await;
    // Twice, as timeout(1) signals the process and then its group.
    server.terminate();
    server.terminate();
    wait_until("new connections are refused", || async {
        std::net::TcpStream::connect(server.address).is_err()
    })
    .await;
    assert!(server.try_wait().is_none(), "the server ended during a request");
    stream.write_all(&bytes[10_000_000..]).unwrap();
    let response = raw::read_to_end(&mut stream).expect("a response to the request in progress");
    assert_eq!(response.status, 201, "{}", response.text());
    assert!(server.wait_end().await.success());
    let server = folder.serve().await;
    assert!(server.registry().blob_get("team/graceful", &digest).await.expect(200).body == bytes);
}

/// The number of bytes in the data folder, without the database.
pub(crate) fn stored_bytes(folder: &Folder) -> u64 {
    let mut total = 0;
    let mut open = vec![folder.data().to_owned()];
    while let Some(path) = open.pop() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => open.push(entry.path()),
                Ok(meta) if !entry.file_name().to_string_lossy().starts_with("lode.db") => {
                    total += meta.len()
                }
                _ => {}
            }
        }
    }
    total
}

#[tokio::test]
async fn a_cold_start_is_quick_on_a_folder_that_holds_things() {
    let folder = Folder::new();
    let server = folder.serve().await;
    let registry = server.registry();
    fill(&registry, 300).await;
    server.kill();
    let server = folder.serve().await;
    let took = server.started.elapsed();
    server.registry().get("/v2/many/0/tags/list").await.expect(200);
    figure(
        "cold start of `lode serve` on 300 images after kill -9, to ready",
        &format!("{} ms", took.as_millis()),
    );
    assert!(took < Duration::from_secs(60), "{took:?}");
}

async fn fill(registry: &Registry, images: u64) {
    let started = Instant::now();
    let work = (0..8).map(|lane| async move {
        for i in (lane..images).step_by(8) {
            let image = Image::random(i, 2, 2_000);
            image.push(registry, &format!("many/{}", i % 20), &format!("v{i}")).await;
        }
    });
    futures::future::join_all(work).await;
    figure(
        "pushing 300 small images of three blobs, 8 at a time",
        &format!("{} ms", started.elapsed().as_millis()),
    );
}

#[tokio::test]
async fn settings_are_shown_with_secrets_hidden() {
    let folder = Folder::new();
    let mut command = lode_command(folder.path());
    command
        .args(["serve", "--print-config", "--listen", "127.0.0.1:7777"])
        .env("LODE_GC_GRACE", "90s")
        .env("LODE_WORKER_TOKEN", "very-secret-token");
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .current_dir(folder.path());
    let shown = lode_tests::command::run_to_end(command, vec![]).await.expect_success();
    assert!(shown.stdout.contains("127.0.0.1:7777"), "{}", shown.stdout);
    assert!(
        !shown.stdout.contains("very-secret-token") && !shown.stderr.contains("very-secret-token"),
        "{}",
        shown.stdout
    );
    let mut command = lode_command(folder.path());
    command
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env("LODE_GC_GRACE", "soon")
        .current_dir(folder.path());
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let refused = lode_tests::command::run_to_end(command, vec![]).await;
    assert!(
        refused.code != 0 && refused.stderr.contains("soon"),
        "the error does not contain the invalid value: {refused:?}"
    );
}

#[tokio::test]
async fn generate_without_a_worker_returns_503() {
    let server = Folder::new().serve().await;
    let registry = server.registry();
    Image::random(1, 1, 10).push(&registry, "not/run", "latest").await;
    let response =
        registry.post_json("/api/generate", &serde_json::json!({"model": "not/run", "prompt": "hi"})).await;
    assert_eq!(response.status, 503, "{}", response.text());
    assert!(response.json()["error"].as_str().unwrap().contains("worker"), "{}", response.text());
}
