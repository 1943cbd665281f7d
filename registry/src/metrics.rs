//! The server's metrics. `GET /metrics` reports them in Prometheus' text format.
//! The code that does the work records it here. Label values come from the code (routes, operations,
//! statuses), never from a request.

use std::collections::HashMap;
use std::fmt::Write;
use std::future::Future;
use std::sync::{LazyLock, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing::Instrument;

/// Upper bounds of every histogram, in seconds: from a read of one row to a large collection.
const BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Interval for moving samples into their buckets, so that a server that is never scraped does not keep them
/// all.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

struct Metric {
    name: &'static str,
    kind: Kind,
    labels: &'static str,
    help: &'static str,
}

macro_rules! metrics_table {
    ($($id:ident, $name:literal, $kind:ident, $labels:literal, $help:literal;)*) => {
        $(const $id: &str = $name;)*
        /// Every metric, in the order of docs/reference/metrics.md.
        const ALL: &[Metric] = &[$(Metric { name: $name, kind: Kind::$kind, labels: $labels, help: $help }),*];
    };
}

metrics_table! {
    INFO, "lode_info", Gauge, "version", "Always 1; the label is the running version.";
    REQUESTS, "lode_http_requests_total", Counter, "route, method, status", "Completed requests. The route is the template, such as /v2/{name}/blobs/{digest}, or `none` if no route matched.";
    REQUEST_SECONDS, "lode_http_request_seconds", Histogram, "route, method", "Time from a request's head to its response's head. It includes the body of a push, but not the body of a pull.";
    IN_FLIGHT, "lode_http_requests_in_flight", Gauge, "", "Requests whose response has not begun.";
    RECEIVED, "lode_http_received_bytes_total", Counter, "", "Bytes of request bodies.";
    SENT, "lode_http_sent_bytes_total", Counter, "", "Bytes of response bodies. Downloads from object storage after a redirect are not included.";
    UPLOADS, "lode_uploads_open", Gauge, "", "Upload sessions that are neither committed nor cancelled, of all replicas together.";
    WORKERS, "lode_workers_attached", Gauge, "", "Workers with a recent heartbeat, of all replicas together.";
    GC_RUNS, "lode_gc_runs_total", Counter, "outcome", "Collections that this process ran: `done` or `failed`. Dry runs are not counted.";
    GC_SECONDS, "lode_gc_seconds", Histogram, "", "Duration of a collection.";
    GC_REMOVED, "lode_gc_removed_total", Counter, "kind", "Objects removed by collections: `tag` (by a retention rule), `manifest`, `link` (a repository's reference to a blob), `blob`.";
    GC_BYTES, "lode_gc_reclaimed_bytes_total", Counter, "", "Bytes of the blobs that collections removed.";
    CONNECTIONS, "lode_database_connections", Gauge, "pool, state", "Connections to the database: `idle` or `busy`. SQLite has one pool for reading and one for writing.";
    CONNECTIONS_MAX, "lode_database_connections_max", Gauge, "pool", "Maximum number of connections in the pool.";
    DATABASE_SECONDS, "lode_database_seconds", Histogram, "operation", "Duration of one query, including the wait for a connection.";
    DATABASE_ERRORS, "lode_database_errors_total", Counter, "operation", "Failed queries.";
    STORAGE_SECONDS, "lode_storage_seconds", Histogram, "operation", "Duration of one storage operation; for a read, until its first byte is available.";
    STORAGE_ERRORS, "lode_storage_errors_total", Counter, "operation", "Failed storage operations.";
    WEBHOOKS, "lode_webhook_deliveries_total", Counter, "outcome", "Attempts to deliver an event: `delivered`, `retry` (failed, to be retried), `given_up` (abandoned).";
    WEBHOOKS_PENDING, "lode_webhooks_pending", Gauge, "", "Events that are waiting for delivery, of all replicas together.";
    INDEX_QUEUE, "lode_index_queue_length", Gauge, "", "Manifests that wait to be indexed as models, of all replicas together.";
}

/// Installs the process's metrics recorder, once.
pub(crate) fn install() -> &'static PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| {
        let builder = PrometheusBuilder::new().set_buckets(BUCKETS).expect("BUCKETS is not empty");
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        if metrics::set_global_recorder(recorder).is_err() {
            tracing::warn!("another metrics recorder is installed; /metrics stays empty");
        }
        for metric in ALL {
            match metric.kind {
                Kind::Counter => metrics::describe_counter!(metric.name, metric.help),
                Kind::Gauge => metrics::describe_gauge!(metric.name, metric.help),
                Kind::Histogram => metrics::describe_histogram!(metric.name, metric.help),
            }
        }
        gauge!(INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        handle
    })
}

