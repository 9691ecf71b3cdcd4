//! TLS to upstreams: one configuration per upstream, which a reload keeps if its settings stay.

use std::sync::{Arc, OnceLock};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tollgate_rules::UpstreamSettings;

use super::connector::WantedVersion;
use super::error::ForwardError;
use super::server::UpstreamServer;

/// The TLS configurations of an upstream, which differ in the protocols that they offer.
pub(super) struct UpstreamTls {
    http1: TlsConnector,
    http2: TlsConnector,
    either: TlsConnector,
}

impl std::fmt::Debug for UpstreamTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UpstreamTls")
    }
}

impl UpstreamTls {
    /// The configurations for these settings; `None` if no address uses TLS.
    pub(super) fn new(settings: &UpstreamSettings) -> Option<UpstreamTls> {
        if !settings.addresses.iter().any(|url| url.tls) {
            return None;
        }
        let roots = match &settings.ca_file {
            None => system_roots().clone(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                let certificates = CertificateDer::pem_slice_iter(&file.pem).flatten();
                roots.add_parsable_certificates(certificates);
                roots
            }
        };
        let provider = Arc::new(aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has suites for both versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let offering = |protocols: &[&[u8]]| {
            let mut config = config.clone();
            config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
            TlsConnector::from(Arc::new(config))
        };
        Some(UpstreamTls {
            http1: offering(&[b"http/1.1"]),
            http2: offering(&[b"h2"]),
            either: offering(&[b"h2", b"http/1.1"]),
        })
    }

    /// Speaks TLS on a connection.
    pub(super) async fn connect(
        &self,
        stream: TcpStream,
        settings: &UpstreamSettings,
        server: &UpstreamServer,
        wanted: WantedVersion,
    ) -> Result<TlsStream<TcpStream>, ForwardError> {
        let name = settings.server_name.as_deref().unwrap_or(&server.url.host).to_string();
        let name = ServerName::try_from(name).map_err(|_| ForwardError::TlsFailed)?;
        let connector = match wanted {
            WantedVersion::Http1 => &self.http1,
            WantedVersion::Http2 => &self.http2,
            WantedVersion::Either => &self.either,
        };
        connector.connect(name, stream).await.map_err(|_| ForwardError::TlsFailed)
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
