//! Malformed requests: each gets an error in the envelope and causes no panic, no hang and no partly stored
//! content. After each table the server must still handle requests, and `lode fsck` must find no damage.

use std::io::Write;

use lode_tests::artifact::{fresh_seed, random_bytes, sha256};
use lode_tests::oci::{IMAGE_INDEX, IMAGE_MANIFEST};
use lode_tests::raw;
use lode_tests::server::Server;
use serde_json::json;

async fn check_healthy(server: &Server) {
    let registry = server.registry();
    registry.get("/healthz").await.expect(200);
    let digest = registry.blob_push("still/well", b"fine").await;
    assert_eq!(registry.blob_get("still/well", &digest).await.expect(200).body, b"fine".as_slice());
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
    assert!(!server.output().contains("panicked"), "{}", server.output());
}

#[tokio::test]
async fn names_digests_and_references() {
    let server = Server::fresh().await;
    let good = sha256(b"x");
    let too_long = "a".repeat(256);
    let long_tag = "t".repeat(129);
    let upper = good.to_uppercase().replace("SHA256", "sha256");
    let table: &[(&str, String, &[u16], &str)] = &[
        ("POST", "/v2/Upper/blobs/uploads/".into(), &[400], "NAME_INVALID"),
        ("POST", "/v2/-x/blobs/uploads/".into(), &[400], "NAME_INVALID"),
        ("POST", "/v2/a..b/blobs/uploads/".into(), &[400], "NAME_INVALID"),
        ("POST", "/v2/a___b/blobs/uploads/".into(), &[400], "NAME_INVALID"),
        ("POST", "/v2/a//b/blobs/uploads/".into(), &[400], "NAME_INVALID"),
        ("POST", "/v2/a%2F..%2Fb/blobs/uploads/".into(), &[400], "NAME_INVALID"),
        ("POST", format!("/v2/{too_long}/blobs/uploads/"), &[400], "NAME_INVALID"),
        ("GET", "/v2/a/../../etc/passwd/blobs/uploads/".into(), &[400, 404, 405], ""),
        ("GET", "/v2/ok/blobs/sha256:short".into(), &[400], "DIGEST_INVALID"),
        ("GET", format!("/v2/ok/blobs/{upper}"), &[400], "DIGEST_INVALID"),
        ("GET", "/v2/ok/blobs/md5:d41d8cd98f00b204e9800998ecf8427e".into(), &[400], "DIGEST_INVALID"),
        ("GET", "/v2/ok/blobs/nodigest".into(), &[400], "DIGEST_INVALID"),
        ("GET", "/v2/ok/blobs/sha256:..%2F..%2Fetc%2Fpasswd".into(), &[400], "DIGEST_INVALID"),
        ("GET", format!("/v2/ok/blobs/{good}"), &[404], ""),
        ("GET", "/v2/ok/manifests/sha256:baddigeststring".into(), &[400, 404], ""),
        ("GET", "/v2/ok/manifests/.hidden".into(), &[400, 404], ""),
        ("GET", format!("/v2/ok/manifests/{long_tag}"), &[400, 404], ""),
        ("GET", "/v2/ok/manifests/absent".into(), &[404], ""),
        ("DELETE", "/v2/ok/manifests/absent".into(), &[404], ""),
        ("DELETE", format!("/v2/ok/blobs/{good}"), &[404], ""),
        ("GET", "/v2/ok/blobs/uploads/not-a-session".into(), &[400, 404], ""),
        (
            "GET",
            "/v2/ok/blobs/uploads/00000000-0000-4000-8000-000000000000".into(),
            &[404],
            "BLOB_UPLOAD_UNKNOWN",
        ),
        ("POST", "/v2/ok/blobs/uploads/?digest=sha256:bad".into(), &[400], "DIGEST_INVALID"),
        ("POST", "/v2/ok/blobs/uploads/?digest-algorithm=crc32".into(), &[400], "DIGEST_INVALID"),
        ("POST", "/v2/ok/blobs/uploads/?mount=sha256:bad&from=ok".into(), &[202, 400], ""),
        ("GET", "/v2/ok/nonsense/x".into(), &[404], ""),
        ("GET", "/v2/%FF%FE/tags/list".into(), &[400, 404], ""),
        ("PATCH", "/v2/ok/manifests/v1".into(), &[404, 405], ""),
    ];
    for (method, target, statuses, code) in table {
        let length = if *method == "GET" { "" } else { "content-length: 0\r\n" };
        let response = raw::send(server.address, method, target, length);
        assert!(
            statuses.contains(&response.status),
            "{method} {target}: {} {}",
            response.status,
            response.text()
        );
        if response.status >= 400 && response.status != 405 {
            let body: serde_json::Value = serde_json::from_slice(&response.body)
                .unwrap_or_else(|e| panic!("{target}: {e}: {}", response.text()));
            let got =
                body["errors"][0]["code"].as_str().unwrap_or_else(|| panic!("{target}: {}", response.text()));
            assert!(code.is_empty() || got == *code, "{method} {target}: {got}");
        }
    }
    check_healthy(&server).await;
}

