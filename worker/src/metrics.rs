//! The metrics of inference. In `lode serve` the server's `/metrics` reports them; `lode worker` has a page of its
//! own. Label values come from the code, except for the names of models, which are off by default and bounded.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

/// Upper bounds of every histogram, in seconds, as in the server.
const BUCKETS: &[f64] = &[
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];
/// Interval for moving samples into their buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// The label of the models beyond the limit.
const OTHER: &str = "other";

const INFO: &str = "lode_info";
const QUEUE: &str = "lode_inference_queue_length";
const RUNNING: &str = "lode_inference_running";
const LOADED: &str = "lode_models_loaded";
const LOADS: &str = "lode_model_loads_total";
const LOAD_SECONDS: &str = "lode_model_load_seconds";
const TOKENS_IN: &str = "lode_prompt_tokens_total";
const TOKENS_CACHED: &str = "lode_prompt_tokens_cached_total";
const TOKENS_OUT: &str = "lode_generated_tokens_total";
const FIRST_TOKEN: &str = "lode_first_token_seconds";

/// The rows of docs/reference/metrics.md: name, type, labels and meaning of each metric.
const ALL: &[[&str; 4]] = &[
    [QUEUE, "gauge", "", "Requests that wait for a model to be loaded, or for one of its places."],
    [RUNNING, "gauge", "", "Requests that a loaded model processes, until their response has been sent."],
    [LOADED, "gauge", "", "Loaded models."],
    [
        LOADS,
        "counter",
        "outcome, model",
        "Loads of models: `done` or `failed`. Loads without a request left are not counted.",
    ],
    [
        LOAD_SECONDS,
        "histogram",
        "model",
        "Time of a load that succeeded, with the wait for memory and the transfer of missing blobs.",
    ],
    [TOKENS_IN, "counter", "model", "Tokens of the prompts of completed responses, and of embedded texts."],
    [TOKENS_CACHED, "counter", "model", "Those of them that were in the KV cache already."],
    [TOKENS_OUT, "counter", "model", "Tokens that completed responses generated."],
    [
        FIRST_TOKEN,
        "histogram",
        "model",
        "Time from the arrival of a request at the worker to the first part of its streamed response.",
    ],
];

static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();

/// The rows of the reference page.
pub fn reference() -> &'static [[&'static str; 4]] {
    ALL
}

/// Installs the recorder of a process without a server, and enables `/metrics`. Called within a runtime.
pub fn install() {
    let builder = PrometheusBuilder::new().set_buckets(BUCKETS).expect("BUCKETS is not empty");
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    if metrics::set_global_recorder(recorder).is_err() || HANDLE.set(handle.clone()).is_err() {
        tracing::warn!("another metrics recorder is installed; /metrics of this worker stays off");
        return;
    }
    gauge!(INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP_INTERVAL).await;
            handle.run_upkeep();
        }
    });
}

/// The page of `/metrics`, if this process has a recorder of its own.
pub(crate) fn render() -> Option<String> {
    HANDLE.get().map(PrometheusHandle::render)
}

/// Describes the metrics to the recorder of the process, and makes those appear that nothing has happened to.
pub(crate) fn describe() {
    for [name, kind, _, help] in ALL {
        match *kind {
            "counter" => metrics::describe_counter!(*name, *help),
            "gauge" => metrics::describe_gauge!(*name, *help),
            _ => metrics::describe_histogram!(*name, *help),
        }
    }
    for name in [QUEUE, RUNNING, LOADED] {
        gauge!(name).increment(0.0);
    }
    for outcome in ["done", "failed"] {
        counter!(LOADS, "outcome" => outcome).increment(0);
    }
}

/// Counts something in a gauge until it is dropped.
pub(crate) struct Counted(Gauge);

impl Counted {
    fn new(gauge: Gauge) -> Counted {
        gauge.increment(1.0);
        Counted(gauge)
    }

    /// A request that waits.
    pub(crate) fn waiting() -> Counted {
        Counted::new(gauge!(QUEUE))
    }

    /// A request that a model processes.
    pub(crate) fn running() -> Counted {
        Counted::new(gauge!(RUNNING))
    }

