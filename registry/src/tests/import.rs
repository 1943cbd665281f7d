//! Copies from another registry as jobs. The source is a second server behind a proxy that counts requests and can
//! lie, stop, or redirect.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::{Router, routing};
use bytes::Bytes;
use futures::StreamExt;
use http::{StatusCode, header};
use lode_client::Secret;
use lode_model::digest::Digest;
use lode_model::media_type;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::access::{PASSWORD, basic, closed};
use super::models::push_model;
use super::wire::within;
use super::{App, TestResponse, image};
use crate::Config;
use crate::store::query;

/// What the proxy does with a GET of a blob.
#[derive(Clone)]
pub(super) enum Fault {
    /// Another content of the same length.
    Lie,
    /// Sends half of it and closes the connection, once.
    Cut,
    Refuse,
    /// Sends nothing until there is another fault, or none.
    Hold,
    Redirect(String),
}

/// A server that has models, with a socket.
pub(super) struct Source {
    pub(super) app: App,
    pub(super) address: SocketAddr,
    /// Method and path of each request, and its range.
    heard: Arc<Mutex<Vec<String>>>,
    faults: Arc<Mutex<BTreeMap<Digest, Fault>>>,
}

impl Source {
    pub(super) async fn start() -> Source {
        Source::of(App::new().await).await
    }

    async fn of(app: App) -> Source {
        let (heard, faults) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(BTreeMap::new())));
        let (inner, notes, rules) = (app.router.clone(), heard.clone(), faults.clone());
        let routes = Router::new().fallback(routing::any(move |request: Request| {
            let (inner, notes, rules) = (inner.clone(), notes.clone(), rules.clone());
            async move {
                let path = request.uri().path().to_owned();
                let range = request.headers().get(header::RANGE).map_or("", |range| range.to_str().unwrap());
                notes.lock().unwrap().push(format!("{} {path} {range}", request.method()));
                let digest = path.rsplit_once("/blobs/").and_then(|(_, digest)| digest.parse().ok());
                respond(inner, rules, digest, request).await
            }
        }));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Source { app, address, heard, faults }
    }

    pub(super) fn set(&self, digest: &Digest, fault: Fault) {
        self.faults.lock().unwrap().insert(digest.clone(), fault);
    }

    pub(super) fn repair(&self) {
        self.faults.lock().unwrap().clear();
    }

    pub(super) fn name(&self, model: &str) -> String {
        format!("{}/{model}", self.address)
    }

    /// The requests that began with this text since the last call.
    pub(super) fn heard(&self, start: &str) -> Vec<String> {
        let heard = std::mem::take(&mut *self.heard.lock().unwrap());
        heard.into_iter().filter(|line| line.starts_with(start)).collect()
    }

    /// The GETs of blobs since the last call.
    fn fetched(&self) -> Vec<String> {
        self.heard("GET").into_iter().filter(|line| line.contains("/blobs/")).collect()
    }

    /// Waits for a request for this blob.
    pub(super) async fn is_asked_for(&self, digest: &Digest) {
        let part = format!("/blobs/{digest} ");
        let is_heard = || self.heard.lock().unwrap().iter().any(|line| line.contains(&part));
        within(async {
            while !is_heard() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

async fn respond(
    inner: Router,
    faults: Arc<Mutex<BTreeMap<Digest, Fault>>>,
    digest: Option<Digest>,
    request: Request,
) -> Response {
    let response = inner.oneshot(request).await.unwrap();
    let Some(digest) = digest.filter(|_| response.status().is_success()) else { return response };
    let fault = loop {
        let fault = faults.lock().unwrap().get(&digest).cloned();
        match fault {
            Some(Fault::Hold) => tokio::time::sleep(Duration::from_millis(5)).await,
            other => break other,
        }
    };
    match fault {
        None | Some(Fault::Hold) => response,
        Some(Fault::Refuse) => StatusCode::FORBIDDEN.into_response(),
        Some(Fault::Redirect(target)) => {
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, target)]).into_response()
        }
        Some(Fault::Lie) => {
            let (parts, body) = response.into_parts();
            let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            Response::from_parts(parts, vec![b'!'; bytes.len()].into())
        }
        Some(Fault::Cut) => {
            faults.lock().unwrap().remove(&digest);
            let (parts, body) = response.into_parts();
            let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            let half = bytes.slice(..bytes.len() / 2);
            let half = futures::stream::once(async { Ok::<Bytes, std::io::Error>(half) });
            let lost = futures::stream::once(async {
                // The first half has to leave before the connection ends.
                tokio::time::sleep(Duration::from_millis(50)).await;
                Err(std::io::Error::other("cut"))
            });
            Response::from_parts(parts, Body::from_stream(half.chain(lost)))
        }
    }
}

