//! How a model embeds texts. The pooling is configured by sentence-transformers' files in a checkpoint, and
//! by `pooling_type` in a GGUF; the default is the mean.

use lode_model::gguf::Metadata;
use serde::{Deserialize, Serialize};

use super::protocol::{ModelSpec, RunnerError};
use super::small_files::read_json;

/// How the hidden states of a text become one vector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pooling {
    #[default]
    Mean,
    /// The first token, `[CLS]`.
    First,
    Last,
}

/// The embedding settings of a model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Embedding {
    pub(super) pooling: Pooling,
    /// Maximum length of a text with its special tokens, if it is less than the model's context.
    pub(super) max_tokens: Option<usize>,
    /// An unsupported setting of the model; embedding requests fail with it.
    pub(super) refused: Option<String>,
}

impl Embedding {
    /// From sentence-transformers' files.
    pub(super) fn of_checkpoint(spec: &ModelSpec) -> Result<Embedding, RunnerError> {
        let json = |name: &str| read_json(spec, name);
        let mut embedding = Embedding::default();
        if let Some(modules) = json("modules.json")? {
            let kinds = modules.as_array().into_iter().flatten();
            let kinds = kinds.filter_map(|module| module.get("type")?.as_str()?.rsplit('.').next());
            let mut unknown = kinds.filter(|kind| !["Transformer", "Pooling", "Normalize"].contains(kind));
            embedding.refused = unknown.next().map(|kind| format!("module `{kind}`"));
        }
        if let Some(pooling) = json("1_Pooling/config.json")? {
            let modes = pooling.as_object().into_iter().flatten();
            let mut modes = modes.filter(|(key, on)| key.starts_with("pooling_mode_") && **on == true);
            match (modes.next().map(|(key, _)| key.as_str()), modes.next()) {
                (None | Some("pooling_mode_mean_tokens"), None) => {}
                (Some("pooling_mode_cls_token"), None) => embedding.pooling = Pooling::First,
                (Some("pooling_mode_lasttoken"), None) => embedding.pooling = Pooling::Last,
                (Some(mode), None) => embedding.refused = Some(format!("pooling mode `{mode}`")),
                (_, Some(_)) => embedding.refused = Some("a combination of pooling modes".to_owned()),
            }
        }
        let limit = json("sentence_bert_config.json")?;
        let limit = limit.and_then(|file| file.get("max_seq_length")?.as_u64());
        embedding.max_tokens = limit.and_then(|limit| usize::try_from(limit).ok()).filter(|limit| *limit > 0);
        Ok(embedding)
    }

    pub(super) fn of_gguf(metadata: &Metadata) -> Embedding {
        let mut embedding = Embedding::default();
        match metadata.architecture_value("pooling_type").and_then(|value| value.as_u64()) {
            // 0 is no pooling, which does not define an embedding of a whole text, so the mean is used.
            None | Some(0 | 1) => {}
            Some(2) => embedding.pooling = Pooling::First,
            Some(3) => embedding.pooling = Pooling::Last,
            Some(4) => embedding.refused = Some("pooling for ranking".to_owned()),
            Some(other) => embedding.refused = Some(format!("pooling type {other}")),
        }
        embedding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gguf_pooling() {
        let check = |number: Option<u32>, expect: Pooling, refused: bool| {
            let mut metadata = Metadata::new();
            metadata.set("general.architecture", "bert");
            if let Some(number) = number {
                metadata.set("bert.pooling_type", number);
            }
            let embedding = Embedding::of_gguf(&metadata);
            assert_eq!((embedding.pooling, embedding.refused.is_some()), (expect, refused), "{number:?}");
        };
        check(None, Pooling::Mean, false);
        check(Some(1), Pooling::Mean, false);
        check(Some(2), Pooling::First, false);
        check(Some(3), Pooling::Last, false);
        check(Some(4), Pooling::Mean, true);
    }
}
