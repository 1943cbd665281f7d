//! `lode create NAME hf://...`: one server imports from the Hugging Face API of another.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use lode_tests::access::{create_token, start_team};
use lode_tests::checkpoint::demo;
use lode_tests::server::{Options, Server};

use crate::gguf::fixture;

/// The files of a folder, by name.
fn files(folder: &std::path::Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), std::fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn a_checkpoint_and_a_gguf_are_imported() {
    let hub = Server::fresh().await;
    hub.lode().create("team/mini", &demo(), &[]).await.expect_success();
    hub.lode().create("team/quant", &fixture("wide-k.gguf"), &[]).await.expect_success();

    let server = Server::fresh().await;
    let lode = server.lode().env("HF_ENDPOINT", &format!("{}/hf", hub.url()));
    let created = lode.run(&["create", "copy/mini", "hf://team/mini@latest"]).await.expect_success();
    assert!(created.stdout.contains("from hf://team/mini@latest: "), "{}", created.stdout);
    let folder = server.folder().path().join("pulled");
    lode.run(&["pull", "copy/mini", "--to", folder.to_str().unwrap()]).await.expect_success();
    let pulled = files(&folder);
    let original: Vec<_> = files(&demo());
    assert_eq!(pulled, original);

    // The arguments may be swapped, and the model quantised.
    let swapped = ["create", "hf://team/mini", "copy/small", "--quantize", "int4", "--json"];
    let made = lode.run(&swapped).await.expect_success().json();
    assert_eq!(made["files"], original.len());
    let shown = lode.run(&["show", "copy/small"]).await.expect_success();
    assert!(shown.stdout.contains("int4") || shown.stdout.contains("INT4"), "{}", shown.stdout);

    lode.run(&["create", "copy/quant", "hf://team/quant:wide"]).await.expect_success();
    let folder = server.folder().path().join("gguf");
    lode.run(&["pull", "copy/quant", "--to", folder.to_str().unwrap()]).await.expect_success();
    let pulled = files(&folder);
    assert_eq!(pulled.len(), 1);
    assert_eq!(pulled[0].1, std::fs::read(fixture("wide-k.gguf")).unwrap());

    lode.run(&["create", "copy/none", "hf://team/none"])
        .await
        .expect_error(&format!(
            "importing hf://team/none failed: {} refused the revision main of team/none: repository team/none does not exist (status 404)",
            hub.url()
        ));
    // What repeating does not mend says so.
    let unknown = lode.run(&["create", "copy/none", "hf://team/mini:Q9"]).await;
    unknown.expect_failure(&["no GGUF file", "leave out `:Q9`"]);
    assert!(!unknown.stderr.contains("to continue"), "{}", unknown.stderr);
    lode.run(&["create", "copy/none", "hf://team/mini@v9"]).await.expect_failure(&["v9", "latest"]);
    lode.run(&["create", "copy/none", "hf://team/quant:Q9"]).await.expect_failure(&["Q9", "wide-k"]);
    lode.run(&["show", "copy/none"]).await.expect_failure(&["copy/none"]);
}

#[tokio::test]
async fn a_private_model_needs_a_token() {
    let hub = start_team(Options::new()).await;
    hub.lode().create("alice/private", &demo(), &[]).await.expect_success();
    let token = create_token(&hub.lode(), &["hub", "--account", "alice", "--access", "read"]).await;

    let server = Server::fresh().await;
    let source = "hf://alice/private";
    let endpoint = format!("{}/hf", hub.url());
    let lode = server.lode().env("HF_ENDPOINT", &endpoint);
    let refused = lode.run(&["create", "copy/mini", source]).await;
    refused.expect_failure(&[
        &format!("importing {source} failed: "),
        "status 401; it may be private: set HF_TOKEN",
    ]);
    let wrong = server.lode().env("HF_ENDPOINT", &endpoint).env("HF_TOKEN", "hf_wrong");
    let wrong = wrong.run(&["create", "copy/mini", source]).await;
    wrong.expect_failure(&["status 401; the token is wrong, or its account may not read it"]);
    // The file in which Hugging Face's own tools store it.
    let stored = server.folder().path().join("token");
    std::fs::write(&stored, format!("{token}\n")).unwrap();
    let lode = lode.env("HF_TOKEN_PATH", stored.to_str().unwrap());
    let created = lode.run(&["create", "copy/mini", source]).await.expect_success();
    let notice = format!("sending the token in {} to {}, for this import", stored.display(), server.url());
    assert!(created.stderr.contains(&notice), "{}", created.stderr);
    assert!(!server.output().contains(&token), "the token is in the log");
}

/// Starts a server whose imports of `hf://team/private` require a token, and whose jobs fail. Returns its URL and the
/// bodies that it receives.
fn importer() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let received = Arc::new(Mutex::new(Vec::new()));
    let bodies = received.clone();
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            let mut peer = peer.unwrap();
            let mut reader = BufReader::new(peer.try_clone().unwrap());
            let head: Vec<String> =
                reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
            let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
            reader.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            let needs_token = body.contains("hf://team/private") && !body.contains("hf_secret");
            let (status, response) = match (body.is_empty(), needs_token) {
                // Whether the tag exists.
                (true, _) => ("404 Not Found", ""),
                (_, true) => ("424 Failed Dependency", r#"{"detail":"it requires a token"}"#),
                _ => ("202 Accepted", r#"{"id":"1","state":"failed","problem":"this is only a test"}"#),
            };
            if !body.is_empty() {
                bodies.lock().unwrap().push(body);
            }
            let length = response.len();
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = peer.write_all(format!("{head}{response}").as_bytes());
        }
    });
    (format!("http://{address}"), received)
}

#[tokio::test]
async fn a_token_is_sent_only_if_it_is_required_and_with_tls() {
    let server = Server::fresh().await;
    let (url, received) = importer();
    let received = || std::mem::take(&mut *received.lock().unwrap());
    let lode = server.lode().env("HF_TOKEN", "hf_secret").env("LODE_HOST", &url);

    let public = lode.run(&["create", "copy/mini", "hf://team/public"]).await;
    public.expect_failure(&["this is only a test"]);
    assert!(!public.stderr.contains("HF_TOKEN"), "{}", public.stderr);
    let bodies = received();
    assert!(bodies.len() == 1 && !bodies[0].contains("hf_secret"), "{bodies:?}");

    let private = lode.run(&["create", "copy/mini", "hf://team/private"]).await;
    private.expect_failure(&[
        &format!("sending the token in HF_TOKEN to {url}, for this import"),
        "this is only a test",
    ]);
    let bodies = received();
    assert_eq!(bodies.len(), 2);
    assert!(!bodies[0].contains("hf_secret") && bodies[1].contains("hf_secret"), "{bodies:?}");

    // The same server, as a proxy: its host is not this machine.
    let remote = lode.env("LODE_HOST", "http://lode.example").env("http_proxy", &url).env("no_proxy", "");
    let refused = remote.run(&["create", "copy/mini", "hf://team/private"]).await;
    refused.expect_failure(&["HF_TOKEN is not sent to http://lode.example without TLS", "https address"]);
    let bodies = received();
    assert!(bodies.len() == 1 && !bodies[0].contains("hf_secret"), "{bodies:?}");
}
