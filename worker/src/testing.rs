//! Shared test helpers: a minimal registry, runners in the test's own process, and scripts as child processes.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use futures::future::BoxFuture;
use http::{Method, StatusCode, header};
use lode_client::{Client as RegistryClient, ClientOptions, Registry};
use lode_model::digest::Digest;
use lode_model::media_type as mt;
use lode_model::reference::Repository;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

use crate::engine::Engine;
use crate::runner::Client;
use crate::runner::process::{Control, Launch, ProcessError, Runner};
use crate::runner::testing::{FakeEngine, demo_file, demo_tokenizer};
use crate::runner::{Loader, Model, serve_runner};

/// Writes a shell script that can be executed. Another process writes it: if this one had the file open while another
/// test starts a process, that process would have it open as well, and the file could not be executed.
pub(crate) fn write_program(path: &Path, body: &str) {
    let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod 755 "$0""#;
    let status = std::process::Command::new("/bin/sh").arg("-c").arg(write).arg(path).arg(body).status();
    assert!(status.expect("there is a shell").success());
}

/// Serves the content put into it, counts requests, and accepts worker registrations.
#[derive(Clone, Default)]
pub(crate) struct TinyRegistry {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    content: Mutex<HashMap<String, (String, Bytes)>>,
    gets: Mutex<HashMap<String, usize>>,
    wrong: Mutex<Option<String>>,
    joins: AtomicUsize,
    left: AtomicUsize,
    known: AtomicU64,
    heartbeat: Mutex<Value>,
    draining: AtomicBool,
}

pub(crate) const SECRET: &str = "the secret of this registration";
/// What the registry expects with heartbeats.
const CREDENTIAL: &str = "the credential of this registration";

impl TinyRegistry {
    pub(crate) async fn start(&self) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let app = axum::Router::new().fallback(respond).with_state(self.shared.clone());
        tokio::spawn(async move { axum::serve(listener, app).await });
        addr
    }

    pub(crate) async fn client(&self) -> Registry {
        let addr = self.start().await;
        RegistryClient::new(ClientOptions::default()).unwrap().registry(&format!("http://{addr}")).unwrap()
    }

    pub(crate) fn put(&self, media_type: &str, bytes: impl Into<Bytes>) -> Digest {
        let bytes = bytes.into();
        let digest = Digest::sha256(&bytes);
        self.shared.content.lock().unwrap().insert(digest.to_string(), (media_type.into(), bytes));
        digest
    }

    /// A manifest of named layers, as `lode create` and ollama write them.
    pub(crate) fn put_model(&self, layers: &[(&str, &str, Vec<u8>)]) -> Digest {
        let layers: Vec<Value> = layers
            .iter()
            .map(|(media_type, name, bytes)| {
                let digest = self.put(mt::OCTET_STREAM, bytes.clone());
                json!({"mediaType": media_type, "name": name, "digest": digest, "size": bytes.len()})
            })
            .collect();
        let config = self.put(mt::DOCKER_CONFIG, br#"{"model_type":"4.2M","file_type":"BF16"}"#.to_vec());
        let manifest = json!({
            "schemaVersion": 2, "mediaType": mt::DOCKER_MANIFEST,
            "config": {"mediaType": mt::DOCKER_CONFIG, "digest": config, "size": 40}, "layers": layers,
        });
        self.put(mt::DOCKER_MANIFEST, manifest.to_string().into_bytes())
    }

    /// The demo model as files; `seed` makes manifests differ.
    pub(crate) fn put_demo(&self, seed: u8, with_weights: bool) -> Digest {
        self.put_demo_with(seed, with_weights, &[])
    }

    /// The demo model with more layers.
    pub(crate) fn put_demo_with(
        &self,
        seed: u8,
        with_weights: bool,
        more: &[(&str, &str, Vec<u8>)],
    ) -> Digest {
        let read = |name: &str| std::fs::read(demo_file(name)).unwrap();
        let weights = if with_weights { read("model.safetensors") } else { vec![seed; 100] };
        let demo = [
            (mt::OCTET_STREAM, "model.safetensors", weights),
            (mt::OLLAMA_JSON, "config.json", read("config.json")),
            (mt::OLLAMA_JSON, "generation_config.json", read("generation_config.json")),
            (mt::OLLAMA_JSON, "tokenizer.json", read("tokenizer.json")),
            (mt::OLLAMA_JSON, "tokenizer_config.json", read("tokenizer_config.json")),
            (mt::OLLAMA_LICENSE, "", vec![seed]),
        ];
        self.put_model(&[&demo[..], more].concat())
    }

    /// Number of requests for bytes of this blob.
    pub(crate) fn gets(&self, digest: &Digest) -> usize {
        self.shared.gets.lock().unwrap().get(digest.as_str()).copied().unwrap_or(0)
    }

    /// From now on serves wrong bytes of the same length for this digest.
    pub(crate) fn corrupt(&self, digest: &Digest) {
        *self.shared.wrong.lock().unwrap() = Some(digest.to_string());
    }

    pub(crate) fn joins(&self) -> usize {
        self.shared.joins.load(Ordering::SeqCst)
    }

    pub(crate) fn left(&self) -> usize {
        self.shared.left.load(Ordering::SeqCst)
    }

    pub(crate) fn forget_workers(&self) {
        self.shared.known.store(0, Ordering::SeqCst);
    }

    /// Reports in its replies to heartbeats that an administrator drains the worker.
    pub(crate) fn drain(&self, draining: bool) {
        self.shared.draining.store(draining, Ordering::SeqCst);
    }

    pub(crate) fn heartbeat(&self) -> Value {
        self.shared.heartbeat.lock().unwrap().clone()
    }
}

