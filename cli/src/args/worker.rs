//! `lode worker`: the inference node.

use std::path::PathBuf;

use clap::Args;

use super::LogFormat;

#[derive(Debug, Args)]
#[command(after_help = "\
Settings come from flags, then LODE_* variables, then the file's [worker] table. Scheduling: LODE_KEEP_ALIVE,
LODE_MAX_QUEUE, LODE_NUM_PARALLEL, LODE_MAX_LOADED_MODELS, LODE_KV_CACHE_TYPE (f32, f16, q8_0), LODE_CONTEXT_LENGTH,
LODE_LOAD_TIMEOUT, LODE_THREADS (a model; 0: one a core). LODE_CACHE_SIZE: bytes that pulled blobs may take (0: no limit).
LODE_TEXT_TIMEOUT, LODE_TEXT_MEMORY: limits of templates, tokenizers and grammars, for each request.

Example:
  lode worker --registry https://hub.local --advertise http://10.0.0.7:5100 --listen 0.0.0.0:5100 --token $TOKEN")]
pub(crate) struct Worker {
    /// The registry to join
    #[arg(long, env = "LODE_REGISTRY", value_name = "URL", hide_env_values = true)]
    pub(crate) registry: Option<String>,
    /// Address and port that the registry's gateway calls
    #[arg(long, env = "LODE_LISTEN", value_name = "ADDR", hide_env_values = true)]
    pub(crate) listen: Option<String>,
    /// How the gateway reaches this worker, if not at the address it listens on
    #[arg(long, env = "LODE_ADVERTISE", value_name = "URL", hide_env_values = true)]
    pub(crate) advertise: Option<String>,
    /// The secret that the server was given as worker token; not needed on one machine
    #[arg(long, env = "LODE_WORKER_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Folder for blobs that were pulled
    #[arg(long, env = "LODE_CACHE", value_name = "DIR", hide_env_values = true)]
    pub(crate) cache: Option<PathBuf>,
    /// A folder with blobs/<algorithm>/<hex> that is read where it lies; may be given more than once
    #[arg(long, env = "LODE_SOURCE", value_name = "DIR", value_delimiter = ',', hide_env_values = true)]
    pub(crate) source: Vec<PathBuf>,
    /// auto or cpu
    #[arg(long, env = "LODE_DEVICE", value_name = "DEVICE", hide_env_values = true)]
    pub(crate) device: Option<String>,
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
    /// A TOML file of settings
    #[arg(long, env = "LODE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}
