//! Restarts under load, without one failed request: two replicas behind nginx, workers, and a single server on a
//! socket of its service manager. The clients do not retry. LODE_ROLLING_RESTARTS sets the number of restarts.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use lode_tests::artifact::{Image, fresh_seed, random_bytes, sha256};
use lode_tests::checkpoint::demo;
use lode_tests::clients;
use lode_tests::cluster::Cluster;
use lode_tests::command::wait_until;
use lode_tests::oci::{IMAGE_MANIFEST, Registry, Response, with_query};
use lode_tests::report::{env_number, figure};
use lode_tests::server::{Folder, Options, output_file};
use lode_tests::services::Backends;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::attached_worker::Worker;

const TOKEN: &str = "shared with the workers";

/// nginx in front of two replicas. Dropping it ends nginx.
struct Nginx {
    child: Child,
    url: String,
}

impl Nginx {
    /// Starts nginx with this content of its `http` block, in which `LISTEN` is replaced with its address.
    async fn start(program: &Path, folder: &Path, http: &str) -> Nginx {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {}/{kind};\n", folder.display()))
            .concat();
        let config = format!(
            "daemon off;\nerror_log {0}/nginx-error.log;\npid {0}/nginx.pid;\n{1}worker_processes 1;\nevents {{}}\n\
             http {{\naccess_log off;\n{temporary}{2}\n}}\n",
            folder.display(),
            if is_root() { "user root;\n" } else { "" },
            http.replace("LISTEN", &address),
        );
        let file = folder.join("nginx.conf");
        std::fs::write(&file, config).unwrap();
        let (stdout, stderr) = output_file(&folder.join("nginx.log"));
        let mut command = Command::new(program);
        command.arg("-p").arg(folder).arg("-c").arg(&file).stdout(stdout).stderr(stderr);
        let child = command.spawn().unwrap();
        wait_until("nginx listens", || async { std::net::TcpStream::connect(&address).is_ok() }).await;
        Nginx { child, url: format!("http://{address}") }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SIGQUIT and SIGTERM end its workers, too.
        lode_tests::server::signal(self.child.id(), libc::SIGTERM);
        let _ = self.child.wait();
    }
}

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata) == 0)
}

/// A client that opens a connection for each request, or keeps connections.
fn client(url: &str, keeps_connections: bool) -> Registry {
    let http = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(if keeps_connections { 8 } else { 0 })
        .build()
        .unwrap();
    Registry { url: url.to_owned(), http }
}

/// Sends a request once. Any failure and any other status is an error.
async fn expect(
    registry: &Registry,
    request: reqwest::RequestBuilder,
    status: u16,
) -> Result<Response, String> {
    let response = registry.try_send(request).await.map_err(|error| format!("{error:?}"))?;
    match response.status == status {
        true => Ok(response),
        false => Err(format!("status {} instead of {status}: {}", response.status, response.text())),
    }
}

async fn push(registry: &Registry) -> Result<(), String> {
    let image = Image::random(fresh_seed(), 2, 300_000);
    for blob in image.blobs() {
        let open = registry.request("POST", "/v2/rolling/push/blobs/uploads/");
        let location = expect(registry, open, 202).await?.header("location").unwrap().to_owned();
        let append = registry.request("PATCH", &location).body(blob.to_vec());
        let location = expect(registry, append, 202).await?.header("location").unwrap().to_owned();
        let finish = registry.request("PUT", &with_query(&location, "digest", &sha256(blob)));
        expect(registry, finish, 201).await?;
    }
    let path = format!("/v2/rolling/push/manifests/{}", image.digest());
    let put = registry.request("PUT", &path).header("content-type", IMAGE_MANIFEST);
    expect(registry, put.body(image.manifest.clone()), 201).await.map(drop)
}

async fn pull(registry: &Registry) -> Result<(), String> {
    let manifest =
        expect(registry, registry.request("GET", "/v2/rolling/pull/manifests/v1"), 200).await?.json();
    for layer in manifest["layers"].as_array().unwrap() {
        let digest = layer["digest"].as_str().unwrap();
        let path = format!("/v2/rolling/pull/blobs/{digest}");
        let blob = expect(registry, registry.request("GET", &path), 200).await?;
        if sha256(&blob.body) != digest {
            return Err(format!("{digest}: {} other bytes", blob.body.len()));
        }
    }
    Ok(())
}