/// Moves samples into their buckets; never returns.
pub(crate) async fn upkeep() {
    let handle = install();
    loop {
        tokio::time::sleep(UPKEEP_INTERVAL).await;
        handle.run_upkeep();
    }
}

/// The state of a pool of database connections.
pub(crate) struct PoolState {
    pub(crate) name: &'static str,
    pub(crate) size: u32,
    pub(crate) idle: u32,
    pub(crate) max: u32,
}

/// Gauges that are read from the database when the page is requested.
pub(crate) struct DatabaseGauges {
    pub(crate) uploads: i64,
    pub(crate) workers: usize,
    pub(crate) webhooks: i64,
    pub(crate) index_queue: i64,
}

/// The page of `/metrics`. `gauges` is `None` if the database did not respond.
pub(crate) fn render(pools: &[PoolState], gauges: Option<DatabaseGauges>) -> String {
    for pool in pools {
        let busy = pool.size.saturating_sub(pool.idle);
        gauge!(CONNECTIONS, "pool" => pool.name, "state" => "idle").set(f64::from(pool.idle));
        gauge!(CONNECTIONS, "pool" => pool.name, "state" => "busy").set(f64::from(busy));
        gauge!(CONNECTIONS_MAX, "pool" => pool.name).set(f64::from(pool.max));
    }
    let [uploads, workers, webhooks, queued] = match gauges {
        Some(DatabaseGauges { uploads, workers, webhooks, index_queue }) => {
            [uploads as f64, workers as f64, webhooks as f64, index_queue as f64]
        }
        // NaN means unknown. Zero or the last value would be wrong.
        None => [f64::NAN; 4],
    };
    gauge!(UPLOADS).set(uploads);
    gauge!(WORKERS).set(workers);
    gauge!(WEBHOOKS_PENDING).set(webhooks);
    gauge!(INDEX_QUEUE).set(queued);
    install().render()
}

/// A method as a label. Clients can invent methods, so unknown ones share one label.
pub(crate) fn method_label(method: &Method) -> &'static str {
    const KNOWN: [&str; 8] = ["GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE"];
    KNOWN.into_iter().find(|known| method.as_str() == *known).unwrap_or("other")
}

pub(crate) fn requests_in_flight() -> &'static Gauge {
    static KEPT: LazyLock<Gauge> = LazyLock::new(|| {
        install();
        gauge!(IN_FLIGHT)
    });
    &KEPT
}

/// Metrics of the responses of one route with one method and one status.
struct ResponseMetrics {
    method: &'static str,
    status: StatusCode,
    count: Counter,
    seconds: Histogram,
}

pub(crate) fn record_request(route: &str, method: &'static str, status: StatusCode, took: Duration) {
    /// Metrics by route. A look-up by labels in the recorder would cost as much as serving a small response.
    static KEPT: LazyLock<RwLock<HashMap<String, Vec<ResponseMetrics>>>> = LazyLock::new(RwLock::default);
    let record = |metrics: &ResponseMetrics| {
        metrics.count.increment(1);
        metrics.seconds.record(took);
    };
    {
        let kept = KEPT.read().unwrap_or_else(PoisonError::into_inner);
        let is_it = |metrics: &&ResponseMetrics| metrics.method == method && metrics.status == status;
        if let Some(metrics) = kept.get(route).and_then(|all| all.iter().find(is_it)) {
            return record(metrics);
        }
    }
    install();
    let labelled = status.as_str().to_owned();
    let metrics = ResponseMetrics {
        method,
        status,
        count: counter!(REQUESTS, "route" => route.to_owned(), "method" => method, "status" => labelled),
        seconds: histogram!(REQUEST_SECONDS, "route" => route.to_owned(), "method" => method),
    };
    record(&metrics);
    KEPT.write().unwrap_or_else(PoisonError::into_inner).entry(route.to_owned()).or_default().push(metrics);
}

pub(crate) fn bytes_received() -> &'static Counter {
    static KEPT: LazyLock<Counter> = LazyLock::new(|| {
        install();
        counter!(RECEIVED)
    });
    &KEPT
}

