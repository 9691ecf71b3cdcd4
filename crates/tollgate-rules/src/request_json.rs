//! `RequestJson`: the numbers in the JSON body of a request that rules estimate its cost by.

use crate::facts::Facts;
use crate::json_path::JsonPath;
use crate::json_reader::{DocumentEnd, JsonNumberReader, RepeatedNumber};
use crate::rule_set::RuleSet;

/// The most paths that are looked for in one body: the reader compares each name with all of them.
pub(crate) const REQUEST_PATHS_MAX: usize = 64;

/// Numbers from the JSON body of a request. A body that is no valid JSON has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestJson {
    /// The numbers by path. Bound: 64.
    numbers: Box<[(JsonPath, u64)]>,
}

/// Reads the body of a request piece by piece, and keeps no copy of it.
#[derive(Debug)]
pub struct RequestJsonReader(JsonNumberReader);

impl RequestJson {
    /// A reader that looks for these paths. Of a number that appears twice, the larger counts: the upstream
    /// may take either.
    pub(crate) fn reader(paths: impl IntoIterator<Item = JsonPath>) -> RequestJsonReader {
        let paths = paths.into_iter().take(REQUEST_PATHS_MAX);
        RequestJsonReader(JsonNumberReader::new(paths, RepeatedNumber::Largest))
    }

    /// The whole number at a path, at most 2^53 - 1: larger ones count as that.
    pub fn number(&self, path: &JsonPath) -> Option<u64> {
        self.numbers.iter().find(|(known, _)| known == path).map(|(_, number)| *number)
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
        let mut paths = Vec::new();
        for path in selected.iter().flat_map(|one| self.rule_at(one.rule).request_paths()) {
            if !paths.contains(path) && paths.len() < REQUEST_PATHS_MAX {
                paths.push(path.clone());
            }
        }
        (!paths.is_empty()).then(|| RequestJson::reader(paths))
    }
}

impl RequestJsonReader {
    /// Reads the next piece of the body.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.0.feed(bytes);
    }

    /// Ends the body.
    pub fn finish(mut self) -> RequestJson {
        if self.0.end() != DocumentEnd::Valid {
            return RequestJson::default();
        }
        let numbers = self.0.paths().iter().zip(self.0.values());
        let found = numbers.filter_map(|(path, number)| Some((path.clone(), (*number)?)));
        RequestJson { numbers: found.collect() }
    }
}
