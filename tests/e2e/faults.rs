//! The database or the object storage refuses connections, is slow or silent, drops connections, or executes
//! a request and loses the response. Every request gets the right status, no acknowledged change is lost, and
//! the server recovers without a restart.

use std::time::{Duration, Instant};

use futures::future::join_all;
use lode_tests::command::wait_until;
use lode_tests::endpoints::{Endpoint, EndpointCase, WRITES};
use lode_tests::faults::{Fault, FaultProxy};
use lode_tests::oci::Registry;
use lode_tests::report::figure;
use lode_tests::server::{Folder, Options, Server};
use lode_tests::services::{Backends, postgres_address, postgres_through, s3_address};

/// More than any response may take while a service is unavailable.
const TIMEOUT: Duration = Duration::from_secs(120);
/// How long a silent service stays silent.
const SILENCE: Duration = Duration::from_secs(25);

struct FaultSetup {
    server: Server,
    registry: Registry,
    database: FaultProxy,
    storage: FaultProxy,
}

impl FaultSetup {
    async fn start(test: &str) -> Option<Self> {
        let mut backing = Backends::shared(test)?;
        let url = backing.database.clone()?;
        let database = FaultProxy::in_front_of(postgres_address(&url));
        let storage = FaultProxy::in_front_of(s3_address());
        backing.database = Some(postgres_through(&url, database.address));
        let options = Options::new()
            .with_backends(&backing)
            .env("AWS_ENDPOINT_URL", format!("http://{}", storage.address))
            .env("LODE_REDIRECT", "false"); // so that the fault affects the server, not the client
        let server = Folder::new().start(options).await;
        Some(Self { registry: server.registry(), server, database, storage })
    }

    /// Sends all requests concurrently during a fault, and then checks the responses and the stored content.
    async fn send_all_during(&self, service: &FaultProxy, name: &str, fault: Fault) {
        let cases = EndpointCase::prepare_all(&self.registry).await;
        service.set(fault.clone());
        let started = Instant::now();
        let requests = join_all(cases.iter().map(|case| case.send(&self.registry, TIMEOUT)));
        // The server needs some time to tell silence from slowness. The silence ends while requests still
        // wait.
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
            case.check_reply(name, reply);
            case.check_recovery(&self.registry, reply.as_ref().ok()).await;
            statuses.push(format!(
                "{:?} {}",
                case.endpoint,
                reply.as_ref().map_or(0, |response| response.status)
            ));
        }
        assert!(met > 0, "{name}: the fault affected no connection");
        figure(&format!("fault: {name}, {} ms", took.as_millis()), &statuses.join(", "));
    }

    /// Sends the requests one after another, each during the fault.
    async fn send_each_during(
        &self,
        service: &FaultProxy,
        name: &str,
        fault: &Fault,
        endpoints: &[Endpoint],
    ) {
        let mut met = Vec::new();
        for endpoint in endpoints {
            let case = EndpointCase::prepare(&self.registry, *endpoint).await;
            service.set(fault.clone());
            let reply = case.send(&self.registry, TIMEOUT).await;
            let hits = service.hits();
            service.heal();
            self.well_again().await;
            case.check_reply(name, &reply);
            case.check_recovery(&self.registry, reply.as_ref().ok()).await;
            if hits > 0 {
                met.push(format!("{endpoint:?} {}", reply.as_ref().map_or(0, |response| response.status)));
            }
        }
        assert!(!met.is_empty(), "{name}: the fault affected no connection");
        figure(&format!("fault: {name}"), &met.join(", "));
    }

    /// Checks that database and blob store agree.
    async fn sound(&self) {
        self.server.lode().run(&["fsck", "--verify"]).await.expect_success();
    }

    async fn well_again(&self) {
        wait_until("the server is ready again", || async {
            let response = self.registry.try_send(self.registry.request("GET", "/readyz")).await;
            response.is_ok_and(|response| response.status == 200)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn database_faults() {
    let Some(site) = FaultSetup::start("faults::of_the_database").await else { return };
    let database = &site.database;
    site.send_all_during(database, "database refuses connections", Fault::Refused).await;
    site.send_all_during(database, "database slow", Fault::Slow(Duration::from_millis(50))).await;
    site.send_all_during(database, "database drops connections", Fault::CutAfter(300)).await;
    site.send_all_during(database, "database silent", Fault::Silent).await;
    site.send_each_during(
        database,
        "database loses the response to a commit",
        &Fault::ResponseLost("COMMIT", 1),
        &WRITES,
    )
    .await;
    let every = Fault::ResponseLost("COMMIT", usize::MAX);
    site.send_each_during(database, "database loses the response to every commit", &every, &WRITES).await;
    site.sound().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_faults() {
    let Some(site) = FaultSetup::start("faults::of_the_storage").await else { return };
    let storage = &site.storage;
    site.send_all_during(storage, "storage refuses connections", Fault::Refused).await;
    site.send_all_during(storage, "storage slow", Fault::Slow(Duration::from_millis(20))).await;
    site.send_all_during(storage, "storage throttled", Fault::Throttled(20_000_000)).await;
    site.send_all_during(storage, "storage drops connections", Fault::CutAfter(1_000_000)).await;
    site.send_all_during(storage, "storage silent", Fault::Silent).await;
    // The response to an executed request is lost, once or every time.
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
            let name = format!(
                "storage loses {} to {what}",
                if times == 1 { "one response" } else { "every response" }
            );
            site.send_each_during(
                storage,
                &name,
                &Fault::ResponseLost(pattern, times),
                &endpoints_using(pattern),
            )
            .await;
        }
    }
    site.sound().await;
}

/// The requests that may make the server send a storage request with this pattern.
fn endpoints_using(pattern: &str) -> Vec<Endpoint> {
    use Endpoint::{BlobGet, BlobPost, ManifestPut, TagMove, UploadAppend, UploadCancel, UploadFinish};
    match pattern {
        "GET /" => vec![BlobGet, UploadAppend, UploadFinish],
        "HEAD /" => vec![TagMove],
        "DELETE /" => vec![UploadFinish, UploadCancel],
        _ => vec![UploadAppend, UploadFinish, BlobPost, ManifestPut],
    }
}
