//! Converts the hyper-parameters of a checkpoint's config.json to GGUF keys (llama.cpp
//! `gguf-py/gguf/constants.py`) and computes the tables of the rotary embedding.

use std::f64::consts::PI;

use serde_json::Value as Json;

use super::error::ConvertError;
use super::family::{Family, Window};
use crate::gguf::Metadata;

/// The rope scaling of a checkpoint that has none.
static NO_SCALING: Json = Json::Null;

/// The largest accepted head dimension. Tables have one entry per pair of elements, so a larger value is a
/// mistake.
pub(super) const MAX_HEAD_DIM: u64 = 1 << 16;

/// The hyper-parameters that the conversion itself needs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HyperParameters {
    pub(super) family: &'static Family,
    pub(super) n_layers: u64,
    pub(super) n_heads: u64,
    pub(super) n_kv_heads: u64,
    pub(super) head_dim: u64,
    pub(super) vocab_size: u64,
    pub(super) n_experts: u64,
    /// Whether the embedding is also the output matrix.
    pub(super) is_tied: bool,
    /// Names and values of tensors that are computed rather than read from the checkpoint.
    pub(super) tables: Vec<(&'static str, Vec<f32>)>,
    pub(super) notices: Vec<String>,
}

/// The parsed config.json. Its methods return errors that name the key.
struct Config<'a>(&'a Json);

impl Config<'_> {
    /// Returns a key that is present and not null.
    fn get(&self, key: &str) -> Option<&Json> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn optional(&self, key: &str) -> Result<Option<u64>, ConvertError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        // GGUF stores these values in 32 bits.
        let number = value.as_u64().filter(|number| u32::try_from(*number).is_ok());
        number.map(Some).ok_or_else(|| invalid_key(key, value, "a 32-bit number"))
    }

    fn number(&self, key: &str) -> Result<u64, ConvertError> {
        self.optional(key)?.ok_or_else(|| missing_key(key))
    }

    /// Returns a number that is used as a divisor.
    fn count(&self, key: &str) -> Result<u64, ConvertError> {
        match self.number(key)? {
            0 => Err(invalid_key(key, &Json::from(0), "at least 1")),
            number => Ok(number),
        }
    }

    fn float(&self, key: &str) -> Result<f64, ConvertError> {
        let value = self.get(key).ok_or_else(|| missing_key(key))?;
        value.as_f64().ok_or_else(|| invalid_key(key, value, "a number"))
    }
}

fn missing_key(key: &str) -> ConvertError {
    ConvertError::MissingKey { key: key.to_owned() }
}

fn invalid_key(key: &str, found: &Json, expected: &'static str) -> ConvertError {
    ConvertError::Key { key: key.to_owned(), found: found.to_string().chars().take(60).collect(), expected }
}

