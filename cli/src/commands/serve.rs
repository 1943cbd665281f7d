//! `lode serve`: runs the registry, the gateway and a local worker in one process, until a signal stops it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use lode_registry::{Error, OpenError};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

use super::{demo, listen::PublicSocket, worker::device_hint};
use crate::{
    args::Serve,
    error::{CANNOT_RUN, Failure, Outcome},
    logging,
    settings::{self, ServeSettings},
    ui, variables,
};

/// How long the start waits for the local worker to register.
const REGISTRATION_TIME: Duration = Duration::from_secs(2);

pub(crate) async fn run(args: Serve) -> Outcome {
    let ServeSettings { registry: mut config, mut worker, no_worker, demo } =
        match settings::serve(&args, &settings::process_env)? {
            settings if args.print_config => return ui::print_bytes(settings::print(&settings)?.as_bytes()),
            settings => settings,
        };
    variables::warn_of_unknown();
    worker.runner_env = logging::inherited_env(args.log_format);
    if !no_worker {
        worker.check().map_err(|error| {
            Failure::with_source("invalid settings of the local worker", &error).code(CANNOT_RUN)
        })?;
    }
    let tls = tls(&config)?;
    // Register first, so that a signal during the start stops it.
    let stop = stop_signal()?;
    let socket = PublicSocket::open(config.listen)?;
    let address = socket.address()?;
    // A socket of the service manager has its own address.
    config.listen = address;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let shown = local_url(scheme, address);
    // This process's own worker connects to another listener: it is there before and after the public one, and the
    // certificate does not cover the loopback address.
    let internal = match !no_worker || demo {
        true => Some(bind_internal().await?),
        false => None,
    };
    let base = match &internal {
        Some(internal) => local_url("http", local_addr(internal)?),
        None => shown.clone(),
    };
    let data = config.data.clone();
    // A local worker has its cache there.
    let is_data_used = !no_worker || config.database.is_none() || config.storage.is_none();
    config.wait_for_worker |= !no_worker;
    if demo && config.wait_for_model.is_none() {
        config.wait_for_model = Some(demo::NAME.to_owned());
    }
    let worker = (!no_worker).then(|| local_worker(worker, &config, &base));

    let opened = tokio::select! {
        opened = lode_registry::open(config) => opened,
        // The start may wait for the database for a configured time.
        () = wait_for_stop(stop.clone()) => return Ok(()),
    };
    let registry = opened.map_err(|error| cannot_open(&error, &data))?;
    let is_open = registry.is_open().await.map_err(|error| Failure::with_source("cannot start", &error))?;
    let setup = match needs_setup(registry.config(), is_open) {
        true => Some(registry.setup_begin().map_err(|error| Failure::with_source("cannot start", &error))?),
        false => None,
    };
    let public_url = registry.config().public_url.clone();
    let token = registry.internal_token().clone();
    let server = lode_registry::Server::new(registry.clone())
        .map_err(|error| Failure::with_source("cannot start", &error))?;
    let (stop_internal, internal_stopped) = watch::channel(false);
    let serving_internal = internal.map(|listener| {
        let server = server.clone();
        spawn_boxed(async move { server.serve_internal(listener, wait_for_stop(internal_stopped)).await })
    });
    let worker = match worker {
        Some(config) => {
            let config = lode_worker::Config { worker_token: Some(token.clone()), ..config? };
            match start_worker(config, stop.clone()).await {
                Ok(worker) => worker,
                Err(failure) => {
                    registry.close().await;
                    return Err(failure);
                }
            }
        }
        None => None,
    };

    // Clients connect only once they can be served.
    let public = match socket.listen() {
        Ok(public) => public,
        Err(failure) => {
            if let Some(worker) = worker {
                worker.stop().await;
            }
            registry.close().await;
            return Err(failure);
        }
    };
    let (stop_public, public_stopped) = watch::channel(false);
    let mut serving =
        spawn_boxed(async move { server.serve(public, tls, wait_for_stop(public_stopped)).await });
    ui::print_line(format!("listening on {scheme}://{address}"))?;
    if is_data_used && data.is_relative() {
        ui::print_line(format!("data folder: {}", absolute(&data).display()))?;
    }
    if let Some(path) = setup {
        let base = public_url.as_ref().map_or(shown.as_str(), |url| url.as_str().trim_end_matches('/'));
        ui::print_line(format!(
            "this server has no account yet: create the administrator within an hour at\n{base}{path}"
        ))?;
    }
    let demo = demo.then(|| {
        tokio::spawn(demo::install(base, token, shown, worker.is_some(), wait_for_stop(stop.clone())))
    });

    let stopped = tokio::select! {
        () = wait_for_stop(stop) => {
            registry.begin_shutdown();
            let drain_delay = registry.config().drain_delay;
            if !drain_delay.is_zero() {
                tracing::info!(?drain_delay, "shutdown begins; still accepting connections");
            }
            tokio::select! {
                () = tokio::time::sleep(drain_delay) => None,
                ended = &mut serving => Some(ended),
            }
        }
        ended = &mut serving => Some(ended),
    };
    if let Some(demo) = demo {
        demo.abort();
    }
    let ended = match stopped {
        Some(ended) => ended,
        None => {
            stop_public.send_replace(true);
            serving.await
        }
    };
    // Requests of this server's clients have ended. The worker deregisters, and finishes those of other servers.
    if let Some(worker) = worker {
        worker.stop().await;
    }
    stop_internal.send_replace(true);
    if let Some(serving) = serving_internal {
        let _ended = serving.await;
    }
    registry.close().await;
    ended.map_err(|error| Failure::with_source("the server failed", &error))
}

