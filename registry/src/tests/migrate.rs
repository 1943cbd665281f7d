//! Migration to another database and another storage: everything is copied, an interrupted run resumes, and
//! nothing writes in the meantime.

use std::sync::Arc;

use http::Request;
use lode_client::{NoProgress, Progress};
use lode_model::digest::{Algorithm, Digest};
use lode_model::media_type;
use serde_json::json;
use tempfile::TempDir;
use url::Url;

use super::{App, failure};
use crate::auth::Caller;
use crate::blobs::testing::bucket_for_test;
use crate::{Config, Error, MigrateReport, OpenError, migrate, open, router};

fn quiet(_bytes: u64) -> Arc<dyn Progress> {
    Arc::new(NoProgress)
}

/// Migration targets: each database with each available storage.
async fn targets(folder: &TempDir) -> Vec<Config> {
    let path = |name: &str| folder.path().join(name);
    let sqlite: Url = format!("sqlite:{}", path("to.db").display()).parse().unwrap();
    let storage = |name: &str| Url::from_file_path(path(name)).unwrap();
    let mut all = vec![Config { database: Some(sqlite), storage: Some(storage("one")), ..Config::default() }];
    if let Some(database) = crate::store::postgres_for_test().await {
        all.push(Config { database: Some(database), storage: Some(storage("two")), ..Config::default() });
    }
    if let (Some(database), Some(bucket)) = (crate::store::postgres_for_test().await, bucket_for_test()) {
        all.push(Config {
            database: Some(database),
            storage: Some(bucket),
            redirect: crate::Switch::Off,
            ..Config::default()
        });
    }
    all
}

async fn serve(config: Config) -> App {
    let data = tempfile::tempdir().unwrap();
    let registry = open(Config { data: data.path().to_owned(), ..config }).await.unwrap();
    App { router: router(registry.clone()).unwrap(), registry, _data: data }
}

/// Stops a server and returns its folder, unlocked.
async fn stop(app: App) -> (TempDir, Config) {
    let config = app.registry.config().clone();
    let folder = app.close().await;
    let config = Config { data: folder.path().to_owned(), ..config };
    (folder, config)
}

async fn move_registry(from: &Config, to: &Config) -> Result<MigrateReport, OpenError> {
    migrate(from.clone(), to.clone(), quiet).await
}

/// A copy of a large table takes longer than a statement of a request may take.
#[tokio::test]
async fn a_slow_statement_does_not_end_a_migration() {
    let Some(database) = crate::store::postgres_for_test().await else { return };
    let app = App::new().await;
    app.push_image("team/mini", "v1", "one").await;
    let (_folder, from) = stop(app).await;
    let elsewhere = tempfile::tempdir().unwrap();
    let storage = Url::from_file_path(elsewhere.path().join("blobs")).unwrap();
    let to = Config { database: Some(database.clone()), storage: Some(storage), ..Config::default() };
    // Creates the tables.
    drop(stop(serve(to.clone()).await).await);
    let pool = sqlx::PgPool::connect(database.as_str()).await.unwrap();
    let seconds = crate::store::postgres::STATEMENT_LIMIT.as_secs() + 1;
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!(
        "create function slow() returns trigger language plpgsql as
             $$ begin perform pg_sleep({seconds}); return null; end $$;
         create trigger slow after insert on tags for each statement execute function slow()"
    )))
    .execute(&pool)
    .await
    .unwrap();
    let report = move_registry(&from, &to).await.unwrap();
    assert_eq!((report.repositories, report.tags), (1, 1));
}

