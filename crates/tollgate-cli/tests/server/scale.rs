//! A million keys and ten thousand rules: what the admin listener shows stays bounded and right.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};

use serde_json::{Value, json};
use tempfile::tempdir;
use testkit::random::SplitMix64;
use testkit::wait::now;

use super::event_reader::EventReader;
use crate::harness::{DEADLINE, TollgateProcess, file, text};

const RULES: u64 = 10_000;

/// Callers that come once each, spread over all rules.
const ONCE: u64 = 1_000_000;

/// Requests of callers whose frequencies follow Zipf's law, under one rule.
const ZIPF_REQUESTS: u64 = 300_000;
const ZIPF_CALLERS: usize = 100_000;
const ZIPF_EXPONENT: f64 = 1.1;

/// Longest event, in bytes: 50 rules with names of at most 64 characters.
const EVENT_BYTES_MAX: usize = 16 << 10;

/// Lines of a reply: an array of five integers and the name of the rule, which has a line for its length.
const REPLY_LINES: usize = 8;

/// Connections that send the requests.
const SENDERS: u64 = 2;

/// Memory of the server after the traffic, in KiB. The table of a million keys and the rules take about 150 MiB from the
/// start on.
const MEMORY_KIB_MAX: u64 = 256 << 10;

/// Memory that the traffic may add, in KiB: history of at most 10 MB, the lists of heavy callers, and buffers.
const GROWTH_KIB_MAX: u64 = 32 << 10;

fn get(server: &TollgateProcess, path: &str) -> Value {
    let answer = server.admin_get(path, &[]);
    assert_eq!(answer.status, 200, "{path} {answer:?}");
    answer.json()
}

fn memory_kib(server: &TollgateProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id()));
    let status = status.expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a known line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Sends commands over RESP without waiting for the replies in between.
fn send(address: SocketAddr, commands: impl Iterator<Item = String>) {
    let mut stream = TcpStream::connect(address).expect("the listener is open");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let mut replies = stream.try_clone().expect("a socket");
    let (count, counted) = std::sync::mpsc::channel::<usize>();
    let reader = thread::spawn(move || {
        let (mut lines, mut buffer) = (0, vec![0; 64 << 10]);
        let mut wanted = None;
        while wanted.is_none_or(|wanted| lines < wanted) {
            let bytes = replies.read(&mut buffer).expect("replies");
            assert_ne!(bytes, 0, "the server closes the connection");
            assert!(
                lines > 0 || buffer[0] == b'*',
                "{}",
                String::from_utf8_lossy(&buffer[..bytes])
            );
            lines += buffer[..bytes].iter().filter(|byte| **byte == b'\n').count();
            wanted = wanted.or_else(|| counted.try_recv().ok());
        }
    });
    let (mut batch, mut sent) = (String::new(), 0);
    let mut commands = commands.peekable();
    while let Some(command) = commands.next() {
        batch += &command;
        sent += 1;
        if batch.len() > 32 << 10 || commands.peek().is_none() {
            // Before the last replies can come.
            if commands.peek().is_none() {
                count.send(REPLY_LINES * sent).expect("the reader waits");
            }
            stream.write_all(batch.as_bytes()).expect("the server reads");
            batch.clear();
        }
    }
    reader.join().expect("all replies");
}

fn check(rule: u64, user: &str) -> String {
    format!("TG.CHECK path /r{rule} user {user}\r\n")
}

/// Draws callers by Zipf's law: number `n` with a frequency in proportion to `1 / n^s`.
struct ZipfCallers {
    /// Sums of the frequencies up to each caller.
    sums: Vec<f64>,
    random: SplitMix64,
}

impl ZipfCallers {
    fn new(seed: u64) -> ZipfCallers {
        let mut sum = 0.0;
        let frequency = |number: usize| (number as f64).powf(-ZIPF_EXPONENT);
        let sums = (1..=ZIPF_CALLERS).map(|number| {
            sum += frequency(number);
            sum
        });
        ZipfCallers { sums: sums.collect(), random: SplitMix64::seeded(seed) }
    }

    fn draw(&mut self) -> usize {
        let total = self.sums[ZIPF_CALLERS - 1];
        let part = self.random.below(1 << 52) as f64 / (1_u64 << 52) as f64 * total;
        self.sums.partition_point(|sum| *sum <= part) + 1
    }
}

