//! TLS: the certificate of the data doors.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::cli::Report;

/// A certificate and its key.
pub(crate) struct Certificate(ServerConfig);

impl Certificate {
    /// Accepts connections under it that agree on one of these protocols; with none given, any.
    pub(crate) fn acceptor(&self, protocols: &[&str]) -> TlsAcceptor {
        let mut config = self.0.clone();
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

/// Reads a certificate chain and its key.
pub(crate) fn read_certificate(cert: &Path, key: &Path) -> Result<Certificate, Report> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&read(cert, "--tls-cert")?)
        .collect::<Result<_, _>>()
        .map_err(|error| not_pem(cert, "certificates", &error))?;
    if chain.is_empty() {
        return Err(not_pem(cert, "certificates", &pem::Error::NoItemsFound));
    }
    let secret = PrivateKeyDer::from_pem_slice(&read(key, "--tls-key")?)
        .map_err(|error| not_pem(key, "a private key", &error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions")
        .with_no_client_auth()
        .with_single_cert(chain, secret);
    let config = config.map_err(|error| {
        let (cert, key) = (cert.display(), key.display());
        Report::new(format!("the certificate {cert} and the key {key} do not work: {error}"))
            .hint("the key must be the one that the first certificate was made for")
    })?;
    Ok(Certificate(config))
}

fn read(path: &Path, flag: &str) -> Result<Vec<u8>, Report> {
    fs::read(path).map_err(|error| {
        Report::new(format!("cannot read {}: {error}", path.display()))
            .hint(format!("{flag} names a file in PEM form"))
    })
}

fn not_pem(path: &Path, what: &str, error: &pem::Error) -> Report {
    Report::new(format!("cannot find {what} in {}: {error}", path.display()))
        .hint("the file has to be in PEM form, with lines that say BEGIN and END")
}
