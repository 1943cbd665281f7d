//! The GGUF names of checkpoint tensors (llama.cpp `gguf-py/gguf/tensor_mapping.py`), for the architectures
//! whose conversion maps tensors one to one.

/// Returns the checkpoint names that a tensor with this GGUF name may have had, likeliest first; empty for
/// other names.
pub(super) fn of_checkpoint(name: &str) -> Vec<String> {
    let (stem, end) = match name.rsplit_once('.') {
        Some((stem, end @ ("weight" | "bias"))) => (stem, end),
        _ => return Vec::new(),
    };
    let top = match stem {
        "token_embd" => "model.embed_tokens",
        "output" => "lm_head",
        "output_norm" => "model.norm",
        _ => "",
    };
    if !top.is_empty() {
        return vec![format!("{top}.{end}")];
    }
    let Some((layer, part)) = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.')) else {
        return Vec::new();
    };
    if layer.is_empty() || !layer.bytes().all(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    let parts: &[&str] = match part {
        "attn_norm" => &["input_layernorm"],
        "attn_q" => &["self_attn.q_proj"],
        "attn_k" => &["self_attn.k_proj"],
        "attn_v" => &["self_attn.v_proj"],
        "attn_qkv" => &["self_attn.qkv_proj"],
        "attn_output" => &["self_attn.o_proj"],
        "attn_q_norm" => &["self_attn.q_norm"],
        "attn_k_norm" => &["self_attn.k_norm"],
        "post_attention_norm" => &["post_attention_layernorm"],
        // Gemma has norms on both sides of its blocks, so this norm has another name.
        "ffn_norm" => &["pre_feedforward_layernorm", "post_attention_layernorm"],
        "post_ffw_norm" => &["post_feedforward_layernorm"],
        "ffn_gate" => &["mlp.gate_proj"],
        "ffn_up" => &["mlp.up_proj", "mlp.gate_up_proj"],
        "ffn_down" => &["mlp.down_proj"],
        "ffn_gate_inp" => &["mlp.gate", "block_sparse_moe.gate"],
        _ => &[],
    };
    parts.iter().map(|part| format!("model.layers.{layer}.{part}.{end}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gguf_names_map_to_checkpoint_names() {
        let first = |name: &str| of_checkpoint(name).into_iter().next();
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
}