#[test]
fn a_million_keys_and_ten_thousand_rules_are_shown_within_bounds() {
    let directory = tempdir().unwrap();
    let rules: String = (0..RULES)
        .map(|rule| format!("  - {{ name: r{rule}, match: {{ path: /r{rule} }}, key: '{{user}}', limits: [1000000/hour] }}\n"))
        .collect();
    let rules = file(directory.path(), "rules.yaml", format!("rules:\n{rules}"));
    let server = TollgateProcess::start(&["--rules", text(&rules), "--max-keys", "1000000"]);
    let mut events = EventReader::open(server.admin(), "");
    let unread: Vec<_> = (0..8).map(|_| EventReader::open(server.admin(), "")).collect();
    let before = memory_kib(&server);

    // The frequent callers are hidden in the flood of those that come once.
    let mut exact: HashMap<String, u64> = HashMap::new();
    let senders = (0..SENDERS).map(|sender| {
        let mut zipf = ZipfCallers::new(sender + 1);
        let frequent: Vec<usize> = (0..ZIPF_REQUESTS / SENDERS).map(|_| zipf.draw()).collect();
        for caller in &frequent {
            *exact.entry(format!("user=z{caller}")).or_default() += 1;
        }
        let address = server.resp();
        thread::spawn(move || {
            let each = ONCE / SENDERS;
            let mut frequent = frequent.into_iter();
            let commands = (0..each).flat_map(move |turn| {
                let once = check(turn % RULES, &format!("o{}", sender * each + turn));
                let zipf = turn * ZIPF_REQUESTS / ONCE < (turn + 1) * ZIPF_REQUESTS / ONCE;
                let zipf = zipf.then(|| frequent.next()).flatten();
                [Some(once), zipf.map(|caller| check(0, &format!("z{caller}")))]
            });
            send(address, commands.flatten());
        })
    });
    let senders: Vec<_> = senders.collect();

    // Ticks while it runs, and until all is told.
    let (mut allowed, mut longest, mut most_rules) = (0, 0, 0);
    let deadline = now() + 4 * DEADLINE;
    while allowed < ONCE + ZIPF_REQUESTS {
        assert!(now() < deadline, "{allowed} are told of");
        assert!(!senders.iter().any(JoinHandle::is_finished) || allowed > 0, "a sender failed");
        let tick = events.next().expect("the stream goes on");
        assert_eq!(tick.name, "tick", "{tick:?}");
        longest = longest.max(tick.bytes);
        let count = |value: &Value| value["allowed"].as_u64().expect("a count");
        let named = tick.data["rules"].as_array().expect("rules");
        let by_rule = named.iter().map(count).sum::<u64>() + count(&tick.data["other_rules"]);
        // Requests and rules are read one after the other while they change.
        most_rules = most_rules.max(named.len());
        assert!(by_rule > 0 || count(&tick.data) == 0, "{tick:?}");
        allowed += count(&tick.data);
    }
    assert_eq!(allowed, ONCE + ZIPF_REQUESTS);
    senders.into_iter().for_each(|sender| sender.join().expect("all is sent"));
    assert_eq!(most_rules, 50);
    assert!(longest <= EVENT_BYTES_MAX, "{longest} bytes");
    let after = memory_kib(&server);
    assert!(after <= MEMORY_KIB_MAX.min(before + GROWTH_KIB_MAX), "{before} KiB, then {after}");
    println!("memory {before} KiB, then {after} KiB; longest event {longest} bytes");

    heavy_hitters_are_right(&server, &exact);
    pages_show_every_rule_once(&server);
    let history = server.admin_get("/api/history?range=5m", &[]);
    assert!(history.body.len() < 64 << 10, "{} bytes", history.body.len());
    drop(unread);
}

/// The list against exact counts: as many requests as it promises at least, and the most frequent callers are in it.
fn heavy_hitters_are_right(server: &TollgateProcess, exact: &HashMap<String, u64>) {
    let top = get(server, "/api/top?by=requests&n=20");
    let listed = top["top"].as_array().expect("callers");
    assert_eq!(listed.len(), 20);
    for entry in listed {
        let (key, count) = (entry["key"].as_str().unwrap(), entry["count"].as_u64().unwrap());
        let error = entry["error"].as_u64().unwrap();
        let truth = exact.get(key).copied().unwrap_or(1);
        assert!(truth >= count - error, "{entry}: {truth}");
        // Higher only by chance: by more than 30 times the error once in e^30 cases.
        assert!(truth <= count + 30 * error, "{entry}: {truth}");
        assert_eq!(entry["rule"], "r0", "{entry}");
    }
    let mut heaviest: Vec<_> = exact.iter().collect();
    heaviest.sort_by(|a, b| b.1.cmp(a.1));
    for (key, count) in &heaviest[..10] {
        assert!(listed.iter().any(|entry| entry["key"] == **key), "{key} with {count} is missing");
    }
    println!("heaviest: {:?}; listed: {}", &heaviest[..3], json!(&listed[..3]));
}

/// Pages of the list of rules: all of them, each once, none too long.
fn pages_show_every_rule_once(server: &TollgateProcess) {
    let mut names = Vec::new();
    for from in (0..RULES).step_by(1_000) {
        let page = get(server, &format!("/api/rules?from={from}&n=1000"));
        assert_eq!((&page["total"], &page["matching"]), (&json!(RULES), &json!(RULES)));
        let rules = page["rules"].as_array().expect("rules").iter();
        names.extend(rules.map(|rule| rule["name"].as_str().unwrap().to_string()));
    }
    assert_eq!(names, (0..RULES).map(|rule| format!("r{rule}")).collect::<Vec<_>>());
    let page = server.admin_get("/api/rules?sort=requests", &[]);
    assert!(page.body.len() < 64 << 10, "{} bytes", page.body.len());
    let page = page.json();
    let rules = page["rules"].as_array().expect("rules");
    assert_eq!((rules.len(), &rules[0]["name"]), (100, &json!("r0")));
    assert_eq!(rules[0]["tally"]["allowed"], json!(ONCE / RULES + ZIPF_REQUESTS));
    assert_eq!(get(server, "/api/rules?q=r123&n=5")["matching"], 11);
}
