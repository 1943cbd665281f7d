//! Moving a registry: a backup of the running server, the same folder served read-only, and the migration to
//! a database and a bucket.

use lode_tests::artifact::{Image, fresh_seed};
use lode_tests::server::{Folder, Options, Server};
use lode_tests::services::Backends;

async fn start_filled() -> (Server, Image, Image) {
    let server = Server::fresh().await;
    let (first, second) =
        (Image::random(fresh_seed(), 3, 200_000), Image::random(fresh_seed(), 1, 6_000_000));
    first.push(&server.registry(), "moving/first", "v1").await;
    second.push(&server.registry(), "moving/second", "v1").await;
    (server, first, second)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_running_server_is_a_data_folder() {
    let (server, first, second) = start_filled().await;
    let data = server.folder().data().to_str().unwrap().to_owned();
    let copy = Folder::new();
    let to = copy.data().to_str().unwrap();
    server.lode().run(&["backup", "--data", &data, "--to", to]).await.expect_success();
    // The next backup adds what was pushed since.
    let later = Image::random(fresh_seed(), 1, 1_000);
    later.push(&server.registry(), "moving/later", "v1").await;
    server.lode().run(&["backup", "--data", &data, "--to", to]).await.expect_success();
    drop(server);

    let restored = copy.serve().await;
    for (image, repository) in
        [(&first, "moving/first"), (&second, "moving/second"), (&later, "moving/later")]
    {
        image.check(&restored.registry(), repository, "v1").await;
    }
    restored.lode().run(&["fsck", "--verify"]).await.expect_success();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_moves_to_a_database_and_a_bucket_while_it_is_read() {
    let Some(backing) = Backends::shared("moving::a_folder_moves") else { return };
    let (server, first, second) = start_filled().await;
    let folder = server.folder().clone();
    let data = folder.data().to_str().unwrap().to_owned();
    let (database, storage) = (backing.database.clone().unwrap(), backing.storage.clone().unwrap());
    let migrate = ["migrate", "--data", &data, "--to-database", &database, "--to-storage", &storage];
    // The migration refuses a folder that a server writes to.
    server.lode().run(&migrate).await.expect_failure(&["in use"]);
    server.stop().await;

    let old = folder.start(Options::new().arg("--read-only")).await;
    let refused =
        old.registry().send(old.registry().request("POST", "/v2/moving/first/blobs/uploads/")).await;
    assert_eq!(refused.status, 405, "{}", refused.text());
    old.lode().run(&migrate).await.expect_success();
    first.check(&old.registry(), "moving/first", "v1").await;
    // A repeated migration has nothing to do.
    old.lode().run(&migrate).await.expect_success();

    let elsewhere = Folder::new();
    let new = elsewhere.start(Options::new().with_backends(&backing)).await;
    first.check(&new.registry(), "moving/first", "v1").await;
    second.check(&new.registry(), "moving/second", "v1").await;
    new.lode().run(&["fsck", "--verify"]).await.expect_success();
    let fresh = Image::random(fresh_seed(), 1, 10_000);
    fresh.push(&new.registry(), "moving/first", "v2").await;
}
