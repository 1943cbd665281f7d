//! Builds HTTP clients that also work on machines without certificate authorities, such as bare containers:
//! there, only https requests fail. All HTTP clients in Lode are built here.

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