/// Writes the keys of the architecture.
pub(super) fn write(metadata: &mut Metadata, config: &Json) -> Result<HyperParameters, ConvertError> {
    let c = Config(config);
    let model_type = c.get("model_type").and_then(Json::as_str).ok_or_else(|| missing_key("model_type"))?;
    let family = Family::of(model_type).ok_or_else(|| ConvertError::ModelType {
        model_type: model_type.chars().take(60).collect(),
        known: Family::known_model_types().join(", "),
    })?;
    // EmbeddingGemma has the model_type of Gemma 3.
    if let Some(found @ Json::Bool(true)) = c.get("use_bidirectional_attention") {
        return Err(invalid_key(
            "use_bidirectional_attention",
            found,
            "false, because encoders are not converted to GGUF",
        ));
    }
    let (width, n_layers) = (c.count("hidden_size")?, c.count("num_hidden_layers")?);
    let n_heads = c.count("num_attention_heads")?;
    let n_kv_heads = match c.optional("num_key_value_heads")? {
        Some(0) => return Err(invalid_key("num_key_value_heads", &Json::from(0), "at least 1")),
        Some(number) => number,
        None => n_heads,
    };
    let head_dim = match c.optional("head_dim")? {
        Some(0) | None => width / n_heads,
        Some(head_dim) => head_dim,
    };
    if head_dim == 0 || !head_dim.is_multiple_of(2) || head_dim > MAX_HEAD_DIM {
        return Err(invalid_key("head_dim", &Json::from(head_dim), "an even number up to 65536"));
    }
    let vocab_size = c.count("vocab_size")?;
    let mut hyper = HyperParameters {
        family,
        n_layers,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab_size,
        n_experts: 0,
        is_tied: c.get("tie_word_embeddings").and_then(Json::as_bool).unwrap_or(family.is_gemma),
        tables: Vec::new(),
        notices: Vec::new(),
    };
    let partial = match c.get("partial_rotary_factor") {
        Some(value) => value
            .as_f64()
            .filter(|factor| (0.0..=1.0).contains(factor))
            .ok_or_else(|| invalid_key("partial_rotary_factor", value, "a number from 0 to 1"))?,
        None => 1.0,
    };
    let rotated = (head_dim as f64 * partial) as u64;

    let architecture = family.architecture;
    // `Config::optional` has checked that the values fit in 32 bits.
    let mut set = |key: &str, value: u64| metadata.set(format!("{architecture}.{key}"), value as u32);
    set("context_length", c.number("max_position_embeddings")?);
    set("embedding_length", width);
    set("block_count", n_layers);
    set("feed_forward_length", c.number("intermediate_size")?);
    set("attention.head_count", n_heads);
    set("attention.head_count_kv", n_kv_heads);
    set("attention.key_length", head_dim);
    set("attention.value_length", head_dim);
    set("rope.dimension_count", rotated);
    set("vocab_size", vocab_size);
    if let Some(key) = family.experts_key {
        hyper.n_experts = c.count(key)?;
        set("expert_count", hyper.n_experts);
        set("expert_used_count", c.count("num_experts_per_tok")?);
    }
    if family.has_expert_width {
        set("expert_feed_forward_length", c.count("moe_intermediate_size")?);
    }
    match family.window {
        Window::Ignored => {}
        Window::Required => set("attention.sliding_window", c.number("sliding_window")?),
        Window::Optional => set("attention.sliding_window", c.optional("sliding_window")?.unwrap_or(0)),
        Window::Lost => {
            if let Some(window) = c.optional("sliding_window")? {
                hyper.notices.push(format!(
                    "a GGUF of this architecture does not carry the sliding window of {window} tokens: texts that are \
                     longer see further back than the checkpoint does"
                ));
            }
        }
    }
    let mut float = |key: &str, value: f64| metadata.set(format!("{architecture}.{key}"), value as f32);
    float("attention.layer_norm_rms_epsilon", c.float("rms_norm_eps")?);
    if family.has_soft_caps {
        float("attn_logit_softcapping", c.float("attn_logit_softcapping")?);
        float("final_logit_softcapping", c.float("final_logit_softcapping")?);
    }
    write_rope(metadata, &c, &mut hyper, rotated)?;
    Ok(hyper)
}

/// Writes the base and the scaling of the rotary embedding. Newer files keep both in `rope_parameters`, older
/// ones in separate keys. Gemma 3 has two sets; a GGUF stores the set of its global layers.
fn write_rope(
    metadata: &mut Metadata,
    c: &Config,
    hyper: &mut HyperParameters,
    rotated: u64,
) -> Result<(), ConvertError> {
    let parameters = c.get("rope_parameters");
    let parameters = parameters.map(|all| all.get("full_attention").unwrap_or(all));
    let scaling = Config(parameters.or(c.get("rope_scaling")).unwrap_or(&NO_SCALING));
    let theta = scaling.get("rope_theta").or(c.get("rope_theta")).and_then(Json::as_f64);
    let theta = theta.unwrap_or(10_000.0);
    let architecture = hyper.family.architecture;
    let key = |key: &str| format!("{architecture}.rope.{key}");
    metadata.set(key("freq_base"), theta as f32);

    let kind = scaling.get("rope_type").or(scaling.get("type")).and_then(Json::as_str).unwrap_or("default");
    let original = || match scaling.get("original_max_position_embeddings") {
        Some(_) => scaling.number("original_max_position_embeddings"),
        None => c.number("original_max_position_embeddings"),
    };
    if hyper.family.has_long_rope {
        metadata.set(key("scaling.original_context_length"), original()? as u32);
    }
    match kind {
        "default" | "none" => {}
        "linear" | "yarn" => {
            let factor = scaling.float("factor")?;
            metadata.set(key("scaling.type"), kind);
            metadata.set(key("scaling.factor"), factor as f32);
            if kind == "yarn" {
                metadata.set(key("scaling.original_context_length"), original()? as u32);
                for name in ["beta_fast", "beta_slow"] {
                    if let Some(value) = scaling.get(name).and_then(Json::as_f64) {
                        metadata.set(key(&format!("scaling.yarn_{name}")), value as f32);
                    }
                }
                // config.json has the whole factor of cosines and sines. GGUF stores only its multiplier of
                // YaRN's default factor.
                if let Some(whole) = scaling.get("attention_factor").and_then(Json::as_f64) {
                    metadata.set(key("scaling.attn_factor"), (whole / (1.0 + 0.1 * factor.ln())) as f32);
                }
            }
        }
        "llama3" => {
            let factors = llama3_factors(&Llama3::read(&scaling)?, theta, rotated);
            hyper.tables.push(("rope_freqs.weight", factors));
        }
        "longrope" | "su" if hyper.family.has_long_rope => {
            let (context, original) = (c.number("max_position_embeddings")? as f64, original()? as f64);
            let stretch = context / original;
            let factor = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() };
            metadata.set(key("scaling.attn_factor"), factor as f32);
            for (key, name) in
                [("long_factor", "rope_factors_long.weight"), ("short_factor", "rope_factors_short.weight")]
            {
                let found = scaling.get(key).ok_or_else(|| missing_key(key))?;
                let values: Option<Vec<f32>> =
                    found.as_array().and_then(|all| all.iter().map(|x| Some(x.as_f64()? as f32)).collect());
                let values = values.filter(|values| values.len() as u64 == rotated / 2);
                hyper
                    .tables
                    .push((name, values.ok_or_else(|| invalid_key(key, found, "a number for each pair"))?));
            }
        }
        kind => return Err(invalid_key("rope_scaling", &Json::from(kind), "a scaling that GGUF supports")),
    }
    Ok(())
}

