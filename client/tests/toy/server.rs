//! The registry that fails on demand, and how tests start and inspect it.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::Response,
};
use bytes::Bytes;
use futures::StreamExt;
use http::{Method, header};
use lode_client::{Client, ClientOptions, Registry, RetryPolicy};
use lode_model::digest::{Algorithm, Digest};

#[derive(Default)]
pub(crate) struct FakeRegistry {
    pub(crate) blobs: Mutex<HashMap<String, Bytes>>,
    /// Blobs of other repositories; only mounts find them.
    pub(crate) elsewhere: Mutex<HashMap<String, Bytes>>,
    pub(crate) manifests: Mutex<HashMap<String, (String, Bytes)>>,
    pub(crate) uploads: Mutex<HashMap<u64, Vec<u8>>>,
    pub(crate) next_upload: AtomicU64,
    pub(crate) requests: Mutex<Vec<String>>,
    pub(crate) faults: Mutex<Faults>,
    pub(crate) bytes_received: AtomicUsize,
}

#[derive(Default, Clone)]
pub(crate) struct Faults {
    /// Number of blob reads that return 503 first.
    pub(crate) refuse_reads: u32,
    /// Say that they must not be repeated.
    pub(crate) forbid_retries: bool,
    /// Number of blob reads that end half way.
    pub(crate) cut_reads: u32,
    /// End each blob read after its first byte.
    pub(crate) single_bytes: bool,
    /// Send blobs byte by byte, with this pause before each.
    pub(crate) trickle: Option<Duration>,
    /// Number of chunks that fail after half of their bytes were stored.
    pub(crate) cut_writes: u32,
    pub(crate) ignore_ranges: bool,
    /// Change the first byte of each blob.
    pub(crate) corrupt: bool,
    /// Number of closing requests that succeed but whose response is lost.
    pub(crate) lose_commits: u32,
    pub(crate) no_mounts: bool,
    /// Redirect blob reads to this address.
    pub(crate) redirect: Option<String>,
    /// The authorization that requests need.
    pub(crate) password: Option<Auth>,
    /// The response about a blob size, if supported.
    pub(crate) size_known: Option<bool>,
    /// Forget sessions when their status is requested.
    pub(crate) forget_sessions: bool,
}

#[derive(Clone)]
pub(crate) enum Auth {
    Basic(&'static str),
    Bearer { token: &'static str, login: Option<&'static str> },
}

pub(crate) struct TestServer {
    pub(crate) toy: Arc<FakeRegistry>,
    pub(crate) address: String,
}

pub(crate) async fn serve(faults: Faults) -> TestServer {
    let toy = Arc::new(FakeRegistry { faults: Mutex::new(faults), ..FakeRegistry::default() });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(handle).with_state(toy.clone());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    TestServer { toy, address }
}

impl TestServer {
    pub(crate) fn registry(&self) -> Registry {
        self.registry_with(ClientOptions::default())
    }

    pub(crate) fn registry_with(&self, options: ClientOptions) -> Registry {
        let retry =
            RetryPolicy { attempts: 5, base: Duration::from_millis(1), cap: Duration::from_millis(20) };
        let options = ClientOptions { retry, range_bytes: 64 << 10, chunk_bytes: 100_000, ..options };
        Client::new(options).unwrap().registry(&self.address).unwrap()
    }

    pub(crate) fn put(&self, bytes: &Bytes) -> Digest {
        let digest = Digest::of(Algorithm::Sha256, bytes);
        self.toy.blobs.lock().unwrap().insert(digest.to_string(), bytes.clone());
        digest
    }

    pub(crate) fn has(&self, digest: &Digest) -> Option<Bytes> {
        self.toy.blobs.lock().unwrap().get(&digest.to_string()).cloned()
    }

    pub(crate) fn count_requests(&self, method: &str, part: &str) -> usize {
        let requests = self.toy.requests.lock().unwrap();
        requests.iter().filter(|line| line.starts_with(method) && line.contains(part)).count()
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.toy.faults.lock().unwrap());
    }
}

fn response(status: u16) -> http::response::Builder {
    Response::builder().status(status)
}

fn empty(builder: http::response::Builder) -> Response {
    builder.body(Body::empty()).unwrap()
}

fn take(counter: impl FnOnce(&mut Faults) -> &mut u32, toy: &FakeRegistry) -> bool {
    let mut faults = toy.faults.lock().unwrap();
    let left = counter(&mut faults);
    let now = *left > 0;
    *left = left.saturating_sub(1);
    now
}

