//! `RequestJson`: the numbers in the JSON body of a request that rules estimate its cost by.

use crate::facts::Facts;
use crate::json_path::JsonPath;
use crate::json_reader::{DocumentEnd, JsonNumberReader, NumberPolicy, TextDecoder};
use crate::rule_set::RuleSet;

/// The most paths that are looked for in one body: the reader compares each name with all of them.
pub(crate) const REQUEST_PATHS_MAX: usize = 64;

/// Numbers from the JSON body of a request, and how far it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestJson {
    /// The numbers by path; of a body that cannot be read, those before its first error. Bound: 64.
    numbers: Box<[(JsonPath, u64)]>,
    /// Number of bytes of the body, if all of it has been read.
    bytes: Option<u64>,
    state: BodyReading,
}

/// The part of a body that is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum BodyReading {
    /// All of it.
    #[default]
    Complete,
    /// None of it: it has yet to be read.
    Unread,
    /// It cannot be read.
    Unreadable(UnreadableBody),
}

/// The reason why the body of a request cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnreadableBody {
    /// It is not JSON.
    NoJson,
    /// It is longer than the reader's memory.
    TooLong,
}

/// The end of a body that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBodyEnd {
    /// All of it has been read.
    Complete,
    /// It is too long, so the rest of it is not read.
    TooLong,
    /// The rest of it is not read, because the reader [needs no more](RequestJsonReader::needs_no_more).
    Skipped,
}

/// Reads the body of a request piece by piece, and keeps no copy of it.
#[derive(Debug)]
pub struct RequestJsonReader {
    numbers: JsonNumberReader,
    decoder: TextDecoder,
    bytes: u64,
    /// True if a rule refuses requests whose body cannot be read.
    refuses_unreadable: bool,
}

impl RequestJson {
    /// A reader that looks for these paths. Of a number that appears twice, the larger counts: the upstream
    /// may take either.
    pub(crate) fn reader(paths: impl IntoIterator<Item = JsonPath>) -> RequestJsonReader {
        let paths = paths.into_iter().take(REQUEST_PATHS_MAX);
        RequestJsonReader {
            numbers: JsonNumberReader::new(paths, NumberPolicy::LargestPossible),
            decoder: TextDecoder::default(),
            bytes: 0,
            refuses_unreadable: false,
        }
    }

    /// The body of a request that has not been read. Estimates that need it are the least that the request can cost.
    pub fn unread() -> RequestJson {
        RequestJson { state: BodyReading::Unread, ..RequestJson::default() }
    }

    /// The number at a path, rounded up, at most 2^53 - 1: larger ones count as that.
    pub fn number(&self, path: &JsonPath) -> Option<u64> {
        self.numbers.iter().find(|(known, _)| known == path).map(|(_, number)| *number)
    }

    /// Number of bytes of the body, if all of it has been read.
    pub fn bytes(&self) -> Option<u64> {
        self.bytes
    }

    /// The reason why the body cannot be read, if so.
    pub fn unreadable(&self) -> Option<UnreadableBody> {
        match self.state {
            BodyReading::Unreadable(reason) => Some(reason),
            BodyReading::Complete | BodyReading::Unread => None,
        }
    }

    /// Returns true if the body has yet to be read.
    pub(crate) fn is_unread(&self) -> bool {
        self.state == BodyReading::Unread
    }
}

impl RuleSet {
    /// A reader for the body of a request, if a rule that applies to these facts estimates its cost by it.
    pub fn request_json_reader(&self, facts: &Facts<'_>) -> Option<RequestJsonReader> {
        if !self.reads_request_json() {
            return None;
        }
        let (facts, mut selected) = (self.normalized_facts(facts), Vec::new());
        if self.exempts(&facts) {
            return None;
        }
        self.select(&facts, &mut selected);
        let rules = selected.iter().map(|one| self.rule_at(one.rule));
        RequestJsonReader::for_paths(rules.flat_map(|rule| rule.request_paths()))
    }
}

impl RequestJsonReader {
    /// A reader that looks for these paths, each once; `None` if there are none.
    pub(crate) fn for_paths<'p>(
        paths: impl Iterator<Item = &'p JsonPath>,
    ) -> Option<RequestJsonReader> {
        let mut different = Vec::new();
        for path in paths {
            if !different.contains(path) && different.len() < REQUEST_PATHS_MAX {
                different.push(path.clone());
            }
        }
        (!different.is_empty()).then(|| RequestJson::reader(different))
    }

    /// Notes that a rule refuses requests whose body cannot be read.
    pub(crate) fn refusing_unreadable(self, refuses_unreadable: bool) -> RequestJsonReader {
        RequestJsonReader { refuses_unreadable, ..self }
    }

    /// Returns true if a rule refuses requests whose body cannot be read.
    pub fn refuses_unreadable(&self) -> bool {
        self.refuses_unreadable
    }

    /// Reads the next piece of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        let numbers = &mut self.numbers;
        self.decoder.decode(bytes, &mut |text| numbers.feed(text));
    }

    /// Returns true if the body is no JSON, so that the rest of it changes nothing.
    pub fn needs_no_more(&self) -> bool {
        self.numbers.has_failed()
    }

    /// Ends the body.
    pub fn finish(mut self, end: RequestBodyEnd) -> RequestJson {
        let numbers = &mut self.numbers;
        self.decoder.finish(&mut |text| numbers.feed(text));
        let state = match (self.numbers.end(), end) {
            (_, RequestBodyEnd::TooLong) => BodyReading::Unreadable(UnreadableBody::TooLong),
            (DocumentEnd::Valid | DocumentEnd::Empty, RequestBodyEnd::Complete) => {
                BodyReading::Complete
            }
            _ => BodyReading::Unreadable(UnreadableBody::NoJson),
        };
        let numbers = self.numbers.paths().iter().zip(self.numbers.values());
        let found = numbers.filter_map(|(path, number)| Some((path.clone(), (*number)?)));
        let bytes = (end == RequestBodyEnd::Complete).then_some(self.bytes);
        RequestJson { numbers: found.collect(), bytes, state }
    }
}