#[tokio::test]
async fn malformed_manifests_are_refused() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let absent = json!({"mediaType": "application/vnd.oci.image.config.v1+json", "digest": sha256(b"absent"), "size": 6});
    let image = |config: serde_json::Value| json!({"schemaVersion": 2, "mediaType": IMAGE_MANIFEST, "config": config, "layers": []});
    let mut upper = absent.clone();
    upper["digest"] = json!(sha256(b"absent").to_uppercase());
    let mut negative = absent.clone();
    negative["size"] = json!(-1);
    let table: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", b"".to_vec(), "MANIFEST_INVALID"),
        ("not JSON", b"hello".to_vec(), "MANIFEST_INVALID"),
        ("cut JSON", br#"{"schemaVersion": 2, "config": {"#.to_vec(), "MANIFEST_INVALID"),
        ("not UTF-8", vec![0xff, 0xfe, 0x00], "MANIFEST_INVALID"),
        ("an array", b"[]".to_vec(), "MANIFEST_INVALID"),
        ("a number", b"2".to_vec(), "MANIFEST_INVALID"),
        ("an object without anything", b"{}".to_vec(), "MANIFEST_INVALID"),
        (
            "schema 1",
            br#"{"schemaVersion": 1, "name": "x", "tag": "y", "fsLayers": []}"#.to_vec(),
            "MANIFEST_INVALID",
        ),
        ("config is a number", image(json!(5)).to_string().into_bytes(), "MANIFEST_INVALID"),
        ("an upper-case digest", image(upper).to_string().into_bytes(), "MANIFEST_INVALID"),
        ("a negative size", image(negative).to_string().into_bytes(), "MANIFEST_INVALID"),
        ("a config that is absent", image(absent.clone()).to_string().into_bytes(), "MANIFEST_BLOB_UNKNOWN"),
        ("nested too deep", [vec![b'['; 100_000], vec![b']'; 100_000]].concat(), "MANIFEST_INVALID"),
        (
            "another media type inside",
            json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": []}).to_string().into_bytes(),
            "MANIFEST_INVALID",
        ),
    ];
    for (what, bytes, code) in &table {
        let response = registry.manifest_put("bad/manifests", "v1", IMAGE_MANIFEST, bytes).await;
        assert!([400, 404].contains(&response.status), "{what}: {}", response.status);
        assert_eq!(response.code().as_deref(), Some(*code), "{what}: {}", response.text());
        registry.manifest_get("bad/manifests", "v1").await.expect(404);
    }
    // Over the limit, with and without a Content-Length.
    let pad = " ".repeat(5 << 20);
    let big = format!("{{\"schemaVersion\":2,{pad}\"manifests\":[]}}");
    registry
        .manifest_put("bad/manifests", "v1", IMAGE_INDEX, big.as_bytes())
        .await
        .expect_error(413, "SIZE_INVALID");
    let parts: Vec<Result<Vec<u8>, std::io::Error>> =
        big.as_bytes().chunks(65536).map(|part| Ok(part.to_vec())).collect();
    let body = reqwest::Body::wrap_stream(futures::stream::iter(parts));
    let request = registry
        .request("PUT", "/v2/bad/manifests/manifests/v1")
        .header("content-type", IMAGE_INDEX)
        .body(body);
    registry.send(request).await.expect_error(413, "SIZE_INVALID");
    // Four million bytes are within the limit.
    let pad = " ".repeat(4_000_000);
    let large = format!("{{\"schemaVersion\":2,{pad}\"mediaType\":\"{IMAGE_INDEX}\",\"manifests\":[]}}");
    registry.manifest_put("bad/manifests", "large", IMAGE_INDEX, large.as_bytes()).await.expect(201);
    // The digest in the path does not match the body.
    let index = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": []}).to_string();
    registry
        .manifest_put("bad/manifests", &sha256(b"other"), IMAGE_INDEX, index.as_bytes())
        .await
        .expect_error(400, "DIGEST_INVALID");
    registry
        .manifest_put("bad/manifests", "sha256:bad", IMAGE_INDEX, index.as_bytes())
        .await
        .expect_error(400, "DIGEST_INVALID");
    check_healthy(&server).await;
}

