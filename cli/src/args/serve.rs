//! Arguments of `lode serve`.

use std::path::PathBuf;

use clap::{Args, builder::BoolishValueParser};

use super::shared::LogFormat;

#[derive(Debug, Args)]
#[command(after_help = "\
Flags override LODE_* variables, which override the settings file. Each key of the file is also a
variable: gc_grace is LODE_GC_GRACE. `lode serve --print-config` prints all settings and their values.

On an address beyond loopback, a server without accounts prints a setup link and serves nothing else until
its administrator exists. LODE_ADMIN_PASSWORD_FILE names a file with the administrator's password instead.
LODE_SECRET_KEY_FILE names a file with a key that encrypts the keys in the database.

Examples:
  lode serve --demo
  lode serve --listen 0.0.0.0:5000 --public-url https://lode.example \\
    --data /srv/lode
  LODE_GC_GRACE=0s lode serve --config lode.toml --print-config")]
pub(crate) struct Serve {
    /// Address and port to listen on, or a port of 127.0.0.1; 0 picks a free port [default: 127.0.0.1:5000]
    #[arg(long, env = "LODE_LISTEN", value_name = "ADDR", hide_env_values = true)]
    pub(crate) listen: Option<String>,
    /// Folder for the database, the blobs and the local worker's cache [default: ./lode-data]
    #[arg(long, env = "LODE_DATA", value_name = "DIR", hide_env_values = true)]
    pub(crate) data: Option<PathBuf>,
    /// Database: sqlite:PATH or postgres://USER:PASSWORD@HOST/NAME [default: lode.db in the data folder]
    #[arg(long, env = "LODE_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Blob store: file:///DIR, s3://BUCKET/PREFIX, gs:// or az:// [default: the data folder]
    #[arg(long, env = "LODE_STORAGE", value_name = "URL", hide_env_values = true)]
    pub(crate) storage: Option<String>,
    /// TOML settings file
    #[arg(long, env = "LODE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Start without a local worker: this process runs no models
    #[arg(long, env = "LODE_NO_WORKER", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) no_worker: Option<bool>,
    /// Import the built-in demo model and print commands to try
    #[arg(long, env = "LODE_DEMO", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) demo: Option<bool>,
    /// Skip the setup: while the server has no accounts, anyone who can connect can read, write and delete
    #[arg(long, env = "LODE_ALLOW_ANONYMOUS", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) allow_anonymous: Option<bool>,
    /// Public URL of this server: the scheme and host that clients use
    #[arg(long, env = "LODE_PUBLIC_URL", value_name = "URL", hide_env_values = true)]
    pub(crate) public_url: Vec<String>,
    /// Proxy whose X-Forwarded-* headers are trusted; may be repeated
    #[arg(
        long,
        env = "LODE_TRUSTED_PROXY",
        value_name = "CIDR",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) trusted_proxy: Vec<String>,
    /// Non-public address block or host that pulls, pushes and mirrors may connect to; may be repeated
    #[arg(
        long,
        env = "LODE_ALLOW_EGRESS",
        value_name = "CIDR|HOST[:PORT]",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) allow_egress: Vec<String>,
    /// Origin of web pages that may use the APIs: scheme, host and port; may be repeated
    #[arg(
        long,
        env = "LODE_ALLOW_ORIGIN",
        value_name = "ORIGIN",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) allow_origin: Vec<String>,
    /// Compute device of the local worker: auto, cpu, cuda or cuda:N; auto uses the first GPU if it passes a test
    #[arg(long, env = "LODE_DEVICE", value_name = "DEVICE", hide_env_values = true)]
    pub(crate) device: Option<String>,
    /// Maximum number of open connections; idle ones are closed to admit new ones [default: 10000]
    #[arg(long, env = "LODE_MAX_CONNECTIONS", value_name = "COUNT", hide_env_values = true)]
    pub(crate) max_connections: Option<u32>,
    /// Maximum body size of an inference request, in bytes or with a unit such as MiB [default: 16MiB]
    #[arg(long, env = "LODE_MAX_BODY", value_name = "SIZE", hide_env_values = true)]
    pub(crate) max_body: Option<String>,
    /// Maximum memory for all request bodies together; requests above it get 503 [default: 64MiB]
    #[arg(long, env = "LODE_BODY_BUDGET", value_name = "SIZE", hide_env_values = true)]
    pub(crate) body_budget: Option<String>,
    /// Format of the log on standard error
    #[arg(
        long,
        env = "LODE_LOG_FORMAT",
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        hide_env_values = true
    )]
    pub(crate) log_format: LogFormat,
    /// Serve HTTPS with this certificate chain, a PEM file; reloaded when it changes
    #[arg(long, env = "LODE_TLS_CERT", value_name = "FILE", hide_env_values = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the certificate, a PEM file without a passphrase
    #[arg(long, env = "LODE_TLS_KEY", value_name = "FILE", hide_env_values = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Refuse all writes and run no garbage collection; used with `lode migrate`
    #[arg(long, env = "LODE_READ_ONLY", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) read_only: Option<bool>,
    /// Print the effective settings as TOML, with secrets hidden, and exit
    #[arg(long)]
    pub(crate) print_config: bool,
}
