//! Lode: model.
