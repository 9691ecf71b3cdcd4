//! Bodies of responses: the cost is the same however a body is split, and the same as a reader finds that has
//! all of the body and a JSON tree.

use serde_json::Value;
use tollgate::time::MAX_EXACT;
use tollgate_rules::cost_source::ActualCost;
use tollgate_rules::response_meter::{
    BodyEnd, BodyHead, MeterReading, ResponseMeter, UnreadableReason,
};

use super::source::FuzzSource;

/// The media types that can be read.
const MEDIA_TYPES: [&str; 3] =
    ["application/json; charset=utf-8", "text/event-stream", "application/x-ndjson"];

/// The costs that are looked for.
const COSTS: [&str; 3] = ["usage.total_tokens", "a.0.b", "usage"];

/// Uses the bytes as choices, and as the body itself.
pub fn response_body(bytes: &[u8]) {
    let mut source = FuzzSource::new(bytes);
    let kind = source.below(MEDIA_TYPES.len());
    let body = match source.below(4) {
        0 => source.rest().to_vec(),
        _ => body(&mut source, kind),
    };
    let costs = COSTS.map(|path| {
        ActualCost::parse(&format!("{{response.json.{path}}}")).expect("a valid template")
    });
    for end in [BodyEnd::Complete, BodyEnd::Broken] {
        let read = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let head = BodyHead { content_type: Some(MEDIA_TYPES[kind]), ..BodyHead::default() };
            let mut meter = ResponseMeter::new(costs.iter().map(|cost| &**cost), &head);
            pieces.for_each(|piece| meter.feed(piece));
            meter.finish(end);
            assert_eq!(meter.read(&ActualCost::Bytes, end), MeterReading::Cost(body.len() as u64));
            [0, 1, 2].map(|cost: usize| meter.read(&costs[cost], end))
        };
        let whole = read(&mut [&*body].into_iter());
        let text = || String::from_utf8_lossy(&body);
        assert_eq!(read(&mut body.chunks(1)), whole, "byte by byte: {:?}", text());
        let size = 1 + source.below(20);
        assert_eq!(read(&mut body.chunks(size)), whole, "in pieces of {size}: {:?}", text());
        // The model does not count events of content, which stand in for a missing number of output tokens.
        if end == BodyEnd::Complete && !text().contains("content_block_delta") {
            assert_eq!(whole, model(&text(), kind), "{:?}", text());
        }
    }
}

/// Something like a body of this kind.
fn body(source: &mut FuzzSource<'_>, kind: usize) -> Vec<u8> {
    let mut body = Vec::new();
    for _ in 0..=source.below(4) {
        let mut text = String::new();
        value(source, 5, &mut text);
        match kind {
            0 => body.extend_from_slice(text.as_bytes()),
            1 => event(source, &text, &mut body),
            _ => {
                body.extend_from_slice(text.replace('\n', " ").as_bytes());
                body.extend_from_slice(source.pick(&["\n", "\r\n", "\n\n", ""]).as_bytes());
            }
        }
        if kind == 0 && !source.one_in(6) {
            break;
        }
    }
    if source.one_in(4) && !body.is_empty() {
        let at = usize::from(source.byte()) * 7 % body.len();
        // An exponent may make a number that a tree refuses and the meter takes for a large one.
        body[at] = match source.byte() {
            b'e' | b'E' => b'x',
            byte => byte,
        };
    }
    body
}

fn event(source: &mut FuzzSource<'_>, text: &str, body: &mut Vec<u8>) {
    const LINES: [&str; 8] = [
        ": note",
        "event: content_block_delta",
        "id: 1",
        "data",
        "data:",
        "retry",
        "",
        "data: [DONE]",
    ];
    let end = source.pick(&["\n", "\r\n", "\r"]);
    if source.one_in(3) {
        body.extend_from_slice(format!("{}{end}", source.pick(&LINES)).as_bytes());
    }
    for line in text.split('\n') {
        body.extend_from_slice(
            format!("{}{line}{end}", source.pick(&["data: ", "data:"])).as_bytes(),
        );
    }
    if !source.one_in(6) {
        body.extend_from_slice(end.as_bytes());
    }
}

