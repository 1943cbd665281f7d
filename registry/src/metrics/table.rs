//! The table of the metrics of this crate. docs/reference/metrics.md is generated from it.

#[derive(Clone, Copy)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

pub(super) struct Metric {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) labels: &'static str,
    pub(super) help: &'static str,
}

macro_rules! metrics_table {
    ($($id:ident, $name:literal, $kind:ident, $labels:literal, $help:literal;)*) => {
        $(pub(super) const $id: &str = $name;)*
        /// Every metric, in the order of docs/reference/metrics.md.
        pub(super) const ALL: &[Metric] = &[$(Metric { name: $name, kind: Kind::$kind, labels: $labels, help: $help }),*];
    };
}

metrics_table! {
    INFO, "lode_info", Gauge, "version", "Always 1; the label is the running version.";
    STARTED, "lode_start_timestamp_seconds", Gauge, "", "When this process started, in seconds since 1970.";
    READY, "lode_ready", Gauge, "", "1 if this process was ready when it last checked, otherwise 0. It checks every 15 seconds.";
    REQUESTS, "lode_http_requests_total", Counter, "route, method, status", "Completed requests. The route is the template, such as /v2/{name}/blobs/{digest}, or `none` if no route matched.";
    REQUEST_SECONDS, "lode_http_request_seconds", Histogram, "route, method", "Time from a request's head to its response's head. It includes the body of a push, but not the body of a pull.";
    IN_FLIGHT, "lode_http_requests_in_flight", Gauge, "", "Requests whose response has not begun.";
    RECEIVED, "lode_http_received_bytes_total", Counter, "", "Bytes of request bodies.";
    SENT, "lode_http_sent_bytes_total", Counter, "", "Bytes of response bodies. Downloads from object storage after a redirect are not included.";
    PULLS, "lode_pulls_total", Counter, "", "Pulls of repositories. Those of the same caller and repository count once an hour; workers do not count.";
    UPLOADS, "lode_uploads_open", Gauge, "", "Upload sessions that are neither committed nor cancelled, of all replicas together.";
    WORKERS, "lode_workers_attached", Gauge, "", "Workers with a recent heartbeat, of all replicas together.";
    WORKERS_DRAINING, "lode_workers_draining", Gauge, "", "Attached workers that get no new requests, because an administrator drains them.";
    GC_RUNS, "lode_gc_runs_total", Counter, "outcome", "Collections that this process ran: `done` or `failed`. Dry runs are not counted.";
    GC_SECONDS, "lode_gc_seconds", Histogram, "", "Duration of a collection.";
    GC_REMOVED, "lode_gc_removed_total", Counter, "kind", "Objects removed by collections: `tag` (by a retention rule), `manifest`, `link` (a repository's reference to a blob), `blob`.";
    GC_BYTES, "lode_gc_reclaimed_bytes_total", Counter, "", "Bytes of the blobs that collections removed.";
    GC_INTERVAL, "lode_gc_interval_seconds", Gauge, "", "The setting LODE_GC_INTERVAL. Absent on a read-only server.";
    GC_LAST, "lode_gc_last_run_timestamp_seconds", Gauge, "outcome", "When the last collection of this process ended, in seconds since 1970. Absent before the first one. Replicas collect in turn: use the maximum.";
    GC_LAST_SECONDS, "lode_gc_last_run_seconds", Gauge, "", "Duration of the last collection of this process.";
    GC_LAST_BYTES, "lode_gc_last_run_reclaimed_bytes", Gauge, "", "Bytes that the last collection of this process deleted.";
    GC_WAITING, "lode_gc_waiting", Gauge, "kind", "Objects that wait for the end of their grace period, of all replicas together: `manifest`, `link`, `blob`, and `deletion` (bytes that could not be deleted yet). Counted up to 100,000, every 15 seconds.";
    GC_WAITING_BYTES, "lode_gc_waiting_bytes", Gauge, "", "Bytes of the blobs and deletions among them.";
    CONNECTIONS, "lode_database_connections", Gauge, "pool, state", "Connections to the database: `idle` or `busy`. SQLite has one pool for reading and one for writing.";
    CONNECTIONS_MAX, "lode_database_connections_max", Gauge, "pool", "Maximum number of connections in the pool.";
    ACQUIRING, "lode_database_waiting", Gauge, "pool", "Transactions that wait for a connection to the database. SQLite: for the one that writes.";
    ACQUIRE_SECONDS, "lode_database_acquire_seconds", Histogram, "pool", "Time that a transaction waited until it began. The wait of other queries is part of `lode_database_seconds`.";
    DATABASE_SECONDS, "lode_database_seconds", Histogram, "operation", "Duration of one query, including the wait for a connection.";
    DATABASE_ERRORS, "lode_database_errors_total", Counter, "operation", "Failed queries.";
    STORAGE_SECONDS, "lode_storage_seconds", Histogram, "operation", "Duration of one storage operation; for a read, until its first byte is available.";
    STORAGE_ERRORS, "lode_storage_errors_total", Counter, "operation", "Failed storage operations.";
    STORED_BYTES, "lode_stored_bytes", Gauge, "", "Bytes of all blobs, of all replicas together. Measured in the background: at least a minute apart, less often if it takes long.";
    STORED_BLOBS, "lode_stored_blobs", Gauge, "", "Number of these blobs.";
    LOGICAL_BYTES, "lode_logical_bytes", Gauge, "", "Bytes that the content would have without sharing: every manifest with every blob that it refers to. Measured with `lode_stored_bytes`.";
    MEASURED, "lode_stored_measured_timestamp_seconds", Gauge, "", "When the three above were last measured, in seconds since 1970. They are absent before the first measurement.";
    DISK_FREE, "lode_disk_free_bytes", Gauge, "folder", "Free space of the file system of a folder: `data` (--data), `storage` (a --storage that is a folder). Read every 15 seconds.";
    DISK_SIZE, "lode_disk_size_bytes", Gauge, "folder", "Size of that file system.";
    WEBHOOKS, "lode_webhook_deliveries_total", Counter, "outcome", "Attempts to deliver an event: `delivered`, `retry` (failed, to be retried), `given_up` (abandoned).";
    WEBHOOKS_PENDING, "lode_webhooks_pending", Gauge, "", "Events that are waiting for delivery, of all replicas together.";
    INDEX_QUEUE, "lode_index_queue_length", Gauge, "", "Manifests that wait to be indexed as models, of all replicas together.";
}
