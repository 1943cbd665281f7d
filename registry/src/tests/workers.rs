//! Credentials of workers on a server with accounts.

use http::Request;
use lode_client::Secret;
use serde_json::{Value, json};

use super::App;
use super::access::{PASSWORD, basic};
use super::gateway::{Joined, local};
use crate::Config;

const TOKEN: &str = "the secret of all workers";

async fn start() -> App {
    let config = Config {
        admin_password: Some(Secret::new(PASSWORD)),
        worker_token: Some(Secret::new(TOKEN)),
        ..Config::default()
    };
    App::with(config).await
}

async fn join(app: &App, port: u16) -> Joined {
    let body = json!({"advertise": format!("http://127.0.0.1:{port}")});
    let response = local(app, "POST", "/lode/v1/workers", Some(TOKEN), body).await;
    assert_eq!(response.status, 201, "{}", response.text());
    let registration = response.json();
    let text = |name: &str| registration[name].as_str().unwrap().to_owned();
    Joined { id: text("id"), credential: text("credential"), secret: text("secret") }
}

#[tokio::test]
async fn administrators_remove_workers() {
    let app = start().await;
    let admin = basic("admin", PASSWORD);
    assert_eq!(app.push_as(&admin, "team/app").await.status, 201);
    let (alice, worker, other) = (app.user("alice").await, join(&app, 1).await, join(&app, 2).await);
    let credential = format!("Bearer {}", worker.credential);
    let exchanged = app.get_as(&credential, "/token?scope=repository:team/app:pull").await.json();
    let exchanged = format!("Bearer {}", exchanged["token"].as_str().unwrap());
    for credentials in [&credential, &exchanged] {
        assert_eq!(app.pull_as(credentials, "team/app").await, 200);
    }
    // 1. No other caller removes a worker: not a user, not another worker, not the shared secret.
    let remove = async |credentials: &str| {
        app.send_as(credentials, Request::delete(worker.path()), "").await.status.as_u16()
    };
    assert_eq!((remove("").await, remove(&alice).await), (401, 403));
    assert_eq!(remove(&format!("Bearer {}", other.credential)).await, 404);
    assert_eq!(remove(&format!("Bearer {TOKEN}")).await, 401);
    assert_eq!(app.pull_as(&credential, "team/app").await, 200);
    // 2. Its credential ends at once, with the access tokens that it got.
    assert_eq!((remove(&admin).await, remove(&admin).await), (204, 404));
    for credentials in [&credential, &exchanged] {
        assert_eq!(app.pull_as(credentials, "team/app").await, 401);
    }
    let beat = local(&app, "PUT", &worker.path(), Some(&worker.credential), json!({})).await;
    assert_eq!(beat.status, 404);
    let listed = app.admin("GET", "/lode/v1/workers", Value::Null).await.json();
    assert_eq!(listed["workers"].as_array().map(Vec::len), Some(1), "{listed}");
    let records = app.admin("GET", "/lode/v1/audit?action=worker.remove", Value::Null).await.json();
    let record = &records["records"][0];
    assert_eq!(
        (&record["actor"], &record["target"]),
        (&json!("user:admin"), &json!(format!("worker:{}", worker.id)))
    );
    // 3. A worker leaves on its own.
    assert_eq!(local(&app, "DELETE", &other.path(), Some(&other.credential), Value::Null).await.status, 204);
    assert_eq!(app.pull_as(&format!("Bearer {}", other.credential), "team/app").await, 401);
}

/// Another replica removes a worker that this one has seen a moment ago.
#[tokio::test]
async fn a_removed_worker_is_refused_by_every_replica() {
    let app = start().await;
    assert_eq!(app.push_as(&basic("admin", PASSWORD), "team/app").await.status, 201);
    let worker = join(&app, 1).await;
    let credential = format!("Bearer {}", worker.credential);
    let began = std::time::Instant::now();
    assert_eq!(app.pull_as(&credential, "team/app").await, 200);
    let mut tx = app.registry.store().begin().await.unwrap();
    assert!(tx.worker_delete(worker.id.parse().unwrap(), None).await.unwrap());
    tx.commit().await.unwrap();
    // The version of access control is read every half second; the table of workers every second.
    tokio::time::sleep(std::time::Duration::from_millis(520)).await;
    assert_eq!(app.pull_as(&credential, "team/app").await, 401, "after {:?}", began.elapsed());
}