#[tokio::test]
async fn a_body_with_a_wrong_length_or_digest_is_refused() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let bytes = random_bytes(fresh_seed(), 300_000);
    let digest = sha256(&bytes);
    let separator = |path: &str| if path.contains('?') { '&' } else { '?' };
    // A PUT that sends less than its Content-Length and then closes the connection.
    let location = registry.upload_open("bad/length").await;
    let path = location.trim_start_matches(&server.url()).to_owned();
    let head = format!(
        "PUT {path}{}digest={digest} HTTP/1.1\r\nhost: {}\r\ncontent-length: 400000\r\n\r\n",
        separator(&path),
        server.address
    );
    let response = raw::exchange_truncated(server.address, &[head.as_bytes(), &bytes].concat());
    assert!(response.is_none_or(|a| (400..500).contains(&a.status)), "a short body was acknowledged");
    registry.blob_head("bad/length", &digest).await.expect(404);
    // A single POST cut in the middle.
    let head = format!(
        "POST /v2/bad/length/blobs/uploads/?digest={digest} HTTP/1.1\r\nhost: {}\r\ncontent-length: 300000\r\n\r\n",
        server.address
    );
    let response = raw::exchange_truncated(server.address, &[head.as_bytes(), &bytes[..100_000]].concat());
    assert!(response.is_none_or(|a| (400..500).contains(&a.status)));
    registry.blob_head("bad/length", &digest).await.expect(404);
    // A chunked body without its last chunk.
    let location = registry.upload_open("bad/length").await;
    let path = location.trim_start_matches(&server.url()).to_owned();
    let head = format!(
        "PUT {path}{}digest={digest} HTTP/1.1\r\nhost: {}\r\ntransfer-encoding: chunked\r\n\r\n",
        separator(&path),
        server.address
    );
    let part = [format!("{:x}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat();
    let response = raw::exchange_truncated(server.address, &[head.as_bytes(), &part].concat());
    assert!(
        response.is_none_or(|a| (400..500).contains(&a.status)),
        "a body without a last chunk was acknowledged"
    );
    registry.blob_head("bad/length", &digest).await.expect(404);
    // A truncated manifest.
    let index = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": []}).to_string();
    let head = format!(
        "PUT /v2/bad/length/manifests/v1 HTTP/1.1\r\nhost: {}\r\ncontent-type: {IMAGE_INDEX}\r\ncontent-length: {}\r\n\r\n{index}",
        server.address,
        index.len() + 10
    );
    let response = raw::exchange_truncated(server.address, head.as_bytes());
    assert!(response.is_none_or(|a| (400..500).contains(&a.status)));
    registry.manifest_get("bad/length", "v1").await.expect(404);
    // A wrong digest, then no digest.
    let location = registry.upload_open("bad/length").await;
    registry.upload_finish(&location, &sha256(b"other"), &bytes).await.expect_error(400, "DIGEST_INVALID");
    let location = registry.upload_open("bad/length").await;
    registry
        .send(registry.request("PUT", &location).body(bytes.clone()))
        .await
        .expect_error(400, "DIGEST_INVALID");
    for repository in ["bad/length"] {
        registry.blob_head(repository, &digest).await.expect(404);
        registry.blob_head(repository, &sha256(b"other")).await.expect(404);
    }
    check_healthy(&server).await;
}

#[tokio::test]
async fn malformed_http_is_refused() {
    let server = Server::fresh().await;
    let long_header = format!("GET /v2/ HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
    let table: &[&[u8]] = &[
        b"\r\n\r\n\r\n",
        b"hello\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        long_header.as_bytes(),
        b"GET /v2/ HTTP/1.1\r\nbad header\r\n\r\n",
    ];
    for bytes in table {
        let response = raw::exchange_truncated(server.address, bytes);
        assert!(response.is_none_or(|a| (400..500).contains(&a.status)));
    }
    // A client that sends nothing, or only half a head, does not block others.
    let mut slow = raw::connect(server.address);
    slow.write_all(b"GET /v2/ HTT").unwrap();
    let _silent = raw::connect(server.address);
    check_healthy(&server).await;
}

#[tokio::test]
async fn model_apis_return_json_errors() {
    let server = Server::fresh().await;
    let registry = server.registry();
    for path in [
        "/api/generate",
        "/api/chat",
        "/api/embed",
        "/api/show",
        "/api/copy",
        "/api/create",
        "/api/pull",
        "/api/push",
    ] {
        for body in
            ["", "hello", "[]", "{\"model\": 5}", "{\"model\": \"\"}", "{\"model\": \"no such model\"}", "{}"]
        {
            let response = registry.send(registry.request("POST", path).body(body)).await;
            assert!(
                (400..500).contains(&response.status),
                "{path} {body}: {} {}",
                response.status,
                response.text()
            );
            assert!(response.json()["error"].is_string(), "{path} {body}: {}", response.text());
        }
    }
    let base = json!({"architectures": ["LlamaForCausalLM"]}).to_string();
    let digest = sha256(base.as_bytes());
    let sent = registry.send(registry.request("POST", &format!("/api/blobs/{digest}")).body(base)).await;
    assert_eq!(sent.status, 201, "{}", sent.text());
    let files = json!({"config.json": digest});
    let made =
        registry.post_json("/api/create", &json!({"model": "x", "files": files, "stream": false})).await;
    assert_eq!(made.status, 200, "{}", made.text());
    for (fields, naming) in [
        (json!({"quantize": "q9", "files": files}), "`q9` is not a supported quantisation"),
        (json!({"license": 5, "from": "x"}), "expected a string or a list of strings"),
        (json!({"requires": "new", "from": "x"}), "'requires' is not a version"),
        (json!({"adapters": {"a.gguf": digest}, "from": "x"}), "`a.gguf` is malformed"),
        (json!({"draft_files": {"d.safetensors": digest}, "from": "x"}), "`d.safetensors` is malformed"),
        (json!({"files": {"cat.jpg": digest}, "stream": false}), "there is no model in the folder"),
    ] {
        let mut body = fields.clone();
        body["model"] = json!("bad/made");
        let response = registry.post_json("/api/create", &body).await;
        assert_eq!(response.status, 400, "{fields}: {}", response.text());
        assert!(response.text().contains(naming), "{fields}: {}", response.text());
    }
    let listed = registry.get("/api/tags").await.text();
    assert!(listed.contains("\"x:latest\"") && !listed.contains("bad/made"), "{listed}");
    for path in ["/hf/api/models", "/nothing"] {
        let response = registry.post_json(path, &json!({})).await;
        assert!([404, 405].contains(&response.status), "{path} is not a route: {}", response.status);
    }
    check_healthy(&server).await;
}
