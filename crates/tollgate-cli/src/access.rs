//! Access to listeners: none is open to other machines without a token.

use crate::cli::Report;
use crate::listeners::BindAddress;
use crate::settings::ServerSettings;

/// Refuses a listener that is reachable from other machines without a token, and a certificate without its
/// key.
pub(crate) fn check(settings: &ServerSettings) -> Result<(), Report> {
    if settings.tls_cert.is_some() != settings.tls_key.is_some() {
        return Err(Report::new("TLS needs both a certificate and its key")
            .hint("write --tls-cert FILE and --tls-key FILE, or neither"));
    }
    for (entry, address) in settings.listeners.open() {
        let has_tokens = match entry.is_data() {
            true => settings.auth_token_file.is_some(),
            false => settings.admin_token_file.is_some(),
        };
        if !has_tokens && !address.is_local() && !entry.is_public() {
            return Err(open_to_all(entry.name, address, entry.token_flag()));
        }
    }
    Ok(())
}

fn open_to_all(name: &str, address: &BindAddress, flag: &str) -> Report {
    let port = address.port().unwrap_or_default();
    Report::new(format!(
        "the listener {name} at {address} would be open to every machine that can reach it"
    ))
    .hint(format!(
        "create a token (openssl rand -hex 32 > token && chmod 600 token) and add {flag} token, \
         or listen on this machine only with --{name} 127.0.0.1:{port}"
    ))
}
