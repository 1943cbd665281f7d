//! TLS in the server: a certificate and its key from two files, reloaded when they change.
//! The CLI loads a `Tls` before it starts the server, so that bad files are reported before anything else
//! happens.

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

/// Interval between checks of the files. They are small, and reading them detects a change that a timestamp
/// may miss.
const CHECK_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("failed to read {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} contains no certificate: expected lines that begin with `-----BEGIN CERTIFICATE-----`")]
    NoCertificate { path: PathBuf },
    #[error(
        "{path} contains no private key: expected lines such as `-----BEGIN PRIVATE KEY-----`, without a passphrase"
    )]
    NoKey { path: PathBuf },
    #[error("{path} is not valid PEM")]
    Pem {
        path: PathBuf,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    #[error("the certificate in {cert} and the key in {key} do not match or are not supported")]
    Unusable {
        cert: PathBuf,
        key: PathBuf,
        #[source]
        source: rustls::Error,
    },
}

/// The server's certificate, kept up to date with its files.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    current: Arc<CertificateState>,
}

struct CertificateState {
    cert: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    certified: RwLock<Arc<CertifiedKey>>,
}

/// The contents of both files: certificate and key.
type Pair = (Vec<u8>, Vec<u8>);

impl Tls {
    /// Reads the certificate chain and its key, both PEM.
    pub fn load(cert: &Path, key: &Path) -> Result<Tls, TlsError> {
        let provider = Arc::new(default_provider());
        let certified = load_certified_key(cert, key, &read(cert, key)?, &provider)?;
        let current = Arc::new(CertificateState {
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

    /// Checks the files for changes for as long as it is polled. A bad pair is logged once, and the previous
    /// certificate stays in use.
    pub(crate) async fn watch(self) {
        let mut seen = None;
        loop {
            let current = self.current.clone();
            let looked = tokio::task::spawn_blocking(move || current.reload_if_changed(seen)).await;
            // If the check panicked, the next one starts from scratch.
            seen = looked.unwrap_or_default();
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

impl CertificateState {
    /// Loads the files if they differ from `seen`; returns their contents.
    fn reload_if_changed(&self, seen: Option<Pair>) -> Option<Pair> {
        let pair = match read(&self.cert, &self.key) {
            Ok(pair) => pair,
            Err(error) => {
                // Perhaps the files are just being replaced. Logged each time, because a restart without the
                // files would fail.
                tracing::warn!(
                    error = chain(&error),
                    "failed to read the certificate; keeping the previous one"
                );
                return None;
            }
        };
        if seen.as_ref() == Some(&pair) {
            return seen;
        }
        match load_certified_key(&self.cert, &self.key, &pair, &self.provider) {
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
                    "the new certificate is invalid; keeping the previous one"
                );
            }
        }
        Some(pair)
    }
}

impl ResolvesServerCert for CertificateState {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.certified.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl fmt::Debug for CertificateState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").field("cert", &self.cert).finish_non_exhaustive()
    }
}

fn read(cert: &Path, key: &Path) -> Result<Pair, TlsError> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|source| TlsError::Read { path: path.to_owned(), source });
    Ok((read(cert)?, read(key)?))
}

fn load_certified_key(
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
    fn bad_certificate_files_are_reported_by_name() {
        let files = Files::new();
        let error_text = |files: &Files| files.load().err().map(|error| chain(&error)).unwrap_or_default();
        assert!(error_text(&files).contains("cert.pem: No such file"), "{}", error_text(&files));
        files.write();
        assert_eq!(error_text(&files), "");
        std::fs::write(files.key(), "").unwrap();
        assert!(error_text(&files).contains("key.pem contains no private key"), "{}", error_text(&files));
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        std::fs::write(files.key(), other).unwrap();
        assert!(error_text(&files).contains("do not match"), "{}", error_text(&files));
        std::fs::write(files.cert(), "nothing").unwrap();
        assert!(error_text(&files).contains("cert.pem contains no certificate"), "{}", error_text(&files));
    }

    #[test]
    fn a_valid_new_certificate_is_loaded_and_a_bad_one_is_not() {
        let files = Files::new();
        files.write();
        let tls = files.load().unwrap();
        let first = served(&tls);
        let seen = tls.current.reload_if_changed(None);
        assert_eq!(served(&tls), first);
        // Half of a replacement: the new certificate with the old key.
        let key = std::fs::read(files.key()).unwrap();
        files.write();
        let new_key = std::fs::read(files.key()).unwrap();
        std::fs::write(files.key(), key).unwrap();
        let seen = tls.current.reload_if_changed(seen);
        assert_eq!(served(&tls), first);
        // The other half.
        std::fs::write(files.key(), new_key).unwrap();
        let seen = tls.current.reload_if_changed(seen);
        let second = served(&tls);
        assert_ne!(second, first);
        std::fs::remove_file(files.cert()).unwrap();
        assert!(tls.current.reload_if_changed(seen).is_none());
        assert_eq!(served(&tls), second);
    }
}
