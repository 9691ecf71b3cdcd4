//! Rules files, good, broken and hostile: each is answered, at places that exist, in output that is
//! bounded and harmless, twice the same; and what compiles decides any request without contradiction.

use std::net::IpAddr;
use std::time::Duration;

use tollgate::decision::MAX_LIMITS;
use tollgate::headers::Dialect;
use tollgate::time::MAX_EXACT;
use tollgate::{ManualClock, MemoryStore, Micros, Refusal};
use tollgate_rules::diagnostic::MAX_SHOWN;
use tollgate_rules::{
    Answer, Ask, Compilation, Diagnostic, Diagnostics, Enforcement, Facts, Gatekeeper,
    ReserveError, RuleSet, Source as File, compile,
};

use super::descriptors::ask_both;
use super::source::FuzzSource;

/// The bytes as a file, or as changes to good ones.
pub fn rules_file(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let form = source.below(8);
    // Files of envoyproxy/ratelimit, alone or beside ours; both are then asked as Envoy does.
    let by_descriptors = matches!(form, 4 | 5);
    let texts = match form {
        0 => vec![source.rest().to_vec()],
        // Rarely: each costs as much as a hundred others.
        1 if source.one_in(16) => vec![bomb(&mut source)],
        2 => vec![changed(&GOOD, &mut source), changed(&GOOD, &mut source)],
        4 => vec![changed(&DESCRIPTORS, &mut source)],
        5 => vec![changed(&DESCRIPTORS, &mut source), changed(&GOOD, &mut source)],
        _ => vec![changed(&GOOD, &mut source)],
    };
    let files: Result<Vec<File>, Box<Diagnostic>> =
        texts.iter().zip(NAMES).map(|(text, name)| File::from_bytes(name, text)).collect();
    let files = match files {
        Ok(files) => files,
        Err(diagnostic) => {
            let index = usize::from(diagnostic.file == NAMES[1]);
            let text = String::from_utf8_lossy(&texts[index]);
            let file = File::from_text(NAMES[index], &text);
            return check_diagnostics(&(*diagnostic).into(), &[file]);
        }
    };
    let (one, two) = (compile(&files), compile(&files));
    check_diagnostics(&one.diagnostics, &files);
    assert_eq!(one.diagnostics.to_string(), two.diagnostics.to_string(), "said twice, differently");
    assert_eq!(one.rules.is_some(), !one.diagnostics.has_errors());
    if let (Compilation { rules: Some(one), .. }, Compilation { rules: Some(two), .. }) = (one, two)
    {
        let story = RequestSequence::new(one, two, &files);
        match by_descriptors {
            true => story.run_descriptors(&mut source),
            false => story.run(&mut source),
        }
    }
}

const NAMES: [&str; 2] = ["one.yaml", "two.yaml"];

/// The files to which changes are applied.
const GOOD: [&str; 19] = [
    CORNERS,
    CORNERS,
    include_str!("../../../crates/tollgate-rules/tests/good/full.yaml"),
    include_str!("../../../crates/tollgate-rules/tests/good/aliases.yaml"),
    include_str!("../../../crates/tollgate-rules/tests/good/conditions.yaml"),
    include_str!("../../../crates/tollgate-rules/tests/good/limits.yaml"),
    include_str!("../../../crates/tollgate-rules/tests/good/short.yaml"),
    include_str!("../../../crates/tollgate-rules/tests/good/short_with_settings.yaml"),
    include_str!("../../../examples/rules/api-per-user.yaml"),
    include_str!("../../../examples/rules/budget.yaml"),
    include_str!("../../../examples/rules/chain.yaml"),
    include_str!("../../../examples/rules/four-windows.yaml"),
    include_str!("../../../examples/rules/llm-tokens.yaml"),
    include_str!("../../../examples/rules/login.yaml"),
    include_str!("../../../examples/rules/rollout.yaml"),
    include_str!("../../../examples/rules/short-form.yaml"),
    include_str!("../../../examples/rules/sms-per-day.yaml"),
    include_str!("../../../examples/rules/tiers.yaml"),
    include_str!("../../../examples/rules/uploads.yaml"),
];

