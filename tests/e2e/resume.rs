//! Interrupted and resumed uploads: broken connections, killed servers, cancelled uploads, two writers on one
//! upload. The bytes that an upload's status reports must always be stored.

use std::io::Write;

use lode_tests::artifact::{fresh_seed, random_bytes, sha256};
use lode_tests::command::wait_for;
use lode_tests::raw;
use lode_tests::server::{Folder, Options, Server};

/// Starts a PATCH of the whole blob, sends only a part of it, and closes the connection.
fn send_truncated_patch(server: &Server, location: &str, bytes: &[u8], sent: usize) {
    let path = location.trim_start_matches(&server.url());
    let mut stream = raw::connect(server.address);
    let head = format!(
        "PATCH {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/octet-stream\r\ncontent-range: 0-{}\r\ncontent-length: {}\r\n\r\n",
        server.address,
        bytes.len() - 1,
        bytes.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&bytes[..sent]).unwrap();
    stream.flush().unwrap();
}

#[tokio::test]
async fn an_interrupted_upload_resumes_at_its_offset() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let bytes = random_bytes(fresh_seed(), 24 << 20);
    let digest = sha256(&bytes);
    let location = registry.upload_open("team/cut").await;
    send_truncated_patch(&server, &location, &bytes, 17 << 20);
    // Like a client: get the offset, resume there, and retry while the interrupted request still holds the
    // upload.
    let response = wait_for("the interrupted upload can be resumed", || async {
        let stored = registry.upload_offset(&location).await;
        assert!(stored <= 17 << 20, "reported {stored} bytes of {} sent", 17 << 20);
        let response = registry.upload_append(&location, stored, &bytes[stored as usize..]).await;
        assert!([202, 409, 416].contains(&response.status), "{} {}", response.status, response.text());
        (response.status == 202).then_some(response)
    })
    .await;
    let location = registry.at(response.header("location").unwrap());
    registry.upload_finish(&location, &digest, b"").await.expect(201);
    assert!(registry.blob_get("team/cut", &digest).await.expect(200).body == bytes);
}

#[tokio::test]
async fn acknowledged_chunks_survive_a_killed_server() {
    let folder = Folder::new();
    let server = folder.serve().await;
    let registry = server.registry();
    let bytes = random_bytes(fresh_seed(), 3_000_000);
    let location = registry.upload_open("team/killed").await;
    registry.upload_append(&location, 0, &bytes[..2_000_000]).await.expect(202);
    let path = location.trim_start_matches(&server.url()).to_owned();
    server.kill();

    let server = folder.serve().await;
    let registry = server.registry();
    assert_eq!(registry.upload_offset(&path).await, 2_000_000, "acknowledged bytes are missing");
    let response = registry.upload_append(&path, 2_000_000, &bytes[2_000_000..]).await.expect(202);
    registry.upload_finish(response.header("location").unwrap(), &sha256(&bytes), b"").await.expect(201);
    assert!(registry.blob_get("team/killed", &sha256(&bytes)).await.expect(200).body == bytes);
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}

