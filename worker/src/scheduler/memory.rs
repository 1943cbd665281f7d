//! How much memory a model will need, and how much there is. Estimates come from config.json and the layers' sizes.
//! Wrong guesses cost an eviction too many or a tight fit, never a wrong answer.

use serde_json::Value;

use crate::cache::Model;

/// A model counts as fitting if it leaves a fifth free.
const COMFORT: f64 = 0.8;
/// A runner's own needs beside weights and cache.
const OVERHEAD_BYTES: u64 = 96 << 20;

/// What a model needs when loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    pub weights_bytes: u64,
    pub cache_bytes: u64,
}

impl Estimate {
    /// Of a model with `num_parallel` sequences of `context` tokens each.
    pub fn of(model: &Model, context: usize, num_parallel: usize, kv_cache_type: &str) -> Estimate {
        let per_token = cache_bytes_per_token(&model.config, kv_cache_type);
        let longest = number(&model.config, "max_position_embeddings").unwrap_or(u64::MAX);
        let tokens = (context as u64).min(longest).saturating_mul(num_parallel as u64);
        Estimate { weights_bytes: model.tensor_bytes, cache_bytes: per_token.saturating_mul(tokens) }
    }

    pub fn needed(&self) -> u64 {
        self.weights_bytes.saturating_add(self.cache_bytes).saturating_add(OVERHEAD_BYTES)
    }

    pub fn fits(&self, free: u64) -> bool {
        self.needed() as f64 <= free as f64 * COMFORT
    }
}

/// Keys and values of one token in all layers; 0 where the config does not say.
fn cache_bytes_per_token(config: &Value, kv_cache_type: &str) -> u64 {
    let get = |key: &str| number(config, key);
    let heads = get("num_attention_heads");
    let kv_heads = get("num_key_value_heads").or(heads);
    let head_dim = get("head_dim").or_else(|| Some(get("hidden_size")? / heads?.max(1)));
    let (Some(layers), Some(kv_heads), Some(head_dim)) = (get("num_hidden_layers"), kv_heads, head_dim)
    else {
        return 0;
    };
    let values = layers.saturating_mul(kv_heads).saturating_mul(head_dim).saturating_mul(2);
    match kv_cache_type {
        "f32" => values.saturating_mul(4),
        // 32 bytes and a two-byte scale for 32 values.
        "q8_0" => values.saturating_mul(34) / 32,
        _ => values.saturating_mul(2),
    }
}

fn number(config: &Value, key: &str) -> Option<u64> {
    config.get(key).or_else(|| config.get("text_config")?.get(key))?.as_u64()
}

/// This machine's memory: all of it, and what could be used now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    pub total_bytes: u64,
    pub free_bytes: u64,
}

impl Memory {
    /// Asks the kernel, and the control group that we may be confined to.
    pub fn now() -> Memory {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let mut memory = parse_meminfo(&read("/proc/meminfo"));
        let group = |name: &str| read(&format!("/sys/fs/cgroup/{name}")).trim().parse::<u64>().ok();
        if let (Some(limit), Some(used)) = (group("memory.max"), group("memory.current")) {
            memory.total_bytes = memory.total_bytes.min(limit);
            // Clean page cache counts as used there, and can be had back.
            let cached = parse_stat(&read("/sys/fs/cgroup/memory.stat"), "inactive_file");
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

    #[test]
    fn cache_of_a_token() {
        let check = |config: Value, kind: &str, expect: u64| {
            assert_eq!(cache_bytes_per_token(&config, kind), expect, "{config}")
        };
        let demo = json!({"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "hidden_size": 256});
        check(demo.clone(), "f32", 4096);
        check(demo.clone(), "f16", 2048);
        check(demo.clone(), "q8_0", 1088);
        check(
            json!({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}),
            "f16",
            2 * 64 * 2 * 2,
        );
        check(json!({"text_config": demo}), "f16", 2048);
        check(json!({}), "f16", 0);
        check(
            json!({"num_hidden_layers": u64::MAX, "num_attention_heads": u64::MAX, "head_dim": 1}),
            "f32",
            u64::MAX,
        );
    }

    #[test]
    fn fitting() {
        let estimate = Estimate { weights_bytes: 700 << 20, cache_bytes: 4 << 20 };
        assert_eq!(estimate.needed(), 800 << 20);
        assert!(estimate.fits(1000 << 20) && !estimate.fits(999 << 20));
    }

    #[test]
    fn what_the_kernel_says() {
        let memory = parse_meminfo("MemTotal:       2048 kB\nMemFree:  1 kB\nMemAvailable:    1024 kB\n");
        assert_eq!((memory.total_bytes, memory.free_bytes), (2 << 20, 1 << 20));
        assert_eq!(parse_stat("anon 5\ninactive_file 77\n", "inactive_file"), 77);
        assert!(Memory::now().total_bytes >= Memory::now().free_bytes);
    }
}
