//! `lode cp` between two servers: the destination fetches from the source, in a job that survives the client's
//! connection and the server's process. Where it cannot, the blobs pass through the client.

use lode_tests::access::{PASSWORD, add_user, log_in, start_closed, start_team};
use lode_tests::artifact::{Image, fresh_seed, random_bytes, sha256};
use lode_tests::checkpoint::demo;
use lode_tests::command::{run_to_end, wait_until};
use lode_tests::faults::{Fault, FaultProxy};
use lode_tests::oci::{IMAGE_INDEX, IMAGE_MANIFEST};
use lode_tests::server::{Folder, Options, Server};
use serde_json::json;

/// `127.0.0.1:PORT/MODEL`
fn on(server: &Server, model: &str) -> String {
    format!("{}/{model}", server.address)
}

#[tokio::test]
async fn the_destination_fetches_from_the_source() {
    let (source, destination) = (Server::fresh().await, Server::fresh().await);
    source.lode().create("team/mini", &demo(), &[]).await.expect_success();
    let lode = destination.lode();
    let copied = lode.run(&["cp", &on(&source, "team/mini"), "copy/mini:v1"]).await.expect_success();
    assert!(copied.stderr.contains("0 blobs (0 B) were stored already"), "{}", copied.stderr);
    let theirs = source.registry().manifest_get("team/mini", "latest").await.expect(200);
    let ours = destination.registry().manifest_get("copy/mini", "v1").await.expect(200);
    assert_eq!(ours.body, theirs.body);
    lode.run(&["show", "copy/mini:v1"]).await.expect_success();
    // The other direction names both hosts. All tensors are stored already.
    let (from, to) = (on(&source, "team/mini"), on(&destination, "again/mini"));
    let again = source.lode().run(&["cp", &from, &to]).await.expect_success();
    assert!(again.stderr.contains("fetched 0 blobs"), "{}", again.stderr);

    // An index, with and without the server's help.
    let image = Image::random(fresh_seed(), 2, 1000);
    let digest = image.push(&source.registry(), "team/image", "v1").await;
    let child = json!({"mediaType": IMAGE_MANIFEST, "digest": digest, "size": image.manifest.len()});
    let index = json!({"schemaVersion": 2, "mediaType": IMAGE_INDEX, "manifests": [child]}).to_string();
    source.registry().manifest_put("team/image", "all", IMAGE_INDEX, index.as_bytes()).await.expect(201);
    for (name, more) in [("fetched", &[][..]), ("passed", &["--through-client"])] {
        let from = on(&source, "team/image:all");
        let copied =
            lode.run(&[&["cp", &from, &format!("{name}:all")], more].concat()).await.expect_success();
        assert_eq!(copied.stderr.contains("fetched 3 blobs"), more.is_empty(), "{}", copied.stderr);
        let ours = destination.registry().manifest_get(name, "all").await.expect(200);
        assert_eq!(ours.body, index.as_bytes());
        image.check(&destination.registry(), name, &digest).await;
        let to = format!("{name}:json");
        let named = [&["cp", &from, &to, "--json"], more].concat();
        let copied = lode.run(&named).await.expect_success().json();
        let ours = destination.registry().manifest_get(name, "json").await.expect(200);
        assert_eq!(copied["digest"], ours.header("docker-content-digest").unwrap());
        assert_eq!(copied["from"], from);
        assert_eq!((&copied["sent_blobs"], &copied["shared_blobs"]), (&json!(0), &json!(3)));
    }
    let missing = lode.run(&["cp", &on(&source, "team/none"), "copy/none"]).await;
    missing.expect_failure(&["team/none", &source.address.to_string()]);
    // A server without a repository does not become a repository.
    let server = destination.address.to_string();
    let alone = lode.run(&["cp", &on(&source, "team/mini"), &server]).await;
    alone.expect_failure(&[&format!("`{server}` is a server without a repository"), "/team/mini:latest"]);
    assert!(!missing.stderr.contains("through this machine"), "{}", missing.stderr);
}

