//! The key that encrypts keys in the database: what is encrypted, and a server without it or with another.

use lode_client::Secret;
use serde_json::json;
use url::Url;

use super::App;
use super::access::{PASSWORD, basic};
use super::gateway::local;
use super::logs::Log;
use crate::store::query;
use crate::{Config, open};

const KEY: &str = "0123456789abcdef0123456789abcdef";

/// The values of the database that others could use: of keys, and of secrets of workers.
async fn stored(app: &App) -> Vec<Vec<u8>> {
    let keys: Vec<(Vec<u8>,)> =
        query!(app.registry.store().read(), c => sqlx::query_as("select value from server_keys").fetch_all(c).await)
            .unwrap();
    let secrets: Vec<(String,)> =
        query!(app.registry.store().read(), c => sqlx::query_as("select secret from workers").fetch_all(c).await)
            .unwrap();
    keys.into_iter()
        .map(|(key,)| key)
        .chain(secrets.into_iter().map(|(secret,)| secret.into_bytes()))
        .collect()
}

#[tokio::test]
async fn keys_in_the_database_are_encrypted() {
    // In both, the data folder has the lock only; the database is opened again and again.
    let folder = tempfile::tempdir().unwrap();
    let sqlite: Url = format!("sqlite:{}", folder.path().join("keys.db").display()).parse().unwrap();
    let databases = [Some(sqlite), crate::store::postgres_for_test().await];
    for database in databases.into_iter().flatten() {
        let config = |key: Option<&str>| Config {
            admin_password: Some(Secret::new(PASSWORD)),
            worker_token: Some(Secret::new("enrol")),
            database: Some(database.clone()),
            secret_key: key.map(Secret::new),
            ..Config::default()
        };
        // 1. Without a key, they are stored as they are; with one, they are encrypted from then on.
        let app = App::with(config(None)).await;
        let (token, _) = app.token(&basic("admin", PASSWORD), json!({"name": "x"})).await;
        let exchanged = app.get_as(&token, "/token?scope=repository:team/app:pull").await.json();
        let exchanged = format!("Bearer {}", exchanged["token"].as_str().unwrap());
        let plain = stored(&app).await;
        assert!(!plain.is_empty() && !plain.iter().any(|value| is_sealed(value)));
        app.registry.close().await;
        let app = App::with(config(Some(KEY))).await;
        let body = json!({"advertise": "http://127.0.0.1:1"});
        let joined = local(&app, "POST", "/lode/v1/workers", Some("enrol"), body).await.json();
        assert_eq!(app.get_as(&exchanged, "/v2/").await.status, 200, "the same key, in another form");
        let sealed = stored(&app).await;
        assert!(sealed.iter().all(|value| is_sealed(value)), "{} values", sealed.len());
        assert!(sealed.len() > plain.len());
        let secret = joined["secret"].as_str().unwrap().as_bytes();
        assert!(!sealed.iter().any(|value| value.windows(secret.len()).any(|part| part == secret)));
        app.registry.close().await;
        // 2. Without it or with another one, the server does not start, and changes nothing.
        for (key, expected) in
            [(None, "secret_key"), (Some("another key of thirty-two bytes!"), "secret_key")]
        {
            let data = tempfile::tempdir().unwrap();
            let log = Log::default();
            let _second = tracing::Dispatch::new(Log::default());
            let _logging = tracing::subscriber::set_default(log.clone());
            let opened = open(Config { data: data.path().to_owned(), ..config(key) }).await;
            let error = opened.err().expect("the server does not start");
            let text = crate::error::chain(&error).to_string();
            assert!(text.contains(expected) || text.contains("LODE_SECRET_KEY"), "{text}");
            assert!(!log.text().contains("stored unencrypted"), "{}", log.text());
        }
        let short = tempfile::tempdir().unwrap();
        assert!(open(Config { data: short.path().to_owned(), ..config(Some("short")) }).await.is_err());
        // 3. With the right one everything is as before, also from a file.
        let file = folder.path().join("key");
        std::fs::write(&file, format!("{KEY}\n")).unwrap();
        let app = App::with(Config { secret_key_file: Some(file), ..config(None) }).await;
        assert_eq!(stored(&app).await, sealed);
        for credentials in [&token, &exchanged] {
            assert_eq!(app.get_as(credentials, "/v2/").await.status, 200);
        }
        app.registry.close().await;
    }
}

fn is_sealed(value: &[u8]) -> bool {
    value.starts_with(b"lode-sealed-1:") || value.starts_with(b"sealed:")
}

#[tokio::test]
async fn the_password_of_the_administrator_comes_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let app = App::with(Config { admin_password_file: Some(file.clone()), ..Config::default() }).await;
    assert_eq!(app.get_as("", "/v2/").await.status, 401);
    assert_eq!(app.get_as(&basic("admin", PASSWORD), "/v2/").await.status, 200);
    // Without the file, or with a password that is too short, the server stays closed: it does not start.
    for content in [None, Some(""), Some("short\n")] {
        match content {
            Some(content) => std::fs::write(&file, content).unwrap(),
            None => std::fs::remove_file(&file).unwrap(),
        }
        let data = tempfile::tempdir().unwrap();
        let config = Config {
            admin_password_file: Some(file.clone()),
            data: data.path().to_owned(),
            ..Config::default()
        };
        assert!(open(config).await.is_err(), "{content:?}");
    }
}
