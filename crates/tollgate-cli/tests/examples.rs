//! The rules files to start from do what their first lines say: each is checked, and meets a trace
//! on a virtual clock.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::command::{run, run_with};

/// Microseconds.
const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;

/// Makes a test of each file, and the list of all.
macro_rules! examples {
    ($($file:literal => $case:ident),+ $(,)?) => {
        const FILES: &[&str] = &[$($file),+];

        mod does_what_it_says {
            $(
                #[test]
                fn $case() {
                    super::$case(&super::Example { name: $file, path: super::directory().join($file) });
                }
            )+
        }
    };
}

examples! {
    "api-per-user.yaml" => api_per_user,
    "budget.yaml" => budget,
    "chain.yaml" => chain,
    "four-windows.yaml" => four_windows,
    "llm-tokens.yaml" => llm_tokens,
    "login.yaml" => login,
    "rollout.yaml" => rollout,
    "short-form.yaml" => short_form,
    "sms-per-day.yaml" => sms_per_day,
    "tiers.yaml" => tiers,
    "uploads.yaml" => uploads,
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/rules")
}

#[test]
fn every_example_has_a_case() {
    let entries = fs::read_dir(directory()).expect("the examples");
    let files: BTreeSet<String> = entries
        .map(|entry| entry.expect("a file").file_name().into_string().expect("text"))
        .collect();
    let cases: BTreeSet<String> = FILES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(files, cases, "write what the file is to do into the list above");
}

#[test]
fn every_example_is_valid_without_a_warning() {
    for name in FILES {
        let path = directory().join(name);
        let ran = run(["check", "--deny-warnings", path.to_str().expect("text")]);
        assert_eq!(ran.code, Some(0), "{name}: {}", ran.stderr);
        assert!(!ran.stderr.contains("warning"), "{name}: {}", ran.stderr);
        assert!(ran.stdout.starts_with("ok: "), "{name}: {}", ran.stdout);
    }
}

/// Every folder of `examples/`, and the test that starts what is in it; none, where only a machine of
/// its own could.
const FOLDERS: &[(&str, Option<&str>)] = &[
    ("caddy", Some("tests/proxies/caddy.rs")),
    ("envoy", Some("tests/proxies/envoy.rs")),
    ("gateway", Some("tests/gateway/front.rs")),
    ("nginx", Some("tests/proxies/nginx.rs")),
    ("prometheus", Some("tests/server/alerts.rs")),
    ("routing", Some("tests/proxies/routing.rs")),
    ("rules", Some("tests/examples.rs")),
    ("scenarios", Some("tests/scenarios.rs")),
    ("systemd", None),
    ("traefik", Some("tests/proxies/traefik.rs")),
];

#[test]
fn every_folder_has_a_test_and_its_rules_are_valid_without_a_warning() {
    let examples = directory().join("..");
    let entries = fs::read_dir(&examples).expect("the examples");
    let folders: BTreeSet<String> = entries
        .map(|entry| entry.expect("a folder").file_name().into_string().expect("text"))
        .collect();
    let known: BTreeSet<String> = FOLDERS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(folders, known, "write who starts it into the list above");
    for (name, test) in FOLDERS {
        if let Some(test) = test {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(test);
            let text = fs::read_to_string(&path).expect(test);
            let names = [format!("\"{name}\""), format!("examples/{name}/")];
            let is_named = names.iter().any(|one| text.contains(one));
            assert!(is_named || *name == "rules", "{test}: {name}");
        }
        let rules = examples.join(name).join("rules.yaml");
        if rules.exists() {
            let ran = run(["check", "--deny-warnings", rules.to_str().expect("text")]);
            assert_eq!(ran.code, Some(0), "{name}: {}", ran.stderr);
            assert!(!ran.stderr.contains("warning"), "{name}: {}", ran.stderr);
        }
    }
}

struct Example {
    name: &'static str,
    path: PathBuf,
}