/// An image with one layer; returns the digest of the layer.
pub(super) async fn push_layer(app: &App, repository: &str, tag: &str, layer: &str) -> Digest {
    app.push_image(repository, tag, layer).await;
    Digest::sha256(layer.as_bytes())
}

pub(super) async fn start(app: &App, body: Value) -> TestResponse {
    app.post_json("/lode/v1/import", body).await
}

/// Copies a model, and returns the job when it has ended.
async fn copy(app: &App, from: &str, model: &str) -> Value {
    within(app.job("/lode/v1/import", json!({"model": model, "from": from}))).await
}

pub(super) fn problem(job: &Value) -> &str {
    assert_eq!(job["state"], "failed", "{job}");
    job["problem"].as_str().unwrap()
}

/// A server with the administrator `admin`, which may connect to the source.
async fn closed_to(there: &Source) -> App {
    App::with(Config {
        listen: "0.0.0.0:5000".parse().unwrap(),
        allow_egress: vec![there.address.to_string().parse().unwrap()],
        admin_password: Some(Secret::new(PASSWORD)),
        ..Config::default()
    })
    .await
}

/// The stored secrets of jobs.
async fn secrets(app: &App) -> Vec<String> {
    let store = app.registry.store();
    let text = "select secret from jobs where secret is not null";
    let rows: Vec<(String,)> = query!(store.read(), c => sqlx::query_as(text).fetch_all(c).await).unwrap();
    rows.into_iter().map(|(secret,)| secret).collect()
}

#[tokio::test]
async fn an_index_is_copied_with_all_that_it_lists() {
    let there = Source::start().await;
    push_model(&there.app, "team/all", "model").await;
    let one = there.app.push_image("team/all", "one", "first layer").await;
    let two = there.app.push_image("team/all", "two", "second layer").await;
    let entry = |digest: &Digest| json!({"mediaType": media_type::OCI_MANIFEST, "digest": digest, "size": 1});
    let sized = async |digest: &Digest| {
        let mut entry = entry(digest);
        let stored = there.app.get(&format!("/v2/team/all/manifests/{digest}")).await;
        entry["size"] = stored.body.len().into();
        entry
    };
    let index = json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_INDEX,
        "manifests": [sized(&one).await, sized(&two).await],
    });
    let pushed = there.app.push_manifest("team/all", "v1", &index).await;
    assert_eq!(pushed.status, 201, "{}", pushed.text());
    let index: Digest = pushed.header("docker-content-digest").parse().unwrap();
    let mut signature = image(&Digest::sha256(b"{}"), 2, &[]);
    signature["subject"] = entry(&index);
    signature["subject"]["mediaType"] = media_type::OCI_INDEX.into();
    signature["subject"]["size"] = pushed_size(&there.app, &index).await.into();
    assert_eq!(there.app.push_manifest("team/all", "signature", &signature).await.status, 201);

    // The first layer is stored here already, in another repository.
    let here = App::new().await;
    here.push_blob("other", "first layer").await;
    let job = copy(&here, &there.name("team/all:v1"), "copies/all:v2").await;
    assert_eq!((&job["kind"], &job["state"]), (&json!("import"), &json!("succeeded")), "{job}");
    let result = &job["result"];
    assert_eq!(result["digest"], index.to_string());
    // The config of both, and two layers.
    assert_eq!((&result["blobs"], &result["bytes"]), (&json!(3), &json!(25)));
    assert_eq!((&result["fetched_blobs"], &result["fetched_bytes"]), (&json!(2), &json!(14)));
    assert_eq!(there.fetched().len(), 2);
    for reference in ["v2".to_owned(), index.to_string(), one.to_string(), two.to_string()] {
        let theirs =
            there.app.get(&format!("/v2/team/all/manifests/{}", reference.replace("v2", "v1"))).await;
        assert_eq!(here.get(&format!("/v2/copies/all/manifests/{reference}")).await.body, theirs.body);
    }
    // Signatures and other referrers are artifacts of their own and are not part of the copy.
    let referrers = here.get(&format!("/v2/copies/all/referrers/{index}")).await.json();
    assert_eq!(referrers["manifests"], json!([]));

    // Again, to another name: nothing is transferred but manifests.
    let again =
        copy(&here, &format!("http://{}", there.name(&format!("team/all@{index}"))), "again/all").await;
    assert_eq!((&again["state"], &again["result"]["fetched_blobs"]), (&json!("succeeded"), &json!(0)));
    assert_eq!(there.fetched(), [""; 0]);
    // A model is read as one, and shares its tensors.
    let job = copy(&here, &there.name("team/all:model"), "copies/mini").await;
    assert_eq!(job["state"], "succeeded", "{job}");
    assert_eq!(
        here.get("/lode/v1/tensors/copies/mini/latest").await.json()["tensors"][0]["name"],
        "embed.weight"
    );
    let records = here.get("/lode/v1/audit?action=import.start").await.json();
    assert_eq!(records["records"].as_array().unwrap().len(), 3, "{records}");
}

