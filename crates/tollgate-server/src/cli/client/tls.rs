//! `https://`: whom to believe that a server is the one that was named.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::super::Report;

/// What `https://` needs, from the certificates of a file.
pub(super) fn read(path: &Path) -> Result<Arc<ClientConfig>, Report> {
    let shown = path.display();
    let hint = "--ca-file names certificates in PEM form: your own authority's, or those of the \
                system, often /etc/ssl/certs/ca-certificates.crt";
    let text = fs::read(path)
        .map_err(|error| Report::new(format!("cannot read {shown}: {error}")).hint(hint))?;
    let mut roots = RootCertStore::empty();
    // A bundle of a system may hold one that is of no use here; the others are.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&text).flatten());
    if roots.is_empty() {
        return Err(Report::new(format!("there is no certificate in {shown}")).hint(hint));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// TLS over a connection. The handshake comes with the first bytes.
pub(super) fn over<S: Read + Write>(
    stream: S,
    name: &str,
    config: Arc<ClientConfig>,
) -> Result<StreamOwned<ClientConnection, S>, Report> {
    let cannot = |error: &dyn std::fmt::Display| {
        Report::new(format!("cannot ask {name:?} over TLS: {error}"))
    };
    let name = ServerName::try_from(name.to_string()).map_err(|error| cannot(&error))?;
    let session = ClientConnection::new(config, name).map_err(|error| cannot(&error))?;
    Ok(StreamOwned::new(session, stream))
}
