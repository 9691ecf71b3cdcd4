//! Costs found in the bodies of responses, in the forms that providers of language models send, and the
//! charges that they lead to.

use tollgate::time::MAX_EXACT;
use tollgate::{ManualClock, MemoryStore, Micros};
use tollgate_rules::cost_source::ActualCost;
use tollgate_rules::response_meter::{BodyEnd, BodyHead, MeterReading, ResponseMeter};
use tollgate_rules::{
    Ask, Facts, Gatekeeper, RequestJson, ResponseFacts, SettlementOutcome, Source,
    UnreadableReason, compile, expect_ready,
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
            reader.finish()
        });
        let bytes = Some(request.len() as u64);
        let facts = Facts { request_json: json.as_ref(), request_bytes: bytes, ..facts };
        let ask = Ask { facts, ..Ask::default() };
        let admitted = expect_ready(self.0.admit_by(self.0.rules(), &ask, false, NOON));
        let id = admitted.id.expect("a cost from the response keeps it open");
        let mut headers = vec![("content-type", content_type)];
        headers.extend_from_slice(fields);
        let head = ResponseFacts { status, headers: &headers, is_tunnel: status == 101 };
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
    let rows: [(ResponseRow<'_>, u64, UnreadableReason); 11] = [
        ((200, JSON, "{}"), 100, NoNumber),
        ((200, JSON, ""), 100, NoNumber),
        ((200, JSON, r#"{"usage":{"total_tokens":17}"#), 100, InvalidJson),
        ((200, JSON, r#"{"usage":{"total_tokens":"17"}}"#), 100, NoNumber),
        ((200, "text/html", "<p>"), 100, MediaType),
        ((404, JSON, "{}"), 100, NoNumber),
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
    assert_eq!(gate.count(SettlementOutcome::Bytes), 2);
    assert_eq!(gate.count(SettlementOutcome::Header), 1);
    assert_eq!(gate.count(SettlementOutcome::Unreadable(UnreadableReason::Header)), 3);
}

#[test]
fn the_estimate_comes_from_the_request() {
    let reserved = |path: &str, request: &str| {
        let gate = MeteringGate::new();
        gate.cost(path, request, (200, "text/html", ""), BodyEnd::Complete)
    };
    assert_eq!(reserved("/chat", r#"{"max_tokens":250}"#), 250);
    assert_eq!(reserved("/chat", r#"{"max_tokens":250,"max_tokens":3}"#), 250);
    assert_eq!(reserved("/chat", r#"{"max_tokens":"250"}"#), 100);
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
