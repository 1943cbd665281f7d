//! The egress policy: which addresses a server may connect to on behalf of its callers. A command-line client
//! has no policy. The policy checks resolved addresses at connect time, so a name cannot resolve differently
//! after the check.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use ipnet::IpNet;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use url::{Host, Url};

use crate::{
    Error,
    address::is_loopback,
    error,
    http::{http_builder, http_client},
};

/// An entry of `--allow-egress`: a permitted destination that is not public.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EgressRule {
    /// Every port of these addresses, whatever name resolves to them.
    Network(IpNet),
    /// A host as written in the URL, whatever it resolves to. Without a port, every port of the host.
    Host { host: Host<String>, port: Option<u16> },
}

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is neither an address block such as 10.0.0.0/8 nor a host such as registry.internal:5000")]
pub struct EgressRuleError(String);

impl EgressRule {
    /// The rule for the host and port of `url`; `None` if it has no host.
    fn for_url(url: &Url) -> Option<EgressRule> {
        Some(EgressRule::Host { host: url.host()?.to_owned(), port: url.port_or_known_default() })
    }

    fn matches_host(&self, host: &Host<&str>, port: u16) -> bool {
        match self {
            EgressRule::Network(_) => false,
            EgressRule::Host { host: listed, port: listed_port } => {
                listed_port.is_none_or(|listed| listed == port) && same_host(listed, host)
            }
        }
    }
}

fn same_host(listed: &Host<String>, host: &Host<&str>) -> bool {
    match (listed, host) {
        (Host::Domain(listed), Host::Domain(name)) => listed == name,
        (Host::Ipv4(listed), Host::Ipv4(ip)) => listed == ip,
        (Host::Ipv6(listed), Host::Ipv6(ip)) => listed == ip,
        _ => false,
    }
}

impl FromStr for EgressRule {
    type Err = EgressRuleError;

    fn from_str(text: &str) -> Result<Self, EgressRuleError> {
        let invalid = || EgressRuleError(text.to_owned());
        let text = text.trim();
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(EgressRule::Network(network.trunc()));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(EgressRule::Network(IpNet::from(ip)));
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !text.ends_with(']') => (host, Some(port.parse().map_err(|_| invalid())?)),
            _ => (text, None),
        };
        if host.contains(['*', '/', '@']) {
            return Err(invalid());
        }
        let host = Host::parse(host).map_err(|_| invalid())?;
        Ok(match (host, port) {
            (Host::Ipv4(ip), None) => EgressRule::Network(IpNet::from(IpAddr::V4(ip))),
            (Host::Ipv6(ip), None) => EgressRule::Network(IpNet::from(IpAddr::V6(ip))),
            (host, port) => EgressRule::Host { host, port },
        })
    }
}

impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EgressRule::Network(network) => network.fmt(f),
            EgressRule::Host { host, port: None } => host.fmt(f),
            EgressRule::Host { host, port: Some(port) } => write!(f, "{host}:{port}"),
        }
    }
}

impl Serialize for EgressRule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EgressRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The egress policy with its HTTP clients. Cheap to clone; clones share their connections.
///
/// Public addresses are permitted. Any other address needs a rule: a network that contains it, or the host of
/// the URL by name. For requests through the proxy of the environment only the URL's host is checked, because
/// the proxy resolves it.
#[derive(Clone)]
pub struct Egress {
    shared: Arc<Shared>,
    /// Permitted destinations in addition to the rules.
    extra_rules: Vec<EgressRule>,
}

struct Shared {
    rules: Vec<EgressRule>,
    networks: Arc<[IpNet]>,
    proxies: Vec<String>,
    /// Connects only to permitted addresses.
    filtered: reqwest::Client,
    /// Connects to any address of a host in the rules.
    listed: reqwest::Client,
    /// Connects to this machine without a proxy, and to permitted addresses.
    local: reqwest::Client,
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress").field("rules", &self.shared.rules).field("also", &self.extra_rules).finish()
    }
}

impl Egress {
    pub fn new(rules: Vec<EgressRule>) -> Result<Egress, Error> {
        Egress::with_proxies(rules, proxy_hosts(|name| std::env::var(name).ok()))
    }