#[tokio::test]
async fn a_login_is_sent_only_if_the_source_requires_one() {
    let source = start_team(Options::new()).await;
    let alice = source.lode_of("alice");
    log_in(&alice, "alice").await;
    alice.create("alice/private", &demo(), &[]).await.expect_success();

    let destination = Server::fresh().await;
    let lode = destination.lode();
    let from = on(&source, "alice/private");
    let refused = lode.run(&["cp", &from, "copy/mini"]).await;
    refused.expect_failure(&["alice/private", "requires a login", "lode login", &source.address.to_string()]);
    let host = source.address.to_string();
    let login = ["login", "--username", "alice", "--password-stdin", &host];
    lode.run_with_input(&login, PASSWORD.as_bytes()).await.expect_success();
    let copied = lode.run(&["cp", &from, "copy/mini"]).await.expect_success();
    assert!(copied.stderr.contains("sending the login"), "{}", copied.stderr);
    assert!(copied.stderr.contains(&format!("{} fetched", destination.address)), "{}", copied.stderr);
    let jobs = destination.registry().get("/lode/v1/jobs").await.expect(200).text();
    assert!(jobs.contains("alice/private"), "{jobs}");
    for text in [jobs, destination.output(), copied.stderr] {
        assert!(!text.contains(PASSWORD) && !text.contains("a+long+password"), "{text}");
    }
}

#[tokio::test]
async fn a_source_that_the_destination_may_not_reach_passes_through_the_client() {
    let source = Server::fresh().await;
    let image = Image::random(fresh_seed(), 1, 1000);
    image.push(&source.registry(), "team/image", "v1").await;
    // With accounts, a server does not connect to its own machine for a caller.
    let destination = start_closed(Options::new()).await;
    let admin = destination.lode();
    let copied = admin.run(&["cp", &on(&source, "team/image:v1"), "team/image:v1"]).await.expect_success();
    for part in ["copying through this machine", "--allow-egress", &source.address.to_string()] {
        assert!(copied.stderr.contains(part), "`{part}` is missing: {}", copied.stderr);
    }
    let shown = admin.run(&["manifest", "inspect", "team/image:v1", "--raw"]).await.expect_success();
    assert_eq!(shown.stdout.as_bytes(), image.manifest);
    // A user without the right to push there is refused.
    add_user(&admin, "bob").await;
    let bob = destination.lode_of("bob");
    log_in(&bob, "bob").await;
    bob.run(&["cp", &on(&source, "team/image:v1"), "team/image:v2"]).await.expect_failure(&["team/image"]);
}

#[tokio::test]
async fn a_copy_survives_the_death_of_the_server() {
    let source = Server::fresh().await;
    let small = random_bytes(fresh_seed(), 1000);
    let image = Image::of(small.clone(), vec![random_bytes(fresh_seed(), 3_000_000)], &json!({}));
    image.push(&source.registry(), "team/image", "v1").await;
    let proxy = FaultProxy::in_front_of(source.address);
    let folder = Folder::new();
    let server = folder.serve().await;
    let address = server.address.to_string();
    // The command follows its job across the restart.
    proxy.set(Fault::Throttled(100_000));
    let from = format!("{}/team/image:v1", proxy.address);
    let command = server.lode().command(&["cp", &from, "copy/image:v1"]);
    let following = tokio::spawn(run_to_end(command, Vec::new()));
    let registry = server.registry();
    let digest = sha256(&small);
    wait_until("the first blob is stored", || async {
        registry.blob_head("copy/image", &digest).await.status == 200
    })
    .await;
    assert_eq!(registry.manifest_get("copy/image", "v1").await.status, 404);
    server.kill();
    proxy.heal();
    let server = folder.start(Options::new().listen(address)).await;
    let copied = following.await.unwrap().expect_success();
    // The last run has fetched the large blob alone.
    assert!(copied.stderr.contains("fetched 1 blob (3.0 MB); 1 blob (1.0 kB)"), "{}", copied.stderr);
    image.check(&server.registry(), "copy/image", "v1").await;
    server.lode().run(&["fsck", "--verify"]).await.expect_success();
}
