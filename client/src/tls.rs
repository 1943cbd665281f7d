//! HTTP clients on machines without certificate authorities, such as bare containers: plain http works there, and https fails when it is used.
//! Everything in Lode that speaks HTTP builds its client here.

/// Builds what `configure` describes. Where the system has no certificate authorities at all the client is built without any, instead of failing before anyone asked for https.
pub fn http_client(
    configure: impl Fn() -> reqwest::ClientBuilder,
) -> Result<reqwest::Client, reqwest::Error> {
    match configure().build() {
        Ok(client) => Ok(client),
        Err(error) => {
            let client = configure().tls_certs_only([]).build().map_err(|_| error)?;
            tracing::debug!("the system has no certificate authorities: https will not work");
            Ok(client)
        }
    }
}
