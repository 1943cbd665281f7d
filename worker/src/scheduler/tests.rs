//! The scheduler over fake runners: which requests wait, which models are evicted, and when keep-alives
//! expire.

mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lode_client::Urgency;
use lode_kernels::BEST_LEVEL;
use lode_kernels::cuda::DeviceMemory;
use lode_model::digest::Digest;
use lode_model::media_type as mt;

use super::memory::Memory;
use super::{KeepAlive, ModelRequirements, Options, Scheduler, Ticket};
use crate::cache::{Cache, Models};
use crate::device::{CardMemory, Device};
use crate::error::Error;
use crate::runner::process::Launch;
use crate::runner::protocol::RunnerError;
use crate::testing::{InProcess, TinyRegistry, repository};

/// A timeout that is long enough on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(120);

struct Bench {
    scheduler: Scheduler,
    tiny: TinyRegistry,
    launched: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
    free: Arc<AtomicU64>,
    total: Arc<AtomicU64>,
    _folder: tempfile::TempDir,
}

async fn bench(launcher: InProcess, set: impl FnOnce(&mut Options)) -> Bench {
    let tiny = TinyRegistry::default();
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), Vec::new(), None).unwrap();
    let models = Arc::new(Models::open(cache, tiny.client().await).unwrap());
    let free = Arc::new(AtomicU64::new(u64::MAX));
    let total = Arc::new(AtomicU64::new(u64::MAX));
    let (free_bytes, total_bytes) = (free.clone(), total.clone());
    let mut options = Options {
        keep_alive: KeepAlive::Forever,
        max_queue: 16,
        num_parallel: 2,
        max_loaded_models: 2,
        kv_cache_type: "f16".into(),
        context_length: 256,
        load_timeout: TEST_TIMEOUT,
        threads: None,
        cpu: BEST_LEVEL.into(),
        metrics_models: 0,
        text: crate::runner::TextLimits::default(),
        eviction_delay: Duration::ZERO,
        memory: Box::new(move || Memory {
            total_bytes: total_bytes.load(Ordering::SeqCst),
            free_bytes: free_bytes.load(Ordering::SeqCst),
        }),
        device: Device::Cpu,
        card: None,
    };
    set(&mut options);
    let (launched, running) = (launcher.launched.clone(), launcher.running.clone());
    let launcher: Arc<dyn Launch> = Arc::new(launcher);
    Bench {
        scheduler: Scheduler::start(options, models, launcher),
        tiny,
        launched,
        running,
        free,
        total,
        _folder: folder,
    }
}

fn wanted(digest: &Digest) -> ModelRequirements {
    ModelRequirements {
        repository: repository(),
        digest: digest.clone(),
        name: "demo".into(),
        client: "client".into(),
        urgency: Urgency::default(),
        num_ctx: None,
        sequence_length: None,
        keep_alive: None,
    }
}

impl Bench {
    fn model(&self, seed: u8) -> ModelRequirements {
        wanted(&self.tiny.put_demo(seed, false))
    }

    async fn acquire(&self, wanted: &ModelRequirements) -> Result<Ticket, Error> {
        tokio::time::timeout(TEST_TIMEOUT, self.scheduler.acquire(wanted.clone())).await.expect("in time")
    }

    fn loaded(&self) -> Vec<Digest> {
        self.scheduler.loaded().into_iter().map(|model| model.digest).collect()
    }

    fn launched(&self) -> usize {
        self.launched.load(Ordering::SeqCst)
    }

    async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let wait = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, wait).await.unwrap_or_else(|_| panic!("{what}"));
    }
}

#[tokio::test]
async fn concurrent_requests_share_one_load() {
    let bench = bench(InProcess::fake(), |options| options.num_parallel = 8).await;
    let model = bench.model(1);
    let tickets = futures::future::join_all((0..8).map(|_| bench.acquire(&model))).await;
    assert!(tickets.iter().all(Result::is_ok));
    assert_eq!(bench.launched(), 1);
    assert_eq!(bench.scheduler.loaded()[0].users, 8);
    drop(tickets);
    let ticket = bench.acquire(&model).await.unwrap();
    assert_eq!((bench.launched(), ticket.load_duration()), (1, Duration::ZERO));
}

