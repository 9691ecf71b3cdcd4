//! The paths that are counted: a request of one kind, or a call of the library.

use std::path::Path;

use crate::process::ProgramCall;
use crate::traffic;

/// Decisions in a batch or pipeline.
pub const BATCH: usize = 64;

const ONE_RULE: &str = include_str!("../../../bench/rules/one-rule.yaml");
const ELEVEN_RULES: &str = include_str!("../../../bench/rules/eleven-rules.yaml");
const ONE_ADDRESS: &str = include_str!("../../../bench/rules/one-address.yaml");

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerProtocol {
    /// HTTP/1.1 with keep-alive.
    Http,
    /// The Redis protocol.
    Resp,
    /// gRPC over HTTP/2.
    Grpc,
}

impl ServerProtocol {
    /// The name of the listener.
    #[must_use]
    pub fn listener(self) -> &'static str {
        match self {
            ServerProtocol::Http => "http",
            ServerProtocol::Resp => "resp",
            ServerProtocol::Grpc => "grpc",
        }
    }
}

/// One kind of request to the server.
#[derive(Debug)]
pub struct ServerPath {
    /// The name in tables.
    pub name: &'static str,
    /// The protocol.
    pub protocol: ServerProtocol,
    /// Decisions in one request or pipeline.
    pub decisions: usize,
    /// Requests or pipelines of the shorter run: the additional ones of the longer run take 20 to 50 million
    /// instructions, so that the work of timers is below 1 %.
    pub(super) exchanges: usize,
    /// The rules file.
    rules: &'static str,
    /// Encodes the request of these callers, one for each decision.
    pub(super) request: fn(&[u64]) -> Vec<u8>,
    /// Text that every reply contains: a server that does not decide would look fast.
    pub(super) sign: &'static str,
}

/// Every kind of request that is counted.
pub const SERVER_PATHS: [ServerPath; 8] = [
    ServerPath {
        name: "forward-auth, 1 rule",
        protocol: ServerProtocol::Http,
        decisions: 1,
        exchanges: 400,
        rules: ONE_RULE,
        request: |users| traffic::forward_auth(users[0]).into(),
        sign: "x-ratelimit-remaining: ",
    },
    ServerPath {
        name: "forward-auth, 11 rules",
        protocol: ServerProtocol::Http,
        decisions: 1,
        exchanges: 200,
        rules: ELEVEN_RULES,
        request: |users| traffic::forward_auth(users[0]).into(),
        sign: "\"more-10-1s\"",
    },
    ServerPath {
        name: "check",
        protocol: ServerProtocol::Http,
        decisions: 1,
        exchanges: 400,
        rules: ONE_RULE,
        request: |users| traffic::check(users[0]).into(),
        sign: "\"allowed\":true,\"rule\":\"api\"",
    },
    ServerPath {
        name: "check, batch of 64",
        protocol: ServerProtocol::Http,
        decisions: BATCH,
        exchanges: 20,
        rules: ONE_RULE,
        request: |users| traffic::check_batch(users).into(),
        sign: "\"allowed\":true,\"rule\":\"api\"",
    },
    ServerPath {
        name: "CL.THROTTLE",
        protocol: ServerProtocol::Resp,
        decisions: 1,
        exchanges: 1_500,
        rules: ONE_RULE,
        request: |users| traffic::throttle(users[0]).into(),
        sign: "*5\r\n:0\r\n",
    },
    ServerPath {
        name: "CL.THROTTLE, pipeline of 64",
        protocol: ServerProtocol::Resp,
        decisions: BATCH,
        exchanges: 300,
        rules: ONE_RULE,
        request: |users| {
            users.iter().map(|&user| traffic::throttle(user)).collect::<String>().into()
        },
        sign: "*5\r\n:0\r\n",
    },
    ServerPath {
        name: "TG.CHECK, pipeline of 64",
        protocol: ServerProtocol::Resp,
        decisions: BATCH,
        exchanges: 25,
        rules: ONE_RULE,
        request: |users| {
            users.iter().map(|&user| traffic::tg_check(user)).collect::<String>().into()
        },
        sign: "*6\r\n:0\r\n",
    },
    ServerPath {
        name: "ShouldRateLimit",
        protocol: ServerProtocol::Grpc,
        decisions: 1,
        exchanges: 250,
        rules: ONE_ADDRESS,
        request: |users| traffic::should_rate_limit(users[0]),
        sign: "per-address",
    },
];

impl ServerPath {
    /// The command line of `tollgate serve` for this path, on one worker. The folder takes its files.
    ///
    /// # Panics
    ///
    /// If the folder cannot be written.
    #[must_use]
    pub fn serve_call(&self, tollgate: &Path, scratch: &Path) -> ProgramCall {
        let (rules, secret) = (scratch.join("rules.yaml"), scratch.join("secret"));
        std::fs::write(&rules, self.rules).expect("a folder for files");
        // A given secret saves the generator of random numbers its start, which takes 99 % of the start's
        // instructions and a different number of them each time.
        std::fs::write(&secret, "not a secret: only counted").expect("a folder for files");
        let call = ProgramCall::new(tollgate, ["serve", "--workers", "1", "--max-keys", "100000"]);
        let call = call.with(["--max-connections", "100"]);
        let call = call.with(["--rules".as_ref(), rules.as_os_str()]);
        let call = call.with(["--key-secret-file".as_ref(), secret.as_os_str()]);
        ["http", "grpc", "resp", "admin"].into_iter().fold(call, |call, listener| {
            let open = listener == self.protocol.listener();
            call.with([format!("--{listener}").as_str(), if open { "127.0.0.1:0" } else { "none" }])
        })
    }
}

/// A call of the library in a loop, without sockets.
#[derive(Debug)]
pub struct LibraryPath {
    /// The name in tables, and the word for `library-loop`.
    pub name: &'static str,
    /// Decisions of the shorter run, a multiple of [`BATCH`].
    pub(super) decisions: usize,
}

/// Every call of the library that is counted.
pub const LIBRARY_PATHS: [LibraryPath; 4] = [
    LibraryPath { name: "Limiter::check", decisions: 32_000 },
    LibraryPath { name: "Limiter::decide_batch", decisions: 32_000 },
    LibraryPath { name: "Gatekeeper, 1 rule", decisions: 3_200 },
    LibraryPath { name: "Gatekeeper, 11 rules", decisions: 1_280 },
];
