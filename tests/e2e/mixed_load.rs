//! Honest clients work while others attack the same server: no honest request fails, memory stays bounded,
//! and the server connects to no internal address. Times are reported, not asserted. LODE_HOSTILE_SECONDS
//! sets the duration: 30 by default, 600 with `tests/run --long`.
//!
//! The attackers use another address (127.0.0.9), so that limits per client separate them from honest
//! clients.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use lode_tests::artifact::{Image, fresh_seed};
use lode_tests::checkpoint::{copy_folder, demo};
use lode_tests::command::wait_until;
use lode_tests::oci::{Registry, Response};
use lode_tests::process::{descendants, proportional_bytes, role_of};
use lode_tests::report::{env_number, figure};
use lode_tests::server::{Folder, Options, Server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::attached_worker::{Worker, workers};

const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);
/// Small limits, so that the attacks reach all of them within half a minute.
const SETTINGS: [(&str, &str); 5] = [
    ("LODE_MAX_CONNECTIONS", "200"),
    ("LODE_MAX_PER_CLIENT", "4"),
    ("LODE_STALL_TIMEOUT", "1s"),
    ("LODE_TEXT_TIMEOUT", "1s"),
    ("LODE_TEXT_MEMORY", "134217728"),
];
/// How much more memory all processes together may use under attack than when idle.
const MEMORY_LIMIT: u64 = 300 << 20;
/// How long an attacker waits for a response before it disconnects.
const ATTACKER_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Chat templates that would use all memory or run for ever.
const TEMPLATES: [(&str, &str); 2] = [
    (
        "attack/doubling",
        "{% set n = namespace(x='ab') %}{% for i in range(34) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x|length }}",
    ),
    (
        "attack/replacing",
        "{% set n = namespace(x='ab') %}{% for i in range(20) %}{% set n.x = n.x ~ n.x %}{% endfor %}\
         {% for i in range(100000) %}{% set q = n.x|replace('b','c')|length %}{% endfor %}done",
    ),
];

struct MixedLoad {
    server: Server,
    worker: Worker,
    honest: Registry,
    attacker: Registry,
    image: Image,
    /// The model's response to the honest client's prompt.
    response: Value,
    many_messages: Bytes,
    /// A registry that redirects its clients to an internal address.
    redirecting_registry: SocketAddr,
    /// The number of connections to the internal address.
    internal_connections: Arc<AtomicU64>,
}

/// An operation of an honest client: one request or several.
type Request = for<'a> fn(&'a MixedLoad) -> BoxFuture<'a, Result<(), String>>;
/// One round of an attack. An error means that the attack succeeded.
type Attack = for<'a> fn(&'a MixedLoad) -> BoxFuture<'a, Result<(), String>>;

const REQUESTS: [(&str, Request); 4] = [
    ("/healthz", |bench| Box::pin(health(bench))),
    ("pull", |bench| Box::pin(pull(bench))),
    ("push", |bench| Box::pin(push(bench))),
    ("/api/generate", |bench| Box::pin(generate(bench))),
];

/// Each attack: its name, the number of concurrent clients, and one round.
const ATTACKS: [(&str, usize, Attack); 7] = [
    ("bodies of 15 MB with 500,000 empty messages", 3, |bench| Box::pin(many_messages(bench))),
    ("chat templates that use all memory or time", 2, |bench| Box::pin(templates(bench))),
    ("schemas that take for ever to compile, abandoned after a second", 2, |bench| Box::pin(schemas(bench))),
    ("streams that are never read", 8, |bench| Box::pin(never_read(bench))),
    ("idle connections and requests that are never finished", 1, |bench| Box::pin(flood(bench))),
    ("pulls that are redirected to loopback addresses", 2, |bench| Box::pin(redirected_pulls(bench))),
    ("busy loops on another model", 3, |bench| Box::pin(busy_loop(bench))),
];

