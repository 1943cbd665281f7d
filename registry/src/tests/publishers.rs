//! Trusted publishers: CI jobs that sign in as a robot with a token of their CI service.

use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Request;
use lode_client::Secret;
use serde_json::{Value, json};

use super::access::{PASSWORD, basic};
use super::issuer::{TestIssuer, TestKey, merge};
use super::{App, TestResponse};
use crate::Config;
use crate::store::query;

const URL: &str = "https://hub.example";
const GRANT: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";

/// A server with the robot `team+ci`, which may write in its namespace.
async fn start() -> App {
    let config = Config {
        admin_password: Some(Secret::new(PASSWORD)),
        public_url: Some(URL.parse().unwrap()),
        // The issuers of these tests are on this machine.
        allow_egress: vec!["127.0.0.0/8".parse().unwrap()],
        ..Config::default()
    };
    let app = App::with(config).await;
    app.admin("POST", "/lode/v1/accounts", json!({"name": "team+ci", "kind": "robot"})).await;
    app.grant("team/*", "team+ci", "write").await;
    app
}

/// Registers a publisher of `team+ci`; returns its id.
pub(super) async fn register(app: &App, issuer: &TestIssuer, kind: &str, conditions: Value) -> String {
    let body = json!({"robot": "team+ci", "kind": kind, "issuer": issuer.url, "conditions": conditions});
    let created = app.admin("POST", "/lode/v1/publishers", body).await.json();
    created["id"].as_str().unwrap().to_owned()
}

/// Sends a token as huggingface_hub does.
pub(super) async fn exchange(app: &App, token: &str, resource: &str) -> TestResponse {
    exchange_from(app, "192.0.2.1", token, resource).await
}

async fn exchange_from(app: &App, address: &str, token: &str, resource: &str) -> TestResponse {
    let body = json!({
        "grant_type": GRANT, "subject_token_type": ID_TOKEN, "subject_token": token, "resource": resource,
    });
    let peer: SocketAddr = format!("{address}:1234").parse().unwrap();
    let request = Request::post("/hf/oauth/token").header("content-type", "application/json");
    app.send(request.header("host", "hub.example").extension(ConnectInfo(peer)), body.to_string()).await
}

/// The claims of a job of GitHub Actions.
pub(super) fn github(issuer: &TestIssuer, changes: &Value) -> Value {
    let mut claims = issuer.claims(&json!({
        "aud": URL,
        "jti": uuid::Uuid::new_v4(),
        "sub": "repo:octo-org@123456/octo-repo@456789:environment:release",
        "repository": "octo-org/octo-repo",
        "repository_id": "456789",
        "repository_owner": "octo-org",
        "repository_owner_id": "123456",
        "workflow_ref": "octo-org/octo-repo/.github/workflows/publish.yml@refs/heads/main",
        "job_workflow_ref": "octo-org/shared/.github/workflows/build.yml@refs/heads/main",
        "environment": "release",
        "event_name": "push",
        "ref": "refs/heads/main",
        "ref_protected": "true",
        "sha": "0123456789012345678901234567890123456789",
        "run_id": "42",
        "actor": "octocat",
    }));
    merge(&mut claims, changes);
    claims
}

/// The claims of a job of GitLab CI.
fn gitlab(issuer: &TestIssuer, changes: &Value) -> Value {
    let mut claims = issuer.claims(&json!({
        "aud": URL,
        "jti": uuid::Uuid::new_v4(),
        "sub": "project_path:my-group/my-project:ref_type:branch:ref:main",
        "namespace_id": "72",
        "namespace_path": "my-group",
        "project_id": "20",
        "project_path": "my-group/my-project",
        "job_project_id": "20",
        "job_namespace_id": "72",
        "ref": "main",
        "ref_protected": "true",
        "environment": "prod",
        "ci_config_ref_uri": "gitlab.example.com/my-group/my-project//.gitlab-ci.yml@refs/heads/main",
        "sha": "0123456789012345678901234567890123456789",
        "job_id": "302",
    }));
    merge(&mut claims, changes);
    claims
}

