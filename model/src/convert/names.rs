//! The GGUF names of checkpoint tensors, in both directions (llama.cpp `gguf-py/gguf/tensor_mapping.py`).
//! Conversion and the comparison of models use the same table.

/// Tensors outside the layers: the checkpoint's name and the GGUF's, without `.weight`.
const TOP: [(&str, &str); 3] =
    [("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

/// Tensors of a layer: the checkpoint's part of the name and the GGUF's. Architectures differ in the norms
/// around the feed-forward block, so these have several rows. Where a name has several counterparts, the
/// likeliest row is the first.
const PARTS: [(&str, &str); 18] = [
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.qkv_proj", "attn_qkv"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    // Gemma has norms on both sides of its blocks, so this norm has another name.
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("post_attention_layernorm", "post_attention_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.gate_up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("mlp.gate", "ffn_gate_inp"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
];

/// Projections of an expert: the checkpoint's group of experts, its projection, and the GGUF's part of the
/// name of the stacked tensor.
const EXPERTS: [(&str, &str, &str); 6] = [
    ("mlp", "gate_proj", "gate"),
    ("mlp", "up_proj", "up"),
    ("mlp", "down_proj", "down"),
    ("block_sparse_moe", "w1", "gate"),
    ("block_sparse_moe", "w3", "up"),
    ("block_sparse_moe", "w2", "down"),
];

/// Returns the GGUF name of a tensor outside the layers, for a name without `.weight`.
pub(super) fn gguf_top(stem: &str) -> Option<&'static str> {
    TOP.iter().find(|(checkpoint, _)| *checkpoint == stem).map(|(_, gguf)| *gguf)
}

/// Returns the GGUF's part of the name of a layer's tensor. `has_both_norms`: the architecture has a norm
/// after attention and one before the feed-forward block.
pub(super) fn gguf_part(part: &str, has_both_norms: bool) -> Option<&'static str> {
    let mut rows = PARTS.iter().filter(|(checkpoint, _)| *checkpoint == part).map(|(_, gguf)| *gguf);
    if has_both_norms { rows.next_back() } else { rows.next() }
}

/// Returns the part of the name of the stacked tensor that holds an expert's projection.
pub(super) fn gguf_expert_part(group: &str, projection: &str) -> Option<&'static str> {
    EXPERTS.iter().find(|(of, name, _)| (*of, *name) == (group, projection)).map(|(.., part)| *part)
}

/// Returns the projection of an expert whose stacked tensor has this part of the name.
pub(super) fn expert_projection(group: &str, part: &str) -> Option<&'static str> {
    EXPERTS.iter().find(|(of, _, gguf)| (*of, *gguf) == (group, part)).map(|(_, projection, _)| *projection)
}

/// Returns the checkpoint names that a tensor with this GGUF name may have had, likeliest first; empty for
/// other names, and for stacked experts.
pub(crate) fn checkpoint_names(name: &str) -> Vec<String> {
    let (stem, leaf) = match name.rsplit_once('.') {
        Some((stem, leaf @ ("weight" | "bias"))) => (stem, leaf),
        _ => return Vec::new(),
    };
    if let Some((top, _)) = TOP.iter().find(|(_, gguf)| *gguf == stem) {
        return vec![format!("{top}.{leaf}")];
    }
    let Some((layer, part)) = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return Vec::new();
    };
    if layer.is_empty() || !layer.bytes().all(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    let rows = PARTS.iter().filter(|(_, gguf)| *gguf == part);
    rows.map(|(checkpoint, _)| format!("model.layers.{layer}.{checkpoint}.{leaf}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gguf_names_map_to_checkpoint_names() {
        let first = |name: &str| checkpoint_names(name).into_iter().next();
        for (name, expect) in [
            ("token_embd.weight", Some("model.embed_tokens.weight")),
            ("output.weight", Some("lm_head.weight")),
            ("blk.12.attn_q.weight", Some("model.layers.12.self_attn.q_proj.weight")),
            ("blk.0.attn_k.bias", Some("model.layers.0.self_attn.k_proj.bias")),
            ("blk.0.ffn_down.weight", Some("model.layers.0.mlp.down_proj.weight")),
            ("blk.x.ffn_down.weight", None),
            ("blk.0.ffn_down_exps.weight", None),
            ("model.norm.weight", None),
            ("blk", None),
            ("", None),
        ] {
            assert_eq!(first(name).as_deref(), expect, "{name}");
        }
    }

    #[test]
    fn both_directions_agree() {
        for (checkpoint, gguf) in PARTS {
            assert!(
                [false, true].iter().any(|both| gguf_part(checkpoint, *both) == Some(gguf)),
                "{checkpoint}"
            );
            let names = checkpoint_names(&format!("blk.7.{gguf}.weight"));
            assert!(names.contains(&format!("model.layers.7.{checkpoint}.weight")), "{gguf}");
        }
        for (checkpoint, gguf) in TOP {
            assert_eq!(gguf_top(checkpoint), Some(gguf));
        }
    }
}
