//! Checks `Host` and `Origin`. A `Host` that two parsers could read differently is refused everywhere. An
//! open server on loopback also refuses requests that web pages of other sites could cause (DNS rebinding,
//! cross-site requests).

use http::header;
use http::request::Parts;
use http::uri::Authority;
use url::Url;

use super::arrival::RequestArrival;
use super::host::{host, is_loopback, without_port};
use super::{Failure, cors};
use crate::{Config, Registry};

pub(crate) fn check(registry: &Registry, parts: &Parts) -> Result<(), Failure> {
    refuse_ambiguous_host(parts)?;
    let origin = parts.headers.get(header::ORIGIN).map(|value| String::from_utf8_lossy(value.as_bytes()));
    // The setting may allow pages of other origins to use the APIs.
    let allowed = cors::foreign_origin(parts).filter(|origin| cors::is_allowed(registry.config(), origin));
    let origin = origin.filter(|_| allowed.is_none());
    let internal = parts.extensions.get::<RequestArrival>().is_some_and(|arrival| arrival.internal);
    if registry.is_known_closed() {
        return Ok(());
    }
    check_host_and_origin(registry.config(), internal, host(parts), origin.as_deref())
}

/// Refuses a host that proxies in front of this server, or links made from it, could read as another host.
fn refuse_ambiguous_host(parts: &Parts) -> Result<(), Failure> {
    let invalid = |reason| Err(Failure::HostInvalid { reason });
    let mut lines = parts.headers.get_all(header::HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return invalid("the header is sent more than once");
    }
    if let Some(line) = line.filter(|line| !line.is_empty()) {
        let authority = line.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
        match authority {
            None => return invalid("expected HOST or HOST:PORT"),
            Some(authority) if has_userinfo(&authority) => return invalid("it contains a user name"),
            Some(_) => {}
        }
    }
    // The target of a request to a proxy, and `:authority` of HTTP/2.
    match parts.uri.authority() {
        Some(authority) if has_userinfo(authority) => invalid("the request target contains a user name"),
        _ => Ok(()),
    }
}

fn has_userinfo(authority: &Authority) -> bool {
    authority.as_str().contains('@')
}

fn check_host_and_origin(
    config: &Config,
    internal: bool,
    host: Option<&str>,
    origin: Option<&str>,
) -> Result<(), Failure> {
    let on_loopback = internal || config.listen.ip().to_canonical().is_loopback();
    if !on_loopback {
        return Ok(());
    }
    // Every browser sends Host, so a request without one does not come from a web page.
    if let Some(host) = host.filter(|host| !is_ours(config, without_port(host))) {
        return Err(Failure::Host { host: host.to_owned() });
    }
    if let Some(origin) = origin {
        let url = Url::parse(origin).ok();
        if !is_ours(config, url.as_ref().and_then(Url::host_str).unwrap_or_default()) {
            return Err(Failure::Origin { origin: origin.to_owned() });
        }
    }
    Ok(())
}

fn is_ours(config: &Config, name: &str) -> bool {
    is_loopback(name)
        || config
            .public_url
            .as_ref()
            .and_then(Url::host_str)
            .is_some_and(|ours| ours.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_origins_are_checked() {
        let config = Config { public_url: "https://models.example".parse().ok(), ..Config::default() };
        let allowed = |host: &str, origin: &str| {
            check_host_and_origin(
                &config,
                false,
                Some(host).filter(|h| !h.is_empty()),
                Some(origin).filter(|o| !o.is_empty()),
            )
            .is_ok()
        };
        for host in [
            "localhost",
            "localhost:5000",
            "127.0.0.1:5000",
            "127.3.4.5",
            "[::1]:5000",
            "LOCALHOST",
            "a.localhost",
            "models.example",
            "MODELS.example:443",
            "",
        ] {
            assert!(allowed(host, ""), "{host}");
        }
        for host in [
            "example.com",
            "example.com:5000",
            "127.0.0.1.example.com",
            "localhost.example.com",
            "10.0.0.1",
            "0.0.0.0:5000",
            "@",
            "[::2]:5000",
        ] {
            assert!(!allowed(host, ""), "{host}");
        }
        for origin in ["http://localhost:3000", "http://127.0.0.1:5000", "https://models.example"] {
            assert!(allowed("localhost", origin), "{origin}");
        }
        for origin in [
            "http://example.com",
            "null",
            "file://",
            "",
            "http://localhost.example.com",
            "chrome-extension://abc",
        ] {
            assert_eq!(allowed("localhost", origin), origin.is_empty(), "{origin}");
        }
        let wide = Config { listen: "0.0.0.0:5000".parse().unwrap(), ..Config::default() };
        assert!(check_host_and_origin(&wide, false, Some("example.com"), Some("http://example.org")).is_ok());
        assert!(check_host_and_origin(&wide, true, Some("example.com"), None).is_err());
    }
}
