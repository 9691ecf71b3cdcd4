//! Settings of `tollgate serve`: flags, their twins in the environment, and a file.
//!
//! There is one declaration, `Flags`, and one parser, clap's. A setting that stands in the file is
//! read as the flag of its name would be, so that both have the same meaning and the same errors.
//! Flags win over the environment, the environment wins over the file.

mod duration;
mod file;
mod store;
pub(crate) mod url_value;

use std::cmp::Ordering;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use tollgate_redis::KeyPrefix;

use crate::cli::{CommandFailure, Report};
use crate::listener_table::ListenerAddresses;
use crate::live::{WatchMode, check_rate};
use crate::telemetry::LogFormat;
pub(crate) use duration::parse_duration;
pub(crate) use store::{NamedStore, StoreChoice, choice as store_choice};
use url_value::UrlValue;

/// Everything that `serve` can be told.
#[derive(Clone, Debug, Args)]
pub(crate) struct Flags {
    /// A rules file, or a directory of them; may be given several times
    ///
    /// In the environment several are separated by commas. Without rules and without --limit a
    /// built-in set of demo rules applies.
    #[arg(long, value_name = "PATH", env = "TOLLGATE_RULES", help_heading = "Rules")]
    pub(crate) rules: Vec<PathBuf>,

    /// One limit for each caller instead of rules: 100/minute, "100/minute burst 20"
    #[arg(
        long,
        value_name = "RATE",
        env = "TOLLGATE_LIMIT",
        value_parser = check_rate,
        help_heading = "Rules"
    )]
    pub(crate) limit: Option<String>,

    /// How changes of rules files are noticed; SIGHUP reads them in any case
    #[arg(
        long,
        value_name = "HOW",
        env = "TOLLGATE_RULES_WATCH",
        default_value = "events",
        help_heading = "Rules"
    )]
    pub(crate) rules_watch: WatchMode,

    /// What to answer a question when a rule needs a fact that it does not have
    ///
    /// A rule whose key needs a user does not apply where there is none. If that leaves no rule that could
    /// refuse, `refuse` answers an error that says what is missing, `allow` lets the question pass. Of
    /// /v1/check, /v1/reserve, /v1/refund, TG.CHECK and TG.PEEK; forward-auth and Envoy always let it pass,
    /// and the log warns.
    #[arg(
        long,
        value_name = "WHAT",
        env = "TOLLGATE_MISSING_FACTS",
        default_value = "refuse",
        help_heading = "Rules"
    )]
    pub(crate) missing_facts: OnMissingFacts,

    #[command(flatten)]
    pub(crate) listeners: ListenerAddresses,

    /// Tokens that callers of the data listeners must present, one a line
    ///
    /// Callers send `Authorization: Bearer <token>`, clients of the resp listener `AUTH <token>`. Needed where
    /// a data listener is not on loopback.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_AUTH_TOKEN_FILE", help_heading = "Access")]
    pub(crate) auth_token_file: Option<PathBuf>,

    /// Tokens for the admin listener, one a line
    #[arg(long, value_name = "FILE", env = "TOLLGATE_ADMIN_TOKEN_FILE", help_heading = "Access")]
    pub(crate) admin_token_file: Option<PathBuf>,

    /// Certificate chain of the data listeners (http, grpc, resp), PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TLS_CERT", help_heading = "Access")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TLS_KEY", help_heading = "Access")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Where counters are kept: `memory`, or what several servers share
    ///
    /// redis://HOST:PORT, rediss://HOST:PORT (TLS), redis-cluster://HOST,HOST or
    /// redis-sentinel://HOST,HOST/NAME, with USER:PASSWORD@ before the hosts if needed.
    #[arg(
        long,
        value_name = "STORE",
        env = "TOLLGATE_STORE",
        hide_env_values = true,
        default_value = "memory",
        value_parser = UrlValue(store::choice),
        help_heading = "State"
    )]
    pub(crate) store: StoreChoice,

    /// Another store, for rules that say `store: NAME`; may be given several times
    ///
    /// For known heavy callers. In the environment several are separated by spaces.
    #[arg(
        long,
        value_name = "NAME=STORE",
        env = "TOLLGATE_SECOND_STORE",
        hide_env_values = true,
        value_delimiter = ' ',
        value_parser = UrlValue(store::named),
        help_heading = "State"
    )]
    pub(crate) second_store: Vec<NamedStore>,

    /// How long a shared store may take to answer, before the rule says what to do without it
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_STORE_TIMEOUT",
        default_value = "10ms",
        value_parser = store::timeout,
        help_heading = "State"
    )]
    pub(crate) store_timeout: Duration,

    /// How many servers there are on the store at least
    ///
    /// While the store does not answer, each has its part of a limit. Servers that start meanwhile have
    /// heard of nobody, and go by this.
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_INSTANCES",
        default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=10_000),
        help_heading = "State"
    )]
    pub(crate) instances: u32,

    /// What all keys in a shared store begin with
    #[arg(
        long,
        value_name = "PREFIX",
        env = "TOLLGATE_KEY_PREFIX",
        default_value = "tollgate",
        help_heading = "State"
    )]
    pub(crate) key_prefix: KeyPrefix,

    /// How many keys are remembered, at about 40 bytes each
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_MAX_KEYS",
        default_value = "1000000",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
        help_heading = "State"
    )]
    pub(crate) max_keys: u64,

    /// Keep counters in this file over a restart
    #[arg(long, value_name = "FILE", env = "TOLLGATE_SNAPSHOT", help_heading = "State")]
    pub(crate) snapshot: Option<PathBuf>,

    /// How often to write it
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_SNAPSHOT_INTERVAL",
        default_value = "60s",
        value_parser = parse_duration,
        help_heading = "State"
    )]
    pub(crate) snapshot_interval: Duration,

    /// The most connections at once, at each data listener
    ///
    /// By default 10000, or fewer where this process may not open as many files.
    #[arg(long, value_name = "N", env = "TOLLGATE_MAX_CONNECTIONS", help_heading = "Capacity")]
    pub(crate) max_connections: Option<NonZeroUsize>,

    /// The most connections at once from one address (of IPv6: one /64), at each data listener
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_MAX_CONNECTIONS_PER_IP",
        default_value = "1000",
        help_heading = "Capacity"
    )]
    pub(crate) max_connections_per_ip: NonZeroUsize,

    /// Threads that serve; by default one for each processor
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_WORKERS",
        value_parser = clap::value_parser!(u16).range(1..=1_024),
        help_heading = "Capacity"
    )]
    pub(crate) workers: Option<u16>,

    /// The form of log lines, on standard error
    #[arg(
        long,
        value_name = "FORM",
        env = "TOLLGATE_LOG_FORMAT",
        default_value = "text",
        help_heading = "Logs"
    )]
    pub(crate) log_format: LogFormat,

    /// How often rules files are looked at while the system tells of changes
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration, hide = true)]
    pub(crate) rules_look_interval: Duration,

    /// A secret that callers are named by in logs and in a shared store
    ///
    /// At least 16 random bytes, the same for all servers on one store. Without it logs go by one that
    /// the process makes up, and keys in a store are plain hashes. It hides callers of counters, blocks and
    /// bans; overrides and rules that are sent to the admin listener stand in the store readable, with the
    /// keys that they name.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_KEY_SECRET_FILE", help_heading = "Logs")]
    pub(crate) key_secret_file: Option<PathBuf>,

    /// How many log lines may wait for whoever reads them
    #[arg(
        long,
        value_name = "N",
        default_value = "1024",
        value_parser = clap::value_parser!(u16).range(1..),
        hide = true
    )]
    pub(crate) log_lines_waiting: u16,

    /// How long the head of a request may take to arrive; at the admin listener at most 3s
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_HEADER_TIMEOUT",
        default_value = "10s",
        value_parser = parse_duration,
        help_heading = "Capacity"
    )]
    pub(crate) header_timeout: Duration,

    /// How long the body of a request may take to arrive
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_BODY_TIMEOUT",
        default_value = "10s",
        value_parser = parse_duration,
        help_heading = "Capacity"
    )]
    pub(crate) body_timeout: Duration,

    /// How long a connection of HTTP may be idle
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_IDLE_TIMEOUT",
        default_value = "60s",
        value_parser = parse_duration,
        help_heading = "Capacity"
    )]
    pub(crate) idle_timeout: Duration,
}