/// The files to which changes are applied if requests come as descriptors.
const DESCRIPTORS: [&str; 4] = [
    include_str!("../../../crates/tollgate-rules/tests/good/import.yaml"),
    include_str!("../../../crates/tollgate-rules/tests/warned/import.yaml"),
    include_str!("../../../crates/tollgate-rules/tests/good/entries.yaml"),
    QUOTAS,
];

/// A file with quotas in all combinations, which the others do not have.
const QUOTAS: &str = r#"
domain: edge
count_denied: false
descriptors:
  - { key: a, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: b, quota_mode: true, rate_limit: { unit: hour, requests_per_unit: 2 } }
  - { key: a, value: b, quota_mode: true, rate_limit: { unit: day, requests_per_unit: 0 } }
  - { key: b, value: "*a", quota_mode: true, shadow_mode: true, rate_limit: { unit: second, requests_per_unit: 1 } }
  - { key: edge, rate_limit: { unit: hour, requests_per_unit: 3 } }
"#;

/// A file with a queue beside a limit in shadow mode and with nearly equal names, which the others do not have.
const CORNERS: &str = r#"
rules:
  - name: one-a
    match: { path: "/api/{*rest}" }
    key: "{ip}"
    limits: [{ rate: 2/second, burst: 20, algorithm: leaky_bucket, queue: true }]
  - { name: one-b, match: { path: "/api/{*rest}" }, key: "{ip}", limits: [1/hour], mode: shadow }
  - { name: one-c, key: "{user}", limits: [2/day], soft: true, count_denied: true }
  - { name: one-d, key: global, limits: [9/minute], ban: { after: 2, within: 1m, for: 1h } }
  - { name: one-e, key: "{method}:{ip}", limits: [{ rate: 3/10s, algorithm: fixed_window }], concurrency: 1 }
overrides:
  - { rule: one-a, key: 192.0.2.1, limits: [5/second] }
"#;

/// Values that must be refused or handled.
const NASTY: [&str; 72] = [
    "",
    "~",
    "null",
    "true",
    "-1",
    "0",
    "1",
    "1e9",
    "0.1",
    "2.5",
    "18446744073709551616",
    "9007199254740991",
    "100%",
    "0%",
    "101%",
    "1/0s",
    "99999999999/second",
    "1/month",
    "0/second",
    "9007199254740991/day burst 9007199254740991",
    "1/1us",
    "5 per 90s",
    "1000000/year",
    "0s",
    "1w",
    "\"\\e[31m\"",
    "\"\\0\"",
    "\"\\u202e\"",
    "\"a\\nb\"",
    "'{'",
    "\"{user|ip}\"",
    "\"{user}:{path}\"",
    "global",
    "\"{header.x}\"",
    "{user}",
    "[",
    "]",
    "{",
    "}",
    "*caller",
    "&caller a",
    "&a [*a]",
    "<<",
    "!!int 5",
    "!x y",
    "|",
    ">-",
    "---",
    "...",
    "%YAML 1.2",
    "\u{feff}",
    "\u{202e}",
    "e\u{301}",
    "你",
    "2027-13-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
    "Europe/Nowhere",
    "Pacific/Apia",
    "::1",
    "10.0.0.0/33",
    "0.0.0.0/0",
    "\"(?x)a#\"",
    "\"((((\"",
    "\"a{999}{999}\"",
    "\"[z-a]\"",
    "\r",
    "\t",
    "/%2e%2e",
    "\"/{*x}/y\"",
    "\"/{*rest}\"",
    "# no",
    "? ",
];

/// Words from the good files that mean something in another place.
const WORDS: [&str; 37] = [
    "one-a",
    "one-f",
    "0ne-a",
    "name",
    "match",
    "path",
    "glob",
    "regex",
    "method",
    "key",
    "limits",
    "rate",
    "algorithm",
    "burst",
    "queue",
    "align",
    "calendar",
    "time_zone",
    "cost",
    "reserve",
    "default",
    "ban",
    "concurrency",
    "mode",
    "shadow",
    "enforce",
    "off",
    "soft",
    "count_denied",
    "on_change",
    "scale",
    "fallback",
    "tiered",
    "overrides",
    "token_bucket",
    "sliding_window_log",
    "leaky_bucket",
];

