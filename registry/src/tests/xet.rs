//! Uploads of Hugging Face's clients by Xet: files that are assembled from chunks, and hostile uploads.

use std::time::Duration;

use http::Request;
use lode_model::digest::Digest;
use lode_model::xet::hash::XetHash;
use lode_model::xet::xorb::XorbHasher;
use serde_json::{Value, json};
use uuid::Uuid;

use super::access::closed;
use super::hf_write::{lfs_file, post};
use super::{App, TestResponse};
use crate::Config;

/// A xorb of chunks that are not compressed, and its hash.
fn xorb(chunks: &[&[u8]]) -> (XetHash, Vec<u8>) {
    let mut bytes = Vec::new();
    for chunk in chunks {
        let [a, b, c, _] = (chunk.len() as u32).to_le_bytes();
        bytes.extend([0, a, b, c, 0, a, b, c]);
        bytes.extend(*chunk);
    }
    let mut hasher = XorbHasher::default();
    hasher.push(&bytes).unwrap();
    (hasher.finish().unwrap().0, bytes)
}

/// The bytes of a hash, which shards store in another order than that of the digits.
fn stored_order(hex_digits: &str) -> Vec<u8> {
    let bytes = hex::decode(hex_digits).unwrap();
    bytes.chunks(8).flat_map(|group| group.iter().rev().copied()).collect()
}

fn record(hash: &[u8], fields: [u32; 4]) -> Vec<u8> {
    [hash, &fields.map(u32::to_le_bytes).concat()].concat()
}

/// Chunks of a xorb: its hash, the first chunk, the one after the last, and how many bytes they have.
type TermOf = (XetHash, u32, u32, u32);

/// A shard of files with these contents.
fn shard(files: &[(&Digest, &[TermOf])]) -> Vec<u8> {
    let header = &include_bytes!("../../../tests/fixtures/xet/text.shard")[..48];
    let mut records = vec![header.to_vec()];
    for (sha256, terms) in files {
        records.push(record(&[7; 32], [1 << 30, terms.len() as u32, 0, 0]));
        for (xorb, first, end, bytes) in *terms {
            records.push(record(&stored_order(&xorb.to_string()), [0, *bytes, *first, *end]));
        }
        records.push(record(&stored_order(sha256.hex()), [0; 4]));
    }
    records.push(record(&[0xff; 32], [0; 4]));
    records.concat()
}

/// What a client gets before it uploads.
struct Session {
    path: String,
    credentials: String,
}

impl App {
    async fn xet(&self, credentials: &str, repository: &str) -> Session {
        let request = Request::get(format!("/hf/api/models/{repository}/xet-write-token/main"));
        let granted = self.send_as(credentials, request, "").await;
        assert_eq!(granted.status, 200, "{}", granted.text());
        let body = granted.json();
        let text = |name: &str| body[name].as_str().unwrap().to_owned();
        assert_eq!(granted.header("x-xet-access-token"), text("accessToken"));
        assert_eq!(granted.header("x-xet-cas-url"), text("casUrl"));
        assert_eq!(granted.header("x-xet-token-expiration"), body["exp"].to_string());
        let path = text("casUrl").strip_prefix("http://localhost:5000").unwrap().to_owned();
        Session { path, credentials: format!("Bearer {}", text("accessToken")) }
    }

    async fn xet_send(&self, session: &Session, path: &str, body: Vec<u8>) -> TestResponse {
        let request = post(&format!("{}/v1/{path}", session.path));
        self.send(request.header("authorization", &session.credentials), body).await
    }

    async fn post_xorb(&self, session: &Session, hash: XetHash, bytes: &[u8]) -> TestResponse {
        self.xet_send(session, &format!("xorbs/default/{hash}"), bytes.to_vec()).await
    }

    async fn post_shard(&self, session: &Session, files: &[(&Digest, &[TermOf])]) -> TestResponse {
        self.xet_send(session, "shards", shard(files)).await
    }

