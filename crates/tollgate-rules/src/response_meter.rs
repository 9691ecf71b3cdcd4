//! `ResponseMeter`: finds the cost of a request in the body of its response, while the body passes.
//!
//! It is fed the body in pieces of any size and keeps no copy: its memory does not depend on the body. JSON
//! documents, one JSON document for each line, and server-sent events whose data is JSON can be read. In a
//! stream, the last document with a number counts. A path that ends in `usage.total_tokens` also understands
//! answers that report no total, see `UsageForm`.

mod usage;

use std::fmt;

use crate::cost_source::ActualCost;
use crate::event_stream::{EventStreamReader, StreamPart};
use crate::json_path::JsonPath;
use crate::json_reader::{DocumentEnd, JsonNumberReader, NumberPolicy};
use usage::UsageForm;

/// Measures one response body.
pub struct ResponseMeter {
    bytes: u64,
    format: BodyFormat,
}

/// The end of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// All of it has passed.
    Complete,
    /// The client or the upstream has gone before the end.
    Broken,
}

/// The reason why a response does not show its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnreadableReason {
    /// The header field is missing or has no whole number.
    Header,
    /// The body is compressed.
    ContentEncoding,
    /// The body is neither JSON nor a stream of events.
    MediaType,
    /// The body is no valid JSON.
    InvalidJson,
    /// The body has no whole number at the path.
    NoNumber,
    /// The connection became a tunnel, such as a WebSocket.
    Tunnel,
}

/// The cost that a body shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MeterReading {
    /// The cost.
    Cost(u64),
    /// The body does not show the cost. Each of its documents so far is the work of at least one unit.
    Unreadable {
        /// The reason.
        reason: UnreadableReason,
        /// Number of documents in the stream so far; 0 if it is no stream.
        documents: u64,
    },
}

/// The head of a response body: the values of its header fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct BodyHead<'a> {
    /// `Content-Type`.
    pub content_type: Option<&'a str>,
    /// `Content-Encoding`.
    pub content_encoding: Option<&'a str>,
    /// True if the connection became a tunnel, so that there is no body.
    pub is_tunnel: bool,
}

/// The way to read a body.
enum BodyFormat {
    /// No number of it is asked for, or none can be read.
    Opaque(UnreadableReason),
    Document(Box<JsonNumbers>),
    Lines(Box<JsonNumbers>),
    Events(Box<EventStreamReader>, Box<JsonNumbers>),
}

/// The numbers of the documents so far.
struct JsonNumbers {
    reader: JsonNumberReader,
    /// The forms asked for, with the number of their first path. Bound: as many as a decision has limits.
    forms: Vec<(JsonPath, UsageForm, usize)>,
    /// The last number at each path.
    last: Box<[Option<u64>]>,
    /// Number of valid documents.
    documents: u64,
    /// Number of pieces of an answer, of those that name their events.
    content_events: u64,
    is_invalid: bool,
}

/// The name of events that carry a piece of the answer.
const CONTENT_EVENT: &[u8] = b"content_block_delta";

impl ResponseMeter {
    /// A meter for these costs.
    pub fn new<'a>(
        costs: impl IntoIterator<Item = &'a ActualCost>,
        head: &BodyHead<'_>,
    ) -> ResponseMeter {
        let mut paths: Vec<&JsonPath> = Vec::new();
        for cost in costs {
            if let ActualCost::Json(path) = cost
                && !paths.contains(&path)
            {
                paths.push(path);
            }
        }
        ResponseMeter { bytes: 0, format: BodyFormat::new(&paths, head) }
    }

    /// Reads a piece of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        match &mut self.format {
            BodyFormat::Opaque(_) => {}
            BodyFormat::Document(numbers) => numbers.reader.feed(bytes),
            BodyFormat::Lines(numbers) => {
                let mut lines = bytes.split(|byte| *byte == b'\n');
                numbers.reader.feed(lines.next().unwrap_or_default());
                for line in lines {
                    numbers.end_document(BodyEnd::Complete);
                    numbers.reader.feed(line);
                }
            }
            BodyFormat::Events(events, numbers) => events.feed(bytes, &mut |part| match part {
                StreamPart::Data(data) => numbers.reader.feed(data),
                StreamPart::End(name) => {
                    numbers.content_events += u64::from(name == CONTENT_EVENT);
                    numbers.end_document(BodyEnd::Complete);
                }
            }),
        }
    }

    /// Counts bytes of the body that could not be seen.
    pub fn skip(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.format = BodyFormat::Opaque(UnreadableReason::InvalidJson);
    }

    /// Ends the body.
    pub fn finish(&mut self, end: BodyEnd) {
        match &mut self.format {
            BodyFormat::Opaque(_) => {}
            // The last event may lack its empty line.
            BodyFormat::Document(numbers)
            | BodyFormat::Lines(numbers)
            | BodyFormat::Events(_, numbers) => numbers.end_document(end),
        }
    }

    /// The cost at the end of the body; of a header field there is none here.
    pub fn read(&self, cost: &ActualCost, end: BodyEnd) -> MeterReading {
        let reason = |reason, documents| MeterReading::Unreadable { reason, documents };
        match (cost, &self.format) {
            (ActualCost::Header(_), _) => reason(UnreadableReason::Header, 0),
            (_, BodyFormat::Opaque(UnreadableReason::Tunnel)) => {
                reason(UnreadableReason::Tunnel, 0)
            }
            (ActualCost::Bytes, _) => MeterReading::Cost(self.bytes),
            (ActualCost::Json(_), BodyFormat::Opaque(opaque)) => reason(*opaque, 0),
            (ActualCost::Json(path), BodyFormat::Document(numbers)) => {
                match numbers.read(path, end) {
                    Some(cost) => MeterReading::Cost(cost),
                    None if numbers.is_invalid => reason(UnreadableReason::InvalidJson, 0),
                    None => reason(UnreadableReason::NoNumber, 0),
                }
            }
            (
                ActualCost::Json(path),
                BodyFormat::Lines(numbers) | BodyFormat::Events(_, numbers),
            ) => match numbers.read(path, end) {
                Some(cost) => MeterReading::Cost(cost),
                None => reason(UnreadableReason::NoNumber, numbers.documents),
            },
        }
    }
}

