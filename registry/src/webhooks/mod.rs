//! Webhooks: addresses of the settings that are told what changed. `app` writes an event down in the transaction of the change,
//! and the job here delivers it until it is taken, on whichever replica gets to it first.

mod config;
mod deliver;
mod event;
mod sign;

pub(crate) use config::check;
pub use config::{EventKind, Patterns, Webhook};
pub(crate) use deliver::start;
pub(crate) use event::Event;
