//! Costs that requests and responses state themselves: the estimate that is reserved before the work, and the
//! source of the true cost after it.

use std::sync::Arc;

use tollgate::time::MAX_EXACT;

use crate::Problem;
use crate::facts::Facts;
use crate::json_path::JsonPath;
use crate::matcher::parse_header_name;

/// The most sources of one estimate.
const SOURCES_MAX: usize = 8;

/// An estimate of a cost: the largest of its sources that a request has, or else a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CostEstimate {
    /// The sources. Bound: 8.
    sources: Box<[EstimateSource]>,
    /// The number for requests without any of them, from 1.
    fallback: u64,
}

/// A place in a request that has an estimate.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EstimateSource {
    /// A number in the JSON body.
    Json(JsonPath),
    /// The length of the body.
    Bytes,
}

/// The place in a response that has the true cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActualCost {
    /// A header field with a whole number; its name is in small letters.
    Header(Box<str>),
    /// The length of the body.
    Bytes,
    /// A number in the JSON body.
    Json(JsonPath),
}

impl CostEstimate {
    /// The same estimate for every request.
    pub fn fixed(fallback: u64) -> CostEstimate {
        CostEstimate { sources: [].into(), fallback }
    }

    /// Reads a whole number such as `2000`, or a template such as `{request.json.max_tokens|2000}`.
    pub fn parse(text: &str) -> Result<CostEstimate, Problem> {
        let Some(inner) = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) else {
            return fallback(text).map(CostEstimate::fixed).ok_or_else(|| {
                Problem::new(format!("the reserved cost {text:?} is not a whole number from 1"))
                    .hint("write `2000` or `\"{request.json.max_tokens|2000}\"`")
            });
        };
        let (sources, last) = match inner.rsplit_once('|') {
            Some((sources, last)) => (Some(sources), last),
            None => (None, inner),
        };
        let fallback = fallback(last).ok_or_else(|| {
            Problem::new(format!("the reserved cost {text:?} does not end with a whole number from 1"))
                .hint("write the cost of requests without the others last: `\"{request.json.max_tokens|2000}\"`")
        })?;
        let sources = sources.into_iter().flat_map(|some| some.split('|'));
        let sources: Box<[EstimateSource]> =
            sources.map(EstimateSource::parse).collect::<Result<_, _>>()?;
        if sources.len() > SOURCES_MAX {
            let problem =
                format!("the reserved cost {text:?} has more than {SOURCES_MAX} alternatives");
            return Err(Problem::new(problem));
        }
        Ok(CostEstimate { sources, fallback })
    }

    /// Returns true if the estimate is the same for every request.
    pub(crate) fn is_fixed(&self) -> bool {
        self.sources.is_empty()
    }

    /// The number for requests without any of the sources.
    pub fn fallback(&self) -> u64 {
        self.fallback
    }

    /// The paths in the body of a request that the estimate needs.
    pub(crate) fn json_paths(&self) -> impl Iterator<Item = &JsonPath> {
        self.sources.iter().filter_map(|source| match source {
            EstimateSource::Json(path) => Some(path),
            EstimateSource::Bytes => None,
        })
    }

    /// The largest number of the sources in the JSON body; 0 without one.
    pub(crate) fn largest_in_json(&self, facts: &Facts<'_>) -> u64 {
        let numbers = self.json_paths().filter_map(|path| facts.request_json?.number(path));
        numbers.max().unwrap_or(0).min(MAX_EXACT)
    }

    /// Returns true if the length of the body is one of the sources.
    pub(crate) fn counts_bytes(&self) -> bool {
        self.sources.contains(&EstimateSource::Bytes)
    }

    /// The estimate for a request: the largest number, because the client chooses which of them the upstream obeys. A
    /// number of 0 is none: it would make the request free.
    pub(crate) fn of(&self, facts: &Facts<'_>) -> u64 {
        let json = facts.request_json;
        let number = |source: &EstimateSource| match source {
            EstimateSource::Json(path) => json?.number(path),
            EstimateSource::Bytes => facts.request_bytes.or_else(|| json?.bytes()),
        };
        let largest = self.sources.iter().filter_map(number).max().filter(|number| *number > 0);
        let reads_json = self.json_paths().next().is_some();
        let estimate = match json.filter(|_| reads_json) {
            Some(json) if json.is_unread() => largest.unwrap_or(1),
            // The number that the upstream reads may be in the part that this reader cannot read.
            Some(json) if json.unreadable().is_some() => self.fallback.max(largest.unwrap_or(0)),
            _ => largest.unwrap_or(self.fallback),
        };
        estimate.min(MAX_EXACT)
    }
}

/// The treatment of a request whose body cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnreadable {
    /// It costs the number at the end of the estimate, or more if a larger number was found before the first error.
    #[default]
    Estimate,
    /// It is refused, and costs nothing.
    Refuse,
}

impl EstimateSource {
    fn parse(text: &str) -> Result<EstimateSource, Problem> {
        match text.strip_prefix("request.json.") {
            Some(path) => JsonPath::parse(path).map(EstimateSource::Json),
            None if text == "request.bytes" => Ok(EstimateSource::Bytes),
            None => Err(Problem::new(format!("there is no estimate {text:?}"))
                .hint("write `request.json.PATH` or `request.bytes`")),
        }
    }
}

