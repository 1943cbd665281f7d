//! Estimates how much memory a model needs, and reads how much is free. Estimates are based on the model
//! config and the sizes of its layers. A wrong estimate costs an unnecessary eviction or leaves little memory
//! free; it never affects results.

use serde_json::Value;

use crate::arch::{Config, Plan, Shape};
use crate::cache::Model;
use crate::engine::ort::RUN_TOKENS;
use lode_kernels::cuda::{MAX_PARTIAL_BYTES, cache_row_bytes};
use lode_kernels::{CacheShape, KvType, PAGE_LEN};
use lode_model::import::is_text_generator;

/// A model fits if it leaves a fifth of the free memory.
const MAX_FREE_SHARE: f64 = 0.8;
/// Memory of a runner besides weights and cache: the program, its threads, the tokenizer.
const OVERHEAD_BYTES: u64 = 96 << 20;
/// Maximum number of rows in a step: as many as the engine processes in one pass.
const STEP_ROWS: u64 = 512;

/// Maximum number of rows of logits in one pass of the engine.
const LOGIT_ROWS: u64 = 128;
/// The part of the weights that is added for padding and for whole pages.
const CARD_WEIGHTS_DIVISOR: u64 = 16;
/// Memory of a process's context and of its kernels on a GPU, besides [`OVERHEAD_BYTES`].
const CARD_CONTEXT_BYTES: u64 = 416 << 20;
/// The runtime's own copy of an ONNX model's weights, and the buffer or message from which it was made.
const ONNX_COPIES: u64 = 2;

/// The memory that a loaded model needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    pub weights_bytes: u64,
    pub cache: CacheEstimate,
    /// Activations and logits of one step.
    pub step_bytes: u64,
}

/// The KV cache of a loaded model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheEstimate {
    pub bytes_per_token: u64,
    /// Number of tokens, for all sequences together.
    pub tokens: u64,
    /// The smallest number of tokens with which the model can be loaded.
    pub min_tokens: u64,
}

impl CacheEstimate {
    pub fn bytes(&self) -> u64 {
        self.bytes_per_token.saturating_mul(self.tokens)
    }
}

impl Estimate {
    /// Estimates the memory for a model with `num_parallel` sequences of `context` tokens each.
    pub fn of(model: &Model, context: usize, num_parallel: usize, kv_cache_type: &str) -> Estimate {
        let weights_bytes = model.tensor_bytes;
        if model.spec.format() == "onnx" {
            let config = OnnxConfig(&model.config);
            let copies = weights_bytes.saturating_mul(ONNX_COPIES);
            let step_bytes = config.step_bytes(context).saturating_add(copies);
            return Estimate { weights_bytes, cache: config.cache(context, num_parallel), step_bytes };
        }
        match plan_shape(&model.config) {
            Some((shape, encoder)) => {
                let cache = cache(&shape, encoder, context, num_parallel, kv_cache_type);
                Estimate { weights_bytes, cache, step_bytes: step_bytes(&shape, num_parallel) }
            }
            // A model that cannot run is refused at load, with the reason.
            None => Estimate { weights_bytes, ..Estimate::default() },
        }
    }

    /// As [`of`](Self::of), for the memory of a GPU. Weights are padded at the ends of their rows, the driver
    /// allocates in whole pages, and attention over a long context keeps partial results. The process needs little
    /// memory of the machine: weights are mapped. ONNX models are limited by the same budget, also if the ONNX
    /// Runtime computes them on the CPU.
    pub fn on_card(model: &Model, context: usize, num_parallel: usize, kv_cache_type: &str) -> Estimate {
        if model.spec.format() == "onnx" {
            return Self::of(model, context, num_parallel, kv_cache_type);
        }
        let weights_bytes = model.tensor_bytes.saturating_add(model.tensor_bytes / CARD_WEIGHTS_DIVISOR);
        let Some((shape, encoder)) = plan_shape(&model.config) else {
            return Estimate { weights_bytes, step_bytes: CARD_CONTEXT_BYTES, ..Estimate::default() };
        };
        let logits = (shape.vocab_size as u64).saturating_mul(4 * LOGIT_ROWS);
        Estimate {
            weights_bytes,
            cache: card_cache(&shape, encoder, context, num_parallel, kv_cache_type),
            step_bytes: step_bytes(&shape, num_parallel)
                .saturating_add(logits)
                .saturating_add(MAX_PARTIAL_BYTES)
                .saturating_add(CARD_CONTEXT_BYTES),
        }
    }

