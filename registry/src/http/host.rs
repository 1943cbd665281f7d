//! The host that a request names.

use std::net::IpAddr;

use http::header;
use http::request::Parts;

/// The host of the request, with its port.
pub(crate) fn host(parts: &Parts) -> Option<&str> {
    let named = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok());
    parts.uri.authority().map(|authority| authority.as_str()).or(named)
}

/// The name or address of `host[:port]`; an address keeps its brackets.
pub(crate) fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    }
}

/// Whether `HOST` or `HOST:PORT` is a loopback name or address.
pub(crate) fn is_loopback(host: &str) -> bool {
    let bare = without_port(host).trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    let top = bare.rsplit_once('.').map_or(bare, |(_, top)| top);
    top.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}
