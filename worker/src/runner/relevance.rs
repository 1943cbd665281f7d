//! The conversion of a cross-encoder's logit to the relevance of a document.

use serde_json::Value;

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