    /// With a smaller cache, if the model does not fit comfortably into `available` bytes otherwise. The runner then
    /// suspends sequences when the cache is full.
    pub fn fit_into(mut self, available: u64) -> Estimate {
        let rest = self.needed().saturating_sub(self.cache.bytes());
        let for_cache = comfortable(available).saturating_sub(rest);
        let page = PAGE_LEN as u64;
        let tokens = for_cache / self.cache.bytes_per_token.max(1) / page * page;
        self.cache.tokens = self.cache.tokens.min(tokens.max(self.cache.min_tokens));
        self
    }

    pub fn needed(&self) -> u64 {
        [self.cache.bytes(), self.step_bytes, OVERHEAD_BYTES]
            .into_iter()
            .fold(self.weights_bytes, u64::saturating_add)
    }
}

/// Whether `free` bytes are enough for `needed`, with some to spare.
pub(super) fn fits_comfortably(needed: u64, free: u64) -> bool {
    needed <= comfortable(free)
}

/// The part of `free` bytes that a model may take.
fn comfortable(free: u64) -> u64 {
    (free as f64 * MAX_FREE_SHARE) as u64
}

/// The shape of a model, including the family's defaults for values missing from its config, and whether it
/// is an encoder.
fn plan_shape(config: &Value) -> Option<(Shape, bool)> {
    let config = Config::parse(&serde_json::to_vec(config).ok()?).ok()?;
    let plan = Plan::new(&config).ok()?;
    Some((plan.shape(), plan.is_encoder()))
}

/// The KV cache for all sequences at full length, in the engine's layout.
fn cache(
    shape: &Shape,
    encoder: bool,
    context: usize,
    num_parallel: usize,
    kv_cache_type: &str,
) -> CacheEstimate {
    let cache = cache_shape(shape, encoder, kv_cache_type);
    cache_of_tokens(cache.bytes_per_token() as u64, shape, context, num_parallel)
}

/// The same in the layout of a GPU, which pads the rows of heads.
fn card_cache(
    shape: &Shape,
    encoder: bool,
    context: usize,
    num_parallel: usize,
    kv_cache_type: &str,
) -> CacheEstimate {
    let cache = cache_shape(shape, encoder, kv_cache_type);
    let row = cache_row_bytes(cache.dtype, cache.head_dim) as u64;
    let rows = 2 * (cache.layers as u64).saturating_mul(cache.n_kv_heads as u64);
    cache_of_tokens(rows.saturating_mul(row), shape, context, num_parallel)
}

fn cache_shape(shape: &Shape, encoder: bool, kv_cache_type: &str) -> CacheShape {
    let (layers, kv_type) = match encoder {
        // An encoder keeps keys and values only during the step.
        true => (1, KvType::F32),
        // The worker checked the setting when it started.
        false => (shape.layers, kv_cache_type.parse().unwrap_or_default()),
    };
    let (n_kv_heads, head_dim, dtype) = (shape.n_kv_heads, shape.head_dim, kv_type.dtype());
    CacheShape { layers, pages: 0, n_kv_heads, head_dim, dtype }
}

fn cache_of_tokens(
    bytes_per_token: u64,
    shape: &Shape,
    context: usize,
    num_parallel: usize,
) -> CacheEstimate {
    let min_tokens = context.clamp(1, shape.context_length).next_multiple_of(PAGE_LEN) as u64;
    let tokens = min_tokens.saturating_mul(num_parallel.max(1) as u64);
    CacheEstimate { bytes_per_token, tokens, min_tokens }
}