/// The same token with the other ECDSA signature that is valid for it: (r, n - s).
fn with_other_signature(token: &str) -> String {
    const ORDER: [u8; 32] = *b"\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\
        \xbc\xe6\xfa\xad\xa7\x17\x9e\x84\xf3\xb9\xca\xc2\xfc\x63\x25\x51";
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let mut signature = URL_SAFE_NO_PAD.decode(signature).unwrap();
    let mut borrow = 0;
    for (digit, order) in signature[32..].iter_mut().zip(ORDER).rev() {
        let difference = i16::from(order) - i16::from(*digit) - borrow;
        borrow = i16::from(difference < 0);
        *digit = difference.rem_euclid(256) as u8;
    }
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// The newest records of refused jobs, once the log has the refusals until now.
async fn refusals(app: &App) -> Vec<Value> {
    let last = format!("last-{}", uuid::Uuid::new_v4());
    app.get_as(&basic(&last, "wrong"), "/v2/").await;
    let target = format!("/lode/v1/audit?target=user:{last}");
    while app.admin("GET", &target, json!(null)).await.json()["records"] == json!([]) {}
    let path = "/lode/v1/audit?action=publisher.sign_in&outcome=refused";
    app.admin("GET", path, json!(null)).await.json()["records"].as_array().unwrap().clone()
}

/// Whether a token with these claims is exchanged; else the description of the error.
async fn outcome(app: &App, issuer: &TestIssuer, claims: &Value) -> Result<String, String> {
    let response = exchange(app, &issuer.key().sign(claims), "").await;
    let body = response.json();
    match response.status.as_u16() {
        200 => Ok(body["access_token"].as_str().unwrap().to_owned()),
        status => Err(format!("{status} {} {}", body["error"], body["error_description"])),
    }
}

#[tokio::test]
async fn a_job_pushes_without_a_stored_secret() {
    let (app, issuer) = (start().await, TestIssuer::start().await);
    let conditions = json!({"repository": "Octo-Org/octo-repo", "workflow": ".github/workflows/publish.yml"});
    let id = register(&app, &issuer, "github", conditions).await;
    // 1. The token works at every door, for what the robot may do.
    let response = exchange(&app, &issuer.key().sign(&github(&issuer, &json!({}))), "team/app").await;
    assert_eq!(response.status, 200, "{}", response.text());
    let body = response.json();
    assert_eq!(
        (&body["token_type"], &body["issued_token_type"], &body["scope"]),
        (&json!("bearer"), &json!("urn:ietf:params:oauth:token-type:access_token"), &json!("write"))
    );
    assert!((3590..=3600).contains(&body["expires_in"].as_i64().unwrap()), "{body}");
    assert_eq!(response.header("cache-control"), "no-store");
    let token = format!("Bearer {}", body["access_token"].as_str().unwrap());
    assert_eq!(app.push_as(&token, "team/app").await.status, 201);
    let me = app.get_as(&token, "/lode/v1/me").await.json();
    assert_eq!((&me["name"], &me["kind"]), (&json!("team+ci"), &json!("robot")));
    // 2. It is limited to the resource, and never more than write.
    assert_eq!(app.push_as(&token, "team/other").await.status, 404);
    assert_eq!(app.push_as(&token, "bob/app").await.status, 404);
    let delete = Request::delete("/v2/team/app/manifests/latest");
    assert_eq!(app.send_as(&token, delete, "").await.status, 403);
    assert_eq!(app.send_as(&token, Request::post("/lode/v1/tokens"), r#"{"name":"x"}"#).await.status, 403);
    // 3. The listing shows the last job; the audit log shows each, and the tag names the robot.
    let listed = app.admin("GET", "/lode/v1/publishers?robot=team%2Bci", json!(null)).await.json();
    let publisher = &listed["publishers"][0];
    assert_eq!((&publisher["id"], &publisher["kind"]), (&json!(id), &json!("github")));
    assert_eq!(
        (&publisher["conditions"]["workflow"], &publisher["last_claims"]["run_id"]),
        (&json!("publish.yml"), &json!("42"))
    );
    assert_eq!(publisher["pins"], json!({"repository_id": "456789", "repository_owner_id": "123456"}));
    let log = app.admin("GET", "/lode/v1/audit?action=publisher.sign_in", json!(null)).await;
    assert!(log.text().contains("robot:team+ci") && log.text().contains("octocat"), "{}", log.text());
    assert!(!log.text().contains(body["access_token"].as_str().unwrap()));
    // 4. Deleting the publisher revokes what it has given.
    app.admin("DELETE", &format!("/lode/v1/publishers/{id}?robot=team%2Bci"), json!(null)).await;
    assert_eq!(app.push_as(&token, "team/app").await.status, 401);
    let refused = outcome(&app, &issuer, &github(&issuer, &json!({}))).await.unwrap_err();
    assert!(refused.contains("no publisher is registered for the issuer"), "{refused}");
}

#[tokio::test]
async fn each_claim_of_github_counts() {
    let (app, issuer) = (start().await, TestIssuer::start().await);
    let conditions =
        json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml", "environment": "Release"});
    register(&app, &issuer, "github", conditions).await;
    assert!(outcome(&app, &issuer, &github(&issuer, &json!({}))).await.is_ok());
    let now = crate::time::now_ms() / 1000;
    let path = "octo-org/octo-repo/.github/workflows";
    let refused_claims = [
        (json!({"repository": "octo-org/other"}), "none is registered for its project"),
        (json!({"repository": null}), "none is registered for its project"),
        (json!({"repository": ["octo-org/octo-repo"]}), "none is registered for its project"),
        (json!({"workflow_ref": format!("{path}/other.yml@refs/heads/main")}), "expected `publish.yml`"),
        (
            json!({"workflow_ref": "octo-org/evil/.github/workflows/publish.yml@refs/heads/main"}),
            "expected `publish.yml`",
        ),
        (
            json!({"workflow_ref": format!("{path}/publish.yml@x.yml@refs/heads/main")}),
            "expected `publish.yml`",
        ),
        (json!({"workflow_ref": format!("{path}/publish.yml")}), "expected `publish.yml`"),
        (json!({"workflow_ref": null}), "expected `publish.yml`"),
        (json!({"environment": "staging"}), "expected `Release`"),
        (json!({"environment": null}), "`environment` is missing"),
        (json!({"event_name": "pull_request_target"}), "neither pull_request_target nor workflow_run"),
        (json!({"event_name": "workflow_run"}), "neither pull_request_target nor workflow_run"),
        // Names that were given to somebody else.
        (json!({"repository_id": "1"}), "expected `456789`"),
        (json!({"repository_owner_id": "1"}), "expected `123456`"),
        (json!({"repository_id": null}), "`repository_id` is missing"),
        (json!({"aud": "https://other.example"}), "`aud`"),
        (json!({"aud": [URL, "https://other.example"]}), "several audiences"),
        (json!({"aud": null}), "`aud`"),
        (json!({"iss": "https://token.actions.githubusercontent.com"}), "no publisher is registered"),
        (json!({"iss": null}), "`iss`"),
        (json!({"exp": now - 61}), "expired"),
        (json!({"exp": null}), "`exp`"),
        (json!({"iat": now + 3600}), "not valid yet"),
        (json!({"nbf": now + 3600}), "not valid yet"),
        (json!({"iat": null}), "`iat`"),
        (json!({"jti": "used"}), "used before"),
    ];
    let used = outcome(&app, &issuer, &github(&issuer, &json!({"jti": "used"}))).await;
    assert!(used.is_ok(), "{used:?}");
    for (changes, expected) in &refused_claims {
        let refused =
            outcome(&app, &issuer, &github(&issuer, changes)).await.expect_err(&changes.to_string());
        assert!(
            refused.starts_with("400 \"invalid_grant\"") && refused.contains(expected),
            "{changes}: {refused}"
        );
    }
    // What may differ: the form of the subject, upper and lower case, the branch, and who has started it.
    let accepted_claims = [
        json!({"sub": "repo:octo-org/octo-repo:ref:refs/heads/main"}),
        json!({"sub": null}),
        json!({"repository": "Octo-Org/Octo-Repo"}),
        // The id of the owner counts, not the name.
        json!({"repository_owner": "renamed"}),
        json!({"workflow_ref": format!("{path}/publish.yml@refs/tags/v1")}),
        json!({"job_workflow_ref": "octo-org/other/.github/workflows/other.yml@refs/heads/main"}),
        json!({"job_workflow_ref": null}),
        json!({"ref": "refs/heads/dev"}),
        json!({"ref_protected": "false"}),
        json!({"sha": "abcdef0123456789abcdef0123456789abcdef01"}),
        json!({"run_id": "43"}),
        json!({"actor": "somebody"}),
        json!({"aud": format!("{URL}/hf")}),
        json!({"aud": [URL]}),
        json!({"exp": now - 30}),
    ];
    for changes in &accepted_claims {
        let exchanged = outcome(&app, &issuer, &github(&issuer, changes)).await;
        assert!(exchanged.is_ok(), "{changes}: {exchanged:?}");
    }
    assert_changed(&github(&issuer, &json!({})), &refused_claims, &accepted_claims);
}

/// Asserts that there is a case with another value of each claim.
fn assert_changed(claims: &Value, refused: &[(Value, &str)], accepted: &[Value]) {
    for name in claims.as_object().unwrap().keys() {
        let mut cases = refused.iter().map(|(changes, _)| changes).chain(accepted);
        let is_changed = cases.any(|changes| changes.get(name).is_some_and(|value| *value != claims[name]));
        assert!(is_changed, "no case changes `{name}`");
    }
}

/// A publisher can require any other claim of a job, and then it counts.
#[tokio::test]
async fn further_claims_count_where_a_publisher_names_them() {
    let issuer = TestIssuer::start().await;
    let required = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
    for name in ["ref", "ref_protected", "event_name", "actor", "job_workflow_ref"] {
        let app = start().await;
        let mut conditions = required.clone();
        conditions[name] = github(&issuer, &json!({}))[name].clone();
        let body =
            json!({"robot": "team+ci", "kind": "github", "issuer": issuer.url, "conditions": conditions});
        let request = Request::post("/lode/v1/publishers");
        let created = app.send_as(&basic("admin", PASSWORD), request, body.to_string()).await;
        assert_eq!(created.status, 201, "{name}: {}", created.text());
        assert!(outcome(&app, &issuer, &github(&issuer, &json!({}))).await.is_ok(), "{name}");
        for changed in [json!("other"), Value::Null] {
            let mut changes = json!({});
            changes[name] = changed;
            let refused = outcome(&app, &issuer, &github(&issuer, &changes)).await.expect_err(name);
            assert!(refused.contains(&format!("`{name}` is ")), "{changes}: {refused}");
        }
    }
}

#[tokio::test]
async fn each_claim_of_gitlab_counts() {
    let (app, issuer) = (start().await, TestIssuer::start().await);
    let conditions = json!({
        "project_path": "my-group/my-project", "environment": "prod", "ref_protected": "true",
    });
    register(&app, &issuer, "gitlab", conditions).await;
    assert!(outcome(&app, &issuer, &gitlab(&issuer, &json!({}))).await.is_ok());
    let now = crate::time::now_ms() / 1000;
    let project = "gitlab.example.com/my-group/my-project";
    let refused_claims = [
        (json!({"project_path": "my-group/fork"}), "none is registered for its project"),
        (json!({"project_id": "21", "job_project_id": "21"}), "expected `20`"),
        (json!({"namespace_id": "73", "job_namespace_id": "73"}), "expected `72`"),
        // In a merge request of a fork, the job runs elsewhere.
        (json!({"job_project_id": "99"}), "`job_project_id` is `99`"),
        (json!({"job_namespace_id": "99"}), "`job_namespace_id` is `99`"),
        (
            json!({"ci_config_ref_uri": "gitlab.example.com/my-group/my-project//evil.yml@refs/heads/main"}),
            "expected `.gitlab-ci.yml`",
        ),
        (
            json!({"ci_config_ref_uri": "gitlab.example.com/other/project//.gitlab-ci.yml@refs/heads/main"}),
            "expected `.gitlab-ci.yml`",
        ),
        (
            json!({"ci_config_ref_uri": format!("{project}//.gitlab-ci.yml@x.yml@refs/heads/main")}),
            "expected `.gitlab-ci.yml`",
        ),
        (
            json!({"ci_config_ref_uri": format!("{project}//.gitlab-ci.yml@refs/x.yml@refs/heads/main")}),
            "expected `.gitlab-ci.yml`",
        ),
        (json!({"ci_config_ref_uri": null}), "expected `.gitlab-ci.yml`"),
        (json!({"environment": "Prod"}), "expected `prod`"),
        (json!({"ref_protected": "false"}), "expected `true`"),
        (json!({"ref_protected": null}), "`ref_protected` is missing"),
        (json!({"aud": URL.replace("hub", "other")}), "`aud`"),
        (json!({"iss": "https://gitlab.com"}), "no publisher is registered"),
        (json!({"exp": now - 61}), "expired"),
        (json!({"iat": now + 3600}), "not valid yet"),
        (json!({"nbf": now + 3600}), "not valid yet"),
        (json!({"jti": "used"}), "used before"),
    ];
    let used = outcome(&app, &issuer, &gitlab(&issuer, &json!({"jti": "used"}))).await;
    assert!(used.is_ok(), "{used:?}");
    for (changes, expected) in &refused_claims {
        let refused =
            outcome(&app, &issuer, &gitlab(&issuer, changes)).await.expect_err(&changes.to_string());
        assert!(refused.contains(expected), "{changes}: {refused}");
    }
    let accepted_claims = [
        json!({"project_path": "My-Group/My-Project"}),
        json!({"sub": "x"}),
        json!({"job_project_id": null}),
        // The id of the group counts, not its name.
        json!({"namespace_path": "renamed"}),
        json!({"ref": "dev"}),
        json!({"sha": "abcdef0123456789abcdef0123456789abcdef01"}),
        json!({"job_id": "303"}),
    ];
    for changes in &accepted_claims {
        let exchanged = outcome(&app, &issuer, &gitlab(&issuer, changes)).await;
        assert!(exchanged.is_ok(), "{changes}: {exchanged:?}");
    }
    assert_changed(&gitlab(&issuer, &json!({})), &refused_claims, &accepted_claims);
}

#[tokio::test]
async fn tokens_count_once_and_only_from_their_issuer() {
    let (app, issuer, other) = (start().await, TestIssuer::start().await, TestIssuer::start().await);
    let conditions = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
    register(&app, &issuer, "github", conditions).await;
    // 1. Replayed, one after the other and all at once.
    let token = issuer.key().sign(&github(&issuer, &json!({})));
    let results = futures::future::join_all((0..8).map(|_| exchange(&app, &token, ""))).await;
    let allowed = results.iter().filter(|response| response.status == 200).count();
    assert_eq!(allowed, 1);
    assert!(exchange(&app, &token, "").await.text().contains("used before"));
    let signed_again = github(&issuer, &json!({"jti": "fixed"}));
    assert!(outcome(&app, &issuer, &signed_again).await.is_ok());
    assert!(outcome(&app, &issuer, &signed_again).await.unwrap_err().contains("used before"));
    let nameless = github(&issuer, &json!({"jti": null}));
    let token = issuer.key().sign(&nameless);
    assert_eq!(exchange(&app, &token, "").await.status, 200);
    assert!(exchange(&app, &token, "").await.text().contains("used before"));
    let other_signature = exchange(&app, &with_other_signature(&token), "").await;
    assert!(other_signature.text().contains("used before"), "{}", other_signature.text());
    // 2. An issuer that is not registered is not asked for its keys, and its keys sign for no other.
    let theirs = other.key().sign(&github(&other, &json!({})));
    assert!(exchange(&app, &theirs, "").await.text().contains("no publisher is registered"));
    assert_eq!(other.count("/keys"), 0);
    let forged = other.key().sign(&github(&issuer, &json!({})));
    assert!(exchange(&app, &forged, "").await.text().contains("signature"));
    let unknown = TestKey::new("unknown").sign(&github(&issuer, &json!({})));
    assert!(exchange(&app, &unknown, "").await.text().contains("no key"));
    for text in ["", "x", "a.b.c", &"x".repeat(40_000), &format!("{token}x")] {
        let response = exchange(&app, text, "").await;
        assert_eq!(response.json()["error"], "invalid_grant", "{}", response.text());
    }
    // 3. Other requests.
    let send = async |kind: &'static str, body: String| {
        app.send(Request::post("/hf/oauth/token").header("content-type", kind), body).await
    };
    let form = format!("grant_type={GRANT}&subject_token_type={ID_TOKEN}&subject_token=");
    let fresh = issuer.key().sign(&github(&issuer, &json!({})));
    let as_form = send("application/x-www-form-urlencoded", format!("{form}{fresh}")).await;
    assert_eq!(as_form.status, 200, "{}", as_form.text());
    for (kind, body, error) in [
        ("application/json", "[]".to_owned(), "unsupported_grant_type"),
        ("application/json", "{".to_owned(), "unsupported_grant_type"),
        ("application/json", format!(r#"{{"grant_type":"{GRANT}"}}"#), "invalid_request"),
        ("application/x-www-form-urlencoded", form.clone(), "invalid_grant"),
    ] {
        let response = send(kind, body.clone()).await;
        assert_eq!((response.status.as_u16(), &response.json()["error"]), (400, &json!(error)), "{body}");
    }
    // 4. The issuer fails. Known keys stay in use.
    issuer.set(|issuer| issuer.is_down = true);
    assert!(outcome(&app, &issuer, &github(&issuer, &json!({}))).await.is_ok());
    let fresh = start().await;
    let conditions = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
    register(&fresh, &issuer, "github", conditions).await;
    let response = exchange(&fresh, &issuer.key().sign(&github(&issuer, &json!({}))), "").await;
    assert_eq!(
        (response.status.as_u16(), &response.json()["error"]),
        (503, &json!("temporarily_unavailable"))
    );
}

#[tokio::test]
async fn the_resource_chooses_among_robots() {
    let (app, issuer) = (start().await, TestIssuer::start().await);
    let conditions = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
    register(&app, &issuer, "github", conditions.clone()).await;
    app.admin("POST", "/lode/v1/accounts", json!({"name": "lab+ci", "kind": "robot"})).await;
    let body = json!({"robot": "lab+ci", "kind": "github", "issuer": issuer.url, "conditions": conditions});
    app.admin("POST", "/lode/v1/publishers", body.clone()).await;
    let name = async |resource: &str| {
        let token = issuer.key().sign(&github(&issuer, &json!({})));
        let response = exchange(&app, &token, resource).await;
        match response.json()["access_token"].as_str() {
            Some(token) => {
                let me = app.get_as(&format!("Bearer {token}"), "/lode/v1/me").await.json();
                format!("{} {}", me["name"].as_str().unwrap(), me["targets"])
            }
            None => response.json()["error_description"].as_str().unwrap().to_owned(),
        }
    };
    let refused = name("").await;
    assert!(
        refused.starts_with("publishers of several namespaces match this job; send the `resource`"),
        "{refused}"
    );
    assert!(!refused.contains("lab") && !refused.contains("team+"), "{refused}");
    assert_eq!(name("lab+ci").await, "lab+ci []");
    assert_eq!(name("team").await, r#"team+ci ["team/*"]"#);
    assert_eq!(name("team/app").await, r#"team+ci ["team/app"]"#);
    for resource in ["bob/app", "taem", "team+other"] {
        let refused = name(resource).await;
        assert!(
            refused.contains(&format!("belongs to the resource `{resource}`; expected the robot's name"))
                && !refused.contains("team+ci")
                && !refused.contains("lab"),
            "{refused}"
        );
    }
    assert!(name("Not/Valid").await.contains("is not a robot, a namespace or a repository"));
    // Of several robots of one namespace, one has to be named.
    app.admin("POST", "/lode/v1/accounts", json!({"name": "lab+other", "kind": "robot"})).await;
    let mut other = body.clone();
    merge(&mut other, &json!({"robot": "lab+other"}));
    app.admin("POST", "/lode/v1/publishers", other).await;
    let refused = name("lab").await;
    assert!(refused.contains("several robots of the namespace `lab`"), "{refused}");
    assert!(refused.contains("--resource lab+NAME") && !refused.contains("lab+ci"), "{refused}");
    assert_eq!(name("lab+other").await, "lab+other []");
    app.admin("PATCH", "/lode/v1/accounts/lab%2Bother", json!({"disabled": true})).await;
    // What differs is of the robots of the resource.
    app.admin("POST", "/lode/v1/accounts", json!({"name": "shop+ci", "kind": "robot"})).await;
    let mut strict = body.clone();
    merge(&mut strict, &json!({"robot": "shop+ci"}));
    merge(&mut strict["conditions"], &json!({"environment": "shop"}));
    app.admin("POST", "/lode/v1/publishers", strict).await;
    let refused = name("shop").await;
    assert!(refused.contains("`environment` is `release`, expected `shop`"), "{refused}");
    // A disabled robot gets none.
    app.admin("PATCH", "/lode/v1/accounts/lab%2Bci", json!({"disabled": true})).await;
    assert_eq!(name("").await, "team+ci []");
}

#[tokio::test]
async fn publishers_are_registered_by_owners() {
    let (app, issuer) = (start().await, TestIssuer::start().await);
    let (alice, bob) = (app.user("alice").await, app.user("bob").await);
    app.grant("team/*", "alice", "own").await;
    let send = async |credentials: &str, body: Value| {
        app.send_as(credentials, Request::post("/lode/v1/publishers"), body.to_string()).await
    };
    let right = json!({
        "robot": "team+ci", "kind": "oidc", "issuer": issuer.url,
        "conditions": {"sub": "system:serviceaccount:ml:trainer"},
    });
    let created = send(&alice, right.clone()).await;
    assert_eq!((created.status.as_u16(), &created.json()["warning"]), (201, &json!(null)));
    assert_eq!(send(&bob, right.clone()).await.status, 403);
    assert_eq!(send("", right.clone()).await.status, 401);
    for (changes, expected) in [
        (json!({"robot": "alice"}), "is not a robot"),
        (json!({"robot": "team+none"}), "team+none"),
        (json!({"issuer": null}), "needs its issuer's address"),
        (json!({"issuer": "http://issuer.example"}), "https"),
        (json!({"issuer": "issuer"}), "URL"),
        (json!({"conditions": {}}), "1 to 16 conditions"),
        (json!({"conditions": {"sub": ""}}), "1 to 16 conditions"),
        (json!({"kind": "github"}), "`repository` is missing"),
        (json!({"kind": "gitlab"}), "`project_path` is missing"),
        (json!({"kind": "github", "conditions": {"repository": "a/b"}}), "`workflow` is missing"),
        (json!({"kind": "other"}), "kind"),
        // Values that no token has.
        (
            json!({"kind": "github", "conditions": {"repository": "octo-org", "workflow": "a.yml"}}),
            "the condition `repository` is `octo-org`, expected OWNER/NAME",
        ),
        (
            json!({"kind": "github", "conditions": {"repository": "https://github.com/a/b", "workflow": "a.yml"}}),
            "expected OWNER/NAME",
        ),
        (
            json!({"kind": "github", "conditions": {"repository": "a/b", "workflow": "sub/dir.yml"}}),
            "the condition `workflow` is `sub/dir.yml`, expected the name of a file",
        ),
        (
            json!({"kind": "github", "conditions": {"repository": "a/b", "workflow": "publish"}}),
            "publish.yml",
        ),
        (
            json!({
                "kind": "github",
                "conditions": {"repository": "a/b", "workflow": "a.yml", "repository_id": "a/b"},
            }),
            "the condition `repository_id` is `a/b`, expected a number",
        ),
        (json!({"kind": "gitlab", "conditions": {"project_path": "proj"}}), "expected GROUP/NAME"),
        (json!({"kind": "gitlab", "conditions": {"project_path": "/group/proj"}}), "expected GROUP/NAME"),
        (
            json!({"kind": "gitlab", "conditions": {"project_path": "a/b", "config_file": "/ci.yml"}}),
            "expected the path of a file in the project",
        ),
        // Publishers that could match the jobs of every project.
        (
            json!({"issuer": "https://token.actions.githubusercontent.com"}),
            "is the issuer of GitHub Actions: use the kind `github`",
        ),
        (json!({"issuer": "https://token.actions.githubusercontent.com/acme"}), "use the kind `github`"),
        (json!({"issuer": "https://token.actions.acme.ghe.com"}), "use the kind `github`"),
        (json!({"issuer": "https://github.example/_services/token"}), "use the kind `github`"),
        (json!({"issuer": "https://gitlab.com"}), "is the issuer of GitLab CI: use the kind `gitlab`"),
        (
            json!({
                "kind": "gitlab", "issuer": "https://token.actions.githubusercontent.com",
                "conditions": {"project_path": "a/b"},
            }),
            "use the kind `github`",
        ),
    ] {
        let mut body = right.clone();
        merge(&mut body, &changes);
        let response = send(&alice, body).await;
        assert!(response.status.is_client_error(), "{changes}");
        assert!(response.text().contains(expected), "{changes}: {}", response.text());
    }
    // Any issuer: a Kubernetes service account.
    let claims = |sub: &str| issuer.claims(&json!({"aud": URL, "sub": sub, "jti": uuid::Uuid::new_v4()}));
    assert!(outcome(&app, &issuer, &claims("system:serviceaccount:ml:trainer")).await.is_ok());
    let refused = outcome(&app, &issuer, &claims("system:serviceaccount:ml:other")).await.unwrap_err();
    assert!(!refused.contains("trainer"), "strangers learn nothing: {refused}");
    // Without a public URL, a token for another server could be used here.
    let nameless =
        App::with(Config { admin_password: Some(Secret::new(PASSWORD)), ..Config::default() }).await;
    nameless.admin("POST", "/lode/v1/accounts", json!({"name": "team+ci", "kind": "robot"})).await;
    let created = nameless.admin("POST", "/lode/v1/publishers", right).await.json();
    assert!(created["warning"].as_str().unwrap().contains("public_url"), "{created}");
    let token = issuer.key().sign(&claims("system:serviceaccount:ml:trainer"));
    let response = exchange(&nameless, &token, "").await;
    assert!(response.status == 400 && response.text().contains("public_url"), "{}", response.text());
    assert_eq!(app.get_as(&bob, "/lode/v1/publishers?robot=team%2Bci").await.status, 403);
}

#[tokio::test]
async fn ids_tell_projects_of_the_same_name_apart() {
    let (app, issuer) = (start().await, TestIssuer::start().await);
    let conditions = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
    register(&app, &issuer, "github", conditions.clone()).await;
    assert!(outcome(&app, &issuer, &github(&issuer, &json!({}))).await.is_ok());
    // 1. After a move to another owner, the publisher is registered again. The old one does not count.
    let moved = || github(&issuer, &json!({"repository_owner_id": "777"}));
    let refused = outcome(&app, &issuer, &moved()).await.unwrap_err();
    assert!(refused.contains("`repository_owner_id` is `777`, expected `123456`"), "{refused}");
    app.admin("POST", "/lode/v1/accounts", json!({"name": "lab+ci", "kind": "robot"})).await;
    let body = json!({"robot": "lab+ci", "kind": "github", "issuer": issuer.url, "conditions": conditions});
    app.admin("POST", "/lode/v1/publishers", body).await;
    let exchanged = outcome(&app, &issuer, &moved()).await;
    assert!(exchanged.is_ok(), "only one robot's publisher matches: {exchanged:?}");
    register(&app, &issuer, "github", conditions).await;
    assert_eq!(exchange(&app, &issuer.key().sign(&moved()), "team").await.status, 200);
    // 2. Ids are needed for the first use.
    let conditions = json!({"repository": "octo-org/new", "workflow": "publish.yml"});
    register(&app, &issuer, "github", conditions).await;
    let nameless = json!({
        "repository": "octo-org/new", "repository_id": null,
        "workflow_ref": "octo-org/new/.github/workflows/publish.yml@refs/heads/main",
    });
    let refused = outcome(&app, &issuer, &github(&issuer, &nameless)).await.unwrap_err();
    assert!(refused.contains("`repository_id` is missing"), "{refused}");
}

#[tokio::test]
async fn jobs_share_the_first_use() {
    let (app, issuer) = (start().await, TestIssuer::start().await);
    let conditions = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
    register(&app, &issuer, "github", conditions).await;
    let jobs = (0..8).map(async |_| outcome(&app, &issuer, &github(&issuer, &json!({}))).await);
    for exchanged in futures::future::join_all(jobs).await {
        assert!(exchanged.is_ok(), "{exchanged:?}");
    }
}

#[tokio::test]
async fn refused_jobs_are_recorded_once_and_slowed_down() {
    let (app, issuer) = (start().await, TestIssuer::start().await);
    let conditions = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
    register(&app, &issuer, "github", conditions).await;
    // 1. An issuer that nobody has registered, with names that the client chooses.
    let (key, mut statuses) = (issuer.key(), Vec::new());
    for at in 0..130 {
        let token = key.sign(&json!({"iss": format!("https://{at}.example/{}", "x".repeat(9000))}));
        statuses.push(exchange_from(&app, "192.0.2.7", &token, "").await.status.as_u16());
    }
    assert!(statuses[..100].iter().all(|status| *status == 400), "{statuses:?}");
    assert_eq!(statuses.last(), Some(&429));
    assert_eq!(exchange_from(&app, "192.0.2.7", "x", "").await.status, 429);
    let right = key.sign(&github(&issuer, &json!({})));
    assert_eq!(exchange_from(&app, "192.0.2.7", &right, "").await.status, 200, "right tokens are not");
    let records = refusals(&app).await;
    let reason = json!({"reason": "no publisher is registered for the issuer"});
    assert_eq!((records.len(), &records[0]["target"]), (1, &json!("issuer:unknown")), "{records:?}");
    assert_eq!(records[0]["detail"], reason);
    // 2. A registered issuer, with claims that the job chooses.
    for at in 0..3 {
        let claims = github(&issuer, &json!({"aud": format!("https://{at}.example/{}", "x".repeat(5000))}));
        assert!(outcome(&app, &issuer, &claims).await.unwrap_err().contains("`aud`"));
    }
    let records = refusals(&app).await;
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!(records[0]["target"], json!(format!("issuer:{}", issuer.url)));
    assert!(records[0]["detail"]["reason"].as_str().unwrap().len() <= 512);
}

#[tokio::test]
async fn publishers_are_read_after_the_signature_was_verified() {
    let (app, issuer) = (start().await, TestIssuer::start().await);
    let conditions = json!({"repository": "octo-org/octo-repo", "workflow": "publish.yml"});
    register(&app, &issuer, "github", conditions).await;
    // Reading this one fails.
    query!(app.registry.store().write(), c => sqlx::query("update publishers set conditions = 'x'")
        .execute(c).await.map(drop))
    .unwrap();
    let forged = TestKey::new("forged").sign(&github(&issuer, &json!({})));
    let response = exchange(&app, &forged, "").await;
    assert!(response.status == 400 && response.text().contains("no key"), "{}", response.text());
    let read = exchange(&app, &issuer.key().sign(&github(&issuer, &json!({}))), "").await;
    assert_eq!(read.status, 500);
}