async fn pushed_size(app: &App, digest: &Digest) -> usize {
    app.get(&format!("/v2/team/all/manifests/{digest}")).await.body.len()
}

#[tokio::test]
async fn a_source_that_stops_is_continued() {
    let there = Source::start().await;
    let layer = push_layer(&there.app, "team/app", "v1", &"large layer ".repeat(100_000)).await;
    let here = App::new().await;
    // 1. A lost connection: the same run requests the rest.
    there.set(&layer, Fault::Cut);
    let job = copy(&here, &there.name("team/app:v1"), "app").await;
    assert_eq!(job["state"], "succeeded", "{job}");
    let reads: Vec<_> = there.fetched().into_iter().filter(|line| line.contains(layer.as_str())).collect();
    assert_eq!(reads.len(), 2, "{reads:?}");
    let from = reads[1].split_once("bytes=").unwrap().1.split('-').next().unwrap();
    assert!(from.parse::<usize>().unwrap() > 0, "{reads:?}");

    // 2. A blob that the source refuses in the end: the next job fetches this one alone.
    let last = push_layer(&there.app, "team/two", "v1", "last layer").await;
    let here = App::new().await;
    there.set(&last, Fault::Hold);
    let started = start(&here, json!({"model": "two", "from": there.name("team/two:v1")})).await;
    there.is_asked_for(&last).await;
    let progress = json!({"phase": "fetching", "done": 2, "total": 12, "unit": "bytes"});
    within(async {
        while here.get(started.header("location")).await.json()["progress"] != progress {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let config = Digest::sha256(b"{}");
    within(async {
        while here.get(&format!("/v2/two/blobs/{config}")).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    there.set(&last, Fault::Refuse);
    let job = within(here.until_finished(started.header("location"))).await;
    let address = format!("http://{}", there.address);
    assert!(problem(&job).contains(&address) && problem(&job).contains("team/two"), "{job}");
    assert_eq!(here.get("/v2/two/manifests/latest").await.status, 404);
    there.repair();
    there.heard("");
    let job = copy(&here, &there.name("team/two:v1"), "two").await;
    assert_eq!((&job["state"], &job["result"]["fetched_blobs"]), (&json!("succeeded"), &json!(1)), "{job}");
    assert!(there.fetched().iter().all(|line| line.contains(last.as_str())));
}

#[tokio::test]
async fn a_blob_with_other_bytes_is_not_stored() {
    let there = Source::start().await;
    let layer = push_layer(&there.app, "team/app", "v1", "honest layer").await;
    there.set(&layer, Fault::Lie);
    let here = App::new().await;
    let job = copy(&here, &there.name("team/app:v1"), "app").await;
    assert!(problem(&job).contains("does not have that digest"), "{job}");
    assert!(problem(&job).contains(layer.as_str()) && problem(&job).contains("team/app"), "{job}");
    assert_eq!(here.get("/v2/app/manifests/latest").await.status, 404);
    assert_eq!(here.get(&format!("/v2/app/blobs/{layer}")).await.status, 404);
}

#[tokio::test]
async fn addresses_inside_the_network_are_refused() {
    let there = Source::start().await;
    let layer = push_layer(&there.app, "team/app", "v1", "layer").await;
    let internal = Source::start().await;
    let config = |rules: &[String]| Config {
        listen: "0.0.0.0:5000".parse().unwrap(),
        allow_anonymous: true,
        allow_egress: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
        ..Config::default()
    };
    // 1. The source itself.
    let here = App::with(config(&[])).await;
    let refused =
        start(&here, json!({"model": "app", "from": format!("http://{}", there.name("team/app:v1"))})).await;
    assert_eq!(refused.status, 403, "{}", refused.text());
    assert!(refused.text().contains("--allow-egress") && refused.text().contains(&there.address.to_string()));
    assert_eq!(there.heard(""), [""; 0]);
    // 2. A redirect of a permitted one.
    there.set(&layer, Fault::Redirect(format!("http://{}/secret", internal.address)));
    let here = App::with(config(&[there.address.to_string()])).await;
    let job = copy(&here, &there.name("team/app:v1"), "app").await;
    assert!(problem(&job).contains("--allow-egress"), "{job}");
    assert!(problem(&job).contains(&internal.address.to_string()), "{job}");
    assert_eq!(internal.heard(""), [""; 0]);
    assert_eq!(here.get("/v2/app/manifests/latest").await.status, 404);
}

#[tokio::test]
async fn a_login_is_kept_for_the_job_alone() {
    let there = Source::of(closed().await).await;
    let bob = there.app.user("bob").await;
    assert_eq!(there.app.push_as(&bob, "bob/app").await.status, 201);
    let blob = Digest::sha256(b"{}");
    there.app.user("carol").await;
    let from = there.name("bob/app");
    // 1. Without a login, with a wrong one, and without the right to read.
    let here = App::new().await;
    for (login, status) in [
        (json!({}), 424),
        (json!({"username": "bob", "password": "wrong-password"}), 424),
        (json!({"username": "carol", "password": PASSWORD}), 404),
    ] {
        let mut body = json!({"model": "app", "from": from});
        body.as_object_mut().unwrap().extend(login.as_object().unwrap().clone());
        let refused = start(&here, body).await;
        assert_eq!(refused.status, status, "{}", refused.text());
        let text = refused.text();
        assert!(text.contains(&there.address.to_string()) && text.contains("bob/app"), "{text}");
        assert!(!text.contains("wrong-password") && !text.contains(PASSWORD), "{text}");
    }
    // 2. While the job runs, its row has the login encrypted, and nothing shows it.
    for is_cancelled in [false, true] {
        let secret_key = Some(Secret::new("0123456789abcdef0123"));
        let here = App::with(Config { secret_key, ..Config::default() }).await;
        there.set(&blob, Fault::Hold);
        let body = json!({"model": "app", "from": from, "username": "bob", "password": PASSWORD});
        let started = start(&here, body).await;
        assert_eq!(started.status, 202, "{}", started.text());
        there.is_asked_for(&blob).await;
        let stored = secrets(&here).await;
        assert!(stored.len() == 1 && stored[0].starts_with("sealed:"), "{stored:?}");
        let location = started.header("location");
        for path in [location, "/lode/v1/jobs", "/lode/v1/audit"] {
            let shown = here.get(path).await;
            assert!(
                !shown.text().contains(PASSWORD) && !shown.text().contains("sealed:"),
                "{}",
                shown.text()
            );
        }
        if is_cancelled {
            assert!(here.delete(location).await.status.is_success());
        } else {
            there.repair();
        }
        let job = within(here.until_finished(location)).await;
        assert_eq!(job["state"], if is_cancelled { "cancelled" } else { "succeeded" }, "{job}");
        assert_eq!(secrets(&here).await, [""; 0]);
        let status = here.get("/v2/app/manifests/latest").await.status;
        assert_eq!(status, if is_cancelled { 404 } else { 200 });
        there.heard("");
    }
}

#[tokio::test]
async fn a_copy_ends_with_the_rights_of_the_caller() {
    let there = Source::start().await;
    let here = closed_to(&there).await;
    let (alice, bob) = (here.user("alice").await, here.user("bob").await);
    let import = async |credentials: &str, repository: &str| {
        let body = json!({"model": "alice/app", "from": there.name(repository)});
        here.send_as(credentials, Request::post("/lode/v1/import"), body.to_string()).await
    };
    assert_eq!(import("", "team/app").await.status, 401);
    assert_eq!(import(&bob, "team/app").await.status, 404);
    assert_eq!(there.heard(""), [""; 0], "nothing is requested for a caller who may not push");

    // What ends the rights while blobs are fetched: a revoked token, a role, a disabled account. The source still holds
    // the blob when the job ends.
    let (token, id) = here.token(&alice, json!({"name": "ci"})).await;
    here.grant("alice/app", "bob", "write").await;
    let revoke = format!("/lode/v1/tokens/{id}");
    let no_grant = json!({"target": "alice/app", "subject": "bob"});
    let (ended_credential, ended_role) =
        ("or its token or key was revoked", "may no longer push to alice/app");
    for (credentials, method, path, repository, body, reason) in [
        (&token, "DELETE", &revoke[..], "team/one", json!({}), ended_credential),
        (&bob, "PUT", "/lode/v1/grants", "team/two", no_grant, ended_role),
        (
            &alice,
            "PATCH",
            "/lode/v1/accounts/alice",
            "team/three",
            json!({"disabled": true}),
            ended_credential,
        ),
    ] {
        let layer = push_layer(&there.app, repository, "latest", path).await;
        there.set(&layer, Fault::Hold);
        let started = import(credentials, repository).await;
        assert_eq!(started.status, 202, "{}", started.text());
        there.is_asked_for(&layer).await;
        let admin = if path == revoke { &alice } else { &basic("admin", PASSWORD) };
        let request = Request::builder().method(method).uri(path);
        let ended = here.send_as(admin, request, body.to_string()).await;
        assert!(ended.status.is_success(), "{method} {path}: {}", ended.text());
        let location = format!("{}?wait=60", started.header("location"));
        let job = within(here.get_as(&basic("admin", PASSWORD), &location)).await.json();
        assert!(problem(&job).contains(reason), "{path}: {job}");
        there.repair();
        let made = here.get_as(&basic("admin", PASSWORD), "/v2/alice/app/manifests/latest").await;
        assert_eq!(made.status, 404, "{path}");
        there.heard("");
    }
}

/// What is left is for collections and checks.
#[tokio::test]
async fn copies_of_many_accounts_leave_room_for_administrators() {
    let there = Source::start().await;
    let layer = push_layer(&there.app, "team/app", "v1", "layer").await;
    there.set(&layer, Fault::Hold);
    let here = closed_to(&there).await;
    let import = async |credentials: &str, model: String| {
        let body = json!({"model": model, "from": there.name("team/app:v1")});
        here.send_as(credentials, Request::post("/lode/v1/import"), body.to_string()).await
    };
    for name in ["ann", "bob", "cat", "dan"] {
        let user = here.user(name).await;
        for at in 0..20 {
            let started = import(&user, format!("{name}/copy{at}")).await;
            assert_eq!(started.status, 202, "{}", started.text());
        }
        if name == "ann" {
            let refused = import(&user, "ann/more".to_owned()).await;
            assert_eq!(refused.status, 429, "{}", refused.text());
            assert!(refused.text().contains("20 jobs of the kind `import` of this account"));
        }
    }
    let eve = here.user("eve").await;
    let refused = import(&eve, "eve/copy".to_owned()).await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(
        refused.text().contains("80 or more unfinished jobs") && refused.text().contains("administrator")
    );
    let admin = basic("admin", PASSWORD);
    for path in ["/lode/v1/gc", "/lode/v1/fsck"] {
        let started = here.admin("POST", path, json!({})).await;
        let location = format!("{}?wait=60", started.header("location"));
        let job = within(here.get_as(&admin, &location)).await.json();
        assert_eq!(job["state"], "succeeded", "{job}");
    }
    here.registry.close().await;
}

#[tokio::test]
async fn another_server_continues_a_copy() {
    let there = Source::start().await;
    let last = push_layer(&there.app, "team/app", "v1", "last layer").await;
    there.set(&last, Fault::Hold);
    let here = App::new().await;
    let started = start(&here, json!({"model": "app", "from": there.name("team/app:v1")})).await;
    let location = started.header("location").to_owned();
    there.is_asked_for(&last).await;
    let config = format!("/v2/app/blobs/{}", Digest::sha256(b"{}"));
    within(async {
        while here.get(&config).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let data = here.close().await;
    there.repair();
    there.heard("");
    // The tag moves meanwhile: the job copies what it named when the job started.
    there.app.push_image("team/app", "v1", "another layer").await;

    let here = App::with_data(Config::default(), data).await;
    let job = within(here.until_finished(&location)).await;
    assert_eq!((&job["state"], &job["result"]["fetched_blobs"]), (&json!("succeeded"), &json!(1)), "{job}");
    assert!(there.fetched().iter().all(|line| line.contains(last.as_str())));
    let manifest = here.get("/v2/app/manifests/latest").await.json();
    assert_eq!(manifest["layers"][0]["digest"], last.as_str());
}

#[tokio::test]
async fn copies_do_not_keep_other_jobs_waiting() {
    let there = Source::start().await;
    let layer = push_layer(&there.app, "team/app", "v1", "layer").await;
    there.set(&layer, Fault::Hold);
    let here = App::new().await;
    let body = |at: usize| json!({"model": format!("copy{at}"), "from": there.name("team/app:v1")});
    for at in 0..20 {
        assert_eq!(start(&here, body(at)).await.status, 202);
    }
    let refused = start(&here, body(20)).await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(refused.text().contains("20 jobs"), "{}", refused.text());
    let collected = within(here.job("/lode/v1/gc", json!({}))).await;
    assert_eq!(collected["state"], "succeeded", "{collected}");
    there.repair();
    let all = here.get("/lode/v1/jobs").await.json();
    for job in all["jobs"].as_array().unwrap() {
        let location = format!("/lode/v1/jobs/{}", job["id"].as_str().unwrap());
        assert_eq!(within(here.until_finished(&location)).await["state"], "succeeded");
    }
}

#[tokio::test]
async fn sources_that_cannot_be_read_are_named() {
    let there = Source::start().await;
    push_layer(&there.app, "team/app", "v1", "layer").await;
    let here = App::new().await;
    let from = there.name("team/app:v1");
    let zero = format!("sha256:{}", "0".repeat(64));
    for (body, status, part) in [
        (json!({"from": "team/app"}), 400, "HOST/REPOSITORY"),
        (json!({"from": "ftp://host.example/team/app"}), 400, "scheme"),
        (json!({"from": "https://host.example"}), 400, ""),
        (json!({"from": format!("http://ann:secret@{from}")}), 400, "`username`"),
        (json!({"from": format!("{from}x")}), 404, "team/app:v1x"),
        (json!({"from": there.name("team/none")}), 404, "check the name"),
        (json!({"from": "127.0.0.1:1/team/app"}), 502, "http://127.0.0.1:1"),
        (json!({"from": from, "model": format!("copy@{zero}")}), 400, "use a tag"),
        (json!({"from": from, "quantize": "int4"}), 400, "hf://"),
        (json!({"from": from, "username": "ann"}), 400, "both"),
        (json!({"from": "hf://team/app", "username": "ann", "password": "x"}), 400, "token"),
    ] {
        let mut request = json!({"model": "copy"});
        request.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let refused = start(&here, request).await;
        assert_eq!(refused.status.as_u16(), status, "{body}: {}", refused.text());
        assert!(refused.text().contains(part), "{body}: {}", refused.text());
        assert!(!refused.text().contains("secret"), "{}", refused.text());
    }
    assert_eq!(here.get("/lode/v1/jobs").await.json()["jobs"], json!([]));
}
