//! Counts of pulls: what counts at each door, how often, where the counts are shown, and when they are written.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::ConnectInfo;
use http::{Method, Request};
use lode_model::media_type;
use serde_json::{Value, json};

use super::access::{PASSWORD, basic};
use super::gateway::join;
use super::models::push_model;
use super::{App, TestResponse, image};
use crate::Config;

/// Repositories without content are deleted at once.
fn config() -> Config {
    Config {
        gc_grace: Duration::ZERO,
        gc_undo: Some(Duration::ZERO),
        upload_lease: Duration::ZERO,
        ..Config::default()
    }
}

/// On each engine.
async fn each_config(config: &Config, test: impl AsyncFn(Config)) {
    let databases = [Some(None), crate::store::postgres_for_test().await.map(Some)];
    for database in databases.into_iter().flatten() {
        test(Config { database, ..config.clone() }).await;
    }
}

/// A request from an address.
fn from(address: &str, method: Method, path: &str) -> http::request::Builder {
    let peer = SocketAddr::new(address.parse().unwrap(), 1234);
    Request::builder().method(method).uri(path).extension(ConnectInfo(peer))
}

/// The pulls of a repository in 30 days and of all time, once they are written.
async fn pulls(app: &App, credentials: &str, repository: &str) -> (u64, u64) {
    app.registry.write_pulls().await.unwrap();
    let list = app.get_as(credentials, &format!("/lode/v1/repositories?prefix={repository}")).await.json();
    let found = &list["repositories"][0];
    assert_eq!(found["repository"], repository);
    let number = |name: &str| found[name].as_u64().unwrap();
    (number("pulls_last_30_days"), number("pulls_all_time"))
}

/// Pushes files; returns the digest of the manifest.
async fn push_files(app: &App, repository: &str) -> String {
    let mut layers = Vec::new();
    let files: [(&str, &[u8]); 2] = [("config.json", b"{\"a\":1}"), ("logo.png", b"\x89PNG\r\n\x1a\n0000")];
    for (name, bytes) in files {
        let digest = app.push_blob(repository, bytes).await;
        layers.push(
            json!({"mediaType": media_type::OLLAMA_JSON, "digest": digest, "size": bytes.len(), "name": name}),
        );
    }
    let config = app.push_blob(repository, "{}").await;
    let response = app.push_manifest(repository, "latest", &image(&config, 2, &layers)).await;
    assert_eq!(response.status, 201, "{}", response.text());
    response.header("docker-content-digest").to_owned()
}

#[tokio::test]
async fn each_door_counts_a_caller_once_an_hour() {
    each_config(&config(), async |config: Config| {
        let app = App::with(config).await;
        let digest = push_files(&app, "team/m").await;
        push_files(&app, "team/other").await;
        let manifest = "/v2/team/m/manifests/latest";
        let by_digest = format!("/v2/team/m/manifests/{digest}");
        let (file, raw) = ("/hf/team/m/resolve/main/config.json", "/team/m/-/raw/latest/config.json");
        let doors = [manifest, &by_digest, file, raw];
        for (at, path) in doors.iter().enumerate() {
            for _ in 0..2 {
                let address = format!("192.0.2.{at}");
                assert_eq!(app.send(from(&address, Method::GET, path), "").await.status, 200, "{path}");
            }
            assert_eq!(pulls(&app, "", "team/m").await, (at as u64 + 1, at as u64 + 1), "{path}");
        }
        // Another door is no other pull, another repository is one.
        for path in doors {
            assert_eq!(app.send(from("192.0.2.0", Method::GET, path), "").await.status, 200);
        }
        let other = from("192.0.2.0", Method::GET, "/v2/team/other/manifests/latest");
        assert_eq!(app.send(other, "").await.status, 200);
        assert_eq!((pulls(&app, "", "team/m").await, pulls(&app, "", "team/other").await), ((4, 4), (1, 1)));

        let etag = |response: TestResponse| response.header("etag").to_owned();
        let (of_manifest, of_file) = (etag(app.get(manifest).await), etag(app.get(file).await));
        let counted = pulls(&app, "", "team/m").await;
        let get = |path: &str| from("198.51.100.1", Method::GET, path);
        let mut requests: Vec<(http::request::Builder, u16)> =
            doors.map(|path| (from("198.51.100.1", Method::HEAD, path), 200)).into();
        for (path, status) in [
            (&format!("/v2/team/m/referrers/{digest}")[..], 200),
            (&format!("/v2/team/m/blobs/{}", lode_model::digest::Digest::sha256(b"{}")), 200),
            ("/v2/team/m/tags/list", 200),
            ("/v2/team/m/manifests/none", 404),
            ("/hf/team/m/resolve/main/none", 404),
            ("/team/m/-/raw/latest/none", 404),
            ("/team/m/-/raw/latest/logo.png", 200),
            ("/team/m/-/blob/latest/config.json", 200),
            ("/team/m", 200),
            ("/hf/api/models/team/m", 200),
            ("/hf/api/models/team/m/tree/main", 200),
        ] {
            requests.push((get(path), status));
        }
        requests.push((get(manifest).header("if-none-match", of_manifest), 304));
        requests.push((get(file).header("if-none-match", of_file), 304));
        requests.push((get(file).header("range", "bytes=100-"), 416));
        for (request, status) in requests {
            let path = format!("{:?} {:?}", request.method_ref(), request.uri_ref());
            assert_eq!(app.send(request, "").await.status, status, "{path}");
        }
        assert_eq!(pulls(&app, "", "team/m").await, counted);
        assert_eq!(app.send(get(file).header("range", "bytes=1-2"), "").await.status, 206);
        assert_eq!(pulls(&app, "", "team/m").await.0, counted.0 + 1);
        assert!(app.get("/metrics").await.text().contains("\nlode_pulls_total "));
        // By day, for programs.
        let found = app.get("/lode/v1/repositories/team/m/pulls").await.json();
        let days = found["days"].as_array().unwrap();
        assert_eq!((days.len(), &found["last_30_days"]), (30, &json!(counted.0 + 1)));
        let today = crate::time::date(crate::time::now_ms());
        let last = days[29]["date"].as_str().unwrap();
        assert!(last <= today.as_str() && days[28]["date"].as_str().unwrap() < last, "{found}");
        let sum: u64 = days.iter().map(|day| day["pulls"].as_u64().unwrap()).sum();
        assert_eq!(sum, counted.0 + 1);
    })
    .await;
}

