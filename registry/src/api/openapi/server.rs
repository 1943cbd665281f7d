//! The operations on workers, jobs and the server itself.

use utoipa::openapi::{ObjectBuilder, Required};

use super::Group;
use super::operation::{Named, Operation, choice, number, of, text};
use crate::api::{audit, jobs, maintenance, webhooks, workers};
use crate::app::{
    Connections, FindingKind, Heartbeat, HeartbeatReply, Job, Registration, RemovalPage, Status,
    WorkerAnnouncement,
};
use crate::{GcWaiting, RestoredContent};

const AUDITOR: &str = "the server role `auditor` or `admin`";
const ADMINISTRATOR: &str = "the server role `admin`";

pub(super) fn workers() -> Group {
    let operations = vec![
        Operation::get("/lode/v1/workers", "listWorkers", "Lists workers with their devices and models")
            .needs(AUDITOR)
            .pages(1000)
            .returns_page(of::<workers::WorkerList>()),
        Operation::post("/lode/v1/workers", "registerWorker", "Registers a worker")
            .needs("the token with which workers join")
            .body(of::<WorkerAnnouncement>())
            .returns(201, "The worker's id and credential", of::<Registration>()),
        Operation::put("/lode/v1/workers/{id}", "reportWorker", "Reports the state of a worker")
            .needs("the worker's credential")
            .body(of::<Heartbeat>())
            .returns(200, "The worker is drained, or reserved for models", of::<HeartbeatReply>())
            .returns_nothing(204, "The state was saved"),
        Operation::delete("/lode/v1/workers/{id}", "removeWorker", "Ends the registration of a worker")
            .needs("the worker's credential, or the server role `admin`")
            .returns_nothing(204, "The worker is not registered any more"),
        Operation::put(
            "/lode/v1/workers/{id}/drain",
            "drainWorker",
            "Stops sending new requests to a worker",
        )
        .needs(ADMINISTRATOR)
        .returns_nothing(204, "The worker gets no more requests"),
        Operation::delete(
            "/lode/v1/workers/{id}/drain",
            "resumeWorker",
            "Resumes sending requests to a worker",
        )
        .needs(ADMINISTRATOR)
        .returns_nothing(204, "The worker gets requests"),
    ];
    Group { name: "Workers", description: "The processes that run models.", operations }
}

pub(super) fn jobs() -> Group {
    let kinds = FindingKind::ALL.map(FindingKind::name);
    let kind = choice("kind", &kinds, "The kind of findings.").required(Required::True);
    let wait = number("wait", "Waits this many seconds for the end of the job, 60 at most.");
    let repository = text("repository", "Only removals from this repository.");
    let operations = vec![
        Operation::get("/lode/v1/jobs", "listJobs", "Lists jobs, newest first")
            .needs(AUDITOR)
            .pages(1000)
            .returns_page(of::<jobs::JobList>()),
        Operation::get("/lode/v1/jobs/{id}", "showJob", "Shows a job")
            .needs("the server role `auditor` or `admin`, or the account that started the job")
            .query(wait)
            .returns(200, "The job", of::<Job>()),
        Operation::delete("/lode/v1/jobs/{id}", "cancelJob", "Cancels a job")
            .needs("the server role `admin`, or the account that started the job")
            .returns(200, "The job had finished", of::<Job>())
            .returns(202, "The job is cancelled", of::<Job>()),
        Operation::get("/lode/v1/jobs/{id}/findings", "listFindings", "Lists the findings of a job")
            .needs(AUDITOR)
            .query(kind)
            .pages(1000)
            .returns_page(of::<jobs::Findings>()),
        Operation::get(
            "/lode/v1/gc",
            "showWaitingContent",
            "Shows what waits for its deletion, and when that begins",
        )
        .needs(AUDITOR)
        .returns(200, "Content without references", of::<GcWaiting>()),
        Operation::post("/lode/v1/gc", "startCollection", "Starts a garbage collection")
            .needs(ADMINISTRATOR)
            .body(of::<maintenance::Gc>())
            .returns(202, "The job", of::<Job>()),
        Operation::get(
            "/lode/v1/gc/removals",
            "listRemovals",
            "Lists what collections and retention rules removed, newest first",
        )
        .needs(AUDITOR)
        .query(repository)
        .pages(1000)
        .returns_page(of::<RemovalPage>()),
        Operation::post("/lode/v1/gc/undo", "undoRemoval", "Restores a removal")
            .needs(ADMINISTRATOR)
            .body(of::<maintenance::Undo>())
            .returns(200, "The restored content", of::<RestoredContent>()),
        Operation::post("/lode/v1/fsck", "startCheck", "Starts a check of the stored content")
            .needs(ADMINISTRATOR)
            .body(of::<maintenance::Fsck>())
            .returns(202, "The job", of::<Job>()),
    ];
    Group { name: "Jobs", description: "Work that continues after the response.", operations }
}

pub(super) fn server() -> Group {
    let document =
        Named::new("OpenApiDocument", ObjectBuilder::new().description(Some("An OpenAPI 3.1 document.")));
    let operations = vec![
        Operation::get("/lode/v1/openapi.json", "getDocument", "Returns this document")
            .needs("nothing")
            .open_to_everyone()
            .returns(200, "The document", document),
        Operation::get(
            "/lode/v1/status",
            "showStatus",
            "Shows the state of the server, its workers and jobs",
        )
        .needs(AUDITOR)
        .returns(200, "The state", of::<Status>()),
        Operation::get(
            "/lode/v1/connections",
            "listConnections",
            "Lists the registries that are mirrored, and the webhooks",
        )
        .needs(AUDITOR)
        .returns(200, "The mirrors and webhooks of the settings", of::<Connections>()),
        Operation::get("/lode/v1/webhooks", "listDeliveries", "Lists events that were not delivered")
            .needs(AUDITOR)
            .pages(1000)
            .returns_page(of::<webhooks::Deliveries>()),
        Operation::post("/lode/v1/webhooks/{id}/retry", "retryDelivery", "Delivers an event again")
            .needs(ADMINISTRATOR)
            .returns_nothing(202, "The delivery begins soon"),
        Operation::get("/lode/v1/audit", "listAuditRecords", "Lists the audit log, newest first")
            .needs(AUDITOR)
            .query(text("actor", "Only records of this actor."))
            .query(text("action", "Only records of this action, such as `manifest.push`."))
            .query(text("target", "Only records of this target."))
            .query(text("outcome", "Only records with this outcome."))
            .query(text("since", "Only records since this time, in RFC 3339."))
            .pages(1000)
            .returns_page(of::<audit::AuditPage>()),
    ];
    Group { name: "The server", description: "The server, its events and its audit log.", operations }
}
