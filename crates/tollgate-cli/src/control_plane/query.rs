//! Query parameters of the admin API. Every endpoint names those that it knows; any other is an error, because a
//! misspelt one would be ignored silently.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use http::{Response, StatusCode};
use percent_encoding::percent_decode_str;

use crate::listeners::response_body::ResponseBody;
use crate::reply;

/// The parameters of a request. Bound: the head of a request.
#[derive(Debug)]
pub(super) struct QueryFields {
    fields: Vec<(String, String)>,
}

/// Text that says what is wrong with a query, and what would be right.
#[derive(Debug, PartialEq)]
pub(super) struct QueryError(String);

impl QueryError {
    /// The response with the status 400.
    pub(super) fn response(&self) -> Response<ResponseBody> {
        reply::error(StatusCode::BAD_REQUEST, &self.0)
    }
}

impl QueryFields {
    /// Reads a query whose parameters are all among the known ones, each at most once.
    pub(super) fn parse(query: Option<&str>, known: &[&str]) -> Result<QueryFields, QueryError> {
        let mut fields: Vec<(String, String)> = Vec::new();
        for field in query.unwrap_or_default().split('&').filter(|field| !field.is_empty()) {
            let (name, value) = field.split_once('=').unwrap_or((field, ""));
            let (name, value) = (decoded(name)?, decoded(value)?);
            if !known.contains(&&*name) {
                return Err(unknown(&name, known));
            }
            if fields.iter().any(|(other, _)| *other == name) {
                return Err(QueryError(format!("`{name}` appears twice: send it once.")));
            }
            fields.push((name, value));
        }
        Ok(QueryFields { fields })
    }

    /// The value of a parameter; `None` if it is missing or empty.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let value = self.fields.iter().find(|(other, _)| other == name)?;
        Some(&*value.1).filter(|value| !value.is_empty())
    }

    /// A number in this range, or the default.
    pub(super) fn number<T>(
        &self,
        name: &str,
        range: RangeInclusive<T>,
        default: T,
    ) -> Result<T, QueryError>
    where
        T: FromStr + PartialOrd + Display,
    {
        let Some(text) = self.text(name) else { return Ok(default) };
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| {
            let (from, to) = range.into_inner();
            QueryError(format!("{name} is a number from {from} to {to}."))
        })
    }

    /// One of the words of a list; the first is the default.
    pub(super) fn choice<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Result<T, QueryError> {
        let text = self.text(name).unwrap_or(words[0].0);
        let chosen = words.iter().find(|(word, _)| *word == text);
        chosen.map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
            QueryError(format!("{name} is one of {}.", words.join(", ")))
        })
    }
}

/// Error of a parameter that is not known.
fn unknown(name: &str, known: &[&str]) -> QueryError {
    let known = match known {
        [] => "this path takes none".to_string(),
        names => format!("there are {}", names.join(", ")),
    };
    QueryError(format!("There is no parameter `{name}`: {known}."))
}

/// Decodes a part of a query as forms and browsers encode it.
fn decoded(part: &str) -> Result<String, QueryError> {
    let spaced = part.replace('+', " ");
    let text = percent_decode_str(&spaced).decode_utf8();
    let text = text.map_err(|_| QueryError("The query is not UTF-8 text.".into()))?;
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["n", "rule"];

    #[test]
    fn values_are_decoded_and_empty_ones_are_missing() {
        // Query; rule
        let rows = [
            (None, None),
            (Some(""), None),
            (Some("rule="), None),
            (Some("rule"), None),
            (Some("&rule=api&"), Some("api")),
            (Some("n=3&rule=a%20b+c%2B%26"), Some("a b c+&")),
            (Some("%72ule=%E2%82%AC"), Some("€")),
        ];
        for (query, want) in rows {
            assert_eq!(QueryFields::parse(query, KNOWN).unwrap().text("rule"), want, "{query:?}");
        }
    }

    #[test]
    fn a_wrong_query_is_told_what_would_be_right() {
        let fail = |query: &str| QueryFields::parse(Some(query), KNOWN).unwrap_err().0;
        assert_eq!(fail("rul=a"), "There is no parameter `rul`: there are n, rule.");
        assert_eq!(fail("n=1&n=2"), "`n` appears twice: send it once.");
        assert_eq!(fail("rule=%FF"), "The query is not UTF-8 text.");
        let none = QueryFields::parse(Some("x"), &[]).unwrap_err().0;
        assert_eq!(none, "There is no parameter `x`: this path takes none.");
    }

    #[test]
    fn numbers_and_words_have_bounds_and_defaults() {
        let read = |query: &str| {
            let query = QueryFields::parse(Some(query), KNOWN).unwrap();
            let words = [("order", 1), ("name", 2)];
            (query.number("n", 1..=100, 20), query.choice("rule", &words))
        };
        assert_eq!(read(""), (Ok(20), Ok(1)));
        assert_eq!(read("n=100&rule=name"), (Ok(100), Ok(2)));
        for wrong in ["0", "101", "x", "-1", "1.5", "99999999999999999999"] {
            let (number, _) = read(&format!("n={wrong}"));
            assert_eq!(number.unwrap_err().0, "n is a number from 1 to 100.", "{wrong}");
        }
        assert_eq!(read("rule=NAME").1.unwrap_err().0, "rule is one of order, name.");
    }
}
