//! cosign signs an image with a key and verifies it. The signature is a referrer of the image, and another
//! key does not verify it. The transparency log is disabled, because the tests use no network.

use std::path::Path;
use std::process::Command;

use lode_tests::artifact::{Image, fresh_seed};
use lode_tests::clients::cosign;
use lode_tests::cluster::Deployment;
use lode_tests::command::run_successfully;

fn run(program: &Path, scratch: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(scratch).env("HOME", scratch).env("COSIGN_PASSWORD", "");
    command.env_remove("HTTP_PROXY").env_remove("HTTPS_PROXY");
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_signed_and_verified() {
    let Some(program) = cosign("cosign::an_image_is_signed_and_verified") else { return };
    sign_and_verify(&program, &Deployment::single().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_signed_and_verified_through_two_replicas() {
    let test = "cosign::an_image_is_signed_and_verified_through_two_replicas";
    let Some(program) = cosign(test) else { return };
    let Some(front) = Deployment::replicated(test).await else { return };
    sign_and_verify(&program, &front).await;
}

async fn sign_and_verify(program: &Path, front: &Deployment) {
    let (registry, scratch) = (front.registry(), front.scratch());
    let digest = Image::random(fresh_seed(), 2, 50_000).push(&registry, "team/signed", "v1").await;
    run_successfully(&mut run(program, scratch, &["generate-key-pair"]));
    run_successfully(&mut run(program, scratch, &["generate-key-pair", "--output-key-prefix", "other"]));
    let (by_digest, by_tag) =
        (format!("{}/team/signed@{digest}", registry.host()), format!("{}/team/signed:v1", registry.host()));
    let verify = |key: &str, name: &str| {
        let plain = ["--allow-insecure-registry", "--allow-http-registry", "--insecure-ignore-tlog=true"];
        run(program, scratch, &[&["verify", "--key", key][..], &plain, &[name]].concat())
    };
    let unsigned = verify("cosign.pub", &by_tag).output().unwrap();
    assert!(!unsigned.status.success(), "an unsigned image was verified");
    run_successfully(&mut run(
        program,
        scratch,
        &[
            "sign",
            "--yes",
            "--key",
            "cosign.key",
            "--use-signing-config=false",
            "--tlog-upload=false",
            "--allow-insecure-registry",
            "--allow-http-registry",
            &by_digest,
        ],
    ));
    for name in [&by_tag, &by_digest] {
        let shown = run_successfully(&mut verify("cosign.pub", name));
        assert!(shown.contains(&digest), "{shown}");
    }
    assert!(
        !verify("other.pub", &by_tag).output().unwrap().status.success(),
        "another key verified the image"
    );
    let found = registry.get(&format!("/v2/team/signed/referrers/{digest}")).await.expect(200).json();
    assert_eq!(found["manifests"].as_array().unwrap().len(), 1, "the signature is not a referrer: {found}");
    assert_eq!(registry.tags("team/signed").await, ["v1"], "the signature has a tag");
    front.check().await;
}
