//! Every setting of the server with its default and its risks. The CLI fills it from flags, variables and a
//! file. A `Config` redacts its secrets when it is printed or serialised.

mod mirror;
mod oidc;
mod origin;
mod retention;
mod text;
mod webhook;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lode_client::{ByteSize, EgressRule, Secret, deserialize_server_url_option, duration, duration_option};
use serde::{Deserialize, Serialize};
use url::Url;

pub use mirror::MirrorConfig;
pub use oidc::OidcProvider;
pub(crate) use oidc::{check_issuer, check_providers};
pub use origin::AllowedOrigin;
pub(crate) use origin::is_loopback_origin;
pub use retention::RetentionRule;
pub use text::{Cidr, ConfigError, Switch};
pub(crate) use text::{EXPECTED_ENDPOINT, is_endpoint};
use text::{address_option, endpoint_option};
pub(crate) use text::{redact_url, secret};
pub(crate) use webhook::check_webhooks;
pub use webhook::{EventKind, Patterns, Webhook};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Listen address. Beyond loopback, a server without accounts starts in setup mode, unless
    /// `allow_anonymous`.
    pub listen: SocketAddr,
    /// Data folder: database, blobs, and the local worker's cache. Only one server may use it at a time.
    pub data: PathBuf,
    /// Database: `sqlite:PATH` or `postgres://...`. Default: `lode.db` in the data folder.
    #[serde(with = "address_option")]
    pub database: Option<Url>,
    /// Maximum number of Postgres connections of this process, at least 4. The total of all replicas must stay
    /// below the database server's limit.
    pub database_connections: u32,
    /// How long startup waits for a database that is not available yet.
    #[serde(with = "duration")]
    pub database_wait: Duration,
    /// Blob store: `file:///PATH`, or object storage that any number of replicas share: `s3://BUCKET/PREFIX`,
    /// `gs://`, `az://`. Default: the data folder.
    #[serde(with = "address_option")]
    pub storage: Option<Url>,
    /// Endpoint of the object storage. Default: the provider's own. `http://` is allowed, and sends all data
    /// unencrypted.
    #[serde(with = "endpoint_option")]
    pub storage_endpoint: Option<Url>,
    /// S3's region. Default: AWS_REGION, AWS_DEFAULT_REGION, us-east-1.
    pub storage_region: Option<String>,
    /// Whether S3 requests name the bucket in the path. With `false` the bucket is in the host name, and the
    /// endpoint must include it.
    pub storage_path_style: Switch,
    /// Credentials for object storage (S3: key id and secret; Azure: account and key). Default: the
    /// provider's own variables, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3.
    pub storage_access_key_id: Option<Secret>,
    pub storage_secret_access_key: Option<Secret>,
    /// Redirect blob downloads to a presigned object storage URL, which is valid for 15 minutes, plus a second
    /// for each MiB of the blob, at most a day. Enabled by default with S3. Clients must be able to reach the
    /// object storage.
    pub redirect: Switch,
    /// Scheme and host of absolute URLs in responses, when clients reach this server at another address.
    #[serde(deserialize_with = "deserialize_server_url_option")]
    pub public_url: Option<Url>,
    /// Proxies whose `X-Forwarded-*` headers are trusted.
    pub trusted_proxies: Vec<Cidr>,
    /// PEM file with the server's certificate chain, reloaded when it changes. Set together with `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key, without a passphrase.
    pub tls_key: Option<PathBuf>,
    /// Serve beyond loopback while there are no accounts. Every client that can connect may then read, write
    /// and delete.
    pub allow_anonymous: bool,
    /// Password of the administrator `admin`, which is created at start if there is no account yet.
    pub admin_password: Option<Secret>,
    /// A file with that password. A line break at its end does not count.
    pub admin_password_file: Option<PathBuf>,
    /// Encrypts the keys that this server stores in its database. Back it up: without it the server no longer
    /// starts. Default: they are stored as they are.
    pub secret_key: Option<Secret>,
    /// A file with that key. A line break at its end does not count.
    pub secret_key_file: Option<PathBuf>,
    /// `[[oidc]]`: OpenID Connect providers with which people may sign in.
    pub oidc: Vec<OidcProvider>,
    /// Show metrics, and the missing parts of an unready server, only to auditors and administrators.
    pub private_metrics: bool,
    /// Log one line for each request, at level info. Probes, scrapes and heartbeats are logged at level debug.
    pub access_log: bool,
    /// Accept manifests that name absent layers or children.
    pub allow_sparse: bool,
    /// How long an upload, a mount or a HEAD request keeps a blob in its repository, whatever the grace
    /// period.
    #[serde(with = "duration")]
    pub upload_lease: Duration,
    /// Grace period: how long content is kept after its last reference is removed.
    #[serde(with = "duration")]
    pub gc_grace: Duration,
    /// Interval between scheduled collections.
    #[serde(with = "duration")]
    pub gc_interval: Duration,
    /// How long a removed manifest or tag can be restored. Default: the grace period.
    #[serde(with = "duration_option")]
    pub gc_undo: Option<Duration>,
    /// How long removal records are kept.
    #[serde(with = "duration")]
    pub gc_history: Duration,
    /// How long records of the audit log are kept.
    #[serde(with = "duration")]
    pub audit_history: Duration,
    /// How long an upload may be idle before its session and its bytes are deleted.
    #[serde(with = "duration")]
    pub upload_expiry: Duration,
    /// Maximum number of open connections, and of requests in flight. Lower when few file descriptors are
    /// available.
    pub max_connections: usize,
    /// The largest body of an inference request, including prompts and base64 images. Other JSON bodies are
    /// limited to 1 MiB, manifests to 4 MiB.
    pub max_body: ByteSize,
    /// Memory shared by all request bodies being read or parsed. Requests beyond it get 503.
    pub body_budget: ByteSize,
    /// How long the server still accepts connections after SIGTERM, while `/readyz` returns 503: long enough for every
    /// proxy and load balancer to notice.
    #[serde(with = "duration")]
    pub drain_delay: Duration,
    /// How long requests in flight may continue after the listener has closed.
    #[serde(with = "duration")]
    pub shutdown_grace: Duration,
    /// Inference requests that one client may have in progress, including queued ones; more get 429. A client
    /// is an account, or without one an address (for IPv6 a /64), as reported by `trusted_proxies`. 0 means no limit.
    pub max_per_client: usize,
    /// Requests that a client without credentials may send in a minute, all at once or spread out; more get 429.
    /// A client is an address (for IPv6 a /64). Each replica counts for itself. 0 means no limit.
    pub requests_per_minute: u32,
    /// The same for an account, whatever its addresses.
    pub account_requests_per_minute: u32,
    /// Cancel an inference response that the client has not read for this long. `0s`: never.
    #[serde(with = "duration")]
    pub stall_timeout: Duration,
    /// Not ready until a worker is attached. Set when this process starts a worker itself.
    pub wait_for_worker: bool,
    /// Not ready until this model exists. Set by `--demo`.
    pub wait_for_model: Option<String>,
    /// Shared secret that workers present when they register. Without one, only loopback workers may join.
    pub worker_token: Option<Secret>,
    /// Private, loopback, link-local and other non-public addresses that this server may connect to for a
    /// pull, a push or a mirror: address blocks, and hosts with or without a port.
    pub allow_egress: Vec<EgressRule>,
    /// Origins of web pages that may use the APIs, with credentials that the page has: `https://app.example.com`,
    /// `https://*.example.com`, `*`. Cookies never count. Default: pages of this machine if `listen` is a loopback
    /// address, otherwise none.
    pub allow_origin: Vec<AllowedOrigin>,
    /// Endpoints that are notified of pushes, tags and deletions.
    pub webhook: Vec<Webhook>,
    /// How long delivery of an event is retried before it is abandoned.
    #[serde(with = "duration")]
    pub webhook_give_up: Duration,
    /// Refuse every request that would change content, and collect nothing. Meant for migrations; other
    /// processes may read the folder.
    pub read_only: bool,
    /// Prefixes whose repositories are mirrored from other registries.
    pub mirror: Vec<MirrorConfig>,
    /// `[[retention]]`: referenced content that collections remove. Default: none.
    pub retention: Vec<RetentionRule>,
}

