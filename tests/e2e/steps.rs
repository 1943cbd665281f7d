//! Faults at every step of a change at the database and the storage, one after another. Either a replica is
//! killed (kill -9) after the service has executed the step and before the response arrives, or the response
//! is lost. The other replica keeps running, clients repeat their requests, and no acknowledged content is
//! lost.
//!
//! With LODE_EVERY_STEP=1, which `tests/run --long` sets, reads are steps too.
#![expect(clippy::print_stderr, reason = "the output shows which steps passed before a failure")]

use std::time::Duration;

use lode_tests::artifact::{Image, fresh_seed};
use lode_tests::command::{wait_for, wait_until};
use lode_tests::endpoints::{Endpoint, EndpointCase, WRITES};
use lode_tests::oci::Registry;
use lode_tests::report::{env_number, figure};
use lode_tests::server::{Folder, Options, Server};
use lode_tests::services::{Backends, postgres_address, postgres_through, s3_address};
use lode_tests::steps::{Protocol, StepFault, StepFilter, StepProxy, Steps, parse_steps};
use serde_json::json;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Two replicas. Faults affect only the first.
struct Site {
    steps: Steps,
    folder: Folder,
    options: Options,
    victim: Option<Server>,
    other: Server,
    _proxies: [StepProxy; 2],
}

impl Site {
    async fn start(test: &str, options: Options) -> Option<Self> {
        let backing = Backends::shared(test)?;
        let url = backing.database.clone()?;
        let which = if env_number("LODE_EVERY_STEP", 0) > 0 { StepFilter::All } else { StepFilter::Changes };
        let steps = Steps::new(which);
        let database = steps.proxy_for(postgres_address(&url), Protocol::Postgres);
        let storage = steps.proxy_for(s3_address(), Protocol::Http);
        let options = options.env("LODE_REDIRECT", "false");
        let other = Folder::new().start(options.clone().with_backends(&backing)).await;
        let through = Backends { database: Some(postgres_through(&url, database.address)), ..backing };
        let options =
            options.with_backends(&through).env("AWS_ENDPOINT_URL", format!("http://{}", storage.address));
        let folder = Folder::new();
        let mortal = Some(folder.start(options.clone()).await);
        Some(Self { steps, folder, options, victim: mortal, other, _proxies: [database, storage] })
    }

    fn mortal(&self) -> &Server {
        self.victim.as_ref().expect("the replica was restarted")
    }

    /// Sends a request to the first replica and kills it after `before` more steps. Returns the step at which
    /// it was killed, or the reply if the request had fewer steps.
    async fn send_and_kill<T>(
        &mut self,
        before: usize,
        request: impl Future<Output = T>,
    ) -> Result<String, T> {
        self.steps.arm(before, StepFault::Freeze);
        let outcome = tokio::select! {
            biased;
            step = self.steps.wait_frozen() => Ok(step),
            reply = request => Err(reply),
        };
        self.steps.disarm();
        if outcome.is_ok() {
            self.victim.take().expect("the replica runs").kill();
        }
        self.steps.release();
        outcome
    }

    async fn restart(&mut self) {
        if self.victim.is_none() {
            self.victim = Some(self.folder.start(self.options.clone()).await);
        }
    }

    /// Repeats a request and kills the replica after each of its steps. Returns the number of steps.
    async fn kill_at_each_step(&mut self, endpoint: Endpoint) -> usize {
        let other = self.other.registry();
        for before in 0.. {
            let case = EndpointCase::prepare(&other, endpoint).await;
            let mortal = self.mortal().registry();
            match self.send_and_kill(before, case.send(&mortal, TIMEOUT)).await {
                Ok(step) => {
                    case.check_recovery(&other, None).await;
                    eprintln!("{endpoint:?}, killed after {step}");
                    self.restart().await;
                }
                Err(reply) => {
                    let status = reply.as_ref().map(|response| response.status);
                    assert_eq!(status.ok(), Some(case.success_status()), "{endpoint:?} without a fault");
                    case.check_recovery(&other, reply.as_ref().ok()).await;
                    return before;
                }
            }
        }
        unreachable!("a request has an end")
    }

    /// Repeats a request and loses the response to each of its steps. Returns the number of steps.
    async fn lose_each_response(&self, endpoint: Endpoint) -> usize {
        let (mortal, other) = (self.mortal().registry(), self.other.registry());
        for before in 0.. {
            let case = EndpointCase::prepare(&other, endpoint).await;
            self.steps.arm(before, StepFault::LoseResponse);
            let reply = case.send(&mortal, TIMEOUT).await;
            let Some(step) = self.steps.disarm() else {
                case.check_reply("without a fault", &reply);
                return before;
            };
            let status = reply.as_ref().map_or(0, |response| response.status);
            eprintln!("{endpoint:?} {status}, no response to {step}");
            case.check_reply(&format!("no response to {step}"), &reply);
            well_again(&mortal).await;
            case.check_recovery(&mortal, reply.as_ref().ok()).await;
        }
        unreachable!("a request has an end")
    }

    /// Checks that database and blob store agree.
    async fn sound(&self) {
        self.other.lode().run(&["fsck", "--verify"]).await.expect_success();
    }
}

