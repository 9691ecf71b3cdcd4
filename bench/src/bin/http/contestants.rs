//! The contestants: the servers and the requests sent to each of them.
//!
//! A server that cannot be started or gives a wrong answer is reported and left out.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use tollgate_bench::address::ServerAddress;
use tollgate_bench::generator::answer_excerpt;
use tollgate_bench::generator::http::ask;
use tollgate_bench::generator::requests::EncodedRequests;
use tollgate_bench::process::{ScratchDir, ServerProcess};
use tollgate_bench::reply::check_same_shape;

use crate::nginx;
use crate::requests::{self, BATCH};

pub(crate) const HYPER: &str = "bare hyper";
pub(crate) const HYPER_FIELDS: &str = "hyper, same fields";
pub(crate) const NGINX: &str = "nginx limit_req";
pub(crate) const NGINX_SHORT: &str = "nginx limit_req, short request";
pub(crate) const FORWARD_AUTH: &str = "tollgate forward-auth";
pub(crate) const ELEVEN_RULES: &str = "tollgate forward-auth, 11 rules";
pub(crate) const UNIX_SOCKET: &str = "tollgate forward-auth, Unix";
pub(crate) const HYPER_BODIES: &str = "hyper, same body and fields";
pub(crate) const CHECK: &str = "tollgate check";
pub(crate) const CHECK_BATCH: &str = "tollgate batch of 64";

/// The names of all contestants, in the order of the table.
const NAMES: [&str; 10] = [
    HYPER,
    HYPER_FIELDS,
    NGINX,
    NGINX_SHORT,
    FORWARD_AUTH,
    ELEVEN_RULES,
    UNIX_SOCKET,
    HYPER_BODIES,
    CHECK,
    CHECK_BATCH,
];

/// Contestants and the floors that send the same bytes.
const SAME_BYTES: [(&str, &str); 2] = [(FORWARD_AUTH, HYPER_FIELDS), (CHECK, HYPER_BODIES)];

const ONE_RULE: &str = include_str!("../../../rules/one-rule.yaml");
const ELEVEN_RULES_TEXT: &str = include_str!("../../../rules/eleven-rules.yaml");

/// A contestant: a server and the requests sent to it.
pub(crate) struct HttpContestant {
    pub(crate) name: &'static str,
    pub(crate) address: ServerAddress,
    pub(crate) server: u32,
    pub(crate) requests: Rc<EncodedRequests>,
}

/// All contestants, ready to be measured.
pub(crate) struct HttpContestants {
    pub(crate) all: Vec<HttpContestant>,
    /// Contestants that could not be measured, with the reason.
    pub(crate) problems: Vec<String>,
    /// The servers, which run until this is dropped. Bound: seven.
    servers: Vec<ServerProcess>,
}

/// The contestants to start, and the paths of their programs.
pub(crate) struct HttpContestantChoice<'a> {
    /// The program `tollgate`.
    pub(crate) tollgate: &'a Path,
    /// The program `bare-hyper`.
    pub(crate) bare_hyper: &'a Path,
    /// A part of the names of the wanted contestants; the empty text selects all.
    pub(crate) only: &'a str,
}

impl HttpContestants {
    /// Starts the servers of all wanted contestants, and sends each contestant one request.
    pub(crate) fn start(
        choice: &HttpContestantChoice<'_>,
        scratch: &ScratchDir,
    ) -> HttpContestants {
        let mut it = HttpContestants { all: Vec::new(), problems: Vec::new(), servers: Vec::new() };
        let forward_auth = Rc::new(requests::forward_auth());
        let check = Rc::new(requests::check());
        let batch = Rc::new(requests::batch());
        let short = Rc::new(requests::short());
        let tollgate = |name, rules, listener: &str| {
            announced_tollgate(choice.tollgate, scratch, (name, rules), listener)
        };
        let socket = format!("unix:{}", scratch.path().join("http.sock").display());
        let hyper = |mode| {
            let log = scratch.path().join(format!("hyper-{mode}.log"));
            ServerProcess::start_announced(Command::new(choice.bare_hyper).arg(mode), log, "http")
        };
        it.add(
            choice.only,
            &[(FORWARD_AUTH, &forward_auth), (CHECK, &check), (CHECK_BATCH, &batch)],
            || tollgate("one-rule", ONE_RULE, "127.0.0.1:0"),
        );
        it.add(choice.only, &[(ELEVEN_RULES, &forward_auth)], || {
            tollgate("eleven-rules", ELEVEN_RULES_TEXT, "127.0.0.1:0")
        });
        it.add(choice.only, &[(UNIX_SOCKET, &forward_auth)], || {
            tollgate("unix", ONE_RULE, &socket)
        });
        it.add(choice.only, &[(HYPER, &forward_auth)], || hyper("empty"));
        it.add(choice.only, &[(HYPER_FIELDS, &forward_auth)], || hyper("fields"));
        it.add(choice.only, &[(HYPER_BODIES, &check)], || hyper("bodies"));
        it.add(choice.only, &[(NGINX, &forward_auth), (NGINX_SHORT, &short)], || {
            nginx::start(scratch).map(|(process, address)| (process, address.into()))
        });
        let place = |name| NAMES.iter().position(|it| *it == name);
        it.all.sort_by_key(|contestant| place(contestant.name));
        it.check_floors();
        it
    }