#[tokio::test]
async fn a_gguf_brings_its_configuration_and_its_vocabulary() {
    let bench = bench(InProcess::native(), |_| {}).await;
    let path = format!("{}/../tests/fixtures/gguf/llama-q8_0.gguf", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::read(path).unwrap();
    let digest = bench.tiny.put_model(&[(mt::OLLAMA_MODEL, "", file)]);
    let ticket = bench.acquire(&wanted(&digest)).await.unwrap();
    let loaded = ticket.model().loaded();
    assert_eq!((loaded.architecture.as_str(), loaded.vocab_size, loaded.has_tokenizer), ("llama", 512, true));
    let shown = &bench.scheduler.loaded()[0];
    assert_eq!((shown.format, shown.family.as_str()), ("gguf", "llama"));
}

#[tokio::test]
async fn the_least_recently_used_idle_model_makes_room() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let (a, b, c) = (bench.model(1), bench.model(2), bench.model(3));
    drop(bench.acquire(&a).await.unwrap());
    drop(bench.acquire(&b).await.unwrap());
    let in_use = bench.acquire(&a).await.unwrap();
    drop(bench.acquire(&c).await.unwrap());
    let mut loaded = bench.loaded();
    loaded.sort();
    let mut expect = vec![a.digest.clone(), c.digest.clone()];
    expect.sort();
    assert_eq!(loaded, expect);
    let also_in_use = bench.acquire(&c).await.unwrap();
    // Now no model is idle, so a third one has to wait.
    let scheduler = bench.scheduler.clone();
    let third =
        tokio::spawn(async move { scheduler.acquire(b).await.map(|ticket| ticket.model().digest().clone()) });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!third.is_finished());
    drop(in_use);
    third.await.unwrap().unwrap();
    assert!(!bench.loaded().contains(&a.digest));
    drop(also_in_use);
    assert_eq!(bench.running.load(Ordering::SeqCst), 2);
}

/// The estimated memory of these tests' demo model.
const NEEDED: u64 = 110 << 20;

/// A card with this much memory, of which other programs leave `free`.
fn card(total_bytes: u64, free: &Arc<AtomicU64>) -> Arc<CardMemory> {
    let free = free.clone();
    let memory = DeviceMemory { total_bytes, free_bytes: total_bytes };
    let measure = move || {
        let free_bytes = free.load(Ordering::SeqCst);
        let measured: futures::future::BoxFuture<'static, _> =
            Box::pin(async move { Some(DeviceMemory { total_bytes, free_bytes }) });
        measured
    };
    Arc::new(CardMemory::new("cuda:0 NVIDIA Test".into(), memory, Box::new(measure)))
}

#[tokio::test]
async fn models_are_placed_by_the_memory_of_the_card() {
    const GIB: u64 = 1 << 30;
    let free = Arc::new(AtomicU64::new(3 * GIB / 2));
    let bench = bench(InProcess::fake(), |options| options.card = Some(card(2 * GIB, &free))).await;
    // The machine's own memory does not matter.
    bench.total.store(0, Ordering::SeqCst);
    bench.free.store(0, Ordering::SeqCst);
    let (a, b, c) = (bench.model(1), bench.model(2), bench.model(3));
    drop(bench.acquire(&a).await.unwrap());
    let (name, memory) = bench.scheduler.card().unwrap();
    assert_eq!((name, memory.total_bytes), ("cuda:0 NVIDIA Test", 2 * GIB));
    let promised = 3 * GIB / 2 - memory.free_bytes;
    assert!((512 << 20..600 << 20).contains(&promised), "{promised}");
    drop(bench.acquire(&b).await.unwrap());
    assert_eq!(bench.scheduler.card().unwrap().1.free_bytes, 3 * GIB / 2 - 2 * promised);
    // The third evicts the first: what other programs use meanwhile is not measured.
    free.store(0, Ordering::SeqCst);
    drop(bench.acquire(&c).await.unwrap());
    assert_eq!(bench.loaded().len(), 2);
    assert!(!bench.loaded().contains(&a.digest));
}

#[tokio::test]
async fn a_model_that_does_not_fit_the_card_is_refused_with_both_numbers() {
    let free = Arc::new(AtomicU64::new(100 << 20));
    let bench = bench(InProcess::fake(), |options| options.card = Some(card(1 << 30, &free))).await;
    // Other programs use the card.
    let error = bench.acquire(&bench.model(1)).await.err().unwrap();
    assert!(matches!(error, Error::Memory { available, .. } if available == 100 << 20), "{error}");
    assert!(error.to_string().contains("(0.5 GiB)") && error.to_string().contains("(0.1 GiB)"), "{error}");
    // It is measured again for the next request.
    free.store(1 << 30, Ordering::SeqCst);
    drop(bench.acquire(&bench.model(1)).await.unwrap());
}