#[tokio::test(flavor = "multi_thread")]
async fn honest_requests_succeed_while_others_attack() {
    let seconds = env_number("LODE_HOSTILE_SECONDS", 30);
    let bench = Arc::new(MixedLoad::start().await);

    let idle = bench.memory();
    let before = honest_clients(&bench, Duration::from_secs((seconds / 5).max(3))).await;
    let at_rest = bench.memory();

    let (length, watched) = (Duration::from_secs(seconds), bench.clone());
    let watching = tokio::spawn(async move {
        let mut peak = Memory::default();
        let end = Instant::now() + length;
        while Instant::now() < end {
            peak.keep_peak(&watched.memory());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        peak
    });
    let (during, attacks) = tokio::join!(honest_clients(&bench, length), attackers(&bench, length));
    let peak = watching.await.unwrap();
    bench.honest.get("/healthz").await.expect(200);

    for (kind, calm) in &before {
        let busy = &during[kind];
        figure(
            &format!("mixed load of {seconds} s, honest {kind}"),
            &format!(
                "{} errors in {} requests; 99th percentile {:.1} ms, {:.1} ms on the idle server ({:.1} times); median {:.1} ms, {:.1} ms",
                busy.errors.len(),
                busy.times.len(),
                millis(busy.percentile(99)),
                millis(calm.percentile(99)),
                millis(busy.percentile(99)) / millis(calm.percentile(99)).max(0.001),
                millis(busy.percentile(50)),
                millis(calm.percentile(50)),
            ),
        );
    }
    figure(
        &format!("mixed load of {seconds} s, peak memory"),
        &format!("{}; idle {}; after the start {}", peak.shown(), at_rest.shown(), idle.shown()),
    );
    for (name, rounds, _) in &attacks {
        figure(&format!("mixed load of {seconds} s, rounds of the attack"), &format!("{name}: {rounds}"));
    }

    for (kind, honest) in before.iter().chain(&during) {
        assert!(honest.errors.is_empty(), "{kind}: {:#?}", &honest.errors[..honest.errors.len().min(5)]);
        assert!(!honest.times.is_empty(), "no {kind} request succeeded");
    }
    for (name, rounds, failures) in attacks {
        assert!(failures.is_empty(), "{name}: {:#?}", &failures[..failures.len().min(5)]);
        assert!(rounds > 0, "{name}: no round ran");
    }
    assert_eq!(
        bench.internal_connections.load(Ordering::Relaxed),
        0,
        "the server followed a registry's redirect to an internal address"
    );
    let above = peak.total().saturating_sub(at_rest.total());
    assert!(above < MEMORY_LIMIT, "{above} bytes above the idle server: {}", peak.shown());
}

impl MixedLoad {
    async fn start() -> MixedLoad {
        let folder = Folder::new();
        let token = "shared with the worker";
        let options =
            SETTINGS.iter().fold(Options::new().env("LODE_WORKER_TOKEN", token), |options, (name, value)| {
                options.env(name, *value)
            });
        let server = folder.start(options).await;
        let lode = server.lode();
        lode.create("demo", &demo(), &[]).await.expect_success();
        lode.create("busy", &demo(), &[]).await.expect_success();
        for (at, (name, template)) in TEMPLATES.iter().enumerate() {
            let path = folder.path().join(format!("templates-{at}"));
            with_template(&path, template);
            lode.create(name, &path, &[]).await.expect_success();
        }
        let worker = Worker::start_with(&server, token, &folder.path().join("cache"), &SETTINGS);
        wait_until("the worker has joined", || async { workers(&server).await == 1 }).await;

        let (honest, attacker) = (client(&server, None), client(&server, Some(ATTACKER.into())));
        let image = Image::random(fresh_seed(), 2, 300_000);
        image.push(&honest, "honest/image", "v1").await;
        let response = honest.post_json("/api/generate", &prompt("demo")).await.expect(200).json();
        attacker.post_json("/api/generate", &prompt("busy")).await.expect(200);

        let reached = Arc::new(AtomicU64::new(0));
        let internal = listen({
            let reached = reached.clone();
            move |stream| {
                reached.fetch_add(1, Ordering::Relaxed);
                Box::pin(respond(stream, "200 OK\r\ncontent-length: 8\r\n\r\nINTERNAL".to_owned()))
            }
        })
        .await;
        let turn = AtomicU64::new(0);
        let lure = listen(move |stream| {
            let head = match turn.fetch_add(1, Ordering::Relaxed) % 2 {
                0 => format!("307 Temporary Redirect\r\nlocation: http://{internal}/secret\r\n"),
                _ => format!(
                    "401 Unauthorized\r\nwww-authenticate: Bearer realm=\"http://{internal}/token\",service=\"x\"\r\n"
                ),
            };
            Box::pin(respond(stream, format!("{head}content-length: 0\r\n\r\n")))
        })
        .await;
        let many_messages = [
            br#"{"model":"demo","messages":["#.as_slice(),
            &br#"{"role":"user","content":""},"#.repeat(500_000),
            br#"{"role":"user","content":"x"}]}"#,
        ];
        let (many_messages, response) = (many_messages.concat().into(), response["response"].clone());
        MixedLoad {
            server,
            worker,
            honest,
            attacker,
            image,
            response,
            many_messages,
            redirecting_registry: lure,
            internal_connections: reached,
        }
    }

    /// The current memory of the server, the worker, its runners and their text helpers.
    fn memory(&self) -> Memory {
        let (server, worker) = (self.server.pid(), self.worker.pid());
        let mut memory = Memory::default();
        for (role, pid) in [("server", server), ("worker", worker)] {
            memory.add(role, pid);
            for child in descendants(pid) {
                memory.add(role_of(child), child);
            }
        }
        memory
    }
}

/// A client without a connection pool: each request opens a new connection.
fn client(server: &Server, from: Option<IpAddr>) -> Registry {
    let http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .local_address(from)
        .build()
        .expect("building an HTTP client does not fail");
    Registry { url: server.url(), http }
}

fn prompt(model: &str) -> Value {
    json!({"model": model, "prompt": "What is 40 plus 41?", "stream": false,
        "options": {"temperature": 0, "num_predict": 8}})
}

/// Writes the demo model with another chat template.
fn with_template(path: &Path, template: &str) {
    copy_folder(&demo(), path);
    let file = path.join("tokenizer_config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config["chat_template"] = template.into();
    fs::write(file, config.to_string()).unwrap();
}

// Honest clients.

/// The times and errors of one kind of honest request.
#[derive(Default)]
struct RequestStats {
    times: Vec<Duration>,
    errors: Vec<String>,
}

impl RequestStats {
    fn percentile(&self, percent: usize) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times
            .get((times.len() * percent / 100).min(times.len().saturating_sub(1)))
            .copied()
            .unwrap_or_default()
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Runs one client for each kind of request.
async fn honest_clients(bench: &MixedLoad, length: Duration) -> BTreeMap<&'static str, RequestStats> {
    let end = Instant::now() + length;
    join_all(REQUESTS.map(|(kind, request)| async move {
        let mut met = RequestStats::default();
        while Instant::now() < end {
            let started = Instant::now();
            match request(bench).await {
                Ok(()) => met.times.push(started.elapsed()),
                Err(error) => met.errors.push(format!("after {:?}: {error}", started.elapsed())),
            }
            tokio::time::sleep(PAUSE).await;
        }
        (kind, met)
    }))
    .await
    .into_iter()
    .collect()
}

async fn send(
    registry: &Registry,
    request: reqwest::RequestBuilder,
    status: u16,
) -> Result<Response, String> {
    match registry.try_send(request).await {
        Ok(response) if response.status == status => Ok(response),
        Ok(response) => Err(format!("{}: {}", response.status, response.text())),
        Err(error) => Err(format!("{error:?}")),
    }
}

async fn health(bench: &MixedLoad) -> Result<(), String> {
    send(&bench.honest, bench.honest.request("GET", "/healthz"), 200).await.map(drop)
}

async fn pull(bench: &MixedLoad) -> Result<(), String> {
    let get = |path: String| send(&bench.honest, bench.honest.request("GET", &path), 200);
    let manifest = get("/v2/honest/image/manifests/v1".to_owned()).await?;
    if manifest.body != bench.image.manifest {
        return Err("a different manifest".to_owned());
    }
    let layer = manifest.json()["layers"][0]["digest"].as_str().unwrap_or_default().to_owned();
    let blob = get(format!("/v2/honest/image/blobs/{layer}")).await?;
    match bench.image.blobs().any(|bytes| blob.body == bytes) {
        true => Ok(()),
        false => Err("different bytes".to_owned()),
    }
}

async fn push(bench: &MixedLoad) -> Result<(), String> {
    let (registry, image) = (&bench.honest, Image::random(fresh_seed(), 1, 50_000));
    for bytes in image.blobs() {
        let path = format!("/v2/honest/pushed/blobs/uploads/?digest={}", lode_tests::artifact::sha256(bytes));
        send(registry, registry.request("POST", &path).body(bytes.to_vec()), 201).await?;
    }
    let manifest = registry
        .request("PUT", "/v2/honest/pushed/manifests/latest")
        .header("content-type", lode_tests::oci::IMAGE_MANIFEST)
        .body(image.manifest.clone());
    send(registry, manifest, 201).await.map(drop)
}

async fn generate(bench: &MixedLoad) -> Result<(), String> {
    let request = bench.honest.request("POST", "/api/generate").body(prompt("demo").to_string());
    let response = send(&bench.honest, request, 200).await?;
    match response.json()["response"] == bench.response {
        true => Ok(()),
        false => Err(format!("a different response: {}", response.text())),
    }
}

// Attackers.

/// Runs all attacks concurrently. Returns the number of rounds and the failures of each.
async fn attackers(bench: &MixedLoad, length: Duration) -> Vec<(&'static str, u64, Vec<String>)> {
    let end = tokio::time::Instant::now() + length;
    join_all(ATTACKS.map(|(name, clients, attack)| async move {
        let (rounds, failures) = (AtomicU64::new(0), std::sync::Mutex::new(Vec::new()));
        join_all((0..clients).map(|_| async {
            let attacking = async {
                loop {
                    rounds.fetch_add(1, Ordering::Relaxed);
                    if let Err(failure) = attack(bench).await {
                        failures.lock().unwrap().push(failure);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            };
            // Rounds in progress at the end are abandoned.
            let _: Result<(), _> = tokio::time::timeout_at(end, attacking).await;
        }))
        .await;
        (name, rounds.into_inner(), failures.into_inner().unwrap())
    }))
    .await
}

/// Sends an attacker's request. Any response except 500 is fine, and so is a broken connection.
async fn attack_with(
    bench: &MixedLoad,
    path: &str,
    body: impl Into<reqwest::Body>,
) -> Result<Option<Response>, String> {
    let request = bench.attacker.request("POST", path).body(body);
    match tokio::time::timeout(ATTACKER_TIMEOUT, bench.attacker.try_send(request)).await {
        Ok(Ok(response)) if response.status == 500 => Err(format!("{path}: {}", response.text())),
        Ok(Ok(response)) => Ok(Some(response)),
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

async fn many_messages(bench: &MixedLoad) -> Result<(), String> {
    match attack_with(bench, "/api/chat", bench.many_messages.clone()).await? {
        Some(response) if response.status == 200 => Err("500,000 messages were accepted".to_owned()),
        _ => Ok(()),
    }
}

async fn templates(bench: &MixedLoad) -> Result<(), String> {
    for (model, _) in TEMPLATES {
        let body = json!({"model": model, "messages": [{"role": "user", "content": "x"}], "stream": false});
        if let Some(response) = attack_with(bench, "/api/chat", body.to_string()).await?
            && response.status == 200
        {
            return Err(format!("{model} was rendered"));
        }
    }
    Ok(())
}

async fn schemas(bench: &MixedLoad) -> Result<(), String> {
    for format in [
        json!({"type": "integer", "multipleOf": 999_983}),
        json!({"type": "string", "pattern": "^([ab]*a[ab]{12}|[bc]*c[bc]{12}){2,9}$"}),
    ] {
        let body = json!({"model": "demo", "prompt": "x", "format": format, "stream": false});
        let leaving = attack_with(bench, "/api/generate", body.to_string());
        if let Ok(left) = tokio::time::timeout(Duration::from_secs(1), leaving).await {
            left?;
        }
    }
    Ok(())
}

async fn never_read(bench: &MixedLoad) -> Result<(), String> {
    let endless =
        json!({"model": "demo", "prompt": "Tell.", "raw": true, "logprobs": true, "top_logprobs": 20,
        "options": {"num_predict": -1, "temperature": 1.0},
        "format": {"type": "array", "items": {"type": "string", "minLength": 30}, "minItems": 1_000_000}})
        .to_string();
    let Some(mut stream) = connect(bench, Some(2048)).await else { return Ok(()) };
    let (host, length) = (bench.server.address, endless.len());
    let head = format!("POST /api/generate HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n");
    if stream.write_all(head.as_bytes()).await.is_ok() && stream.write_all(endless.as_bytes()).await.is_ok() {
        tokio::time::sleep(ATTACKER_TIMEOUT).await;
    }
    Ok(())
}

async fn flood(bench: &MixedLoad) -> Result<(), String> {
    let mut held = Vec::new();
    for at in 0..300 {
        let Some(mut stream) = connect(bench, None).await else { continue };
        if at % 2 == 0 {
            let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: local").await;
        }
        held.push(stream);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    drop(held);
    Ok(())
}

async fn redirected_pulls(bench: &MixedLoad) -> Result<(), String> {
    let name = format!("http://{}/team/lure", bench.redirecting_registry);
    let body = json!({"model": name, "insecure": true, "stream": false});
    match attack_with(bench, "/api/pull", body.to_string()).await? {
        Some(response) if response.status == 200 || response.text().contains("INTERNAL") => {
            Err(format!("{}: {}", response.status, response.text()))
        }
        _ => Ok(()),
    }
}

async fn busy_loop(bench: &MixedLoad) -> Result<(), String> {
    let body = json!({"model": "busy", "prompt": "Tell.", "raw": true, "stream": false,
        "options": {"num_predict": 200, "temperature": 1.0}, "format": {"type": "string", "minLength": 100_000}});
    attack_with(bench, "/api/generate", body.to_string()).await.map(drop)
}

/// A connection from the attackers' address, or `None` if the server or this process is out of connections.
async fn connect(bench: &MixedLoad, receive_buffer: Option<u32>) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind(SocketAddr::from((ATTACKER, 0))).ok()?;
    if let Some(bytes) = receive_buffer {
        socket.set_recv_buffer_size(bytes).ok()?;
    }
    let connecting = tokio::time::timeout(ATTACKER_TIMEOUT, socket.connect(bench.server.address));
    connecting.await.ok()?.ok()
}

/// Listens on a loopback port and responds to connections until the test ends.
async fn listen(handler: impl Fn(TcpStream) -> BoxFuture<'static, ()> + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(handler(stream));
        }
    });
    address
}

async fn respond(mut stream: TcpStream, response: String) {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(n) if n > 0 => head.extend_from_slice(&buffer[..n]),
            _ => return,
        }
    }
    let response = format!("HTTP/1.1 {}", response.replacen("\r\n", "\r\nconnection: close\r\n", 1));
    let _ = stream.write_all(response.as_bytes()).await;
}

// Memory.

/// Memory by role, in bytes. The processes run one program, whose pages the resident size would count in each
/// of them, so it is the proportional set size.
#[derive(Clone, Default)]
struct Memory(BTreeMap<&'static str, u64>);

impl Memory {
    fn add(&mut self, role: &'static str, pid: u32) {
        *self.0.entry(role).or_default() += proportional_bytes(pid);
        let total: u64 = self.0.iter().filter(|(role, _)| **role != "all").map(|(_, bytes)| bytes).sum();
        self.0.insert("all", total);
    }

    /// Keeps the larger value of each role.
    fn keep_peak(&mut self, now: &Memory) {
        for (role, bytes) in &now.0 {
            let peak = self.0.entry(role).or_default();
            *peak = (*peak).max(*bytes);
        }
    }

    /// The sum over all processes.
    fn total(&self) -> u64 {
        self.0.get("all").copied().unwrap_or_default()
    }

    fn shown(&self) -> String {
        let role = |(role, bytes): (&&str, &u64)| format!("{role} {} MiB", bytes >> 20);
        self.0.iter().map(role).collect::<Vec<_>>().join(", ")
    }
}
