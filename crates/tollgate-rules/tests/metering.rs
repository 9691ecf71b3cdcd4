//! Costs found in the bodies of responses, in the forms that providers of language models send, and the
//! charges that they lead to.

use tollgate::time::MAX_EXACT;
use tollgate::{ManualClock, MemoryStore, Micros};
use tollgate_rules::cost_source::ActualCost;
use tollgate_rules::response_meter::{BodyEnd, BodyHead, MeterReading, ResponseMeter};
use tollgate_rules::{
    Ask, BodyNeed, Facts, Gatekeeper, RequestBodyEnd, RequestJson, ResponseFacts,
    SettlementOutcome, Source, UnreadableReason, compile, expect_ready,
};

const RULES: &str = "
rules:
  - name: tokens
    match: { path: /chat }
    key: global
    limits: [1000/hour burst 1000, 100000/day]
    cost: { reserve: '{request.json.max_tokens|100}', actual: '{response.json.usage.total_tokens}' }
  - name: bytes
    match: { path: /files }
    key: global
    limits: [1000/hour burst 1000]
    cost: { reserve: '{request.bytes|100}', actual: '{response.bytes}' }
  - name: header
    match: { path: /header }
    key: global
    limits: [1000/hour burst 1000]
    cost: { reserve: 100, actual: '{response.header.x-tokens}' }
";

const NOON: Micros = Micros::from_secs(1_794_744_000);
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

struct MeteringGate(Gatekeeper<MemoryStore, ManualClock>);

/// A response: its status, its content type, and its body.
type ResponseRow<'a> = (u16, &'a str, &'a str);

impl MeteringGate {
    fn new() -> MeteringGate {
        let compiled = compile(&[Source::from_text("rules.yaml", RULES)]);
        let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
        let (store, clock) = (MemoryStore::new(1_000), ManualClock::new(NOON));
        MeteringGate(Gatekeeper::new(rules, store, clock))
    }

    /// The units that a request and this response cost in the end, and the counts of both limits agree.
    fn cost(&self, path: &str, request: &str, response: ResponseRow<'_>, end: BodyEnd) -> u64 {
        self.cost_with(path, request, response, &[], end)
    }

    fn cost_with(
        &self,
        path: &str,
        request: &str,
        (status, content_type, body): ResponseRow<'_>,
        fields: &[(&str, &str)],
        end: BodyEnd,
    ) -> u64 {
        let before = self.left(path);
        let facts = Facts { path: Some(path), ..Facts::default() };
        let json = self.0.rules().request_json_reader(&facts).map(|mut reader| {
            reader.feed(request.as_bytes());
            reader.finish(RequestBodyEnd::Complete)
        });
        let bytes = Some(request.len() as u64);
        let facts = Facts { request_json: json.as_ref(), request_bytes: bytes, ..facts };
        let ask = Ask { facts, ..Ask::default() };
        let admitted = expect_ready(self.0.admit_by(self.0.rules(), &ask, false, NOON));
        let id = admitted.id.expect("a cost from the response keeps it open");
        let mut headers = vec![("content-type", content_type)];
        headers.extend_from_slice(fields);
        let is_tunnel = status == 101;
        let head = ResponseFacts { status, headers: &headers, is_tunnel, is_unsent: false };
        let due = self.0.take_due(id, None, &head, NOON).expect("in time");
        expect_ready(self.0.settle_by(due.known, NOON));
        if let Some(mut metered) = due.metered {
            body.as_bytes().chunks(7).for_each(|piece| metered.feed(piece));
            expect_ready(self.0.settle_by(self.0.finish_body(metered, end), NOON));
        }
        self.0.end(id);
        before - self.left(path)
    }

    fn left(&self, path: &str) -> u64 {
        let facts = Facts { path: Some(path), ..Facts::default() };
        let answer = self.0.peek(&Ask { facts, cost: Some(0), ..Ask::default() });
        answer.limits().next().expect("a limit").outcome.remaining
    }

    fn count(&self, outcome: SettlementOutcome) -> u64 {
        self.0.settlements().count(outcome)
    }
}