fn prompt(num_predict: u32) -> Value {
    json!({"model": "demo", "prompt": "What is 40 plus 41?", "stream": true,
        "options": {"temperature": 0, "num_predict": num_predict}})
}

async fn generate(registry: &Registry) -> Result<(), String> {
    let request = registry.request("POST", "/api/generate").json(&prompt(24));
    let response = expect(registry, request, 200).await?;
    match response.text().lines().last() {
        Some(last) if last.contains("\"done\":true") => Ok(()),
        last => Err(format!("the response ends with {last:?}")),
    }
}

/// What a client repeats: one request or several.
type Operation = for<'a> fn(&'a Registry) -> BoxFuture<'a, Result<(), String>>;

/// How many operations a client attempted, and their errors.
type Outcome = (usize, Vec<String>);

/// Clients that push, pull and generate until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<(&'static str, JoinHandle<Outcome>)>,
}

impl Load {
    fn start(url: &str, generates: bool) -> Load {
        let mut load = Load { stop: Arc::default(), clients: Vec::new() };
        for keeps_connections in [false, true] {
            load.add("pushes", client(url, keeps_connections), |registry| Box::pin(push(registry)));
            load.add("pulls", client(url, keeps_connections), |registry| Box::pin(pull(registry)));
            if generates {
                load.add("generations", client(url, keeps_connections), |registry| {
                    Box::pin(generate(registry))
                });
            }
        }
        load
    }