impl Example {
    /// The answers to these requests.
    fn ask(&self, requests: &[ExampleRequest]) -> Vec<ExampleAnswer> {
        let trace: String = requests.iter().map(ExampleRequest::line).collect();
        let path = self.path.to_str().expect("text");
        let args = ["simulate", "--rules", path, "--max-keys", "100000", "--trace", "-"];
        let ran = run_with(args, trace);
        // A trace about one rule does not reach the others.
        let (warning, name) = ("warning: no request reached these rules: ", self.name);
        let is_right = ran.stderr.is_empty() || ran.stderr.starts_with(warning);
        assert!(ran.code == Some(0) && is_right, "{name}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), if ran.stderr.is_empty() { 0 } else { 2 }, "{name}");
        let answers = ran.lines();
        assert_eq!(answers.len(), requests.len(), "{}", self.name);
        answers.into_iter().map(ExampleAnswer).collect()
    }

    /// Number of equal requests that are allowed; they are the first ones.
    fn allowed(&self, request: &ExampleRequest, times: usize) -> usize {
        let answers = self.ask(&vec![request.clone(); times]);
        let allowed = answers.iter().take_while(|answer| answer.allowed()).count();
        assert!(answers[allowed..].iter().all(|answer| !answer.allowed()), "{}", self.name);
        allowed
    }
}

/// One line of a trace.
#[derive(Clone)]
struct ExampleRequest {
    at: u64,
    cost: Option<u64>,
    facts: Value,
}

/// A request such as `POST /api/upload`, with facts such as `user=42 ip=192.0.2.1`.
fn request(at: u64, what: &str, who: &str) -> ExampleRequest {
    let (method, path) = what.split_once(' ').expect("a method and a path");
    let mut facts = json!({ "method": method, "path": path });
    for (name, value) in who.split_whitespace().map(|fact| fact.split_once('=').expect("a fact")) {
        facts[name] = value.into();
    }
    ExampleRequest { at, cost: None, facts }
}

impl ExampleRequest {
    fn cost(self, cost: u64) -> ExampleRequest {
        ExampleRequest { cost: Some(cost), ..self }
    }

    /// The same, taking nothing.
    fn peek(&self) -> ExampleRequest {
        self.clone().cost(0)
    }

    fn line(&self) -> String {
        let mut line = json!({ "at": self.at, "facts": self.facts });
        if let Some(cost) = self.cost {
            line["cost"] = cost.into();
        }
        format!("{line}\n")
    }
}

struct ExampleAnswer(Value);

impl ExampleAnswer {
    fn allowed(&self) -> bool {
        self.0["allowed"] == true
    }

    fn limit(&self) -> &str {
        self.0["limit"].as_str().unwrap_or("none")
    }

    fn rule(&self) -> &str {
        self.0["rule"].as_str().unwrap_or("none")
    }

    fn retry_after_us(&self) -> u64 {
        self.0["retry_after_us"].as_u64().expect("a wait")
    }

