//! The table of the supported families, and the recognition of a model's family. A new family is a file with
//! a [`Family`] and a row here.

use super::config::Config;
use super::error::LoadError;
use super::family::{Family, GgufFamily, Planner};
use super::forward::{Forward, Shape, Tensors};
use super::{
    bert, decoder, encoder, gemma2, gemma3, llama, mistral, mixtral, nomic_bert, phi3, plan, qwen2, qwen3,
    qwen3_moe,
};
use lode_kernels::Kernels;
use lode_model::runnable::CLASSES;

const FAMILIES: [&Family; 18] = [
    &llama::FAMILY,
    &mistral::FAMILY,
    &mixtral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &gemma3::MULTIMODAL,
    &gemma3::EMBEDDING,
    &phi3::FAMILY,
    &bert::BERT,
    &bert::ROBERTA,
    &bert::XLM_ROBERTA,
    &nomic_bert::FAMILY,
    &bert::BERT_CLASSIFIER,
    &bert::ROBERTA_CLASSIFIER,
    &bert::XLM_ROBERTA_CLASSIFIER,
];

/// The families of a GGUF's `general.architecture`, the most common first.
pub(super) fn of_gguf(architecture: &str) -> impl Iterator<Item = (&'static Family, &'static GgufFamily)> {
    let forms = FAMILIES.into_iter().filter_map(|family| Some((family, family.gguf.as_ref()?)));
    forms.filter(move |(_, gguf)| gguf.architecture == architecture)
}

/// A recognised and checked configuration; no tensor has been read yet.
pub struct Plan(Kind);

enum Kind {
    Decoder(plan::Plan),
    Encoder(encoder::Plan),
}

impl Plan {
    /// Recognises the architecture by its class, or without one by `model_type`, and range-checks its
    /// numbers.
    pub fn new(config: &Config) -> Result<Self, LoadError> {
        let architecture = config.architecture();
        let is_named = |family: &&&Family| {
            family.class == architecture || family.model_type.is_some_and(|name| name == architecture)
        };
        match FAMILIES.iter().find(is_named).map(|family| family.planner) {
            Some(Planner::Decoder(plan)) => Ok(Self(Kind::Decoder(plan(config)?.check()?))),
            Some(Planner::Encoder(plan)) => Ok(Self(Kind::Encoder(plan(config)?))),
            None => Err(LoadError::UnsupportedArchitecture { architecture, supported: &CLASSES }),
        }
    }

    pub fn shape(&self) -> Shape {
        match &self.0 {
            Kind::Decoder(plan) => plan.shape,
            Kind::Encoder(plan) => plan.shape,
        }
    }

    /// Whether every token attends to its whole sequence. Such a model returns only hidden states, for a
    /// whole sequence at a time.
    pub fn is_encoder(&self) -> bool {
        match &self.0 {
            Kind::Decoder(plan) => !plan.causal,
            Kind::Encoder(_) => true,
        }
    }

    /// Number of classes of the classification head; `None` without one.
    pub fn classes(&self) -> Option<usize> {
        match &self.0 {
            Kind::Decoder(_) => None,
            Kind::Encoder(plan) => plan.head.as_ref().map(|head| head.classes),
        }
    }

    /// Reads the tensors and uploads them to the device, for sequences of up to `context_length` tokens.
    pub fn build<K: Kernels + 'static>(
        &self,
        tensors: &mut dyn Tensors,
        kernels: &mut K,
        context_length: usize,
    ) -> Result<Box<dyn Forward<K>>, LoadError> {
        match &self.0 {
            Kind::Decoder(plan) => {
                Ok(Box::new(decoder::Decoder::build(plan, tensors, kernels, context_length)?))
            }
            Kind::Encoder(plan) => {
                Ok(Box::new(encoder::Encoder::build(plan, tensors, kernels, context_length)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use lode_model::runnable::{GGUF_ARCHITECTURES, MODEL_TYPES};

    use super::super::family::Form;
    use super::*;

    #[test]
    fn names_are_unique() {
        let mut names: Vec<&str> =
            FAMILIES.iter().flat_map(|family| [Some(family.class), family.model_type]).flatten().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }

    #[test]
    fn the_registry_knows_the_families() {
        let classes: Vec<&str> = FAMILIES.iter().map(|family| family.class).collect();
        assert_eq!(classes, CLASSES);
        let types: Vec<&str> = FAMILIES.iter().filter_map(|family| family.model_type).collect();
        assert_eq!(types, MODEL_TYPES);
        let named = FAMILIES.iter().filter_map(|family| Some(family.gguf.as_ref()?.architecture));
        assert_eq!(named.collect::<BTreeSet<_>>(), BTreeSet::from(GGUF_ARCHITECTURES));
    }

    #[test]
    fn each_form_of_an_architecture_has_one_family() {
        for family in FAMILIES.iter().filter_map(|family| family.gguf.as_ref()) {
            let forms: Vec<Form> = of_gguf(family.architecture).map(|(_, gguf)| gguf.form).collect();
            let is_known = matches!(forms[..], [_] | [Form::Plain, Form::Experts | Form::Classifier]);
            assert!(is_known, "{}", family.architecture);
        }
    }
}