#[tokio::test]
async fn memory_is_estimated() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let (a, b) = (bench.model(1), bench.model(2));
    drop(bench.acquire(&a).await.unwrap());
    bench.free.store(0, Ordering::SeqCst);
    let error = bench.acquire(&b).await.err().unwrap();
    assert!(matches!(error, Error::Memory { available: 0, .. }), "{error}");
    assert_eq!(bench.loaded(), [a.digest], "unloading it would not have been enough");
    // A tight fit is tried after every other model has been unloaded.
    bench.free.store(NEEDED, Ordering::SeqCst);
    assert!(bench.acquire(&b).await.is_ok());
    assert_eq!(bench.loaded(), [b.digest]);
}

/// A cache that has no space for all sequences at full length.
#[tokio::test]
async fn caches_shrink_to_the_free_memory() {
    let bench = bench(InProcess::fake(), |options| options.num_parallel = 1000).await;
    let (a, b) = (bench.model(1), bench.model(2));
    let size = |free| {
        bench.free.store(free, Ordering::SeqCst);
        let loaded = bench.scheduler.loaded();
        assert_eq!((loaded.len(), loaded[0].num_parallel), (1, 1000));
        loaded[0].size_bytes
    };
    drop(bench.acquire(&a).await.unwrap());
    // The fake runner reports 16 bytes per token.
    let tokens = |size: u64| (size - 1000) / 16;
    assert_eq!(tokens(size(4 * NEEDED)), 256 * 1000);
    drop(bench.acquire(&b).await.unwrap());
    let fitted = tokens(size(0));
    assert!((256..200 * 1000).contains(&fitted), "{fitted}");
}

#[tokio::test]
async fn promised_memory_is_not_free() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let (a, b) = (bench.model(1), bench.model(2));
    // Enough for one model with some to spare. It is still reported as free although the first model is
    // loaded, because that model has not touched it yet.
    bench.free.store(2 * NEEDED, Ordering::SeqCst);
    drop(bench.acquire(&a).await.unwrap());
    drop(bench.acquire(&b).await.unwrap());
    assert_eq!(bench.loaded(), [b.digest], "the first model was evicted");
    bench.free.store(4 * NEEDED, Ordering::SeqCst);
    drop(bench.acquire(&a).await.unwrap());
    assert_eq!(bench.loaded().len(), 2);
}

#[tokio::test]
async fn a_load_that_can_never_fit_is_refused_at_once() {
    let bench = bench(InProcess::fake(), |options| options.max_loaded_models = 1).await;
    let (a, b) = (bench.model(1), bench.model(2));
    let in_use = bench.acquire(&a).await.unwrap();
    bench.total.store(50 << 20, Ordering::SeqCst);
    let error = bench.acquire(&b).await.err().unwrap();
    assert!(matches!(error, Error::TooLarge { total, .. } if total == 50 << 20), "{error}");
    let long = ModelRequirements { num_ctx: Some(1 << 40), ..a.clone() };
    assert!(matches!(bench.acquire(&long).await.err().unwrap(), Error::TooLarge { .. }));
    // The model in use has not been drained.
    drop(bench.acquire(&a).await.unwrap());
    drop(in_use);
    assert_eq!((bench.loaded(), bench.launched()), (vec![a.digest], 1));
}

/// Loops of requests that run until `stop`; counts the requests served.
struct Busy {
    served: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    loops: Vec<tokio::task::JoinHandle<()>>,
}