#[tokio::test]
async fn callers_are_accounts_or_networks() {
    let trusted_proxies = vec!["10.0.0.0/8".parse().unwrap()];
    let app = App::with(Config { trusted_proxies, ..config() }).await;
    let worker = join(&app, ([127, 0, 0, 1], 1).into()).await;
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let admin = basic("admin", PASSWORD);
    let alice = app.user("alice").await;
    assert_eq!(app.push_as(&admin, "open/m").await.status, 201);
    app.show("open/m", "public").await;
    let path = "/v2/open/m/manifests/latest";
    let get = async |credentials: &str, address: &str, forwarded: &str| {
        let mut request = from(address, Method::GET, path);
        if !forwarded.is_empty() {
            request = request.header("x-forwarded-for", forwarded);
        }
        let status = app.send_as(credentials, request, "").await.status;
        (status.as_u16(), pulls(&app, &admin, "open/m").await.0)
    };
    // An account, from everywhere and with each of its credentials.
    let (token, _) = app.token(&alice, json!({"name": "x"})).await;
    assert_eq!(get(&alice, "192.0.2.1", "").await, (200, 1));
    assert_eq!(get(&token, "192.0.2.2", "").await, (200, 1));
    // Clients without an account, by their network, also behind a proxy; with a guest's token, too.
    assert_eq!(get("", "192.0.2.1", "").await, (200, 2));
    let guest = app.get_as("", "/token?scope=repository:open/m:pull").await.json();
    let guest = format!("Bearer {}", guest["token"].as_str().unwrap());
    assert_eq!(get(&guest, "192.0.2.1", "").await, (200, 2));
    assert_eq!(get("", "10.0.0.1", "192.0.2.1").await, (200, 2));
    assert_eq!(get("", "10.0.0.1", "192.0.2.9").await, (200, 3));
    assert_eq!(get("", "192.0.2.1", "192.0.2.77").await, (200, 3), "no trusted proxy");
    assert_eq!(get("", "2001:db8::1", "").await, (200, 4));
    assert_eq!(get("", "2001:db8::2", "").await, (200, 4), "the same network");
    // Refusals, workers, and the server itself.
    assert_eq!(get(&basic("alice", "wrong"), "192.0.2.50", "").await, (401, 4));
    let own = format!("Bearer {}", app.registry.internal_token().expose());
    assert_eq!(get(&own, "127.0.0.1", "").await, (200, 4));
    assert_eq!(get(&format!("Bearer {}", worker.credential), "127.0.0.1", "").await, (200, 4));
    // The counts are those of what a caller may read.
    app.show("open/m", "private").await;
    assert_eq!(app.get_as(&alice, "/lode/v1/repositories").await.json()["repositories"], json!([]));
}