/// What becomes of a question when facts are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnMissingFacts {
    /// An error says what is missing
    Refuse,
    /// It passes, as if no rule applied
    Allow,
}

/// The settings of a run.
pub(crate) type ServerSettings = Flags;

impl ServerSettings {
    /// Puts the three sources together: the command line as `matches` has it, the environment, and
    /// the file. `parse` reads flags of `serve`.
    pub(crate) fn resolve(
        matches: &ArgMatches,
        config: Option<&PathBuf>,
        command_line: &[OsString],
        parse: impl Fn(Vec<OsString>) -> Result<ArgMatches, clap::Error>,
    ) -> Result<ServerSettings, CommandFailure> {
        let from_file = match config {
            None => Vec::new(),
            Some(path) => file::read(path, &parse)?,
        };
        let settings = with_file(matches, command_line, &from_file, &parse)?;
        let mut settings = ServerSettings::from_arg_matches(&settings).map_err(|error| {
            CommandFailure::Usage(Report::new(
                error.to_string().trim_start_matches("error: ").trim(),
            ))
        })?;
        settings.choose_rules_or_limit(matches, &from_file)?;
        store::check(&settings).map_err(CommandFailure::Usage)?;
        Ok(settings)
    }

    /// Whether nobody said what the rules are.
    pub(crate) fn is_demo(&self) -> bool {
        self.rules.is_empty() && self.limit.is_none()
    }

