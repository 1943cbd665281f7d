//! The server's metrics. `GET /metrics` reports them in Prometheus' text format.
//! The code that does the work records it here. Label values come from the code (routes, operations,
//! statuses), never from a request.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{LazyLock, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use http::{Method, StatusCode};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing::{Instrument, Span};

mod measured;
mod table;

pub(crate) use measured::Measured;
pub use measured::{ContentSize, Disk, WaitingRemovals};

use table::{
    ACQUIRE_SECONDS, ACQUIRING, ALL, CONNECTIONS, CONNECTIONS_MAX, DATABASE_ERRORS, DATABASE_SECONDS,
    DISK_FREE, DISK_SIZE, GC_BYTES, GC_INTERVAL, GC_LAST, GC_LAST_BYTES, GC_LAST_SECONDS, GC_REMOVED,
    GC_RUNS, GC_SECONDS, GC_WAITING, GC_WAITING_BYTES, IN_FLIGHT, INDEX_QUEUE, INFO, Kind, LOGICAL_BYTES,
    MEASURED, PULLS, READY, RECEIVED, REQUEST_SECONDS, REQUESTS, SENT, STARTED, STORAGE_ERRORS,
    STORAGE_SECONDS, STORED_BLOBS, STORED_BYTES, UPLOADS, WEBHOOKS, WEBHOOKS_PENDING, WORKERS,
    WORKERS_DRAINING,
};

/// Upper bounds of every histogram, in seconds: from a read of one row to a large collection.
const BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// Interval for moving samples into their buckets, so that a server that is never scraped does not keep them
/// all.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

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
        gauge!(STARTED).set(now_seconds());
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
    pub(crate) workers_draining: usize,
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
    let [uploads, workers, draining, webhooks, queued] = match gauges {
        Some(DatabaseGauges { uploads, workers, workers_draining, webhooks, index_queue }) => {
            [uploads as f64, workers as f64, workers_draining as f64, webhooks as f64, index_queue as f64]
        }
        // NaN means unknown. Zero or the last value would be wrong.
        None => [f64::NAN; 5],
    };
    gauge!(UPLOADS).set(uploads);
    gauge!(WORKERS).set(workers);
    gauge!(WORKERS_DRAINING).set(draining);
    gauge!(WEBHOOKS_PENDING).set(webhooks);
    gauge!(INDEX_QUEUE).set(queued);
    install().render()
}

fn now_seconds() -> f64 {
    crate::time::now_ms() as f64 / 1000.0
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
    gauge!(GC_LAST_SECONDS).set(took.as_secs_f64());
    let outcome = if removed.is_some() { "done" } else { "failed" };
    counter!(GC_RUNS, "outcome" => outcome).increment(1);
    gauge!(GC_LAST, "outcome" => outcome).set(now_seconds());
    let Some(RemovedObjects { tags, manifests, links, blobs, size_bytes }) = removed else { return };
    gauge!(GC_LAST_BYTES).set(size_bytes as f64);
    for (kind, count) in [("tag", tags), ("manifest", manifests), ("link", links), ("blob", blobs)] {
        counter!(GC_REMOVED, "kind" => kind).increment(count);
    }
    counter!(GC_BYTES).increment(size_bytes);
}

/// Sets the interval of scheduled collections.
pub(crate) fn set_collection_interval(interval: Duration) {
    gauge!(GC_INTERVAL).set(interval.as_secs_f64());
}

/// Sets the gauges that are measured in the background.
pub(crate) fn set_measured(measured: &Measured) {
    if let Some(missing) = &measured.missing {
        gauge!(READY).set(f64::from(u8::from(missing.is_empty())));
    }
    if let Some(content) = &measured.content {
        gauge!(STORED_BYTES).set(content.stored_bytes as f64);
        gauge!(STORED_BLOBS).set(content.blobs as f64);
        gauge!(LOGICAL_BYTES).set(content.logical_bytes as f64);
        gauge!(MEASURED).set(content.measured_at as f64 / 1000.0);
    }
    if let Some(waiting) = &measured.waiting {
        let counts = [
            ("manifest", waiting.manifests),
            ("link", waiting.links),
            ("blob", waiting.blobs),
            ("deletion", waiting.deletions),
        ];
        for (kind, count) in counts {
            gauge!(GC_WAITING, "kind" => kind).set(count as f64);
        }
        gauge!(GC_WAITING_BYTES).set(waiting.size_bytes as f64);
    }
    for disk in &measured.disks {
        gauge!(DISK_FREE, "folder" => disk.folder).set(disk.free_bytes as f64);
        gauge!(DISK_SIZE, "folder" => disk.folder).set(disk.size_bytes as f64);
    }
}

/// Metrics of the wait for a connection of one pool.
pub(crate) struct PoolWait {
    waiting: Gauge,
    seconds: Histogram,
}

impl PoolWait {
    /// `pool` is the name in [`PoolState`].
    pub(crate) fn new(pool: &'static str) -> PoolWait {
        install();
        PoolWait {
            waiting: gauge!(ACQUIRING, "pool" => pool),
            seconds: histogram!(ACQUIRE_SECONDS, "pool" => pool),
        }
    }

    /// Measures the wait for a connection.
    pub(crate) async fn measure<T>(&self, acquire: impl Future<Output = T>) -> T {
        struct Waiting<'a>(&'a Gauge);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.decrement(1.0);
            }
        }
        let started = Instant::now();
        self.waiting.increment(1.0);
        let waiting = Waiting(&self.waiting);
        let acquired = acquire.await;
        drop(waiting);
        self.seconds.record(started.elapsed());
        acquired
    }
}

/// Measures one query, in a span of its own when tracing is enabled.
///
/// sqlx's futures are deep and large. As a trait object they are not part of the callers' futures: otherwise the compiler
/// proves again for each function above them, up to the handler, that they can be sent between threads.
pub(crate) fn database<'a, T, E>(
    operation: &'static str,
    work: impl Future<Output = Result<T, E>> + Send + 'a,
) -> BoxFuture<'a, Result<T, E>> {
    Box::pin(async move {
        let started = Instant::now();
        let result = work.instrument(query_span(operation)).await;
        record_query(operation, started, result.is_ok());
        result
    })
}

fn query_span(operation: &'static str) -> Span {
    tracing::debug_span!("database", otel.name = operation, otel.kind = "client")
}

fn record_query(operation: &'static str, started: Instant, succeeded: bool) {
    histogram!(DATABASE_SECONDS, "operation" => operation).record(started.elapsed());
    if !succeeded {
        counter!(DATABASE_ERRORS, "operation" => operation).increment(1);
    }
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

pub(crate) fn record_pull() {
    counter!(PULLS).increment(1);
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

/// The rows of docs/reference/metrics.md: name, type, labels and meaning of each metric.
pub fn reference() -> Vec<[&'static str; 4]> {
    let row = |metric: &table::Metric| {
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        [metric.name, kind, metric.labels, metric.help]
    };
    ALL.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