pub(crate) fn bytes_sent() -> &'static Counter {
    static KEPT: LazyLock<Counter> = LazyLock::new(|| {
        install();
        counter!(SENT)
    });
    &KEPT
}

/// The objects that a collection removed, and the bytes of the blobs among them.
pub(crate) struct RemovedObjects {
    pub(crate) tags: u64,
    pub(crate) manifests: u64,
    pub(crate) links: u64,
    pub(crate) blobs: u64,
    pub(crate) size_bytes: u64,
}

/// Records one collection that was not a dry run; `removed` is `None` if it failed.
pub(crate) fn record_collection(removed: Option<RemovedObjects>, took: Duration) {
    histogram!(GC_SECONDS).record(took);
    let Some(RemovedObjects { tags, manifests, links, blobs, size_bytes }) = removed else {
        return counter!(GC_RUNS, "outcome" => "failed").increment(1);
    };
    counter!(GC_RUNS, "outcome" => "done").increment(1);
    for (kind, count) in [("tag", tags), ("manifest", manifests), ("link", links), ("blob", blobs)] {
        counter!(GC_REMOVED, "kind" => kind).increment(count);
    }
    counter!(GC_BYTES).increment(size_bytes);
}

/// Measures one query, in a span of its own when tracing is enabled.
pub(crate) async fn database<T, E>(
    operation: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let span = tracing::debug_span!("database", otel.name = operation, otel.kind = "client");
    let started = Instant::now();
    let result = work.instrument(span).await;
    histogram!(DATABASE_SECONDS, "operation" => operation).record(started.elapsed());
    if result.is_err() {
        counter!(DATABASE_ERRORS, "operation" => operation).increment(1);
    }
    result
}

/// Measures one storage operation, in a span of its own when tracing is enabled.
pub(crate) async fn measure_storage<T, E>(
    operation: &'static str,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let span = tracing::debug_span!("storage", otel.name = operation, otel.kind = "client");
    let started = Instant::now();
    let result = work.instrument(span).await;
    histogram!(STORAGE_SECONDS, "operation" => operation).record(started.elapsed());
    if result.is_err() {
        counter!(STORAGE_ERRORS, "operation" => operation).increment(1);
    }
    result
}

pub(crate) fn record_webhook_attempt(outcome: &'static str) {
    counter!(WEBHOOKS, "outcome" => outcome).increment(1);
}

/// The function that contains an item with this type name: `crate::m::<impl X>::find::{{closure}}::here`
/// gives `find`.
pub(crate) fn function_name(inner: &'static str) -> &'static str {
    let outer = inner.strip_suffix("::here").unwrap_or(inner);
    outer.rsplit("::").find(|part| *part != "{{closure}}").unwrap_or(outer)
}

/// The text of docs/reference/metrics.md.
#[cfg_attr(not(test), expect(dead_code, reason = "a test writes and compares it"))]
fn reference_page() -> String {
    let mut text = String::from(
        "# Metrics\n\n\
        `GET /metrics`, in Prometheus' text format. Generated from the program's own table by a test of\n\
        `registry/src/metrics.rs`; do not edit.\n\n\
        Each process counts its own work since it started. Rows that say \"of all replicas together\" come from the\n\
        database, and every replica reports the same value. They are `NaN` while the database is unavailable. No label\n\
        contains a repository's name, a tag or a digest.\n\n\
        | name | type | labels | |\n| --- | --- | --- | --- |\n",
    );
    for Metric { name, kind, labels, help } in ALL {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _always_fits = writeln!(text, "| `{name}` | {kind} | {labels} | {help} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
        let page = reference_page();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, &page).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            written == page,
            "docs/reference/metrics.md is out of date: UPDATE_DOCS=1 cargo test -p lode-registry reference"
        );
    }

    #[test]
    fn function_names_are_extracted() {
        fn here() {}
        assert_eq!(function_name(std::any::type_name_of_val(&here)), "function_names_are_extracted");
        assert_eq!(function_name("a::b::<impl a::c::Store>::find::{{closure}}::{{closure}}::here"), "find");
    }

    #[test]
    fn methods_are_a_closed_set() {
        assert_eq!(method_label(&Method::PATCH), "PATCH");
        assert_eq!(method_label(&Method::from_bytes(b"MADE-UP").unwrap()), "other");
    }
}
