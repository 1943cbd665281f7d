//! The client's address, scheme and host of a request, as seen by trusted proxies.
//! `X-Forwarded-*` and `Forwarded` (RFC 7239) count only on connections from those proxies.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};

use axum::extract::{ConnectInfo, FromRequestParts};
use http::HeaderMap;
use http::request::Parts;
use lode_client::Urgency;

use super::state::ServerState;
use crate::config::Cidr;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ForwardedInfo<'a> {
    pub(crate) client: Option<IpAddr>,
    /// `http` or `https`, if a proxy reported it.
    pub(crate) scheme: Option<&'static str>,
    pub(crate) host: Option<&'a str>,
}

/// Where an inference request comes from, and how urgent it is there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOrigin {
    /// The address of the client; None if the request did not arrive over a connection.
    pub(crate) address: Option<IpAddr>,
    pub(crate) urgency: Urgency,
}

impl FromRequestParts<ServerState> for RequestOrigin {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &ServerState) -> Result<Self, Infallible> {
        let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
        let trusted = &state.registry.config().trusted_proxies;
        Ok(RequestOrigin {
            address: forwarded_info(&parts.headers, trusted, peer).client,
            urgency: Urgency::of(&parts.headers),
        })
    }
}

pub(crate) fn forwarded_info<'a>(
    headers: &'a HeaderMap,
    trusted: &[Cidr],
    peer: Option<IpAddr>,
) -> ForwardedInfo<'a> {
    let is_trusted = |address: IpAddr| trusted.iter().any(|proxy| proxy.contains(address));
    let Some(peer) = peer.filter(|peer| is_trusted(*peer)) else {
        return ForwardedInfo { client: peer, ..ForwardedInfo::default() };
    };
    // A proxy that sets the older headers may pass on a client's own `Forwarded`, so `Forwarded` counts only
    // without them.
    const OLDER: [&str; 3] = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host"];
    if OLDER.iter().any(|name| headers.contains_key(*name)) {
        let [hops, scheme, host] = OLDER.map(|name| list(headers, name));
        // Each proxy appends the address of its own client. The last one that is not a trusted proxy is the
        // client; addresses before it are not trustworthy.
        let mut client = peer;
        for hop in hops.iter().rev() {
            let Some(address) = address(hop) else { break };
            client = address;
            if !is_trusted(address) {
                break;
            }
        }
        return ForwardedInfo {
            client: Some(client),
            scheme: scheme.first().and_then(|text| known_scheme(text)),
            host: host.first().copied(),
        };
    }
    let mut seen = ForwardedInfo { client: Some(peer), ..ForwardedInfo::default() };
    for hop in list(headers, "forwarded").iter().rev() {
        let parameter = |wanted: &str| {
            hop.split(';').filter_map(|pair| pair.split_once('=')).find_map(|(name, value)| {
                name.trim().eq_ignore_ascii_case(wanted).then(|| value.trim().trim_matches('"'))
            })
        };
        seen.scheme = parameter("proto").and_then(known_scheme).or(seen.scheme);
        seen.host = parameter("host").or(seen.host);
        let Some(address) = parameter("for").and_then(address) else { break };
        seen.client = Some(address);
        if !is_trusted(address) {
            break;
        }
    }
    seen
}

/// The values of a list header, from all of its lines.
fn list<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn known_scheme(text: &str) -> Option<&'static str> {
    ["http", "https"].into_iter().find(|scheme| text.eq_ignore_ascii_case(scheme))
}

/// An address with or without a port, with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    with_port().or_else(|| bare.parse().ok()).map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(peer: &str, headers: &[(&'static str, &str)], expect: (&str, Option<&str>, Option<&str>)) {
        let trusted: Vec<Cidr> = ["10.0.0.0/8", "fd00::/8"].map(|block| block.parse().unwrap()).into();
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let seen = forwarded_info(&map, &trusted, peer.parse().ok());
        let client = seen.client.map(|client| client.to_string()).unwrap_or_default();
        assert_eq!((client.as_str(), seen.scheme, seen.host), expect, "{headers:?}");
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        let headers = [("x-forwarded-for", "198.51.100.7"), ("x-forwarded-proto", "https")];
        check("192.0.2.1", &headers, ("192.0.2.1", None, None));
        check("10.0.0.1", &headers, ("198.51.100.7", Some("https"), None));
        check("", &headers, ("", None, None));
    }

    #[test]
    fn the_client_is_the_last_untrusted_address() {
        let client = |hops: &str, expect: &str| {
            check("10.0.0.1", &[("x-forwarded-for", hops)], (expect, None, None));
        };
        client("1.1.1.1, 198.51.100.7, 10.2.2.2", "198.51.100.7");
        client("10.3.3.3, 10.2.2.2", "10.3.3.3");
        client("198.51.100.7:4711", "198.51.100.7");
        client("[2001:db8::1]:80, fd00::7", "2001:db8::1");
        client("2001:db8::1", "2001:db8::1");
        client("unknown, 10.2.2.2", "10.2.2.2");
        client("nonsense", "10.0.0.1");
        client("::ffff:198.51.100.7", "198.51.100.7");
        let lines = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "198.51.100.7")];
        check("10.0.0.1", &lines, ("198.51.100.7", None, None));
    }

    #[test]
    fn the_newer_header_counts_by_itself() {
        let newer = "for=1.1.1.1;proto=http, For=\"[2001:db8::1]:99\"; Proto=https ;host=models.example, for=10.0.0.9";
        let expect = ("2001:db8::1", Some("https"), Some("models.example"));
        check("10.0.0.1", &[("forwarded", newer)], expect);
        let both = [("forwarded", newer), ("x-forwarded-host", "a.example, b.example")];
        check("10.0.0.1", &both, ("10.0.0.1", None, Some("a.example")));
        check("10.0.0.1", &[("forwarded", "for=_hidden;proto=https")], ("10.0.0.1", Some("https"), None));
        check("10.0.0.1", &[("forwarded", ";;=,\"")], ("10.0.0.1", None, None));
    }
}
