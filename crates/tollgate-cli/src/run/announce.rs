//! Output of a start: the addresses of the listeners for scripts, and commands to try for people.

use std::io::{self, Write};
use std::path::Path;

use crate::listeners::BindAddress;
use crate::settings::ServerSettings;
use crate::telemetry::LogFormat;

/// Prints the addresses of the listeners for scripts, and with demo rules commands to try for people.
pub(super) fn announce(addresses: &[(&'static str, BindAddress)], settings: &ServerSettings) {
    let find = |wanted: &str| addresses.iter().find(|(name, _)| *name == wanted);
    if settings.is_demo() && settings.log_format == LogFormat::Text {
        let hint = match (find("gateway"), find("http")) {
            (Some((_, gateway)), _) => how_to_try_gateway(gateway, settings),
            (None, Some((_, http))) => how_to_try(http, settings),
            (None, None) => String::new(),
        };
        let _ = write!(io::stderr(), "{hint}");
    }
    let mut out = io::stdout().lock();
    for (name, address) in addresses {
        let _ = writeln!(out, "listening {name} {address}");
    }
    // Standard output may be closed: the server serves all the same.
    let _ = writeln!(out, "ready").and_then(|()| out.flush());
}

/// A command that sends a request through the gateway.
fn how_to_try_gateway(gateway: &BindAddress, settings: &ServerSettings) -> String {
    let scheme = if settings.tls_cert.is_some() { "--insecure https" } else { "http" };
    let target = match gateway {
        BindAddress::Tcp(address) => format!("{scheme}://{address}/"),
        BindAddress::Unix(path) => {
            format!("--unix-socket '{}' {scheme}://localhost/", path.display())
        }
    };
    format!(
        "Neither --rules nor --limit is given: demo rules apply to requests through the gateway. Try it:\n\
         \n  curl -i {target}\n\
         \nFor your own limits: add --limit 100/minute, or --rules FILE. More: tollgate serve --help\n\n"
    )
}

/// Commands that work as printed, with the settings of this server.
fn how_to_try(http: &BindAddress, settings: &ServerSettings) -> String {
    let token_file = settings.auth_token_file.as_deref().map(Path::display);
    let mut curl = String::from("curl -i");
    if let Some(file) = &token_file {
        curl += &format!(" -H \"Authorization: Bearer $(head -n 1 '{file}')\"");
    }
    curl += " -d '{\"path\":\"/api/search\",\"user\":\"42\"}'";
    // The name in the certificate is unknown here, and it may be self-signed.
    let scheme = if settings.tls_cert.is_some() { " --insecure https" } else { " http" };
    let (at, server) = match http {
        BindAddress::Tcp(address) => (format!("{scheme}://{address}"), format!("http://{address}")),
        BindAddress::Unix(path) => {
            let socket = format!(" --unix-socket '{}'", path.display());
            (format!("{socket}{scheme}://localhost"), format!("'{http}'"))
        }
    };
    curl += &format!("{at}/v1/check");
    let mut ask = String::new();
    if settings.tls_cert.is_none() {
        ask = format!(
            "\n  tollgate ask --server {server} --path /login --method POST --ip 192.0.2.1"
        );
        ask += &token_file.map_or(String::new(), |file| format!(" --token-file '{file}'"));
    }
    format!(
        "Neither --rules nor --limit is given: demo rules apply. Try them:\n\
         \n  {curl}{ask}\n\
         \nFor your own rules: tollgate serve --limit 100/minute, or --rules FILE. More: tollgate serve --help\n\n"
    )
}