    /// `--limit` and `--rules` answer the same question: the stronger source does.
    fn choose_rules_or_limit(
        &mut self,
        matches: &ArgMatches,
        from_file: &[file::Setting],
    ) -> Result<(), CommandFailure> {
        let rank = |id: &str| match matches.value_source(id) {
            Some(ValueSource::CommandLine) => 3,
            Some(ValueSource::EnvVariable) => 2,
            _ => u8::from(from_file.iter().any(|setting| setting.is(id))),
        };
        if rank("rules") == 2 {
            let listed = std::mem::take(&mut self.rules);
            let listed = listed.iter().map(|paths| paths.to_string_lossy().into_owned());
            let listed = listed.collect::<Vec<_>>().join(",");
            self.rules = listed.split(',').map(|path| PathBuf::from(path.trim())).collect();
        }
        match rank("rules").cmp(&rank("limit")) {
            Ordering::Greater => self.limit = None,
            Ordering::Less => self.rules.clear(),
            Ordering::Equal if rank("rules") > 0 => {
                let problem = "--limit and --rules exclude each other";
                return Err(CommandFailure::Usage(Report::new(problem).hint(
                    "leave one out; a rules file can hold the limit as a rule: \
                     { name: all, key: \"{user|ip}\", limits: [100/minute] }",
                )));
            }
            Ordering::Equal => {}
        }
        Ok(())
    }
}

/// The command line again, with what only the file says.
fn with_file(
    matches: &ArgMatches,
    command_line: &[OsString],
    from_file: &[file::Setting],
    parse: &impl Fn(Vec<OsString>) -> Result<ArgMatches, clap::Error>,
) -> Result<ArgMatches, CommandFailure> {
    let told = |setting: &&file::Setting| {
        let source = matches.value_source(&setting.id());
        !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let extra = from_file.iter().filter(told).flat_map(file::Setting::flags);
    parse(command_line.iter().cloned().chain(extra).collect())
        .map_err(|error| CommandFailure::Usage(Report::new(clap_problem(&error))))
}

/// What clap found wrong, in a line.
fn clap_problem(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.trim_start_matches("error: ");
    text.split("\n\n").next().unwrap_or(text).trim().to_string()
}