const OPENAI_CHUNKS: &str = r#"data: {"choices":[{"delta":{"content":"Hel"}}],"usage":null}

data: {"choices":[{"delta":{"content":"lo"}}],"usage":null}

data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":12,"total_tokens":17}}

data: [DONE]

"#;

const OPENAI_RESPONSES: &str = r#"event: response.created
data: {"type":"response.created","response":{"id":"r","usage":null}}

event: response.completed
data: {"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":4,"total_tokens":7}}}

"#;

const ANTHROPIC: &str = r#"event: message_start
data: {"type":"message_start","message":{"usage":{"input_tokens":20,"cache_creation_input_tokens":3,"cache_read_input_tokens":4,"output_tokens":1}}}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"text":"a"}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"text":"b"}}

event: content_block_delta
data: {"type":"content_block_delta","delta":{"text":"c"}}

event: message_delta
data: {"type":"message_delta","usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

"#;

#[test]
fn every_form_of_usage_is_understood() {
    let body = r#"{"id":"x","choices":[{"message":{"content":"{\"usage\":{\"total_tokens\":9}}"}}],
        "usage":{"prompt_tokens":5,"completion_tokens":12,"total_tokens":17}}"#;
    let message =
        r#"{"type":"message","content":[],"usage":{"input_tokens":20,"output_tokens":30}}"#;
    let lines = "{\"done\":false}\n{\"done\":true,\"usage\":{\"total_tokens\":21}}\n";
    let rows = [
        ("OpenAI, a body", (200, JSON, body), 17),
        ("OpenAI, chunks", (200, EVENTS, OPENAI_CHUNKS), 17),
        ("OpenAI, Responses API", (200, EVENTS, OPENAI_RESPONSES), 7),
        ("Anthropic, a body", (200, JSON, message), 50),
        ("Anthropic, a stream", (200, EVENTS, ANTHROPIC), 42),
        ("a document for each line", (200, "application/x-ndjson", lines), 21),
        ("a media type with a suffix", (200, "Application/Vnd.X+JSON", body), 17),
        ("an error that used tokens", (400, JSON, body), 17),
        ("a failure that used tokens", (500, JSON, body), 17),
    ];
    let gate = MeteringGate::new();
    for (name, response, want) in rows {
        assert_eq!(gate.cost("/chat", "{}", response, BodyEnd::Complete), want, "{name}");
    }
    // Two limits of one rule are one settlement.
    assert_eq!(gate.count(SettlementOutcome::Json), rows.len() as u64);
    assert_eq!(gate.0.settlements().broken(), 0);
}