/// Writes a JSON value, often one of those that are looked for.
fn value(source: &mut FuzzSource<'_>, depth: usize, out: &mut String) {
    const NAMES: [&str; 12] = [
        "usage",
        "total_tokens",
        "message",
        "response",
        "input_tokens",
        "output_tokens",
        "a",
        "b",
        "us\\u0061ge",
        "cache_read_input_tokens",
        "é\\n\\\"",
        "",
    ];
    const SCALARS: [&str; 16] = [
        "0",
        "7",
        "12",
        "40",
        "1.5",
        "3.0",
        "2e1",
        "-4",
        "-0",
        "99999999999999999999",
        "null",
        "true",
        "false",
        "\"7\"",
        "\"x\\\\\\u00e9 {[\"",
        "9007199254740993",
    ];
    let space = |source: &mut FuzzSource<'_>| source.pick(&["", "", "", " ", "\n", "\t "]);
    out.push_str(space(source));
    match source.below(5) {
        _ if depth == 0 => out.push_str(source.pick(&SCALARS)),
        0..=2 => {
            out.push('{');
            for member in 0..source.below(5) {
                let comma = if member > 0 { "," } else { "" };
                out.push_str(&format!("{comma}{}\"{}\"", space(source), source.pick(&NAMES)));
                out.push_str(&format!("{}:", space(source)));
                value(source, depth - 1, out);
            }
            out.push('}');
        }
        3 => {
            out.push('[');
            for item in 0..source.below(4) {
                out.push_str(if item > 0 { "," } else { "" });
                value(source, depth - 1, out);
            }
            out.push(']');
        }
        _ => out.push_str(source.pick(&SCALARS)),
    }
    out.push_str(space(source));
}

/// The readings of the whole body, by a tree of each document.
fn model(body: &str, kind: usize) -> [MeterReading; 3] {
    let documents = match kind {
        0 => vec![body.to_owned()],
        1 => events(body),
        _ => body.split('\n').map(Into::into).collect(),
    };
    let written =
        documents.iter().filter(|text| !text.trim_matches([' ', '\t', '\r', '\n']).is_empty());
    let parsed: Vec<Option<Value>> = written.map(|text| serde_json::from_str(text).ok()).collect();
    let is_invalid = parsed.iter().any(Option::is_none);
    let valid: Vec<Value> = parsed.into_iter().flatten().collect();
    let last = |path: &str| valid.iter().rev().find_map(|document| number(document.pointer(path)?));
    COSTS.map(|cost| {
        let found = match cost {
            "usage.total_tokens" => tokens(&last),
            path => last(&format!("/{}", path.replace('.', "/"))),
        };
        match (found, kind) {
            (Some(found), _) => MeterReading::Cost(found),
            (None, 0) if is_invalid => unreadable(UnreadableReason::InvalidJson, 0),
            (None, 0) => unreadable(UnreadableReason::NoNumber, 0),
            (None, _) => unreadable(UnreadableReason::NoNumber, valid.len() as u64),
        }
    })
}

fn unreadable(reason: UnreadableReason, documents: u64) -> MeterReading {
    MeterReading::Unreadable { reason, documents }
}

fn tokens(last: &impl Fn(&str) -> Option<u64>) -> Option<u64> {
    let total = last("/usage/total_tokens").or_else(|| last("/response/usage/total_tokens"));
    let parts =
        ["input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];
    let parts = parts.map(|part| {
        last(&format!("/usage/{part}")).or_else(|| last(&format!("/message/usage/{part}")))
    });
    let known = parts.iter().any(Option::is_some);
    let sum = || parts.iter().flatten().sum::<u64>().min(MAX_EXACT);
    total.or_else(|| known.then(sum))
}

fn number(value: &Value) -> Option<u64> {
    let whole = value.as_u64().map(|number| number.min(MAX_EXACT));
    whole.or_else(|| {
        let float = value.as_f64().filter(|float| float.is_sign_positive())?;
        (float.fract() == 0.0).then_some((float as u64).min(MAX_EXACT))
    })
}

/// The data of each event of a stream, the last without its empty line included.
fn events(body: &str) -> Vec<String> {
    let text =
        body.strip_prefix('\u{feff}').unwrap_or(body).replace("\r\n", "\n").replace('\r', "\n");
    let (mut found, mut data) = (Vec::new(), Vec::new());
    let mut lines = text.split('\n').peekable();
    while let Some(line) = lines.next() {
        let is_last = lines.peek().is_none();
        let (field, value) = match line.split_once(':') {
            Some((field, value)) => (field, value.strip_prefix(' ').unwrap_or(value)),
            // The end of the stream may be in the middle of a name.
            None if is_last => continue,
            None => (line, ""),
        };
        match field {
            "data" => data.push(value),
            "" if line.is_empty() => found.push(std::mem::take(&mut data).join("\n")),
            _ => {}
        }
    }
    found.push(data.join("\n"));
    found
}
