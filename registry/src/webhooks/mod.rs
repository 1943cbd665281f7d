//! Webhooks: URLs in the settings that receive events. `app` stores an event in the transaction of the
//! change, and the job here delivers it from any replica until the receiver accepts it.

mod config;
mod deliver;
mod event;
mod sign;

pub(crate) use config::check;
pub use config::{EventKind, Patterns, Webhook};
pub(crate) use deliver::start;
pub(crate) use event::Event;
