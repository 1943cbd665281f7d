//! What every route shares: extractors, the middleware order, links, ranges, and the failure that each surface puts in its own words.
//! The handlers of `oci`, `api`, `gateway` and `hub` use it; nothing below the edge does.

pub(crate) mod agent;
pub(crate) mod body;
pub(crate) mod compress;
pub(crate) mod conditional;
pub(crate) mod connections;
pub(crate) mod error;
pub(crate) mod extract;
pub(crate) mod fold_name;
pub(crate) mod forwarded;
pub(crate) mod layers;
pub(crate) mod links;
pub(crate) mod observe;
pub(crate) mod origin;
pub(crate) mod outlet;
pub(crate) mod range;
pub(crate) mod stall;

pub(crate) use error::Failure;
pub(crate) use extract::{Json, JsonBody, Path, Query, RequestBody};
pub(crate) use links::{Links, OwnHosts, page};
