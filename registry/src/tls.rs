//! TLS in the server: a certificate and its key from two files, read again when they change.
//! `serve` takes a `Tls`; whoever starts the server makes it first, so that bad files are said before anything else happens.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::error::chain;

/// How often the files are looked at. They are small, and reading them tells what a timestamp may hide.
const LOOK_AGAIN: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("reading {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} holds no certificate: expected lines that begin with `-----BEGIN CERTIFICATE-----`")]
    NoCertificate { path: PathBuf },
    #[error(
        "{path} holds no private key: expected lines such as `-----BEGIN PRIVATE KEY-----`, without a passphrase"
    )]
    NoKey { path: PathBuf },
    #[error("{path} is not usable as PEM")]
    Pem {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the certificate in {cert} and the key in {key} are not usable together")]
    Unusable {
        cert: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },
}

/// The server's certificate, as new as its files.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    current: Arc<Current>,
}

struct Current {
    cert: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    certified: RwLock<Arc<CertifiedKey>>,
}

/// The contents of both files.
type Pair = (Vec<u8>, Vec<u8>);

impl Tls {
    /// Reads the certificate chain and its key, both PEM.
    pub fn load(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        let provider = Arc::new(default_provider());
        let certified = certify(cert, key, &read(cert, key)?, &provider)?;
        let current = Arc::new(Current {
            cert: cert.to_owned(),
            key: key.to_owned(),
            provider: provider.clone(),
            certified: RwLock::new(Arc::new(certified)),
        });
        let unusable = |source| TlsError::Unusable { cert: cert.to_owned(), key: key.to_owned(), source };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_no_client_auth()
            .with_cert_resolver(current.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), current })
    }

    pub(crate) fn acceptor(&self) -> &TlsAcceptor {
        &self.acceptor
    }

    /// Watches the files for as long as it is polled. What cannot be served is said once, and what was served before goes on.
    pub(crate) async fn watch(self) {
        let mut seen = None;
        loop {
            let current = self.current.clone();
            let looked = tokio::task::spawn_blocking(move || current.look(seen)).await;
            // A look that panicked saw nothing.
            seen = looked.unwrap_or_default();
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

impl Current {
    /// Takes over what lies there now, if it is not what was `seen` the last time; returns what it saw.
    fn look(&self, seen: Option<Pair>) -> Option<Pair> {
        let pair = match read(&self.cert, &self.key) {
            Ok(pair) => pair,
            Err(error) => {
                // Perhaps between two steps of being replaced; said each time, for with the files gone a restart would fail.
                tracing::warn!(error = chain(&error), "the certificate cannot be read; the one before stays");
                return None;
            }
        };
        if seen.as_ref() == Some(&pair) {
            return seen;
        }
        match certify(&self.cert, &self.key, &pair, &self.provider) {
            Ok(new) => {
                let mut certified = self.certified.write().unwrap_or_else(PoisonError::into_inner);
                if certified.cert != new.cert {
                    tracing::info!(path = %self.cert.display(), "serving a new certificate");
                }
                *certified = Arc::new(new);
            }
            Err(error) => {
                tracing::error!(
                    error = chain(&error),
                    "the new certificate is not usable; the one before stays"
                );
            }
        }
        Some(pair)
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certified.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").field("cert", &self.cert).finish_non_exhaustive()
    }
}

fn read(cert: &Path, key: &Path) -> Result<Pair, TlsError> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source });
    Ok((read(cert)?, read(key)?))
}

fn certify(
    cert: &Path,
    key: &Path,
    (cert_pem, key_pem): &Pair,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, TlsError> {
    let pem = |path: &Path, source| TlsError::Pem { path: path.to_owned(), source };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(cert_pem)
        .collect::<Result<_, _>>()
        .map_err(|error| pem(cert, error))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate { path: cert.to_owned() });
    }
    let private = PrivateKeyDer::from_pem_slice(key_pem).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => TlsError::NoKey { path: key.to_owned() },
        other => pem(key, other),
    })?;
    CertifiedKey::from_der(certificates, private, provider).map_err(|source| TlsError::Unusable {
        cert: cert.to_owned(),
        key: key.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files {
        folder: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Files {
            Files { folder: tempfile::tempdir().unwrap() }
        }

        fn cert(&self) -> PathBuf {
            self.folder.path().join("cert.pem")
        }

        fn key(&self) -> PathBuf {
            self.folder.path().join("key.pem")
        }

        fn write(&self) {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            std::fs::write(self.cert(), made.cert.pem()).unwrap();
            std::fs::write(self.key(), made.signing_key.serialize_pem()).unwrap();
        }

        fn load(&self) -> Result<Tls, TlsError> {
            Tls::load(&self.cert(), &self.key())
        }
    }

    fn served(tls: &Tls) -> CertificateDer<'static> {
        tls.current.certified.read().unwrap().cert[0].clone()
    }

    #[test]
    fn what_is_wrong_with_the_files_is_named() {
        let files = Files::new();
        let said = |files: &Files| files.load().err().map(|error| chain(&error)).unwrap_or_default();
        assert!(said(&files).contains("cert.pem: No such file"), "{}", said(&files));
        files.write();
        assert_eq!(said(&files), "");
        std::fs::write(files.key(), "").unwrap();
        assert!(said(&files).contains("key.pem holds no private key"), "{}", said(&files));
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        std::fs::write(files.key(), other).unwrap();
        assert!(said(&files).contains("not usable together"), "{}", said(&files));
        std::fs::write(files.cert(), "nothing").unwrap();
        assert!(said(&files).contains("cert.pem holds no certificate"), "{}", said(&files));
    }

    #[test]
    fn a_new_certificate_is_taken_over_and_a_bad_one_is_not() {
        let files = Files::new();
        files.write();
        let tls = files.load().unwrap();
        let first = served(&tls);
        let seen = tls.current.look(None);
        assert_eq!(served(&tls), first);
        // Half of a replacement: the new certificate with the old key.
        let key = std::fs::read(files.key()).unwrap();
        files.write();
        let new_key = std::fs::read(files.key()).unwrap();
        std::fs::write(files.key(), key).unwrap();
        let seen = tls.current.look(seen);
        assert_eq!(served(&tls), first);
        // The other half.
        std::fs::write(files.key(), new_key).unwrap();
        let seen = tls.current.look(seen);
        let second = served(&tls);
        assert_ne!(second, first);
        std::fs::remove_file(files.cert()).unwrap();
        assert!(tls.current.look(seen).is_none());
        assert_eq!(served(&tls), second);
    }
}
