//! Several workers behind one server: which worker gets a request, and what happens to requests when a worker
//! or a runner is killed, a worker is drained or reserved for models, or many chats are cancelled at random.
//! LODE_CHAT_SECONDS sets the duration of the chats: 15 by default, 600 with `tests/run --long`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use lode_tests::checkpoint::demo;
use lode_tests::command::wait_until;
use lode_tests::oci::Registry;
use lode_tests::process::{descendants, proportional_bytes, runners};
use lode_tests::report::{env_number, figure};
use lode_tests::server::{Folder, Options, Server, signal};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::attached_worker::{Worker, workers};

const TOKEN: &str = "shared with the workers";
/// The deadline of each request under load.
const DEADLINE: Duration = Duration::from_secs(60);

/// A server with the demo model, and workers in processes of their own.
struct Nodes {
    folder: Folder,
    server: Server,
    workers: Vec<Worker>,
    settings: Vec<(&'static str, &'static str)>,
}

impl Nodes {
    async fn start(count: usize, settings: &[(&'static str, &'static str)]) -> Nodes {
        Nodes::start_with(Options::new(), count, settings).await
    }

    async fn start_with(server: Options, count: usize, settings: &[(&'static str, &'static str)]) -> Nodes {
        let folder = Folder::new();
        let server = folder.start(server.env("LODE_WORKER_TOKEN", TOKEN)).await;
        server.lode().create("demo", &demo(), &[]).await.expect_success();
        let mut nodes = Nodes { folder, server, workers: Vec::new(), settings: settings.to_vec() };
        for _ in 0..count {
            nodes.join(nodes.workers.len());
        }
        nodes.wait_for(count).await;
        nodes
    }

    fn cache(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("cache-{number}"))
    }

    /// Starts another worker with this cache.
    fn join(&mut self, number: usize) {
        let worker = Worker::join(&self.server.url(), TOKEN, &self.cache(number), &self.settings);
        self.workers.push(worker);
    }

    async fn wait_for(&self, count: usize) {
        wait_until("the workers have joined", || async { workers(&self.server).await == count }).await;
    }

    /// Creates a model with the tensors of the demo model and another system prompt.
    async fn derive(&self, name: &str, system: &str) {
        let modelfile = self.folder.path().join("Modelfile");
        fs::write(&modelfile, format!("FROM demo\nSYSTEM {system}\n")).unwrap();
        self.server.lode().create(name, &modelfile, &[]).await.expect_success();
    }

    fn registry(&self) -> Registry {
        self.server.registry()
    }

    /// The workers as the server lists them.
    async fn listed(&self) -> Vec<Value> {
        self.registry().get("/lode/v1/workers").await.expect(200).json()["workers"]
            .as_array()
            .unwrap()
            .clone()
    }

    async fn wait_until_loaded(&self, count: usize) {
        wait_until("the model is loaded", || async {
            let loaded = |worker: &&Value| !worker["loaded"].as_array().unwrap().is_empty();
            self.listed().await.iter().filter(loaded).count() == count
        })
        .await;
    }

    /// Proportional set size of the server, the workers and their descendants.
    fn memory(&self) -> u64 {
        let roots = self.workers.iter().map(Worker::pid).chain([self.server.pid()]);
        roots.flat_map(|pid| descendants(pid).into_iter().chain([pid])).map(proportional_bytes).sum()
    }
}

fn body(prompt: &str, num_predict: usize, stream: bool) -> Value {
    json!({"model": "demo", "prompt": prompt, "raw": true, "stream": stream,
        "options": {"temperature": 0, "num_predict": num_predict}})
}

/// How a generation ended.
#[derive(Debug, PartialEq)]
enum End {
    Complete(String),
    /// The response began, and ended with an error.
    Interrupted(String),
    /// It did not begin.
    Failed(String),
}

/// Sends one generation without repeating it.
async fn generate(registry: &Registry, body: &Value) -> End {
    match registry.request("POST", "/api/generate").json(body).timeout(DEADLINE).send().await {
        Ok(response) => read(response).await,
        Err(error) => End::Failed(format!("{error:?}")),
    }
}

