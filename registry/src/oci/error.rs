//! Error responses under `/v2`: the envelope with the specification's code, and the matching headers.
//! The status is the failure's own. A 5xx does not reveal its cause.

use axum::response::{IntoResponse, Response};
use http::header;
use lode_client::BodyError;
use lode_model::digest::Digest;
use lode_model::reference::ReferenceError;
use oci_spec::distribution::ErrorCode;
use serde::Serialize;
use serde_json::{Value, json};

use super::uploads::resume_headers;
use crate::Error;
use crate::http::links::header_value;
use crate::http::{Failure, Json};

#[derive(Serialize)]
struct Envelope {
    errors: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    code: Code,
    message: String,
    #[serde(skip_serializing_if = "Value::is_null")]
    detail: Value,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Code {
    Spec(ErrorCode),
    /// For this server's own failures, which the specification's closed list has no code for.
    Other(&'static str),
}

/// Creates the error response of a failure.
pub(crate) fn respond(failure: &Failure) -> Response {
    let mut response = (failure.status(), Json(Envelope { errors: entries(failure) })).into_response();
    let headers = response.headers_mut();
    match failure {
        Failure::Upload { source, location, id } => resume_headers(headers, location, *id, offset_of(source)),
        Failure::Registry(Error::RangeUnsatisfiable { size_bytes })
        | Failure::TooManyRanges { size_bytes, can_merge: false, .. } => {
            headers.insert(header::CONTENT_RANGE, header_value(&format!("bytes */{size_bytes}")));
        }
        _ => {}
    }
    response
}

/// One entry, or one per digest when several blobs are missing.
fn entries(failure: &Failure) -> Vec<Entry> {
    if let Failure::Registry(Error::ManifestBlobsUnknown(digests)) = failure {
        let entry = |digest: &Digest| Entry {
            code: Code::Spec(ErrorCode::ManifestBlobUnknown),
            message: format!("{digest} is not in this repository"),
            detail: json!({ "digest": digest }),
        };
        return digests.iter().map(entry).collect();
    }
    vec![Entry { code: code(failure), message: failure.message(), detail: detail(failure) }]
}

fn code(failure: &Failure) -> Code {
    Code::Spec(match failure {
        Failure::Registry(error) | Failure::Upload { source: error, .. } => return code_of(error),
        Failure::Name(ReferenceError::Digest(_)) | Failure::QueryMissing { name: "digest", .. } => {
            ErrorCode::DigestInvalid
        }
        Failure::Name(ReferenceError::Tag { .. }) => ErrorCode::ManifestInvalid,
        Failure::Name(_) | Failure::ModelName { .. } | Failure::Path => ErrorCode::NameInvalid,
        Failure::Id { .. } => ErrorCode::BlobUploadUnknown,
        Failure::ContentRange { .. } => ErrorCode::BlobUploadInvalid,
        Failure::Body(BodyError::BudgetExhausted) | Failure::Overloaded => return Code::Other("UNAVAILABLE"),
        Failure::Body(_) | Failure::TooManyRanges { .. } => ErrorCode::SizeInvalid,
        Failure::Link | Failure::KeyUnknown { .. } | Failure::Host { .. } | Failure::Origin { .. } => {
            ErrorCode::Denied
        }
        Failure::Gateway(_) | Failure::Panic(_) => return Code::Other("UNKNOWN"),
        _ => ErrorCode::Unsupported,
    })
}

fn code_of(error: &Error) -> Code {
    Code::Spec(match error {
        Error::BlobUnknown { .. } => ErrorCode::BlobUnknown,
        Error::ManifestUnknown { .. } => ErrorCode::ManifestUnknown,
        Error::NameUnknown { .. } | Error::PushHidden { .. } => ErrorCode::NameUnknown,
        Error::UploadUnknown { .. } | Error::UploadLost { .. } => ErrorCode::BlobUploadUnknown,
        Error::UploadConflict { .. } | Error::BodyInterrupted(_) => ErrorCode::BlobUploadInvalid,
        Error::DigestMismatch { .. } => ErrorCode::DigestInvalid,
        Error::RangeMismatch { .. }
        | Error::RangeUnsatisfiable { .. }
        | Error::SizeMismatch { .. }
        | Error::ManifestTooLarge { .. } => ErrorCode::SizeInvalid,
        Error::ManifestInvalid(_) | Error::DescriptorSize { .. } => ErrorCode::ManifestInvalid,
        Error::ManifestBlobsUnknown(_) => ErrorCode::ManifestBlobUnknown,
        Error::BlobReferenced { .. }
        | Error::Mirrored { .. }
        | Error::TagProtected { .. }
        | Error::TagMoved { .. }
        | Error::QuotaExceeded { .. }
        | Error::CredentialRevoked
        | Error::RoleRevoked { .. }
        | Error::Denied { .. } => ErrorCode::Denied,
        Error::NameReserved { .. } => ErrorCode::NameInvalid,
        Error::Unauthorized | Error::InsufficientScope | Error::CredentialsInvalid { .. } => {
            ErrorCode::Unauthorized
        }
        Error::Throttled { .. } | Error::TooManyRequests { .. } => ErrorCode::TooManyRequests,
        Error::ReadOnly => ErrorCode::Unsupported,
        Error::StorageFull
        | Error::Unavailable { .. }
        | Error::SetupPending
        | Error::UpstreamUnavailable(_)
        | Error::UpstreamInvalid(_) => return Code::Other("UNAVAILABLE"),
        _ => return Code::Other("UNKNOWN"),
    })
}

/// Values for clients to compare with, in JSON.
fn detail(failure: &Failure) -> Value {
    let (Failure::Registry(error) | Failure::Upload { source: error, .. }) = failure else {
        return match failure {
            Failure::Body(BodyError::TooLarge { limit_bytes }) => json!({ "limit_bytes": limit_bytes }),
            Failure::TooManyTags { limit } => json!({ "limit": limit }),
            _ => Value::Null,
        };
    };
    match error {
        Error::DigestMismatch { expected, got } => json!({ "expected": expected, "got": got }),
        Error::SizeMismatch { expected, got } => json!({ "expected": expected, "got": got }),
        Error::DescriptorSize { digest, described, stored } => {
            json!({ "digest": digest, "expected": stored, "got": described })
        }
        Error::RangeMismatch { offset, .. } | Error::UploadConflict { offset, .. } => {
            json!({ "offset": offset })
        }
        Error::BlobUnknown { digest } | Error::BlobReferenced { digest } => json!({ "digest": digest }),
        Error::ManifestUnknown { reference } => json!({ "reference": reference }),
        Error::QuotaExceeded { namespace, used_bytes, limit_bytes } => {
            json!({ "namespace": namespace, "used_bytes": used_bytes, "limit_bytes": limit_bytes })
        }
        Error::NameUnknown { repository }
        | Error::PushHidden { repository, .. }
        | Error::Mirrored { repository } => json!({ "name": repository }),
        _ => Value::Null,
    }
}

/// The current offset of an upload whose chunk was refused.
fn offset_of(error: &Error) -> Option<u64> {
    match error {
        Error::UploadConflict { offset, .. } | Error::RangeMismatch { offset, .. } => Some(*offset),
        _ => None,
    }
}
