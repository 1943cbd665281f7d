//! The server in a runner process: HTTP on its Unix socket, for one model, until its worker exits. `lode
//! runner` calls [`main`]; tests serve the router in process.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::{StreamExt, TryStreamExt};
use http::{StatusCode, header};
use lode_client::{BodyBudget, Charge, read_body};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};

use crate::engine::Engine;

use super::batch::Batch;
use super::embed::l2_normalise;
use super::generate::EVENT_QUEUE;
use super::jobs::{EmbedJob, ScoreJob, Wanted};
use super::model::{EmbedTexts, Model};
use super::projections::Projections;
use super::protocol::{
    EmbedRequest, EmbedResponse, ErrorKind, Event, LoadRequest, RerankRequest, RerankResponse, RunnerError,
    ScoreRequest, ScoreResponse, Status,
};

/// Bodies come from the worker, which has its own limits; these only bound memory.
const MAX_BODY_BYTES: usize = 256 << 20;
const BODY_BUDGET_BYTES: u64 = 512 << 20;

/// Bodies above this size are parsed off the async threads.
const LARGE_BYTES: usize = 256 << 10;

/// Maximum number of texts of a request that are queued in the batch loop.
const MAX_TEXTS_IN_FLIGHT: usize = 32;

/// Maximum number of values in a response to `/score`; each takes about 20 bytes.
const MAX_SCORES: usize = 1 << 22;

/// Why a runner process could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot listen on {}", .path.display())]
    Listen { path: PathBuf, source: std::io::Error },
    #[error("cannot start the async runtime")]
    Runtime(#[source] std::io::Error),
}

/// Runs a runner until its standard input closes, which happens when its worker exits.
///
/// Call it before anything else starts a thread or a runtime. The kernel also kills this process with its
/// parent, but that signal is tied to the parent's thread that spawned it; the pipe is tied to the process.
pub fn main(socket: PathBuf) -> Result<(), StartError> {
    // Ignore errors: the pipe below has the same effect.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    std::thread::Builder::new()
        .name("parent".into())
        .spawn(|| {
            // Nothing is written to it: the read returns when the other end closes.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            std::process::exit(0);
        })
        .map_err(StartError::Runtime)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(StartError::Runtime)?;
    runtime.block_on(async {
        let listener = tokio::net::UnixListener::bind(&socket)
            .map_err(|source| StartError::Listen { path: socket.clone(), source })?;
        let (lost, engine_lost) = oneshot::channel();
        tokio::select! {
            result = serve(listener, Arc::new(Model::load), lost) => result.map_err(StartError::Runtime),
            // The engine has failed, so this process exits. Wait a moment so that the last events are read.
            _ = engine_lost => {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                std::process::exit(1);
            }
        }
    })
}

/// Loads files into a model and its engine; tests use their own engine.
pub(crate) type Loader = dyn Fn(&LoadRequest) -> Result<(Model, Box<dyn Engine>), RunnerError> + Send + Sync;

/// The state of a runner: empty until loaded.
struct Runner {
    loader: Arc<Loader>,
    model: OnceLock<ServedModel>,
    loading: tokio::sync::Mutex<Option<oneshot::Sender<Infallible>>>,
    bodies: BodyBudget,
}

struct ServedModel {
    model: Model,
    batch: Batch,
}

impl Runner {
    /// `lost` is dropped when the engine has ended, so that the process exits.
    fn new(loader: Arc<Loader>, lost: oneshot::Sender<Infallible>) -> Arc<Runner> {
        let (model, loading) = (OnceLock::new(), tokio::sync::Mutex::new(Some(lost)));
        Arc::new(Runner { loader, model, loading, bodies: BodyBudget::new(BODY_BUDGET_BYTES) })
    }

    fn served(&self) -> Result<&ServedModel, RunnerError> {
        self.model.get().ok_or_else(|| RunnerError::invalid("no model is loaded"))
    }
}

/// Serves one runner until it is dropped.
pub(crate) async fn serve(
    listener: tokio::net::UnixListener,
    loader: Arc<Loader>,
    lost: oneshot::Sender<Infallible>,
) -> std::io::Result<()> {
    axum::serve(listener, router(Runner::new(loader, lost))).await
}

