//! The settings of a worker and their defaults; the CLI fills them from flags, variables and a file. The
//! token is hidden when a `Config` is printed or serialised.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lode_client::{ByteSize, Secret, deserialize_server_url, deserialize_server_url_option, duration};
use lode_kernels::{KvType, Ops};
use lode_model::reference::Name;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::device::{DeviceSetting, Prober, nvrtc_files};
use crate::error::Error;
use crate::runner::TextLimits;
use crate::scheduler::KeepAlive;

/// The context length for `LODE_CONTEXT_LENGTH` = 0: long enough for a conversation, small enough for any
/// machine.
pub const DEFAULT_CONTEXT_LENGTH: usize = 4096;
/// The number of parallel requests for `LODE_NUM_PARALLEL` = 0.
pub const DEFAULT_NUM_PARALLEL: usize = 4;
/// The number of loaded models for `LODE_MAX_LOADED_MODELS` = 0.
pub const DEFAULT_MAX_LOADED_MODELS: usize = 3;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The registry to join and to pull from.
    #[serde(deserialize_with = "deserialize_server_url")]
    pub registry: Url,
    /// Certificate authorities that are trusted for the registry, in addition to the system's.
    #[serde(skip)]
    pub authorities: Vec<reqwest::Certificate>,
    /// The address that this worker's own API listens on, for the gateway. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// The address that the worker reports to the registry. Default: the one that it listens on.
    #[serde(deserialize_with = "deserialize_server_url_option")]
    pub advertise: Option<Url>,
    /// The shared secret for joining the registry.
    pub worker_token: Option<Secret>,
    /// Serve only these models; they are loaded when the worker joins, and stay loaded. Empty: all models.
    pub models: Vec<Name>,
    /// Folder for pulled blobs.
    pub cache: PathBuf,
    /// Maximum size of the cache in bytes; the least recently used blobs are evicted first. 0 is no limit.
    pub cache_size: u64,
    /// Read-only folders whose blobs are used in place: a registry's data folder, an OCI layout, ollama's
    /// models. Their files are not verified against the digests in their names.
    pub sources: Vec<PathBuf>,
    /// `auto`, `cpu`, `cuda` or `cuda:N`.
    pub device: DeviceSetting,
    /// The folder of NVRTC's library, which compiles kernels for GPUs. Default: where the system or the active
    /// virtual environment has it.
    pub nvrtc: Option<PathBuf>,
    /// The instruction level of the CPU kernels: `auto`, or a level that the processor has, to use no better
    /// one.
    pub cpu: String,
    /// How long a model stays loaded after its last request.
    pub keep_alive: KeepAlive,
    /// Requests that may wait for a model to load or for one of its places.
    pub max_queue: usize,
    /// Requests that one loaded model serves at the same time. 0 is the default.
    pub num_parallel: usize,
    /// Models that may be loaded at the same time. 0 is the default.
    pub max_loaded_models: usize,
    /// `f32`, `f16` or `q8_0`.
    pub kv_cache_type: String,
    /// Context length in tokens for requests that set none. 0 is the default.
    pub context_length: usize,
    /// How many models metrics name, by their repository; the others share one label. 0: metrics name none.
    pub metrics_models: usize,
    /// Maximum size of a request body.
    pub max_body: ByteSize,
    /// Memory that all request bodies being read or parsed may use together; requests beyond it get 503.
    pub body_budget: ByteSize,
    /// Timeout for loading a model.
    #[serde(with = "duration")]
    pub load_timeout: Duration,
    /// How long requests in progress may continue when the worker stops.
    #[serde(with = "duration")]
    pub shutdown_grace: Duration,
    /// Compute threads per model; 0 is one per core.
    pub threads: usize,
    /// Timeout for evaluating a template, a tokenizer or a grammar for one request.
    #[serde(with = "duration")]
    pub text_timeout: Duration,
    /// Address space that this evaluation may add.
    pub text_memory: ByteSize,
    /// The program that is started as `PROGRAM runner --socket PATH` for each loaded model.
    pub runner_program: PathBuf,
    /// Environment variables for it, in addition to those that a runner inherits.
    #[serde(skip)]
    pub runner_env: Vec<(String, String)>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            registry: Url::parse("http://127.0.0.1:5000").expect("a constant address"),
            authorities: Vec::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            worker_token: None,
            models: Vec::new(),
            cache: PathBuf::from("lode-cache"),
            cache_size: 0,
            sources: Vec::new(),
            device: DeviceSetting::Auto,
            nvrtc: None,
            cpu: lode_kernels::BEST_LEVEL.into(),
            keep_alive: KeepAlive::For(Duration::from_secs(300)),
            max_queue: 512,
            num_parallel: 0,
            max_loaded_models: 0,
            kv_cache_type: "f16".into(),
            context_length: 0,
            metrics_models: 0,
            max_body: ByteSize::mib(16),
            body_budget: ByteSize::mib(64),
            load_timeout: Duration::from_secs(300),
            shutdown_grace: Duration::from_secs(30),
            threads: 0,
            text_timeout: TextLimits::default().timeout,
            text_memory: ByteSize(TextLimits::default().memory),
            runner_program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("lode")),
            runner_env: Vec::new(),
        }
    }
}

