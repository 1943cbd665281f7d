//! Code shared by all routes: extractors, middleware, links, ranges, and the failures that each API formats.
//! Only the handlers of `oci`, `api`, `gateway` and `hub` use it.

mod access_log;
pub(crate) mod agent;
pub(crate) mod arrival;
pub(crate) mod authenticate;
pub(crate) mod body;
pub(crate) mod challenge;
pub(crate) mod compress;
pub(crate) mod conditional;
pub(crate) mod connections;
pub(crate) mod cors;
pub(crate) mod error;
pub(crate) mod extract;
pub(crate) mod file_sender;
pub(crate) mod fold_name;
pub(crate) mod forwarded;
pub(crate) mod host;
pub(crate) mod links;
pub(crate) mod methods;
pub(crate) mod model_name;
pub(crate) mod observe;
pub(crate) mod origin;
pub(crate) mod pages;
pub(crate) mod range;
pub(crate) mod search_address;
pub(crate) mod session_cookie;
pub(crate) mod stall;
pub(crate) mod state;

pub(crate) use error::Failure;
pub(crate) use extract::{GitName, HfName, Json, JsonBody, Path, Query, RequestBody, check_namespace, pair};
pub(crate) use host::is_loopback;
pub(crate) use links::{Links, OwnHosts, page};
