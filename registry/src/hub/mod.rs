//! HTML pages: the search, the pages about repositories, and those to sign in, to manage one's own credentials and the
//! robots of a namespace, and to operate the server. They work without scripts.

mod access;
pub(crate) mod account;
pub(crate) mod admin;
pub(crate) mod api_reference;
pub(crate) mod assets;
mod confirm;
pub(crate) mod connect;
pub(crate) mod device;
mod format;
pub(crate) mod home;
pub(crate) mod models;
pub(crate) mod namespace;
mod page;
mod publishers;
pub(crate) mod repository;
pub(crate) mod robot;
pub(crate) mod setup;
pub(crate) mod sign_in;
pub(crate) mod single_sign_on;
mod tokens;

pub(crate) use page::{failure_page, unknown_page};
