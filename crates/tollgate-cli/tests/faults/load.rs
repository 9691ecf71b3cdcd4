//! Callers that never stop asking, and what they saw.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use testkit::history::{self, BucketBound, ObservedCall};
use testkit::wait;

use crate::harness::{TestHttpClient, TollgateProcess};

/// Timeout of the store in these tests.
pub(crate) const DEADLINE: Duration = Duration::from_millis(10);

/// A hundredth of answers may take this much longer than the deadline,
const LATE_P99: Duration = Duration::from_millis(1);
/// and none longer than this.
const LATE_MAX: Duration = Duration::from_millis(20);

/// After the repair the store has to decide again within this.
pub(crate) const RECOVERY: Duration = Duration::from_secs(2);

/// Requests of each caller in a second: more than the limit of a user.
const UNITS: u64 = 20;
const ASKED_PER_SECOND: u32 = 100;

/// One rule for each policy, each with users of its own.
pub(crate) const RULES: &str = "rules:
  - { name: local, match: { path: /local }, key: '{user}', limits: [{ rate: 20/second, burst: 20 }], on_store_failure: local }
  - { name: open, match: { path: /open }, key: '{user}', limits: [{ rate: 20/second, burst: 20 }], on_store_failure: open }
  - { name: closed, match: { path: /closed }, key: '{user}', limits: [{ rate: 20/second, burst: 20 }], on_store_failure: closed }
";

/// The `on_store_failure` of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultPolicy {
    Local,
    Open,
    Closed,
    /// No rule, so the store is not asked: the ruler that the others are measured by.
    NoStore,
}

impl FaultPolicy {
    pub(crate) const ALL: [FaultPolicy; 3] =
        [FaultPolicy::Local, FaultPolicy::Open, FaultPolicy::Closed];

    pub(crate) fn name(self) -> &'static str {
        match self {
            FaultPolicy::Local => "local",
            FaultPolicy::Open => "open",
            FaultPolicy::Closed => "closed",
            FaultPolicy::NoStore => "not-asked",
        }
    }
}

/// One question and its answer.
#[derive(Clone, Debug)]
pub(crate) struct ObservedAnswer {
    pub(crate) policy: FaultPolicy,
    pub(crate) user: usize,
    pub(crate) asked: Duration,
    pub(crate) answered: Duration,
    pub(crate) status: u16,
    pub(crate) decided_by: String,
}

impl ObservedAnswer {
    /// Returns true if the store decided, now or a moment ago.
    pub(crate) fn by_store(&self) -> bool {
        matches!(&*self.decided_by, "redis" | "refusal_cache")
    }
}

/// Duration of each of the three phases: healthy, broken, mended.
pub(crate) fn phase() -> Duration {
    let given = std::env::var("TOLLGATE_FAULT_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(2))
}

/// Callers at work.
pub(crate) struct FaultLoad {
    began: Instant,
    stop: Arc<AtomicBool>,
    callers: Vec<JoinHandle<Vec<ObservedAnswer>>>,
}

impl FaultLoad {
    /// Callers of these servers in turn: `users` for each policy.
    pub(crate) fn start(servers: &[&TollgateProcess], users: usize) -> FaultLoad {
        let (began, stop) = (wait::now(), Arc::new(AtomicBool::new(false)));
        let mut callers = Vec::new();
        for policy in FaultPolicy::ALL.into_iter().chain([FaultPolicy::NoStore]) {
            for user in 0..users {
                let address = servers[user % servers.len()].http();
                let stop = stop.clone();
                callers.push(thread::spawn(move || call(address, (policy, user), began, &stop)));
            }
        }
        FaultLoad { began, stop, callers }
    }

    /// Lets time pass until so long after the start.
    pub(crate) fn until(&self, after: Duration) {
        let _ = wait::within(after.saturating_sub(self.now()), || None::<()>);
    }

    pub(crate) fn now(&self) -> Duration {
        wait::now() - self.began
    }

    /// Ends the callers; all they saw.
    pub(crate) fn end(self, broken: Duration, mended: Duration) -> FaultRun {
        self.stop.store(true, Ordering::Relaxed);
        let seen = self.callers.into_iter().map(|caller| caller.join().expect("a caller"));
        let (ruler, seen) = seen.flatten().partition(|one| one.policy == FaultPolicy::NoStore);
        FaultRun { answers: seen, baseline: ruler, broken, mended }
    }
}

/// Asks at an even pace, whatever the answers take: who is late asks at once.
fn call(
    address: SocketAddr,
    (policy, user): (FaultPolicy, usize),
    began: Instant,
    stop: &AtomicBool,
) -> Vec<ObservedAnswer> {
    let mut client = TestHttpClient::connect(address);
    let body = format!(r#"{{"path":"/{}","user":"{user}"}}"#, policy.name());
    let pace = Duration::from_secs(1) / ASKED_PER_SECOND;
    // Not all at the same instant.
    let mut next = began + pace * (user as u32 % 7) / 7;
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let _ = wait::within(next.saturating_duration_since(wait::now()), || None::<()>);
        let asked = wait::now();
        let answer = client.request("POST", "/v1/check", &[], &body);
        let answered = wait::now();
        let json = answer.json();
        let decided_by = json["decided_by"].as_str().unwrap_or("nobody").to_string();
        seen.push(ObservedAnswer {
            policy,
            user,
            asked: asked - began,
            answered: answered - began,
            status: answer.status,
            decided_by,
        });
        next = (next + pace).max(answered);
    }
    seen
}

/// Expected effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultEffect {
    /// The store cannot be asked: policies decide.
    Degrades,
    /// It can, perhaps with a short interruption.
    Passes,
}

