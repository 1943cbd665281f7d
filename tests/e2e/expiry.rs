//! An abandoned upload expires, and its bytes are deleted.
//! The test sets the expiry to one second.

use lode_tests::artifact::random_bytes;
use lode_tests::checkpoint::read_folder;
use lode_tests::command::wait_until;
use lode_tests::server::{Folder, Options};

#[tokio::test]
async fn an_abandoned_upload_expires_with_its_bytes() {
    let folder = Folder::new();
    let options = Options::new().env("LODE_UPLOAD_EXPIRY", "1s").env("LODE_GC_INTERVAL", "1s");
    let server = folder.start(options).await;
    let registry = server.registry();
    let location = registry.upload_open("team/abandoned").await;
    registry.upload_append(&location, 0, &random_bytes(1, 3_000_000)).await.expect(202);
    wait_until("the upload has expired", || async { registry.get(&location).await.status == 404 }).await;
    wait_until("its bytes are deleted", || async {
        read_folder(folder.data())
            .iter()
            .filter(|(name, _)| !name.starts_with("lode.db"))
            .map(|(_, bytes)| bytes.len())
            .sum::<usize>()
            < 1_000_000
    })
    .await;
    registry.upload_append(&location, 3_000_000, b"late").await.expect_error(404, "BLOB_UPLOAD_UNKNOWN");
    server.lode().run(&["fsck"]).await.expect_success();
}