impl Config {
    /// Returns an error for a setting that this machine or this program does not support.
    pub fn check(&self) -> Result<(), Error> {
        self.kv_cache_type.parse::<KvType>().map_err(|error| Error::Invalid(error.to_string()))?;
        Ops::of_level(&self.cpu).map_err(|error| Error::Invalid(error.to_string()))?;
        if let Some(name) = self.models.iter().find(|name| name.host.is_some()) {
            return Err(Error::Invalid(format!("LODE_MODELS has `{name}`: expected a name without a host")));
        }
        let (count, most) = (self.models.len(), self.max_loaded_models());
        if count > most {
            return Err(Error::Invalid(format!(
                "LODE_MODELS has {count} models, more than LODE_MAX_LOADED_MODELS ({most})"
            )));
        }
        Ok(())
    }

    /// How this worker's devices are probed. Compiled kernels are kept in the cache folder.
    pub fn prober(&self) -> Prober {
        Prober {
            program: self.runner_program.clone(),
            env: self.runner_env.clone(),
            nvrtc: nvrtc_files(self.nvrtc.as_deref()),
            kernels: Some(self.cache.join("kernels")),
        }
    }

    pub(crate) fn num_parallel(&self) -> usize {
        or_default(self.num_parallel, DEFAULT_NUM_PARALLEL)
    }

    pub(crate) fn max_loaded_models(&self) -> usize {
        or_default(self.max_loaded_models, DEFAULT_MAX_LOADED_MODELS.max(self.models.len()))
    }

    /// How long a model stays loaded if a request does not say.
    pub(crate) fn keep_alive(&self) -> KeepAlive {
        if self.models.is_empty() { self.keep_alive } else { KeepAlive::Forever }
    }

    pub(crate) fn context_length(&self) -> usize {
        or_default(self.context_length, DEFAULT_CONTEXT_LENGTH)
    }
}

fn or_default(value: usize, default: usize) -> usize {
    if value == 0 { default } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_hides_the_token() {
        let config = Config { worker_token: Some(Secret::new("hush")), ..Config::default() };
        let json = serde_json::to_value(&config).unwrap();
        assert_eq!(json["worker_token"], "***");
        assert_eq!((&json["keep_alive"], &json["load_timeout"]), (&"5m".into(), &"5m".into()));
        let back: Config = serde_json::from_value(json).unwrap();
        assert_eq!(back.keep_alive, config.keep_alive);
        assert!(!format!("{config:?}").contains("hush"));
        assert!(serde_json::from_str::<Config>("{\"no_such_setting\": 1}").is_err());
    }

    #[test]
    fn models_of_a_worker_fit_and_name_no_host() {
        let check = |models: &[&str], max_loaded_models| {
            let models = models.iter().map(|name| name.parse().unwrap()).collect();
            Config { models, max_loaded_models, ..Config::default() }
                .check()
                .map_err(|error| error.to_string())
        };
        assert_eq!(check(&["a", "b:1", "c", "team/d"], 0), Ok(()));
        assert!(
            check(&["a", "b"], 1).unwrap_err().contains("2 models, more than LODE_MAX_LOADED_MODELS (1)")
        );
        assert!(check(&["hub.example/a"], 0).unwrap_err().contains("without a host"));
    }
}