#[tokio::test]
async fn a_migration_copies_everything() {
    // 1. Push some of everything.
    let app = App::new().await;
    let first = app.push_image("team/mini", "v1", "one").await;
    let second = app.push_image("team/mini", "v2", "two").await;
    app.push_image("other", "latest", "one").await;
    let size = app.get("/v2/team/mini/manifests/v1").await.body.len();
    let index = json!({
        "schemaVersion": 2, "mediaType": media_type::OCI_INDEX,
        "manifests": [{"mediaType": media_type::OCI_MANIFEST, "digest": first, "size": size}],
    });
    assert_eq!(app.push_manifest("team/mini", "all", &index).await.status, 201);
    let config = app.push_blob("team/mini", "{}").await;
    let mut signature = super::image(&config, 2, &[]);
    signature["subject"] = json!({"mediaType": media_type::OCI_MANIFEST, "digest": first, "size": 1});
    assert_eq!(app.push_manifest("team/mini", "signature", &signature).await.status, 201);
    let long = Digest::of(Algorithm::Sha512, b"long digest");
    let path = format!("/v2/other/blobs/uploads/?digest={long}");
    assert_eq!(app.send(Request::post(path), "long digest").await.status, 201);
    app.push_blob("other", "").await;
    app.upload("other").await;
    assert_eq!(app.delete("/v2/team/mini/manifests/v2").await.status, 202);
    let (_folder, from) = stop(app).await;

    let elsewhere = tempfile::tempdir().unwrap();
    for to in targets(&elsewhere).await {
        // 2. Damage interrupts the migration; with the blob restored it resumes.
        let path = from.data.join("blobs/sha256").join(second.hex());
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, vec![b' '; bytes.len()]).unwrap();
        let cut = move_registry(&from, &to).await.unwrap_err();
        assert!(cut.to_string().contains(second.as_str()), "{cut}");
        std::fs::write(&path, bytes).unwrap();
        let report = move_registry(&from, &to).await.unwrap();
        assert_eq!((report.repositories, report.tags), (2, 4), "{report:?}");
        assert!(report.blobs >= 9 && report.blobs_copied <= report.blobs, "{report:?}");

        // 3. Served at the target, it is the same registry.
        let moved = serve(to.clone()).await;
        for (tag, digest) in [
            ("team/mini/manifests/v1", &first),
            ("team/mini/manifests/all", &Digest::sha256(index.to_string().as_bytes())),
        ] {
            assert_eq!(
                moved.get(&format!("/v2/{tag}")).await.header("docker-content-digest"),
                digest.as_str()
            );
        }
        assert_eq!(moved.get(&format!("/v2/other/blobs/{long}")).await.text(), "long digest");
        let referrers = moved.get(&format!("/v2/team/mini/referrers/{first}")).await.json();
        assert_eq!(referrers["manifests"].as_array().unwrap().len(), 1);
        assert_eq!(moved.get("/v2/_catalog").await.json()["repositories"], json!(["other", "team/mini"]));
        assert_eq!(moved.get("/v2/team/mini/manifests/v2").await.status, 404);
        let sound = moved.registry.fsck(&Caller::INTERNAL, true).await.unwrap();
        assert!(sound.is_sound() && sound.orphans.is_empty(), "{sound:?}");
        assert_eq!(sound.blobs, report.blobs);
        // It accepts pushes, and collections run.
        moved.registry.gc_run(&Caller::INTERNAL, false).await.unwrap();
        let third = moved.push_image("team/mini", "v3", "three").await;
        stop(moved).await;

        // 4. A completed migration is not repeated over newer content, and no other registry can use the
        // target.
        let again = move_registry(&from, &to).await.unwrap();
        assert!(again.done_before && again.blobs_copied == 0, "{again:?}");
        let empty = Url::from_file_path(elsewhere.path().join("empty")).ok();
        let refused = move_registry(&from, &Config { storage: empty, ..to.clone() }).await;
        assert!(matches!(refused, Err(OpenError::Config { setting: "to-storage", .. })), "{refused:?}");
        let (_stranger, stranger) = stop(App::new().await).await;
        let refused = move_registry(&stranger, &to).await;
        assert!(matches!(refused, Err(OpenError::Config { setting: "to-database", .. })), "{refused:?}");
        let moved = serve(to).await;
        assert_eq!(
            moved.get("/v2/team/mini/manifests/v3").await.header("docker-content-digest"),
            third.as_str()
        );
        stop(moved).await;
    }
}

#[tokio::test]
async fn only_read_only_servers_share_the_folder() {
    let app = App::new().await;
    let digest = app.push_image("team/mini", "v1", "one").await;
    let layer = Digest::sha256(b"one");
    let elsewhere = tempfile::tempdir().unwrap();
    let to = targets(&elsewhere).await.remove(0);
    // A server with write access blocks the migration.
    let refused = migrate(app.registry.config().clone(), to.clone(), quiet).await;
    assert!(matches!(refused, Err(OpenError::FolderInUse { .. })), "{refused:?}");
    let (folder, config) = stop(app).await;

    // A read-only one keeps running, and refuses all changes.
    let app = App::with_data(Config { read_only: true, ..config.clone() }, folder).await;
    assert_eq!(migrate(config.clone(), to, quiet).await.unwrap().tags, 1);
    assert_eq!(app.get("/v2/team/mini/manifests/v1").await.header("docker-content-digest"), digest.as_str());
    assert_eq!(app.get(&format!("/v2/team/mini/blobs/{layer}")).await.text(), "one");
    assert_eq!(app.send(Request::head(format!("/v2/team/mini/blobs/{layer}")), "").await.status, 200);
    let tagged = format!("/v2/team/mini/manifests/{digest}");
    for (method, path) in [
        ("POST", "/v2/team/mini/blobs/uploads/".to_owned()),
        ("POST", format!("/v2/team/other/blobs/uploads/?mount={layer}&from=team/mini")),
        ("PUT", "/v2/team/mini/manifests/v2".to_owned()),
        ("DELETE", tagged),
        ("DELETE", format!("/v2/team/mini/blobs/{layer}")),
    ] {
        let response = app.send(Request::builder().method(method).uri(&path), "").await;
        assert_eq!(response.failure(), failure(405, "UNSUPPORTED"), "{method} {path}");
        assert!(response.text().contains("read-only"), "{}", response.text());
    }
    assert_eq!(app.post_json("/lode/v1/gc", json!({})).await.status, 405);
    // No server with write access can start while it reads.
    let writer = open(Config { read_only: false, ..config }).await;
    assert!(matches!(writer.map(drop), Err(OpenError::FolderInUse { .. })));
}

#[tokio::test]
async fn a_folder_without_a_registry_does_not_take_the_new_place() {
    let app = App::new().await;
    app.push_image("team/mini", "v1", "one").await;
    let (_folder, from) = stop(app).await;
    let elsewhere = tempfile::tempdir().unwrap();
    for to in targets(&elsewhere).await {
        // A misspelt name, and a server that has its database elsewhere.
        let misspelt = Config { data: from.data.join("misspelt"), ..from.clone() };
        let refused = move_registry(&misspelt, &to).await;
        assert!(matches!(refused, Err(OpenError::Registry(Error::Storage { .. }))), "{refused:?}");
        assert!(!misspelt.data.exists());
        let apart = Config { database: "postgres://db/lode".parse().ok(), ..from.clone() };
        let refused = move_registry(&apart, &to).await;
        assert!(matches!(refused, Err(OpenError::Config { setting: "database", .. })), "{refused:?}");
        // The right one can be migrated.
        assert_eq!(move_registry(&from, &to).await.unwrap().tags, 1);
    }
}
