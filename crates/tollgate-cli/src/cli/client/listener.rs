//! Clients of the data and the admin listener of a running server, and their options. Each has its own
//! token.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use rustls::ClientConfig;
use serde::Deserialize;

use super::server_url::ServerUrl;
use super::token::BearerToken;
use super::{ClientRequest, ClientResponse, exchange, tls};
use crate::cli::human_output::{lines, printable_whole};
use crate::cli::{CommandFailure, Report};
use crate::settings::url_value::UrlValue;

/// Timeout of connecting, the request and the whole response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Default addresses of the listeners of `serve`.
const DATA_URL: &str = "http://127.0.0.1:8080";
const ADMIN_URL: &str = "http://127.0.0.1:9190";

/// Most lines of diagnostics that are shown.
const DIAGNOSTIC_LINES_MAX: usize = 50;

/// Options of the data listener.
#[derive(Debug, clap::Args)]
pub(crate) struct DataArgs {
    /// URL of the server, or unix:/PATH for its Unix socket
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_SERVER",
        default_value = DATA_URL,
        value_parser = UrlValue(ServerUrl::from_str)
    )]
    server: ServerUrl,

    /// File with the server's token
    #[arg(
        long,
        value_name = "FILE",
        env = "TOLLGATE_TOKEN_FILE",
        visible_alias = "auth-token-file"
    )]
    token_file: Option<PathBuf>,

    /// Trusted certificates for an https:// server, PEM; by default those that the system trusts
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CA_FILE")]
    ca_file: Option<PathBuf>,

    /// URL of the server's admin listener, or unix:/PATH, for --explain
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_ADMIN_URL",
        default_value = ADMIN_URL,
        value_parser = UrlValue(ServerUrl::from_str)
    )]
    admin: ServerUrl,

    /// File with the token of the admin listener, for --explain
    #[arg(long, value_name = "FILE", env = "TOLLGATE_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,
}

/// Options of the admin listener.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct AdminArgs {
    /// URL of the server's admin listener, or unix:/PATH for its Unix socket
    #[arg(
        long,
        global = true,
        value_name = "URL",
        env = "TOLLGATE_ADMIN_URL",
        default_value = ADMIN_URL,
        value_parser = UrlValue(ServerUrl::from_str)
    )]
    admin: ServerUrl,

    /// File with the token of the admin listener
    #[arg(long, global = true, value_name = "FILE", env = "TOLLGATE_ADMIN_TOKEN_FILE")]
    admin_token_file: Option<PathBuf>,

    /// Trusted certificates for an https:// server, PEM; by default those that the system trusts
    #[arg(long, global = true, value_name = "FILE", env = "TOLLGATE_CA_FILE")]
    ca_file: Option<PathBuf>,

    // One set of options fits all commands that talk to a server.
    #[arg(long, global = true, hide = true, value_name = "URL")]
    server: Option<String>,
}

/// Client of one listener.
#[derive(Debug)]
pub(crate) struct ListenerClient<'a> {
    server: &'a ServerUrl,
    token: Option<BearerToken>,
    tls: Option<Arc<ClientConfig>>,
    kind: ListenerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenerKind {
    Data,
    Admin,
}

impl ListenerKind {
    fn name(self) -> &'static str {
        match self {
            ListenerKind::Data => "data",
            ListenerKind::Admin => "admin",
        }
    }

    fn default_url(self) -> &'static str {
        match self {
            ListenerKind::Data => DATA_URL,
            ListenerKind::Admin => ADMIN_URL,
        }
    }

    fn server_option(self) -> &'static str {
        match self {
            ListenerKind::Data => "--server",
            ListenerKind::Admin => "--admin",
        }
    }

    fn token_option(self) -> &'static str {
        match self {
            ListenerKind::Data => "--token-file",
            ListenerKind::Admin => "--admin-token-file",
        }
    }
}

impl DataArgs {
    pub(crate) fn listener(&self) -> Result<ListenerClient<'_>, CommandFailure> {
        ListenerClient::new(
            ListenerKind::Data,
            &self.server,
            self.token_file.as_deref(),
            self.ca_file.as_deref(),
        )
    }
}

impl DataArgs {
    /// Returns true if the admin listener was named, or if both listeners have their default addresses: only
    /// then it is certain that they belong to one server.
    pub(crate) fn names_one_server(&self) -> bool {
        let is_default =
            |url: &ServerUrl, default: &str| ServerUrl::from_str(default).as_ref() == Ok(url);
        !is_default(&self.admin, ADMIN_URL) || is_default(&self.server, DATA_URL)
    }

    /// The admin listener of the same server.
    pub(crate) fn admin_listener(&self) -> Result<ListenerClient<'_>, CommandFailure> {
        let token_file = self.admin_token_file.as_deref();
        ListenerClient::new(ListenerKind::Admin, &self.admin, token_file, self.ca_file.as_deref())
    }
}

impl AdminArgs {
    /// The URL of the server.
    pub(crate) fn url(&self) -> String {
        self.admin.to_string()
    }

    pub(crate) fn listener(&self) -> Result<ListenerClient<'_>, CommandFailure> {
        let token_file = self.admin_token_file.as_deref();
        ListenerClient::new(ListenerKind::Admin, &self.admin, token_file, self.ca_file.as_deref())
    }
}