/// Activations of the longest step, and the logits of all sequences until they are sampled.
fn step_bytes(shape: &Shape, num_parallel: usize) -> u64 {
    let attention = shape.n_heads.saturating_add(shape.n_kv_heads).saturating_mul(shape.head_dim);
    let columns =
        [shape.embedding_length, attention, shape.hidden_dim].into_iter().fold(0, usize::saturating_add);
    let rows = STEP_ROWS.saturating_mul(2 * 4).saturating_mul(columns as u64);
    let logits = (shape.vocab_size as u64).saturating_mul(3 * 4).saturating_mul(num_parallel.max(1) as u64);
    rows.saturating_add(logits)
}

/// The configuration of an ONNX model, of any family.
struct OnnxConfig<'a>(&'a Value);

impl OnnxConfig<'_> {
    /// The first of these fields; GPT-2 and others have names of their own.
    fn number(&self, names: &[&str], default: u64) -> u64 {
        names.iter().find_map(|name| self.0.get(name).and_then(Value::as_u64)).unwrap_or(default)
    }

    fn tokens(&self, context: usize) -> u64 {
        self.number(&["max_position_embeddings", "n_positions"], 512).min(context as u64).max(1)
    }

    fn width(&self) -> u64 {
        self.number(&["hidden_size", "n_embd"], 768)
    }

    fn heads(&self) -> u64 {
        self.number(&["num_attention_heads", "n_head"], 12).max(1)
    }

    /// Activations of a run: hidden states, the wider states between two of them, and the attention scores of one
    /// layer, twice each.
    fn step_bytes(&self, context: usize) -> u64 {
        let (longest, width) = (self.tokens(context), self.width());
        let tokens = longest.max(RUN_TOKENS as u64);
        let between = self.number(&["intermediate_size", "n_inner"], width.saturating_mul(4));
        let columns = width.saturating_mul(4).saturating_add(between);
        let columns = columns.saturating_add(self.heads().saturating_mul(longest));
        tokens.saturating_mul(2 * 4).saturating_mul(columns)
    }

    /// Keys and values of a decoder in float32. A run returns a copy of those that it is given, which may be a copy
    /// themselves. Sequences do not share a cache, so it cannot be smaller.
    fn cache(&self, context: usize, num_parallel: usize) -> CacheEstimate {
        let class = self.0.get("architectures").and_then(|names| names.get(0)).and_then(Value::as_str);
        if !class.is_some_and(is_text_generator) {
            return CacheEstimate::default();
        }
        let head_dim = self.number(&["head_dim"], self.width() / self.heads());
        let kv_heads = self.number(&["num_key_value_heads"], self.heads());
        let layers = self.number(&["num_hidden_layers", "n_layer"], 12);
        let bytes_per_token = [kv_heads, head_dim, 2 * 4 * 3].into_iter().fold(layers, u64::saturating_mul);
        let tokens = self.tokens(context).saturating_mul(num_parallel.max(1) as u64);
        CacheEstimate { bytes_per_token, tokens, min_tokens: tokens }
    }
}

/// This machine's memory: the total, and what is available now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

impl Memory {
    /// Reads the kernel's figures and the limits of this process's control group, if there is one.
    pub fn now() -> Memory {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut memory = parse_meminfo(&read("/proc/meminfo"));
        let group = |name: &str| read(&format!("/sys/fs/cgroup/{name}")).trim().parse::<u64>().ok();
        if let (Some(limit), Some(used)) = (group("memory.max"), group("memory.current")) {
            memory.total_bytes = memory.total_bytes.min(limit);
            // Page cache counts as used there but can be reclaimed, as in MemAvailable. The ledger's promises
            // cover the page cache that models need.
            let stat = read("/sys/fs/cgroup/memory.stat");
            let cached = parse_stat(&stat, "inactive_file").saturating_add(parse_stat(&stat, "active_file"));
            memory.free_bytes = memory.free_bytes.min(limit.saturating_sub(used.saturating_sub(cached)));
        }
        memory
    }
}

