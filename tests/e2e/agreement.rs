//! Compares the demo model's log-probabilities with llama.cpp's on the same files: every GGUF type, on
//! held-out text.
//!
//! Both use the same packed weights, so they differ only in how they compute: llama.cpp rounds the
//! activations to 8 bits (16 bits for 16-bit weights). The difference is therefore about as large as the
//! rounding error of either.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use lode_tests::checkpoint::demo;
use lode_tests::clients;
use serde_json::json;

use crate::python::{import_as_gguf, script};
use crate::text::with_model;

/// Positions in a window. `LODE_AGREEMENT_WINDOWS` sets the number of compared windows.
const WINDOW: usize = 128;
const TOP: usize = 10;

/// Each type with the allowed mean difference between the log-probabilities of its likeliest ids.
const TYPES: [(&str, f64); 17] = [
    ("F32", 0.005),
    ("F16", 0.02),
    ("BF16", 0.05),
    ("Q8_0", 0.08),
    ("Q6_K", 0.08),
    ("Q5_K_M", 0.08),
    ("Q5_K_S", 0.08),
    ("Q5_1", 0.08),
    ("Q5_0", 0.08),
    ("Q4_K_M", 0.08),
    ("Q4_K_S", 0.08),
    ("Q4_1", 0.08),
    ("Q4_0", 0.08),
    ("Q3_K_L", 0.08),
    ("Q3_K_M", 0.08),
    ("Q3_K_S", 0.08),
    ("Q2_K", 0.08),
];
/// The allowed maximum difference, as a multiple of the allowed mean.
const MAX_TO_MEAN: f64 = 15.0;

/// The likeliest ids and their log-probabilities, for each window and position.
type Likeliest = Vec<Vec<Vec<(u32, f64)>>>;

/// Runs llama.cpp on several files.
fn llama_cpp(python: &Path, files: &[PathBuf], windows: &[Vec<u32>]) -> Vec<Likeliest> {
    let mut child = Command::new(python)
        .arg(script("likeliest.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let questions = files.iter().map(|path| json!({"path": path, "windows": windows, "top": TOP}));
    let questions: String = questions.map(|question| format!("{question}\n")).collect();
    // A thread, because llama.cpp writes results before it has read all of its input.
    let writer = std::thread::spawn(move || stdin.write_all(questions.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    let stdout = String::from_utf8(output.stdout).unwrap();
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn every_type_agrees_with_llama_cpp() {
    let Some(python) = clients::python("every_type_agrees_with_llama_cpp") else { return };
    let server = with_model().await;
    let lode = server.lode();
    let text = std::fs::read_to_string(demo().join("heldout.txt")).unwrap();
    let tokenize = ["tokenize", "team/demo", "--no-special", "--json"];
    let ids = lode.run_with_input(&tokenize, text.as_bytes()).await.expect_success();
    let ids: Vec<u32> = serde_json::from_value(ids.json()["ids"].clone()).unwrap();
    let windows: usize =
        std::env::var("LODE_AGREEMENT_WINDOWS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    // Take windows from the whole text.
    let all: Vec<&[u32]> = ids.chunks_exact(WINDOW + 1).collect();
    let windows: Vec<Vec<u32>> =
        all.iter().step_by((all.len() / windows).max(1)).take(windows).map(|ids| ids.to_vec()).collect();

    let (mut files, mut ours) = (Vec::new(), Vec::new());
    for (ty, _) in TYPES {
        files.push(import_as_gguf(&server, &demo(), ty).await);
        let model = format!("team/lode-demo-{}", ty.to_lowercase());
        let body = json!({"model": model, "windows": windows, "logprobs": false, "top_logprobs": TOP, "keep_alive": 0});
        let response = server.registry().post_json("/lode/v1/score", &body).await.expect(200).json();
        let likeliest: Likeliest = serde_json::from_value(response["top_logprobs"].clone()).unwrap();
        ours.push(likeliest);
    }
    let theirs = llama_cpp(&python, &files, &windows);
    assert_eq!(theirs.len(), TYPES.len());
    let mut wrong = Vec::new();
    for ((ty, bound), (ours, theirs)) in TYPES.iter().zip(ours.iter().zip(&theirs)) {
        let places: Vec<_> = ours.iter().flatten().zip(theirs.iter().flatten()).collect();
        assert_eq!(places.len(), windows.len() * WINDOW);
        let same = places.iter().filter(|(ours, theirs)| ours[0].0 == theirs[0].0).count();
        let (mut sum, mut count, mut max) = (0.0, 0usize, 0.0f64);
        for (ours, theirs) in &places {
            // Only the first half, because an id at the end of one list may be missing from the other.
            for (id, logprob) in &ours[..TOP / 2] {
                if let Some((_, other)) = theirs.iter().find(|(other, _)| other == id) {
                    sum += (logprob - other).abs();
                    max = max.max((logprob - other).abs());
                    count += 1;
                }
            }
        }
        let (share, mean) = (same as f64 / places.len() as f64, sum / count as f64);
        println!("{ty:8} same {:.1} %  mean {mean:.5}  max {max:.4}", share * 100.0);
        // The whole text must reach 95 %. A sample may be lower by two standard deviations.
        let chance = 2.0 * (0.95 * 0.05 / places.len() as f64).sqrt();
        if share < 0.95 - chance
            || mean > *bound
            || max > bound * MAX_TO_MEAN
            || count < places.len() * TOP * 2 / 5
        {
            wrong.push(format!("{ty}: {:.1} % same, mean {mean:.5}, max {max:.4}", share * 100.0));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