async fn well_again(registry: &Registry) {
    wait_until("the server is ready again", || async {
        let response = registry.try_send(registry.request("GET", "/readyz")).await;
        response.is_ok_and(|response| response.status == 200)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_each_step_of_each_change() {
    let Some(mut site) = Site::start("steps::killed_after_each_step", Options::new()).await else { return };
    let mut kills = Vec::new();
    for endpoint in WRITES.into_iter().filter(|endpoint| *endpoint != Endpoint::Collection) {
        kills.push((endpoint, site.kill_at_each_step(endpoint).await));
    }
    site.sound().await;
    let total: usize = kills.iter().map(|(_, steps)| steps).sum();
    assert!(kills.iter().all(|(_, steps)| *steps > 0), "a change without steps: {kills:?}");
    figure(
        &format!("kill -9 after each of {total} steps at database and storage"),
        &format!("{kills:?}: the other replica kept running, nothing lost, fsck --verify clean"),
    );
}

/// Runs collections that delete content, each with the fault one step later than the previous one. Returns
/// the number of collections with a fault.
async fn collections(test: &str, act: StepFault) -> Option<usize> {
    let options =
        Options::new().env("LODE_GC_GRACE", "0s").env("LODE_GC_UNDO", "0s").env("LODE_UPLOAD_LEASE", "0s");
    let mut site = Site::start(test, options).await?;
    let other = site.other.registry();
    let kept = Image::random(fresh_seed(), 2, 10_000);
    kept.push(&other, "steps", "kept").await;
    for before in 0.. {
        let layers = Image::random(fresh_seed(), 2, 10_000).layers;
        let gone = Image::of(kept.config.clone(), layers, &json!({}));
        let digest = gone.push(&other, "steps", "gone").await;
        other.delete(&format!("/v2/steps/manifests/{digest}")).await.expect(202);
        let mortal = site.mortal().registry();
        let met = match act {
            StepFault::Freeze => {
                site.send_and_kill(before, mortal.collect()).await.map_err(|response| response.status)
            }
            StepFault::LoseResponse => {
                site.steps.arm(before, act);
                let response = mortal.collect().await;
                let met = site.steps.disarm();
                well_again(&mortal).await;
                met.ok_or(response.status)
            }
        };
        eprintln!("collection, {act:?} after {met:?}");
        // Unreferenced content is deleted with its bytes, wherever the collection was interrupted. The
        // config, which both images reference, is kept. Rows that a closing connection still locks are left
        // to the next collection.
        let report = wait_for("the unreferenced content is deleted", || async {
            other.collect().await.expect(200);
            let report = site.other.lode().run(&["fsck", "--verify", "--json"]).await.expect_success().json();
            (report["blobs"] == 4).then_some(report)
        })
        .await;
        assert_eq!(report["orphans"], json!([]), "after {met:?}");
        other.manifest_get("steps", &digest).await.expect(404);
        kept.check(&other, "steps", "kept").await;
        if let Err(status) = met {
            assert_eq!(status, 200, "without a fault");
            assert!(before > 5, "a collection has more than {before} steps");
            return Some(before);
        }
        site.restart().await;
    }
    unreachable!("a collection has an end")
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_each_step_of_a_collection() {
    let Some(kills) = collections("steps::killed_after_each_step_of_a_collection", StepFault::Freeze).await
    else {
        return;
    };
    figure(
        "kill -9 after each step of a collection",
        &format!("{kills} kills: the other replica completed the collection, nothing lost, no garbage left"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_lost_once_in_a_collection() {
    let Some(lost) =
        collections("steps::each_answer_lost_once_in_a_collection", StepFault::LoseResponse).await
    else {
        return;
    };
    figure("responses lost in collections, each once", &format!("{lost}: nothing lost, no garbage left"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_response_lost_once() {
    let Some(site) = Site::start("steps::each_answer_lost_once", Options::new()).await else { return };
    let mut lost = Vec::new();
    // A HEAD extends the lease of the blob, so it writes too.
    for endpoint in WRITES.into_iter().chain([Endpoint::BlobHead]) {
        lost.push((endpoint, site.lose_each_response(endpoint).await));
    }
    site.sound().await;
    figure(
        "responses of database and storage lost, each once",
        &format!("{lost:?}: success or 503 with Retry-After, repeated with success, fsck --verify clean"),
    );
}

#[test]
fn steps_are_parsed_in_any_chunking() {
    let check = |protocol, bytes: &[u8], expect: &[&str]| {
        assert_eq!(parse_steps(protocol, [bytes]), expect);
        assert_eq!(parse_steps(protocol, bytes.chunks(1)), expect);
    };
    let message = |kind: &[u8], body: &[u8]| [kind, &(body.len() as u32 + 4).to_be_bytes(), body].concat();
    let sent = [
        message(b"", &80_877_103u32.to_be_bytes()), // TLS request
        message(b"", b"\0\x03\0\0user\0x\0\0"),
        message(b"Q", b"BEGIN\0"),
        message(b"P", b"s1\0insert\n  into t\0\0\0"),
        message(b"S", b""),
        message(b"B", b"\0s1\0\0\0\0\0\0\0"),
        message(b"E", b"\0\0\0\0\0"),
        message(b"B", b"\0s1\0\0\0\0\0\0\0"),
        message(b"E", b"\0\0\0\0\0"),
        message(b"Q", b"COMMIT\0"),
    ];
    let expect = ["begin", "insert into t", "insert into t", "commit"];
    check(Protocol::Postgres, &sent.concat(), &expect);
    let sent = b"PUT /b/k?partNumber=1 HTTP/1.1\r\nhost: x\r\nContent-Length: 8\r\n\r\nGET / \r\nDELETE /b/k HTTP/1.1\r\n\r\n";
    check(Protocol::Http, sent, &["PUT /b/k?partNumber=1", "DELETE /b/k"]);
}
