//! A running worker: starts its parts and stops them in order. `lode serve` runs one alongside the registry;
//! `lode worker` runs one on its own.

use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use lode_client::{Client, ClientOptions, CredentialKey, Credentials, Login, Secret};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use url::Url;

use crate::cache::{Cache, Models};
use crate::config::Config;
use crate::device::{CardMemory, Prober, Selected, select};
use crate::error::Error;
use crate::http::serve::{MAX_CONNECTIONS, serve};
use crate::http::{Api, Bodies, router};
use crate::join::{Membership, Received};
use crate::metrics;
use crate::runner::TextLimits;
use crate::runner::process::{Launch, Program};
use crate::scheduler::memory::Memory;
use crate::scheduler::{Options, Scheduler};

/// Maximum time for the deregistration.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// Minimum time that a model in use stays loaded before it is evicted for another one.
const EVICTION_DELAY: Duration = Duration::from_secs(1);

/// A worker that serves until [`Worker::stop`]. Dropping it also ends it, without deregistration.
pub struct Worker {
    addr: SocketAddr,
    scheduler: Scheduler,
    leave: watch::Sender<bool>,
    stop: watch::Sender<bool>,
    registered: watch::Receiver<bool>,
    membership: JoinHandle<()>,
    serving: JoinHandle<()>,
    shutdown_grace: Duration,
}

/// Starts a worker: listens, registers in the background, and stays registered.
pub async fn start(config: Config) -> Result<Worker, Error> {
    let launcher = Arc::new(Program { path: config.runner_program.clone(), env: config.runner_env.clone() });
    start_with(config, launcher).await
}

/// Like [`start`], with the given launcher of runners.
pub async fn start_with(config: Config, launcher: Arc<dyn Launch>) -> Result<Worker, Error> {
    config.check()?;
    let prober = config.prober();
    let selected = select(config.device, &prober).await?;
    metrics::describe();
    let credential: Arc<RwLock<Option<Secret>>> = Arc::default();
    let registry = Client::new(ClientOptions {
        credentials: pull_credentials(&config.registry, credential.clone()),
        authorities: config.authorities.clone(),
        ..ClientOptions::default()
    })?
    .registry(config.registry.as_str())?;
    let (cache, sources, limit) = (config.cache.clone(), config.sources.clone(), config.cache_size);
    let open = move || {
        let cache = Cache::open(&cache, sources, (limit > 0).then_some(limit))?;
        Models::open(cache, registry)
    };
    let models = tokio::task::spawn_blocking(open)
        .await
        .map_err(|error| Error::Cache(std::io::Error::other(error)))?;
    let models = Arc::new(models.map_err(Error::Cache)?);

    let listen_error = |source| Error::Listen { address: config.listen, source };
    let listener = TcpListener::bind(config.listen).await.map_err(listen_error)?;
    let addr = listener.local_addr().map_err(listen_error)?;
    let advertise = match &config.advertise {
        Some(url) => url.clone(),
        None => Url::parse(&format!("http://{addr}")).map_err(|error| Error::Invalid(error.to_string()))?,
    };

    let scheduler = Scheduler::start(options(&config, selected, prober), models.clone(), launcher);
    let secret = Arc::new(RwLock::new(None));
    let (stop, stopped) = watch::channel(false);
    let received = Received { secret: secret.clone(), credential };
    let membership = Membership::new(&config, advertise, scheduler.clone(), models, received)?;
    let registered = membership.registered();
    let app = router(Api { scheduler: scheduler.clone(), secret, bodies: Bodies::new(&config) });
    let mut until = stopped;
    let serving = tokio::spawn(async move {
        let stop = async move {
            let _ = until.wait_for(|stop| *stop).await;
        };
        serve(listener, app, MAX_CONNECTIONS, stop).await;
    });
    let (leave, left) = watch::channel(false);
    let membership = tokio::spawn(membership.run(left));
    tracing::info!(%addr, registry = %config.registry, "worker started");
    let shutdown_grace = config.shutdown_grace;
    Ok(Worker { addr, scheduler, leave, stop, registered, membership, serving, shutdown_grace })
}

/// The credentials of pulls from the registry: those of the current registration.
fn pull_credentials(registry: &Url, credential: Arc<RwLock<Option<Secret>>>) -> Credentials {
    let server = CredentialKey::of(registry);
    Credentials::from_fn(move |requested| {
        let credential = credential.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let password = credential.filter(|_| *requested == server)?.expose().to_owned();
        Some(Login { username: "worker".to_owned(), password })
    })
}

impl Worker {
    /// The address that this worker's API listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Whether this worker is registered now.
    pub fn is_registered(&self) -> bool {
        *self.registered.borrow()
    }

    /// Waits until this worker is registered.
    pub async fn wait_until_registered(&self) {
        let _ = self.registered.clone().wait_for(|registered| *registered).await;
    }

    /// Deregisters, so that no new requests are routed here. Requests in flight continue.
    async fn leave(&mut self) {
        if !self.leave.send_replace(true) {
            let _ = tokio::time::timeout(LEAVE_TIMEOUT, &mut self.membership).await;
        }
    }

    /// Deregisters, waits for requests in flight, and ends the runners.
    pub async fn stop(mut self) {
        self.leave().await;
        self.stop.send_replace(true);
        let drained = tokio::time::timeout(self.shutdown_grace, &mut self.serving).await.is_ok();
        self.scheduler.stop().await;
        if !drained {
            // The remaining requests end with their runners.
            let _ = tokio::time::timeout(Duration::from_secs(1), &mut self.serving).await;
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.membership.abort();
        self.serving.abort();
    }
}

fn options(config: &Config, selected: Selected, prober: Prober) -> Options {
    Options {
        keep_alive: config.keep_alive(),
        max_queue: config.max_queue,
        num_parallel: config.num_parallel(),
        max_loaded_models: config.max_loaded_models(),
        kv_cache_type: config.kv_cache_type.clone(),
        context_length: config.context_length(),
        load_timeout: config.load_timeout,
        threads: (config.threads > 0).then_some(config.threads),
        cpu: config.cpu.clone(),
        metrics_models: config.metrics_models,
        text: TextLimits { timeout: config.text_timeout, memory: config.text_memory.0 },
        eviction_delay: EVICTION_DELAY,
        memory: Box::new(Memory::now),
        device: selected.device,
        card: selected.card.map(|card| Arc::new(CardMemory::of_card(card, prober))),
    }
}