impl Busy {
    async fn start(bench: &Bench, wanted: &ModelRequirements, loops: usize) -> Busy {
        let (served, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let run = |at: usize| {
            let (scheduler, served, stop) = (bench.scheduler.clone(), served.clone(), stop.clone());
            let wanted = ModelRequirements { client: format!("loop {at}").into(), ..wanted.clone() };
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let ticket = scheduler.acquire(wanted.clone()).await.unwrap();
                    // Other loops get their ticket before this one is dropped, so the model is never idle.
                    for _ in 0..8 {
                        tokio::task::yield_now().await;
                    }
                    served.fetch_add(1, Ordering::SeqCst);
                    drop(ticket);
                }
            })
        };
        let busy = Busy { loops: (0..loops).map(run).collect(), served, stop };
        bench.until("the loops run", || busy.served() > 10).await;
        busy
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::SeqCst);
        for task in self.loops {
            task.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_busy_model_does_not_keep_others_out() {
    let bench = bench(InProcess::fake(), |options| options.max_loaded_models = 1).await;
    let [a, b, c] = [1, 2, 3].map(|seed| bench.model(seed));
    let busy = Busy::start(&bench, &a, 3).await;
    for other in [&b, &c, &b, &c] {
        let (scheduler, wanted) = (bench.scheduler.clone(), other.clone());
        let other = tokio::spawn(async move { scheduler.acquire(wanted).await.map(drop) });
        bench.until("the load is queued", || bench.scheduler.queued() > 0 || other.is_finished()).await;
        let before = busy.served();
        other.await.unwrap().unwrap();
        // A served only the requests that had a place and those that were waiting at A's next turn.
        let served = busy.served() - before;
        assert!(served <= 8, "{served}");
        let before = busy.served();
        bench
            .until("A is served again", || busy.served() > before + 10 && bench.scheduler.queued() == 0)
            .await;
    }
    busy.stop().await;
}

#[tokio::test]
async fn a_model_in_use_is_left_alone_for_a_moment() {
    let bench = bench(InProcess::fake(), |options| {
        options.max_loaded_models = 1;
        options.eviction_delay = TEST_TIMEOUT * 10;
    })
    .await;
    let (a, b) = (bench.model(1), bench.model(2));
    let in_use = bench.acquire(&a).await.unwrap();
    let waiting = {
        let (scheduler, b) = (bench.scheduler.clone(), b.clone());
        tokio::spawn(async move { scheduler.acquire(b).await.map(drop) })
    };
    bench.until("the load is queued", || bench.scheduler.queued() == 1).await;
    // Requests are admitted until the delay has passed; an idle model is evicted without delay.
    drop(bench.acquire(&a).await.unwrap());
    drop(in_use);
    waiting.await.unwrap().unwrap();
}

/// A launcher whose first `waiting` loads each wait for a message, and the number of loads so far.
fn waiting_launcher(waiting: usize) -> (InProcess, std::sync::mpsc::Sender<()>, Arc<AtomicUsize>) {
    let (go_on, messages) = std::sync::mpsc::channel();
    let messages = std::sync::Mutex::new(messages);
    let started = Arc::<AtomicUsize>::default();
    let loads = started.clone();
    let quick = InProcess::fake().loader();
    let launcher = InProcess::new(Arc::new(move |request| {
        if loads.fetch_add(1, Ordering::SeqCst) < waiting {
            let _ = messages.lock().unwrap().recv();
        }
        quick(request)
    }));
    (launcher, go_on, started)
}

#[tokio::test]
async fn a_slow_load_does_not_hold_up_another() {
    let (launcher, go_on, started) = waiting_launcher(1);
    let bench = bench(launcher, |_| {}).await;
    let (a, b) = (bench.model(1), bench.model(2));
    let waiting = {
        let (scheduler, a) = (bench.scheduler.clone(), a.clone());
        tokio::spawn(async move { scheduler.acquire(a).await.map(drop) })
    };
    bench.until("the first load runs", || started.load(Ordering::SeqCst) == 1).await;
    drop(bench.acquire(&b).await.unwrap());
    assert!(!waiting.is_finished());
    go_on.send(()).unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_load_ends_with_the_last_request_that_waits_for_it() {
    // A load that never finishes, for which two requests wait.
    let (given_up, forever) = std::sync::mpsc::channel::<()>();
    let forever = std::sync::Mutex::new(forever);
    let launcher = InProcess::new(Arc::new(move |_| {
        let _ = forever.lock().unwrap().recv();
        Err(RunnerError::failed("too late"))
    }));
    let bench = self::bench(launcher, |options| options.max_loaded_models = 1).await;
    let (a, b) = (bench.model(1), bench.model(2));
    let wait = |wanted: &ModelRequirements| {
        let (scheduler, wanted) = (bench.scheduler.clone(), wanted.clone());
        tokio::spawn(async move { scheduler.acquire(wanted).await.map(drop) })
    };
    let (first, second) = (wait(&a), wait(&a));
    bench.until("the load runs", || bench.running.load(Ordering::SeqCst) == 1).await;
    let queued = wait(&b);
    bench.until("another one is queued", || bench.scheduler.queued() == 1).await;
    queued.abort();
    bench.until("it is no longer queued", || bench.scheduler.queued() == 0).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(bench.running.load(Ordering::SeqCst), 1, "a client still waits for it");
    second.abort();
    bench.until("its runner is ended", || bench.running.load(Ordering::SeqCst) == 0).await;
    drop(given_up);
}

#[tokio::test]
async fn a_cancelled_load_stops_draining_the_victim() {
    let bench = bench(InProcess::fake(), |options| options.max_loaded_models = 1).await;
    let (a, b) = (bench.model(1), bench.model(2));
    let in_use = bench.acquire(&a).await.unwrap();
    let wait = |wanted: &ModelRequirements| {
        let (scheduler, wanted) = (bench.scheduler.clone(), wanted.clone());
        tokio::spawn(async move { scheduler.acquire(wanted).await.map(|ticket| ticket.load_duration()) })
    };
    let other = wait(&b);
    bench.until("B is queued", || bench.scheduler.queued() == 1).await;
    let again = wait(&a);
    bench.until("A is not admitted meanwhile", || bench.scheduler.queued() == 2).await;
    other.abort();
    again.await.unwrap().unwrap();
    drop(in_use);
    assert_eq!(bench.launched(), 1, "A has not been loaded again");
}

#[tokio::test]
async fn expired_models_are_unloaded() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let keep = |wanted: ModelRequirements, keep_alive: KeepAlive| ModelRequirements {
        keep_alive: Some(keep_alive),
        ..wanted
    };
    let ms = |ms: u64| KeepAlive::For(Duration::from_millis(ms));
    let model = bench.model(1);
    let ticket = bench.acquire(&keep(model.clone(), ms(0))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(bench.loaded().len(), 1, "not while in use");
    drop(ticket);
    bench.until("it is unloaded at once", || bench.loaded().is_empty()).await;
    bench.until("and its runner ends", || bench.running.load(Ordering::SeqCst) == 0).await;

    drop(bench.acquire(&keep(model.clone(), ms(50))).await.unwrap());
    bench.until("it is unloaded later", || bench.loaded().is_empty()).await;

    // A request without a keep-alive does not change the model's, even if the model is reloaded for a longer
    // context.
    let hour = KeepAlive::For(Duration::from_secs(3600));
    let expires_in_an_hour = || {
        let at = bench.scheduler.loaded()[0].expires_at;
        at.duration_since(std::time::SystemTime::now()).is_ok_and(|left| left <= Duration::from_secs(3600))
    };
    drop(bench.acquire(&keep(model.clone(), hour)).await.unwrap());
    drop(bench.acquire(&model).await.unwrap());
    assert!(expires_in_an_hour());
    drop(bench.acquire(&ModelRequirements { num_ctx: Some(1024), ..model.clone() }).await.unwrap());
    assert!(expires_in_an_hour());
    bench.scheduler.unload(&model.digest);
    bench.until("it is unloaded on demand", || bench.loaded().is_empty()).await;
}

#[tokio::test]
async fn a_longer_context_loads_again() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let model = bench.model(1);
    let ctx = |num_ctx: usize| ModelRequirements { num_ctx: Some(num_ctx), ..model.clone() };
    drop(bench.acquire(&model).await.unwrap());
    drop(bench.acquire(&ctx(100)).await.unwrap());
    assert_eq!(bench.launched(), 1, "shorter is a limit, not another load");
    assert_eq!(bench.scheduler.loaded()[0].context_length, 100, "the request's context length is shown");
    let in_use = bench.acquire(&model).await.unwrap();
    let scheduler = bench.scheduler.clone();
    let longer = ctx(1000);
    let waiting =
        tokio::spawn(
            async move { scheduler.acquire(longer).await.map(|t| t.model().loaded().context_length) },
        );
    bench.until("the load is queued", || bench.scheduler.queued() == 1).await;
    assert!(!waiting.is_finished(), "it waits for the requests in flight");
    drop(in_use);
    assert_eq!(waiting.await.unwrap().unwrap(), 1000);
    assert_eq!(bench.launched(), 2);
    // The fake model's limit is 2048: requests for more than that load it once.
    drop(bench.acquire(&ctx(1_000_000)).await.unwrap());
    drop(bench.acquire(&ctx(2_000_000)).await.unwrap());
    assert_eq!(bench.launched(), 3);
}

#[tokio::test]
async fn a_model_is_loaded_with_the_context_of_its_parameters() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let params = (mt::OLLAMA_PARAMS, "", br#"{"num_ctx": 1024}"#.to_vec());
    let model = wanted(&bench.tiny.put_demo_with(1, false, &[params]));
    let in_force = || bench.scheduler.loaded()[0].context_length;
    drop(bench.acquire(&model).await.unwrap());
    assert_eq!(in_force(), 1024);
    drop(bench.acquire(&ModelRequirements { num_ctx: Some(2), ..model.clone() }).await.unwrap());
    assert_eq!(in_force(), 4, "the minimum");
    drop(bench.acquire(&model).await.unwrap());
    assert_eq!((in_force(), bench.launched()), (1024, 1));
}

/// Requests that wait for a load with a shorter context than the model's own parameters ask for: they wait for one more
/// load, and leave the threads to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_with_too_short_a_context_is_not_joined_again() {
    let (launcher, go_on, started) = waiting_launcher(2);
    let bench = bench(launcher, |options| options.num_parallel = 16).await;
    let params = (mt::OLLAMA_PARAMS, "", br#"{"num_ctx": 1024}"#.to_vec());
    let model = wanted(&bench.tiny.put_demo_with(1, false, &[params]));
    let wait = |num_ctx| {
        let (scheduler, wanted) = (bench.scheduler.clone(), ModelRequirements { num_ctx, ..model.clone() });
        tokio::spawn(
            async move { scheduler.acquire(wanted).await.map(|t| t.model().loaded().context_length) },
        )
    };
    let short = wait(Some(300));
    bench.until("the load runs", || started.load(Ordering::SeqCst) == 1).await;
    let others: Vec<_> = (0..8).map(|_| wait(None)).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    for _ in 0..2 {
        go_on.send(()).unwrap();
    }
    let short = tokio::time::timeout(TEST_TIMEOUT, short).await.expect("in time");
    assert!(short.unwrap().unwrap() >= 300);
    for other in others {
        let context = tokio::time::timeout(TEST_TIMEOUT, other).await.expect("in time");
        assert_eq!(context.unwrap().unwrap(), 1024);
    }
    assert_eq!(started.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn failed_loads_report_the_reason_and_end_the_runner() {
    let refusing = InProcess::new(Arc::new(|_| Err(RunnerError::unsupported("demo: tensor `x` is missing"))));
    let bench = bench(refusing, |_| {}).await;
    let model = bench.model(1);
    for _ in 0..2 {
        let error = bench.acquire(&model).await.err().unwrap();
        assert_eq!(error.to_string(), "demo: tensor `x` is missing");
    }
    bench.until("no runner is left", || bench.running.load(Ordering::SeqCst) == 0).await;
    let unknown = bench.acquire(&wanted(&Digest::sha256(b"x"))).await.err().unwrap();
    assert!(matches!(unknown, Error::ModelUnknown(_)));

    // A runner that ends during the load fails the request, and the load is not retried.
    let ending = InProcess::new(Arc::new(|_| Err(RunnerError::stopped("shutting down"))));
    let bench = self::bench(ending, |_| {}).await;
    let model = bench.model(1);
    assert!(matches!(bench.acquire(&model).await.err().unwrap(), Error::LoadEnded));
    assert_eq!(bench.launched(), 1);

    // A load is limited by the load timeout.
    let (given_up, waited_for) = std::sync::mpsc::channel::<()>();
    let waited_for = std::sync::Mutex::new(waited_for);
    let slow = InProcess::new(Arc::new(move |_| {
        let _ = waited_for.lock().unwrap().recv();
        Err(RunnerError::failed("too late"))
    }));
    let bench = self::bench(slow, |options| options.load_timeout = Duration::from_millis(20)).await;
    let model = bench.model(1);
    assert!(matches!(bench.acquire(&model).await.err().unwrap(), Error::LoadTimeout(_)));
    drop(given_up);
}

#[tokio::test]
async fn a_stopped_scheduler_refuses() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let model = bench.model(1);
    let ticket = bench.acquire(&model).await.unwrap();
    bench.scheduler.stop().await;
    assert_eq!(bench.running.load(Ordering::SeqCst), 0);
    assert!(matches!(bench.acquire(&model).await.err().unwrap(), Error::Stopping));
    drop(ticket);
}
