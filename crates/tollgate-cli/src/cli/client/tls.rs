//! `https://`: verification of the server's certificate.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use super::super::Report;

const HINT: &str = "--ca-file names certificates in PEM format: your own authority's, or the server's own if \
    it is self-signed";

/// TLS settings that trust the certificates of a file, or those of the system.
pub(super) fn trust(ca_file: Option<&Path>) -> Result<Arc<ClientConfig>, Report> {
    let (certificates, none) = match ca_file {
        Some(path) => (read(path)?, format!("there is no certificate in {}", path.display())),
        None => {
            let certificates = rustls_native_certs::load_native_certs().certs;
            (certificates, "this system has no trusted certificates".into())
        }
    };
    let mut roots = RootCertStore::empty();
    // One unusable certificate in a bundle does not spoil the others.
    roots.add_parsable_certificates(certificates.iter().cloned());
    if roots.is_empty() {
        return Err(Report::new(none).hint(HINT));
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions");
    let config = match ca_file {
        None => builder.with_root_certificates(roots),
        Some(_) => {
            let verifier = OwnCertificates::new(roots, certificates, provider);
            builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        }
    };
    Ok(Arc::new(config.with_no_client_auth()))
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, Report> {
    let shown = path.display();
    let text = fs::read(path)
        .map_err(|error| Report::new(format!("cannot read {shown}: {error}")).hint(HINT))?;
    Ok(CertificateDer::pem_slice_iter(&text).flatten().collect())
}

/// Verifies servers by the certificates of a file: as usual, and also if a server presents a certificate from
/// the file itself.
///
/// `openssl req -x509` marks a self-signed certificate as an authority's, and webpki does not accept an
/// authority as a server. The file says that it is trusted.
#[derive(Debug)]
struct OwnCertificates {
    usual: Arc<WebPkiServerVerifier>,
    own: Vec<CertificateDer<'static>>,
}

impl OwnCertificates {
    fn new(
        roots: RootCertStore,
        own: Vec<CertificateDer<'static>>,
        provider: Arc<CryptoProvider>,
    ) -> OwnCertificates {
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
        OwnCertificates { usual: usual.expect("there is a root, and no revocation list"), own }
    }
}

impl ServerCertVerifier for OwnCertificates {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let error = match self.usual.verify_server_cert(shown, intermediates, name, ocsp, now) {
            // Its dates have been checked before this error, its name has not.
            Err(error) if is_about_an_authority(&error) && self.own.contains(shown) => error,
            verified => return verified,
        };
        let certificate = ParsedCertificate::try_from(shown).map_err(|_| error)?;
        verify_server_name(&certificate, name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Returns true if the certificate was refused because it is an authority's. rustls has no variant for it.
fn is_about_an_authority(error: &Error) -> bool {
    match error {
        Error::InvalidCertificate(CertificateError::Other(other)) => {
            format!("{other:?}").contains("CaUsedAsEndEntity")
        }
        _ => false,
    }
}
