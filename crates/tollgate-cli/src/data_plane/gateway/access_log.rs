//! The access log: one line for each request, after the end of its response. It names no query and no header field,
//! because those may hold secrets, and the client's address as the rules allow.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

use tollgate::KeyBuf;

use super::exchange::{Exchange, RequestLine, ResponseSummary};
use crate::cli::Report;
use crate::key_names::KeyNames;
use crate::settings::ServerSettings;
use crate::telemetry::{LogField, Logs};

/// Opens the log of `--access-log`. `-` is the log of the server. A file is opened again by its name after SIGHUP.
pub(crate) fn open(settings: &ServerSettings, logs: &Logs) -> Result<Option<Logs>, Report> {
    let Some(path) = &settings.access_log else { return Ok(None) };
    if path.as_os_str() == "-" {
        return Ok(Some(logs.clone()));
    }
    let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path);
    let file = open(path).map_err(|error| {
        Report::new(format!("cannot open the access log {}: {error}", path.display()))
            .hint("name a file that this user may write to, or `-` for standard error")
    })?;
    let (path, server_logs) = (path.clone(), logs.clone());
    let open_again = move || match open(&path) {
        Ok(file) => {
            server_logs.info("access log reopened", &[("path", &path.display())]);
            Some(file)
        }
        Err(error) => {
            let event = "cannot reopen the access log, its lines stay in the old file";
            server_logs.error(event, &[("path", &path.display()), ("error", &error)]);
            None
        }
    };
    let lines_waiting_max = settings.log_lines_waiting.into();
    Ok(Some(Logs::to_file(settings.log_format, lines_waiting_max, file, open_again)))
}

/// Writes the access log.
pub(super) struct AccessLog {
    logs: Logs,
    names: Arc<KeyNames>,
}

impl AccessLog {
    pub(super) fn new(logs: Logs, names: Arc<KeyNames>) -> AccessLog {
        AccessLog { logs, names }
    }

    /// Writes the line of an exchange. A line for which there is no room is dropped and counted.
    pub(super) fn write(
        &self,
        exchange: &Exchange,
        line: &RequestLine,
        response: &ResponseSummary,
        code: &str,
    ) {
        let rules = exchange.protocol.parts.gatekeeper.rules();
        let address = exchange.peer().to_string();
        let client = self.names.log_name(&rules, &KeyBuf::new().with("ip", &address));
        let host = line.host.as_ref().and_then(|host| host.to_str().ok());
        let host = host.or(line.uri.authority().map(|authority| authority.as_str()));
        let id = exchange.id.to_str().unwrap_or_default();
        let upstream = exchange.upstream().map_or("", |upstream| &*upstream.settings.name);
        let took_us = u64::try_from(exchange.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let [received, sent] = exchange.bytes();
        let status = response.status.as_u16();
        let decision = response.decision.as_ref();
        let refusal = decision.filter(|decision| !decision.allowed());
        let rule = refusal.and_then(|decision| decision.rule()).unwrap_or_default();
        let decided_by = decision.map_or("", |decision| decision.decided_by().name());
        let fields: [LogField<'_>; 14] = [
            ("id", &id),
            ("client", &client),
            ("method", &line.method.as_str()),
            ("host", &host.unwrap_or_default()),
            ("path", &line.uri.path()),
            ("status", &status),
            ("code", &code),
            ("bytes_in", &received),
            ("bytes_out", &sent),
            ("took_us", &took_us),
            ("upstream", &upstream),
            ("rule", &rule),
            ("decided_by", &decided_by),
            ("listener", &"gateway"),
        ];
        self.logs.info("request", &fields);
    }
}