/// The runner's routes.
fn router(runner: Arc<Runner>) -> Router {
    Router::new()
        .route("/status", get(status))
        .route("/load", post(load))
        .route("/generate", post(generate))
        .route("/render", post(render))
        .route("/score", post(score))
        .route("/embed", post(embed))
        .route("/rerank", post(rerank))
        .with_state(runner)
}

async fn status(State(runner): State<Arc<Runner>>) -> Response {
    json(StatusCode::OK, &Status { loaded: runner.model.get().is_some() })
}

async fn load(
    State(runner): State<Arc<Runner>>,
    ParsedBody(request): ParsedBody<LoadRequest>,
) -> Result<Response, RunnerError> {
    let mut loading = runner.loading.lock().await;
    if loading.is_none() {
        return Err(RunnerError::invalid("a model is already loaded"));
    }
    let (num_parallel, batch_tokens) = (request.num_parallel, request.batch_tokens);
    let loader = runner.loader.clone();
    let (model, engine) = run_blocking(move || loader(&request)).await?;
    let lost = loading.take();
    let batch =
        Batch::start(engine, num_parallel, batch_tokens, move || drop(lost)).map_err(RunnerError::failed)?;
    let response = json(StatusCode::OK, &model.loaded());
    if runner.model.set(ServedModel { model, batch }).is_err() {
        return Err(RunnerError::invalid("a model is already loaded"));
    }
    Ok(response)
}

