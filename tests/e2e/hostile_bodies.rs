//! Hostile request bodies and connections: memory of the server and its runners stays bounded, and other
//! clients are served meanwhile.

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use lode_tests::report::figure;
use lode_tests::server::{Folder, Options, Server, TIMEOUT};
use serde_json::{Value, json};

/// The memory that all processes of a server may use above their idle memory.
const LIMIT_BYTES: u64 = 400 << 20;

const MESSAGE: &str = r#"{"role":"user","content":""},"#;

fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// A process and all its descendants.
fn processes(pid: u32) -> Vec<u32> {
    let below = children(pid).into_iter().flat_map(processes);
    [pid].into_iter().chain(below).collect()
}

/// One field of `/proc/PID/status`, in bytes, summed over all processes of a server.
fn memory(server: &Server, key: &str) -> u64 {
    let of = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    processes(server.pid()).into_iter().filter_map(of).sum::<u64>() * 1024
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

async fn post(server: &Server, path: &str, body: String) -> (u16, Value) {
    let registry = server.registry();
    let response = registry.http.post(registry.at(path)).body(body).send().await.unwrap();
    let status = response.status().as_u16();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap_or_default())
}

async fn generate(server: &Server) -> u16 {
    let body = json!({"model": "lode-demo", "prompt": "Define water.", "stream": false, "options": {"num_predict": 4}});
    post(server, "/api/generate", body.to_string()).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn large_bodies_cost_little_more_than_themselves() {
    let server = Folder::new().start(Options::new().worker().arg("--demo")).await;
    assert_eq!(generate(&server).await, 200, "the model is loaded");
    let idle = memory(&server, "VmRSS:");

    let messages = format!(
        r#"{{"model":"lode-demo","messages":[{}{{"role":"user","content":"x"}}]}}"#,
        MESSAGE.repeat(540_000)
    );
    let one = |content: usize| {
        json!({"model": "lode-demo", "stream": false, "options": {"num_predict": 1}, "prompt": "x", "input": "x",
            "messages": [{"role": "user", "content": "x".repeat(content)}]})
        .to_string()
    };
    let nested = format!(r#"{{"model":"lode-demo","x":[{}1]}}"#, "{},".repeat(300_000));
    let files: Vec<String> = (0..70_000).map(|n| format!(r#""f{n}":"x""#)).collect();
    let files = format!(r#"{{"model":"a/b","files":{{{}}}}}"#, files[..60_000].join(","));
    let texts = format!(r#"{{"model":"lode-demo","input":[{}""]}}"#, r#""","#.repeat(5_000_000));
    for (path, body, expect) in [
        ("/api/chat", messages.clone(), 400),
        ("/v1/chat/completions", messages.clone(), 400),
        ("/v1/embeddings", texts, 400),
        // Many values in few bytes: within the limits, and accounted by their memory.
        ("/api/show", nested, 200),
        ("/api/create", files, 400),
        // Valid bodies of the maximum size; the gateway forwards them to a worker, which loads the model.
        ("/api/embed", format!("{}{}", " ".repeat(15 << 20), one(1)), 200),
        ("/api/embed", one(15 << 20), 200),
    ] {
        let len = body.len() as u64;
        let (status, response) = post(&server, path, body).await;
        // A decoder may not support embeddings; a 400 from the model is fine.
        let is_expected = status == expect || path == "/api/embed" && status == 400;
        assert!(is_expected, "{path}: {status} {response}");
        let peak = memory(&server, "VmHWM:");
        figure(
            &format!("memory above idle after {path} of {} MiB", mib(len)),
            &format!("{} MiB", mib(peak.saturating_sub(idle))),
        );
        assert!(peak < idle + LIMIT_BYTES, "{path}: {} MiB above idle", mib(peak - idle));
    }

    // Four at once, with other requests in parallel.
    let hostile = (0..4).map(|_| post(&server, "/api/chat", messages.clone()));
    let honest = async {
        for _ in 0..5 {
            assert_eq!(generate(&server).await, 200);
        }
    };
    let (hostile, ()) = tokio::join!(futures::future::join_all(hostile), honest);
    for (status, response) in hostile {
        assert!(status == 400 || status == 503, "{status} {response}");
    }
    let peak = memory(&server, "VmHWM:");
    figure(
        "memory above idle after four bodies of 15 MiB at once",
        &format!("{} MiB", mib(peak.saturating_sub(idle))),
    );
    assert!(peak < idle + LIMIT_BYTES, "{} MiB above idle", mib(peak - idle));
    // The memory is released.
    let deadline = std::time::Instant::now() + TIMEOUT;
    while memory(&server, "VmRSS:") > idle + LIMIT_BYTES / 4 {
        assert!(
            std::time::Instant::now() < deadline,
            "{} MiB are not released",
            mib(memory(&server, "VmRSS:") - idle)
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    figure(
        "memory above idle at the end",
        &format!("{} MiB", mib(memory(&server, "VmRSS:").saturating_sub(idle))),
    );
}

#[allow(unsafe_code)]
fn limit_descriptors(pid: u32, descriptors: u64) {
    let limit = libc::rlimit { rlim_cur: descriptors, rlim_max: descriptors };
    // SAFETY: prlimit reads the new limit from a struct that outlives the call. The old limit is not
    // requested, so nothing is written.
    let set = unsafe {
        libc::prlimit(pid.cast_signed(), libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut())
    };
    assert_eq!(set, 0, "prlimit failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_short_of_descriptors_keeps_serving() {
    let server = Server::fresh().await;
    let registry = server.registry();
    let digest = registry.blob_push("before", b"bytes").await;
    let used = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count() as u64;
    limit_descriptors(server.pid(), used + 64);

    // Three times as many connections as free descriptors; none of them sends a request.
    let mut silent = Vec::new();
    for n in 0..192 {
        silent.push(TcpStream::connect(server.address).unwrap());
        if n % 16 == 0 {
            let response = registry.http.get(registry.at("/healthz")).send().await.unwrap();
            assert_eq!(response.status(), 200, "after {n} connections");
        }
    }
    for n in 0..8 {
        registry.blob_push("during", format!("bytes {n}").as_bytes()).await;
        let response = registry.request("GET", &format!("/v2/before/blobs/{digest}")).send().await.unwrap();
        assert_eq!(response.bytes().await.unwrap().as_ref(), b"bytes");
    }
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap().count() as u64;
    figure("descriptors in use with 192 silent connections and 64 descriptors left", &open.to_string());
    assert!(open < used + 64);
    drop(silent);
}
