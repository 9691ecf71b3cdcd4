//! "Did you mean …?"

use strsim::osa_distance;

/// The name among `known` that `given` was most likely meant to be.
pub fn suggest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Long texts are not misspelt names, and the comparison takes time for each pair of letters.
    if given.len() > 64 {
        return None;
    }
    let given = normal(given);
    let letters = given.chars().count();
    let near = known.into_iter().filter_map(|name| {
        let most = if name.len() < 4 { 1 } else { name.len().div_ceil(3) };
        // Names of very different length need not be compared letter by letter.
        let comparable = name.len().abs_diff(letters) <= most;
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