    fn add(&mut self, kind: &'static str, registry: Registry, operation: Operation) {
        let stop = self.stop.clone();
        let client = tokio::spawn(async move {
            let (begin, mut count, mut errors) = (Instant::now(), 0, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                count += 1;
                if let Err(error) = operation(&registry).await {
                    errors.push(format!("after {:.1?}: {error}", begin.elapsed()));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (count, errors)
        });
        self.clients.push((kind, client));
    }

    /// Stops the clients, reports their figures, and checks that nothing failed.
    async fn finish(self, name: &str) {
        self.stop.store(true, Ordering::Relaxed);
        let (mut counts, mut errors) = (std::collections::BTreeMap::new(), Vec::new());
        for (kind, client) in self.clients {
            let (count, failed) = client.await.unwrap();
            *counts.entry(kind).or_insert(0) += count;
            errors.extend(failed.into_iter().map(|error| format!("{kind} {error}")));
        }
        figure(name, &format!("{} failed of {counts:?}", errors.len()));
        assert!(
            errors.is_empty(),
            "{} of {counts:?} failed: {:#?}",
            errors.len(),
            &errors[..errors.len().min(8)]
        );
        // How many depends on the machine.
        assert!(counts.values().all(|count| *count > 2), "{counts:?}");
    }
}

/// Two replicas, and the model and the image that the load uses.
async fn two_replicas(test: &str, drain_delay: &str) -> Option<Cluster> {
    let backing = Backends::shared(test)?;
    let options = Options::new()
        .env("LODE_WORKER_TOKEN", TOKEN)
        .env("LODE_DRAIN_DELAY", drain_delay)
        .env("LODE_REDIRECT", "false");
    let cluster = Cluster::start(2, &backing, options).await;
    cluster.lode(0).create("demo", &demo(), &[]).await.expect_success();
    Image::random(fresh_seed(), 3, 500_000).push(&cluster.registry(0), "rolling/pull", "v1").await;
    Some(cluster)
}

async fn wait_for_workers(registry: &Registry, count: usize) {
    wait_until("the workers have joined", || async {
        let listed = registry.get("/lode/v1/workers").await.expect(200).json();
        listed["workers"].as_array().unwrap().len() == count
    })
    .await;
    registry.post_json("/api/generate", &prompt(1)).await.expect(200);
}

/// Restarts the replicas in turn under load, `pause` after each other.
async fn restart_in_turn(name: &str, cluster: &mut Cluster, url: &str, pause: Duration) {
    let load = Load::start(url, true);
    for restart in 0..env_number("LODE_ROLLING_RESTARTS", 2) as usize {
        tokio::time::sleep(pause).await;
        let replica = restart % 2;
        cluster.stop(replica).await;
        cluster.restart(replica).await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    load.finish(name).await;
}

fn upstream(cluster: &Cluster, setting: &str) -> String {
    let servers: Vec<_> = cluster.addresses().iter().map(|a| format!("server {a}{setting};")).collect();
    servers.join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn nginx_with_its_defaults_loses_no_request() {
    const TEST: &str = "rolling::nginx_with_its_defaults";
    let Some(program) = clients::nginx(TEST) else { return };
    let Some(mut cluster) = two_replicas(TEST, "5s").await else { return };
    let folder = Folder::new();
    let config = format!(
        "client_max_body_size 0;\nupstream lode {{ {} }}\n\
         server {{ listen LISTEN; location / {{ proxy_pass http://lode; proxy_set_header Host $http_host; }} }}",
        upstream(&cluster, "")
    );
    let nginx = Nginx::start(&program, folder.path(), &config).await;
    let _worker = Worker::join(&nginx.url, TOKEN, &folder.path().join("cache"), &[]);
    wait_for_workers(&cluster.registry(0), 1).await;
    restart_in_turn("rolling restarts, nginx's defaults", &mut cluster, &nginx.url, Duration::from_secs(7))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_nginx_configuration_loses_no_request() {
    const TEST: &str = "rolling::the_documented_nginx_configuration";
    let Some(program) = clients::nginx(TEST) else { return };
    let Some(mut cluster) = two_replicas(TEST, "1s").await else { return };
    let folder = Folder::new();
    let config = include_str!("../../deploy/nginx.conf");
    let addresses = ["10.0.0.1:5000", "10.0.0.2:5000"].into_iter().zip(cluster.addresses());
    let config =
        addresses.fold(config.replace("listen 80;", "listen LISTEN;"), |config, (example, address)| {
            assert!(config.contains(example));
            config.replace(example, &address.to_string())
        });
    let nginx = Nginx::start(&program, folder.path(), &config).await;
    let _worker = Worker::join(&nginx.url, TOKEN, &folder.path().join("cache"), &[]);
    wait_for_workers(&cluster.registry(0), 1).await;
    restart_in_turn(
        "rolling restarts, the documented nginx configuration",
        &mut cluster,
        &nginx.url,
        Duration::from_secs(1),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_restart_without_a_failed_generation() {
    let folder = Folder::new();
    let server = folder.start(Options::new().env("LODE_WORKER_TOKEN", TOKEN)).await;
    server.lode().create("demo", &demo(), &[]).await.expect_success();
    let start = |n: usize| Worker::join(&server.url(), TOKEN, &folder.path().join(format!("cache-{n}")), &[]);
    let mut workers = [start(0), start(1)];
    wait_for_workers(&server.registry(), 2).await;
    let mut load = Load { stop: Arc::default(), clients: Vec::new() };
    for _ in 0..3 {
        load.add("generations", client(&server.url(), false), |registry| Box::pin(generate(registry)));
    }
    for restart in 0..env_number("LODE_ROLLING_RESTARTS", 2) as usize {
        workers[restart % 2].stop().await;
        workers[restart % 2] = start(restart % 2);
        wait_for_workers(&server.registry(), 2).await;
    }
    load.finish("rolling restarts of workers").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_a_passed_socket_restarts_without_a_refused_connection() {
    let socket = Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let address: SocketAddr = socket.local_addr().unwrap();
    let folder = Folder::new();
    // The address in the settings is not used. The delay lets clients with open connections open new ones.
    let options = Options::new().worker().socket(&socket).listen("127.0.0.1:1").env("LODE_DRAIN_DELAY", "1s");
    let mut server = folder.start(options.clone()).await;
    assert_eq!(server.address, address);
    server.lode().create("demo", &demo(), &[]).await.expect_success();
    Image::random(fresh_seed(), 3, 500_000).push(&server.registry(), "rolling/pull", "v1").await;

    let load = Load::start(&server.url(), true);
    for _ in 0..env_number("LODE_ROLLING_RESTARTS", 2) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(server.stop().await.success());
        server = folder.start(options.clone()).await;
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    load.finish("restarts of a single server on a passed socket").await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_server_is_not_ready_and_still_serves() {
    let folder = Folder::new();
    let mut server = folder.start(Options::new().env("LODE_DRAIN_DELAY", "3s")).await;
    let registry = client(&server.url(), true);
    let bytes = random_bytes(fresh_seed(), 100_000);
    let digest = registry.blob_push("team/drain", &bytes).await;
    let response = registry.get("/readyz").await.expect(200);
    assert_eq!(response.header("connection"), None);
    server.terminate();
    wait_until("the server is not ready", || async { registry.get("/readyz").await.status == 503 }).await;
    let response = registry.get("/readyz").await.expect(503);
    assert_eq!(response.json()["missing"], json!(["the server is stopping"]));
    assert_eq!(response.header("connection"), Some("close"));
    // Over new connections and over HTTP/2, too, whose connections are replaced.
    let http2 = reqwest::Client::builder().no_proxy().http2_prior_knowledge().build().unwrap();
    for registry in [&client(&server.url(), false), &Registry { url: server.url(), http: http2 }] {
        for _ in 0..3 {
            assert!(registry.blob_get("team/drain", &digest).await.expect(200).body == bytes);
        }
    }
    assert!(server.try_wait().is_none(), "the server has not ended before its delay");
    assert!(server.wait_end().await.success());
}

/// Types of frames of HTTP/2 (RFC 9113, section 6).
const HEADERS: u8 = 1;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;

/// A connection of HTTP/2 whose frames a test sees.
struct Http2(TcpStream);

impl Http2 {
    async fn connect(address: SocketAddr) -> Http2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut connection = Http2(stream);
        let settings = 4;
        connection.send((settings, 0, 0), b"").await;
        connection
    }

    async fn send(&mut self, (kind, flags, stream): (u8, u8, u32), payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).await.unwrap();
    }

    /// Sends `GET /healthz` as this stream.
    async fn request(&mut self, stream: u32) {
        // Entries of the static table, and a path and an authority as they are (RFC 7541, section 6 and appendix A).
        let fields = b"\x82\x86\x44\x08/healthz\x41\x09localhost";
        let end_of_stream_and_headers = 0x5;
        self.send((HEADERS, end_of_stream_and_headers, stream), fields).await;
    }

    /// Reads frames up to one of this type; returns its stream and its content. `None`: the connection is closed.
    async fn read_until(&mut self, kind: u8) -> Option<(u32, Vec<u8>)> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            let [high, middle, low, found, flags, stream @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            if found == PING && flags & ACK == 0 {
                self.send((PING, ACK, 0), &payload).await;
            }
            if found == kind {
                return Some((u32::from_be_bytes(stream), payload));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn http2_connections_are_replaced_without_losing_a_request() {
    let folder = Folder::new();
    let mut server = folder.start(Options::new().env("LODE_DRAIN_DELAY", "3s")).await;
    let mut connection = Http2::connect(server.address).await;
    connection.request(1).await;
    assert_eq!(connection.read_until(HEADERS).await.expect("a response").0, 1);
    let begun = Instant::now();
    server.terminate();
    let (_, payload) = connection.read_until(GOAWAY).await.expect("GOAWAY");
    assert!(begun.elapsed() < Duration::from_secs(2), "before the listener closes");
    // The last stream that the server handles, and the reason, which is none.
    assert_eq!(payload[..8], [0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    // A request that was in transit has a response.
    connection.request(3).await;
    assert_eq!(connection.read_until(HEADERS).await.expect("a response").0, 3);
    let (_, payload) = connection.read_until(GOAWAY).await.expect("GOAWAY");
    assert_eq!(payload[..8], [0, 0, 0, 3, 0, 0, 0, 0]);
    assert_eq!(connection.read_until(GOAWAY).await, None, "the connection is closed");
    assert!(server.try_wait().is_none(), "the server has not ended before its delay");
    assert!(server.wait_end().await.success());
}
