//! Fixtures of the end-to-end tests: the server as a process, the programs that talk to it, and things to push.
//! Only `tests/e2e` uses them; they link none of the crates under test, so what they hash, parse and compare is a second opinion.

pub mod artifact;
mod background;
pub mod bucket;
pub mod checkpoint;
pub mod clients;
pub mod cluster;
pub mod command;
pub mod disk;
pub mod endpoints;
pub mod faults;
pub mod oci;
pub mod postgres;
pub mod raw;
pub mod register;
pub mod report;
pub mod server;
pub mod services;
pub mod soak;
pub mod steps;
pub mod switch;
