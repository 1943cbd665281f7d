//! Every step that a change takes at the database and the storage, one after the other: a replica is killed (kill -9) once the step is
//! done and before it learns so, or the step's answer is lost. The other replica goes on, clients ask again, and nothing
//! that was acknowledged is missing.
//! LODE_EVERY_STEP=1, as the long form sets it, takes reads for steps as well.
#![expect(clippy::print_stderr, reason = "the steps that went well lead to the one that did not")]

use std::time::Duration;

use lode_tests::artifact::{Image, fresh_seed};
use lode_tests::command::{until, wait_for};
use lode_tests::endpoints::{Case, Endpoint, WRITES};
use lode_tests::oci::Registry;
use lode_tests::report::{figure, setting};
use lode_tests::server::{Folder, Options, Server};
use lode_tests::services::{Backing, postgres_address, postgres_through, s3_address};
use lode_tests::steps::{Act, Protocol, StepProxy, Steps, Which, steps_in};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(120);

/// Two replicas; what befalls the first does not befall the second.
struct Site {
    steps: Steps,
    folder: Folder,
    options: Options,
    mortal: Option<Server>,
    other: Server,
    _proxies: [StepProxy; 2],
}

impl Site {
    async fn start(test: &str, options: Options) -> Option<Self> {
        let backing = Backing::shared(test)?;
        let url = backing.database.clone()?;
        let which = if setting("LODE_EVERY_STEP", 0) > 0 { Which::All } else { Which::Changes };
        let steps = Steps::new(which);
        let database = steps.before(postgres_address(&url), Protocol::Postgres);
        let storage = steps.before(s3_address(), Protocol::Http);
        let options = options.env("LODE_REDIRECT", "false");
        let other = Folder::new().start(options.clone().on(&backing)).await;
        let through = Backing { database: Some(postgres_through(&url, database.address)), ..backing };
        let options = options.on(&through).env("AWS_ENDPOINT_URL", format!("http://{}", storage.address));
        let folder = Folder::new();
        let mortal = Some(folder.start(options.clone()).await);
        Some(Self { steps, folder, options, mortal, other, _proxies: [database, storage] })
    }

    fn mortal(&self) -> &Server {
        self.mortal.as_ref().expect("it was started again")
    }

    /// Sends a request to the replica that dies after so many steps. Gives the step, or the reply if it did not get so far.
    async fn until_killed<T>(
        &mut self,
        before: usize,
        request: impl Future<Output = T>,
    ) -> Result<String, T> {
        self.steps.arm(before, Act::Freeze);
        let outcome = tokio::select! {
            biased;
            step = self.steps.frozen() => Ok(step),
            reply = request => Err(reply),
        };
        self.steps.disarm();
        if outcome.is_ok() {
            self.mortal.take().expect("it runs").kill();
        }
        self.steps.release();
        outcome
    }

    async fn restart(&mut self) {
        if self.mortal.is_none() {
            self.mortal = Some(self.folder.start(self.options.clone()).await);
        }
    }

    /// Kills a replica after each step of a request.
    async fn die_at_each_step(&mut self, endpoint: Endpoint) -> usize {
        let other = self.other.registry();
        for before in 0.. {
            let case = Case::prepare(&other, endpoint).await;
            let mortal = self.mortal().registry();
            match self.until_killed(before, case.send(&mortal, PATIENCE)).await {
                Ok(step) => {
                    case.check(&other, &None).await;
                    eprintln!("{endpoint:?}, killed after {step}");
                    self.restart().await;
                }
                Err(reply) => {
                    let status = reply.as_ref().map(|answer| answer.status);
                    assert_eq!(status, Some(case.success()), "{endpoint:?} undisturbed");
                    case.check(&other, &reply).await;
                    return before;
                }
            }
        }
        unreachable!("a request has an end")
    }

    /// Loses the answer of each step of a request.
    async fn lose_each_answer(&self, endpoint: Endpoint) -> usize {
        let (mortal, other) = (self.mortal().registry(), self.other.registry());
        for before in 0.. {
            let case = Case::prepare(&other, endpoint).await;
            self.steps.arm(before, Act::LoseAnswer);
            let reply = case.send(&mortal, PATIENCE).await;
            let Some(step) = self.steps.disarm() else {
                case.right("undisturbed", &reply);
                return before;
            };
            let status = reply.as_ref().map_or(0, |answer| answer.status);
            eprintln!("{endpoint:?} {status}, no answer to {step}");
            case.right(&format!("no answer to {step}"), &reply);
            well_again(&mortal).await;
            case.check(&mortal, &reply).await;
        }
        unreachable!("a request has an end")
    }

