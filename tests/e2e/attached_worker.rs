//! A worker in a separate process, as on another machine: it joins with the shared token, pulls models into
//! its cache, handles requests, and is deregistered when it stops.

use std::path::Path;
use std::process::Child;

use lode_tests::artifact::sha256;
use lode_tests::checkpoint::{demo, demo_expected, read_folder};
use lode_tests::command::{run_to_end, wait_until};
use lode_tests::server::{Folder, Options, Server, lode_command, output_file, signal};
use serde_json::json;

/// A `lode worker` process. Dropping it kills the process.
pub(crate) struct Worker(Child);

impl Worker {
    fn start(server: &Server, token: &str, cache: &Path) -> Worker {
        Worker::start_with(server, token, cache, &[])
    }

    /// Starts a worker with these environment variables.
    pub(crate) fn start_with(
        server: &Server,
        token: &str,
        cache: &Path,
        settings: &[(&str, &str)],
    ) -> Worker {
        Worker::join(&server.url(), token, cache, settings)
    }

    /// Starts a worker that joins the registry at this URL.
    pub(crate) fn join(url: &str, token: &str, cache: &Path, settings: &[(&str, &str)]) -> Worker {
        let (stdout, stderr) = output_file(&cache.with_extension("log"));
        let mut command = lode_command(cache.parent().unwrap());
        command.args(["worker", "--listen", "127.0.0.1:0", "--registry", url, "--token", token]);
        command.envs(settings.iter().copied());
        Worker(command.arg("--cache").arg(cache).stdout(stdout).stderr(stderr).spawn().unwrap())
    }

    /// Sends SIGTERM and waits until the process has ended.
    pub(crate) async fn stop(&mut self) {
        signal(self.0.id(), libc::SIGTERM);
        wait_until("the worker has ended", || {
            let ended = self.0.try_wait().unwrap().is_some();
            async move { ended }
        })
        .await;
        assert!(self.0.wait().unwrap().success());
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) async fn workers(server: &Server) -> usize {
    server.registry().get("/lode/v1/workers").await.expect(200).json()["workers"].as_array().unwrap().len()
}

#[tokio::test]
async fn a_worker_joins_pulls_responds_and_deregisters() {
    let folder = Folder::new();
    let server = folder.start(Options::new().env("LODE_WORKER_TOKEN", "open sesame")).await;
    server.lode().create("team/demo", &demo(), &[]).await.expect_success();

    let stranger = folder.path().join("stranger");
    let mut refused = Worker::start(&server, "guessed", &stranger);
    let cache = folder.path().join("cache");
    let mut worker = Worker::start(&server, "open sesame", &cache);
    wait_until("the worker has joined", || async { workers(&server).await == 1 }).await;

    let case = &demo_expected()["cases"][0];
    let body =
        json!({"model": "team/demo", "prompt": case["user"], "stream": false, "options": {"temperature": 0}});
    let got = server.registry().post_json("/api/generate", &body).await.expect(200).json();
    assert_eq!(got["response"], case["answer"]);

    // The model's blobs are in the cache, named by digest.
    let blobs = read_folder(&cache.join("blobs/sha256"));
    assert!(blobs.len() >= 38, "expected one blob per tensor: {:?}", blobs.keys());
    for (name, bytes) in &blobs {
        assert_eq!(sha256(bytes), format!("sha256:{name}"));
    }

    // A worker that stops deregisters, and the server sends it no more requests.
    worker.stop().await;
    assert_eq!(workers(&server).await, 0);
    let response = server.registry().post_json("/api/generate", &body).await;
    assert_eq!(response.status, 503, "{}", response.text());

    // The worker with the wrong token never joined.
    let ended = refused.0.try_wait().unwrap();
    assert!(ended.is_none_or(|status| !status.success()), "{ended:?}");
    assert!(!stranger.join("blobs").is_dir() || read_folder(&stranger.join("blobs")).is_empty());
}

/// With and without a GPU: no machine has a device with this number.
#[tokio::test]
async fn a_gpu_that_cannot_be_used_stops_the_start_and_is_named() {
    let folder = Folder::new();
    let cache = folder.path().join("cache");
    let run = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = lode_command(folder.path());
        command.args(words).envs(variables.iter().copied()).env("LODE_CACHE", &cache);
        command.current_dir(folder.path());
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        run_to_end(command, vec![])
    };
    let refused = run(&["worker", "--listen", "127.0.0.1:0", "--device", "cuda:999"], &[]).await;
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    for part in ["device cuda:999 cannot be used", "lode doctor", "--device cpu"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    let served = run(&["serve", "--listen", "127.0.0.1:0"], &[("LODE_DEVICE", "cuda:999")]).await;
    assert_eq!(served.code, 2, "{}", served.stderr);
    assert!(served.stderr.contains("device cuda:999 cannot be used"), "{}", served.stderr);
    for words in
        [&["worker", "--device", "gpu"][..], &["serve", "--device", "gpu"], &["doctor", "--device", "gpu"]]
    {
        let invalid = run(words, &[]).await;
        assert_eq!(invalid.code, 2, "{}", invalid.stderr);
        let stderr = &invalid.stderr;
        assert!(stderr.contains("--device is `gpu`") && stderr.contains("cuda:N"), "{stderr}");
    }

    let doctor = run(&["doctor", "--json"], &[]).await.expect_success();
    let found = doctor.json();
    assert!(found["cpu"]["cores"].as_u64().is_some_and(|cores| cores > 0), "{found}");
    assert!(found["device"]["selected"].is_string() && found["cuda"]["devices"].is_array(), "{found}");
    let of_cpu = run(&["doctor", "--device", "cpu"], &[]).await.expect_success();
    assert!(
        !of_cpu.stdout.contains("driver") && of_cpu.stdout.contains("device    cpu"),
        "{}",
        of_cpu.stdout
    );
    assert_eq!(run(&["doctor", "--device", "cuda:999"], &[]).await.code, 1);
    assert!(!cache.exists(), "the doctor and a worker that does not start create no cache");
}
