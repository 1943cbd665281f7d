//! `lode serve`: runs the registry, the gateway and a local worker in one process, until a signal stops it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use lode_registry::{Error, OpenError};
use tokio::{net::TcpListener, sync::watch};

use super::demo;
use crate::{
    args::Serve,
    error::{CANNOT_RUN, Failure, Outcome},
    logging,
    settings::{self, ServeSettings},
    ui,
};

pub(crate) async fn run(args: Serve) -> Outcome {
    let ServeSettings { registry: mut config, mut worker, no_worker, demo } =
        match settings::serve(&args, &settings::process_env)? {
            settings if args.print_config => return ui::print_bytes(settings::print(&settings)?.as_bytes()),
            settings => settings,
        };
    worker.runner_env = logging::inherited_env(args.log_format);
    if !no_worker {
        worker.check().map_err(|error| {
            Failure::with_source("invalid settings of the local worker", &error).code(CANNOT_RUN)
        })?;
    }
    let tls = tls(&config)?;
    // Register first, so that a signal during the start stops it.
    let stop = stop_signal()?;
    let public = bind(config.listen).await?;
    let address = local_addr(&public)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let shown = local_url(scheme, address);
    // The certificate does not cover the loopback address, so this process reaches itself over plain HTTP.
    let internal = match tls.is_some() && (!no_worker || demo) {
        true => Some(bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?),
        false => None,
    };
    let base = match &internal {
        Some(internal) => local_url("http", local_addr(internal)?),
        None => shown.clone(),
    };
    let data = config.data.clone();
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
    let (stop_server, server_stopped) = watch::channel(false);
    let listeners = lode_registry::Listeners { public, tls, internal };
    // Boxed, so that the types of this function's callers do not contain the whole server.
    let serving: BoxFuture<'static, _> =
        Box::pin(lode_registry::serve(registry, listeners, wait_for_stop(server_stopped)));
    let mut serving = tokio::spawn(serving);
    ui::print_line(format!("listening on {scheme}://{address}"))?;
    if let Some(path) = setup {
        let base = public_url.as_ref().map_or(shown.as_str(), |url| url.as_str().trim_end_matches('/'));
        ui::print_line(format!(
            "this server has no account yet: create the administrator within an hour at\n{base}{path}"
        ))?;
    }

    let mut worker = match worker {
        Some(config) => {
            start_worker(lode_worker::Config { token: Some(token.clone()), ..config? }, stop.clone()).await
        }
        None => None,
    };
    let demo = demo.then(|| {
        tokio::spawn(demo::install(base, token, shown, worker.is_some(), wait_for_stop(stop.clone())))
    });

    let ended = tokio::select! {
        ended = &mut serving => Some(ended),
        () = wait_for_stop(stop) => None,
    };
    if let Some(demo) = demo {
        demo.abort();
    }
    // The worker deregisters while the server still accepts requests. It ends after the responses that it
    // streams have ended.
    if let Some(worker) = &mut worker {
        worker.leave().await;
    }
    let ended = match ended {
        Some(ended) => ended,
        None => {
            stop_server.send_replace(true);
            serving.await
        }
    };
    if let Some(worker) = worker {
        worker.stop().await;
    }
    ended
        .map_err(|error| Failure::with_source("the server failed", &error))?
        .map_err(|error| Failure::with_source("the server failed", &error))
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

fn local_addr(listener: &TcpListener) -> Outcome<SocketAddr> {
    listener.local_addr().map_err(|error| Failure::with_source("cannot listen", &error))
}

/// Whether the server has to wait for its first account: other machines reach it, and everyone could read,
/// write and delete.
fn needs_setup(config: &lode_registry::Config, is_open: bool) -> bool {
    is_open && !config.allow_anonymous && !config.listen.ip().to_canonical().is_loopback()
}

async fn bind(address: SocketAddr) -> Outcome<TcpListener> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::new(format!("{address} is in use by another program"))
            .hint("is `lode serve` running already? `--listen 127.0.0.1:0` picks a free port"),
        std::io::ErrorKind::PermissionDenied => {
            Failure::new(format!("this user may not listen on {address}"))
                .hint("ports below 1024 are privileged: use `--listen 127.0.0.1:5000`")
        }
        std::io::ErrorKind::AddrNotAvailable => {
            Failure::new(format!("{} is not an address of this machine", address.ip()))
                .hint("use `--listen 127.0.0.1:5000`, or 0.0.0.0 for all addresses")
        }
        _ => Failure::with_source(format!("cannot listen on {address}"), &error),
    })
}

fn cannot_open(error: &OpenError, data: &std::path::Path) -> Failure {
    let failure = Failure::with_source("cannot start", error);
    match error {
        OpenError::FolderInUse { .. } => {
            failure.hint("stop the other server, or name another folder with --data")
        }
        OpenError::Registry(Error::Storage { .. }) => {
            failure.hint(format!("can this user write to {}? --data names another folder", data.display()))
        }
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
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    Ok(lode_worker::Config {
        registry: base
            .parse()
            .map_err(|error| Failure::with_source(format!("`{base}` is not a URL"), &error))?,
        listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        advertise: None,
        token: None,
        cache: absolute(config.data.join("worker")),
        sources: blobs.into_iter().map(absolute).collect(),
        max_body: config.max_body,
        body_budget: config.body_budget,
        ..worker
    })
}

/// Starts the local worker. A failure is logged: the server still works as a registry.
async fn start_worker(
    config: lode_worker::Config,
    stop: watch::Receiver<bool>,
) -> Option<lode_worker::Worker> {
    let started = tokio::select! {
        started = lode_worker::start(config) => started,
        () = wait_for_stop(stop) => return None,
    };
    match started {
        Ok(worker) => Some(worker),
        Err(error) => {
            tracing::error!(
                error = crate::error::chain(&error),
                "failed to start the local worker; models are stored but cannot run"
            );
            None
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