/// A good file with a few changes.
fn changed(good: &[&str], source: &mut FuzzSource<'_>) -> Vec<u8> {
    let mut text = good[source.below(good.len())].as_bytes().to_vec();
    for _ in 0..source.below(6) {
        change(&mut text, source);
    }
    text
}

fn change(text: &mut Vec<u8>, source: &mut FuzzSource<'_>) {
    match source.below(12) {
        0..=3 => {
            let (start, end) = scalar(text, source);
            let nasty = source.pick(&NASTY);
            text.splice(start..end, nasty.bytes());
        }
        4 | 5 => {
            let (start, end) = scalar(text, source);
            let word = source.pick(&WORDS);
            text.splice(start..end, word.bytes());
        }
        6 => {
            let (start, end) = scalar(text, source);
            let (from, to) = scalar(text, source);
            let other = text[from..to].to_vec();
            text.splice(start..end, other);
        }
        7 | 8 => lines(text, source),
        9 => {
            let at = place(text, source);
            let nasty = source.pick(&NASTY);
            text.splice(at..at, nasty.bytes());
        }
        10 => {
            let (start, end) = (place(text, source), place(text, source));
            let bytes: Vec<u8> = (0..source.below(8)).map(|_| source.byte()).collect();
            text.splice(start..start.max(end.min(start + 8)), bytes);
        }
        _ => {
            let (start, end) = scalar(text, source);
            let deep = 1 + source.below(40);
            let nested = format!("{}x{}", "[".repeat(deep), "]".repeat(deep));
            text.splice(start..end, nested.bytes());
        }
    }
}

fn place(text: &[u8], source: &mut FuzzSource<'_>) -> usize {
    (usize::from(source.byte()) << 8 | usize::from(source.byte())) % (text.len() + 1)
}

/// The bounds of a word of the text.
fn scalar(text: &[u8], source: &mut FuzzSource<'_>) -> (usize, usize) {
    let ends = |byte: &u8| b" \n,[]{}:#\"'".contains(byte);
    let at = place(text, source);
    let start = at + text[at..].iter().position(|byte| !ends(byte)).unwrap_or(0);
    let start = text[..start].iter().rposition(ends).map_or(0, |end| end + 1);
    let length = text[start..].iter().position(ends).unwrap_or(text.len() - start);
    (start, start + length)
}

/// Removes, repeats, swaps or indents lines.
fn lines(text: &mut Vec<u8>, source: &mut FuzzSource<'_>) {
    let mut lines: Vec<Vec<u8>> = text.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    let (one, two) = (source.below(lines.len()), source.below(lines.len()));
    match source.below(6) {
        0 => drop(lines.remove(one)),
        1 => lines.insert(two, lines[one].clone()),
        2 => lines.swap(one, two),
        3 => drop(lines[one].splice(..0, *b"  ")),
        4 => lines[one].push(b'\r'),
        _ => lines.truncate(one + 1),
    }
    *text = lines.join(&b'\n');
}

/// Small files that would be large: anchors of anchors, and nesting.
fn bomb(source: &mut FuzzSource<'_>) -> Vec<u8> {
    let (levels, width) = (1 + source.below(7), 1 + source.below(20));
    let mut text = String::from("a0: &a0 [x, y]\n");
    for level in 1..=levels {
        let inner = vec![format!("*a{}", level - 1); width].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
    }
    let deep = source.byte();
    for depth in 0..usize::from(deep % 64) {
        text.push_str(&format!(
            "{}{}",
            " ".repeat(depth),
            if deep > 127 { "- \n" } else { "k:\n" }
        ));
    }
    text.push_str("rules: [{ name: a, key: global, limits: *a0 }]\n");
    text.into_bytes()
}