    /// Index and bytes agree.
    async fn sound(&self) {
        self.other.lode().run(&["fsck", "--verify"]).await.ok();
    }
}

async fn well_again(registry: &Registry) {
    until("the server is ready again", || async {
        let answer = registry.try_send(registry.request("GET", "/readyz")).await;
        answer.is_ok_and(|answer| answer.status == 200)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_each_step_of_each_change() {
    let Some(mut site) = Site::start("steps::killed_after_each_step", Options::new()).await else { return };
    let mut kills = Vec::new();
    for endpoint in WRITES.into_iter().filter(|endpoint| *endpoint != Endpoint::Collection) {
        kills.push((endpoint, site.die_at_each_step(endpoint).await));
    }
    site.sound().await;
    let total: usize = kills.iter().map(|(_, steps)| steps).sum();
    assert!(kills.iter().all(|(_, steps)| *steps > 0), "each of these changes something: {kills:?}");
    figure(
        &format!("kill -9 after each of {total} steps at database and storage"),
        &format!("{kills:?}: the other replica went on, nothing lost, fsck --verify clean"),
    );
}

/// Collections with something to take, each of which meets the act one step later than the one before. How many did.
async fn collections(test: &str, act: Act) -> Option<usize> {
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
            Act::Freeze => site.until_killed(before, mortal.collect()).await.map_err(|answer| answer.status),
            Act::LoseAnswer => {
                site.steps.arm(before, act);
                let answer = mortal.collect().await;
                let met = site.steps.disarm();
                well_again(&mortal).await;
                met.ok_or(answer.status)
            }
        };
        eprintln!("collection, {act:?} after {met:?}");
        // What was to go is gone with its bytes, wherever the collection was left; the config, which both name, is not. Rows that a
        // connection which is about to end still holds are left to the next collection.
        let report = wait_for("what was to go is gone", || async {
            other.collect().await.expect(200);
            let report = site.other.lode().run(&["fsck", "--verify", "--json"]).await.ok().json();
            (report["blobs"] == 4).then_some(report)
        })
        .await;
        assert_eq!(report["orphans"], json!([]), "after {met:?}");
        other.manifest_get("steps", &digest).await.expect(404);
        kept.check(&other, "steps", "kept").await;
        if let Err(status) = met {
            assert_eq!(status, 200, "undisturbed");
            assert!(before > 5, "a collection takes more than {before} steps");
            return Some(before);
        }
        site.restart().await;
    }
    unreachable!("a collection has an end")
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_each_step_of_a_collection() {
    let Some(kills) = collections("steps::killed_after_each_step_of_a_collection", Act::Freeze).await else {
        return;
    };
    figure(
        "kill -9 after each step of a collection",
        &format!("{kills} kills: the other replica ended what was begun, nothing lost, nothing left behind"),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_lost_once_in_a_collection() {
    let Some(lost) = collections("steps::each_answer_lost_once_in_a_collection", Act::LoseAnswer).await
    else {
        return;
    };
    figure("answers lost in collections, each once", &format!("{lost}: nothing lost, nothing left behind"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_answer_lost_once() {
    let Some(site) = Site::start("steps::each_answer_lost_once", Options::new()).await else { return };
    let mut lost = Vec::new();
    // A HEAD keeps the blob from going for a while.
    for endpoint in WRITES.into_iter().chain([Endpoint::BlobHead]) {
        lost.push((endpoint, site.lose_each_answer(endpoint).await));
    }
    site.sound().await;
    figure(
        "answers of database and storage lost, each once",
        &format!("{lost:?}: carried out or 503 with Retry-After, repeated with success, fsck --verify clean"),
    );
}

#[test]
fn steps_are_told_from_each_other() {
    let check = |protocol, bytes: &[u8], expect: &[&str]| {
        assert_eq!(steps_in(protocol, [bytes]), expect);
        assert_eq!(steps_in(protocol, bytes.chunks(1)), expect);
    };
    let message = |kind: &[u8], body: &[u8]| [kind, &(body.len() as u32 + 4).to_be_bytes(), body].concat();
    let sent = [
        message(b"", &80_877_103u32.to_be_bytes()), // may we speak TLS?
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