async fn read(response: reqwest::Response) -> End {
    let status = response.status();
    let text = match response.text().await {
        Ok(text) if status == 200 => text,
        Ok(text) => return End::Failed(format!("{status}: {text}")),
        Err(error) => return End::Interrupted(format!("{error:?}")),
    };
    let records: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    match records.last() {
        Some(last) if last["done"] == true => {
            End::Complete(records.iter().filter_map(|record| record["response"].as_str()).collect())
        }
        last => End::Interrupted(format!("{last:?}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_under_load_one_killed_and_one_drained() {
    let mut nodes = Nodes::start(3, &[]).await;
    let registry = nodes.registry();
    let prompt = "Water is";
    let End::Complete(expected) = generate(&registry, &body(prompt, 40, false)).await else {
        panic!("the first request fails")
    };
    let stop = Arc::new(AtomicBool::new(false));
    let in_progress = Arc::new(AtomicUsize::new(0));
    let clients: Vec<_> = (0..12)
        .map(|client| {
            let (registry, stop, in_progress) = (registry.clone(), stop.clone(), in_progress.clone());
            let (expected, body) = (expected.clone(), body(prompt, 40, client % 2 == 0));
            tokio::spawn(async move {
                let mut ends = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    in_progress.fetch_add(1, Ordering::Relaxed);
                    let (begun, end) = (Instant::now(), generate(&registry, &body).await);
                    in_progress.fetch_sub(1, Ordering::Relaxed);
                    if let End::Complete(text) = &end {
                        assert_eq!(*text, expected);
                    }
                    ends.push((begun, body["stream"] == true, end));
                }
                ends
            })
        })
        .collect();

    tokio::time::sleep(Duration::from_secs(2)).await;
    let busiest = nodes.listed().await;
    let busiest = busiest.iter().position(|worker| worker["loaded"].as_array().unwrap().len() == 1);
    // Workers are listed in the order of their registrations; any of them may have been first.
    let killed = nodes.workers.remove(busiest.unwrap_or(0));
    signal(killed.pid(), libc::SIGKILL);
    let killed_at = Instant::now();
    let begun = in_progress.load(Ordering::Relaxed);
    nodes.wait_for(2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    let id = nodes.listed().await[0]["id"].as_str().unwrap().to_owned();
    let drain = registry.request("PUT", &format!("/lode/v1/workers/{id}/drain"));
    registry.send(drain).await.expect(204);
    let drained_at = Instant::now();
    tokio::time::sleep(Duration::from_secs(3)).await;
    stop.store(true, Ordering::Relaxed);

    let (mut complete, mut interrupted) = (0, 0);
    for (at, is_stream, end) in join_all(clients).await.into_iter().flat_map(Result::unwrap) {
        match end {
            End::Complete(_) => complete += 1,
            End::Interrupted(_) if is_stream && at <= killed_at => interrupted += 1,
            end => panic!("a request of {:?} before the kill: {end:?}", killed_at.checked_duration_since(at)),
        }
        assert!(at.elapsed() < DEADLINE + drained_at.elapsed());
    }
    figure(
        "three nodes, one killed and one drained",
        &format!("{complete} complete, {interrupted} of {begun} in progress interrupted, 0 failed"),
    );
    assert!(interrupted <= begun && complete > 20, "{complete} {interrupted}");
}

/// Starts two workers that both have the model loaded: one runs as many requests as it can at the same time,
/// and the other, which has the model in its cache, takes the next one.
async fn start_two_loaded(parallel: &'static str) -> Nodes {
    let mut nodes = Nodes::start(1, &[("LODE_NUM_PARALLEL", parallel), ("LODE_KEEP_ALIVE", "-1")]).await;
    let registry = nodes.registry();
    assert!(matches!(generate(&registry, &body("Water is", 1, false)).await, End::Complete(_)));
    nodes.workers[0].stop().await;
    nodes.workers.clear();
    nodes.join(1);
    nodes.wait_for(1).await;
    assert!(matches!(generate(&registry, &body("Water is", 1, false)).await, End::Complete(_)));
    nodes.wait_until_loaded(1).await;
    nodes.join(0);
    wait_until("both have the model on disk", || async {
        let cached = |worker: &&Value| !worker["cached"].as_array().unwrap().is_empty();
        nodes.listed().await.iter().filter(cached).count() == 2
    })
    .await;

    let long: Vec<_> = (0..parallel.parse().unwrap())
        .map(|number| {
            let body = body(&format!("{number} Water is"), 400, true);
            registry.request("POST", "/api/generate").json(&body).send()
        })
        .collect();
    // Their responses have begun.
    let long: Vec<_> = join_all(long).await.into_iter().map(Result::unwrap).collect();
    assert!(matches!(generate(&registry, &body("Fire is", 1, false)).await, End::Complete(_)));
    nodes.wait_until_loaded(2).await;
    for end in join_all(long.into_iter().map(read)).await {
        assert!(matches!(end, End::Complete(_)));
    }
    nodes
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_model_is_loaded_by_an_idle_worker_and_conversations_stay_on_theirs() {
    let nodes = start_two_loaded("4").await;
    let registry = nodes.registry();
    // Every turn but the first finds the whole earlier prompt in the cache of its worker.
    let (mut turns, mut found) = (0, 0);
    let mut conversations: Vec<(Vec<Value>, u64)> = (0..4)
        .map(|number| {
            let start = format!("Conversation {number}: what is {number} plus 41?");
            (vec![json!({"role": "user", "content": start})], 0)
        })
        .collect();
    for turn in 0..4 {
        for (messages, earlier) in &mut conversations {
            let chat = json!({"model": "demo", "messages": messages, "stream": false,
                "options": {"temperature": 0, "num_predict": 8}});
            let reply = registry.post_json("/api/chat", &chat).await.expect(200).json();
            if turn > 0 {
                turns += 1;
                found += usize::from(reply["prompt_cached_count"].as_u64().unwrap_or(0) >= *earlier);
            }
            *earlier = reply["prompt_eval_count"].as_u64().unwrap();
            messages.push(reply["message"].clone());
            messages.push(json!({"role": "user", "content": format!("And {turn} plus 5?")}));
        }
    }
    figure("turns that found their conversation in the worker's cache", &format!("{found} of {turns}"));
    assert_eq!(found, turns);
}

/// Of a client with many requests, few are completed while another client's single request waits. The same holds for
/// a single request of the same client, if the many are less urgent.
#[tokio::test(flavor = "multi_thread")]
async fn one_client_with_many_requests_delays_others_little() {
    const MANY: usize = 200;
    const SINGLE: usize = 5;
    let server = Options::new().env("LODE_TRUSTED_PROXY", "127.0.0.1");
    let nodes = Nodes::start_with(server, 2, &[("LODE_NUM_PARALLEL", "2")]).await;
    let registry = nodes.registry();
    let send = |headers: [(&'static str, &'static str); 2], prompt: String| {
        let request =
            registry.request("POST", "/api/generate").json(&body(&prompt, 8, false)).timeout(DEADLINE);
        let request = headers.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        async move { read(request.send().await.unwrap()).await }
    };
    let (usual, batch) = (("priority", "u=3"), ("priority", "u=7"));
    let (one, other) = (("x-forwarded-for", "192.0.2.1"), ("x-forwarded-for", "192.0.2.2"));
    for (what, of_many, of_single) in [
        ("another client", [one, usual], [other, usual]),
        ("the same client, more urgent", [one, batch], [one, usual]),
    ] {
        let completed = Arc::new(AtomicUsize::new(0));
        let many: Vec<_> = (0..MANY)
            .map(|number| {
                let (request, completed) = (send(of_many, format!("{number} Water is")), completed.clone());
                tokio::spawn(async move {
                    let end = request.await;
                    completed.fetch_add(1, Ordering::SeqCst);
                    end
                })
            })
            .collect();
        wait_until("some are completed", || async { completed.load(Ordering::SeqCst) >= 8 }).await;
        let mut meanwhile = Vec::new();
        for number in 0..SINGLE {
            let before = completed.load(Ordering::SeqCst);
            let end = send(of_single, format!("{number} Fire is")).await;
            meanwhile.push(completed.load(Ordering::SeqCst) - before);
            assert!(matches!(end, End::Complete(_)), "{end:?}");
        }
        for end in join_all(many).await {
            let end = end.unwrap();
            assert!(matches!(end, End::Complete(_)), "{end:?}");
        }
        // Not the mean: while a busy machine lets this test's own task wait, others are completed.
        meanwhile.sort_unstable();
        let median = meanwhile[SINGLE / 2];
        figure(
            &format!("of {MANY} waiting requests, completed while one of {what} waited"),
            &format!("{median}, with four places"),
        );
        // A turn of each place, and what is in progress: without turns it would be all of them.
        assert!(median <= 12, "{what}: {meanwhile:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_runner_fails_no_request_that_had_no_response_yet() {
    let server = Folder::new().start(Options::new().worker()).await;
    server.lode().create("demo", &demo(), &[]).await.expect_success();
    let registry = server.registry();
    let whole = body("Water is", 400, false);
    let End::Complete(expected) = generate(&registry, &whole).await else {
        panic!("the first request fails")
    };
    let requests: Vec<_> = (0..3)
        .map(|_| {
            let (registry, whole) = (registry.clone(), whole.clone());
            tokio::spawn(async move { generate(&registry, &whole).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(requests.iter().all(|request| !request.is_finished()), "the requests are in progress");
    for runner in runners(server.pid()) {
        signal(runner, libc::SIGKILL);
    }
    for end in join_all(requests).await {
        assert_eq!(end.unwrap(), End::Complete(expected.clone()));
    }
}

/// A prompt of the chats with the number of tokens to generate.
type Case = (&'static str, usize);

const PROMPTS: [&str; 6] = [
    "Water is",
    "In the beginning God created the heaven and the earth.",
    "What is 40 plus 41?",
    "Alice was beginning to get very tired of sitting by her sister on the bank",
    "a",
    "Call me Ishmael. Some years ago, never mind how long precisely",
];
const LENGTHS: [usize; 3] = [3, 17, 60];

/// Two workers, one model: 64 clients with random lengths, cancellations and keep-alives, while runners are
/// killed. Every response equals the one of a single request.
#[tokio::test(flavor = "multi_thread")]
async fn many_chats_with_random_cancellations() {
    let nodes = Nodes::start(2, &[("LODE_KV_CACHE_TYPE", "f32")]).await;
    let registry = nodes.registry();
    let mut expected: BTreeMap<Case, String> = BTreeMap::new();
    for case @ (prompt, length) in PROMPTS.into_iter().flat_map(|p| LENGTHS.map(|n| (p, n))) {
        match generate(&registry, &body(prompt, length, false)).await {
            End::Complete(text) => expected.insert(case, text),
            end => panic!("{case:?}: {end:?}"),
        };
    }
    let expected = Arc::new(expected);
    let length = Duration::from_secs(env_number("LODE_CHAT_SECONDS", 15));
    let begin = Instant::now();
    // When a runner was killed, at the latest.
    let kills = Arc::new(std::sync::Mutex::new(Vec::<Instant>::new()));
    let clients: Vec<_> = (0..64)
        .map(|seed| {
            let (registry, expected) = (registry.clone(), expected.clone());
            tokio::spawn(async move {
                let mut random = StdRng::seed_from_u64(seed);
                let mut interrupted = Vec::new();
                let (mut complete, mut cancelled, mut busy) = (0, 0, 0);
                let cases: Vec<_> = expected.keys().copied().collect();
                while begin.elapsed() < length {
                    let case = *cases.choose(&mut random).unwrap();
                    let mut body = body(case.0, case.1, random.random_bool(0.7));
                    body["keep_alive"] = [json!("5m"), json!(-1), json!("1s"), json!(0)]
                        .choose_weighted(&mut random, |alive| if *alive == json!(0) { 1 } else { 20 })
                        .unwrap()
                        .clone();
                    let started = Instant::now();
                    let request = generate(&registry, &body);
                    if random.random_bool(0.2) {
                        let timeout = Duration::from_millis(random.random_range(0..400));
                        if tokio::time::timeout(timeout, request).await.is_err() {
                            cancelled += 1;
                        }
                        continue;
                    }
                    match request.await {
                        End::Complete(text) => {
                            assert_eq!(text, expected[&case], "{case:?}");
                            complete += 1;
                        }
                        End::Interrupted(_) if body["stream"] == true => {
                            interrupted.push((started, Instant::now()));
                        }
                        End::Failed(error) if error.starts_with("503") => busy += 1,
                        end => panic!("{case:?} after {:?}: {end:?}", started.elapsed()),
                    }
                }
                (complete, cancelled, busy, interrupted)
            })
        })
        .collect();

    let mut memory = Vec::new();
    let mut next_kill = length.min(Duration::from_secs(120)) / 2;
    while begin.elapsed() < length {
        tokio::time::sleep(Duration::from_secs(1)).await;
        memory.push(nodes.memory());
        if begin.elapsed() >= next_kill {
            next_kill += Duration::from_secs(60);
            let victims = nodes.workers.iter().flat_map(|worker| runners(worker.pid())).take(1);
            victims.for_each(|runner| signal(runner, libc::SIGKILL));
            kills.lock().unwrap().push(Instant::now());
        }
    }
    let (mut complete, mut cancelled, mut busy, mut interrupted) = (0, 0, 0, 0);
    for outcome in join_all(clients).await {
        let (completed, left, refused, cut) = outcome.unwrap();
        (complete, cancelled, busy) = (complete + completed, cancelled + left, busy + refused);
        for (started, ended) in cut {
            let kills = kills.lock().unwrap();
            assert!(kills.iter().any(|kill| started <= *kill && *kill <= ended + Duration::from_secs(1)));
            interrupted += 1;
        }
    }
    let peak = |part: &[u64]| part.iter().max().copied().unwrap_or(0);
    let (first, last) = memory.split_at(memory.len() / 2);
    figure(
        "64 chats with random cancellations",
        &format!(
            "{complete} complete and equal, {cancelled} cancelled, {busy} busy, {interrupted} interrupted by {} kills; \
             memory at most {} MiB in the first half, {} MiB in the second",
            kills.lock().unwrap().len(),
            peak(first) >> 20,
            peak(last) >> 20,
        ),
    );
    assert!(complete > 20 && cancelled > 0, "{complete} {cancelled}");
    // In a short run, the second half has the load after a kill, and the first half may have none at its peak.
    let allowed = peak(first) / 4 + (64 << 20);
    assert!(peak(last) < peak(first) + allowed, "memory grows: {memory:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reserved_worker_loads_its_models_and_serves_no_others() {
    let mut nodes = Nodes::start(0, &[("LODE_MODELS", "demo,team/later:v2")]).await;
    nodes.join(0);
    nodes.wait_for(1).await;
    // Without a request.
    nodes.wait_until_loaded(1).await;
    let registry = nodes.registry();
    let worker = nodes.listed().await.remove(0);
    assert_eq!(worker["reserved_for"], json!(["demo:latest", "team/later:v2"]));
    assert!(matches!(generate(&registry, &body("Water is", 1, false)).await, End::Complete(_)));

    let other = json!({"model": "other", "prompt": "Water is", "options": {"num_predict": 1}});
    nodes.derive("other", "one").await;
    let refused = registry.post_json("/api/generate", &other).await.expect(503);
    assert!(refused.text().contains("reserved for other models"), "{}", refused.text());

    // A model that did not exist, and one whose tag moves.
    let loaded = async |nodes: &Nodes| -> Vec<String> {
        let worker = nodes.listed().await.remove(0);
        let loaded = worker["loaded"].as_array().unwrap().iter();
        loaded.map(|model| model["digest"].as_str().unwrap().to_owned()).collect()
    };
    let first = loaded(&nodes).await;
    nodes.derive("team/later:v2", "two").await;
    wait_until("the new model is loaded", || async { loaded(&nodes).await.len() == 2 }).await;
    nodes.derive("demo", "three").await;
    wait_until("the new version replaces the old one", || async {
        let now = loaded(&nodes).await;
        now.len() == 2 && !now.contains(&first[0])
    })
    .await;
    assert!(matches!(generate(&registry, &body("Water is", 1, false)).await, End::Complete(_)));

    // A worker without reservations serves the others.
    nodes.settings.clear();
    nodes.join(1);
    nodes.wait_for(2).await;
    registry.post_json("/api/generate", &other).await.expect(200);
}