    /// Reports floors that do not send the bytes that tollgate sends.
    fn check_floors(&mut self) {
        for (ours, floor) in SAME_BYTES {
            let find = |name| self.all.iter().find(|it| it.name == name);
            let (Some(ours), Some(floor)) = (find(ours), find(floor)) else { continue };
            let answer = |it: &HttpContestant| ask(it.address.clone(), it.requests.get(0));
            let same =
                answer(ours).and_then(|ours| check_same_shape(&ours.text, &answer(floor)?.text));
            self.problems.extend(same.err().map(|problem| format!("{}: {problem}", floor.name)));
        }
    }

    /// Starts one server if one of its contestants is wanted.
    fn add(
        &mut self,
        only: &str,
        questions: &[(&'static str, &Rc<EncodedRequests>)],
        start: impl FnOnce() -> Result<(ServerProcess, ServerAddress), String>,
    ) {
        let wanted: Vec<_> = questions.iter().filter(|(name, _)| name.contains(only)).collect();
        if wanted.is_empty() {
            return;
        }
        let names: Vec<&str> = wanted.iter().map(|(name, _)| *name).collect();
        let (process, address) = match start() {
            Ok(started) => started,
            Err(problem) => {
                self.problems.push(format!("{}: could not start: {problem}", names.join("; ")));
                return;
            }
        };
        for (name, requests) in wanted {
            match check_answer(name, &address, requests.get(0)) {
                Ok(()) => {
                    let (server, requests) = (process.id(), Rc::clone(requests));
                    let address = address.clone();
                    self.all.push(HttpContestant { name, address, server, requests });
                }
                Err(problem) => self.problems.push(format!("{name}: {problem}")),
            }
        }
        self.servers.push(process);
    }
}

fn announced_tollgate(
    program: &Path,
    scratch: &ScratchDir,
    (name, rules): (&str, &str),
    listener: &str,
) -> Result<(ServerProcess, ServerAddress), String> {
    let rules: PathBuf = scratch.write(&format!("{name}.yaml"), rules)?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--rules").arg(rules);
    command.args(["--http", listener, "--grpc", "none", "--resp", "none", "--admin", "none"]);
    ServerProcess::start_announced(&mut command, scratch.path().join(format!("{name}.log")), "http")
}

/// Checks that the answer shows the work: a server whose rules do not match would look fast.
fn check_answer(name: &str, address: &ServerAddress, request: &[u8]) -> Result<(), String> {
    match name {
        FORWARD_AUTH | UNIX_SOCKET => {
            check_answer_contains(address, request, "x-ratelimit-remaining: ", 1)
        }
        ELEVEN_RULES => {
            // Only `/v1/check` names all the limits that decided: ten more rules, one limit each.
            check_answer_contains(address, requests::check().get(0), r#""rule":"more-"#, 10)?;
            check_answer_contains(address, request, "x-ratelimit-remaining: ", 1)
        }
        CHECK => check_answer_contains(address, request, r#""allowed":true,"rule":"api""#, 1),
        CHECK_BATCH => {
            check_answer_contains(address, request, r#""allowed":true,"rule":"api""#, BATCH)
        }
        _ => check_answer_contains(address, request, "http/1.1 200 ", 1),
    }
}

/// Checks that the answer is 200 and contains `sign` at least so many times, ignoring case.
fn check_answer_contains(
    address: &ServerAddress,
    request: &[u8],
    sign: &str,
    times: usize,
) -> Result<(), String> {
    let answer = ask(address.clone(), request)?;
    let text = answer.text.to_ascii_lowercase();
    if answer.status == 200 && text.matches(sign).count() >= times {
        return Ok(());
    }
    let said = answer_excerpt(answer.text.as_bytes());
    Err(format!("the answer is not 200 with `{sign}` {times} times; it said:\n{said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_file_has_ten_rules_more() {
        let rules = |text: &str| text.matches("- name: ").count();
        assert_eq!((rules(ONE_RULE), rules(ELEVEN_RULES_TEXT)), (1, 11));
        let head = |text: &str| text.split_once("identify:").unwrap().1.to_owned();
        assert!(head(ELEVEN_RULES_TEXT).starts_with(&head(ONE_RULE)));
    }
}