fn check_diagnostics(diagnostics: &Diagnostics, files: &[File]) {
    for diagnostic in diagnostics.iter().take(MAX_SHOWN) {
        let file = files.iter().find(|file| file.name() == diagnostic.file);
        check_diagnostic(diagnostic, file.expect("a diagnostic is about one of the files"));
    }
    let shown = diagnostics.to_json();
    let all = diagnostics.len().min(MAX_SHOWN);
    assert_eq!(shown.as_array().map(Vec::len), Some(all));
    assert_eq!(diagnostics.to_string().is_empty(), diagnostics.is_empty());
}

/// Checks a diagnostic: its place exists, its text is safe for a terminal, and its form for programs agrees.
fn check_diagnostic(diagnostic: &Diagnostic, file: &File) {
    let shown = diagnostic.to_string();
    assert!(!diagnostic.message.is_empty());
    let harmless =
        |c: char| c == '\n' || !(c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c));
    assert!(shown.chars().all(harmless), "{shown:?}");
    let words = diagnostic.message.len() + diagnostic.hint.as_ref().map_or(0, String::len);
    assert!(shown.len() < 10 * words + 8_000, "{} bytes: {shown}", shown.len());
    let lines: Vec<&str> = shown.lines().collect();
    assert!((2..=12).contains(&lines.len()), "{shown}");
    let value = diagnostic.to_json();
    assert_eq!(value["message"], diagnostic.message);
    let Some(span) = diagnostic.span() else { return };
    let text = file.text();
    assert!(span.start <= span.end && span.end <= text.len(), "{span:?} {shown}");
    assert!(
        text.is_char_boundary(span.start) && text.is_char_boundary(span.end),
        "{span:?} {shown}"
    );
    // One line break for another, and a mark for the end of what stands before.
    let before = format!("{}\0{}", &text[..span.start], &text[span.start..]);
    let before = before.replace("\r\n", " \n").replace('\r', "\n");
    let before = before.split('\0').next().expect("there is a mark");
    let line = before.rsplit('\n').next().unwrap_or_default();
    assert_eq!(span.line, before.matches('\n').count() + 1, "{span:?} {shown}");
    // A byte order mark inside of a file may be a character or not.
    let columns = line.trim_start_matches('\u{feff}').chars().count() + 1;
    assert!((columns..=line.chars().count() + 1).contains(&span.column), "{span:?} {shown}");
    let end = [&value["end"]["line"], &value["end"]["column"]].map(|number| number.as_u64());
    assert!(end >= [Some(span.line as u64), Some(span.column as u64)], "{value}");
    let carets = lines.get(4).and_then(|line| line.split_once(" | ")).map(|(_, carets)| carets);
    let carets = carets.map(str::trim_start).unwrap_or_default();
    assert!(!carets.is_empty() && carets.bytes().all(|byte| byte == b'^'), "{shown}");
}

/// Requests under rules that compiled twice.
struct RequestSequence<'a> {
    gatekeepers: [Gatekeeper<MemoryStore, ManualClock>; 2],
    paths: Vec<&'a str>,
    /// All of the files, for entries.
    words: Vec<&'a str>,
    now: Micros,
}

const START: u64 = 1_790_000_000_000_000;

/// One request.
#[derive(Debug)]
struct FuzzRequest<'a> {
    method: &'static str,
    path: &'a str,
    ip: Option<IpAddr>,
    user: Option<&'static str>,
    tier: Option<&'static str>,
    headers: Vec<(&'static str, &'static str)>,
    cost: Option<u64>,
    cannot_wait: bool,
}

impl FuzzRequest<'_> {
    fn ask(&self) -> Ask<'_> {
        let facts = Facts {
            method: Some(self.method),
            path: Some(self.path),
            ip: self.ip,
            user: self.user,
            tier: self.tier,
            api_key: self.user,
            headers: Some(&self.headers),
            ..Facts::default()
        };
        Ask { facts, cost: self.cost, cannot_wait: self.cannot_wait, ..Ask::default() }
    }
}

