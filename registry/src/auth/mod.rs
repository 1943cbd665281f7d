//! The caller of a request and its permissions. Every method of `app` calls `allow` first; nothing here knows
//! HTTP.

mod caller;

pub use caller::{Action, Caller, Target, allow, allow_some};