impl ActualCost {
    /// Reads a template such as `{response.json.usage.total_tokens}`.
    pub fn parse(text: &str) -> Result<Arc<ActualCost>, Problem> {
        let place = text
            .strip_prefix("{response.")
            .and_then(|rest| rest.strip_suffix('}'))
            .and_then(|place| place.split_once('.').or(Some((place, ""))));
        let actual = match place {
            Some(("header", name)) => ActualCost::Header(parse_header_name(name)?),
            Some(("json", path)) => ActualCost::Json(JsonPath::parse(path)?),
            Some(("bytes", "")) => ActualCost::Bytes,
            _ => {
                return Err(Problem::new(format!(
                    "the actual cost {text:?} is not part of a response"
                ))
                .hint(
                    "write `\"{response.header.x-tokens-used}\"`, `\"{response.bytes}\"` or \
                         `\"{response.json.usage.total_tokens}\"`",
                ));
            }
        };
        Ok(Arc::new(actual))
    }

    /// Returns true if the cost is in the body.
    pub fn is_in_body(&self) -> bool {
        !matches!(self, ActualCost::Header(_))
    }
}

/// Reads the number that ends an estimate.
fn fallback(text: &str) -> Option<u64> {
    let digits = text.starts_with(|first| matches!(first, '1'..='9'))
        && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number <= MAX_EXACT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_json::{RequestBodyEnd, RequestJson};

    #[test]
    fn estimates_are_read() {
        let good = ["1", "2000", "9007199254740991", "{2000}", "{request.bytes|1000}"];
        let paths = ["{request.json.max_completion_tokens|request.json.max_tokens|2000}"];
        for text in good.into_iter().chain(paths) {
            assert!(CostEstimate::parse(text).is_ok(), "{text}");
        }
        let many = format!("{{{}1}}", "request.bytes|".repeat(SOURCES_MAX + 1));
        let bad = [
            "",
            "0",
            "-1",
            "1.5",
            "02",
            "+2",
            "9007199254740992",
            "{}",
            "{|1}",
            "{request.bytes}",
            "{request.bytes|0}",
            "{request.bytes|x}",
            "{request.json|1}",
            "{request.json.|1}",
            "{response.bytes|1}",
            "{request.bytes||1}",
            "x{request.bytes|1}",
            "{request.bytes|1}x",
            &many,
        ];
        for text in bad {
            assert!(CostEstimate::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_largest_number_counts() {
        let estimate =
            CostEstimate::parse("{request.json.a|request.json.b.0|request.bytes|7}").unwrap();
        // body, bytes, estimate
        let cases = [
            (r#"{"a":5,"b":[6]}"#, Some(3), 6),
            (r#"{"a":9,"b":[6]}"#, Some(8), 9),
            // All of the body has been read, so its length is known.
            (r#"{"a":0,"b":[6]}"#, None, 15),
            (r#"{"a":-5,"b":[1.5]}"#, Some(40), 40),
            (r#"{"a":"5"}"#, Some(0), 5),
            (r#"{"a":1e400}"#, None, MAX_EXACT),
            (r#"{}"#, None, 2),
            (r#"{"a":5"#, Some(1), 7),
            (r#"{"a":50]"#, Some(1), 50),
            ("", None, 7),
        ];
        for (body, request_bytes, want) in cases {
            let mut reader = RequestJson::reader(estimate.json_paths().cloned());
            reader.feed(body.as_bytes());
            let json = reader.finish(RequestBodyEnd::Complete);
            let facts = Facts { request_bytes, request_json: Some(&json), ..Facts::default() };
            assert_eq!(estimate.of(&facts), want, "{body}");
        }
        assert_eq!(estimate.of(&Facts::default()), 7);
        let unread = RequestJson::unread();
        let facts = Facts { request_json: Some(&unread), ..Facts::default() };
        assert_eq!(estimate.of(&facts), 1, "the least that it can cost");
        assert_eq!(estimate.of(&Facts { request_bytes: Some(40), ..facts }), 40);
        assert_eq!(CostEstimate::fixed(7).of(&facts), 7);
    }

    #[test]
    fn places_of_the_actual_cost_are_read() {
        let json = ActualCost::Json(JsonPath::parse("usage.total_tokens").unwrap());
        let good = [
            ("{response.header.X-Tokens}", ActualCost::Header("x-tokens".into())),
            ("{response.bytes}", ActualCost::Bytes),
            ("{response.json.usage.total_tokens}", json),
        ];
        for (text, want) in good {
            assert_eq!(ActualCost::parse(text).as_deref(), Ok(&want), "{text}");
        }
        let bad = [
            "",
            "5",
            "{response}",
            "{response.}",
            "{response.bytes.x}",
            "{response.json}",
            "{response.json.}",
            "{response.header.}",
            "{response.header.a b}",
            "{request.bytes}",
            "response.bytes",
            "{response.bytes",
        ];
        for text in bad {
            assert!(ActualCost::parse(text).is_err(), "{text}");
        }
    }
}
