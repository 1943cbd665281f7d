//! Builds HTTP clients that also work on machines without certificate authorities, such as bare containers:
//! there, only https requests fail. All HTTP clients in Lode are built here.

use std::time::Duration;

pub(crate) const USER_AGENT: &str = concat!("lode/", env!("CARGO_PKG_VERSION"));
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The common settings of all HTTP clients. [`Inner::send`](crate::transport::Inner::send) follows redirects,
/// because it checks each hop.
pub(crate) fn http_builder(user_agent: &str) -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(user_agent)
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_keepalive(Duration::from_secs(30))
        .redirect(reqwest::redirect::Policy::none())
}

/// Builds the client that `configure` describes. If the system has no certificate authorities, the client is
/// built without any, so that only https requests fail.
pub fn http_client(
    configure: impl Fn() -> reqwest::ClientBuilder,
) -> Result<reqwest::Client, reqwest::Error> {
    match configure().build() {
        Ok(client) => Ok(client),
        Err(error) => {
            let client = configure().tls_certs_only([]).build().map_err(|_| error)?;
            tracing::debug!("the system has no certificate authorities; https requests will fail");
            Ok(client)
        }
    }
}
