//! `UsageForm`: the forms in which answers of language models report the tokens that they used.

use tollgate::time::MAX_EXACT;

use crate::json_path::JsonPath;

/// The numbers that make up a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UsageForm {
    /// The number at the path itself.
    Number,
    /// A path that ends in `usage.total_tokens`. The total is there, or under `response` in events of OpenAI's
    /// Responses API. Anthropic reports parts and no total: in `usage`, and at the beginning of a stream in
    /// `message.usage`; later events repeat the parts that have grown.
    Tokens,
}

/// The names before the name of a number.
const TOTAL: [&str; 2] = ["usage", "total_tokens"];

/// The parts of the usage that make up the total.
const PARTS: [&str; 4] =
    ["output_tokens", "input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"];

impl UsageForm {
    pub(super) fn of(path: &JsonPath) -> UsageForm {
        if path.ends_with(&TOTAL) { UsageForm::Tokens } else { UsageForm::Number }
    }

    /// The paths to look for: the totals first, then both places of each part.
    pub(super) fn paths(self, path: &JsonPath) -> Vec<JsonPath> {
        if self == UsageForm::Number {
            return vec![path.clone()];
        }
        let before = path.len() - TOTAL.len();
        let [usage, total] = TOTAL;
        let mut paths = vec![path.clone(), path.branch(before, &["response", usage, total])];
        for part in PARTS {
            paths.push(path.branch(before, &[usage, part]));
            paths.push(path.branch(before, &["message", usage, part]));
        }
        paths
    }

    /// The cost by the numbers at these paths. An answer that was cut off before its last number of output tokens has
    /// at least one of them for each of its `content_events`.
    pub(super) fn cost(self, numbers: &[Option<u64>], content_events: u64) -> Option<u64> {
        if self == UsageForm::Number {
            return numbers[0];
        }
        if let Some(total) = numbers[0].or(numbers[1]) {
            return Some(total);
        }
        let mut parts = [None; PARTS.len()];
        for (part, places) in parts.iter_mut().zip(numbers[2..].chunks(2)) {
            *part = places[0].or(places[1]);
        }
        parts.iter().any(Option::is_some).then(|| {
            let [output, others @ ..] = parts.map(Option::unwrap_or_default);
            let is_final = numbers[2].is_some();
            let output = if is_final { output } else { output.max(content_events) };
            // Four numbers below 2^53 do not overflow.
            (output + others.iter().sum::<u64>()).min(MAX_EXACT)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_was_not_reported_to_the_end_counts_by_its_events() {
        let none = None;
        // Total, output tokens at the end, output and input tokens at the beginning, events | cost
        let rows = [
            (Some(90), none, none, none, 9, Some(90)),
            (none, Some(3), Some(1), Some(20), 9, Some(23)),
            (none, none, Some(1), Some(20), 9, Some(29)),
            (none, none, Some(12), Some(20), 9, Some(32)),
            (none, none, none, none, 9, None),
        ];
        for (total, output, first_output, input, events, want) in rows {
            let numbers = [total, none, output, first_output, none, input, none, none, none, none];
            assert_eq!(UsageForm::Tokens.cost(&numbers, events), want);
        }
    }
}