    fn with_proxies(rules: Vec<EgressRule>, proxies: Vec<String>) -> Result<Egress, Error> {
        let networks: Arc<[IpNet]> = rules
            .iter()
            .filter_map(|rule| match rule {
                EgressRule::Network(network) => Some(*network),
                EgressRule::Host { .. } => None,
            })
            .collect();
        let resolver = |proxies: &[String], loopback| PermittedAddresses {
            networks: networks.clone(),
            proxies: proxies.into(),
            loopback,
        };
        let (public, local) = (resolver(&proxies, false), resolver(&[], true));
        let user_agent = crate::http::USER_AGENT;
        Ok(Egress {
            shared: Arc::new(Shared {
                filtered: http_client(|| http_builder(user_agent).dns_resolver(public.clone()))
                    .map_err(Error::Setup)?,
                listed: http_client(|| http_builder(user_agent)).map_err(Error::Setup)?,
                local: http_client(|| http_builder(user_agent).dns_resolver(local.clone()).no_proxy())
                    .map_err(Error::Setup)?,
                rules,
                networks,
                proxies,
            }),
            extra_rules: Vec::new(),
        })
    }

    /// Returns a policy that additionally permits the host and port of `url`.
    pub fn with_permitted(&self, url: &Url) -> Egress {
        let mut egress = self.clone();
        egress.extra_rules.extend(EgressRule::for_url(url));
        egress
    }

    /// Returns the HTTP client for a request to `url`, or an error if the policy refuses the host. Call it
    /// again for each redirect: the client follows none.
    pub fn http(&self, url: &Url) -> Result<&reqwest::Client, Error> {
        let shared = &*self.shared;
        let refused = || refused(url);
        let (host, port) = url.host().zip(url.port_or_known_default()).ok_or_else(refused)?;
        let is_local = is_loopback(&host);
        if shared.rules.iter().chain(&self.extra_rules).any(|rule| rule.matches_host(&host, port)) {
            return Ok(if is_local { &shared.local } else { &shared.listed });
        }
        let permits = |ip| is_permitted(ip, &shared.networks);
        let permitted = match host {
            Host::Ipv4(ip) => permits(IpAddr::V4(ip)),
            Host::Ipv6(ip) => permits(IpAddr::V6(ip)),
            Host::Domain(_) if is_local => {
                permits(Ipv4Addr::LOCALHOST.into()) || permits(Ipv6Addr::LOCALHOST.into())
            }
            // The filtering client does not filter the proxy's address, so the proxy must not be a
            // destination.
            Host::Domain(name) => !shared.proxies.iter().any(|proxy| proxy == name),
        };
        match (permitted, is_local) {
            (false, _) => Err(refused()),
            (true, true) => Ok(&shared.local),
            (true, false) => Ok(&shared.filtered),
        }
    }
}

fn refused(url: &Url) -> Error {
    Error::Egress { server: error::server(url) }
}

/// Returns the hosts of the proxies in the environment.
fn proxy_hosts(variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
    ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
        .into_iter()
        .filter_map(variable)
        .filter_map(|text| {
            let text = text.trim();
            let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
            Some(Url::parse(&text).ok()?.host_str()?.to_ascii_lowercase())
        })
        .collect()
}

/// A resolver that returns only permitted addresses.
#[derive(Clone)]
struct PermittedAddresses {
    networks: Arc<[IpNet]>,
    /// Names whose addresses are not filtered, because the operator configured them.
    proxies: Arc<[String]>,
    /// Whether loopback addresses are permitted.
    loopback: bool,
}

/// A name has no permitted address. The message does not reveal whether the name resolves at all; the source
/// is for the log.
#[derive(Debug, thiserror::Error)]
#[error("no permitted address")]
pub(crate) struct NoPermittedAddress(#[source] Option<io::Error>);

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

impl Resolve for PermittedAddresses {
    fn resolve(&self, name: Name) -> Resolving {
        let this = self.clone();
        let name = name.as_str().to_owned();
        Box::pin(async move {
            let timed = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((name.as_str(), 0)));
            let found = match timed.await {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => return Err(NoPermittedAddress(Some(error)).into()),
                Err(_) => {
                    return Err(NoPermittedAddress(Some(io::ErrorKind::TimedOut.into())).into());
                }
            };
            let is_proxy = this.proxies.contains(&name);
            let permits = |ip: IpAddr| {
                is_proxy
                    || is_permitted(ip, &this.networks)
                    || this.loopback && ip.to_canonical().is_loopback()
            };
            let permitted: Vec<SocketAddr> = found.filter(|address| permits(address.ip())).collect();
            if permitted.is_empty() {
                return Err(NoPermittedAddress(None).into());
            }
            Ok(Box::new(permitted.into_iter()) as Addrs)
        })
    }
}