#[tokio::test]
async fn lists_show_the_counts_and_sort_by_them() {
    each_config(&config(), async |config: Config| {
        let app = App::with(config).await;
        for repository in ["a/one", "b/two", "c/three"] {
            push_model(&app, repository, "latest").await;
        }
        for (repository, callers) in [("a/one", 1), ("b/two", 3)] {
            for caller in 0..callers {
                let path = format!("/v2/{repository}/manifests/latest");
                let address = format!("192.0.2.{caller}");
                assert_eq!(app.send(from(&address, Method::GET, &path), "").await.status, 200);
            }
        }
        app.registry.write_pulls().await.unwrap();
        // Hugging Face's clients.
        let (mut found, mut path) = (Vec::new(), "/hf/api/models?sort=downloads&limit=1".to_owned());
        loop {
            let page = app.send(Request::get(&path).header("host", "localhost"), "").await;
            assert_eq!(page.status, 200, "{}", page.text());
            found.extend(page.json().as_array().unwrap().clone());
            let Some(link) = page.headers.get("link") else { break };
            let (_, rest) = link.to_str().unwrap().split_once("/hf/").unwrap();
            path = format!("/hf/{}", rest.split_once('>').unwrap().0);
        }
        let shown =
            |model: &Value| (model["id"].as_str().unwrap().to_owned(), model["downloads"].as_u64().unwrap());
        let found: Vec<(String, u64)> = found.iter().map(shown).collect();
        let expect =
            [("b/two", 3), ("a/one", 1), ("c/three", 0)].map(|(name, pulls)| (name.to_owned(), pulls));
        assert_eq!(found, expect);
        let info = app.get("/hf/api/models/b/two").await.json();
        assert_eq!((&info["downloads"], info.get("downloadsAllTime")), (&json!(3), None));
        let info = app.get("/hf/api/models/b/two?expand=downloads&expand=downloadsAllTime").await.json();
        assert_eq!((&info["downloads"], &info["downloadsAllTime"]), (&json!(3), &json!(3)));
        assert_eq!(info.as_object().unwrap().len(), 4, "and the ids");
        let list = app.get("/hf/api/models?sort=downloads&expand=downloadsAllTime").await.json();
        assert_eq!((&list[0]["id"], &list[0]["downloadsAllTime"]), (&json!("b/two"), &json!(3)));

        // The pages.
        let page = app.get("/models?sort=pulls").await;
        let positions = ["/b/two", "/a/one", "/c/three"]
            .map(|name| page.text().find(&format!("href=\"{name}\"")).unwrap());
        assert!(positions.is_sorted(), "{}", page.text());
        assert!(page.text().contains("<option value=\"pulls\" selected>most pulled</option>"));
        assert!(page.text().contains("<li>3 pulls in 30 days</li>"), "{}", page.text());
        let home = app.send(Request::get("/").header("accept", "text/html"), "").await;
        let (_, pulled) = home.text().split_once("Most pulled in 30 days").unwrap();
        let expect =
            ["/b/two\">b/two <span class=\"muted\">3 pulls<", "/a/one\">a/one <span class=\"muted\">1 pull<"];
        let positions = expect.map(|text| pulled.find(text).unwrap());
        assert!(positions.is_sorted() && !pulled.contains("c/three"), "{pulled}");
        let overview = app.get("/b/two").await;
        assert!(overview.text().contains("<dd>3 in 30 days, 3 in total <svg"), "{}", overview.text());
        let label = "role=\"img\" aria-label=\"3 pulls on the day with the most, 3 today\"";
        assert!(overview.text().contains(label), "{}", overview.text());
        assert!(overview.text().contains("<rect x=\"87\" y=\"0\" width=\"2\" height=\"20\"/></svg>"));
        assert!(!overview.text().contains("style="));
        let overview = app.get("/c/three").await;
        assert!(overview.text().contains("<dd>0 in 30 days, 0 in total</dd>"), "{}", overview.text());
    })
    .await;
}

#[tokio::test]
async fn counts_are_written_at_the_end_and_deleted_with_the_repository() {
    each_config(&config(), async |config: Config| {
        let app = App::with(config.clone()).await;
        app.push_image("team/m", "v1", "layer").await;
        assert_eq!(app.get("/v2/team/m/manifests/v1").await.status, 200);
        let app = App::with_data(config, app.close().await).await;
        assert_eq!(pulls(&app, "", "team/m").await, (1, 1));
        // This process has not seen the caller.
        assert_eq!(app.get("/v2/team/m/manifests/v1").await.status, 200);
        // Pulls of a repository that is deleted before they are written.
        assert_eq!(app.delete("/v2/team/m/manifests/v1").await.status, 202);
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(app.job("/lode/v1/gc", json!({})).await["state"], "succeeded");
        assert_eq!(app.get("/lode/v1/repositories").await.json()["repositories"], json!([]));
        app.registry.write_pulls().await.unwrap();
        app.push_image("team/m", "v1", "layer").await;
        assert_eq!(pulls(&app, "", "team/m").await, (0, 0));
    })
    .await;
}