/// The parameters of Llama 3's scaling.
pub(super) struct Llama3 {
    pub(super) factor: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) original: u64,
}

impl Llama3 {
    fn read(scaling: &Config) -> Result<Llama3, ConvertError> {
        Ok(Llama3 {
            factor: scaling.float("factor")?,
            low: scaling.float("low_freq_factor")?,
            high: scaling.float("high_freq_factor")?,
            original: scaling.number("original_max_position_embeddings")?,
        })
    }
}

/// Returns the divisors of Llama 3's frequencies: 1 for short waves, the factor for long ones, and a blend in
/// between.
pub(super) fn llama3_factors(scaling: &Llama3, theta: f64, rotated: u64) -> Vec<f32> {
    let Llama3 { factor, low, high, original } = *scaling;
    let original = original as f64;
    (0..rotated / 2)
        .map(|pair| {
            let wave = 2.0 * PI / theta.powf(-((2 * pair) as f64) / rotated as f64);
            if wave < original / high {
                1.0
            } else if wave > original / low {
                factor as f32
            } else {
                let smooth = (original / wave - low) / (high - low);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn written(more: Json) -> Result<(Metadata, HyperParameters), String> {
        let mut config = json!({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512,
            "max_position_embeddings": 512, "rms_norm_eps": 1e-6});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let mut metadata = Metadata::new();
        let hyper = write(&mut metadata, &config).map_err(|error| error.to_string())?;
        Ok((metadata, hyper))
    }

    #[test]
    fn both_spellings_of_rope() {
        let old = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}});
        let new = json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0}});
        assert_eq!(written(old).unwrap(), written(new).unwrap());
        let (metadata, _) = written(json!({"rope_scaling": null})).unwrap();
        assert_eq!(metadata.f64("llama.rope.freq_base"), Some(10_000.0));
        assert_eq!(metadata.get("llama.rope.scaling.type"), None);
    }

    #[test]
    fn long_rope_of_phi() {
        let factors: Vec<f64> = (0..8).map(|n| 1.0 + f64::from(n)).collect();
        let (metadata, hyper) = written(json!({"model_type": "phi3", "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "rope_scaling": {"type": "longrope", "long_factor": factors, "short_factor": factors}}))
        .unwrap();
        let factor = metadata.f64("phi3.rope.scaling.attn_factor").unwrap();
        assert!((factor - 1.190_238).abs() < 1e-5, "{factor}");
        assert_eq!(metadata.u64("phi3.rope.scaling.original_context_length"), Some(4096));
        let names: Vec<_> = hyper.tables.iter().map(|(name, values)| (*name, values.len())).collect();
        assert_eq!(names, [("rope_factors_long.weight", 8), ("rope_factors_short.weight", 8)]);
    }

    #[test]
    fn invalid_keys_are_named() {
        for (more, expect) in [
            (json!({"model_type": "bert"}), "`bert`"),
            (json!({"hidden_size": null}), "`hidden_size`"),
            (json!({"num_attention_heads": 0}), "`num_attention_heads`"),
            (json!({"vocab_size": 5_000_000_000u64}), "`vocab_size`"),
            (json!({"head_dim": 4_000_000_000u64}), "`head_dim`"),
            (json!({"partial_rotary_factor": 1e300}), "`partial_rotary_factor`"),
            (json!({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}), "dynamic"),
            (json!({"model_type": "phi3"}), "`original_max_position_embeddings`"),
            (json!({"use_bidirectional_attention": true}), "encoders are not converted to GGUF"),
        ] {
            let error = written(more).unwrap_err();
            assert!(error.contains(expect), "{error}");
        }
    }
}
