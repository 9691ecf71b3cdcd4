//! TLS: the certificate of the data listeners.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

use crate::cli::Report;
use crate::small_file;

/// The most bytes of a chain of certificates, and of a key.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A certificate and its key, which can be replaced while listeners show it.
pub(crate) struct Certificate {
    cert: PathBuf,
    key: PathBuf,
    shown: Arc<Shown>,
    config: ServerConfig,
}

/// What new connections are shown.
#[derive(Debug)]
struct Shown(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({})", self.cert.display())
    }
}

impl Certificate {
    /// Reads a certificate chain and its key.
    pub(crate) fn read(cert: &Path, key: &Path) -> Result<Certificate, Report> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let first = read_pair(cert, key, &provider)?;
        let shown = Arc::new(Shown(ArcSwap::from_pointee(first)));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions")
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
        Ok(Certificate { cert: cert.into(), key: key.into(), shown, config })
    }

    /// Reads both files again; whether there is another certificate now. If anything is wrong, the old one
    /// stays.
    pub(crate) fn read_again(&self) -> Result<bool, Report> {
        for (path, flag) in [(&self.cert, CERT), (&self.key, KEY)] {
            small_file::can_be_read_again(path).map_err(|error| unreadable(path, flag, &error))?;
        }
        let new = read_pair(&self.cert, &self.key, self.config.crypto_provider())?;
        // The same certificates belong to the same key.
        let has_changed = self.shown.0.load().cert != new.cert;
        if has_changed {
            self.shown.0.store(new.into());
        }
        Ok(has_changed)
    }

    /// The file of the certificates.
    pub(crate) fn path(&self) -> &Path {
        &self.cert
    }

    /// Accepts connections under it that agree on one of these protocols; with none given, any.
    pub(crate) fn acceptor(&self, protocols: &[&str]) -> TlsAcceptor {
        let mut config = self.config.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

const CERT: &str = "--tls-cert";
const KEY: &str = "--tls-key";

fn read_pair(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, Report> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&read(cert, CERT)?)
        .collect::<Result<_, _>>()
        .map_err(|error| not_pem(cert, "certificates", &error))?;
    if chain.is_empty() {
        return Err(not_pem(cert, "certificates", &pem::Error::NoItemsFound));
    }
    let secret = PrivateKeyDer::from_pem_slice(&read(key, KEY)?)
        .map_err(|error| not_pem(key, "a private key", &error))?;
    CertifiedKey::from_der(chain, secret, provider).map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        Report::new(format!("the certificate {cert} and the key {key} do not work: {error}"))
            .hint("the key must be the one that the first certificate was made for")
    })
}

fn read(path: &Path, flag: &str) -> Result<Vec<u8>, Report> {
    small_file::read(path, FILE_BYTES_MAX).map_err(|error| unreadable(path, flag, &error))
}

fn unreadable(path: &Path, flag: &str, error: &io::Error) -> Report {
    Report::new(format!("cannot read {}: {error}", path.display()))
        .hint(format!("{flag} names a file in PEM form"))
}

fn not_pem(path: &Path, what: &str, error: &pem::Error) -> Report {
    Report::new(format!("cannot find {what} in {}: {error}", path.display()))
        .hint("the file has to be in PEM form, with lines that say BEGIN and END")
}
