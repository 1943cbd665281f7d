//! The checkpoint families that can be converted, with their GGUF architecture names (llama.cpp
//! `gguf-py/gguf/constants.py`) and the places of their tensors.

use super::names;

/// A family, by `model_type` of its config.json.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Llama,
    Mistral,
    Mixtral,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Gemma2,
    Gemma3,
    Phi3,
}

const FAMILIES: [(&str, Family, &str); 9] = [
    ("llama", Family::Llama, "llama"),
    ("mistral", Family::Mistral, "llama"),
    ("mixtral", Family::Mixtral, "llama"),
    ("qwen2", Family::Qwen2, "qwen2"),
    ("qwen3", Family::Qwen3, "qwen3"),
    ("qwen3_moe", Family::Qwen3Moe, "qwen3moe"),
    ("gemma2", Family::Gemma2, "gemma2"),
    ("gemma3_text", Family::Gemma3, "gemma3"),
    ("phi3", Family::Phi3, "phi3"),
];

/// The GGUF tensor that a checkpoint tensor becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TensorPlace {
    /// A whole GGUF tensor.
    Tensor { name: String, layer: Option<u64> },
    /// One expert of a stacked GGUF tensor.
    Expert { name: String, layer: u64, expert: u64 },
    /// The tensor can be derived from other data, so a GGUF does not store it.
    Dropped,
}

impl Family {
    pub(super) fn of(model_type: &str) -> Option<Family> {
        FAMILIES.iter().find(|(name, ..)| *name == model_type).map(|(_, family, _)| *family)
    }

    /// Returns every known `model_type`.
    pub(super) fn known_model_types() -> Vec<&'static str> {
        FAMILIES.iter().map(|(name, ..)| *name).collect()
    }

    /// `general.architecture`.
    pub(super) fn architecture(self) -> &'static str {
        FAMILIES.iter().find(|(_, family, _)| *family == self).map_or("", |(.., architecture)| architecture)
    }

    pub(super) fn is_gemma(self) -> bool {
        matches!(self, Family::Gemma2 | Family::Gemma3)
    }

    /// Whether a tensor is a query or key projection of an architecture whose rotary embedding rotates
    /// neighbouring elements rather than halves.
    pub(super) fn rotates_pairs(self, name: &str) -> bool {
        self.architecture() == "llama" && (name.contains(".attn_q.") || name.contains(".attn_k."))
    }

    /// Returns the place of a tensor in the GGUF, or `None` if no model of this family has the tensor.
    pub(super) fn place(self, name: &str) -> Option<TensorPlace> {
        if name.ends_with("rotary_emb.inv_freq") {
            return Some(TensorPlace::Dropped);
        }
        if let Some(top) = name.strip_suffix(".weight").and_then(names::gguf_top) {
            return Some(TensorPlace::Tensor { name: format!("{top}.weight"), layer: None });
        }
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let layer = number(layer)?;
        let (stem, leaf) = rest.rsplit_once('.')?;
        if !matches!(leaf, "weight" | "bias") {
            return None;
        }
        if let Some((group, rest)) = stem.split_once(".experts.") {
            let (expert, projection) = rest.split_once('.')?;
            let part = names::gguf_expert_part(group, projection)?;
            let name = format!("blk.{layer}.ffn_{part}_exps.{leaf}");
            return Some(TensorPlace::Expert { name, layer, expert: number(expert)? });
        }
        let part = names::gguf_part(stem, self.is_gemma())?;
        Some(TensorPlace::Tensor { name: format!("blk.{layer}.{part}.{leaf}"), layer: Some(layer) })
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_have_their_places() {
        let layer = |name: &str| Some(TensorPlace::Tensor { name: name.to_owned(), layer: Some(3) });
        let check = |family: Family, name: &str, expect: Option<TensorPlace>| {
            assert_eq!(family.place(name), expect, "{name}");
        };
        check(Family::Llama, "model.layers.3.self_attn.q_proj.bias", layer("blk.3.attn_q.bias"));
        check(
            Family::Llama,
            "model.layers.3.post_attention_layernorm.weight",
            layer("blk.3.ffn_norm.weight"),
        );
        let after = layer("blk.3.post_attention_norm.weight");
        check(Family::Gemma2, "model.layers.3.post_attention_layernorm.weight", after);
        check(Family::Phi3, "model.layers.3.mlp.gate_up_proj.weight", layer("blk.3.ffn_up.weight"));
        check(Family::Llama, "model.layers.3.self_attn.rotary_emb.inv_freq", Some(TensorPlace::Dropped));
        let expert =
            TensorPlace::Expert { name: "blk.3.ffn_down_exps.weight".to_owned(), layer: 3, expert: 11 };
        check(Family::Mixtral, "model.layers.3.block_sparse_moe.experts.11.w2.weight", Some(expert.clone()));
        check(Family::Qwen3Moe, "model.layers.3.mlp.experts.11.down_proj.weight", Some(expert));
        for name in
            ["model.layers.3.mlp.experts.down_proj", "model.layers.x.mlp.up_proj.weight", "vision.a.weight"]
        {
            check(Family::Llama, name, None);
        }
    }
}