/// Spawns a boxed future, so that the types of callers do not contain the whole server.
fn spawn_boxed(work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    let work: BoxFuture<'static, ()> = Box::pin(work);
    tokio::spawn(work)
}

/// Loads the certificate, if the settings name one.
fn tls(config: &lode_registry::Config) -> Outcome<Option<lode_registry::Tls>> {
    match (&config.tls_cert, &config.tls_key) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => {
            let loaded = lode_registry::Tls::load(cert, key);
            loaded
                .map(Some)
                .map_err(|error| Failure::with_source("cannot serve https", &error).code(CANNOT_RUN))
        }
        (cert, _) => {
            let (given, missing) = match cert {
                Some(_) => ("--tls-cert", "--tls-key"),
                None => ("--tls-key", "--tls-cert"),
            };
            Err(Failure::new(format!("{given} is set without {missing}")).code(CANNOT_RUN))
        }
    }
}

async fn bind_internal() -> Outcome<TcpListener> {
    TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .await
        .map_err(|error| Failure::with_source("cannot listen on 127.0.0.1 for the local worker", &error))
}

fn local_addr(listener: &TcpListener) -> Outcome<SocketAddr> {
    listener.local_addr().map_err(|error| Failure::with_source("cannot listen", &error))
}

/// Whether the server has to wait for its first account: other machines reach it, and everyone could read,
/// write and delete.
fn needs_setup(config: &lode_registry::Config, is_open: bool) -> bool {
    is_open && !config.allow_anonymous && !config.listen.ip().to_canonical().is_loopback()
}

fn cannot_open(error: &OpenError, data: &Path) -> Failure {
    let failure = Failure::with_source("cannot start", error);
    match error {
        OpenError::FolderInUse { .. } => {
            failure.hint("stop the other server, or name another folder with --data")
        }
        OpenError::Registry(Error::Storage { .. }) => {
            failure.hint(format!("can this user write to {}? --data names another folder", data.display()))
        }
        OpenError::Registry(Error::StorageFull) => Failure::new(format!(
            "cannot start: no space left for the data folder {} (or on the disk of the database)",
            absolute(data).display()
        ))
        .hint("free space on that disk, or name another folder with --data"),
        OpenError::SchemaNewer { .. } => {
            failure.hint("start that version again; `lode --version` prints this version")
        }
        OpenError::Registry(Error::Database(_) | Error::Unavailable { .. }) => failure.hint(
            "--database (LODE_DATABASE) names the database: is it running, and may this user log in and create tables?",
        ),
        OpenError::Config { setting: "secret_key", .. } => {
            failure.hint("docs/guide/backup.md says what to do if the key is lost")
        }
        OpenError::Config { setting: "storage", .. } => failure.hint(
            "--storage names the bucket; AWS_* variables or storage_* settings have its endpoint and credentials: see docs/guide/replicas.md",
        ),
        _ => failure,
    }
}

/// The path with the working folder before it, if it is relative.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The URL at which this process reaches itself.
fn local_url(scheme: &str, address: SocketAddr) -> String {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    format!("{scheme}://{}", SocketAddr::new(ip, address.port()))
}