async fn handle(State(toy): State<Arc<FakeRegistry>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let query: HashMap<String, String> = parts
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.replace("%3A", ":").replace("%2F", "/")))
        .collect();
    let header = |name: header::HeaderName| {
        parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let authorization = header(header::AUTHORIZATION);
    let line = format!("{} {} {} {authorization}", parts.method, parts.uri, header(header::RANGE));
    toy.requests.lock().unwrap().push(line);

    let faults = toy.faults.lock().unwrap().clone();
    if let Some(refusal) = authorize(&faults, &path, &authorization) {
        return refusal;
    }
    if path == "/v2/" {
        return empty(response(200));
    }
    if path == "/lode/v1/blobs" {
        return match faults.size_known {
            Some(known) => response(200).body(Body::from(format!("{{\"known\":{known}}}"))).unwrap(),
            None => empty(response(404)),
        };
    }
    if let Some((_, reference)) = path.split_once("/manifests/") {
        return manifests(&toy, &parts.method, reference, header(header::CONTENT_TYPE), body).await;
    }
    if path.ends_with("/blobs/uploads/") {
        return open_upload(&toy, &faults, &query);
    }
    if let Some((_, id)) = path.split_once("/blobs/uploads/") {
        let range = header(header::CONTENT_RANGE);
        return upload(&toy, &faults, &parts.method, id.parse().unwrap(), &range, &query, body).await;
    }
    match path.rsplit_once('/') {
        Some((before, digest)) if before.ends_with("/blobs") || before == "/storage" => {
            read(&toy, &faults, &parts.method, before, digest, &header(header::RANGE))
        }
        _ => empty(response(404)),
    }
}

fn authorize(faults: &Faults, path: &str, authorization: &str) -> Option<Response> {
    let challenge = |text: String| Some(empty(response(401).header(header::WWW_AUTHENTICATE, text)));
    match faults.password.as_ref()? {
        Auth::Basic(expected) if authorization != *expected => challenge("Basic realm=\"toy\"".into()),
        Auth::Basic(_) => None,
        Auth::Bearer { token, login } if path == "/token" => {
            let body = format!("{{\"access_token\":\"{token}\",\"expires_in\":300}}");
            let allowed = login.is_none_or(|login| login == authorization);
            Some(if allowed { response(200).body(Body::from(body)).unwrap() } else { empty(response(401)) })
        }
        Auth::Bearer { token, .. } if authorization != format!("Bearer {token}") => {
            challenge("Bearer realm=\"/token\",service=\"toy\",scope=\"repository:team/x:pull\"".into())
        }
        Auth::Bearer { .. } => None,
    }
}

async fn manifests(
    toy: &FakeRegistry,
    method: &Method,
    reference: &str,
    content_type: String,
    body: Body,
) -> Response {
    if *method == Method::PUT {
        let bytes = axum::body::to_bytes(body, 4 << 20).await.unwrap();
        let digest = Digest::of(Algorithm::Sha256, &bytes).to_string();
        for key in [reference.to_owned(), digest.clone()] {
            toy.manifests.lock().unwrap().insert(key, (content_type.clone(), bytes.clone()));
        }
        return empty(
            response(201).header("Docker-Content-Digest", digest).header("OCI-Subject", "nonsense"),
        );
    }
    let found = toy.manifests.lock().unwrap().get(reference).cloned();
    let Some((content_type, mut bytes)) = found else { return empty(response(404)) };
    let digest = Digest::of(Algorithm::Sha256, &bytes).to_string();
    if toy.faults.lock().unwrap().corrupt {
        bytes = spoilt(&bytes);
    }
    response(200)
        .header(header::CONTENT_TYPE, format!("{content_type}; charset=utf-8"))
        .header("Docker-Content-Digest", digest)
        .body(Body::from(bytes))
        .unwrap()
}

fn spoilt(bytes: &Bytes) -> Bytes {
    let mut bytes = bytes.to_vec();
    if let Some(first) = bytes.first_mut() {
        *first ^= 1;
    }
    bytes.into()
}

fn open_upload(toy: &FakeRegistry, faults: &Faults, query: &HashMap<String, String>) -> Response {
    if let Some(digest) = query.get("mount").filter(|_| !faults.no_mounts) {
        let there = toy.blobs.lock().unwrap().contains_key(digest);
        let elsewhere = toy.elsewhere.lock().unwrap().get(digest).cloned();
        if let Some(bytes) = elsewhere {
            toy.blobs.lock().unwrap().insert(digest.clone(), bytes);
            return empty(response(201));
        }
        if there {
            return empty(response(201));
        }
    }
    let id = toy.next_upload.fetch_add(1, Ordering::Relaxed);
    toy.uploads.lock().unwrap().insert(id, Vec::new());
    empty(response(202).header(header::LOCATION, format!("/v2/team/x/blobs/uploads/{id}?state=abc")))
}

