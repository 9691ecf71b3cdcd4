//! Credentials: tokens that callers present, and the certificate that the listeners present. Files are read
//! at the start and on every reload; a file that is wrong on reload replaces nothing, and the others are
//! still read.

use std::path::Path;
use std::sync::Arc;

use crate::cli::Report;
use crate::listeners::tls::Certificate;
use crate::listeners::tokens::Tokens;
use crate::settings::ServerSettings;
use crate::telemetry::{LogField, Logs};

/// Tokens and certificate of a run, which may change. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credentials {
    /// Tokens of the data listeners.
    pub(crate) tokens: Option<Arc<Tokens>>,
    /// Tokens of the admin listener.
    pub(crate) admin_tokens: Option<Arc<Tokens>>,
    /// Certificate of the data listeners.
    pub(crate) certificate: Option<Arc<Certificate>>,
}

impl Credentials {
    /// Reads the files that the settings name. Any error ends the start.
    pub(crate) fn read(settings: &ServerSettings, logs: &Logs) -> Result<Credentials, Report> {
        let tokens = |path: Option<&Path>, flag: &'static str| {
            path.map(|path| Tokens::read(path, flag, logs).map(Arc::new)).transpose()
        };
        let tls = settings.tls_cert.as_deref().zip(settings.tls_key.as_deref());
        let certificate = tls.map(|(cert, key)| Certificate::read(cert, key).map(Arc::new));
        Ok(Credentials {
            tokens: tokens(settings.auth_token_file.as_deref(), "--auth-token-file")?,
            admin_tokens: tokens(settings.admin_token_file.as_deref(), "--admin-token-file")?,
            certificate: certificate.transpose()?,
        })
    }

    /// Reads all files again, and logs what changed. Returns one report for each file that is wrong and
    /// whose old content stays in force; at most three.
    pub(crate) fn reload(&self, logs: &Logs) -> Vec<Report> {
        let mut wrong = Vec::new();
        for tokens in [&self.tokens, &self.admin_tokens].into_iter().flatten() {
            let file = tokens.path().display();
            match tokens.read_again(logs) {
                Ok(false) => {}
                Ok(true) => logs.info("new tokens are in force", &[("file", &file)]),
                Err(report) => {
                    log_problem(
                        &report,
                        "the token file is wrong, the old tokens stay in force",
                        logs,
                    );
                    wrong.push(report);
                }
            }
        }
        if let Some(certificate) = &self.certificate {
            let file = certificate.path().display();
            match certificate.read_again() {
                Ok(false) => {}
                Ok(true) => logs.info("a new certificate is in force", &[("file", &file)]),
                Err(report) => {
                    let event = "the certificate file is wrong, the old certificate stays in force";
                    log_problem(&report, event, logs);
                    wrong.push(report);
                }
            }
        }
        wrong
    }
}

fn log_problem(report: &Report, event: &str, logs: &Logs) {
    let mut fields: Vec<LogField<'_>> = vec![("error", &report.problem)];
    fields.extend(report.hint.as_ref().map(|hint| ("hint", hint as _)));
    logs.error(event, &fields);
}
