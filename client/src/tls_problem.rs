//! Why a TLS connection failed, as far as a person can act on it.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use rustls::{CertificateError, Error};
use url::Url;

use crate::http::http_client;

/// A handshake is short.
const TIME_LIMIT: Duration = Duration::from_secs(3);

/// The reason of a failed TLS handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsProblem {
    /// No trusted authority has signed the certificate of the server.
    UnknownAuthority,
    /// The certificate is for other names.
    WrongName,
    /// The certificate has expired.
    Expired,
    /// The server does not use TLS on this port.
    NotTls,
    /// Any other failure of TLS.
    Other,
}

impl TlsProblem {
    /// Searches the causes of an error.
    pub fn of(error: &(dyn StdError + 'static)) -> Option<TlsProblem> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(tls) = error.downcast_ref::<Error>() {
                return Some(TlsProblem::from(tls));
            }
            // The error inside one of io::Error is not among its sources.
            let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            next = match inner {
                Some(inner) => Some(inner),
                None => error.source(),
            };
        }
        None
    }
}

/// Whether the port of an `http://` URL expects TLS, with any certificate. Connects to it.
pub async fn uses_https(url: &Url) -> bool {
    let client = http_client(|| reqwest::Client::builder().no_proxy().timeout(TIME_LIMIT));
    let mut url = url.clone();
    let (Ok(client), Ok(())) = (client, url.set_scheme("https")) else { return false };
    match client.head(url).send().await {
        Ok(_) => true,
        Err(error) => matches!(
            TlsProblem::of(&error),
            Some(TlsProblem::UnknownAuthority | TlsProblem::WrongName | TlsProblem::Expired)
        ),
    }
}

impl From<&Error> for TlsProblem {
    fn from(error: &Error) -> TlsProblem {
        match error {
            Error::InvalidCertificate(certificate) => match certificate {
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    TlsProblem::WrongName
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsProblem::Expired,
                // A certificate that signs itself is reported as another one.
                CertificateError::UnknownIssuer
                | CertificateError::BadSignature
                | CertificateError::Other(_) => TlsProblem::UnknownAuthority,
                _ => TlsProblem::Other,
            },
            Error::InvalidMessage(_) => TlsProblem::NotTls,
            _ => TlsProblem::Other,
        }
    }
}