impl BodyFormat {
    fn new(paths: &[&JsonPath], head: &BodyHead<'_>) -> BodyFormat {
        if head.is_tunnel {
            return BodyFormat::Opaque(UnreadableReason::Tunnel);
        }
        let encoding = head.content_encoding.map_or("", str::trim);
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            return BodyFormat::Opaque(UnreadableReason::ContentEncoding);
        }
        if paths.is_empty() {
            return BodyFormat::Opaque(UnreadableReason::NoNumber);
        }
        let media_type =
            head.content_type.unwrap_or_default().split(';').next().unwrap_or_default();
        let media_type = media_type.trim().to_ascii_lowercase();
        match &*media_type {
            "text/event-stream" => BodyFormat::Events(Box::default(), JsonNumbers::new(paths)),
            "application/x-ndjson"
            | "application/ndjson"
            | "application/jsonl"
            | "application/x-jsonlines" => BodyFormat::Lines(JsonNumbers::new(paths)),
            json if is_json(json) => BodyFormat::Document(JsonNumbers::new(paths)),
            _ => BodyFormat::Opaque(UnreadableReason::MediaType),
        }
    }
}

/// Returns true for a media type in small letters, without parameters, whose text is one JSON document. The messages
/// of gRPC are not, whatever they are encoded in.
pub fn is_json(media_type: &str) -> bool {
    let is_grpc = media_type.starts_with("application/grpc");
    media_type == "application/json"
        || media_type.starts_with("application/") && media_type.ends_with("+json") && !is_grpc
}

impl JsonNumbers {
    fn new(paths: &[&JsonPath]) -> Box<JsonNumbers> {
        let (mut forms, mut all) = (Vec::new(), Vec::new());
        for path in paths {
            let form = UsageForm::of(path);
            forms.push(((*path).clone(), form, all.len()));
            all.extend(form.paths(path));
        }
        Box::new(JsonNumbers {
            last: vec![None; all.len()].into(),
            reader: JsonNumberReader::new(all, NumberPolicy::Exact),
            forms,
            documents: 0,
            content_events: 0,
            is_invalid: false,
        })
    }

    /// Ends a document and keeps its numbers, if it is valid; if the body is broken, valid as far as it goes.
    fn end_document(&mut self, end: BodyEnd) {
        let (found, is_whole) = match (self.reader.end(), end) {
            (DocumentEnd::Valid, _) => (true, true),
            (DocumentEnd::Incomplete, BodyEnd::Broken) => (true, false),
            (DocumentEnd::Empty, _) => (false, false),
            (DocumentEnd::Incomplete | DocumentEnd::Invalid, _) => {
                self.is_invalid = true;
                (false, false)
            }
        };
        self.documents += u64::from(is_whole);
        for (last, value) in self.last.iter_mut().zip(self.reader.values()) {
            *last = value.filter(|_| found).or(*last);
        }
        self.reader.begin();
    }

    /// The cost at a path.
    fn read(&self, path: &JsonPath, end: BodyEnd) -> Option<u64> {
        let (_, form, first) = self.forms.iter().find(|(known, ..)| known == path)?;
        let cost = form.cost(&self.last[*first..], self.content_events)?;
        // Each document of a stream was at least one token, whatever its last number says.
        let seen = match (end, form) {
            (BodyEnd::Broken, UsageForm::Tokens) => self.documents,
            _ => 0,
        };
        Some(cost.max(seen))
    }
}

impl UnreadableReason {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            UnreadableReason::Header => "header",
            UnreadableReason::ContentEncoding => "content_encoding",
            UnreadableReason::MediaType => "media_type",
            UnreadableReason::InvalidJson => "invalid_json",
            UnreadableReason::NoNumber => "no_number",
            UnreadableReason::Tunnel => "tunnel",
        }
    }
}

impl fmt::Debug for ResponseMeter {
    /// Leaves out the numbers of the body.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseMeter").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
