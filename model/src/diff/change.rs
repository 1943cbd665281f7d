//! The changes that conversion makes to the values of tensors, which a comparison undoes.

/// Facts about the two models beyond their tensors.
#[derive(Clone, Debug, Default)]
pub struct Hints {
    /// The architecture of the GGUF model, if one of the two is a GGUF.
    pub gguf_architecture: Option<String>,
    /// The number of elements in an attention head.
    pub head_dim: Option<u64>,
}

/// The change that makes one side's values comparable, because GGUF stores some tensors differently.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change {
    #[default]
    None,
    /// Reorders the rows of each head of this many rows, which GGUF stores in the order that rotates
    /// neighbours instead of halves.
    ReorderHeads(u64),
    /// Subtracts the 1 that the conversion added to each value.
    SubtractOne,
}

/// Returns the change that undoes the conversion of a tensor with this GGUF name.
pub(super) fn of_conversion(name: &str, hints: &Hints) -> Change {
    let architecture = hints.gguf_architecture.as_deref().unwrap_or_default();
    let part = name.rsplit('.').nth(1).unwrap_or_default();
    match (architecture, part) {
        // GGUF also uses the name llama for Mistral and Mixtral.
        ("llama", "attn_q" | "attn_k") => {
            let head = hints.head_dim.filter(|head| *head > 0);
            head.map_or(Change::None, Change::ReorderHeads)
        }
        (gemma, norm) if gemma.starts_with("gemma") && norm.ends_with("_norm") && gemma != "gemma3n" => {
            Change::SubtractOne
        }
        _ => Change::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_changes_are_known() {
        let hints = |architecture: &str| Hints {
            gguf_architecture: Some(architecture.to_owned()),
            head_dim: Some(64),
        };
        assert_eq!(of_conversion("blk.0.attn_q.weight", &hints("llama")), Change::ReorderHeads(64));
        assert_eq!(of_conversion("blk.0.attn_q.weight", &hints("qwen2")), Change::None);
        assert_eq!(of_conversion("blk.0.attn_norm.weight", &hints("gemma3")), Change::SubtractOne);
        assert_eq!(of_conversion("output_norm.weight", &hints("gemma2")), Change::SubtractOne);
        assert_eq!(of_conversion("blk.0.attn_norm.weight", &hints("llama")), Change::None);
        assert_eq!(of_conversion("blk.0.attn_q.weight", &Hints::default()), Change::None);
        let no_head = Hints { head_dim: Some(0), ..hints("llama") };
        assert_eq!(of_conversion("blk.0.attn_q.weight", &no_head), Change::None);
    }
}
