//! The database or the object storage refuses, is slow, says nothing, is cut off, or loses its answer after the work was done: for every
//! request the right status, nothing lost that was acknowledged, and all well again without a restart once the fault is over.

use std::time::{Duration, Instant};

use futures::future::join_all;
use lode_tests::command::until;
use lode_tests::endpoints::{Case, Endpoint, WRITES};
use lode_tests::faults::{Fault, FaultProxy};
use lode_tests::oci::Registry;
use lode_tests::report::figure;
use lode_tests::server::{Folder, Options, Server};
use lode_tests::services::{Backing, postgres_address, postgres_through, s3_address};

/// Longer than any answer may take while a service is away.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a silent service is silent.
const SILENCE: Duration = Duration::from_secs(25);

struct Site {
    server: Server,
    registry: Registry,
    database: FaultProxy,
    storage: FaultProxy,
}

impl Site {
    async fn start(test: &str) -> Option<Self> {
        let mut backing = Backing::shared(test)?;
        let url = backing.database.clone()?;
        let database = FaultProxy::before(postgres_address(&url));
        let storage = FaultProxy::before(s3_address());
        backing.database = Some(postgres_through(&url, database.address));
        let options = Options::new()
            .on(&backing)
            .env("AWS_ENDPOINT_URL", format!("http://{}", storage.address))
            .env("LODE_REDIRECT", "false"); // so that the server meets the fault, not the client
        let server = Folder::new().start(options).await;
        Some(Self { registry: server.registry(), server, database, storage })
    }

    /// Sends every request while a service misbehaves, all at once, and then holds the server to what it said.
    async fn under(&self, service: &FaultProxy, name: &str, fault: Fault) {
        let cases = Case::prepare_all(&self.registry).await;
        service.set(fault.clone());
        let started = Instant::now();
        let requests = join_all(cases.iter().map(|case| case.send(&self.registry, PATIENCE)));
        // Silence is not told from slowness before some time has gone by; it ends while some still wait.
        let silence = async {
            if fault == Fault::Silent {
                tokio::time::sleep(SILENCE).await;
                service.heal();
            }
        };
        let (replies, ()) = tokio::join!(requests, silence);
        let took = started.elapsed();
        let met = service.hits();
        service.heal();
        self.well_again().await;
        let mut statuses = Vec::new();
        for (case, reply) in cases.iter().zip(&replies) {
            case.right(name, reply);
            case.check(&self.registry, reply).await;
            statuses.push(format!(
                "{:?} {}",
                case.endpoint,
                reply.as_ref().map_or(0, |answer| answer.status)
            ));
        }
        assert!(met > 0, "{name}: nothing met the fault");
        figure(&format!("fault: {name}, {} ms", took.as_millis()), &statuses.join(", "));
    }

    /// One request after the other meets the fault alone.
    async fn one_by_one(&self, service: &FaultProxy, name: &str, fault: &Fault, endpoints: &[Endpoint]) {
        let mut met = Vec::new();
        for endpoint in endpoints {
            let case = Case::prepare(&self.registry, *endpoint).await;
            service.set(fault.clone());
            let reply = case.send(&self.registry, PATIENCE).await;
            let hits = service.hits();
            service.heal();
            self.well_again().await;
            case.right(name, &reply);
            case.check(&self.registry, &reply).await;
            if hits > 0 {
                met.push(format!("{endpoint:?} {}", reply.as_ref().map_or(0, |answer| answer.status)));
            }
        }
        assert!(!met.is_empty(), "{name}: nothing met the fault");
        figure(&format!("fault: {name}"), &met.join(", "));
    }

    /// After all of it index and bytes agree.
    async fn sound(&self) {
        self.server.lode().run(&["fsck", "--verify"]).await.ok();
    }

    async fn well_again(&self) {
        until("the server is ready again", || async {
            let answer = self.registry.try_send(self.registry.request("GET", "/readyz")).await;
            answer.is_ok_and(|answer| answer.status == 200)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_database() {
    let Some(site) = Site::start("faults::of_the_database").await else { return };
    let database = &site.database;
    site.under(database, "database refuses", Fault::Refused).await;
    site.under(database, "database slow", Fault::Slow(Duration::from_millis(50))).await;
    site.under(database, "database cut off", Fault::CutAfter(300)).await;
    site.under(database, "database silent", Fault::Silent).await;
    site.one_by_one(
        database,
        "database loses the answer to a commit",
        &Fault::AnswerLost("COMMIT", 1),
        &WRITES,
    )
    .await;
    let every = Fault::AnswerLost("COMMIT", usize::MAX);
    site.one_by_one(database, "database loses the answer to every commit", &every, &WRITES).await;
    site.sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_storage() {
    let Some(site) = Site::start("faults::of_the_storage").await else { return };
    let storage = &site.storage;
    site.under(storage, "storage refuses", Fault::Refused).await;
    site.under(storage, "storage slow", Fault::Slow(Duration::from_millis(20))).await;
    site.under(storage, "storage throttled", Fault::Throttled(20_000_000)).await;
    site.under(storage, "storage cut off", Fault::CutAfter(1_000_000)).await;
    site.under(storage, "storage silent", Fault::Silent).await;
    // Answers lost after the work was done: once, then each time.
    for (what, pattern) in [
        ("PutObject", "PUT /"),
        ("CreateMultipartUpload", "?uploads"),
        ("UploadPart", "partNumber="),
        ("CompleteMultipartUpload", "<CompleteMultipartUpload"),
        ("GetObject", "GET /"),
        ("HeadObject", "HEAD /"),
        ("DeleteObject", "DELETE /"),
    ] {
        for times in [1, usize::MAX] {
            let name =
                format!("storage loses {} of {what}", if times == 1 { "one answer" } else { "every answer" });
            site.one_by_one(storage, &name, &Fault::AnswerLost(pattern, times), &touching(pattern)).await;
        }
    }
    site.sound().await;
}

/// The requests that may make the server speak so to its storage.
fn touching(pattern: &str) -> Vec<Endpoint> {
    use Endpoint::{BlobGet, BlobPost, ManifestPut, TagMove, UploadAppend, UploadCancel, UploadFinish};
    match pattern {
        "GET /" => vec![BlobGet, UploadAppend, UploadFinish],
        "HEAD /" => vec![TagMove],
        "DELETE /" => vec![UploadFinish, UploadCancel],
        _ => vec![UploadAppend, UploadFinish, BlobPost, ManifestPut],
    }
}