/// A fault under load: what was seen, and when it began and ended.
pub(crate) struct FaultRun {
    pub(crate) answers: Vec<ObservedAnswer>,
    /// Answers to callers whose rules do not use the store.
    baseline: Vec<ObservedAnswer>,
    pub(crate) broken: Duration,
    pub(crate) mended: Duration,
}

/// Breaks something under load and mends it.
pub(crate) fn fault(
    server: &TollgateProcess,
    break_it: impl FnOnce(),
    mend_it: impl FnOnce(),
) -> FaultRun {
    fault_on(&[server], break_it, mend_it)
}

/// The same with several servers.
pub(crate) fn fault_on(
    servers: &[&TollgateProcess],
    break_it: impl FnOnce(),
    mend_it: impl FnOnce(),
) -> FaultRun {
    let load = FaultLoad::start(servers, 4);
    load.until(phase());
    let broken = load.now();
    break_it();
    load.until(phase() * 2);
    mend_it();
    let mended = load.now();
    load.until(mended + RECOVERY.max(phase()) + Duration::from_millis(500));
    load.end(broken, mended)
}

impl FaultRun {
    /// Everything that holds for every fault.
    pub(crate) fn check(&self, effect: FaultEffect) {
        self.check_no_errors();
        self.check_in_time();
        self.check_before_fault();
        if effect == FaultEffect::Degrades {
            self.check_degrades();
        }
        self.check_recovers(RECOVERY);
        self.check_bounds(effect);
    }

    /// Nobody gets anything but an answer; who refuses when in doubt, says so.
    pub(crate) fn check_no_errors(&self) {
        for one in &self.answers {
            let refused = if one.decided_by == "closed" { 503 } else { 429 };
            assert!([200, refused].contains(&one.status), "{one:?}");
            let known = ["redis", "refusal_cache", one.policy.name()];
            assert!(known.contains(&&*one.decided_by), "{one:?}");
        }
    }

    /// Answers come within the deadline, and what the machine itself needs: that is what answers take that the store has
    /// nothing to do with, in the same run, once for the request and once for the end of its wait. On a machine that is busy
    /// the server gets its turn late for each of the two.
    pub(crate) fn check_in_time(&self) {
        let (p99, max) = took(&self.answers);
        let (ruler_p99, ruler_max) = took(&self.baseline);
        eprintln!(
            "p99 {p99:?}, max {max:?}; without the store p99 {ruler_p99:?}, max {ruler_max:?}\n{self}"
        );
        assert!(p99 <= DEADLINE + LATE_P99 + ruler_p99 * 2, "p99 {p99:?}, ruler {ruler_p99:?}");
        assert!(max <= DEADLINE + LATE_MAX + ruler_max * 2, "max {max:?}, ruler {ruler_max:?}");
    }

