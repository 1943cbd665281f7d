//! The files of the pages.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, header};

const STYLE: &str = include_str!("../../templates/lode.css");

pub(crate) async fn style() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/css; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, STYLE).into_response()
}
