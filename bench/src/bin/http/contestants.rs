//! Who is measured: the servers, and what each of them is asked.
//!
//! A server that cannot be started, or answers what it should not, is reported and left out.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use tollgate_bench::generator::answer_excerpt;
use tollgate_bench::generator::http::ask;
use tollgate_bench::generator::requests::RequestList;
use tollgate_bench::process::{ScratchDir, ServerProcess};

use crate::nginx;
use crate::requests::{self, BATCH};

pub(crate) const HYPER: &str = "bare hyper, no bodies";
pub(crate) const NGINX: &str = "nginx limit_req";
pub(crate) const NGINX_SHORT: &str = "nginx limit_req, short request";
pub(crate) const FORWARD_AUTH: &str = "tollgate forward-auth";
pub(crate) const ELEVEN_RULES: &str = "tollgate forward-auth, 11 rules";
pub(crate) const HYPER_BODIES: &str = "bare hyper, bodies";
pub(crate) const CHECK: &str = "tollgate check";
pub(crate) const CHECK_BATCH: &str = "tollgate batch of 64";

/// In the order of the table.
const NAMES: [&str; 8] =
    [HYPER, NGINX, NGINX_SHORT, FORWARD_AUTH, ELEVEN_RULES, HYPER_BODIES, CHECK, CHECK_BATCH];

const ONE_RULE: &str = include_str!("../../../rules/one-rule.yaml");
const ELEVEN_RULES_TEXT: &str = include_str!("../../../rules/eleven-rules.yaml");

/// Bytes of an answer to `/v1/check` with one rule; used where tollgate itself cannot be asked.
const ANSWER_BYTES_USUAL: usize = 330;

/// What one contestant is: a server, and what it is asked.
pub(crate) struct HttpContestant {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) server: u32,
    pub(crate) requests: Rc<RequestList>,
}

/// Everybody, ready to be measured.
pub(crate) struct HttpContestants {
    pub(crate) all: Vec<HttpContestant>,
    /// What could not be measured, and why.
    pub(crate) problems: Vec<String>,
    /// They run as long as this lives. Bound: five.
    servers: Vec<ServerProcess>,
}

/// Which contestants to start, and from where.
pub(crate) struct HttpContestantChoice<'a> {
    /// The program `tollgate`.
    pub(crate) tollgate: &'a Path,
    /// The program `bare-hyper`.
    pub(crate) bare_hyper: &'a Path,
    /// Part of the names of those wanted; all have the empty text in their names.
    pub(crate) only: &'a str,
}

impl HttpContestants {
    /// Starts all servers that are wanted, and asks each contestant one question.
    pub(crate) fn start(
        choice: &HttpContestantChoice<'_>,
        scratch: &ScratchDir,
    ) -> HttpContestants {
        let mut it = HttpContestants { all: Vec::new(), problems: Vec::new(), servers: Vec::new() };
        let forward_auth = Rc::new(requests::forward_auth());
        let check = Rc::new(requests::check());
        let batch = Rc::new(requests::batch());
        let short = Rc::new(requests::short());
        let tollgate = |name, rules| announced_tollgate(choice.tollgate, scratch, name, rules);
        let hyper = |name, words: &[&str]| {
            let log = scratch.path().join(format!("{name}.log"));
            ServerProcess::start_announced(Command::new(choice.bare_hyper).args(words), log, "http")
        };
        it.add(
            choice.only,
            &[(FORWARD_AUTH, &forward_auth), (CHECK, &check), (CHECK_BATCH, &batch)],
            || tollgate("one-rule", ONE_RULE),
        );
        it.add(choice.only, &[(ELEVEN_RULES, &forward_auth)], || {
            tollgate("eleven-rules", ELEVEN_RULES_TEXT)
        });
        let answer_bytes = it.answer_bytes(&check).to_string();
        it.add(choice.only, &[(HYPER, &forward_auth)], || hyper("hyper", &["empty"]));
        it.add(choice.only, &[(HYPER_BODIES, &check)], || {
            hyper("hyper-bodies", &["bodies", &answer_bytes])
        });
        it.add(choice.only, &[(NGINX, &forward_auth), (NGINX_SHORT, &short)], || {
            nginx::start(scratch)
        });
        let place = |name| NAMES.iter().position(|it| *it == name);
        it.all.sort_by_key(|contestant| place(contestant.name));
        it
    }

    /// Starts one server if somebody wants to see what it does.
    fn add(
        &mut self,
        only: &str,
        questions: &[(&'static str, &Rc<RequestList>)],
        start: impl FnOnce() -> Result<(ServerProcess, SocketAddr), String>,
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
            match check_answer(name, address, requests.get(0)) {
                Ok(()) => {
                    let (server, requests) = (process.id(), Rc::clone(requests));
                    self.all.push(HttpContestant { name, address, server, requests });
                }
                Err(problem) => self.problems.push(format!("{name}: {problem}")),
            }
        }
        self.servers.push(process);
    }

    /// How long tollgate's answers are, so that bare hyper's can be as long.
    fn answer_bytes(&self, check: &RequestList) -> usize {
        let tollgate = self.all.iter().find(|contestant| contestant.name == CHECK);
        let answer = tollgate.and_then(|it| ask(it.address, check.get(0)).ok());
        answer.map_or(ANSWER_BYTES_USUAL, |answer| answer.body_bytes)
    }
}

fn announced_tollgate(
    program: &Path,
    scratch: &ScratchDir,
    name: &str,
    rules: &str,
) -> Result<(ServerProcess, SocketAddr), String> {
    let rules: PathBuf = scratch.write(&format!("{name}.yaml"), rules)?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--rules").arg(rules);
    command.args(["--http", "127.0.0.1:0", "--grpc", "none", "--resp", "none", "--admin", "none"]);
    ServerProcess::start_announced(&mut command, scratch.path().join(format!("{name}.log")), "http")
}

/// Whether the answer shows that the work was done: a server whose rules do not match would be
/// measured to be fast.
fn check_answer(name: &str, address: SocketAddr, request: &[u8]) -> Result<(), String> {
    match name {
        FORWARD_AUTH => check_answer_contains(address, request, "x-ratelimit-remaining: ", 1),
        ELEVEN_RULES => {
            // Only a check names all the limits that decided: ten rules more, one limit each.
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

/// Whether the answer is 200 and has the sign in it at least so many times, in whatever case.
fn check_answer_contains(
    address: SocketAddr,
    request: &[u8],
    sign: &str,
    times: usize,
) -> Result<(), String> {
    let answer = ask(address, request)?;
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
