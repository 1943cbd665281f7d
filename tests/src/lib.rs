//! Fixtures of the end-to-end tests: the server as a process, clients, and test content. Only `tests/e2e`
//! uses them. They do not link the crates under test, so they hash, parse and compare independently.

pub mod access;
pub mod artifact;
mod background;
pub mod browser;
pub mod bucket;
pub mod checkpoint;
pub mod clients;
pub mod cluster;
pub mod command;
pub mod disk;
pub mod endpoints;
pub mod faults;
pub mod oci;
pub mod onnx;
pub mod postgres;
pub mod process;
pub mod raw;
pub mod register;
pub mod report;
pub mod server;
pub mod services;
pub mod soak;
pub mod steps;
pub mod switch;
pub mod terminal;
