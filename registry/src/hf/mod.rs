//! Hugging Face's API below `/hf`: so far the sign-in of its clients.

pub(crate) mod oauth;
pub(crate) mod whoami;