    /// Remaining units under each limit, in order.
    fn left(&self) -> Vec<u64> {
        let limits = self.0["limits"].as_array().expect("limits");
        limits.iter().map(|limit| limit["remaining"].as_u64().expect("a number")).collect()
    }
}

/// Per caller and endpoint; all other paths share one count; tiers multiply.
fn short_form(example: &Example) {
    let callers = [
        ("user=a tier=free", 1),
        ("user=a", 1),
        ("user=a tier=unheard-of", 1),
        ("ip=192.0.2.1", 1),
        ("user=a ip=192.0.2.1 tier=pro", 10),
        ("ip=2001:db8::1 tier=pro", 10),
        ("user=a tier=enterprise", 100),
    ];
    for (who, factor) in callers {
        for (what, units) in [
            ("GET /api/search", 30),
            ("POST /api/search?q=x", 30),
            ("POST /api/upload", 10),
            ("GET /", 100),
        ] {
            let wanted = units * factor;
            let got = example.allowed(&request(0, what, who), wanted + 5);
            assert_eq!(got, wanted, "{who}: {what}");
        }
    }
    // Another path buys no quota, another caller has their own, and endpoints count apart.
    let mut mixed: Vec<ExampleRequest> =
        (0..110).map(|i| request(0, &format!("GET /page/{i}"), "user=a")).collect();
    mixed.extend((0..110).map(|i| request(0, &format!("GET /page/{i}"), "ip=192.0.2.1")));
    mixed.extend((0..40).map(|_| request(0, "GET /api/search", "user=a")));
    let allowed: Vec<bool> = example.ask(&mixed).iter().map(ExampleAnswer::allowed).collect();
    let count = |part: &[bool]| part.iter().filter(|allowed| **allowed).count();
    assert_eq!(
        [count(&allowed[..110]), count(&allowed[110..220]), count(&allowed[220..])],
        [100, 100, 30]
    );
}

fn api_per_user(example: &Example) {
    for (who, wanted) in [("user=a", 1_000), ("user=a ip=192.0.2.1", 1_000), ("ip=192.0.2.1", 60)] {
        assert_eq!(example.allowed(&request(0, "GET /api/x", who), 1_005), wanted, "{who}");
    }
    let mut two_users = vec![request(0, "GET /api/x", "user=a"); 1_001];
    two_users.push(request(0, "GET /api/y", "user=a"));
    two_users.push(request(0, "GET /api/x", "user=b"));
    two_users.push(request(2 * HOUR, "GET /api/x", "user=a"));
    let last: Vec<bool> =
        example.ask(&two_users)[1_000..].iter().map(ExampleAnswer::allowed).collect();
    assert_eq!(last, [false, false, true, true]);
}

fn login(example: &Example) {
    let login = |at| request(at, "POST /login", "ip=192.0.2.1");
    assert_eq!(example.allowed(&login(0), 10), 5);
    assert_eq!(example.allowed(&request(0, "GET /login", "ip=192.0.2.1"), 10), 10);
    // Five at the start, then a refusal each second. Nine are no reason for a ban.
    let refused = |count: u64| -> Vec<ExampleRequest> {
        let first = (0..5).map(|_| login(0));
        first.chain((1..=count).map(|second| login(second * SECOND))).collect()
    };
    let banned_until = 10 * SECOND + 15 * MINUTE;
    // After so many refusals: at, allowed, decided by, retry after.
    let table = [
        // The tenth refusal earns the ban, and says how long it is.
        (9, MINUTE - 1, false, "memory", 15 * MINUTE),
        (9, MINUTE, true, "memory", 0),
        (10, MINUTE, false, "block", banned_until - MINUTE),
        (10, banned_until - 1, false, "block", 1),
        (10, banned_until, true, "memory", 0),
    ];
    for (refusals, at, allowed, decided_by, retry_after_us) in table {
        let mut requests = refused(refusals);
        // Another address is not shut out.
        requests.extend([request(at, "POST /login", "ip=192.0.2.2"), login(at)]);
        let answers = example.ask(&requests);
        let [.., other, last] = &answers[..] else { panic!("two answers") };
        assert!(other.allowed());
        let got = (last.allowed(), last.0["decided_by"].as_str().expect("text"));
        assert_eq!(got, (allowed, decided_by), "{refusals} refusals, at {at}");
        assert_eq!(last.retry_after_us(), retry_after_us, "{refusals} refusals, at {at}");
    }
}

/// A day is from midnight to midnight in Berlin, also when it has 23 or 25 hours.
fn sms_per_day(example: &Example) {
    // 2026-01-15, 2026-03-29 and 2026-10-25 begin there at these seconds of the Unix epoch.
    for (midnight_s, hours) in [(1_768_431_600, 24), (1_774_738_800, 23), (1_792_879_200, 25)] {
        let midnight = midnight_s * SECOND;
        let next = midnight + hours * HOUR;
        let mut requests = Vec::new();
        // At, and what the hundred and first is told.
        let table = [(midnight - 1, 1), (midnight, hours * HOUR), (next, 24 * HOUR)];
        for (at, _) in table {
            requests.extend(vec![request(at, "POST /sms", "user=a"); 101]);
        }
        let answers = example.ask(&requests);
        for ((at, wait), answers) in table.into_iter().zip(answers.chunks(101)) {
            assert!(answers[..100].iter().all(ExampleAnswer::allowed), "{hours} hours, at {at}");
            assert!(!answers[100].allowed(), "{hours} hours, at {at}");
            assert_eq!(answers[100].retry_after_us(), wait, "{hours} hours, at {at}");
        }
    }
}

/// Never more than ten in any hour, over all files and both methods.
fn uploads(example: &Example) {
    let upload = |at, i: u64| {
        let method = if i.is_multiple_of(2) { "POST" } else { "PUT" };
        request(at, &format!("{method} /upload/{i}"), "user=a")
    };
    let mut requests: Vec<ExampleRequest> = (0..10).map(|i| upload(i * MINUTE, i)).collect();
    let table = [
        (HOUR - 1, false, 1),
        (HOUR, true, 0),
        (HOUR, false, MINUTE),
        (HOUR + MINUTE - 1, false, 1),
        (HOUR + MINUTE, true, 0),
    ];
    requests.extend(table.iter().map(|(at, _, _)| upload(*at, 0)));
    let answers = example.ask(&requests);
    assert!(answers[..10].iter().all(ExampleAnswer::allowed));
    for ((at, allowed, wait), answer) in table.into_iter().zip(&answers[10..]) {
        assert_eq!((answer.allowed(), answer.retry_after_us()), (allowed, wait), "at {at}");
    }
    assert_eq!(example.allowed(&request(0, "GET /upload/1", "user=a"), 20), 20);
}

fn tiers(example: &Example) {
    let until_s = 4_070_908_800; // 2099-01-01
    // At, who, and how many pass at once.
    let table = [
        (0, "user=a", 10),
        (0, "user=a tier=free", 10),
        (0, "user=a tier=unheard-of", 10),
        (0, "ip=192.0.2.1", 10),
        (0, "user=a tier=pro", 100),
        (0, "user=alice", 100),
        (0, "user=alice tier=free", 10),
        (0, "user=a tier=enterprise", 1_000),
        (0, "user=acme-corp", 1_000),
        (0, "user=a tier=partner", 500),
        (0, "user=vip", 100),
        (until_s * SECOND - 1, "user=vip", 100),
        (until_s * SECOND, "user=vip", 10),
    ];
    for (at, who, wanted) in table {
        let got = example.allowed(&request(at, "GET /api/x", who), 1_005);
        assert_eq!(got, wanted, "{who} at {at}");
    }
    // The proxy on this machine is believed, others are not.
    for (ip, wanted) in [("127.0.0.1", 100), ("192.0.2.1", 10)] {
        let mut request = request(0, "GET /api/x", &format!("ip={ip}"));
        request.facts["headers"] = json!({ "X-User-Id": "a", "X-Tier": "pro" });
        assert_eq!(example.allowed(&request, 1_005), wanted, "{ip}");
    }
    // The exception is a second long, not a minute; the partner has an hour's limit too.
    let mut requests = vec![request(0, "GET /api/x", "user=vip"); 100];
    requests.push(request(2 * SECOND, "GET /api/x", "user=vip"));
    assert!(example.ask(&requests).iter().all(ExampleAnswer::allowed));
    let partner = (0..11)
        .flat_map(|i| vec![request(i * 2 * MINUTE, "GET /api/x", "user=p tier=partner"); 500]);
    let answers = example.ask(&partner.collect::<Vec<_>>());
    assert!(answers[..5_000].iter().all(ExampleAnswer::allowed));
    assert!(answers[5_000..].iter().all(|one| !one.allowed() && one.limit() == "5000/hour"));
}

/// Every mix of costs, at once and over time, against a plain sum of the last minute.
fn budget(example: &Example) {
    const LENGTH: u32 = 7;
    let kinds = [("GET /api/search", 1), ("POST /api/upload", 10), ("POST /api/heavy-compute", 50)];
    for (gap, spent) in [(0, 0), (0, 45), (12 * SECOND, 30)] {
        let (mut requests, mut wanted) = (Vec::new(), Vec::new());
        for mix in 0..3_usize.pow(LENGTH) {
            let who = format!("user={mix}");
            let mut paid = vec![(0, spent)];
            requests.push(request(0, "GET /api/search", &who).cost(spent));
            wanted.push(true);
            for place in 0..LENGTH {
                let (what, cost) = kinds[mix / 3_usize.pow(place) % 3];
                let at = u64::from(place) * gap;
                let recent = paid.iter().filter(|(paid_at, _)| paid_at + MINUTE > at);
                let fits = recent.map(|(_, cost)| cost).sum::<u64>() + cost <= 100;
                paid.extend(fits.then_some((at, cost)));
                requests.push(request(at, what, &who));
                wanted.push(fits);
            }
        }
        let answers = example.ask(&requests);
        for (i, (answer, wanted)) in answers.iter().zip(&wanted).enumerate() {
            let ExampleRequest { at, facts, .. } = &requests[i];
            assert_eq!(answer.allowed(), *wanted, "{facts} at {at}, {spent} spent before");
        }
        // Each is refused at times, or the comparison says little.
        for (what, _) in kinds {
            let path = what.split_once(' ').expect("a path").1;
            let of_kind = |i: &usize| requests[*i].facts["path"] == path && !wanted[*i];
            assert!((0..requests.len()).any(|i| of_kind(&i)), "{what} is never refused");
        }
    }
}

/// The coarse limit is written first, and is charged only for what all four let pass.
fn four_windows(example: &Example) {
    let ask = |at| request(at, "GET /api/x", "user=a");
    // Ten at a time, each time so late that the finest limit with room is as good as new.
    let mut requests = Vec::new();
    for hours in 0..10 {
        for minutes in 0..10 {
            for seconds in 0..10 {
                let at = hours * 2 * HOUR + minutes * 2 * MINUTE + seconds * 2 * SECOND;
                requests.extend(vec![ask(at); 10]);
            }
        }
    }
    assert!(example.ask(&requests).iter().all(ExampleAnswer::allowed));
    // After so many of them: the next is refused by this limit, and this is left.
    let table = [
        (10, 0, "10/second", [9_990, 990, 90, 0]),
        (100, 20 * SECOND, "100/minute", [9_900, 900, 0, 10]),
        (1_000, 20 * MINUTE, "1000/hour", [9_000, 0, 100, 10]),
        (10_000, 20 * HOUR, "10000/day", [0, 1_000, 100, 10]),
    ];
    for (count, at, limit, left) in table {
        let mut requests = requests[..count].to_vec();
        requests.extend([ask(at), ask(at), ask(at).peek()]);
        let answers = example.ask(&requests);
        let [.., first, second, peek] = &answers[..] else { panic!("three answers") };
        for refused in [first, second] {
            assert_eq!((refused.allowed(), refused.limit()), (false, limit));
        }
        assert_eq!(peek.left(), left, "after {count}");
    }
}

/// A refusal by one charges none of the others.
fn chain(example: &Example) {
    let ask = |user: u32| request(0, "GET /api/x", &format!("ip=192.0.2.1 user={user}"));
    let mut requests = vec![ask(0); 25];
    requests.push(ask(0).peek());
    for user in 1..5 {
        requests.extend(vec![ask(user); 20]);
    }
    requests.extend(vec![ask(5); 3]);
    requests.push(ask(5).peek());
    let answers = example.ask(&requests);
    assert!(answers[..20].iter().all(ExampleAnswer::allowed));
    assert!(answers[20..25].iter().all(|one| !one.allowed() && one.rule() == "per-user"));
    // Per address, per user, everyone.
    assert_eq!(answers[25].left(), [80, 0, 980]);
    assert!(answers[26..106].iter().all(ExampleAnswer::allowed));
    assert!(answers[106..109].iter().all(|one| !one.allowed() && one.rule() == "per-address"));
    assert_eq!(answers[109].left(), [0, 20, 900]);
}

fn llm_tokens(example: &Example) {
    let chat = request(0, "POST /v1/chat", "user=a");
    assert_eq!(example.allowed(&chat, 60), 50, "2000 are reserved for each");
    assert_eq!(example.allowed(&chat.clone().cost(300), 400), 333, "the cost is known");
    let answers = example.ask(&[chat.clone().cost(98_001), chat.clone(), chat.cost(1_999)]);
    assert_eq!(answers.iter().map(ExampleAnswer::allowed).collect::<Vec<_>>(), [true, false, true]);
}

/// Shadow and soft rules refuse nothing, and the rules after them count all the same.
fn rollout(example: &Example) {
    // What, how many pass of 120, the rule that refuses the next, the limit that only watches, how
    // it is marked, and how many it would let pass.
    let table = [
        ("GET /api/x", 100, "anything-else", "new-limit", "shadow", 50),
        ("GET /reports/x", 100, "anything-else", "gentle", "soft", 10),
    ];
    for (what, passed, refused_by, watching, mark, would_pass) in table {
        let answers = example.ask(&vec![request(0, what, "user=a"); 120]);
        assert!(answers[..passed].iter().all(ExampleAnswer::allowed), "{what}");
        assert!(answers[passed..].iter().all(|one| !one.allowed() && one.rule() == refused_by));
        for (i, answer) in answers[..passed].iter().enumerate() {
            let limit = &answer.0["limits"][0];
            assert_eq!((&limit["rule"], &limit[mark]), (&json!(watching), &json!(true)));
            assert_eq!(limit["allowed"], i < would_pass, "{what}, request {i}");
        }
    }
    for (who, passed) in [("user=health-checker", 120), ("ip=10.1.2.3", 120), ("ip=10.2.0.1", 100)]
    {
        assert_eq!(example.allowed(&request(0, "GET /", who), 120), passed, "{who}");
    }
}
