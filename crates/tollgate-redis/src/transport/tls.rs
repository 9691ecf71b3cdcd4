//! TLS of connections; the feature `tls`.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::connect::Stream;
use super::url::TlsFiles;

/// Encrypts a connection to `host`.
pub(super) async fn start(
    stream: TcpStream,
    host: &str,
    files: &TlsFiles,
) -> io::Result<Box<dyn Stream>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let files = files.clone();
    // Read anew each time, so that renewed files are found; and elsewhere, because disks are slow.
    let config = tokio::task::spawn_blocking(move || tls_config(&files));
    let config = config.await.map_err(io::Error::other)??;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
}

fn tls_config(files: &TlsFiles) -> io::Result<ClientConfig> {
    let read = |path: &std::path::Path| {
        std::fs::read(path)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    };
    let roots = match &files.ca_file {
        None => system_roots().clone(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for cert in CertificateDer::pem_slice_iter(&read(path)?) {
                let cert = cert.map_err(io::Error::other)?;
                roots.add(cert).map_err(io::Error::other)?;
            }
            roots
        }
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots);
    match (&files.cert_file, &files.key_file) {
        (Some(cert), Some(key)) => {
            let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(cert)?).collect();
            let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(io::Error::other)?;
            let chain = chain.map_err(io::Error::other)?;
            builder.with_client_auth_cert(chain, key).map_err(io::Error::other)
        }
        _ => Ok(builder.with_no_client_auth()),
    }
}

/// The roots that the system trusts, read once.
fn system_roots() -> &'static RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        roots
    })
}
