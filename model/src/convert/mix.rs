//! Chooses the type of each tensor of a GGUF for a name such as Q4_K_M, by llama.cpp's recipe without an
//! importance matrix (`src/llama-quant.cpp`). Pure: it takes a name and dimensions and returns a type.

use super::file_type::FileType;
use crate::quant::ggml::Type;

/// The properties of the whole model that the recipe depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Model {
    pub n_layers: u64,
    pub n_heads: u64,
    pub n_kv_heads: u64,
    /// Zero in a model without experts.
    pub n_experts: u64,
    /// Whether the architecture is `llama`. A llama with 80 layers and grouped heads is the model of 70
    /// billion parameters.
    pub is_llama: bool,
    /// Whether there is an `output.weight`; without it the embedding is also the output matrix.
    pub has_output: bool,
}

impl Model {
    fn heads_per_kv_head(&self) -> u64 {
        self.n_heads.checked_div(self.n_kv_heads).unwrap_or(0)
    }

    fn is_70b(&self) -> bool {
        self.is_llama && self.n_layers == 80 && self.n_heads != self.n_kv_heads
    }

    /// Whether the recipe gives a layer more bits: the first and the last eighth of the layers, and every
    /// third layer between them.
    fn has_more_bits(&self, layer: u64) -> bool {
        let (n, eighth) = (self.n_layers, self.n_layers / 8);
        layer < eighth || layer >= 7 * n / 8 || (layer - eighth) % 3 == 2
    }
}

/// The type that the recipe chooses for a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The tensor is of a kind that is never quantised.
    Keep,
    As(Type),
    /// The blocks of the requested type do not divide the tensor's rows, so it gets a type with more bits.
    Fallback {
        requested: Type,
        given: Type,
    },
}

impl Choice {
    pub fn chosen_type(self) -> Option<Type> {
        match self {
            Choice::Keep => None,
            Choice::As(given) | Choice::Fallback { given, .. } => Some(given),
        }
    }
}

/// Chooses the type of a tensor. `shape` is row-major: the last axis is the row.
pub fn choose(file_type: FileType, model: &Model, name: &str, shape: &[u64]) -> Choice {
    if !is_eligible(name, shape) {
        return Choice::Keep;
    }
    let columns = shape.last().copied().unwrap_or(0);
    if !file_type.is_quantised() {
        return Choice::As(file_type.base_type());
    }
    let requested = requested_type(file_type, model, name, columns);
    match fit_type(requested, columns) {
        given if given == requested => Choice::As(given),
        given => Choice::Fallback { requested, given },
    }
}

/// Whether a tensor is a weight matrix rather than a norm, a router or a table of positions.
fn is_eligible(name: &str, shape: &[u64]) -> bool {
    const KEPT: [&str; 5] = [
        "_norm.weight",
        "ffn_gate_inp.weight",
        "ssm_conv1d.weight",
        "shortconv.conv.weight",
        "attn_rel_b.weight",
    ];
    const KEPT_PARTS: [&str; 5] =
        ["altup", "laurel", "per_layer_model_proj", "time_mix_", "channel_mix_lerp"];
    let axes = shape.iter().position(|dim| *dim != 1).map_or(0, |first| shape.len() - first);
    axes >= 2
        && name.ends_with("weight")
        && !KEPT.iter().any(|end| name.ends_with(end))
        && !KEPT_PARTS.iter().any(|part| name.contains(part))
        && !matches!(name, "position_embd.weight" | "token_types.weight" | "rope_freqs.weight")
}

