//! Maps a checkpoint's tensor names to those of a GGUF of its architecture (llama.cpp
//! `gguf-py/gguf/tensor_mapping.py`).

use super::super::families;

/// The location of a checkpoint's tensor in a GGUF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLocation {
    pub name: String,
    /// Index in a stacked tensor of experts.
    pub expert: Option<u64>,
}

impl TensorLocation {
    /// The location of an expert that is a separate tensor, as in the first Mixtral files.
    pub fn as_separate_tensor(&self) -> Option<TensorLocation> {
        let name = self.name.replacen("_exps.", &format!(".{}.", self.expert?), 1);
        Some(TensorLocation { name, expert: None })
    }
}

/// The location of a tensor with this name in a checkpoint. An unknown name is treated as the GGUF's.
pub fn locate_tensor(architecture: &str, name: &str) -> TensorLocation {
    map_name(architecture, name).unwrap_or_else(|| TensorLocation { name: name.to_owned(), expert: None })
}

fn map_name(architecture: &str, name: &str) -> Option<TensorLocation> {
    let whole = |name: String| Some(TensorLocation { name, expert: None });
    let (stem, leaf) = name.rsplit_once('.')?;
    let fixed = match stem {
        "model.embed_tokens" | "embeddings.word_embeddings" => Some("token_embd"),
        "model.norm" => Some("output_norm"),
        "lm_head" => Some("output"),
        "classifier.dense" => Some("cls"),
        "classifier.out_proj" => Some("cls.output"),
        "embeddings.position_embeddings" => Some("position_embd"),
        "embeddings.token_type_embeddings" => Some("token_types"),
        "embeddings.LayerNorm" | "emb_ln" => Some("token_embd_norm"),
        _ => None,
    };
    if let Some(fixed) = fixed {
        return whole(format!("{fixed}.{leaf}"));
    }
    let (layer, part) = stem
        .strip_prefix("model.layers.")
        .or_else(|| stem.strip_prefix("encoder.layer."))
        .or_else(|| stem.strip_prefix("encoder.layers."))?
        .split_once('.')?;
    if let Some((_, rest)) = part.split_once(".experts.") {
        let (expert, projection) = rest.split_once('.')?;
        let part = match projection {
            "gate_proj" | "w1" => "gate",
            "up_proj" | "w3" => "up",
            "down_proj" | "w2" => "down",
            _ => return None,
        };
        let name = format!("blk.{layer}.ffn_{part}_exps.{leaf}");
        return Some(TensorLocation { name, expert: Some(expert.parse().ok()?) });
    }
    let has_post_norms = families::of_gguf(architecture).any(|(_, gguf)| gguf.has_post_norms);
    let part = match part {
        "self_attn.q_proj" | "attention.self.query" => "attn_q",
        "self_attn.k_proj" | "attention.self.key" => "attn_k",
        "self_attn.v_proj" | "attention.self.value" => "attn_v",
        "self_attn.o_proj" | "attention.output.dense" | "attn.out_proj" => "attn_output",
        "self_attn.qkv_proj" | "attn.Wqkv" => "attn_qkv",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "attention.output.LayerNorm" | "norm1" => "attn_output_norm",
        "input_layernorm" => "attn_norm",
        "mlp.gate_proj" | "mlp.fc12" => "ffn_gate",
        "mlp.up_proj" | "mlp.gate_up_proj" | "mlp.fc11" | "intermediate.dense" => "ffn_up",
        "mlp.down_proj" | "mlp.fc2" | "output.dense" => "ffn_down",
        "output.LayerNorm" | "norm2" => "layer_output_norm",
        "mlp.gate" | "block_sparse_moe.gate" => "ffn_gate_inp",
        "post_attention_layernorm" if has_post_norms => "post_attention_norm",
        "post_attention_layernorm" | "pre_feedforward_layernorm" => "ffn_norm",
        "post_feedforward_layernorm" => "post_ffw_norm",
        _ => return None,
    };
    whole(format!("blk.{layer}.{part}.{leaf}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (architecture, name, expect, expert) in [
            ("llama", "lm_head.weight", "output.weight", None),
            ("qwen2", "model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias", None),
            ("llama", "model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", None),
            (
                "gemma2",
                "model.layers.0.post_attention_layernorm.weight",
                "blk.0.post_attention_norm.weight",
                None,
            ),
            (
                "qwen3moe",
                "model.layers.1.mlp.experts.7.down_proj.weight",
                "blk.1.ffn_down_exps.weight",
                Some(7),
            ),
            (
                "llama",
                "model.layers.1.block_sparse_moe.experts.0.w1.weight",
                "blk.1.ffn_gate_exps.weight",
                Some(0),
            ),
            ("bert", "encoder.layer.3.attention.output.LayerNorm.bias", "blk.3.attn_output_norm.bias", None),
            ("nomic-bert", "encoder.layers.1.mlp.fc12.weight", "blk.1.ffn_gate.weight", None),
            ("nomic-bert", "emb_ln.bias", "token_embd_norm.bias", None),
            ("llama", "rope_freqs.weight", "rope_freqs.weight", None),
        ] {
            assert_eq!(
                locate_tensor(architecture, name),
                TensorLocation { name: expect.to_owned(), expert },
                "{name}"
            );
        }
    }
}
