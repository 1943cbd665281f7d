//! The scheduler over runners that pretend: who waits, who is evicted, and when clocks run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use lode_model::digest::Digest;
use lode_model::media_type as mt;

use super::{KeepAlive, Options, Scheduler, Ticket, Wanted};
use crate::cache::{Cache, Models};
use crate::error::Error;
use crate::runner::process::Launch;
use crate::runner::protocol::RunnerError;
use crate::testing::{InProcess, TinyRegistry, repository};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Bench {
    scheduler: Scheduler,
    tiny: TinyRegistry,
    launched: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
    free: Arc<AtomicU64>,
    _folder: tempfile::TempDir,
}

async fn bench(launcher: InProcess, set: impl FnOnce(&mut Options)) -> Bench {
    let tiny = TinyRegistry::default();
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(folder.path(), Vec::new(), None).unwrap();
    let models = Arc::new(Models::open(cache, tiny.client().await).unwrap());
    let free = Arc::new(AtomicU64::new(u64::MAX));
    let free_memory = free.clone();
    let mut options = Options {
        keep_alive: KeepAlive::Forever,
        max_queue: 16,
        num_parallel: 2,
        max_loaded_models: 2,
        kv_cache_type: "f16".into(),
        context_length: 256,
        load_timeout: PATIENCE,
        threads: None,
        text: crate::runner::TextLimits::default(),
        free_memory: Box::new(move || free_memory.load(Ordering::SeqCst)),
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
        _folder: folder,
    }
}

fn wanted(digest: &Digest) -> Wanted {
    Wanted {
        repository: repository(),
        digest: digest.clone(),
        name: "demo".into(),
        num_ctx: None,
        keep_alive: None,
    }
}

impl Bench {
    fn model(&self, seed: u8) -> Wanted {
        wanted(&self.tiny.put_demo(seed, false))
    }

    async fn acquire(&self, wanted: &Wanted) -> Result<Ticket, Error> {
        tokio::time::timeout(PATIENCE, self.scheduler.acquire(wanted.clone())).await.expect("in time")
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
        tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what}"));
    }
}

#[tokio::test]
async fn one_load_for_all_who_wait() {
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
async fn places_are_limited_and_the_queue_too() {
    let bench = bench(InProcess::fake(), |options| (options.num_parallel, options.max_queue) = (1, 2)).await;
    let model = bench.model(1);
    let first = bench.acquire(&model).await.unwrap();
    let wait = |wanted: Wanted| {
        let scheduler = bench.scheduler.clone();
        tokio::spawn(async move { scheduler.acquire(wanted).await.map(drop) })
    };
    let (second, third) = (wait(model.clone()), wait(model.clone()));
    bench.until("both wait", || bench.scheduler.loaded()[0].users == 3).await;
    let error = bench.acquire(&model).await.err().unwrap();
    assert_eq!(error.to_string(), "server busy, please try again.  maximum pending requests exceeded");
    // One who gives up makes room for another.
    third.abort();
    assert!(third.await.is_err());
    let fourth = wait(model.clone());
    bench.until("it waits", || bench.scheduler.loaded()[0].users == 3).await;
    drop(first);
    second.await.unwrap().unwrap();
    fourth.await.unwrap().unwrap();
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
    // Now nothing is idle: a third has to wait.
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

#[tokio::test]
async fn memory_is_estimated() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let (a, b) = (bench.model(1), bench.model(2));
    drop(bench.acquire(&a).await.unwrap());
    bench.free.store(0, Ordering::SeqCst);
    let error = bench.acquire(&b).await.err().unwrap();
    assert!(matches!(error, Error::Memory { available: 0, .. }), "{error}");
    assert!(bench.loaded().is_empty(), "what was idle had to go first");
    // Tight, but possible.
    bench.free.store(110 << 20, Ordering::SeqCst);
    assert!(bench.acquire(&b).await.is_ok());
}

#[tokio::test]
async fn models_leave_when_their_time_has_come() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let keep = |wanted: Wanted, keep_alive: KeepAlive| Wanted { keep_alive: Some(keep_alive), ..wanted };
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

    // The last request decides, and the default is for ever here.
    drop(bench.acquire(&keep(model.clone(), ms(5))).await.unwrap());
    drop(bench.acquire(&model).await.unwrap());
    let launched = bench.launched();
    tokio::time::sleep(Duration::from_millis(30)).await;
    drop(bench.acquire(&model).await.unwrap());
    assert!(bench.launched() <= launched + 1);
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!(bench.loaded().len(), 1);
    bench.scheduler.unload(&model.digest);
    bench.until("it is unloaded on demand", || bench.loaded().is_empty()).await;
}

#[tokio::test]
async fn a_longer_context_loads_again() {
    let bench = bench(InProcess::fake(), |_| {}).await;
    let model = bench.model(1);
    let ctx = |num_ctx: usize| Wanted { num_ctx: Some(num_ctx), ..model.clone() };
    drop(bench.acquire(&model).await.unwrap());
    drop(bench.acquire(&ctx(100)).await.unwrap());
    assert_eq!(bench.launched(), 1, "shorter is a limit, not another load");
    let in_use = bench.acquire(&model).await.unwrap();
    let scheduler = bench.scheduler.clone();
    let longer = ctx(1000);
    let waiting =
        tokio::spawn(
            async move { scheduler.acquire(longer).await.map(|t| t.model().loaded().context_length) },
        );
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished(), "it waits for those in flight");
    drop(in_use);
    assert_eq!(waiting.await.unwrap().unwrap(), 1000);
    assert_eq!(bench.launched(), 2);
    // The pretended model's own limit is 2048: asking for more than that loads once.
    drop(bench.acquire(&ctx(1_000_000)).await.unwrap());
    drop(bench.acquire(&ctx(2_000_000)).await.unwrap());
    assert_eq!(bench.launched(), 3);
}

#[tokio::test]
async fn what_does_not_load_says_why_and_leaves_nothing() {
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

    // A runner that ends while it loads is no answer to a request, and not asked again for it.
    let ending = InProcess::new(Arc::new(|_| Err(RunnerError::stopped("on its way out"))));
    let bench = self::bench(ending, |_| {}).await;
    let model = bench.model(1);
    assert!(matches!(bench.acquire(&model).await.err().unwrap(), Error::LoadEnded));
    assert_eq!(bench.launched(), 1);

    // It loads for as long as it is waited for.
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
