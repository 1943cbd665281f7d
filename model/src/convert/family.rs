//! The checkpoint families that can be converted, with their GGUF architecture names (llama.cpp
//! `gguf-py/gguf/constants.py`) and the places of their tensors.

use super::names;

/// A family of checkpoints, and how they differ from those of a plain transformer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Family {
    /// `model_type` of config.json.
    pub(super) model_type: &'static str,
    /// `general.architecture`.
    pub(super) architecture: &'static str,
    /// The class of transformers.
    pub(super) class: &'static str,
    /// Whether norms are stored as the difference from 1, blocks have norms on both sides, and the embedding is
    /// the output matrix unless config.json says otherwise.
    pub(super) is_gemma: bool,
    /// The key of config.json with the number of experts.
    pub(super) experts_key: Option<&'static str>,
    /// The part of a layer that has the experts and their gate.
    experts_group: &'static str,
    /// Whether gate and up projection are one matrix.
    pub(super) has_fused_gate: bool,
    /// Whether experts have a width of their own.
    pub(super) has_expert_width: bool,
    pub(super) window: Window,
    /// Whether the scores of attention and the output are soft-capped.
    pub(super) has_soft_caps: bool,
    /// Whether the rotary embedding may have separate factors for long and for short contexts.
    pub(super) has_long_rope: bool,
}

/// How the sliding window of config.json is converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    Ignored,
    Required,
    /// Zero where it is absent.
    Optional,
    /// A GGUF of this architecture cannot store it, which is a notice.
    Lost,
}

/// Every family that can be converted.
static FAMILIES: [Family; 9] = [
    Family::plain("llama", "llama", "LlamaForCausalLM"),
    Family { window: Window::Lost, ..Family::plain("mistral", "llama", "MistralForCausalLM") },
    Family {
        window: Window::Lost,
        experts_key: Some("num_local_experts"),
        experts_group: "block_sparse_moe",
        ..Family::plain("mixtral", "llama", "MixtralForCausalLM")
    },
    Family::plain("qwen2", "qwen2", "Qwen2ForCausalLM"),
    Family::plain("qwen3", "qwen3", "Qwen3ForCausalLM"),
    Family {
        experts_key: Some("num_experts"),
        has_expert_width: true,
        ..Family::plain("qwen3_moe", "qwen3moe", "Qwen3MoeForCausalLM")
    },
    Family {
        is_gemma: true,
        window: Window::Required,
        has_soft_caps: true,
        ..Family::plain("gemma2", "gemma2", "Gemma2ForCausalLM")
    },
    Family {
        is_gemma: true,
        window: Window::Required,
        ..Family::plain("gemma3_text", "gemma3", "Gemma3ForCausalLM")
    },
    Family {
        window: Window::Optional,
        has_long_rope: true,
        has_fused_gate: true,
        ..Family::plain("phi3", "phi3", "Phi3ForCausalLM")
    },
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
    const fn plain(model_type: &'static str, architecture: &'static str, class: &'static str) -> Family {
        Family {
            model_type,
            architecture,
            class,
            experts_group: "mlp",
            has_fused_gate: false,
            is_gemma: false,
            experts_key: None,
            has_expert_width: false,
            window: Window::Ignored,
            has_soft_caps: false,
            has_long_rope: false,
        }
    }

    pub(super) fn of(model_type: &str) -> Option<&'static Family> {
        FAMILIES.iter().find(|family| family.model_type == model_type)
    }

    /// Returns the family of a GGUF: the first with this architecture, with or without experts.
    pub(super) fn of_gguf(architecture: &str, has_experts: bool) -> Option<&'static Family> {
        FAMILIES
            .iter()
            .find(|family| family.architecture == architecture && family.experts_key.is_some() == has_experts)
    }

    /// Returns every known `general.architecture`.
    pub(super) fn known_architectures() -> Vec<&'static str> {
        let mut all: Vec<&str> = FAMILIES.iter().map(|family| family.architecture).collect();
        all.dedup();
        all
    }

    /// Returns every known `model_type`.
    pub(super) fn known_model_types() -> Vec<&'static str> {
        FAMILIES.iter().map(|family| family.model_type).collect()
    }

    /// Whether a tensor is a query or key projection of an architecture whose rotary embedding rotates
    /// neighbouring elements rather than halves.
    pub(super) fn rotates_pairs(&self, name: &str) -> bool {
        self.architecture == "llama" && (name.contains(".attn_q.") || name.contains(".attn_k."))
    }

    /// Returns the place of a tensor in the GGUF, or `None` if no model of this family has the tensor.
    pub(super) fn place(&self, name: &str) -> Option<TensorPlace> {
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
        let part = names::gguf_part(stem, self.is_gemma)?;
        Some(TensorPlace::Tensor { name: format!("blk.{layer}.{part}.{leaf}"), layer: Some(layer) })
    }
}

/// The checkpoint tensor that a GGUF tensor becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CheckpointPlace {
    Tensor {
        name: String,
    },
    /// A stack of experts: the name of each is `GROUP.experts.NUMBER.PROJECTION`.
    Experts {
        group: String,
        projection: &'static str,
    },
}

/// The parts of a GGUF tensor's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GgufName<'a> {
    pub(super) layer: Option<u64>,
    /// `attn_q`, `token_embd`.
    pub(super) part: &'a str,
    /// `weight` or `bias`.
    pub(super) leaf: &'a str,
}