    async fn has_blob(&self, repository: &str, digest: &Digest) -> bool {
        self.send(Request::head(format!("/v2/{repository}/blobs/{digest}")), "").await.status == 200
    }
}

fn refused(response: &TestResponse, status: u16, message: &str) {
    assert_eq!(response.status, status, "{}", response.text());
    assert!(response.text().contains(message), "{}", response.text());
}

#[tokio::test]
async fn files_are_assembled_from_chunks() {
    let storage = format!("memory://{}", Uuid::new_v4().simple()).parse().unwrap();
    for config in [Config::default(), Config { storage: Some(storage), ..Config::default() }] {
        let app = App::with(config).await;
        app.create_repository("team/m").await;
        let session = app.xet("", "team/m").await;
        let (first, second) = (xorb(&[b"one, ", b"two, ", b"three"]), xorb(&[&[7; 128 << 10], b"end"]));
        for (hash, bytes) in [&first, &second] {
            for is_new in [true, false] {
                let stored = app.post_xorb(&session, *hash, bytes).await;
                assert_eq!((stored.status.as_u16(), stored.json()), (200, json!({"was_inserted": is_new})));
            }
        }
        let content = [&b"two, three"[..], &[7; 128 << 10], b"end", b"one, ", b"two, three"].concat();
        let whole: &[TermOf] = &[
            (first.0, 1, 3, 10),
            (second.0, 0, 2, (128 << 10) + 3),
            (first.0, 0, 1, 5),
            (first.0, 1, 3, 10),
        ];
        let (sha256, other) = (Digest::sha256(&content), Digest::sha256(b"end"));
        for result in [1, 0] {
            let stored =
                app.post_shard(&session, &[(&sha256, whole), (&other, &[(second.0, 1, 2, 3)])]).await;
            assert_eq!((stored.status.as_u16(), stored.json()), (200, json!({"result": result})));
        }
        app.committed("team/m", &[lfs_file("a.bin", &content), lfs_file("b.bin", b"end")]).await;
        assert_eq!(app.content("team/m", "a.bin").await, content);
        assert_eq!(&app.content("team/m", "b.bin").await[..], b"end");
        // Another repository does not know the xorbs. It takes whole files.
        app.create_repository("team/n").await;
        let elsewhere = app.xet("", "team/n").await;
        let half = Digest::sha256(b"one, ");
        let unknown = app.post_shard(&elsewhere, &[(&half, &[(first.0, 0, 1, 5)])]).await;
        refused(&unknown, 400, "not stored here; repeat the upload");
        assert_eq!(app.post_shard(&elsewhere, &[(&other, &[(second.0, 1, 2, 3)])]).await.status, 200);
    }
}

