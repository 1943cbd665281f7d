//! HTML pages: the search, the pages about repositories, and those to sign in and to manage one's own credentials.
//! They work without scripts.

pub(crate) mod account;
pub(crate) mod admin;
pub(crate) mod api_reference;
pub(crate) mod assets;
pub(crate) mod connect;
pub(crate) mod device;
mod format;
pub(crate) mod home;
pub(crate) mod models;
mod page;
pub(crate) mod repository;
pub(crate) mod setup;
pub(crate) mod sign_in;
pub(crate) mod single_sign_on;

pub(crate) use page::failure_page;
