//! HTML pages: the list of the server's APIs, and the pages to sign in and to manage one's own credentials. They
//! work without scripts.

pub(crate) mod account;
pub(crate) mod assets;
pub(crate) mod connect;
pub(crate) mod device;
pub(crate) mod home;
mod page;
pub(crate) mod setup;
pub(crate) mod sign_in;
pub(crate) mod single_sign_on;

pub(crate) use page::failure_page;
