//! A database from before there were accounts: it opens with everything in it, stays open to all, and can get
//! accounts.

use http::Request;
use serde_json::json;
use sqlx::{AssertSqlSafe, SqlitePool};
use tempfile::TempDir;

use super::App;
use super::access::{PASSWORD, basic};
use super::models::push_model;
use crate::Config;

/// The last version of the schema without accounts.
const OLD: i64 = 12;

/// A data folder as a server of that version would have left it: the rows of a new one, without the tables and
/// columns that are newer.
async fn old_data(app: App) -> TempDir {
    let newer = app.close().await;
    let data = tempfile::tempdir().unwrap();
    std::fs::rename(newer.path().join("blobs"), data.path().join("blobs")).unwrap();
    let url = format!("sqlite:{}?mode=rwc", data.path().join("lode.db").display());
    let pool = SqlitePool::connect(&url).await.unwrap();
    let mut migrator = sqlx_macros::migrate!("../migrations/sqlite");
    migrator.migrations = migrator.migrations.iter().filter(|step| step.version <= OLD).cloned().collect();
    migrator.run(&pool).await.unwrap();
    // One connection, which has the newer database attached.
    let mut connection = pool.acquire().await.unwrap();
    let newer = newer.path().join("lode.db").display().to_string();
    let run = async |connection: &mut sqlx::SqliteConnection, text: String| {
        sqlx::query(AssertSqlSafe(text.clone()))
            .execute(connection)
            .await
            .unwrap_or_else(|error| panic!("{text}: {error}"));
    };
    run(&mut connection, format!("attach '{newer}' as newer")).await;
    run(&mut connection, "pragma foreign_keys = off".to_owned()).await;
    let tables: Vec<(String,)> =
        sqlx::query_as("select name from main.sqlite_schema where type = 'table' and name not like '%sqlx%' and name not like 'sqlite%'")
            .fetch_all(&mut *connection)
            .await
            .unwrap();
    for (table,) in tables {
        let columns: Vec<(String,)> = sqlx::query_as("select name from pragma_table_info($1, 'main')")
            .bind(&table)
            .fetch_all(&mut *connection)
            .await
            .unwrap();
        let columns: Vec<String> = columns.into_iter().map(|(name,)| format!("\"{name}\"")).collect();
        let columns = columns.join(", ");
        run(&mut connection, format!("delete from main.{table}")).await;
        run(
            &mut connection,
            format!("insert into main.{table} ({columns}) select {columns} from newer.{table}"),
        )
        .await;
    }
    drop(connection);
    let newer_tables: (i64,) = sqlx::query_as(
        "select count(*) from sqlite_schema where name in ('accounts', 'access_state', 'audit')",
    )
    .fetch_one(&pool)
    .await
    .unwrap();
    assert_eq!(newer_tables.0, 0);
    pool.close().await;
    data
}

#[tokio::test]
async fn a_database_without_accounts_opens_and_gets_them() {
    let older = App::new().await;
    push_model(&older, "team/mini", "latest").await;
    older.push_image("single", "v1", "content").await;
    let listed = older.get("/lode/v1/models").await.json();
    let data = old_data(older).await;
    let app = App::with_data(Config::default(), data).await;
    // 1. Everything is there, for every client.
    assert_eq!(app.get("/readyz").await.status, 200);
    assert_eq!(app.get("/lode/v1/models").await.json(), listed);
    assert_eq!(app.get("/v2/_catalog").await.json(), json!({"repositories": ["single", "team/mini"]}));
    assert_eq!(app.get("/lode/v1/accounts").await.json()["accounts"], json!([]));
    let manifest = app.get("/v2/single/manifests/v1").await;
    assert_eq!(manifest.status, 200);
    let layer = manifest.json()["layers"][0]["digest"].as_str().unwrap().to_owned();
    assert_eq!(app.get(&format!("/v2/single/blobs/{layer}")).await.text(), "content");
    // 2. Old tags, whose author is unknown, can be moved and deleted.
    app.push_image("single", "v1", "other").await;
    assert_eq!(app.delete("/v2/team/mini/manifests/latest").await.status, 202);
    push_model(&app, "team/mini", "latest").await;
    let report = app.registry.fsck(&crate::auth::Caller::INTERNAL, true).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    // 3. With the first account, what exists becomes internal.
    let first = json!({"name": "admin", "password": PASSWORD, "server_role": "admin"});
    assert_eq!(app.post_json("/lode/v1/accounts", first).await.status, 201);
    let alice = app.user("alice").await;
    for repository in ["single", "team/mini"] {
        let path = format!("/v2/{repository}/tags/list");
        let statuses = [("", 401), (&alice[..], 200), (&basic("admin", PASSWORD)[..], 200)];
        for (credentials, status) in statuses {
            assert_eq!(app.get_as(credentials, &path).await.status, status, "{repository} {credentials}");
        }
        let request = Request::delete(format!("/v2/{repository}/manifests/latest"));
        assert_eq!(app.send_as(&alice, request, "").await.status, 403);
    }
}
