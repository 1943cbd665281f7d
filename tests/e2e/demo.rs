//! `lode serve --demo` on an empty folder and on one that already has the model.
//! The test runs the commands that the server prints.

use lode_tests::checkpoint::demo_expected;
use lode_tests::server::{Folder, Options};
use serde_json::json;

#[tokio::test]
async fn the_demo_model_is_there_and_answers() {
    let folder = Folder::new();
    let options = Options::new().worker().arg("--demo");
    let server = folder.start(options.clone()).await;
    let took = server.started.elapsed();
    lode_tests::report::figure(
        "`lode serve --demo` on an empty folder, to ready",
        &format!("{} ms", took.as_millis()),
    );
    // The server becomes ready once the model is imported, and then prints suggested commands. This is the
    // last line.
    let output = server.wait_output("lode push").await;
    assert!(output.contains("lode run lode-demo") && output.contains("/api/generate"), "{output}");
    let generated = server.lode().run(&["run", "lode-demo", "What is 40 plus 41?"]).await.expect_success();
    assert!(!generated.stdout.trim().is_empty());
    let case = &demo_expected()["cases"][0];
    let body =
        json!({"model": "lode-demo", "prompt": case["user"], "stream": false, "options": {"temperature": 0}});
    let got = server.registry().post_json("/api/generate", &body).await.expect(200).json();
    assert_eq!(got["response"], case["answer"]);
    let before = lode_tests::checkpoint::read_folder(&folder.data().join("blobs")).len();
    assert!(server.stop().await.success());

    let server = folder.start(options).await;
    let list = server.lode().run(&["list"]).await.expect_success().stdout;
    assert_eq!(list.matches("lode-demo").count(), 1, "{list}");
    assert_eq!(
        lode_tests::checkpoint::read_folder(&folder.data().join("blobs")).len(),
        before,
        "the second start stored more blobs"
    );
    // The local worker maps the registry's blobs in place.
    server.registry().post_json("/api/generate", &body).await.expect(200);
    let cached = folder.data().join("worker");
    let copies =
        if cached.is_dir() { lode_tests::checkpoint::read_folder(&cached) } else { Default::default() };
    let large = copies.iter().filter(|(_, bytes)| bytes.len() > 100_000).count();
    assert_eq!(large, 0, "the worker copied tensors: {:?}", copies.keys());
}