impl Default for Config {
    fn default() -> Self {
        const HOUR: Duration = Duration::from_secs(3600);
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 5000)),
            data: PathBuf::from("lode-data"),
            database: None,
            database_connections: 16,
            database_wait: Duration::from_secs(30),
            storage: None,
            storage_endpoint: None,
            storage_region: None,
            storage_path_style: Switch::Auto,
            storage_access_key_id: None,
            storage_secret_access_key: None,
            redirect: Switch::Auto,
            public_url: None,
            trusted_proxies: Vec::new(),
            tls_cert: None,
            tls_key: None,
            allow_anonymous: false,
            admin_password: None,
            admin_password_file: None,
            secret_key: None,
            secret_key_file: None,
            oidc: Vec::new(),
            private_metrics: false,
            access_log: true,
            allow_sparse: false,
            upload_lease: 24 * HOUR,
            gc_grace: 24 * HOUR,
            gc_interval: HOUR,
            gc_undo: None,
            gc_history: 30 * 24 * HOUR,
            audit_history: 400 * 24 * HOUR,
            upload_expiry: 72 * HOUR,
            max_connections: 10_000,
            max_body: ByteSize::mib(16),
            body_budget: ByteSize::mib(64),
            drain_delay: Duration::ZERO,
            shutdown_grace: Duration::from_secs(30),
            max_per_client: 0,
            requests_per_minute: 0,
            account_requests_per_minute: 0,
            stall_timeout: Duration::from_secs(30),
            wait_for_worker: false,
            wait_for_model: None,
            worker_token: None,
            retention: Vec::new(),
            allow_egress: Vec::new(),
            allow_origin: Vec::new(),
            webhook: Vec::new(),
            webhook_give_up: 24 * HOUR,
            read_only: false,
            mirror: Vec::new(),
        }
    }
}