/// Whether an error of the HTTP client was caused by the policy.
pub(crate) fn is_refusal(error: &reqwest::Error) -> bool {
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        if cause.is::<NoPermittedAddress>() {
            return true;
        }
        source = cause.source();
    }
    false
}

fn is_permitted(ip: IpAddr, networks: &[IpNet]) -> bool {
    let ip = ip.to_canonical();
    is_public(ip) || networks.iter().any(|network| network.contains(&ip))
}

/// Address blocks that are not public (IANA's special-purpose registries), and public-looking addresses of
/// cloud metadata services.
const NOT_PUBLIC_V4: &[&str] = &[
    "0.0.0.0/8",        // this network
    "10.0.0.0/8",       // private
    "100.64.0.0/10",    // carrier-grade NAT, and Alibaba's metadata
    "127.0.0.0/8",      // loopback
    "168.63.129.16/32", // Azure's metadata
    "169.254.0.0/16",   // link-local, and most clouds' metadata
    "172.16.0.0/12",    // private
    "192.0.0.0/24",     // protocol assignments, and Oracle's metadata
    "192.0.2.0/24",     // documentation
    "192.88.99.0/24",   // 6to4 relays
    "192.168.0.0/16",   // private
    "198.18.0.0/15",    // benchmarks
    "198.51.100.0/24",  // documentation
    "203.0.113.0/24",   // documentation
    "224.0.0.0/4",      // multicast
    "240.0.0.0/4",      // reserved, broadcast
];
/// Blocks in 2000::/3. All other IPv6 addresses are not public.
const NOT_PUBLIC_V6: &[&str] = &[
    "2001::/23",     // protocol assignments, Teredo
    "2001:db8::/32", // documentation
    "3fff::/20",     // documentation
];

static NOT_PUBLIC: LazyLock<Vec<IpNet>> = LazyLock::new(|| {
    let blocks = NOT_PUBLIC_V4.iter().chain(NOT_PUBLIC_V6);
    blocks.map(|block| block.parse().expect("a constant address block")).collect()
});

/// Whether an address is on the public internet. For addresses that embed an IPv4 address, the IPv4 address
/// is checked.
fn is_public(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    if let IpAddr::V6(v6) = ip {
        if let Some(v4) = embedded_v4(v6) {
            return is_public(IpAddr::V4(v4));
        }
        if v6.segments()[0] & 0xe000 != 0x2000 {
            return false;
        }
    }
    !NOT_PUBLIC.iter().any(|block| block.contains(&ip))
}

