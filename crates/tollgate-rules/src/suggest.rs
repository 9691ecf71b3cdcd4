//! "Did you mean …?"

use std::cell::Cell;

use strsim::osa_distance;

/// Most names that are compared letter by letter for all suggestions of one file together.
const COMPARISONS_MAX: u32 = 20_000;

/// The comparisons that are left. A file may have thousands of unknown names, and as many that they could be.
#[derive(Debug)]
pub(crate) struct SuggestionBudget(Cell<u32>);

impl Default for SuggestionBudget {
    fn default() -> SuggestionBudget {
        SuggestionBudget(Cell::new(COMPARISONS_MAX))
    }
}

impl SuggestionBudget {
    /// The name among `known` that `given` was most likely meant to be; `None` once the budget is spent.
    pub(crate) fn suggest<'a>(
        &self,
        given: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Option<&'a str> {
        if self.0.get() == 0 {
            return None;
        }
        let take = || {
            let left = self.0.get();
            self.0.set(left.saturating_sub(1));
            left > 0
        };
        nearest(given, known, take)
    }
}

/// The name among `known` that `given` was most likely meant to be.
pub fn suggest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest(given, known, || true)
}

/// Finds the nearest name, and asks before each comparison if it may be made.
fn nearest<'a>(
    given: &str,
    known: impl IntoIterator<Item = &'a str>,
    may_compare: impl Fn() -> bool,
) -> Option<&'a str> {
    // Long texts are not misspelt names, and the comparison takes time for each pair of letters.
    if given.len() > 64 {
        return None;
    }
    let given = normal(given);
    let letters = given.chars().count();
    let near = known.into_iter().filter_map(|name| {
        let most = if name.len() < 4 { 1 } else { name.len().div_ceil(3) };
        // Names of very different length need not be compared letter by letter.
        let comparable = name.len().abs_diff(letters) <= most && may_compare();
        let distance = comparable.then(|| osa_distance(&given, &normal(name)))?;
        (distance <= most).then_some((distance, name))
    });
    near.min().map(|(_, name)| name)
}

/// Spellings that people mix up count as equal.
fn normal(name: &str) -> String {
    name.chars().map(|c| if c == '-' { '_' } else { c.to_ascii_lowercase() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_of_unknown_names_cost_no_more_than_the_budget() {
        let known: Vec<String> = (0..1_000).map(|number| format!("team-{number:04}")).collect();
        let names = || known.iter().map(String::as_str);
        let budget = SuggestionBudget::default();
        assert_eq!(budget.suggest("taem-0007", names()), Some("team-0007"));
        let compared = Cell::new(0_u32);
        for number in 0..8_000 {
            let given = format!("maet-{number:04}");
            let counted = names().inspect(|_| compared.set(compared.get() + 1));
            budget.suggest(&given, counted);
        }
        // The names are not even looked at once nothing is left to compare.
        assert!(compared.get() <= COMPARISONS_MAX, "{}", compared.get());
        assert_eq!(budget.suggest("team-0007", names()), None);
    }

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        let known = ["limits", "match", "key", "count_denied", "sliding_window_log"];
        let cases = [
            ("limit", Some("limits")),
            ("limtis", Some("limits")),
            ("Match", Some("match")),
            ("kye", Some("key")),
            ("count-denied", Some("count_denied")),
            ("slidingwindowlog", Some("sliding_window_log")),
            ("colour", None),
            ("", None),
        ];
        for (given, want) in cases {
            assert_eq!(suggest(given, known), want, "{given}");
        }
        // Equally near names give the same result in any order.
        assert_eq!(suggest("one-x", ["one-b", "one-a"]), Some("one-a"));
    }
}
