//! `lode serve`: the server.

use std::path::PathBuf;

use clap::{Args, builder::BoolishValueParser};

use super::LogFormat;

#[derive(Debug, Args)]
#[command(after_help = "\
Settings come from flags, then LODE_* variables, then the file. Every key of the file is also a variable: gc_grace is
LODE_GC_GRACE. `lode serve --print-config` shows them all with the values in force.

Examples:
  lode serve --demo
  lode serve --listen 0.0.0.0:5000 --allow-anonymous --data /srv/lode
  LODE_GC_GRACE=0s lode serve --config lode.toml --print-config")]
pub(crate) struct Serve {
    /// Address and port; port 0 picks a free one [default: 127.0.0.1:5000]
    #[arg(long, env = "LODE_LISTEN", value_name = "ADDR", hide_env_values = true)]
    pub(crate) listen: Option<String>,
    /// Folder of the index, the blobs and the local worker's cache [default: ./lode-data]
    #[arg(long, env = "LODE_DATA", value_name = "DIR", hide_env_values = true)]
    pub(crate) data: Option<PathBuf>,
    /// Where the index lives [default: lode.db in the data folder]
    #[arg(long, env = "LODE_DATABASE", value_name = "URL", hide_env_values = true)]
    pub(crate) database: Option<String>,
    /// Where the bytes live: file:///DIR, s3://BUCKET/PREFIX, gs:// or az:// [default: the data folder]
    #[arg(long, env = "LODE_STORAGE", value_name = "URL", hide_env_values = true)]
    pub(crate) storage: Option<String>,
    /// A TOML file of settings
    #[arg(long, env = "LODE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
    /// Only the registry: run no models in this process
    #[arg(long, env = "LODE_NO_WORKER", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) no_worker: Option<bool>,
    /// Import the demo model that this program carries, and say what to try
    #[arg(long, env = "LODE_DEMO", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) demo: Option<bool>,
    /// Serve beyond this machine although nobody has to log in: everyone who reaches it can read, write and delete
    #[arg(long, env = "LODE_ALLOW_ANONYMOUS", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) allow_anonymous: Option<bool>,
    /// Scheme and host under which clients reach this server
    #[arg(long, env = "LODE_PUBLIC_URL", value_name = "URL", hide_env_values = true)]
    pub(crate) public_url: Vec<String>,
    /// A proxy whose X-Forwarded-* headers count; may be given more than once
    #[arg(
        long,
        env = "LODE_TRUSTED_PROXY",
        value_name = "CIDR",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) trusted_proxy: Vec<String>,
    /// An address block or host beyond the public internet that pulls, pushes and mirrors may connect to; may be given more than once
    #[arg(
        long,
        env = "LODE_ALLOW_EGRESS",
        value_name = "CIDR|HOST[:PORT]",
        value_delimiter = ',',
        hide_env_values = true
    )]
    pub(crate) allow_egress: Vec<String>,
    /// Connections that may be open at once; idle ones are closed for new ones [default: 10000]
    #[arg(long, env = "LODE_MAX_CONNECTIONS", value_name = "COUNT", hide_env_values = true)]
    pub(crate) max_connections: Option<u32>,
    /// The largest body of an inference request, in bytes or with a unit such as MiB [default: 16MiB]
    #[arg(long, env = "LODE_MAX_BODY", value_name = "SIZE", hide_env_values = true)]
    pub(crate) max_body: Option<String>,
    /// Memory that request bodies may take together; requests beyond it get 503 [default: 64MiB]
    #[arg(long, env = "LODE_BODY_BUDGET", value_name = "SIZE", hide_env_values = true)]
    pub(crate) body_budget: Option<String>,
    /// How log lines are written to standard error
    #[arg(
        long,
        env = "LODE_LOG_FORMAT",
        value_enum,
        default_value_t,
        value_name = "FORMAT",
        hide_env_values = true
    )]
    pub(crate) log_format: LogFormat,
    /// Speak https with this certificate chain, a PEM file; it is read again when it changes
    #[arg(long, env = "LODE_TLS_CERT", value_name = "FILE", hide_env_values = true)]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The private key of the certificate, a PEM file without a passphrase
    #[arg(long, env = "LODE_TLS_KEY", value_name = "FILE", hide_env_values = true)]
    pub(crate) tls_key: Option<PathBuf>,
    /// Refuse whatever would change what is held, and collect nothing: for `lode migrate`
    #[arg(long, env = "LODE_READ_ONLY", value_parser = BoolishValueParser::new(), num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL", hide_possible_values = true, hide_env_values = true)]
    pub(crate) read_only: Option<bool>,
    /// Print the settings in force as TOML, secrets hidden, and exit
    #[arg(long)]
    pub(crate) print_config: bool,
}