/// Extracts the IPv4 address of a NAT64 (64:ff9b::/96) or 6to4 (2002::/16) address.
fn embedded_v4(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = ip.to_bits();
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => Some(Ipv4Addr::from_bits(bits as u32)),
        [0x2002, ..] => Some(Ipv4Addr::from_bits((bits >> 80) as u32)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_internet_are_public() {
        for public in [
            "1.1.1.1",
            "8.8.8.8",
            "172.15.0.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "2001:4860:4860::8888",
            "::ffff:8.8.8.8",
            "64:ff9b::808:808",
            "2002:808:808::1",
        ] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for refused in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.168.1.1",
            "198.18.0.1",
            "224.0.0.1",
            "239.255.255.250",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::1",
            "2002:a9fe:a9fe::",
            "2001::1",
            "2001:db8::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "100::1",
        ] {
            assert!(!is_public(refused.parse().unwrap()), "{refused}");
        }
    }

    #[test]
    fn rules_are_blocks_or_hosts() {
        let shown = |text: &str| text.parse::<EgressRule>().map(|rule| rule.to_string()).ok();
        for (text, expect) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("10.1.2.3", "10.1.2.3/32"),
            ("fd00::/8", "fd00::/8"),
            ("::1", "::1/128"),
            ("[::1]", "::1/128"),
            ("[::1]:5000", "[::1]:5000"),
            ("127.0.0.1:5000", "127.0.0.1:5000"),
            ("registry.internal", "registry.internal"),
            ("Registry.Internal:443", "registry.internal:443"),
        ] {
            assert_eq!(shown(text).as_deref(), Some(expect), "{text}");
            assert_eq!(shown(expect).as_deref(), Some(expect), "{expect}");
        }
        for text in ["", "*", "*.internal", "http://x", "x/y", "a@b", "x:", "x:70000", "10.0.0.0/33", "a b"] {
            assert_eq!(shown(text), None, "{text:?}");
        }
    }

    fn egress(rules: &[&str]) -> Egress {
        let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        Egress::with_proxies(rules, vec!["proxy.internal".into()]).unwrap()
    }

    fn permits(egress: &Egress, url: &str) -> bool {
        match egress.http(&url.parse().unwrap()) {
            Ok(_) => true,
            Err(Error::Egress { .. }) => false,
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn hosts_of_urls_are_checked_in_every_spelling() {
        let none = egress(&[]);
        for url in [
            "http://127.0.0.1/",
            "http://127.1:8080/",
            "http://2130706433/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://127.0.0.1./",
            "http://localhost/",
            "http://LOCALHOST./",
            "http://x.localhost/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://169.254.169.254/latest/meta-data/",
            "http://0.0.0.0/",
            "https://10.0.0.1/",
            "http://proxy.internal/",
        ] {
            assert!(!permits(&none, url), "{url}");
        }
        assert!(permits(&none, "https://1.1.1.1/"));
        // Names are checked when they are resolved.
        assert!(permits(&none, "https://registry.example/"));
    }

    #[test]
    fn rules_permit_what_they_list_and_no_more() {
        let some = egress(&["10.0.0.0/8", "registry.internal:5000", "127.0.0.1:5001", "proxy.internal:9000"]);
        for (url, expect) in [
            ("http://10.20.30.40:1/", true),
            ("http://[::ffff:10.20.30.40]/", true),
            ("http://11.0.0.1/", true),
            ("http://192.168.0.1/", false),
            ("http://127.0.0.1:5001/", true),
            ("http://127.0.0.1:5002/", false),
            ("http://localhost:5001/", false),
            ("http://proxy.internal:9000/", true),
            ("http://proxy.internal/", false),
        ] {
            assert_eq!(permits(&some, url), expect, "{url}");
        }
        assert!(permits(&egress(&["127.0.0.0/8"]), "http://localhost:1/"));
        let named = egress(&[]).with_permitted(&"http://127.0.0.1:5001/x".parse().unwrap());
        assert!(permits(&named, "http://127.0.0.1:5001/y"));
        assert!(!permits(&named, "http://127.0.0.1:5002/y"));
        assert!(!permits(&named, "https://127.0.0.1/y"));
    }

    #[tokio::test]
    async fn names_are_resolved_to_permitted_addresses() {
        let resolve = async |networks: &[&str], proxies: &[&str]| {
            let resolver = PermittedAddresses {
                networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
                proxies: proxies.iter().map(|proxy| (*proxy).to_owned()).collect(),
                loopback: false,
            };
            let found = resolver.resolve("localhost".parse().unwrap()).await;
            found.map(|addresses| addresses.map(|address| address.ip()).collect::<Vec<_>>())
        };
        assert!(resolve(&[], &[]).await.unwrap_err().is::<NoPermittedAddress>());
        assert!(resolve(&["10.0.0.0/8"], &[]).await.is_err());
        let found = resolve(&["127.0.0.0/8"], &[]).await.unwrap();
        assert!(!found.is_empty() && found.iter().all(IpAddr::is_ipv4), "{found:?}");
        assert!(resolve(&[], &["localhost"]).await.is_ok());
    }

    /// The resolver's error is recognised through the wrappers of the HTTP client.
    #[tokio::test]
    async fn a_refusal_at_connect_time_is_recognised() {
        let egress = egress(&[]);
        // A client that checks names only when it resolves them.
        let sent = egress.shared.filtered.get("http://localhost:1/").send().await;
        let error = crate::response::transport_error("http://localhost:1".into(), sent.unwrap_err());
        assert!(matches!(error, Error::Egress { .. }), "{error:?}");
        assert!(!error.is_transient());
    }

    #[test]
    fn proxies_come_from_the_environment() {
        let environment = |name: &str| match name {
            "HTTP_PROXY" => Some("proxy.internal:3128".to_owned()),
            "https_proxy" => Some("http://u:p@Other.Internal:3128/".to_owned()),
            _ => None,
        };
        assert_eq!(proxy_hosts(environment), ["proxy.internal", "other.internal"]);
    }
}
