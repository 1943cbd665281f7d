//! Writes the base and the scaling of the rotary embedding to config.json.

use serde_json::{Map, Value as Json, json};

use super::hyper::Hyper;
use super::keys::{Keys, decimal};
use super::tensors::List;
use crate::convert::error::ConvertError;
use crate::convert::hyper::{Llama3, llama3_factors};
use crate::gguf::Value;
use crate::source::Source;

/// How far a table may differ from that of Llama 3's formula, which other tools compute with fewer digits.
const TOLERANCE: f64 = 1e-5;

pub(super) fn write(
    k: &Keys,
    hyper: &Hyper,
    tensors: &List,
    source: &dyn Source,
    json: &mut Map<String, Json>,
    notices: &mut Vec<String>,
) -> Result<(), ConvertError> {
    let mut set = |key: &str, value: Json| json.insert(key.to_owned(), value);
    let rotated = k.optional("rope.dimension_count")?.unwrap_or(hyper.head_dim);
    if rotated == 0 || !rotated.is_multiple_of(2) || rotated > hyper.head_dim {
        return Err(k.invalid("rope.dimension_count", "an even number up to the length of keys"));
    }
    if rotated != hyper.head_dim {
        // Rounded down, the product with the head size has to be the number again.
        let exact = rotated as f64 / hyper.head_dim as f64;
        let is_exact = (hyper.head_dim as f64 * exact) as u64 == rotated;
        let share = if is_exact { exact } else { (rotated as f64 + 0.01) / hyper.head_dim as f64 };
        set("partial_rotary_factor", share.into());
    }
    let theta = k.float("rope.freq_base")?.unwrap_or(10_000.0);
    set("rope_theta", theta.into());

    let original = k.optional("rope.scaling.original_context_length")?;
    if let Some(original) = original.filter(|_| hyper.family.has_long_rope) {
        set("original_max_position_embeddings", original.into());
    }
    let pairs = rotated / 2;
    let table = |name: &str| tensors.table(name, pairs, source);
    let factor = match k.float("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => k.float("rope.scale_linear")?,
    };
    let kind = k.get("rope.scaling.type").and_then(Value::as_str);
    let long = (table("rope_factors_long.weight")?, table("rope_factors_short.weight")?);
    let scaling = match (table("rope_freqs.weight")?, long) {
        (Some(factors), _) => {
            let stretch = if kind == Some("linear") { factor.unwrap_or(1.0) } else { 1.0 };
            let factors: Vec<f64> = factors.into_iter().map(|x| decimal(f64::from(x)) * stretch).collect();
            match find_llama3(&factors, theta, rotated) {
                _ if factors.iter().all(|factor| *factor == 1.0) => Json::Null,
                Some(Llama3 { factor, low, high, original }) => json!({
                    "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
                    "original_max_position_embeddings": original,
                }),
                None => {
                    notices.push(
                        "`rope_freqs.weight` is not a table of Llama 3 and becomes a `longrope` scaling"
                            .to_owned(),
                    );
                    json!({
                        "rope_type": "longrope", "long_factor": factors, "short_factor": factors,
                        "attention_factor": k.float("rope.scaling.attn_factor")?.unwrap_or(1.0),
                        "original_max_position_embeddings": original.unwrap_or(hyper.context_length),
                    })
                }
            }
        }
        (None, (Some(long), Some(short))) if hyper.family.has_long_rope => {
            let decimals = |all: Vec<f32>| all.into_iter().map(|x| decimal(f64::from(x))).collect::<Vec<_>>();
            // Exactly these three keys: transformers refuses others in this family.
            json!({"type": "longrope", "long_factor": decimals(long), "short_factor": decimals(short)})
        }
        (None, (None, None)) => without_table(k, kind, factor, original.unwrap_or(hyper.context_length))?,
        _ => {
            let name = "rope_factors_long.weight";
            let tensor = if tensors.has(name) { name } else { "rope_factors_short.weight" };
            let architecture = hyper.family.architecture;
            return Err(ConvertError::UnknownTensor { tensor: tensor.to_owned(), architecture });
        }
    };
    set("rope_scaling", scaling);
    Ok(())
}

fn without_table(
    k: &Keys,
    kind: Option<&str>,
    factor: Option<f64>,
    original: u64,
) -> Result<Json, ConvertError> {
    match (kind, factor) {
        (Some("none" | "longrope"), _) | (None | Some("linear"), None) => Ok(Json::Null),
        (None | Some("linear"), Some(factor)) if factor == 1.0 || factor == 0.0 => Ok(Json::Null),
        (None | Some("linear"), Some(factor)) => Ok(json!({"rope_type": "linear", "factor": factor})),
        (Some("yarn"), factor) => {
            let factor = factor.ok_or_else(|| k.missing("rope.scaling.factor"))?;
            let mut yarn = Map::new();
            yarn.insert("rope_type".to_owned(), "yarn".into());
            yarn.insert("factor".to_owned(), factor.into());
            yarn.insert("original_max_position_embeddings".to_owned(), original.into());
            for name in ["beta_fast", "beta_slow"] {
                if let Some(value) = k.float(&format!("rope.scaling.yarn_{name}"))? {
                    yarn.insert(name.to_owned(), value.into());
                }
            }
            // A GGUF has the multiplier of YaRN's default factor, config.json the product.
            if let Some(more) = k.float("rope.scaling.attn_factor")? {
                let usual = if factor > 1.0 { 1.0 + 0.1 * factor.ln() } else { 1.0 };
                yarn.insert("attention_factor".to_owned(), decimal(f64::from((more * usual) as f32)).into());
            }
            Ok(Json::Object(yarn))
        }
        (Some(_), _) => Err(k.invalid("rope.scaling.type", "none, linear, yarn or longrope")),
    }
}

/// Finds the parameters whose table this is: the published models have the same bounds, and differ in the
/// factor and in the original context length.
fn find_llama3(factors: &[f64], theta: f64, rotated: u64) -> Option<Llama3> {
    const LENGTHS: [u32; 16] = [13, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20];
    let largest = factors.iter().copied().fold(1.0, f64::max);
    LENGTHS.into_iter().map(|bits| 1u64 << bits).find_map(|original| {
        let candidate = Llama3 { factor: largest, low: 1.0, high: 4.0, original };
        let made = llama3_factors(&candidate, theta, rotated);
        let is_near = |(ours, theirs): (f32, &f64)| (f64::from(ours) - theirs).abs() <= TOLERANCE * theirs;
        (made.len() == factors.len() && made.into_iter().zip(factors).all(is_near)).then_some(candidate)
    })
}
