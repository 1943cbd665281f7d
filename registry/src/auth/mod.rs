//! Who is calling and what they may do. Every method of `app` asks `allow` before anything else;
//! nothing in here knows HTTP.

mod caller;

pub use caller::{Action, Caller, Target, allow, allow_some};
