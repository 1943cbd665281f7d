//! How a model with a classification head scores documents: the pairs of the query with each document, and the
//! conversion of their logits.

use serde_json::Value;

use super::model::{MAX_CALL_BYTES, MAX_CALL_TEXTS, Model};
use super::protocol::{RerankRequest, RunnerError};
use crate::text::EncodedPair;

/// How the only logit of a model becomes a relevance score: as sentence-transformers' `CrossEncoder` does, with the
/// function in config.json, else the sigmoid.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Relevance {
    /// From 0 to 1.
    #[default]
    Sigmoid,
    /// The logit itself.
    Identity,
    /// Another function; rerank requests fail with its name.
    Refused(String),
}

impl Relevance {
    pub(super) fn of_config(config: &Value) -> Relevance {
        let newer = config.pointer("/sentence_transformers/activation_fn");
        let function = newer.or_else(|| config.get("sbert_ce_default_activation_function"));
        // A path such as `torch.nn.modules.linear.Identity`.
        match function.and_then(Value::as_str).map(|path| path.rsplit('.').next().unwrap_or(path)) {
            None | Some("Sigmoid") => Relevance::Sigmoid,
            Some("Identity") => Relevance::Identity,
            Some(other) => Relevance::Refused(other.chars().take(64).collect()),
        }
    }

    pub(super) fn score(&self, logit: f32) -> f32 {
        match self {
            Relevance::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
            Relevance::Identity | Relevance::Refused(_) => logit,
        }
    }
}

impl Model {
    /// The pair of the query with each document.
    pub(super) async fn prepare_rerank(
        &self,
        request: RerankRequest,
    ) -> Result<(Vec<EncodedPair>, &Relevance), RunnerError> {
        let refused = |what: String| RunnerError::unsupported(format!("{}: {what}", self.name));
        match self.info.classes {
            Some(1) => {}
            Some(n) => {
                return Err(refused(format!(
                    "it has {n} classes, but rerank needs a model with one: a cross-encoder with `num_labels` 1"
                )));
            }
            None => {
                return Err(refused(
                    "it has no classification head, which rerank needs: use a cross-encoder, such as a \
                     BertForSequenceClassification or XLMRobertaForSequenceClassification with one class"
                        .to_owned(),
                ));
            }
        }
        if let Relevance::Refused(function) = &self.relevance {
            return Err(refused(format!(
                "activation function `{function}` is not supported in rerank (supported: Sigmoid, Identity)"
            )));
        }
        self.vocabulary()?;
        let own = self.embedding().max_tokens.unwrap_or(usize::MAX).min(self.info.context_length);
        let limit = request.num_ctx.unwrap_or(usize::MAX).min(own);
        let mut documents = request.documents.into_iter().peekable();
        let mut all = Vec::new();
        while documents.peek().is_some() {
            let (mut texts, mut bytes) = (Vec::new(), 0);
            while texts.len() < MAX_CALL_TEXTS
                && let Some(text) =
                    documents.next_if(|text| texts.is_empty() || bytes + text.len() <= MAX_CALL_BYTES)
            {
                bytes += text.len();
                texts.push(text);
            }
            let pairs =
                self.helper.encode_pairs(request.query.clone(), texts, limit, request.truncate).await?;
            for pair in &pairs {
                self.check(&pair.ids)?;
                if pair.ids.is_empty() || pair.ids.len() > limit {
                    return Err(RunnerError::failed("the query and a document do not fit the context"));
                }
            }
            all.extend(pairs);
        }
        Ok((all, &self.relevance))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_function_of_the_configuration() {
        let of = |config: Value| Relevance::of_config(&config);
        let newer = |name: &str| json!({"sentence_transformers": {"activation_fn": name}});
        assert_eq!(of(json!({})), Relevance::Sigmoid);
        assert_eq!(of(newer("torch.nn.modules.activation.Sigmoid")), Relevance::Sigmoid);
        assert_eq!(of(newer("torch.nn.modules.linear.Identity")), Relevance::Identity);
        let older = json!({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"});
        assert_eq!(of(older), Relevance::Identity);
        assert_eq!(of(newer("torch.nn.Softmax")), Relevance::Refused("Softmax".to_owned()));
    }

    #[test]
    fn scores() {
        let sigmoid = |logit| Relevance::Sigmoid.score(logit);
        assert_eq!([sigmoid(0.0), sigmoid(200.0), sigmoid(-200.0)], [0.5, 1.0, 0.0]);
        assert!((sigmoid(1.0) - 0.731_058_6).abs() < 1e-6);
        assert_eq!(Relevance::Identity.score(-3.5), -3.5);
    }
}