#[tokio::test]
async fn hostile_uploads_store_nothing() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let session = app.xet("", "team/m").await;
    let (hash, bytes) = xorb(&[b"one, ", b"two, "]);
    // 1. Xorbs.
    let wrong = XetHash::of_chunk(b"x");
    let mut scheme = bytes.clone();
    scheme[4] = 9;
    let mut long = bytes.clone();
    long[7] = 0xff;
    for (hash, bytes, message) in [
        (wrong, bytes.clone(), "expected"),
        (hash, vec![], "has no chunks"),
        (hash, bytes[..9].to_vec(), "ends within a chunk"),
        (hash, scheme, "unknown compression scheme 9"),
        (hash, long, "expected 1 to 131072"),
        (hash, [&bytes[..], &bytes].concat(), "expected"),
    ] {
        refused(&app.post_xorb(&session, hash, &bytes).await, 400, message);
    }
    let too_large = [&bytes[..], &vec![1; 67 << 20]].concat();
    refused(&app.post_xorb(&session, hash, &too_large).await, 413, "more than");
    assert_eq!(app.xet_send(&session, "xorbs/default/zz", bytes.clone()).await.status, 404);
    // Xorbs of others, and requests that clients can do without.
    for path in ["xorb-grants/default/0", "shards/x", "reconstructions/0"] {
        assert_eq!(app.xet_send(&session, path, vec![]).await.status, 404, "{path}");
    }
    let sha256 = Digest::sha256(b"one, two, ");
    let shard_of = async |terms: &[TermOf]| app.post_shard(&session, &[(&sha256, terms)]).await;
    refused(&shard_of(&[(hash, 0, 2, 10)]).await, 400, "not stored here");
    // 2. Shards.
    assert_eq!(app.post_xorb(&session, hash, &bytes).await.status, 200);
    for (terms, message) in [
        (&[(hash, 0, 2, 11)][..], "declares 11"),
        (&[(hash, 0, 3, 10)], "not in the xorb"),
        (&[(hash, u32::MAX - 1, u32::MAX, 10)], "not in the xorb"),
        (&[(hash, 1, 1, 0)], "which are none"),
        (&[(hash, 0, 1, 5)], "digest mismatch"),
        (&[(hash, 0, 2, 10), (wrong, 0, 1, 5)], "not stored here"),
        (&[], "digest mismatch"),
    ] {
        refused(&shard_of(terms).await, 400, message);
    }
    refused(&shard_of(&vec![(hash, 0, 1, u32::MAX); 300]).await, 413, "expected at most");
    for body in [vec![], vec![0; 96], shard(&[])[..50].to_vec()] {
        assert_eq!(app.xet_send(&session, "shards", body).await.status, 400);
    }
    assert!(!app.has_blob("team/m", &sha256).await);
    // 3. What is right is still accepted.
    assert_eq!(shard_of(&[(hash, 0, 2, 10)]).await.json(), json!({"result": 1}));
    assert!(app.has_blob("team/m", &sha256).await);
    // The same content with another size.
    refused(&shard_of(&[(hash, 0, 1, 5)]).await, 400, "has 5 bytes");
}

/// A shard of some MB would fill terabytes.
#[tokio::test]
async fn files_that_repeat_one_xorb_are_limited() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    let session = app.xet("", "team/m").await;
    let chunk = vec![7; 128 << 10];
    let (hash, bytes) = xorb(&[&chunk]);
    assert_eq!(app.post_xorb(&session, hash, &bytes).await.status, 200);
    // Together 4 GiB and a chunk.
    let sha256 = [Digest::sha256(b"first"), Digest::sha256(b"second")];
    let terms = vec![(hash, 0, 1, 128 << 10); (16 << 10) + 1];
    let shard = app.post_shard(&session, &[(&sha256[0], &terms), (&sha256[1], &terms[1..])]).await;
    refused(&shard, 400, "have 4295098368 bytes, expected at most 4294967296 from ");
    // A xorb that is missing is reported first: the client sends it again.
    let unknown = vec![(XetHash::of_chunk(b"x"), 0, 1, 128 << 10); (32 << 10) + 1];
    refused(&app.post_shard(&session, &[(&sha256[0], &unknown)]).await, 400, "repeat the upload");
    // Less than the limit is accepted, however often it repeats itself.
    let content = chunk.repeat(100);
    let stored = app.post_shard(&session, &[(&Digest::sha256(&content), &terms[..100])]).await;
    assert_eq!(stored.json(), json!({"result": 1}));
}