async fn upload(
    toy: &FakeRegistry,
    faults: &Faults,
    method: &Method,
    id: u64,
    range: &str,
    query: &HashMap<String, String>,
    body: Body,
) -> Response {
    let status = |code: u16, stored: usize| {
        empty(
            response(code)
                .header(header::LOCATION, format!("/v2/team/x/blobs/uploads/{id}?state=abc"))
                .header(header::RANGE, format!("0-{}", stored.saturating_sub(1))),
        )
    };
    assert_eq!(query.get("state").map(String::as_str), Some("abc"), "the query of the Location is lost");
    if faults.forget_sessions && *method == Method::GET {
        toy.uploads.lock().unwrap().remove(&id);
    }
    let Some(stored) = toy.uploads.lock().unwrap().get(&id).map(Vec::len) else {
        return empty(response(404));
    };
    match *method {
        Method::GET => return status(204, stored),
        Method::DELETE => {
            toy.uploads.lock().unwrap().remove(&id);
            return empty(response(204));
        }
        _ => {}
    }
    if let Some((first, _)) = range.split_once('-')
        && first.parse::<usize>().unwrap() != stored
    {
        return status(416, stored);
    }
    let cut = take(|faults| &mut faults.cut_writes, toy);
    let mut received = Vec::new();
    let mut stream = body.into_data_stream();
    while let Some(Ok(chunk)) = stream.next().await {
        received.extend_from_slice(&chunk);
    }
    toy.bytes_received.fetch_add(received.len(), Ordering::Relaxed);
    if cut {
        received.truncate(received.len() / 2);
    }
    let stored = {
        let mut uploads = toy.uploads.lock().unwrap();
        let Some(upload) = uploads.get_mut(&id) else { return empty(response(404)) };
        upload.extend_from_slice(&received);
        upload.len()
    };
    if cut {
        return empty(response(500));
    }
    if *method == Method::PATCH {
        return status(202, stored);
    }
    let bytes = Bytes::from(toy.uploads.lock().unwrap().remove(&id).unwrap());
    let digest = query.get("digest").unwrap();
    if Digest::of(Algorithm::Sha256, &bytes).to_string() != *digest {
        return response(400)
            .body(Body::from(r#"{"errors":[{"code":"DIGEST_INVALID","message":"not that"}]}"#))
            .unwrap();
    }
    toy.blobs.lock().unwrap().insert(digest.clone(), bytes);
    if take(|faults| &mut faults.lose_commits, toy) {
        return empty(response(502));
    }
    empty(response(201).header("Docker-Content-Digest", digest.as_str()))
}

fn read(
    toy: &FakeRegistry,
    faults: &Faults,
    method: &Method,
    before: &str,
    digest: &str,
    range: &str,
) -> Response {
    let found = toy.blobs.lock().unwrap().get(digest).cloned();
    let Some(mut bytes) = found else { return empty(response(404)) };
    if *method == Method::HEAD {
        return empty(response(200).header(header::CONTENT_LENGTH, bytes.len()));
    }
    if let Some(base) = faults.redirect.as_ref().filter(|_| before != "/storage") {
        return empty(response(307).header(header::LOCATION, format!("{base}/storage/{digest}")));
    }
    if take(|faults| &mut faults.refuse_reads, toy) {
        let refused = response(503).header(header::RETRY_AFTER, "0");
        return empty(if faults.forbid_retries {
            refused.header("x-should-retry", "false")
        } else {
            refused
        });
    }
    if faults.corrupt {
        bytes = spoilt(&bytes);
    }
    let total = bytes.len();
    let mut builder = response(200);
    if let Some(range) = range.strip_prefix("bytes=").filter(|_| !faults.ignore_ranges) {
        let (first, last) = range.split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        bytes = bytes.slice(first..=last);
        builder = response(206).header(header::CONTENT_RANGE, format!("bytes {first}-{last}/{total}"));
    }
    let length = bytes.len();
    let body = if take(|faults| &mut faults.cut_reads, toy) {
        let half = bytes.slice(..length / 2);
        let cut = futures::stream::iter([Ok(half), Err(std::io::Error::other("cut"))]);
        Body::from_stream(cut)
    } else if faults.single_bytes {
        let first = bytes.slice(..1.min(length));
        // Without the pause, hyper closes the connection before it sends the byte.
        let cut = futures::stream::once(async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Err(std::io::Error::other("cut"))
        });
        Body::from_stream(futures::stream::iter([Ok(first)]).chain(cut))
    } else if let Some(pause) = faults.trickle {
        let single = move |at| {
            let byte = bytes.slice(at..at + 1);
            async move {
                tokio::time::sleep(pause).await;
                Ok::<_, std::io::Error>(byte)
            }
        };
        Body::from_stream(futures::stream::iter(0..length).then(single))
    } else {
        Body::from(bytes)
    };
    builder.header(header::CONTENT_LENGTH, length).body(body).unwrap()
}
