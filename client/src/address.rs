//! Parses the address of a registry into its base URL. Without a scheme, loopback hosts use http and other
//! hosts https, unless [`PlainHttp`] changes that.

use std::net::IpAddr;

use url::{Host, Url};

use crate::Error;

/// Which hosts use http if the address has no scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PlainHttp {
    /// Only hosts on this machine: `localhost`, `*.localhost`, 127.0.0.0/8 and ::1.
    #[default]
    Loopback,
    /// Every host.
    Always,
}

/// Parses `http://127.0.0.1:5000`, `https://hub.local` or a bare `host[:port]`. The result always ends in
/// `/`.
pub fn base_url(address: &str, plain: PlainHttp) -> Result<Url, Error> {
    let invalid = |why: &'static str| Error::InvalidAddress { address: address.to_owned(), why };
    let trimmed = address.trim();
    let trimmed = trimmed.strip_suffix('/').filter(|rest| !rest.ends_with('/')).unwrap_or(trimmed);
    if trimmed.is_empty() {
        return Err(invalid("the address is empty"));
    }
    let mut url = match trimmed.split_once("://") {
        Some(("http" | "https", _)) => Url::parse(trimmed).map_err(|_| invalid("not a URL"))?,
        Some(_) => return Err(invalid("the scheme must be http or https")),
        None => {
            let url = Url::parse(&format!("https://{trimmed}")).map_err(|_| invalid("not host[:port]"))?;
            let loopback = url.host().is_some_and(|host| is_loopback(&host));
            if loopback || plain == PlainHttp::Always {
                // Parse again: the default port depends on the scheme.
                Url::parse(&format!("http://{trimmed}")).map_err(|_| invalid("not host[:port]"))?
            } else {
                url
            }
        }
    };
    if url.host_str().is_none_or(str::is_empty) {
        return Err(invalid("it has no host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("it contains a user name: use `login` instead"));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(invalid("it has a path, query or fragment; use only scheme, host and port"));
    }
    // 0.0.0.0 and [::] are listen addresses. For a client they mean this machine.
    match url.host() {
        Some(Host::Ipv4(ip)) if ip.is_unspecified() => set_host(&mut url, trimmed, "127.0.0.1"),
        Some(Host::Ipv6(ip)) if ip.is_unspecified() => set_host(&mut url, trimmed, "[::1]"),
        Some(Host::Domain("docker.io")) => set_host(&mut url, trimmed, "registry-1.docker.io"),
        _ => {}
    }
    Ok(url)
}

fn set_host(url: &mut Url, written: &str, host: &str) {
    if url.set_host(Some(host)).is_err() {
        tracing::debug!(written, host, "failed to replace the host of an address");
    }
    // `0.0.0.0:5000` without a scheme is this machine, which uses http.
    if !written.contains("://") && host != "registry-1.docker.io" {
        let port = url.port();
        if url.set_scheme("http").is_ok() {
            let _kept = url.set_port(port);
        }
    }
}

/// `host[:port]`. The port is included only if the URL has one.
pub(crate) fn host_and_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// Whether `host` is this machine. `host` is a name or an address without port; brackets are allowed.
pub fn is_loopback_host(host: &str) -> bool {
    Host::parse(host).is_ok_and(|host| is_loopback(&host))
}

pub(crate) fn is_loopback(host: &Host<impl AsRef<str>>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = name.as_ref().trim_end_matches('.');
            name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
        }
        Host::Ipv4(ip) => IpAddr::V4(*ip).is_loopback(),
        Host::Ipv6(ip) => IpAddr::V6(*ip).is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_become_base_urls() {
        let check = |address: &str, expect: &str| {
            let got = base_url(address, PlainHttp::Loopback).map(|url| url.to_string());
            assert_eq!(got.ok().as_deref(), Some(expect), "{address}");
        };
        check("127.0.0.1:5000", "http://127.0.0.1:5000/");
        check("localhost", "http://localhost/");
        check("localhost:5000/", "http://localhost:5000/");
        check("[::1]:5000", "http://[::1]:5000/");
        check("hub.local", "https://hub.local/");
        check("hub.local:5000", "https://hub.local:5000/");
        check("http://hub.local", "http://hub.local/");
        check("https://127.0.0.1:5000", "https://127.0.0.1:5000/");
        check("0.0.0.0:5000", "http://127.0.0.1:5000/");
        check("docker.io", "https://registry-1.docker.io/");
        check("localhost:443", "http://localhost:443/");
    }

    #[test]
    fn plain_http_always_applies_to_all_hosts() {
        let url = base_url("hub.local:5000", PlainHttp::Always).unwrap();
        assert_eq!(url.as_str(), "http://hub.local:5000/");
        // An explicit scheme takes precedence.
        let url = base_url("https://hub.local", PlainHttp::Always).unwrap();
        assert_eq!(url.as_str(), "https://hub.local/");
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for address in
            ["", "ftp://x", "http://", "hub.local/team", "http://u:p@hub.local", "a b", "hub.local:99999"]
        {
            assert!(base_url(address, PlainHttp::Loopback).is_err(), "{address:?}");
        }
    }

    #[test]
    fn hosts_of_this_machine() {
        for host in ["localhost", "LOCALHOST", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["hub.local", "10.0.0.1", "localhost.example", "[fe80::1]"] {
            assert!(!is_loopback_host(host), "{host}");
        }
    }
}
