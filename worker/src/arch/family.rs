//! What a family of models is: its names in files, and how its configuration becomes a plan. Each family's
//! file has one of these, and `families` lists them.

use super::config::{Config, ConfigError};
use super::gguf::keys::{GgufModel, Settings};
use super::{encoder, plan};

/// A family, or a variant of one with its own name.
pub(super) struct Family {
    /// The class in `architectures` of config.json.
    pub(super) class: &'static str,
    /// `model_type` of config.json; `None` for a variant that only its class names.
    pub(super) model_type: Option<&'static str>,
    pub(super) planner: Planner,
    /// `None` if a GGUF cannot hold it.
    pub(super) gguf: Option<GgufFamily>,
}

/// Translates a configuration, with range checks, to a plan.
#[derive(Clone, Copy)]
pub(super) enum Planner {
    Decoder(fn(&Config) -> Result<plan::Plan, ConfigError>),
    Encoder(fn(&Config) -> Result<encoder::Plan, ConfigError>),
}

/// What distinguishes the families that share an architecture in GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    /// A mixture of experts.
    Experts,
    /// An encoder with a classification head.
    Classifier,
}

/// The form of a family in GGUF files.
pub(super) struct GgufFamily {
    /// `general.architecture`
    pub(super) architecture: &'static str,
    /// For an architecture that several families share.
    pub(super) form: Form,
    /// Whether `post_attention_norm` is a tensor of its own, besides the norm before the feed-forward part.
    pub(super) has_post_norms: bool,
    /// Sets the fields of config.json that not all families have.
    pub(super) settings: fn(&GgufModel<'_>, &mut Settings) -> Result<(), ConfigError>,
}

impl GgufFamily {
    /// The form of a family without these peculiarities.
    pub(super) const fn new(
        architecture: &'static str,
        settings: fn(&GgufModel<'_>, &mut Settings) -> Result<(), ConfigError>,
    ) -> Self {
        Self { architecture, form: Form::Plain, has_post_norms: false, settings }
    }
}