fn requested_type(file_type: FileType, model: &Model, name: &str, columns: u64) -> Type {
    use FileType as F;
    let base = file_type.base_type();
    let is_output = name == "output.weight" || (!model.has_output && name == "token_embd.weight");
    if is_output {
        // Types with 256 elements per block are not tried if the base type's blocks do not divide the rows.
        return match base {
            Type::Q8_0 => Type::Q8_0,
            _ if !columns.is_multiple_of(u64::from(base.block_elements())) => Type::Q8_0,
            _ => Type::Q6_K,
        };
    }
    let layer = layer(name);
    let (n, eighth) = (model.n_layers, model.n_layers / 8);
    let eight_experts = model.n_experts == 8;
    if name.contains("attn_v.weight") {
        let grouped = model.heads_per_kv_head() >= 4;
        let chosen = match file_type {
            F::Q2_K if grouped => Type::Q4_K,
            F::Q2_K => Type::Q3_K,
            F::Q3_K_M if layer < 2 => Type::Q5_K,
            F::Q3_K_M => Type::Q4_K,
            F::Q3_K_L => Type::Q5_K,
            F::Q4_K_M | F::Q5_K_M if model.has_more_bits(layer) => Type::Q6_K,
            F::Q4_K_S if layer < 4 => Type::Q5_K,
            _ => base,
        };
        return match chosen {
            _ if eight_experts => Type::Q8_0,
            Type::Q3_K | Type::Q4_K if model.is_70b() => Type::Q5_K,
            chosen => chosen,
        };
    }
    if name.contains("attn_k.weight") {
        return if eight_experts { Type::Q8_0 } else { base };
    }
    if name.contains("ffn_down") {
        return match file_type {
            F::Q2_K => Type::Q3_K,
            F::Q3_K_M if layer < n / 16 => Type::Q5_K,
            F::Q3_K_M => Type::Q4_K,
            F::Q3_K_L => Type::Q5_K,
            F::Q4_K_M | F::Q5_K_M if model.has_more_bits(layer) => Type::Q6_K,
            F::Q4_K_S if layer < eighth => Type::Q5_K,
            _ => base,
        };
    }
    if name.contains("attn_output.weight") {
        return match file_type {
            F::Q2_K | F::Q3_K_S | F::Q3_K_M | F::Q4_K_S | F::Q4_K_M if eight_experts => Type::Q5_K,
            _ if eight_experts => base,
            F::Q2_K => Type::Q3_K,
            F::Q3_K_M => Type::Q4_K,
            F::Q3_K_L => Type::Q5_K,
            _ => base,
        };
    }
    if name.contains("attn_qkv.weight") {
        return match file_type {
            F::Q3_K_M | F::Q3_K_L => Type::Q4_K,
            F::Q4_K_M => Type::Q5_K,
            F::Q5_K_M => Type::Q6_K,
            _ => base,
        };
    }
    base
}