async fn respond(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    if let Some(id) = path.strip_prefix("/lode/v1/workers") {
        return worker(&shared, request.method().clone(), id.trim_start_matches('/').to_owned(), request)
            .await;
    }
    let reference = path.rsplit('/').next().unwrap_or_default();
    let Some((media_type, mut bytes)) = shared.content.lock().unwrap().get(reference).cloned() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    *shared.gets.lock().unwrap().entry(reference.to_owned()).or_default() += 1;
    if shared.wrong.lock().unwrap().as_deref() == Some(reference) {
        bytes = vec![0; bytes.len()].into();
    }
    let range = request.headers().get(header::RANGE).and_then(|range| {
        let (from, to) = range.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
        Some((
            from.parse::<usize>().ok()?,
            to.parse::<usize>().map_or(bytes.len(), |to| to + 1).min(bytes.len()),
        ))
    });
    let mut response = Response::builder().header(header::CONTENT_TYPE, media_type);
    if let Some((from, to)) = range {
        let content_range = format!("bytes {from}-{}/{}", to - 1, bytes.len());
        response = response.status(StatusCode::PARTIAL_CONTENT).header(header::CONTENT_RANGE, content_range);
        bytes = bytes.slice(from..to);
    }
    response.body(Body::from(bytes)).unwrap()
}

async fn worker(shared: &Shared, method: Method, id: String, request: Request) -> Response {
    let bearer = format!("Bearer {CREDENTIAL}");
    let shows_credential = request
        .headers()
        .get(header::AUTHORIZATION)
        .is_some_and(|value| value.as_bytes() == bearer.as_bytes());
    let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
    let known = shared.known.load(Ordering::SeqCst).to_string();
    match method {
        Method::POST => {
            let joins = shared.joins.fetch_add(1, Ordering::SeqCst) as u64 + 1;
            shared.known.store(joins, Ordering::SeqCst);
            let registration = json!({
                "id": joins.to_string(), "credential": CREDENTIAL, "secret": SECRET, "heartbeat_ms": 50,
            });
            registration.to_string().into_response()
        }
        Method::PUT if id == known && shows_credential => {
            *shared.heartbeat.lock().unwrap() = serde_json::from_slice(&body).unwrap();
            if shared.draining.load(Ordering::SeqCst) {
                return json!({"draining": true}).to_string().into_response();
            }
            StatusCode::NO_CONTENT.into_response()
        }
        Method::DELETE if id == known && shows_credential => {
            shared.left.fetch_add(1, Ordering::SeqCst);
            StatusCode::NO_CONTENT.into_response()
        }
        _ => StatusCode::NOT_FOUND.into_response(),
    }
}

pub(crate) fn repository() -> Repository {
    "team/demo".parse().unwrap()
}

/// Runners in this process: the real server on a real socket, with a chosen engine.
pub(crate) struct InProcess {
    loader: Arc<Loader>,
    pub(crate) launched: Arc<AtomicUsize>,
    pub(crate) running: Arc<AtomicUsize>,
}

impl InProcess {
    pub(crate) fn new(loader: Arc<Loader>) -> InProcess {
        InProcess { loader, launched: Arc::default(), running: Arc::default() }
    }

    pub(crate) fn loader(&self) -> Arc<Loader> {
        self.loader.clone()
    }

    /// With the native engine.
    pub(crate) fn native() -> InProcess {
        InProcess::new(Arc::new(Model::load))
    }

    /// With the fake engine.
    pub(crate) fn fake() -> InProcess {
        InProcess::scripted("")
    }

    /// With the fake engine, which returns `output` to every request unless it is empty.
    pub(crate) fn scripted(output: &str) -> InProcess {
        let script = demo_tokenizer().encode(output, false).unwrap_or_default();
        InProcess::new(Arc::new(move |request| {
            let mut engine = FakeEngine::new(request.context_length.min(2048), request.num_parallel);
            engine.script.clone_from(&script);
            engine.cache_tokens = request.cache_tokens;
            let model = Model::read(request, &json!({"eos_token_id": 2}), engine.info().clone())?;
            Ok((model, Box::new(engine) as Box<dyn Engine>))
        }))
    }
}

impl Launch for InProcess {
    fn launch(&self) -> BoxFuture<'static, Result<Runner, ProcessError>> {
        let (loader, running) = (self.loader.clone(), self.running.clone());
        self.launched.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            let folder = tempfile::tempdir().map_err(ProcessError::Socket)?;
            let socket = folder.path().join("s");
            let (lost, engine_lost) = oneshot::channel::<Infallible>();
            let listener = tokio::net::UnixListener::bind(&socket).map_err(ProcessError::Socket)?;
            let serve = tokio::spawn(serve_runner(listener, loader, lost));
            let (ended, on_end) = watch::channel(false);
            let (close, closed) = oneshot::channel::<()>();
            running.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                tokio::select! {
                    _ = engine_lost => {}
                    _ = closed => {}
                }
                serve.abort();
                running.fetch_sub(1, Ordering::SeqCst);
                ended.send_replace(true);
                drop(folder);
            });
            Ok(Runner::new(Client::new(socket), on_end, Arc::new(Ending(Mutex::new(Some(close))))))
        })
    }
}

struct Ending(Mutex<Option<oneshot::Sender<()>>>);

impl Control for Ending {
    fn close(&self) {
        self.0.lock().unwrap().take();
    }

    fn kill(&self) {
        self.close();
    }

    fn anonymous_bytes(&self) -> u64 {
        0
    }
}