    /// A loaded model.
    pub(crate) fn loaded() -> Counted {
        Counted::new(gauge!(LOADED))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The names of models that are labels: the first ones up to a limit, then `other`.
pub(crate) struct ModelLabels {
    limit: usize,
    known: Mutex<BTreeSet<String>>,
}

impl ModelLabels {
    /// With a limit of 0, no metric has the name of a model.
    pub(crate) fn new(limit: usize) -> ModelLabels {
        ModelLabels { limit, known: Mutex::default() }
    }

    pub(crate) fn label(&self, repository: &str) -> ModelLabel {
        if self.limit == 0 {
            return ModelLabel(None);
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known =
            known.contains(repository) || known.len() < self.limit && known.insert(repository.to_owned());
        ModelLabel(Some(if is_known { repository.to_owned() } else { OTHER.to_owned() }))
    }
}

/// The name of a model in metrics, if they have names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelLabel(Option<String>);

impl ModelLabel {
    fn counter(&self, name: &'static str) -> Counter {
        match &self.0 {
            Some(model) => counter!(name, "model" => model.clone()),
            None => counter!(name),
        }
    }

    fn histogram(&self, name: &'static str) -> Histogram {
        match &self.0 {
            Some(model) => histogram!(name, "model" => model.clone()),
            None => histogram!(name),
        }
    }

    /// Records a load that ended; `took` is `None` if it failed.
    pub(crate) fn record_load(&self, took: Option<Duration>) {
        let outcome = if took.is_some() { "done" } else { "failed" };
        match &self.0 {
            Some(model) => counter!(LOADS, "outcome" => outcome, "model" => model.clone()).increment(1),
            None => counter!(LOADS, "outcome" => outcome).increment(1),
        }
        if let Some(took) = took {
            self.histogram(LOAD_SECONDS).record(took);
        }
    }
}

/// The metrics of a loaded model's requests.
pub(crate) struct ModelMetrics {
    tokens_in: Counter,
    tokens_cached: Counter,
    tokens_out: Counter,
    first_token: Histogram,
}

impl ModelMetrics {
    pub(crate) fn new(label: &ModelLabel) -> ModelMetrics {
        ModelMetrics {
            tokens_in: label.counter(TOKENS_IN),
            tokens_cached: label.counter(TOKENS_CACHED),
            tokens_out: label.counter(TOKENS_OUT),
            first_token: label.histogram(FIRST_TOKEN),
        }
    }

    /// Counts the tokens of a completed response.
    pub(crate) fn count_tokens(&self, prompt: usize, cached: usize, generated: usize) {
        self.tokens_in.increment(prompt as u64);
        self.tokens_cached.increment(cached as u64);
        self.tokens_out.increment(generated as u64);
    }

    pub(crate) fn record_first_token(&self, after: Duration) {
        self.first_token.record(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_models_are_bounded_and_off_by_default() {
        assert_eq!(ModelLabels::new(0).label("team/a"), ModelLabel(None));
        let labels = ModelLabels::new(2);
        let label = |name: &str| labels.label(name).0.unwrap();
        assert_eq!(
            [label("a"), label("b"), label("c"), label("a"), label("d")],
            ["a", "b", OTHER, "a", OTHER]
        );
    }

    #[test]
    fn requests_are_counted_by_model() {
        let recorder = PrometheusBuilder::new().set_buckets(BUCKETS).unwrap().build_recorder();
        let page = metrics::with_local_recorder(&recorder, || {
            let (labels, off) = (ModelLabels::new(1), ModelLabels::new(0));
            for (labels, name) in [(&labels, "team/a"), (&labels, "team/b"), (&off, "team/c")] {
                let label = labels.label(name);
                label.record_load(Some(Duration::from_millis(20)));
                label.record_load(None);
                let model = ModelMetrics::new(&label);
                model.count_tokens(7, 3, 5);
                model.record_first_token(Duration::from_millis(3));
            }
            let _running = Counted::running();
            drop(Counted::waiting());
            recorder.handle().render()
        });
        for line in [
            "lode_prompt_tokens_total 7",
            r#"lode_prompt_tokens_total{model="team/a"} 7"#,
            r#"lode_prompt_tokens_total{model="other"} 7"#,
            r#"lode_prompt_tokens_cached_total{model="team/a"} 3"#,
            r#"lode_generated_tokens_total{model="team/a"} 5"#,
            r#"lode_model_loads_total{outcome="done",model="team/a"} 1"#,
            r#"lode_model_loads_total{outcome="failed",model="other"} 1"#,
            r#"lode_model_load_seconds_count{model="team/a"} 1"#,
            r#"lode_first_token_seconds_bucket{model="team/a",le="0.005"} 1"#,
            "lode_inference_running 1",
            "lode_inference_queue_length 0",
        ] {
            assert!(page.contains(line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("team/b") && !page.contains("team/c"), "{page}");
    }
}