impl<'a> GgufName<'a> {
    pub(super) fn parse(name: &'a str) -> Option<GgufName<'a>> {
        let (stem, leaf) = name.rsplit_once('.').filter(|(_, leaf)| matches!(*leaf, "weight" | "bias"))?;
        match stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) {
            Some((layer, part)) => Some(GgufName { layer: Some(number(layer)?), part, leaf }),
            None => Some(GgufName { layer: None, part: stem, leaf }),
        }
    }
}

impl Family {
    /// Returns the place of a GGUF tensor in a checkpoint, or `None` if no model of this family has the tensor.
    /// The reverse of [`Family::place`].
    pub(super) fn checkpoint_place(&self, name: &str) -> Option<CheckpointPlace> {
        let GgufName { layer, part, leaf } = GgufName::parse(name)?;
        if let (Some(layer), Some(part)) =
            (layer, part.strip_prefix("ffn_").and_then(|part| part.strip_suffix("_exps")))
        {
            self.experts_key?;
            let projection =
                names::expert_projection(self.experts_group, part).filter(|_| leaf == "weight")?;
            let group = format!("model.layers.{layer}.{}", self.experts_group);
            return Some(CheckpointPlace::Experts { group, projection });
        }
        // Several checkpoint names may have the same GGUF name, of which a family has one.
        let is_ours = |candidate: &String| {
            let has = |text: &str| candidate.contains(text);
            let is_named_so = match part {
                "ffn_up" => has(".gate_up_proj.") == self.has_fused_gate,
                "ffn_gate_inp" => has(&format!(".{}.", self.experts_group)),
                _ => self.is_gemma || !has("_feedforward_layernorm"),
            };
            let goes_back =
                |place| matches!(place, Some(TensorPlace::Tensor { name: back, .. }) if back == name);
            is_named_so && goes_back(self.place(candidate))
        };
        let name = names::checkpoint_names(name).into_iter().find(is_ours)?;
        Some(CheckpointPlace::Tensor { name })
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_tensors_have_their_places() {
        let check = |model_type: &str, name: &str, expect: Option<&str>| {
            let place = Family::of(model_type).expect(model_type).checkpoint_place(name);
            let found = place.map(|place| match place {
                CheckpointPlace::Tensor { name } => name,
                CheckpointPlace::Experts { group, projection } => format!("{group}.experts.N.{projection}"),
            });
            assert_eq!(found.as_deref(), expect, "{model_type}: {name}");
        };
        for (model_type, name, expect) in [
            ("llama", "output.weight", "lm_head.weight"),
            ("llama", "blk.3.ffn_norm.weight", "model.layers.3.post_attention_layernorm.weight"),
            ("gemma2", "blk.3.ffn_norm.weight", "model.layers.3.pre_feedforward_layernorm.weight"),
            (
                "gemma3_text",
                "blk.3.post_attention_norm.weight",
                "model.layers.3.post_attention_layernorm.weight",
            ),
            ("phi3", "blk.3.ffn_up.weight", "model.layers.3.mlp.gate_up_proj.weight"),
            ("qwen2", "blk.3.ffn_up.weight", "model.layers.3.mlp.up_proj.weight"),
            ("qwen2", "blk.3.attn_q.bias", "model.layers.3.self_attn.q_proj.bias"),
            ("mixtral", "blk.3.ffn_gate_inp.weight", "model.layers.3.block_sparse_moe.gate.weight"),
            ("qwen3_moe", "blk.3.ffn_gate_inp.weight", "model.layers.3.mlp.gate.weight"),
            ("mixtral", "blk.3.ffn_down_exps.weight", "model.layers.3.block_sparse_moe.experts.N.w2"),
            ("qwen3_moe", "blk.3.ffn_down_exps.weight", "model.layers.3.mlp.experts.N.down_proj"),
        ] {
            check(model_type, name, Some(expect));
        }
        for name in [
            "blk.3.post_ffw_norm.weight",
            "blk.3.post_attention_norm.weight",
            "blk.3.ffn_down_exps.weight",
            "blk.03.ffn_down.weight",
            "blk.x.ffn_down.weight",
            "output.scale",
            "weight",
        ] {
            check("llama", name, None);
        }
    }

    #[test]
    fn tensors_have_their_places() {
        let layer = |name: &str| Some(TensorPlace::Tensor { name: name.to_owned(), layer: Some(3) });
        let check = |model_type: &str, name: &str, expect: Option<TensorPlace>| {
            let family = Family::of(model_type).expect(model_type);
            assert_eq!(family.place(name), expect, "{name}");
        };
        check("llama", "model.layers.3.self_attn.q_proj.bias", layer("blk.3.attn_q.bias"));
        check("llama", "model.layers.3.post_attention_layernorm.weight", layer("blk.3.ffn_norm.weight"));
        let after = layer("blk.3.post_attention_norm.weight");
        check("gemma2", "model.layers.3.post_attention_layernorm.weight", after);
        check("phi3", "model.layers.3.mlp.gate_up_proj.weight", layer("blk.3.ffn_up.weight"));
        check("llama", "model.layers.3.self_attn.rotary_emb.inv_freq", Some(TensorPlace::Dropped));
        let expert =
            TensorPlace::Expert { name: "blk.3.ffn_down_exps.weight".to_owned(), layer: 3, expert: 11 };
        check("mixtral", "model.layers.3.block_sparse_moe.experts.11.w2.weight", Some(expert.clone()));
        check("qwen3_moe", "model.layers.3.mlp.experts.11.down_proj.weight", Some(expert));
        for name in
            ["model.layers.3.mlp.experts.down_proj", "model.layers.x.mlp.up_proj.weight", "vision.a.weight"]
        {
            check("llama", name, None);
        }
    }
}
