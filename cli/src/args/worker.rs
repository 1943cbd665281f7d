//! Arguments of `lode worker`.

use std::path::PathBuf;

use clap::Args;

use super::{shared::LogFormat, worker_admin::WorkerCommand};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Flags override LODE_* variables, which override the [worker] table of the settings file. Variables
without a flag:
  LODE_KEEP_ALIVE         how long an idle model stays loaded
  LODE_MAX_QUEUE          maximum number of waiting requests
  LODE_NUM_PARALLEL       requests that one model processes at the same time
  LODE_MAX_LOADED_MODELS  maximum number of loaded models
  LODE_KV_CACHE_TYPE      f32, f16 or q8_0
  LODE_CPU                instruction level: auto, scalar, avx2, avx512,
                          avx512-vnni, avx512-bf16, amx, neon or dotprod
  LODE_NVRTC              folder of NVIDIA's library libnvrtc, for GPUs
  LODE_CONTEXT_LENGTH     context length of requests that set none
  LODE_LOAD_TIMEOUT       maximum time to load a model
  LODE_METRICS_MODELS     models that metrics name; 0: none
  LODE_THREADS            threads per model; 0: one per core
  LODE_CACHE_SIZE         maximum size of the cache in bytes; 0: no limit
  LODE_TEXT_TIMEOUT       time limit of templates and grammars, per request
  LODE_TEXT_MEMORY        memory limit of templates and grammars, per request
  LODE_MAX_BODY           maximum size of a request body
  LODE_BODY_BUDGET        memory limit of all request bodies together
  LODE_SHUTDOWN_GRACE     time that requests in progress get at a stop

Example:
  lode worker --registry https://hub.local --listen 0.0.0.0:5100 \\
    --advertise http://10.0.0.7:5100 --token $TOKEN")]
pub(crate) struct Worker {
    #[command(subcommand)]
    pub(crate) command: Option<WorkerCommand>,
    /// Registry to join
    #[arg(long, env = "LODE_REGISTRY", value_name = "URL", hide_env_values = true)]
    pub(crate) registry: Option<String>,
    /// Address and port to listen on for the gateway [default: a free port of 127.0.0.1]
    #[arg(long, env = "LODE_LISTEN", value_name = "ADDR", hide_env_values = true)]
    pub(crate) listen: Option<String>,
    /// URL at which the gateway reaches this worker, if it differs from --listen
    #[arg(long, env = "LODE_ADVERTISE", value_name = "URL", hide_env_values = true)]
    pub(crate) advertise: Option<String>,
    /// Worker token of the server; not required on the server's own machine
    #[arg(long, env = "LODE_WORKER_TOKEN", value_name = "TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// Serve only these models; they are loaded when the worker joins, and stay loaded
    #[arg(long, env = "LODE_MODELS", value_name = "MODEL", value_delimiter = ',', hide_env_values = true)]
    pub(crate) models: Vec<String>,
    /// Folder for the cache of pulled blobs
    #[arg(long, env = "LODE_CACHE", value_name = "DIR", hide_env_values = true)]
    pub(crate) cache: Option<PathBuf>,
    /// Folder with blobs/<algorithm>/<hex> that the worker reads in place, without copying; may be repeated
    #[arg(long, env = "LODE_SOURCE", value_name = "DIR", value_delimiter = ',', hide_env_values = true)]
    pub(crate) source: Vec<PathBuf>,
    /// Compute device: auto, cpu, cuda or cuda:N; auto uses the first GPU if it passes a test
    #[arg(long, env = "LODE_DEVICE", value_name = "DEVICE", hide_env_values = true)]
    pub(crate) device: Option<String>,
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
    /// TOML settings file
    #[arg(long, env = "LODE_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub(crate) config: Option<PathBuf>,
}
