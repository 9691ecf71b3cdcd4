//! `JsonPath`: the way to a number in a JSON document, such as `usage.total_tokens`.

use std::fmt;
use std::sync::Arc;

use crate::Problem;

/// The most parts of a path.
pub(crate) const SEGMENTS_MAX: usize = 16;

/// The most bytes of one part. Longer names of members are never equal to it.
pub(crate) const SEGMENT_BYTES_MAX: usize = 64;

/// A path in a JSON document: names of members, and numbers of items in arrays, counted from 0. Cheap to
/// clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonPath(Arc<[Box<str>]>);

impl JsonPath {
    /// Reads a path with dots between its parts, such as `choices.0.tokens`.
    pub fn parse(text: &str) -> Result<JsonPath, Problem> {
        let bad = |what: String| {
            Problem::new(format!("the JSON path {text:?} {what}"))
                .hint("write names with dots between them, such as `usage.total_tokens`")
        };
        let segments: Arc<[Box<str>]> = text.split('.').map(Into::into).collect();
        if segments.len() > SEGMENTS_MAX {
            return Err(bad(format!("has more than {SEGMENTS_MAX} parts")));
        }
        for segment in &*segments {
            let is_odd =
                |char: char| char.is_whitespace() || char.is_control() || "{}|\"\\".contains(char);
            match segment.chars().find(|char| is_odd(*char)) {
                _ if segment.is_empty() => return Err(bad("has an empty part".into())),
                _ if segment.len() > SEGMENT_BYTES_MAX => {
                    return Err(bad(format!("has a part of more than {SEGMENT_BYTES_MAX} bytes")));
                }
                Some(char) => return Err(bad(format!("contains {char:?}"))),
                None => {}
            }
        }
        Ok(JsonPath(segments))
    }

    /// A path that consists of these parts after the first `keep` parts of this one.
    pub(crate) fn branch(&self, keep: usize, parts: &[&str]) -> JsonPath {
        let kept = self.0.iter().take(keep).cloned();
        JsonPath(kept.chain(parts.iter().map(|part| (*part).into())).collect())
    }

    /// Number of parts.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The part of this number, if the path has so many.
    pub(crate) fn segment(&self, number: usize) -> Option<&str> {
        self.0.get(number).map(|segment| &**segment)
    }

    /// Returns true if the last parts are these.
    pub(crate) fn ends_with(&self, parts: &[&str]) -> bool {
        let start = self.0.len().checked_sub(parts.len());
        start.is_some_and(|start| {
            self.0[start..].iter().zip(parts).all(|(own, part)| **own == **part)
        })
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, segment) in self.0.iter().enumerate() {
            f.write_str(if index > 0 { "." } else { "" })?;
            f.write_str(segment)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_and_written() {
        for text in ["a", "usage.total_tokens", "choices.0.n", "größe", "x-y_z.$"] {
            assert_eq!(JsonPath::parse(text).unwrap().to_string(), text);
        }
        let long = "a".repeat(SEGMENT_BYTES_MAX + 1);
        let deep = vec!["a"; SEGMENTS_MAX + 1].join(".");
        for text in ["", ".", "a.", ".a", "a..b", "a b", "a|b", "{a}", "a\"", "a\n", &long, &deep] {
            assert!(JsonPath::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn ends_and_branches() {
        let path = JsonPath::parse("x.usage.total_tokens").unwrap();
        assert!(
            path.ends_with(&["usage", "total_tokens"]) && !path.ends_with(&["total_tokens", "x"])
        );
        assert!(!JsonPath::parse("total_tokens").unwrap().ends_with(&["usage", "total_tokens"]));
        assert_eq!(path.branch(1, &["message", "usage"]).to_string(), "x.message.usage");
    }
}