impl Config {
    /// Only users of this machine can reach the server.
    pub(crate) fn is_on_loopback(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_url_is_not_repeated_in_the_error() {
        for setting in ["database", "storage", "storage_endpoint"] {
            let text = serde_json::json!({ setting: "postgres://lode:hu/sh@db/lode" }).to_string();
            let error = serde_json::from_str::<Config>(&text).map(drop).expect_err("an invalid port");
            let message = error.to_string();
            assert!(message.contains("%2F") && !message.contains("hu/sh"), "{message}");
        }
        let path = serde_json::from_str::<Config>(r#"{"storage": "/srv/lode"}"#).map(drop);
        assert!(path.expect_err("a path").to_string().contains("file:///"));
    }

    #[test]
    fn an_endpoint_without_http_is_refused() {
        let read = |endpoint: &str| {
            let text = serde_json::json!({ "storage_endpoint": endpoint }).to_string();
            serde_json::from_str::<Config>(&text).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(read("http://minio:9000"), Ok(()));
        for endpoint in ["minio:9000", "s3://minio:9000"] {
            let error = read(endpoint).expect_err("no endpoint");
            assert!(error.contains("such as http://minio:9000"), "{error}");
        }
        assert!(read("10.0.0.7:9000").expect_err("no scheme").contains("start it with a scheme"));
    }

    #[test]
    fn secrets_stay_hidden() {
        let config = Config {
            worker_token: Some(Secret::new("hush")),
            database: Some("postgres://lode:hush@db/lode".parse().expect("url")),
            ..Config::default()
        };
        let json = serde_json::to_string(&config).expect("json");
        assert!(!json.contains("hush") && json.contains("\"24h\"") == json.contains("24h"), "{json}");
        assert_eq!(config.worker_token.as_ref().map(Secret::expose), Some("hush"));
    }
}