/// Two replicas: a worker is drained through one of them, and neither sends it requests.
#[tokio::test]
async fn a_drained_worker_gets_no_requests() {
    use super::gateway::{records, worker};
    let data = tempfile::tempdir().unwrap();
    let database = url::Url::parse(&format!("sqlite:{}", data.path().join("shared.db").display())).unwrap();
    let storage = url::Url::from_file_path(data.path().join("storage")).unwrap();
    let config = |folder: &str| Config {
        admin_password: Some(Secret::new(PASSWORD)),
        worker_token: Some(Secret::new(TOKEN)),
        database: Some(database.clone()),
        data: data.path().join(folder),
        ..Config::default()
    };
    let first = App::with(Config { storage: Some(storage), ..config("a") }).await;
    let second = App::with(config("b")).await;
    let admin = basic("admin", PASSWORD);
    assert_eq!(first.push_as(&admin, "team/app").await.status, 201);
    let (address, heard) = worker(|| records("{\"done\":true}\n")).await;
    let joined = join(&first, address.port()).await;
    let digest = first
        .get_as(&admin, "/v2/team/app/manifests/latest")
        .await
        .header("docker-content-digest")
        .to_owned();
    let loaded = json!([{"repository": "team/app", "digest": digest, "name": "team/app:v2"}]);
    let beat = json!({"loaded": loaded, "cached": [digest]});
    let beat =
        async |app: &App| local(app, "PUT", &joined.path(), Some(&joined.credential), beat.clone()).await;
    let generate = async |app: &App| {
        let request = Request::post("/api/generate");
        app.send_as(&admin, request, r#"{"model":"team/app","prompt":"x"}"#).await
    };
    let state = async |app: &App| {
        let status = app.get_as(&admin, "/lode/v1/status").await.json();
        status["workers"][0]["state"].as_str().unwrap().to_owned()
    };
    assert_eq!((beat(&first).await.status.as_u16(), generate(&first).await.status.as_u16()), (204, 200));
    let status = first.get_as(&admin, "/lode/v1/status").await.json();
    assert_eq!(status["workers"][0]["models"][0]["name"], "team/app:v2");

    // 1. Only administrators drain a worker that exists.
    let path = format!("{}/drain", joined.path());
    let alice = first.user("alice").await;
    let drain = async |credentials: &str, method: &str, path: &str| {
        let request = Request::builder().method(method).uri(path);
        first.send_as(credentials, request, "").await.status.as_u16()
    };
    assert_eq!(drain(&alice, "PUT", &path).await, 403);
    assert_eq!(drain(&format!("Bearer {}", joined.credential), "PUT", &path).await, 403);
    assert_eq!(drain(&admin, "PUT", &format!("/lode/v1/workers/{}/drain", super::routes::ID)).await, 404);
    assert_eq!(drain(&admin, "PUT", &path).await, 204);

    // 2. A heartbeat reports it to the worker and does not undo it, not even with another inventory.
    for app in [&first, &second] {
        let reply = beat(app).await;
        assert_eq!((reply.status.as_u16(), reply.text()), (200, "{\"draining\":true}"));
    }
    let changed = json!({"loaded": [], "cached": []});
    let reply = local(&first, "PUT", &joined.path(), Some(&joined.credential), changed).await;
    assert_eq!((reply.status.as_u16(), state(&first).await.as_str()), (200, "drained"));
    assert_eq!(beat(&first).await.status, 200);
    assert_eq!(state(&first).await, "draining");

    // 3. No replica sends requests to it.
    let before = heard.lock().unwrap().len();
    // The table of the other replica is up to a second old.
    while state(&second).await != "draining" {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let refused = generate(&first).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(refused.text().contains("the only worker is draining"), "{}", refused.text());
    assert_eq!(heard.lock().unwrap().len(), before);

    // 4. Resumed, it gets requests again.
    assert_eq!((drain(&admin, "DELETE", &path).await, beat(&first).await.status.as_u16()), (204, 204));
    assert_eq!((generate(&first).await.status.as_u16(), state(&first).await.as_str()), (200, "ready"));
    let records = first.admin("GET", "/lode/v1/audit?action=worker.drain", Value::Null).await.json();
    assert_eq!(records["records"][0]["target"], format!("worker:{}", joined.id));
}
