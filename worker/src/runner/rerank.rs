//! The pairs of a query with each document, for a model with a classification head of one class.

use super::model::{MAX_CALL_BYTES, MAX_CALL_TEXTS, Model};
use super::protocol::{RerankRequest, RunnerError};
use super::relevance::Relevance;
use crate::text::EncodedPair;

/// Maximum number of ids of all pairs of a request: each pair repeats those of the query.
const MAX_PAIR_IDS: usize = 1 << 24;

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
        let n = request.documents.len();
        let mut documents = request.documents.into_iter().peekable();
        let (mut all, mut ids) = (Vec::new(), 0);
        // A pair takes as long as both of its texts.
        let pair_bytes = |text: &String| text.len() + request.query.len();
        while documents.peek().is_some() {
            let (mut texts, mut bytes) = (Vec::new(), 0);
            while texts.len() < MAX_CALL_TEXTS
                && let Some(text) =
                    documents.next_if(|text| texts.is_empty() || bytes + pair_bytes(text) <= MAX_CALL_BYTES)
            {
                bytes += pair_bytes(&text);
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
            ids += pairs.iter().map(|pair| pair.ids.len()).sum::<usize>();
            if ids > MAX_PAIR_IDS {
                return Err(RunnerError::invalid(format!(
                    "the query with each of {n} documents has more than {MAX_PAIR_IDS} tokens in total; send fewer \
                     documents at a time"
                )));
            }
            all.extend(pairs);
        }
        Ok((all, &self.relevance))
    }
}