#[test]
fn what_cannot_be_read_is_charged_as_reserved_and_counted() {
    use UnreadableReason::*;
    // response, cost, reason
    let rows: [(ResponseRow<'_>, u64, UnreadableReason); 12] = [
        ((200, JSON, "{}"), 100, NoNumber),
        ((200, JSON, ""), 100, NoNumber),
        ((200, JSON, r#"{"usage":{"total_tokens":17}"#), 100, InvalidJson),
        ((200, JSON, r#"{"usage":{"total_tokens":"17"}}"#), 100, NoNumber),
        ((200, "text/html", "<p>"), 100, MediaType),
        ((404, JSON, "{}"), 0, NoNumber),
        ((400, "text/html", "<p>"), 0, MediaType),
        ((101, JSON, ""), 100, Tunnel),
        ((200, EVENTS, "data: [DONE]\n\n"), 100, NoNumber),
        ((429, JSON, "{}"), 0, NoNumber),
        ((500, JSON, "no JSON"), 0, InvalidJson),
        ((503, "text/html", "<p>"), 0, MediaType),
    ];
    let gate = MeteringGate::new();
    for (response, want, reason) in rows {
        let counted = gate.count(SettlementOutcome::Unreadable(reason));
        let cost = gate.cost("/chat", "", response, BodyEnd::Complete);
        assert_eq!(cost, want, "{response:?}");
        let counts = gate.count(SettlementOutcome::Unreadable(reason));
        assert_eq!(counts, counted + 1, "{response:?}");
        // Gives the units back for the next row.
        let facts = Facts { path: Some("/chat"), ..Facts::default() };
        gate.0.refund(&Ask { facts, cost: Some(want.max(1)), ..Ask::default() });
    }
    let body = r#"{"usage":{"total_tokens":17}}"#;
    let fields = [("content-encoding", "gzip")];
    assert_eq!(gate.cost_with("/chat", "", (200, JSON, body), &fields, BodyEnd::Complete), 100);
    assert_eq!(gate.count(SettlementOutcome::Unreadable(ContentEncoding)), 1);
    let fields = [("content-encoding", "identity")];
    assert_eq!(gate.cost_with("/chat", "", (200, JSON, body), &fields, BodyEnd::Complete), 17);
}

#[test]
fn a_broken_body_is_settled_by_the_part_that_was_seen() {
    let cut = |text: &'static str, at: &str| &text[..text.find(at).expect("it is there")];
    let many = "data: {\"delta\":1}\n\n".repeat(150);
    let rows = [
        // Input 20 + 3 + 4; two content events count as two output tokens.
        ("Anthropic, cut", cut(ANTHROPIC, "\"text\":\"c\""), 29),
        ("Anthropic, cut after the usage", cut(ANTHROPIC, "event: message_stop"), 42),
        ("Anthropic, cut in the usage", cut(ANTHROPIC, "5}}\n"), 30),
        ("OpenAI, cut", cut(OPENAI_CHUNKS, "data: {\"choices\":[],"), 100),
        ("OpenAI, cut after the usage", cut(OPENAI_CHUNKS, "data: [DONE]"), 17),
        ("more events than reserved", &many, 150),
        ("nothing", "", 100),
    ];
    for (name, body, want) in rows {
        let gate = MeteringGate::new();
        let cost = gate.cost("/chat", "", (200, EVENTS, body), BodyEnd::Broken);
        assert_eq!((cost, gate.0.settlements().broken()), (want, 1), "{name}");
    }
    let gate = MeteringGate::new();
    let body = r#"{"usage":{"total_tokens":17},"more":"#;
    assert_eq!(gate.cost("/chat", "", (200, JSON, body), BodyEnd::Broken), 17);
    assert_eq!(gate.cost("/files", "", (200, "text/plain", "12345"), BodyEnd::Broken), 5);
}

#[test]
fn bytes_and_headers_are_costs_too() {
    let gate = MeteringGate::new();
    let plain = |status, body| (status, "text/plain", body);
    let complete = BodyEnd::Complete;
    assert_eq!(gate.cost("/files", "", plain(200, "1234567890"), complete), 10);
    assert_eq!(gate.cost("/files", "", plain(500, "12"), complete), 2, "bytes are always known");
    assert_eq!(gate.cost("/files", "", plain(101, ""), complete), 100, "a tunnel has no body");
    let header = |status, fields: &[(&str, &str)]| {
        gate.cost_with("/header", "", plain(status, ""), fields, complete)
    };
    assert_eq!(header(200, &[("x-tokens", " 8 ")]), 8);
    assert_eq!(header(200, &[("x-tokens", "+8")]), 100);
    assert_eq!(header(200, &[]), 100);
    assert_eq!(header(502, &[]), 0);
    assert_eq!(header(400, &[]), 0);
    assert_eq!(header(400, &[("x-tokens", "8")]), 8);
    assert_eq!(gate.count(SettlementOutcome::Bytes), 2);
    assert_eq!(gate.count(SettlementOutcome::Header), 2);
    assert_eq!(gate.count(SettlementOutcome::Unreadable(UnreadableReason::Header)), 4);
}

#[test]
fn the_estimate_comes_from_the_request() {
    let reserved = |path: &str, request: &str| {
        let gate = MeteringGate::new();
        gate.cost(path, request, (200, "text/html", ""), BodyEnd::Complete)
    };
    assert_eq!(reserved("/chat", r#"{"max_tokens":250}"#), 250);
    assert_eq!(reserved("/chat", r#"{"max_tokens":250,"max_tokens":3}"#), 250);
    assert_eq!(reserved("/chat", r#"{"max_tokens":"250"}"#), 250);
    assert_eq!(reserved("/chat", "not JSON"), 100);
    let gate = MeteringGate::new();
    let facts = Facts { path: Some("/files"), request_bytes: Some(300), ..Facts::default() };
    assert!(gate.0.decide(&Ask { facts, ..Ask::default() }).allowed());
    assert_eq!(gate.left("/files"), 700);
    // More than the limit can ever hold is refused, and no wait helps.
    let facts = Facts { request_bytes: Some(u64::MAX), ..facts };
    let answer = gate.0.decide(&Ask { facts, ..Ask::default() });
    assert!(!answer.allowed() && answer.retry_after().is_never());
    // A body is read only where a rule asks for it.
    let reader = |path| {
        let facts = Facts { path: Some(path), ..Facts::default() };
        gate.0.rules().request_json_reader(&facts).is_some()
    };
    assert!(reader("/chat") && !reader("/files") && !reader("/other"));
    assert_eq!(RequestJson::default(), RequestJson::default());
}

/// The units that rules reserve for a request with this body.
fn reserved_for(reserve: &str, body: &[u8]) -> u64 {
    let text = format!(
        "rules: [{{ name: a, key: global, limits: [9007199254740991/day], cost: {{ reserve: '{reserve}' }} }}]"
    );
    let compiled = compile(&[Source::from_text("rules.yaml", &text)]);
    let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
    let gate = Gatekeeper::new(rules, MemoryStore::new(1_000), ManualClock::new(NOON));
    let mut reader = gate.rules().request_json_reader(&Facts::default()).expect("a path");
    body.chunks(5).for_each(|piece| reader.feed(piece));
    let json = reader.finish(RequestBodyEnd::Complete);
    let facts = Facts { request_json: Some(&json), ..Facts::default() };
    let answer = gate.decide(&Ask { facts, ..Ask::default() });
    MAX_EXACT - answer.limits().next().expect("a limit").outcome.remaining
}

#[test]
fn no_spelling_of_a_body_hides_its_number() {
    let utf16 = |text: &str, bytes: fn(u16) -> [u8; 2]| -> Vec<u8> {
        text.encode_utf16().flat_map(bytes).collect()
    };
    let utf32 = |text: &str, bytes: fn(u32) -> [u8; 4]| -> Vec<u8> {
        text.chars().flat_map(|char| bytes(char.into())).collect()
    };
    let plain = r#"{"note":"é😀","max_tokens":70000}"#;
    let marked = format!("\u{feff}{plain}");
    let with = |before: &str, number: &str| format!("{{{before}\"max_tokens\":{number}}}");
    let deep = |levels: usize| {
        let (open, close) = ("[{\"a\":".repeat(levels / 2), "}]".repeat(levels / 2));
        with(&format!("\"x\":{open}\"]\\\"}}\"{close},"), "70000")
    };
    let hidden: &[(&str, Vec<u8>)] = &[
        ("plain", plain.into()),
        ("a byte order mark", marked.clone().into()),
        ("UTF-16, big", utf16(plain, u16::to_be_bytes)),
        ("UTF-16, little", utf16(plain, u16::to_le_bytes)),
        ("UTF-16 with a mark, big", utf16(&marked, u16::to_be_bytes)),
        ("UTF-16 with a mark, little", utf16(&marked, u16::to_le_bytes)),
        ("UTF-32, big", utf32(plain, u32::to_be_bytes)),
        ("UTF-32 with a mark, little", utf32(&marked, u32::to_le_bytes)),
        ("NaN beside it", with("\"x\":NaN,\"y\":[-Infinity,Infinity],", "70000").into()),
        ("a text", with("", "\"70000\"").into()),
        ("a text with more around it", with("", "\" +7_0000.0 \"").into()),
        ("a text with escapes", with("", "\"7\\u0030000\"").into()),
        ("a text in base 16", with("", "\"0x11170\"").into()),
        ("an exponent", with("", "7e4").into()),
        ("a text with an exponent", with("", "\"7E+4\"").into()),
        ("a fraction", with("", "69999.5").into()),
        ("130 levels", deep(130).into()),
        ("20,000 levels", deep(20_000).into()),
        ("another number before it", with("\"max_tokens\":1,", "70000").into()),
        ("capitals", plain.replace("max_tokens", "Max_Tokens").into()),
        ("control characters", with("\"x\":\"\t\n\",", "70000").into()),
        ("more after the document", format!("{plain} {{").into()),
        ("more than the document", format!("{plain}, \"max_tokens\": 3").into()),
    ];
    for (name, body) in hidden {
        assert_eq!(reserved_for("{request.json.max_tokens|2000}", body), 70_000, "{name}");
    }
    let spaces = |space: &str| space.repeat(70);
    let texts = [
        r"70000\n".to_string(),
        r"\t70000".to_string(),
        r"\r\f\b70000\u0000\u00a0\u001c".to_string(),
        format!("{}70000", spaces(" ")),
        format!("{}70000", spaces(r"\n")),
        format!("{}70000", spaces("\u{3000}\u{feff}")),
        "７００００".to_string(),
        "+７００００.0".to_string(),
    ];
    let arrays = ["[70000]", "[[\"70000\"]]", "[ 3, 70000, [], 5 ]", "[{\"x\":80000}, 70000]"];
    for number in texts.iter().map(|text| format!("\"{text}\"")).chain(arrays.map(String::from)) {
        let body = with("", &number);
        let reserved = reserved_for("{request.json.max_tokens|5}", body.as_bytes());
        assert_eq!(reserved, 70_000, "{body}");
    }
    let most = [
        with("", &format!("\"0x{}\"", "f".repeat(40))),
        with("", &format!("\"+0X{}\"", "f".repeat(33))),
        with("", &format!("\"0b{}\"", "1".repeat(60))),
        with("", &format!("\"70000{}\"", spaces(r"\u001f"))),
        with("", &format!("\"Infinity{}\"", spaces(" "))),
        with("", &format!("\"7e-{}\"", "0".repeat(70))),
        with("", "\"٧٠٠٠٠\""),
        with("", r#""\ud835\udfd5\ud835\udfcf""#),
        with("", &format!("\"{}\"", "７".repeat(30))),
        with("", &"9".repeat(65)),
        with("", &format!("1{}", "0".repeat(70_000))),
        with("", &format!("\"{}\"", "9".repeat(65))),
        with("", "1e400"),
        with("", "Infinity"),
    ];
    for body in most {
        let reserved = reserved_for("{request.json.max_tokens|2000}", body.as_bytes());
        assert_eq!(reserved, MAX_EXACT, "{body}");
    }
    // There is no number, or none above 0; and a body that cannot be read never costs less than that.
    for body in ["", "x", "{}", "{\"max_tokens\":70", "{\"max_tokens\":-1}", "{\"max_tokens\":NaN}"]
    {
        assert_eq!(
            reserved_for("{request.json.max_tokens|2000}", body.as_bytes()),
            2_000,
            "{body}"
        );
    }
    for number in [
        "\"-5\"",
        "\"x\"",
        "\"\"",
        "0",
        "true",
        "null",
        "[]",
        "[\"x\"]",
        "{}",
        "[{\"max_tokens\":7}]",
    ] {
        let body = with("", number);
        assert_eq!(
            reserved_for("{request.json.max_tokens|2000}", body.as_bytes()),
            2_000,
            "{body}"
        );
    }
}

#[test]
fn the_largest_place_counts() {
    let reserve = "{request.json.max_completion_tokens|request.json.max_tokens|2000}";
    for (body, want) in [
        (r#"{"max_completion_tokens":1,"max_tokens":100000}"#, 100_000),
        (r#"{"max_tokens":1,"max_completion_tokens":100000}"#, 100_000),
        (r#"{"max_tokens":7}"#, 7),
        (r#"{"max_tokens":0,"max_completion_tokens":0}"#, 2_000),
    ] {
        assert_eq!(reserved_for(reserve, body.as_bytes()), want, "{body}");
    }
}

/// A gate, and the remaining units of its only limit.
fn gate_of(rule: &str) -> Gatekeeper<MemoryStore, ManualClock> {
    let text = format!("rules: [{{ name: a, key: '{{ip}}', {rule} }}]");
    let compiled = compile(&[Source::from_text("rules.yaml", &text)]);
    let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
    Gatekeeper::new(rules, MemoryStore::new(1_000), ManualClock::new(NOON))
}

fn caller() -> Facts<'static> {
    Facts { ip: Some([192, 0, 2, 1].into()), ..Facts::default() }
}

fn used_of(gate: &Gatekeeper<MemoryStore, ManualClock>) -> u64 {
    let answer = gate.peek(&Ask { facts: caller(), cost: Some(0), ..Ask::default() });
    1_000 - answer.limits().next().expect("a limit").outcome.remaining
}

/// Stated length, pieces, is it complete, charge when admitted, charge in the end.
type PassedBytesRow<'a> = (Option<u64>, &'a [u64], bool, u64, u64);

#[test]
fn bytes_of_a_request_are_charged_as_they_pass() {
    let rows: [PassedBytesRow<'_>; 9] = [
        (None, &[100], true, 400, 100),
        (None, &[300, 300], true, 400, 600),
        (None, &[], true, 400, 400),
        (None, &[], false, 400, 0),
        (None, &[50], false, 400, 50),
        (None, &[400], true, 400, 400),
        (Some(500), &[500], true, 500, 500),
        (Some(500), &[20], false, 500, 20),
        (Some(500), &[], false, 500, 0),
    ];
    for (stated, pieces, is_complete, first, last) in rows {
        let gate =
            gate_of("limits: [1000/hour burst 1000], cost: { reserve: '{request.bytes|400}' }");
        let facts = Facts { request_bytes: stated, ..caller() };
        let ask = Ask { facts, ..Ask::default() };
        let id =
            expect_ready(gate.admit_by(gate.rules(), &ask, false, NOON)).id.expect("kept open");
        assert_eq!(used_of(&gate), first);
        let bytes = gate.take_request_bytes(id).expect("they are counted");
        assert!(gate.take_request_bytes(id).is_none(), "once");
        pieces.iter().for_each(|piece| assert!(!bytes.count(*piece)));
        // The response may end before the body of the request.
        gate.end(id);
        expect_ready(gate.settle_request_bytes(&bytes, is_complete, NOON));
        assert_eq!(used_of(&gate), last, "{stated:?} {pieces:?} {is_complete}");
        expect_ready(gate.settle_request_bytes(&bytes, is_complete, NOON));
        expect_ready(gate.cancel_request_bytes(&bytes, NOON));
        assert_eq!(used_of(&gate), last, "once");
    }
}

#[test]
fn a_long_body_is_charged_on_its_way_and_a_cancelled_one_is_free() {
    let gate =
        gate_of("limits: [1000000/hour burst 1000000], cost: { reserve: '{request.bytes|400}' }");
    let used = |gate: &Gatekeeper<MemoryStore, ManualClock>| {
        let answer = gate.peek(&Ask { facts: caller(), cost: Some(0), ..Ask::default() });
        1_000_000 - answer.limits().next().expect("a limit").outcome.remaining
    };
    let admit = || {
        let ask = Ask { facts: caller(), ..Ask::default() };
        let id =
            expect_ready(gate.admit_by(gate.rules(), &ask, false, NOON)).id.expect("kept open");
        gate.take_request_bytes(id).expect("they are counted")
    };
    let bytes = admit();
    let mut charges = 0;
    for _ in 0..100 {
        if bytes.count(4_096) {
            expect_ready(gate.charge_request_bytes(&bytes, NOON));
            charges += 1;
        }
    }
    assert_eq!(charges, 5, "each charge asks the store");
    assert!((340_000..=409_600).contains(&used(&gate)), "{}", used(&gate));
    expect_ready(gate.settle_request_bytes(&bytes, true, NOON));
    assert_eq!(used(&gate), 409_600);
    let bytes = admit();
    assert_eq!(used(&gate), 410_000);
    expect_ready(gate.cancel_request_bytes(&bytes, NOON));
    assert_eq!(used(&gate), 409_600);
}

#[test]
fn a_body_is_read_only_if_all_that_does_not_need_it_would_admit() {
    let reserve = "cost: { reserve: '{request.json.n|50}' }";
    // the second rule, cost used before by each rule, refused
    let rows = [
        ("", 0, false),
        ("", 99, false),
        ("", 100, true),
        ("{ name: b, key: '{ip}', limits: [2/hour burst 2] }", 2, true),
        ("{ name: b, key: '{ip}', limits: [2/hour burst 2] }", 1, false),
        ("{ name: b, key: '{ip}', limits: [2/hour burst 2], mode: shadow }", 2, false),
    ];
    for (second, used, is_refused) in rows {
        let text = format!(
            "rules: [{{ name: a, key: '{{ip}}', limits: [100/hour burst 100], {reserve} }}, {second}]"
        );
        let compiled = compile(&[Source::from_text("rules.yaml", &text)]);
        let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
        let gate = Gatekeeper::new(rules, MemoryStore::new(1_000), ManualClock::new(NOON));
        if used > 0 {
            gate.decide(&Ask { facts: caller(), cost: Some(used), ..Ask::default() });
        }
        let ask = Ask { facts: caller(), ..Ask::default() };
        let need = expect_ready(gate.find_body_need(gate.rules(), &ask, NOON));
        match need {
            BodyNeed::Refused(answer) => {
                assert!(is_refused && !answer.allowed(), "{second} {used}")
            }
            BodyNeed::Read(_) => assert!(!is_refused, "{second} {used}"),
            BodyNeed::None => panic!("a rule needs it"),
        }
        let stated = Ask { cost: Some(1), ..ask };
        let need = expect_ready(gate.find_body_need(gate.rules(), &stated, NOON));
        assert!(matches!(need, BodyNeed::None), "the cost is known");
    }
}

#[test]
fn hostile_bodies_cost_no_memory_and_bring_nothing_down() {
    let path = ActualCost::parse("{response.json.usage.total_tokens}").expect("a template");
    let read = |content_type: &str, pieces: &[(&str, usize)]| {
        let head = BodyHead { content_type: Some(content_type), ..BodyHead::default() };
        let mut meter = ResponseMeter::new([&*path], &head);
        for (piece, times) in pieces {
            (0..*times).for_each(|_| meter.feed(piece.as_bytes()));
        }
        meter.finish(BodyEnd::Complete);
        match meter.read(&path, BodyEnd::Complete) {
            MeterReading::Cost(cost) => Ok(cost),
            MeterReading::Unreadable { reason, .. } => Err(reason),
        }
    };
    let usage = r#"{"usage":{"total_tokens":5},"rest":"#;
    let deep = |levels| read(JSON, &[(usage, 1), ("[", levels), ("]", levels), ("}", 1)]);
    assert_eq!(deep(126), Ok(5));
    assert_eq!(deep(127), Err(UnreadableReason::InvalidJson));
    assert_eq!(deep(1_000_000), Err(UnreadableReason::InvalidJson));
    let mebibyte = "x".repeat(1 << 20);
    assert_eq!(read(JSON, &[(usage, 1), ("\"", 1), (&mebibyte, 10), ("\"}", 1)]), Ok(5));
    let line = [("data: {\"a\":\"", 1), (&*mebibyte, 10), ("\"}\n\n", 1)];
    let event = ("data: {\"usage\":{\"total_tokens\":6}}\n\n", 1);
    assert_eq!(read(EVENTS, &[&line[..], &[event]].concat()), Ok(6));
    let name = [("{\"", 1), (&*mebibyte, 10), ("\":1,\"usage\":{\"total_tokens\":7}}", 1)];
    assert_eq!(read(JSON, &name), Ok(7));
    let number =
        |text: &str| read(JSON, &[("{\"usage\":{\"total_tokens\":", 1), (text, 1), ("}}", 1)]);
    assert_eq!(number("1e400"), Ok(MAX_EXACT));
    assert_eq!(number("123456789012345678901234567890"), Ok(MAX_EXACT));
    assert_eq!(number(&"1".repeat(1 << 20)), Err(UnreadableReason::NoNumber));
    assert_eq!(number("1,\"total_tokens\":9"), Ok(9), "the last of two");
    assert_eq!(number("1},\"usage\":{"), Err(UnreadableReason::NoNumber), "the last of two");
}
