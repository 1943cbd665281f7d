//! Publishing without a stored secret: a CI job exchanges the token of its service, with an issuer on this machine.

use std::path::PathBuf;
use std::process::Command;

use lode_tests::access::start_closed;
use lode_tests::clients::{find_program, node_packages, python};
use lode_tests::server::{Folder, Options, Server};
use serde_json::json;

use crate::single_sign_on::NodeServer;

/// A server with the robot `team+ci`, for which jobs of a workflow publish, and their issuer.
async fn start(test: &str) -> Option<(Server, NodeServer, Folder)> {
    let packages = node_packages(test)?;
    let scratch = Folder::new();
    let claims = scratch.path().join("claims.json");
    let job = json!({
        "repository": "octo-org/octo-repo", "repository_id": "1", "repository_owner_id": "2",
        "workflow_ref": "octo-org/octo-repo/.github/workflows/publish.yml@refs/heads/main",
        "event_name": "push", "run_id": "42", "sha": "0123456789",
    });
    std::fs::write(&claims, job.to_string()).unwrap();
    let issuer = NodeServer::start(&packages, "issuer.mjs", &[claims.to_str().unwrap()]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = Options::new()
        .listen(format!("127.0.0.1:{port}"))
        .env("LODE_PUBLIC_URL", format!("http://127.0.0.1:{port}"))
        .env("LODE_ALLOW_EGRESS", "127.0.0.0/8");
    let server = start_closed(options).await;
    let admin = server.lode();
    admin.run(&["robot", "add", "team+ci"]).await.expect_success();
    admin.run(&["grant", "add", "team+ci", "write", "team/*"]).await.expect_success();
    let (repository, workflow) = ("octo-org/octo-repo", "publish.yml");
    let publisher = ["publisher", "add", "team+ci", "--issuer", &issuer.url];
    let publisher = [&publisher[..], &["--github", repository, "--workflow", workflow]].concat();
    admin.run(&publisher).await.expect_success();
    Some((server, issuer, scratch))
}

#[tokio::test]
async fn a_job_of_github_publishes() {
    let test = "publishers::a_job_of_github_publishes";
    let Some((server, issuer, scratch)) = start(test).await else { return };
    let job = server.lode_of("job");
    // 1. Outside of a job there is nothing to exchange.
    job.run(&["token", "exchange"]).await.expect_failure(&["no token of its CI service", "LODE_ID_TOKEN"]);
    let in_job = job
        .env("ACTIONS_ID_TOKEN_REQUEST_URL", &format!("{}/job?api-version=2", issuer.url))
        .env("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "job-credential");
    // 2. The job signs in and pushes.
    let token = in_job.run(&["token", "exchange", "--resource", "team/app"]).await.expect_success();
    let token = token.stdout.trim().to_owned();
    in_job.run_with_input(&["login", "--password-stdin"], token.as_bytes()).await.expect_success();
    let file = scratch.path().join("weights.bin");
    std::fs::write(&file, "weights").unwrap();
    in_job.run(&["push", file.to_str().unwrap(), "team/app:v1"]).await.expect_success();
    in_job.run(&["push", file.to_str().unwrap(), "team/other:v1"]).await.expect_failure(&[
        "does not exist, or you may not write to it: it needs the role `write` on `team/*`, and a token or key",
    ]);
    let registry = server.registry();
    let pull = registry.request("GET", "/v2/team/app/manifests/v1").bearer_auth(&token);
    registry.send(pull).await.expect(200);
    // 3. The owner sees who it was, and ends it.
    let admin = server.lode();
    let listed = admin.run(&["publisher", "list", "team+ci", "--json"]).await.expect_success().json();
    let publisher = &listed["publishers"][0];
    assert_eq!(publisher["last_claims"]["run_id"], "42");
    let audit = admin.run(&["audit", "--action", "publisher.sign_in", "--json"]).await.expect_success();
    assert!(
        audit.stdout.contains("robot:team+ci") && audit.stdout.contains("0123456789"),
        "{}",
        audit.stdout
    );
    let id = publisher["id"].as_str().unwrap();
    admin.run(&["publisher", "rm", "team+ci", id]).await.expect_success();
    in_job.run(&["push", file.to_str().unwrap(), "team/app:v3"]).await.expect_failure(&["requires a login"]);
    in_job.run(&["token", "exchange"]).await.expect_failure(&["no publisher is registered"]);
}

#[tokio::test]
async fn clients_of_a_job_use_its_token() {
    let test = "publishers::clients_of_a_job_use_its_token";
    let Some((server, issuer, scratch)) = start(test).await else { return };
    let (Some(python), Some(oras)) =
        (python(test), find_program(test, "LODE_ORAS", &["/usr/local/bin/oras"]))
    else {
        return;
    };
    let job = server
        .lode()
        .env("ACTIONS_ID_TOKEN_REQUEST_URL", &format!("{}/job?api-version=2", issuer.url))
        .env("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "job-credential");
    let run = |mut command: Command| {
        let output = command.current_dir(scratch.path()).env("HOME", scratch.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // 1. oras, as docker does.
    let token = job.run(&["token", "exchange"]).await.expect_success().stdout;
    let host = server.url().replace("http://", "");
    let command = |args: &[&str]| {
        let mut command = Command::new(&oras);
        command.args(args).arg("--plain-http");
        command
    };
    run(command(&["login", &host, "--username", "token", "--password", token.trim()]));
    std::fs::write(scratch.path().join("weights.bin"), "weights").unwrap();
    run(command(&["push", &format!("{host}/team/app:oras"), "weights.bin"]));
    // 2. huggingface_hub exchanges the token of the job itself.
    let id_token = curl_job_token(&issuer.url, &format!("{}/hf", server.url()));
    let mut hub = Command::new(PathBuf::from(&python));
    hub.args(["-c", "from huggingface_hub import HfApi; print(HfApi().whoami()['name'])"]);
    hub.env("HF_ENDPOINT", format!("{}/hf", server.url())).env("HF_OIDC_ID_TOKEN", id_token);
    hub.env("HF_OIDC_RESOURCE", "team/app").env("HF_HOME", scratch.path().join("hf"));
    assert_eq!(run(hub).trim(), "team+ci");
}

/// The token of the job for an audience.
fn curl_job_token(issuer: &str, audience: &str) -> String {
    let output = Command::new("curl")
        .args(["-sf", "-H", "Authorization: Bearer job-credential"])
        .arg(format!("{issuer}/job?audience={audience}"))
        .output()
        .unwrap();
    let given: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    given["value"].as_str().unwrap().to_owned()
}