/// Returns the layer number of a name such as `blk.7.attn_v.weight`.
fn layer(name: &str) -> u64 {
    let number = name.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Returns `requested` if its blocks divide the rows, else a type with smaller blocks and more bits.
fn fit_type(requested: Type, columns: u64) -> Type {
    let divides = |ty: Type| columns.is_multiple_of(u64::from(ty.block_elements()));
    if divides(requested) {
        return requested;
    }
    let smaller = match requested {
        Type::Q2_K | Type::Q3_K => Type::Q4_0,
        Type::Q4_K => Type::Q5_0,
        Type::Q5_K => Type::Q5_1,
        Type::Q6_K => Type::Q8_0,
        _ => Type::F16,
    };
    if divides(smaller) { smaller } else { Type::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of 32 layers with grouped heads, like many models.
    const MODEL: Model =
        Model { n_layers: 32, n_heads: 32, n_kv_heads: 8, n_experts: 0, is_llama: true, has_output: true };

    #[track_caller]
    fn check(file_type: FileType, model: Model, name: &str, expect: Type) {
        assert_eq!(choose(file_type, &model, name, &[4096, 4096]), Choice::As(expect), "{file_type} {name}");
    }

    #[test]
    fn legacy_types_raise_the_output_alone() {
        for (file_type, ty) in [(FileType::Q4_0, Type::Q4_0), (FileType::Q5_1, Type::Q5_1)] {
            check(file_type, MODEL, "output.weight", Type::Q6_K);
            check(file_type, MODEL, "token_embd.weight", ty);
            check(file_type, Model { has_output: false, ..MODEL }, "token_embd.weight", Type::Q6_K);
            for part in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_down", "ffn_up", "ffn_gate"] {
                check(file_type, MODEL, &format!("blk.3.{part}.weight"), ty);
            }
        }
        check(FileType::Q8_0, MODEL, "output.weight", Type::Q8_0);
        check(FileType::Q6_K, MODEL, "blk.3.ffn_down.weight", Type::Q6_K);
    }

    #[test]
    fn important_layers_get_more_bits() {
        for layer in 0..32 {
            let more = !(4..28).contains(&layer) || (layer - 4) % 3 == 2;
            for part in ["attn_v", "ffn_down", "ffn_down_exps"] {
                let name = format!("blk.{layer}.{part}.weight");
                check(FileType::Q4_K_M, MODEL, &name, if more { Type::Q6_K } else { Type::Q4_K });
                check(FileType::Q5_K_M, MODEL, &name, if more { Type::Q6_K } else { Type::Q5_K });
            }
        }
        check(FileType::Q4_K_S, MODEL, "blk.3.attn_v.weight", Type::Q5_K);
        check(FileType::Q4_K_S, MODEL, "blk.4.attn_v.weight", Type::Q4_K);
        check(FileType::Q4_K_S, MODEL, "blk.3.ffn_down.weight", Type::Q5_K);
        check(FileType::Q3_K_M, MODEL, "blk.1.attn_v.weight", Type::Q5_K);
        check(FileType::Q3_K_M, MODEL, "blk.2.attn_v.weight", Type::Q4_K);
        check(FileType::Q3_K_M, MODEL, "blk.1.ffn_down.weight", Type::Q5_K);
        check(FileType::Q3_K_M, MODEL, "blk.2.ffn_down.weight", Type::Q4_K);
        check(FileType::Q3_K_S, MODEL, "blk.2.ffn_down.weight", Type::Q3_K);
        check(FileType::Q3_K_L, MODEL, "blk.2.attn_output.weight", Type::Q5_K);
        check(FileType::Q2_K, MODEL, "blk.2.attn_v.weight", Type::Q4_K);
        check(FileType::Q2_K, Model { n_kv_heads: 16, ..MODEL }, "blk.2.attn_v.weight", Type::Q3_K);
        check(FileType::Q2_K, MODEL, "blk.2.ffn_down.weight", Type::Q3_K);
        check(FileType::Q2_K, MODEL, "blk.2.attn_q.weight", Type::Q2_K);
        check(FileType::Q4_K_M, MODEL, "blk.2.attn_qkv.weight", Type::Q5_K);
    }

    #[test]
    fn large_models_and_experts_have_rules_of_their_own() {
        let large = Model { n_layers: 80, n_heads: 64, ..MODEL };
        check(FileType::Q3_K_M, large, "blk.40.attn_v.weight", Type::Q5_K);
        check(FileType::Q4_K_M, large, "blk.12.attn_v.weight", Type::Q6_K);
        check(FileType::Q4_K_M, large, "blk.13.attn_v.weight", Type::Q5_K);
        let mixture = Model { n_experts: 8, ..MODEL };
        check(FileType::Q4_K_M, mixture, "blk.9.attn_v.weight", Type::Q8_0);
        check(FileType::Q4_K_M, mixture, "blk.9.attn_k.weight", Type::Q8_0);
        check(FileType::Q4_K_M, mixture, "blk.9.attn_output.weight", Type::Q5_K);
        check(FileType::Q4_K_M, Model { n_experts: 4, ..MODEL }, "blk.9.attn_k.weight", Type::Q4_K);
    }

    #[test]
    fn norms_and_routers_are_never_quantised() {
        for (name, shape) in [
            ("blk.0.attn_norm.weight", &[4096u64] as &[u64]),
            ("blk.0.attn_q_norm.weight", &[8, 128]),
            ("blk.0.ffn_gate_inp.weight", &[8, 4096]),
            ("blk.0.attn_q.bias", &[4096, 4096]),
            ("blk.0.attn_q.weight", &[1, 4096]),
            ("position_embd.weight", &[512, 256]),
            ("rope_freqs.weight", &[64]),
        ] {
            for file_type in FileType::ALL {
                assert_eq!(choose(file_type, &MODEL, name, shape), Choice::Keep, "{name}");
            }
        }
    }

    #[test]
    fn rows_that_blocks_do_not_divide_get_more_bits() {
        let fitted = |file_type, name, columns| choose(file_type, &MODEL, name, &[64, columns]).chosen_type();
        for (file_type, name, columns, expect) in [
            (FileType::Q4_K_M, "blk.9.attn_q.weight", 96, Type::Q5_0),
            (FileType::Q5_K_S, "blk.9.attn_q.weight", 96, Type::Q5_1),
            (FileType::Q6_K, "blk.9.attn_q.weight", 96, Type::Q8_0),
            (FileType::Q2_K, "blk.9.attn_q.weight", 96, Type::Q4_0),
            (FileType::Q4_K_M, "output.weight", 96, Type::Q8_0),
            (FileType::Q4_0, "output.weight", 96, Type::Q8_0),
            (FileType::Q4_K_M, "blk.9.attn_q.weight", 100, Type::F16),
            (FileType::Q8_0, "blk.9.attn_q.weight", 100, Type::F16),
            (FileType::F32, "blk.9.attn_q.weight", 100, Type::F32),
        ] {
            assert_eq!(fitted(file_type, name, columns), Some(expect), "{file_type} {name} {columns}");
        }
        assert_eq!(
            choose(FileType::Q4_K_M, &MODEL, "blk.9.attn_q.weight", &[64, 96]),
            Choice::Fallback { requested: Type::Q4_K, given: Type::Q5_0 }
        );
    }
}