#[tokio::test]
async fn chunks_out_of_order_are_refused_and_the_session_stays() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let bytes = random_bytes(fresh_seed(), 10_000);
    let location = registry.upload_open("team/order").await;
    registry.upload_append(&location, 0, &bytes[..4_000]).await.expect(202);
    for (first, chunk) in
        [(0, &bytes[..4_000]), (3_999, &bytes[3_999..]), (4_001, &bytes[4_001..]), (9_000, &bytes[9_000..])]
    {
        let response = registry.upload_append(&location, first, chunk).await.expect(416);
        assert_eq!(response.header("range"), Some("0-3999"), "the refusal does not report the offset");
        assert!(response.header("location").is_some());
        assert!(response.code().is_some(), "{}", response.text());
    }
    // A Content-Range that does not match the body's length.
    let request = registry
        .request("PATCH", &location)
        .header("content-range", "4000-5000")
        .body(bytes[4_000..].to_vec());
    registry.send(request).await.expect(416);
    for text in ["bytes 4000-9999", "4000", "4000-", "x-y", "9999-4000", "4000-99999999999999999999999"] {
        let request =
            registry.request("PATCH", &location).header("content-range", text).body(bytes[4_000..].to_vec());
        let response = registry.send(request).await;
        assert!(
            (400..=416).contains(&response.status) && response.status != 404,
            "`{text}` returns {}",
            response.status
        );
    }
    // A closing PUT out of order keeps the upload open.
    let finish = lode_tests::oci::with_query(&location, "digest", &sha256(&bytes));
    let request =
        registry.request("PUT", &finish).header("content-range", "5000-9999").body(bytes[5_000..].to_vec());
    registry.send(request).await.expect(416);
    assert_eq!(registry.upload_offset(&location).await, 4_000);
    let request =
        registry.request("PUT", &finish).header("content-range", "4000-9999").body(bytes[4_000..].to_vec());
    registry.send(request).await.expect(201);
    assert_eq!(registry.blob_get("team/order", &sha256(&bytes)).await.expect(200).body, bytes);
}

#[tokio::test]
async fn a_cancelled_upload_is_gone() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let location = registry.upload_open("team/cancel").await;
    registry.upload_append(&location, 0, b"some bytes").await.expect(202);
    registry.delete(&location).await.expect(204);
    registry.get(&location).await.expect_error(404, "BLOB_UPLOAD_UNKNOWN");
    registry.upload_append(&location, 10, b"more").await.expect_error(404, "BLOB_UPLOAD_UNKNOWN");
    registry
        .upload_finish(&location, &sha256(b"some bytes"), b"")
        .await
        .expect_error(404, "BLOB_UPLOAD_UNKNOWN");
    registry.delete(&location).await.expect_error(404, "BLOB_UPLOAD_UNKNOWN");
    registry.blob_head("team/cancel", &sha256(b"some bytes")).await.expect(404);
}

#[tokio::test]
async fn two_writers_on_one_session_never_interleave() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let (a, b) = (random_bytes(1, 2_000_000), random_bytes(2, 2_000_000));
    let location = registry.upload_open("team/two").await;
    let (first, second) =
        tokio::join!(registry.upload_append(&location, 0, &a), registry.upload_append(&location, 0, &b));
    let statuses = [first.status, second.status];
    assert_eq!(
        statuses.iter().filter(|s| **s == 202).count(),
        1,
        "expected exactly one success: {statuses:?}"
    );
    assert!(statuses.iter().any(|s| [409, 416].contains(s)), "expected one refusal: {statuses:?}");
    let winner = if first.status == 202 { &a } else { &b };
    assert_eq!(registry.upload_offset(&location).await, 2_000_000);
    registry.upload_finish(&location, &sha256(winner), b"").await.expect(201);
    assert!(registry.blob_get("team/two", &sha256(winner)).await.expect(200).body == *winner);
}

#[tokio::test]
async fn repeating_the_closing_put_never_breaks_the_blob() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let location = registry.upload_open("team/again").await;
    registry.upload_finish(&location, &sha256(b"twice"), b"twice").await.expect(201);
    let again = registry.upload_finish(&location, &sha256(b"twice"), b"").await;
    assert!(
        again.status == 201 || again.code().as_deref() == Some("BLOB_UPLOAD_UNKNOWN"),
        "{}",
        again.status
    );
    assert_eq!(
        registry.blob_get("team/again", &sha256(b"twice")).await.expect(200).body,
        b"twice".as_slice()
    );
}

#[tokio::test]
async fn a_wrong_digest_stores_nothing() {
    let folder = Folder::new();
    let server = folder.start(Options::new()).await;
    let registry = server.registry();
    let location = registry.upload_open("team/wrong").await;
    registry
        .upload_finish(&location, &sha256(b"something else"), b"these bytes")
        .await
        .expect_error(400, "DIGEST_INVALID");
    for bytes in [&b"something else"[..], b"these bytes"] {
        registry.blob_head("team/wrong", &sha256(bytes)).await.expect(404);
    }
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}