    fn check_before_fault(&self) {
        let before = self.answers.iter().filter(|one| one.answered < self.broken);
        let (by_store, others): (Vec<&ObservedAnswer>, Vec<&ObservedAnswer>) =
            before.partition(|one| one.by_store());
        assert!(others.len() * 50 <= by_store.len(), "{} of {}", others.len(), by_store.len());
    }

    /// A second after the fault began nobody asks the store any more, and every policy acts.
    fn check_degrades(&self) {
        let from = self.broken + Duration::from_secs(1);
        for policy in FaultPolicy::ALL {
            let during: Vec<&ObservedAnswer> = self
                .answers
                .iter()
                .filter(|one| {
                    one.policy == policy && one.asked > from && one.answered < self.mended
                })
                .collect();
            assert!(!during.is_empty());
            for one in &during {
                // What the store refused before it broke may still be in force.
                let decided = one.decided_by == policy.name() || one.decided_by == "refusal_cache";
                assert!(decided, "{one:?}");
            }
            let admitted = during.iter().filter(|one| one.status == 200).count();
            match policy {
                FaultPolicy::Closed => assert_eq!(admitted, 0),
                FaultPolicy::Open => assert_eq!(admitted, during.len()),
                FaultPolicy::Local => assert!((1..during.len()).contains(&admitted)),
                FaultPolicy::NoStore => unreachable!("it has no rule"),
            }
        }
    }

    pub(crate) fn check_recovers(&self, within: Duration) {
        for policy in FaultPolicy::ALL {
            let of =
                |one: &&ObservedAnswer| one.policy == policy && one.asked > self.mended + within;
            let after: Vec<&ObservedAnswer> = self.answers.iter().filter(of).collect();
            assert!(!after.is_empty());
            // One in fifty may be late on a busy machine.
            let wrong: Vec<_> = after.iter().filter(|one| !one.by_store()).collect();
            assert!(wrong.len() * 50 <= after.len(), "{:?} after {:?}", wrong[0], self.mended);
        }
    }

    /// Checks that a user of the policies `local` and `closed` got no more than the limit, and one burst more
    /// for each switch between store and fallback.
    fn check_bounds(&self, effect: FaultEffect) {
        let switches = if effect == FaultEffect::Degrades { 2 } else { 1 };
        let bound =
            BucketBound { burst: UNITS * (1 + switches), units: UNITS, period_us: 1_000_000 };
        for policy in [FaultPolicy::Local, FaultPolicy::Closed] {
            for user in 0..4 {
                let of = |one: &&ObservedAnswer| one.policy == policy && one.user == user;
                let calls: Vec<ObservedCall> =
                    self.answers.iter().filter(of).map(as_call).collect();
                if let Err(over) = history::never_above(bound, &calls) {
                    panic!("{policy:?} user {user}: {over}");
                }
            }
        }
    }
}

/// Duration of answers: the 99th percentile, and the maximum.
fn took(answers: &[ObservedAnswer]) -> (Duration, Duration) {
    let mut took: Vec<Duration> = answers.iter().map(|one| one.answered - one.asked).collect();
    took.sort_unstable();
    (took[took.len() * 99 / 100], took[took.len() - 1])
}

pub(crate) fn as_call(one: &ObservedAnswer) -> ObservedCall {
    ObservedCall {
        asked_us: one.asked.as_micros() as u64,
        answered_us: one.answered.as_micros() as u64,
        cost: 1,
        admitted: one.status == 200,
    }
}

/// The `decided_by` of answers, in each quarter of a second.
impl fmt::Display for FaultRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken at {:?}, mended at {:?}", self.broken, self.mended)?;
        let end = self.answers.iter().map(|one| one.answered).max().unwrap_or_default();
        for quarter in 0..=(end.as_millis() / 250) {
            let at = |one: &&ObservedAnswer| one.answered.as_millis() / 250 == quarter;
            let mut words: Vec<(&str, usize)> = Vec::new();
            for one in self.answers.iter().filter(at) {
                match words.iter_mut().find(|(word, _)| *word == one.decided_by) {
                    Some((_, count)) => *count += 1,
                    None => words.push((&one.decided_by, 1)),
                }
            }
            words.sort_unstable();
            writeln!(f, "{:>5} ms {words:?}", quarter * 250)?;
        }
        Ok(())
    }
}
