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

/// Maximum bytes of a certificate file, and of a key file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A certificate and its key, which can be replaced at run time.
pub(crate) struct Certificate {
    cert_path: PathBuf,
    key_path: PathBuf,
    resolver: Arc<CertificateResolver>,
    config: ServerConfig,
}

/// The certificate of new connections.
#[derive(Debug)]
struct CertificateResolver(ArcSwap<CertifiedKey>);

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.load_full())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Certificate({})", self.cert_path.display())
    }
}

impl Certificate {
    /// Reads a certificate chain and its key.
    pub(crate) fn read(cert: &Path, key: &Path) -> Result<Certificate, Report> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let first = read_pair(cert, key, &provider)?;
        let shown = Arc::new(CertificateResolver(ArcSwap::from_pointee(first)));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions")
            .with_no_client_auth()
            .with_cert_resolver(shown.clone());
        Ok(Certificate { cert_path: cert.into(), key_path: key.into(), resolver: shown, config })
    }

    /// Reads both files again. Returns true if the certificate has changed. On an error the old one stays.
    pub(crate) fn read_again(&self) -> Result<bool, Report> {
        for (path, flag) in [(&self.cert_path, CERT_FLAG), (&self.key_path, KEY_FLAG)] {
            small_file::can_be_read_again(path)
                .map_err(|error| unreadable_file_report(path, flag, &error))?;
        }
        let new = read_pair(&self.cert_path, &self.key_path, self.config.crypto_provider())?;
        // The same certificate implies the same key.
        let has_changed = self.resolver.0.load().cert != new.cert;
        if has_changed {
            self.resolver.0.store(new.into());
        }
        Ok(has_changed)
    }

    /// Path of the certificate file.
    pub(crate) fn path(&self) -> &Path {
        &self.cert_path
    }

    /// An acceptor with this certificate, which offers these ALPN protocols; with none given, clients may offer any.
    pub(crate) fn acceptor(&self, protocols: &[&str]) -> TlsAcceptor {
        let mut config = self.config.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

const CERT_FLAG: &str = "--tls-cert";
const KEY_FLAG: &str = "--tls-key";

fn read_pair(cert: &Path, key: &Path, provider: &CryptoProvider) -> Result<CertifiedKey, Report> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&read(cert, CERT_FLAG)?)
        .collect::<Result<_, _>>()
        .map_err(|error| not_pem_report(cert, "certificates", &error))?;
    if chain.is_empty() {
        return Err(not_pem_report(cert, "certificates", &pem::Error::NoItemsFound));
    }
    let secret = PrivateKeyDer::from_pem_slice(&read(key, KEY_FLAG)?)
        .map_err(|error| not_pem_report(key, "a private key", &error))?;
    CertifiedKey::from_der(chain, secret, provider).map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        Report::new(format!(
            "the certificate {cert} and the key {key} do not work together: {error}"
        ))
        .hint("the key must belong to the first certificate of the file")
    })
}

fn read(path: &Path, flag: &str) -> Result<Vec<u8>, Report> {
    small_file::read(path, FILE_BYTES_MAX)
        .map_err(|error| unreadable_file_report(path, flag, &error))
}

fn unreadable_file_report(path: &Path, flag: &str, error: &io::Error) -> Report {
    Report::new(format!("cannot read {}: {error}", path.display()))
        .hint(format!("{flag} takes a file in PEM format"))
}

fn not_pem_report(path: &Path, what: &str, error: &pem::Error) -> Report {
    Report::new(format!("cannot find {what} in {}: {error}", path.display()))
        .hint("the file must be in PEM format, with BEGIN and END lines")
}
