//! docker with its own daemon on a scratch folder: images are pushed and pulled back unchanged.
//! A single test, because a daemon starts slowly.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use lode_tests::artifact::{fresh_seed, random_bytes};
use lode_tests::clients::Docker;
use lode_tests::cluster::Deployment;
use lode_tests::command::{run_successfully, wait_until};
use lode_tests::oci::Registry;
use lode_tests::server::{Folder, Options};

/// Builds an image of two layers without running a container.
fn build(docker: &Docker, scratch: &Path, name: &str, layer_bytes: usize) -> String {
    let context = scratch.join("context");
    fs::create_dir_all(&context).unwrap();
    for file in ["a.bin", "b.bin"] {
        fs::write(context.join(file), random_bytes(fresh_seed(), layer_bytes)).unwrap();
    }
    fs::write(
        context.join("Dockerfile"),
        "FROM scratch\nCOPY a.bin /a.bin\nCOPY b.bin /models/b.bin\nLABEL note=\"two layers\"\n",
    )
    .unwrap();
    run_successfully(&mut docker.command(&["build", "-q", "-t", name, context.to_str().unwrap()]));
    run_successfully(&mut docker.command(&["image", "inspect", "-f", "{{.Id}}", name])).trim().to_owned()
}

async fn there_and_back(docker: &Docker, scratch: &Path, registry: &Registry) {
    let name = format!("{}/team/image:v1", registry.host());
    let id = build(docker, scratch, &name, 2_000_000);
    let pushed = run_successfully(&mut docker.command(&["push", &name]));
    let response = registry.manifest_get("team/image", "v1").await.expect(200);
    let digest = response.header("docker-content-digest").unwrap().to_owned();
    assert!(pushed.contains(&digest), "docker computed another digest: {pushed}");
    assert_eq!(response.json()["config"]["digest"], id, "an image's id is its config's digest");
    assert_eq!(response.json()["layers"].as_array().unwrap().len(), 2);

    // Removed locally and pulled by tag and by digest, the image has the same id, so its layers are
    // identical.
    run_successfully(&mut docker.command(&["image", "rm", "-f", &id]));
    run_successfully(&mut docker.command(&["pull", &name]));
    let inspect = |name: &str| {
        run_successfully(&mut docker.command(&["image", "inspect", "-f", "{{.Id}} {{.RepoDigests}}", name]))
    };
    let shown = inspect(&name);
    assert!(shown.contains(&id) && shown.contains(&digest), "{shown}");
    run_successfully(&mut docker.command(&["image", "rm", "-f", &id]));
    let by_digest = format!("{}/team/image@{digest}", registry.host());
    run_successfully(&mut docker.command(&["pull", &by_digest]));
    assert!(inspect(&by_digest).contains(&id));

    // Under another name its layers are mounted, not sent. A repeated push changes nothing.
    let other = format!("{}/other/copy:v9", registry.host());
    run_successfully(&mut docker.command(&["tag", &id, &other]));
    let pushed = run_successfully(&mut docker.command(&["push", &other]));
    assert!(
        pushed.contains("Mounted from team/image") || pushed.contains("Layer already exists"),
        "{pushed}"
    );
    assert_eq!(
        registry.manifest_get("other/copy", "v9").await.expect(200).header("docker-content-digest"),
        Some(digest.as_str())
    );
    let again = run_successfully(&mut docker.command(&["push", &other]));
    assert!(again.contains("Layer already exists") && again.contains(&digest), "{again}");
}

#[tokio::test(flavor = "multi_thread")]
async fn images_go_there_and_back() {
    let folder = Folder::new();
    let Some(docker) = Docker::start("docker::images_go_there_and_back", folder.path()) else { return };
    let server = folder.serve().await;
    there_and_back(&docker, folder.path(), &server.registry()).await;
    if let Some(front) = Deployment::replicated("docker::images_go_there_and_back, two replicas").await {
        there_and_back(&docker, folder.path(), &front.registry()).await;
        front.check().await;
    }

    // If the server is killed during a push, the repeated push succeeds.
    let big = format!("{}/team/big:v1", server.registry().host());
    let id = build(&docker, folder.path(), &big, 40_000_000);
    let before = crate::start_stop::stored_bytes(&folder);
    let mut push =
        docker.command(&["push", &big]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("a part of the image has arrived", || async {
        crate::start_stop::stored_bytes(&folder) > before + 2_000_000
    })
    .await;
    let address = server.address;
    server.kill();
    let server = folder.start(Options::new().listen(address.to_string())).await;
    push.wait().unwrap(); // docker retries and may succeed
    run_successfully(&mut docker.command(&["push", &big]));
    let registry = server.registry();
    assert_eq!(registry.manifest_get("team/big", "v1").await.expect(200).json()["config"]["digest"], id);
    run_successfully(&mut docker.command(&["image", "rm", "-f", &id]));
    run_successfully(&mut docker.command(&["pull", &big]));
    assert!(
        run_successfully(&mut docker.command(&["image", "inspect", "-f", "{{.Id}}", &big])).contains(&id)
    );
    drop(docker);
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}