impl<'a> RequestSequence<'a> {
    fn new(one: RuleSet, two: RuleSet, files: &'a [File]) -> RequestSequence<'a> {
        assert!(one.rules().len() <= RuleSet::RULES_MAX);
        let ends = |c: char| c.is_whitespace() || "\"'[],{}".contains(c);
        let words = files.iter().flat_map(|file| file.text().split(ends));
        let paths = ["/", "/api/x", "/files/a.json"].into_iter();
        let paths = paths.chain(words.filter(|word| word.starts_with('/')).take(40)).collect();
        let gatekeeper = |rules| {
            let clock = ManualClock::new(Micros::new(START));
            Gatekeeper::new(rules, MemoryStore::new(500), clock)
        };
        let words = files.iter().flat_map(|file| file.text().split(ends)).take(250);
        let words = words.chain([""]).map(|word| word.trim_end_matches(':')).collect();
        let gatekeepers = [gatekeeper(one), gatekeeper(two)];
        RequestSequence { gatekeepers, paths, words, now: Micros::new(START) }
    }

    fn request(&self, source: &mut FuzzSource<'_>) -> FuzzRequest<'a> {
        const IPS: [&str; 4] = ["192.0.2.1", "::ffff:10.0.0.1", "2001:db8::1", "127.0.0.1"];
        FuzzRequest {
            method: source.pick(&["GET", "POST"]),
            path: self.paths[source.below(self.paths.len())],
            ip: Some(source.pick(&IPS))
                .filter(|_| !source.one_in(8))
                .and_then(|ip| ip.parse().ok()),
            user: source.pick(&[Some("42"), Some("alice"), None, Some("")]),
            tier: source.pick(&[None, Some("free"), Some("pro"), Some("enterprise"), Some("?")]),
            headers: vec![("X-Tenant", source.pick(&["t", "u", ""])), ("upgrade", "websocket")],
            cost: source.one_in(4).then(|| source.number()),
            cannot_wait: source.one_in(4),
        }
    }

    fn run_descriptors(mut self, source: &mut FuzzSource<'_>) {
        for _ in 0..40 {
            if source.is_empty() {
                break;
            }
            let step = if source.one_in(4) { source.number() } else { 0 };
            self.now = Micros::new(self.now.as_u64().saturating_add(step).min(MAX_EXACT));
            ask_both(&self.gatekeepers, &self.words, self.now, source);
        }
    }

    fn run(mut self, source: &mut FuzzSource<'_>) {
        let mut open = Vec::new();
        for _ in 0..40 {
            if source.is_empty() {
                break;
            }
            let step = match source.below(16) {
                0..=7 => 0,
                8..=11 => u64::from(source.byte()) * 10_000,
                12 | 13 => u64::from(source.byte()) * 3_600_000_000,
                14 => source.number(),
                _ => 0,
            };
            // Now and then any instant at all, also before the last.
            self.now = match source.one_in(32) {
                true => source.instant(),
                false => Micros::new(self.now.as_u64().saturating_add(step)),
            };
            let request = self.request(source);
            match source.below(8) {
                0 => open.extend(self.reserve(&request, source.number())),
                1 if !open.is_empty() => {
                    let (ids, holds) = open.swap_remove(source.below(open.len()));
                    let cost = source.number();
                    let settled = [0, 1].map(|which| match source.one_in(64) {
                        true => self.gatekeepers[which].cancel_at(ids[which], self.now),
                        false => self.gatekeepers[which].commit_at(ids[which], cost, self.now),
                    });
                    assert_eq!(settled[0], settled[1]);
                    let again = self.gatekeepers[0].commit_at(ids[0], cost, self.now);
                    assert!(again.is_err() || !holds, "a reservation was settled twice");
                }
                2 => drop(self.both(|gatekeeper, now| gatekeeper.refund_at(&request.ask(), now))),
                _ => self.decide(&request),
            }
        }
    }

    /// Asks both gatekeepers and checks that their answers are equal.
    fn both(
        &self,
        ask: impl Fn(&Gatekeeper<MemoryStore, ManualClock>, Micros) -> Answer,
    ) -> Answer {
        let [one, two] = self.gatekeepers.each_ref().map(|gatekeeper| ask(gatekeeper, self.now));
        let said = |answer: &Answer| {
            let limits =
                answer.limits().map(|one| (one.rule.to_owned(), one.limit.to_owned(), one.outcome));
            (answer.refusal(), answer.remaining(), answer.retry_after(), limits.collect::<Vec<_>>())
        };
        assert_eq!(format!("{:?}", said(&one)), format!("{:?}", said(&two)), "decided twice");
        one
    }

    fn decide(&self, request: &FuzzRequest<'_>) {
        let answer = self.both(|gatekeeper, now| gatekeeper.decide_at(&request.ask(), now));
        check_answer(&answer, request);
        self.check_promise(&answer, request);
    }

    fn reserve(
        &self,
        request: &FuzzRequest<'_>,
        expires_in_us: u64,
    ) -> Option<([tollgate_rules::ReservationId; 2], bool)> {
        let expires_in = Duration::from_micros(expires_in_us);
        let mut holds = false;
        let [one, two] = self.gatekeepers.each_ref().map(|gatekeeper| {
            let reserved = match gatekeeper.reserve_at(&request.ask(), expires_in, self.now) {
                Err(ReserveError::NoCost) => return None,
                reserved => reserved.expect("few reservations are open"),
            };
            check_answer(&reserved.answer, request);
            assert_eq!(reserved.id.is_some(), reserved.answer.allowed());
            holds = reserved.answer.limits().len() > 0;
            reserved.id
        });
        assert_eq!(one.is_some(), two.is_some(), "decided twice");
        Some(([one?, two?], holds))
    }

    /// Checks that a request is allowed after the promised wait if no other request came.
    fn check_promise(&self, answer: &Answer, request: &FuzzRequest<'_>) {
        let rules = answer.rules();
        let counts_denied = |name: &str| rules.rule(name).is_none_or(|rule| rule.count_denied);
        let wait = answer.retry_after().as_micros();
        let (Some(Refusal::OverLimit), Some(wait)) = (answer.refusal(), wait) else { return };
        let later = self.now.as_u64().saturating_add(wait);
        // At the end of time nothing comes later.
        if later > MAX_EXACT
            || !rules.overrides().is_empty()
            || answer.limits().any(|one| counts_denied(one.rule))
        {
            return;
        }
        let gatekeeper = &self.gatekeepers[0];
        gatekeeper.clock().set(Micros::new(later));
        let then = gatekeeper.peek(&request.ask());
        let blocked = then.refusal() == Some(Refusal::Blocked);
        assert!(then.allowed() || blocked, "{request:?} at {:?}: {answer:?}\n{then:?}", self.now);
    }
}

/// Checks the properties of every answer.
fn check_answer(answer: &Answer, request: &FuzzRequest<'_>) {
    let context = || format!("{request:?}: {answer:?}");
    assert!(answer.limits().len() <= MAX_LIMITS);
    let enforced = || answer.limits().filter(|one| one.enforcement == Enforcement::Enforced);
    let binding = answer.binding();
    if answer.allowed() {
        assert!(enforced().all(|one| one.outcome.allowed), "{}", context());
        assert_eq!(binding.is_some(), enforced().next().is_some(), "{}", context());
        assert!(!request.cannot_wait || answer.delay().is_zero(), "{}", context());
    } else {
        let binding = binding.expect("a refusal names its limit");
        assert_eq!(binding.enforcement, Enforcement::Enforced, "{}", context());
        assert!(!answer.retry_after().is_zero(), "{}", context());
        let busy = answer.refusal() == Some(Refusal::Busy);
        assert!(busy || !binding.outcome.allowed, "{}", context());
        assert!(busy || enforced().any(|one| !one.outcome.allowed), "{}", context());
    }
    assert!(answer.remaining() <= answer.capacity(), "{}", context());
    let policies = answer.policies();
    let reply = answer.reply(&policies);
    for (name, value) in reply.headers(&Dialect::ALL) {
        let value = value.to_string();
        assert!(value.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{name}: {value:?}");
    }
    assert_eq!(reply.problem().is_some(), !answer.allowed(), "{}", context());
}
