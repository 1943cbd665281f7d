//! Every setting of a worker, its default and its danger; the CLI fills it from flags, variables and a file.
//! A `Config` prints and serialises with its token hidden.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use lode_client::{ByteSize, Secret};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::Url;

use crate::runner::TextLimits;
use crate::scheduler::KeepAlive;

/// What `LODE_CONTEXT_LENGTH` = 0 means: long enough for a conversation, small enough for any machine.
pub const DEFAULT_CONTEXT_LENGTH: usize = 4096;
/// What `LODE_NUM_PARALLEL` = 0 means.
pub const DEFAULT_NUM_PARALLEL: usize = 4;
/// What `LODE_MAX_LOADED_MODELS` = 0 means on a machine without a GPU.
pub const DEFAULT_MAX_LOADED_MODELS: usize = 3;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The registry to join and to pull from.
    pub registry: Url,
    /// Where the gateway reaches this worker's own API. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// The address told to the registry, where it is not the one listened on.
    pub advertise: Option<Url>,
    /// The secret that lets a worker join.
    pub token: Option<Secret>,
    /// Where pulled blobs are kept.
    pub cache: PathBuf,
    /// Bytes that the cache may take; the least recently used blobs go first. 0 is no limit.
    pub cache_size: u64,
    /// Read-only folders whose blobs are used where they lie: a registry's data folder, an OCI layout, ollama's models.
    /// What lies there is trusted to be what its name says.
    pub sources: Vec<PathBuf>,
    /// `auto` or `cpu`.
    pub device: String,
    /// How long a model stays loaded after its last request.
    pub keep_alive: KeepAlive,
    /// Requests that may wait for a model or for a place in it.
    pub max_queue: usize,
    /// Requests that one loaded model answers at once. 0 is the default.
    pub num_parallel: usize,
    /// Models that are loaded at once. 0 is the default.
    pub max_loaded_models: usize,
    /// `f32`, `f16` or `q8_0`.
    pub kv_cache_type: String,
    /// Tokens of context where a request asks for none. 0 is the default.
    pub context_length: usize,
    /// The largest body of a request.
    pub max_body: ByteSize,
    /// Memory that all request bodies being read or parsed may take together; requests beyond it get 503.
    pub body_budget: ByteSize,
    /// Loading a model may take so long.
    #[serde(with = "duration")]
    pub load_timeout: Duration,
    /// Threads that compute, a model; 0 is one a core.
    pub threads: usize,
    /// Evaluating a template, a tokenizer or a grammar for one request may take so long.
    #[serde(with = "duration")]
    pub text_timeout: Duration,
    /// Address space that it may add.
    pub text_memory: ByteSize,
    /// The program that is started as `PROGRAM runner --socket PATH`, one a loaded model.
    pub runner_program: PathBuf,
    /// What it has in its environment beyond what this process has.
    #[serde(skip)]
    pub runner_env: Vec<(String, String)>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            registry: Url::parse("http://127.0.0.1:5000").expect("a constant address"),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: None,
            token: None,
            cache: PathBuf::from("lode-cache"),
            cache_size: 0,
            sources: Vec::new(),
            device: "auto".into(),
            keep_alive: KeepAlive::For(Duration::from_secs(300)),
            max_queue: 512,
            num_parallel: 0,
            max_loaded_models: 0,
            kv_cache_type: "f16".into(),
            context_length: 0,
            max_body: ByteSize::mib(16),
            body_budget: ByteSize::mib(64),
            load_timeout: Duration::from_secs(300),
            threads: 0,
            text_timeout: TextLimits::default().timeout,
            text_memory: ByteSize(TextLimits::default().memory),
            runner_program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("lode")),
            runner_env: Vec::new(),
        }
    }
}

impl Config {
    pub(crate) fn num_parallel(&self) -> usize {
        or_default(self.num_parallel, DEFAULT_NUM_PARALLEL)
    }

    pub(crate) fn max_loaded_models(&self) -> usize {
        or_default(self.max_loaded_models, DEFAULT_MAX_LOADED_MODELS)
    }

    pub(crate) fn context_length(&self) -> usize {
        or_default(self.context_length, DEFAULT_CONTEXT_LENGTH)
    }
}

fn or_default(value: usize, default: usize) -> usize {
    if value == 0 { default } else { value }
}

mod duration {
    use super::*;

    pub(super) fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_duration(*value))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        humantime::parse_duration(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_hides_the_token() {
        let config = Config { token: Some(Secret::new("hush")), ..Config::default() };
        let json = serde_json::to_value(&config).unwrap();
        assert_eq!(json["token"], "***");
        assert_eq!((&json["keep_alive"], &json["load_timeout"]), (&"5m".into(), &"5m".into()));
        let back: Config = serde_json::from_value(json).unwrap();
        assert_eq!(back.keep_alive, config.keep_alive);
        assert!(!format!("{config:?}").contains("hush"));
        assert!(serde_json::from_str::<Config>("{\"no_such_setting\": 1}").is_err());
    }
}