/// The settings of the local worker: it joins this server, has its cache in the data folder and maps the
/// server's blobs in place.
fn local_worker(
    worker: lode_worker::Config,
    config: &lode_registry::Config,
    base: &str,
) -> Outcome<lode_worker::Config> {
    let blobs = match &config.storage {
        None => Some(config.data.clone()),
        Some(url) => url.to_file_path().ok(),
    };
    Ok(lode_worker::Config {
        registry: base
            .parse()
            .map_err(|error| Failure::with_source(format!("`{base}` is not a URL"), &error))?,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        advertise: None,
        worker_token: None,
        cache: absolute(&config.data.join("worker")),
        sources: blobs.into_iter().map(|path| absolute(&path)).collect(),
        max_body: config.max_body,
        body_budget: config.body_budget,
        shutdown_grace: config.shutdown_grace,
        ..worker
    })
}

/// Starts the local worker, and waits a short time until it is registered. A failure is logged: the server still
/// works as a registry. Only a GPU that was asked for and cannot be used stops the start.
async fn start_worker(
    config: lode_worker::Config,
    stop: watch::Receiver<bool>,
) -> Outcome<Option<lode_worker::Worker>> {
    let started = tokio::select! {
        started = lode_worker::start(config) => started,
        () = wait_for_stop(stop) => return Ok(None),
    };
    match started {
        Ok(worker) => {
            // `/readyz` reports a worker that needs longer.
            let _ = tokio::time::timeout(REGISTRATION_TIME, worker.wait_until_registered()).await;
            Ok(Some(worker))
        }
        Err(error @ lode_worker::Error::Device(_)) => {
            Err(device_hint(Failure::with_source("the local worker cannot start", &error)))
        }
        Err(error) => {
            tracing::error!(
                error = crate::error::chain(&error),
                "failed to start the local worker; models are stored but cannot run"
            );
            Ok(None)
        }
    }
}

/// Some programs, such as timeout(1), signal the process and then its group. Signals within this time count
/// as one.
const SIGNAL_COALESCE_TIME: Duration = Duration::from_millis(300);

/// Becomes true at the first SIGINT or SIGTERM. A second one ends the process at once.
pub(crate) fn stop_signal() -> Outcome<watch::Receiver<bool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |error: std::io::Error| Failure::with_source("cannot listen for signals", &error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        let mut first_signal: Option<Instant> = None;
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            match first_signal {
                None => {
                    first_signal = Some(Instant::now());
                    let _nobody_waits = sender.send(true);
                }
                Some(first) if first.elapsed() < SIGNAL_COALESCE_TIME => {}
                Some(_) => {
                    tracing::warn!(
                        "received a second stop signal; exiting without waiting for requests in progress"
                    );
                    std::process::exit(130);
                }
            }
        }
    });
    Ok(receiver)
}

/// Waits for the stop signal.
pub(crate) async fn wait_for_stop(mut stop: watch::Receiver<bool>) {
    // The sender lives as long as the process.
    let _closed = stop.wait_for(|stop| *stop).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_is_open_by_default() {
        let check = |listen: &str, allow_anonymous: bool| {
            let config = lode_registry::Config {
                listen: listen.parse().unwrap(),
                allow_anonymous,
                ..lode_registry::Config::default()
            };
            !needs_setup(&config, true)
        };
        assert!(check("127.0.0.1:5000", false));
        assert!(check("[::1]:5000", false));
        assert!(check("[::ffff:127.0.0.1]:5000", false));
        assert!(!check("0.0.0.0:5000", false));
        assert!(!check("[::]:5000", false));
        assert!(!check("10.0.0.7:5000", false));
        assert!(check("0.0.0.0:5000", true));
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let message_of = |cert: Option<&str>, key: Option<&str>| {
            let (tls_cert, tls_key) = (cert.map(PathBuf::from), key.map(PathBuf::from));
            let config = lode_registry::Config { tls_cert, tls_key, ..lode_registry::Config::default() };
            tls(&config).err().map(|failure| failure.to_string()).unwrap_or_default()
        };
        assert_eq!(message_of(None, None), "");
        assert!(message_of(Some("/nowhere/c.pem"), None).contains("--tls-cert is set without --tls-key"));
        assert!(message_of(None, Some("/nowhere/k.pem")).contains("--tls-key is set without --tls-cert"));
        assert!(message_of(Some("/nowhere/c.pem"), Some("/nowhere/k.pem")).contains("/nowhere/c.pem"));
    }

    #[test]
    fn the_server_reaches_itself_on_loopback() {
        let check =
            |address: &str, expect: &str| assert_eq!(local_url("http", address.parse().unwrap()), expect);
        check("127.0.0.1:5000", "http://127.0.0.1:5000");
        check("0.0.0.0:1", "http://127.0.0.1:1");
        check("[::]:1", "http://[::1]:1");
        check("10.0.0.7:1", "http://10.0.0.7:1");
    }
}
