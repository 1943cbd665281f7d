//! The distribution client: reads and writes manifests and blobs of any OCI registry, verifies all received
//! content and resumes interrupted transfers.
//!
//! Used by the registry, the worker and the command line. It has no rules specific to Lode and knows a server
//! only by its address.

mod address;
mod auth;
mod blobs;
mod body;
mod byte_size;
mod content;
mod credentials;
mod destination;
mod egress;
mod error;
mod http;
mod manifests;
mod pages;
mod part;
mod progress;
mod pull;
mod push;
mod registry;
mod response;
mod retry;
mod secret;
mod session_file;
mod settings;
mod tls_problem;
mod transport;
mod urgency;

pub use address::{PlainHttp, base_url, is_loopback_host};
pub use blobs::{BlobInfo, BlobStream};
pub use body::{BodyBudget, BodyError, Charge, read_body};
pub use byte_size::{ByteSize, ByteSizeError};
pub use content::Content;
pub use credentials::{CredentialFile, CredentialKey, Credentials, Login, SavedLogin, TOKEN_USER};
pub use destination::{Destination, OpenFolder};
pub use egress::{Egress, EgressRule, EgressRuleError};
pub use error::{Error, ErrorEntry};
pub use http::http_client;
pub use manifests::{ManifestInfo, ManifestPut, RawManifest};
pub use pages::JsonPages;
pub use progress::{NoProgress, Progress};
pub use push::{Offer, PushOutcome, Upload};
pub use registry::{Registry, TagPage};
pub use retry::{RetryNotice, RetryPolicy};
pub use secret::Secret;
pub use settings::{
    deserialize_server_url, deserialize_server_url_option, duration, duration_option, format_duration,
};
pub use tls_problem::{TlsProblem, uses_https};
pub use transport::{Client, ClientOptions};
pub use urgency::Urgency;
