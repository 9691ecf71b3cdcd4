//! Settings of `tollgate serve`: flags, environment variables, and a file.
//!
//! There is one declaration, `Flags`, and one parser, clap's. A setting in the file is parsed as the flag of
//! its name, so that both have the same meaning and the same errors. Flags override the environment, the
//! environment overrides the file.

mod byte_size;
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
use tollgate_rules::UpstreamUrl;

use crate::cli::{CommandFailure, Report};
use crate::listener_table::ListenerAddresses;
use crate::live::{WatchMode, check_rate};
use crate::telemetry::LogFormat;
use byte_size::parse_body_memory;
pub(crate) use duration::parse_duration;
pub(crate) use store::{NamedStore, StoreChoice, choice as store_choice};
use url_value::UrlValue;

/// All settings of `serve`.
#[derive(Clone, Debug, Args)]
pub(crate) struct Flags {
    /// A rules file, or a directory of them; may be given several times
    ///
    /// In the environment, separate several with commas. Without --rules and --limit, built-in demo rules
    /// apply.
    #[arg(long, value_name = "PATH", env = "TOLLGATE_RULES", help_heading = "Rules")]
    pub(crate) rules: Vec<PathBuf>,

    /// One limit for each caller instead of rules: 100/minute, "100/minute burst 20"
    ///
    /// Without a burst it is a sliding window counter, an estimate. For a hard bound write a rule with an algorithm.
    #[arg(
        long,
        value_name = "RATE",
        env = "TOLLGATE_LIMIT",
        value_parser = check_rate,
        help_heading = "Rules"
    )]
    pub(crate) limit: Option<String>,

    /// Detection of changes of rules files; SIGHUP always reloads them
    #[arg(
        long,
        value_name = "MODE",
        env = "TOLLGATE_RULES_WATCH",
        default_value = "events",
        help_heading = "Rules"
    )]
    pub(crate) rules_watch: WatchMode,

    /// Answer to a check that lacks facts which the rules need
    ///
    /// A rule whose key needs a user does not apply to a request without one. If no rule remains that could
    /// refuse, `refuse` answers with an error that says what is missing, and `allow` allows the request.
    /// Applies to /v1/check, /v1/reserve, /v1/refund, TG.CHECK and TG.PEEK; forward-auth and Envoy requests
    /// are always allowed then, with a warning in the log.
    #[arg(
        long,
        value_name = "ACTION",
        env = "TOLLGATE_MISSING_FACTS",
        default_value = "refuse",
        help_heading = "Rules"
    )]
    pub(crate) missing_facts: OnMissingFacts,

    #[command(flatten)]
    pub(crate) listeners: ListenerAddresses,

    /// Upstream of the gateway for requests that no route of the rules matches: http://127.0.0.1:3000
    #[arg(
        long,
        value_name = "URL",
        env = "TOLLGATE_UPSTREAM",
        hide_env_values = true,
        value_parser = UrlValue(upstream_url),
        help_heading = "Listeners"
    )]
    pub(crate) upstream: Option<UpstreamUrl>,

    /// Let other processes listen on the same ports (SO_REUSEPORT), for a restart without a pause
    ///
    /// Start the new server, wait until it is ready, then stop the old one. A supervisor that passes the sockets on
    /// (LISTEN_FDS) is the better way: no connection is lost then whatever the kernel does.
    #[arg(
        long,
        env = "TOLLGATE_REUSE_PORT",
        default_value = "false",
        default_missing_value = "true",
        num_args = 0..=1,
        require_equals = true,
        action = clap::ArgAction::Set,
        help_heading = "Listeners"
    )]
    pub(crate) reuse_port: bool,

    /// File with the tokens that callers of the data listeners must present, one per line
    ///
    /// Callers send `Authorization: Bearer <token>`, clients of the resp listener `AUTH <token>`. Required if
    /// a data listener is not on loopback.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_AUTH_TOKEN_FILE", help_heading = "Access")]
    pub(crate) auth_token_file: Option<PathBuf>,

    /// File with the tokens for the admin listener, one per line
    #[arg(long, value_name = "FILE", env = "TOLLGATE_ADMIN_TOKEN_FILE", help_heading = "Access")]
    pub(crate) admin_token_file: Option<PathBuf>,

    /// Certificate chain of the data listeners (http, grpc, resp), PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TLS_CERT", help_heading = "Access")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", env = "TOLLGATE_TLS_KEY", help_heading = "Access")]
    pub(crate) tls_key: Option<PathBuf>,

    /// Store for counters: `memory`, or one that several servers share
    ///
    /// redis://HOST:PORT, rediss://HOST:PORT (TLS), redis-cluster://HOST,HOST or
    /// redis-sentinel://HOST,HOST/NAME, with USER:PASSWORD@ before the hosts if required.
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
    /// For known heavy callers. In the environment, separate several with spaces.
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

    /// Timeout of a shared store, after which the rule's on_store_failure applies
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_STORE_TIMEOUT",
        default_value = "10ms",
        value_parser = store::timeout,
        help_heading = "State"
    )]
    pub(crate) store_timeout: Duration,

    /// Minimum number of servers on the store
    ///
    /// While the store is unavailable, each server enforces its share of a limit. A server started while the
    /// store is down cannot count its peers, so it uses this number.
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_INSTANCES",
        default_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=10_000),
        help_heading = "State"
    )]
    pub(crate) instances: u32,

    /// Prefix of all keys in a shared store
    #[arg(
        long,
        value_name = "PREFIX",
        env = "TOLLGATE_KEY_PREFIX",
        default_value = "tollgate",
        help_heading = "State"
    )]
    pub(crate) key_prefix: KeyPrefix,

    /// Maximum number of keys in memory, about 40 bytes each
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_MAX_KEYS",
        default_value = "1000000",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000),
        help_heading = "State"
    )]
    pub(crate) max_keys: u64,

    /// Number of requests of the last hour that are kept in memory, so that other rules can be tried on them; 0 keeps none
    ///
    /// POST /api/candidate on the admin listener tries rules. A request takes at most 256 bytes on average. If there are
    /// more requests, those of some callers are kept, each caller with all of its requests. Credentials are not kept.
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_RECENT_TRAFFIC",
        default_value = "100000",
        value_parser = clap::value_parser!(u32).range(0..=10_000_000),
        help_heading = "State"
    )]
    pub(crate) recent_traffic: u32,

    /// Record requests into this file, as a trace for `tollgate simulate --rules`
    ///
    /// Users, API keys, addresses and headers that keys are made of are hashed with the secret of --key-secret-file;
    /// other credentials are not recorded. An existing file is kept as FILE.1. If the file was moved, SIGHUP begins
    /// a new one.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_RECORD", help_heading = "State")]
    pub(crate) record: Option<PathBuf>,

    /// Maximum size of the file of --record; beyond it the requests of some callers are removed, each with all of its own
    #[arg(
        long,
        value_name = "MIB",
        env = "TOLLGATE_RECORD_MAX_MIB",
        default_value = "64",
        value_parser = clap::value_parser!(u64).range(1..=65_536),
        help_heading = "State"
    )]
    pub(crate) record_max_mib: u64,

    /// File that keeps counters across restarts
    #[arg(long, value_name = "FILE", env = "TOLLGATE_SNAPSHOT", help_heading = "State")]
    pub(crate) snapshot: Option<PathBuf>,

    /// Interval between snapshots
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_SNAPSHOT_INTERVAL",
        default_value = "60s",
        value_parser = parse_duration,
        help_heading = "State"
    )]
    pub(crate) snapshot_interval: Duration,

    /// Maximum number of connections on each data listener
    ///
    /// The default is 10000, or fewer if this process may not open as many files.
    #[arg(long, value_name = "N", env = "TOLLGATE_MAX_CONNECTIONS", help_heading = "Capacity")]
    pub(crate) max_connections: Option<NonZeroUsize>,

    /// Maximum number of connections from one address (IPv6: one /64) on each data listener
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_MAX_CONNECTIONS_PER_IP",
        default_value = "1000",
        help_heading = "Capacity"
    )]
    pub(crate) max_connections_per_ip: NonZeroUsize,

    /// Maximum number of requests that the gateway forwards at the same time
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_GATEWAY_MAX_REQUESTS",
        default_value = "10000",
        help_heading = "Capacity"
    )]
    pub(crate) gateway_max_requests: NonZeroUsize,

    /// Maximum number of requests that wait until the gateway can forward them; further ones get 503
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_GATEWAY_MAX_WAITING",
        default_value = "1000",
        help_heading = "Capacity"
    )]
    pub(crate) gateway_max_waiting: usize,

    /// Longest wait of a request until the gateway can forward it
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_GATEWAY_MAX_WAIT",
        default_value = "1s",
        value_parser = parse_duration,
        help_heading = "Capacity"
    )]
    pub(crate) gateway_max_wait: Duration,

    /// Memory for bodies that the gateway reads before it decides about their requests, and for those that wait: 64MiB
    ///
    /// One client address (IPv6: one /64) has a sixteenth. Beyond it the gateway does not read on. HTTP/2 lets clients send as much
    /// again before it is read.
    #[arg(
        long,
        value_name = "BYTES",
        env = "TOLLGATE_GATEWAY_BODY_MEMORY",
        default_value = "64MiB",
        value_parser = parse_body_memory,
        help_heading = "Capacity"
    )]
    pub(crate) gateway_body_memory: usize,

    /// Longest time that limits with a queue and fair queues hold back a request; a longer one is a refusal
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_GATEWAY_MAX_DELAY",
        default_value = "60s",
        value_parser = parse_duration,
        help_heading = "Capacity"
    )]
    pub(crate) gateway_max_delay: Duration,

    /// Number of worker threads; one per CPU by default
    #[arg(
        long,
        value_name = "N",
        env = "TOLLGATE_WORKERS",
        value_parser = clap::value_parser!(u16).range(1..=1_024),
        help_heading = "Capacity"
    )]
    pub(crate) workers: Option<u16>,

    /// Format of log lines, on standard error
    #[arg(
        long,
        value_name = "FORMAT",
        env = "TOLLGATE_LOG_FORMAT",
        default_value = "text",
        help_heading = "Logs"
    )]
    pub(crate) log_format: LogFormat,

    /// Access log of the gateway: a file, or `-` for standard error; none by default
    ///
    /// One line for each request, in the format of --log-format. Lines are appended; if they cannot be written fast
    /// enough, some are dropped and the log says how many. SIGHUP opens the file again, for log rotation.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_ACCESS_LOG", help_heading = "Logs")]
    pub(crate) access_log: Option<PathBuf>,

    /// Interval of polling rules files beside events
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration, hide = true)]
    pub(crate) rules_look_interval: Duration,

    /// File with the secret for hashing callers in logs and in a shared store
    ///
    /// At least 16 random bytes, the same for all servers on one store. Without it, logs use a secret that is
    /// generated at each start, and keys in the store are plain hashes. It hides the callers of counters,
    /// blocks and bans, and seals the overrides and rules that servers share; overrides and rules sent to the admin listener are stored in clear text, with the keys
    /// that they name.
    #[arg(long, value_name = "FILE", env = "TOLLGATE_KEY_SECRET_FILE", help_heading = "Logs")]
    pub(crate) key_secret_file: Option<PathBuf>,

    /// Maximum number of log lines that wait to be written
    #[arg(
        long,
        value_name = "N",
        default_value = "1024",
        value_parser = clap::value_parser!(u16).range(1..),
        hide = true
    )]
    pub(crate) log_lines_waiting: u16,

    /// Timeout for receiving the headers of a request; at most 3s on the admin listener
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_HEADER_TIMEOUT",
        default_value = "10s",
        value_parser = parse_duration,
        help_heading = "Capacity"
    )]
    pub(crate) header_timeout: Duration,

    /// Timeout for receiving the body of a request
    #[arg(
        long,
        value_name = "TIME",
        env = "TOLLGATE_BODY_TIMEOUT",
        default_value = "10s",
        value_parser = parse_duration,
        help_heading = "Capacity"
    )]
    pub(crate) body_timeout: Duration,

    /// Timeout for idle HTTP connections
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

/// Parses the value of `--upstream`.
fn upstream_url(text: &str) -> Result<UpstreamUrl, String> {
    UpstreamUrl::parse(text).map_err(|problem| problem.to_string())
}

/// The flag `--missing-facts`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnMissingFacts {
    /// Answer with an error that says what is missing
    Refuse,
    /// Allow the request, as if no rule applied
    Allow,
}

/// The settings of a run.
pub(crate) type ServerSettings = Flags;

impl ServerSettings {
    /// Merges the three sources: the command line and the environment from `matches`, and the file. `parse`
    /// parses flags of `serve`.
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

    /// Returns true if neither rules nor a limit are given.
    pub(crate) fn is_demo(&self) -> bool {
        self.rules.is_empty() && self.limit.is_none()
    }

    /// Chooses between `--limit` and `--rules`, which exclude each other: the stronger source wins.
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
                let problem = "--limit and --rules cannot be used together";
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

/// Parses the command line again, with the settings that only the file has.
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

/// An error of clap in one line.
fn clap_problem(error: &clap::Error) -> String {
    let text = error.to_string();
    let text = text.trim_start_matches("error: ");
    text.split("\n\n").next().unwrap_or(text).trim().to_string()
}