async fn generate(State(runner): State<Arc<Runner>>, body: ReceivedBody) -> Result<Response, RunnerError> {
    let served = runner.served()?;
    let (events, receiver) = mpsc::channel(EVENT_QUEUE);
    let batch = served.batch.clone();
    // When the worker disconnects, this future is dropped, which kills the evaluator of the prompt.
    let job = served.model.prepare(body.bytes, events, move || batch.wake()).await?;
    served.batch.generate(job)?;
    // When the worker disconnects, the receiver is dropped, which cancels the generation.
    let lines = futures::stream::unfold(Some(receiver), |receiver| async move {
        let mut receiver = receiver?;
        // Send all queued events together.
        let mut events = Vec::new();
        if receiver.recv_many(&mut events, EVENT_QUEUE).await == 0 {
            events.push(Event::Error(RunnerError::failed("the model stopped while generating")));
        }
        let is_last = matches!(events.last(), Some(Event::Done(_) | Event::Error(_)));
        Some((Ok::<_, Infallible>(lines(&events)), (!is_last).then_some(receiver)))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

async fn render(State(runner): State<Arc<Runner>>, body: ReceivedBody) -> Result<Response, RunnerError> {
    Ok(json(StatusCode::OK, &runner.served()?.model.render(&body.bytes).await?))
}

async fn score(
    State(runner): State<Arc<Runner>>,
    ParsedBody(request): ParsedBody<ScoreRequest>,
) -> Result<Response, RunnerError> {
    let served = runner.served()?;
    let loaded = served.model.loaded();
    for window in &request.windows {
        if window.len() > loaded.context_length + 1 {
            return Err(RunnerError::invalid(format!(
                "a window of {} ids is longer than the context of {}",
                window.len(),
                loaded.context_length
            )));
        }
        if let Some(id) = window.iter().find(|&&id| id as usize >= loaded.vocab_size) {
            return Err(RunnerError::invalid(format!(
                "token id {id} is outside the model's vocabulary of {}",
                loaded.vocab_size
            )));
        }
    }
    let ids: usize = request.windows.iter().map(Vec::len).sum();
    if ids.saturating_mul(request.top.max(1)) > MAX_SCORES {
        return Err(RunnerError::invalid(format!(
            "{ids} ids with {} of the likeliest each are too many for one response; send fewer windows at a time",
            request.top
        )));
    }
    let (sender, scores) = oneshot::channel();
    served.batch.score(ScoreJob { windows: request.windows, top: request.top, sender })?;
    let windows =
        scores.await.unwrap_or_else(|_| Err(RunnerError::failed("the model stopped while scoring")))?;
    run_blocking(move || Ok(json(StatusCode::OK, &ScoreResponse { windows }))).await
}

async fn embed(
    State(runner): State<Arc<Runner>>,
    ParsedBody(request): ParsedBody<EmbedRequest>,
) -> Result<Response, RunnerError> {
    let served = runner.served()?;
    let dimensions = request.dimensions;
    let EmbedTexts { texts, prompt } = served.model.prepare_embed(request).await?;
    let prompt_tokens = texts.iter().map(Vec::len).sum();
    let wanted = Wanted::Embedding { pooling: served.model.embedding().pooling, prompt };
    let vectors = compute(&served.batch, texts.into_iter().map(|ids| (ids, wanted))).await?;
    let finish = move |projections: &Projections| {
        let finish = |vector| l2_normalise(projections.apply(vector), dimensions);
        vectors.into_iter().map(finish).collect()
    };
    let runner = runner.clone();
    run_blocking(move || {
        let vectors = finish(&runner.served()?.model.projections);
        Ok(json(StatusCode::OK, &EmbedResponse { vectors, prompt_tokens }))
    })
    .await
}

async fn rerank(
    State(runner): State<Arc<Runner>>,
    ParsedBody(request): ParsedBody<RerankRequest>,
) -> Result<Response, RunnerError> {
    let served = runner.served()?;
    let (pairs, relevance) = served.model.prepare_rerank(request).await?;
    let prompt_tokens = pairs.iter().map(|pair| pair.ids.len()).sum();
    let jobs = pairs.into_iter().map(|pair| (pair.ids, Wanted::Classes { second: pair.second }));
    let logits = compute(&served.batch, jobs).await?;
    let scores = logits.into_iter().flatten().map(|logit| relevance.score(logit)).collect();
    Ok(json(StatusCode::OK, &RerankResponse { scores, prompt_tokens }))
}

/// The vectors of the texts of one request, in order.
async fn compute(
    batch: &Batch,
    texts: impl Iterator<Item = (Vec<u32>, Wanted)>,
) -> Result<Vec<Vec<f32>>, RunnerError> {
    let request = batch.new_request();
    let vectors = texts.map(async |(ids, wanted)| {
        let (sender, vector) = oneshot::channel();
        batch.embed(EmbedJob { request, ids, wanted, sender })?;
        let vector = vector.await;
        vector.unwrap_or_else(|_| Err(RunnerError::failed("the model stopped while computing the texts")))
    });
    // A limited number is in the queue, so that other requests get their turn.
    futures::stream::iter(vectors).buffered(MAX_TEXTS_IN_FLIGHT).try_collect().await
}

impl IntoResponse for RunnerError {
    fn into_response(self) -> Response {
        let status = match self.kind {
            ErrorKind::Invalid | ErrorKind::Unsupported => StatusCode::BAD_REQUEST,
            ErrorKind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Failed | ErrorKind::Stopped => StatusCode::INTERNAL_SERVER_ERROR,
        };
        json(status, &self)
    }
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RunnerError> + Send + 'static,
) -> Result<T, RunnerError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|_| Err(RunnerError::failed("the runner panicked while handling this request")))
}

/// The body of a request, charged to the budget until it is dropped.
struct ReceivedBody {
    bytes: Bytes,
    _charge: Charge,
}

impl FromRequest<Arc<Runner>> for ReceivedBody {
    type Rejection = RunnerError;

    async fn from_request(request: Request, runner: &Arc<Runner>) -> Result<ReceivedBody, RunnerError> {
        let mut charge = runner.bodies.charge();
        let bytes = read_body(request.into_body(), MAX_BODY_BYTES, &mut charge).await;
        Ok(ReceivedBody { bytes: bytes.map_err(RunnerError::invalid)?, _charge: charge })
    }
}

/// The parsed body of a request. The unparsed body is dropped.
struct ParsedBody<T>(T);

impl<T: DeserializeOwned + Send + 'static> FromRequest<Arc<Runner>> for ParsedBody<T> {
    type Rejection = RunnerError;

    async fn from_request(request: Request, runner: &Arc<Runner>) -> Result<ParsedBody<T>, RunnerError> {
        let body = ReceivedBody::from_request(request, runner).await?;
        let is_large = body.bytes.len() > LARGE_BYTES;
        let parse = move || serde_json::from_slice(&body.bytes).map(ParsedBody).map_err(RunnerError::invalid);
        if is_large { run_blocking(parse).await } else { parse() }
    }
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let body = serde_json::to_vec(value).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn lines(events: &[Event]) -> Bytes {
    let mut lines = Vec::new();
    for event in events {
        // Serialising strings and numbers does not fail.
        serde_json::to_writer(&mut lines, event).unwrap_or_default();
        lines.push(b'\n');
    }
    lines.into()
}
