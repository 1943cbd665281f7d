//! HTML pages. So far one, which lists the server's APIs.

pub(crate) mod home;
