//! One part of the measurement: servers that answer the same requests, and the load on them.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use testkit::redis::TestRedis;
use tollgate_bench::generator::LoadSpec;
use tollgate_bench::process::{ScratchDir, ServerProcess};
use tollgate_bench::rounds::{SampleTiming, ServerSample};

use crate::{grpc, resp, tower};

/// The names of all parts.
pub(crate) const NAMES: [&str; 3] = ["resp", "grpc", "tower"];

/// Tollgate's name in the tables.
pub(crate) const TOLLGATE: &str = "tollgate";

const RULES: &str = include_str!("../../../rules/one-address.yaml");

/// The paths needed to start servers.
pub(crate) struct LaunchPaths<'a> {
    /// The program `tollgate`.
    pub(crate) tollgate: &'a Path,
    /// The folder of the floors.
    pub(crate) floors: &'a Path,
    /// The directory for the servers' files.
    pub(crate) scratch: &'a ScratchDir,
}

/// The number of connections and of requests in flight on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionShape {
    pub(crate) connections: usize,
    /// Requests in flight on each connection.
    pub(crate) in_flight: usize,
}

impl fmt::Display for ConnectionShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.connections, self.in_flight)
    }
}

/// The name of a case in the results.
pub(crate) fn name(who: &str, shape: ConnectionShape) -> String {
    format!("{who}, {shape}")
}

/// One thing to measure: a contestant under one load.
pub(crate) struct ListenerCase {
    pub(crate) who: &'static str,
    pub(crate) shape: ConnectionShape,
    pub(crate) sample: Box<dyn Fn(SampleTiming) -> Result<ServerSample, String>>,
}

/// A server under load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerTarget {
    pub(crate) address: SocketAddr,
    /// The process whose processor time counts.
    pub(crate) server: u32,
}

impl ListenerTarget {
    /// The load of one sample in this shape.
    pub(crate) fn load(self, shape: ConnectionShape, span: SampleTiming) -> LoadSpec {
        let ListenerTarget { address, server } = self;
        LoadSpec { address: address.into(), server, connections: shape.connections, span }
    }
}

/// Contestants that answer the same requests.
pub(crate) struct ListenerPart {
    pub(crate) title: &'static str,
    /// The contestant that decides nothing and that the others are compared with.
    pub(crate) floor: &'static str,
    /// The cases, in the order of the table.
    pub(crate) cases: Vec<ListenerCase>,
    /// Contestants that could not be measured, with the reason.
    pub(crate) problems: Vec<String>,
    /// The servers, which run until this is dropped. Bound: one for each contestant.
    processes: Vec<ServerProcess>,
    redis: Option<TestRedis>,
}

impl ListenerPart {
    /// Starts the servers of the part with this name, one of `NAMES`.
    pub(crate) fn start(name: &str, place: &LaunchPaths<'_>) -> ListenerPart {
        match name {
            "resp" => resp::start(place),
            "grpc" => grpc::start(place),
            "tower" => tower::start(place),
            other => unreachable!("`{other}` is not among the parts"),
        }
    }

    pub(crate) fn new(title: &'static str, floor: &'static str) -> ListenerPart {
        let (cases, problems, processes) = (Vec::new(), Vec::new(), Vec::new());
        ListenerPart { title, floor, cases, problems, processes, redis: None }
    }

    /// Adds a contestant that has a process of its own; `cases` first checks that it does the work that is
    /// measured.
    pub(crate) fn add_process(
        &mut self,
        who: &'static str,
        started: Result<(ServerProcess, SocketAddr), String>,
        cases: impl FnOnce(ListenerTarget) -> Result<Vec<ListenerCase>, String>,
    ) {
        let cases = started.and_then(|(process, address)| {
            let cases = cases(ListenerTarget { address, server: process.id() });
            self.processes.push(process);
            cases
        });
        self.add(who, cases);
    }

    /// Keeps a Redis running.
    pub(crate) fn keep_redis(&mut self, redis: TestRedis) {
        self.redis = Some(redis);
    }

    /// Adds the cases of a contestant, or the reason why there are none.
    pub(crate) fn add(&mut self, who: &'static str, cases: Result<Vec<ListenerCase>, String>) {
        match cases {
            Ok(cases) => self.cases.extend(cases),
            Err(problem) => self.problems.push(format!("{who}: {problem}")),
        }
    }

    /// Groups the cases by their shape.
    pub(crate) fn sort(&mut self, shapes: &[ConnectionShape]) {
        self.cases.sort_by_key(|case| shapes.iter().position(|it| *it == case.shape));
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.cases.iter().map(|case| name(case.who, case.shape)).collect()
    }
}

/// Starts `tollgate serve` with one listener, on one thread.
pub(crate) fn start_tollgate(
    place: &LaunchPaths<'_>,
    listener: &str,
) -> Result<(ServerProcess, SocketAddr), String> {
    let rules = place.scratch.write("rules.yaml", RULES)?;
    let mut command = Command::new(place.tollgate);
    command.arg("serve").arg("--rules").arg(rules).args(["--workers", "1"]);
    for other in ["http", "grpc", "resp", "admin"] {
        let address = if other == listener { "127.0.0.1:0" } else { "none" };
        command.arg(format!("--{other}")).arg(address);
    }
    ServerProcess::start_announced(
        &mut command,
        place.scratch.path().join("tollgate.log"),
        listener,
    )
}

/// Starts a server of this crate.
pub(crate) fn start_bench_server(
    place: &LaunchPaths<'_>,
    program: &str,
    words: &[&str],
    listener: &str,
) -> Result<(ServerProcess, SocketAddr), String> {
    let log = place.scratch.path().join(format!("{program}{}.log", words.concat()));
    ServerProcess::start_announced(
        Command::new(place.floors.join(program)).args(words),
        log,
        listener,
    )
}

/// The cases of one contestant, one for each shape.
pub(crate) fn cases<S>(
    who: &'static str,
    shapes: &[ConnectionShape],
    sample: impl Fn(ConnectionShape) -> S,
) -> Vec<ListenerCase>
where
    S: Fn(SampleTiming) -> Result<ServerSample, String> + 'static,
{
    let case =
        |&shape: &ConnectionShape| ListenerCase { who, shape, sample: Box::new(sample(shape)) };
    shapes.iter().map(case).collect()
}