fn parse_meminfo(text: &str) -> Memory {
    let kibibytes = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    Memory { total_bytes: kibibytes("MemTotal"), free_bytes: kibibytes("MemAvailable") }
}

fn parse_stat(text: &str, key: &str) -> u64 {
    text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(architecture: &str, more: Value) -> Value {
        let mut config = json!({"architectures": [architecture], "num_hidden_layers": 4, "hidden_size": 256,
            "intermediate_size": 512, "num_attention_heads": 4, "vocab_size": 1000, "max_position_embeddings": 512});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    }

    #[test]
    fn cache_of_a_context() {
        let check = |config: &Value, kind: &str, (context, parallel): (usize, usize), expect: u64| {
            let (shape, encoder) = plan_shape(config).unwrap();
            let cache = cache(&shape, encoder, context, parallel, kind);
            assert_eq!(cache.bytes(), expect, "{config} {kind}");
        };
        let llama = config("LlamaForCausalLM", json!({"num_key_value_heads": 2, "head_dim": 64}));
        check(&llama, "f32", (64, 1), 64 * 4096);
        check(&llama, "f16", (64, 4), 4 * 64 * 2048);
        check(&llama, "q8_0", (64, 1), 64 * 1088);
        // Limited to the model's maximum context, and rounded up to whole pages.
        check(&llama, "f16", (9999, 1), 512 * 2048);
        check(&llama, "f16", (33, 1), 64 * 2048);
        // A head of 20 values takes a block of 32.
        let narrow = config("LlamaForCausalLM", json!({"head_dim": 20, "num_key_value_heads": 4}));
        check(&narrow, "q8_0", (32, 1), 32 * 2 * 4 * 4 * 34);
        // Without `num_key_value_heads`, there are as many key heads as query heads.
        check(&config("LlamaForCausalLM", json!({})), "f16", (32, 1), 32 * 2 * 4 * 4 * 64 * 2);
        // An encoder keeps one layer at a time, in full precision.
        let bert = config("BertModel", json!({"hidden_act": "gelu"}));
        check(&bert, "f16", (32, 1), 32 * 2 * 4 * 64 * 4);
    }

    /// The layout of a GPU: a row of a head has whole units of sixteen bytes.
    #[test]
    fn cache_of_a_context_on_a_card() {
        let check = |config: &Value, kind: &str, expect: u64| {
            let (shape, encoder) = plan_shape(config).unwrap();
            assert_eq!(card_cache(&shape, encoder, 64, 2, kind).bytes(), expect, "{config} {kind}");
        };
        let llama = config("LlamaForCausalLM", json!({"num_key_value_heads": 2, "head_dim": 64}));
        check(&llama, "f16", 2 * 64 * 2048);
        // Two blocks of 34 bytes take 80.
        check(&llama, "q8_0", 2 * 64 * (2 * 4 * 2 * 80));
        let bert = config("BertModel", json!({"hidden_act": "gelu"}));
        check(&bert, "f16", 2 * 64 * (2 * 4 * 64 * 4));
    }

    /// Gemma 3's published config omits the numbers of heads.
    #[test]
    fn family_defaults_are_used() {
        let text = json!({"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024});
        let config = json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text});
        let (shape, encoder) = plan_shape(&config).unwrap();
        assert_eq!((shape.n_kv_heads, shape.head_dim), (4, 256));
        let cache = cache(&shape, encoder, 4096, 2, "f16");
        assert_eq!(cache.bytes(), 2 * 4096 * 34 * 2 * 4 * 256 * 2);
    }

    #[test]
    fn unsupported_models_have_no_plan() {
        for config in
            [json!({}), json!(null), config("LlamaForCausalLM", json!({"num_hidden_layers": u64::MAX}))]
        {
            assert!(plan_shape(&config).is_none(), "{config}");
        }
    }

    #[test]
    fn activations_of_onnx_models() {
        let config = json!({"hidden_size": 100, "intermediate_size": 200, "num_attention_heads": 4,
            "max_position_embeddings": 512});
        // Short contexts are batched, so there are always as many tokens.
        assert_eq!(OnnxConfig(&config).step_bytes(64), 2048 * 8 * (400 + 200 + 4 * 64));
        assert_eq!(OnnxConfig(&config).step_bytes(9999), 2048 * 8 * (400 + 200 + 4 * 512));
        let long = json!({"hidden_size": u64::MAX, "max_position_embeddings": 8192});
        assert_eq!(OnnxConfig(&long).step_bytes(8192), u64::MAX);
    }

    #[test]
    fn caches_of_onnx_decoders() {
        let cache = |config: &Value| OnnxConfig(config).cache(100, 3).bytes();
        assert_eq!(cache(&json!({"architectures": ["BertModel"], "hidden_size": 64})), 0);
        let llama = json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 5});
        assert_eq!(cache(&llama), 5 * 2 * (2 * 32 * 4) * 100 * 3 * 3);
        let gpt2 = json!({"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4, "n_layer": 5,
            "n_positions": 80});
        assert_eq!(cache(&gpt2), 5 * 2 * (4 * 16 * 4) * 80 * 3 * 3);
        let absurd = json!({"architectures": ["XForCausalLM"], "n_embd": u64::MAX, "n_layer": u64::MAX});
        assert_eq!(cache(&absurd), u64::MAX);
    }

    #[test]
    fn fitting() {
        let cache = CacheEstimate { bytes_per_token: 1 << 10, tokens: 3 << 10, min_tokens: 1 << 10 };
        let estimate = Estimate { weights_bytes: 700 << 20, cache, step_bytes: 1 << 20 };
        assert_eq!(estimate.needed(), 800 << 20);
        let needed = estimate.needed();
        assert!(fits_comfortably(needed, 1000 << 20) && !fits_comfortably(needed, 999 << 20));
    }

    #[test]
    fn caches_shrink_to_the_memory() {
        let cache = CacheEstimate { bytes_per_token: 1 << 10, tokens: 3 << 10, min_tokens: 1 << 10 };
        let estimate = Estimate { weights_bytes: 700 << 20, cache, step_bytes: 1 << 20 };
        let tokens = |available: u64| {
            let fitted = estimate.fit_into(available);
            let is_least = fitted.cache.tokens == fitted.cache.min_tokens;
            assert!(fits_comfortably(fitted.needed(), available) || is_least, "{available}");
            fitted.cache.tokens
        };
        assert_eq!((tokens(u64::MAX), tokens(1000 << 20)), (3 << 10, 3 << 10));
        // 799 MiB, of which the cache gets 2 MiB: whole pages only.
        assert_eq!(tokens((799 << 20) * 10 / 8 + 10), 2 << 10);
        assert_eq!(tokens(((799 << 20) - (40 << 10)) * 10 / 8 + 10), (2 << 10) - 64);
        // Not less than a sequence.
        assert_eq!((tokens(500 << 20), tokens(0)), (1 << 10, 1 << 10));
        // Models without a cache.
        let none = Estimate { weights_bytes: 1, ..Estimate::default() };
        assert_eq!(none.fit_into(0), none);
    }

    #[test]
    fn meminfo_and_stat_are_parsed() {
        let memory = parse_meminfo("MemTotal:       2048 kB\nMemFree:  1 kB\nMemAvailable:    1024 kB\n");
        assert_eq!((memory.total_bytes, memory.free_bytes), (2 << 20, 1 << 20));
        assert_eq!(parse_stat("anon 5\ninactive_file 77\n", "inactive_file"), 77);
        assert!(Memory::now().total_bytes >= Memory::now().free_bytes);
    }
}