#[tokio::test]
async fn xorbs_belong_to_their_uploader() {
    let app = closed().await;
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    for name in ["alice", "bob"] {
        app.grant("team/*", name, "write").await;
    }
    for repository in ["m", "n"] {
        let body = json!({"name": repository, "organization": "team"}).to_string();
        assert_eq!(app.send_as(&alice, Request::post("/hf/api/repos/create"), body).await.status, 200);
    }
    let (hash, bytes) = xorb(&[b"secret"]);
    let sha256 = Digest::sha256(b"secret");
    let file: &[(&Digest, &[TermOf])] = &[(&sha256, &[(hash, 0, 1, 6)])];
    let of_alice = app.xet(&alice, "team/m").await;
    assert_eq!(app.post_xorb(&of_alice, hash, &bytes).await.status, 200);
    // 1. Another account does not find them in the same repository.
    let of_bob = app.xet(&bob, "team/m").await;
    refused(&app.post_shard(&of_bob, file).await, 400, "not stored here");
    // 2. The token is for one repository, gives no other token, and is needed.
    let path = app.xet(&alice, "team/n").await.path;
    let elsewhere = Session { path, credentials: of_alice.credentials.clone() };
    assert_eq!(app.post_shard(&elsewhere, file).await.status, 401);
    let request = Request::get("/hf/api/models/team/m/xet-write-token/main");
    assert_eq!(app.send_as(&of_alice.credentials, request, "").await.status, 401);
    let unknown = Session { credentials: "Bearer x".to_owned(), path: of_alice.path.clone() };
    assert_eq!(app.post_shard(&unknown, file).await.status, 401);
    // 3. It ends with the role.
    app.admin("PUT", "/lode/v1/grants", json!({"target": "team/*", "subject": "alice", "role": "read"}))
        .await;
    assert_eq!(app.post_shard(&of_alice, file).await.status, 403);
    app.grant("team/*", "alice", "write").await;
    assert_eq!(app.post_shard(&of_alice, file).await.json(), json!({"result": 1}));
}

#[tokio::test]
async fn xorbs_expire() {
    let config = Config {
        gc_grace: Duration::ZERO,
        gc_undo: Some(Duration::ZERO),
        upload_lease: Duration::ZERO,
        ..Config::default()
    };
    let app = App::with(config).await;
    app.create_repository("team/m").await;
    let (hash, bytes) = xorb(&[b"one, ", b"two, "]);
    let session = app.xet("", "team/m").await;
    assert_eq!(app.post_xorb(&session, hash, &bytes).await.status, 200);
    let stored = Digest::sha256(&bytes);
    assert!(app.has_blob("team/m", &stored).await);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let collected = app.job("/lode/v1/gc", json!({})).await;
    assert_ne!(collected["result"]["blobs"], Value::Null, "{collected}");
    assert!(!app.has_blob("team/m", &stored).await);
    let sha256 = Digest::sha256(b"one, two, ");
    refused(&app.post_shard(&session, &[(&sha256, &[(hash, 0, 2, 10)])]).await, 400, "not stored here");
    // It can be uploaded again.
    assert_eq!(app.post_xorb(&session, hash, &bytes).await.json(), json!({"was_inserted": true}));
    assert_eq!(
        app.post_shard(&session, &[(&sha256, &[(hash, 0, 2, 10)])]).await.json(),
        json!({"result": 1})
    );
}

/// Clients do not send again what they have sent to the same URL.
#[tokio::test]
async fn the_url_changes_when_xorbs_are_missing() {
    let app = App::new().await;
    app.create_repository("team/m").await;
    app.create_repository("team/n").await;
    let session = app.xet("", "team/m").await;
    assert_eq!(app.xet("", "team/m").await.path, session.path);
    assert_ne!(app.xet("", "team/n").await.path.split('/').nth(4), session.path.split('/').nth(4));
    let (hash, bytes) = xorb(&[b"one, "]);
    let sha256 = Digest::sha256(b"one, ");
    let file: &[(&Digest, &[TermOf])] = &[(&sha256, &[(hash, 0, 1, 5)])];
    refused(&app.post_shard(&session, file).await, 400, "repeat the upload");
    let again = app.xet("", "team/m").await;
    assert_ne!(again.path, session.path);
    assert_eq!(app.post_xorb(&again, hash, &bytes).await.status, 200);
    assert_eq!(app.post_shard(&again, file).await.status, 200);
}