impl<'a> ListenerClient<'a> {
    fn new(
        which: ListenerKind,
        server: &'a ServerUrl,
        token_file: Option<&Path>,
        ca_file: Option<&Path>,
    ) -> Result<ListenerClient<'a>, CommandFailure> {
        let token = token_file.map(|path| BearerToken::read(path, which.token_option()));
        let token = token.transpose().map_err(CommandFailure::Input)?;
        let tls = match (server.tls, ca_file) {
            (false, _) => None,
            (true, path) => Some(tls::trust(path).map_err(CommandFailure::Input)?),
        };
        Ok(ListenerClient { server, token, tls, kind: which })
    }

    /// Sends a request and returns the response, whatever its status.
    pub(crate) fn ask(&self, request: &ClientRequest) -> Result<ClientResponse, Report> {
        let mut fields = HeaderMap::new();
        if let Some(token) = &self.token {
            fields.insert(AUTHORIZATION, token.field());
        }
        if self.kind == ListenerKind::Admin && request.method != Method::GET {
            // A web page cannot send this header to another site without a preflight request.
            fields.insert("x-tollgate-admin", HeaderValue::from_static("1"));
        }
        self.ask_with(fields, request)
    }

    fn ask_with(
        &self,
        fields: HeaderMap,
        request: &ClientRequest,
    ) -> Result<ClientResponse, Report> {
        exchange(self.server, self.tls.as_ref(), fields, request, RESPONSE_TIMEOUT)
            .map_err(|error| self.no_answer(&error))
    }

    /// A hint if this is the other listener: its own error about an unknown path or token does not help.
    fn wrong_listener(&self, status: u16) -> Option<String> {
        if !matches!(status, 401 | 403 | 404) {
            return None;
        }
        let found = self.detect_listener().filter(|found| *found != self.kind)?;
        let (found, meant) = (found.name(), self.kind.name());
        let (server, option, usual) =
            (self.server, self.kind.server_option(), self.kind.default_url());
        Some(format!(
            "{server} looks like the {found} listener: name the {meant} listener with {option}, often {usual}"
        ))
    }

    /// Detects which listener is at this address.
    fn detect_listener(&self) -> Option<ListenerKind> {
        let request = ClientRequest { method: Method::GET, path: "/livez".into(), body: None };
        // Without the token, which may belong to the other listener.
        match self.ask_with(HeaderMap::new(), &request).ok()? {
            ClientResponse { status: 200, body } if body.contains("\"live\"") => {
                Some(ListenerKind::Admin)
            }
            ClientResponse { status: 401 | 404, .. } => Some(ListenerKind::Data),
            _ => None,
        }
    }

    fn no_answer(&self, error: &io::Error) -> Report {
        let (server, option) = (self.server, self.kind.server_option());
        let report = Report::new(format!("request to {server} failed: {error}"));
        match (error.kind(), self.server.tls) {
            (io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound, _) => report.hint(format!(
                "is a server running there? Start one with `tollgate serve`, or choose another with \
                 {option}"
            )),
            (io::ErrorKind::InvalidData, false) => {
                report.hint(format!("if that port uses TLS, write {option} https://…"))
            }
            (io::ErrorKind::InvalidData, true) => {
                report.hint(match error.to_string().contains("not valid for name") {
                    true => "the certificate is for other names: use one of them, or add this name to the \
                             certificate (openssl req -addext subjectAltName=DNS:NAME,IP:ADDRESS)",
                    false => "--ca-file names the certificates to trust: your own authority's, or the \
                              server's own if it is self-signed",
                })
            }
            _ => report,
        }
    }

    /// The report of an error response, with the server's message.
    pub(crate) fn refused(&self, response: &ClientResponse) -> Report {
        #[derive(Deserialize)]
        struct ServerProblem {
            message: String,
            diagnostics: Option<String>,
        }
        let status = response.status;
        let (server, token) = (self.server, self.kind.token_option());
        let Ok(problem) = serde_json::from_str::<ServerProblem>(&response.body) else {
            let option = self.kind.server_option();
            return Report::new(format!("{server} answered {status} but is not a Tollgate server"))
                .hint(format!("choose a server with {option}"));
        };
        let mut text =
            format!("the server answered {status}: {}", printable_whole(&problem.message));
        if let Some(diagnostics) = &problem.diagnostics {
            text.push('\n');
            text.push_str(&lines(diagnostics, DIAGNOSTIC_LINES_MAX));
        }
        let report = Report::new(text);
        if let Some(hint) = self.wrong_listener(status) {
            return report.hint(hint);
        }
        match (status, &self.token) {
            (401, None) => report.hint(format!("give a file with the token: {token} FILE")),
            (401, Some(_)) => {
                report.hint(format!("the server does not accept the first token of {token}"))
            }
            _ => report,
        }
    }

    /// The report of a response that is not the JSON of Tollgate.
    pub(crate) fn not_tollgate(&self, error: &serde_json::Error) -> Report {
        Report::new(format!("{} does not answer like Tollgate: {error}", self.server))
    }
}
