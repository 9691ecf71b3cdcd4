//! Sizes of memory as people write them: `64MiB`, `1GiB`.

/// Least and most memory for bodies.
const BODY_MEMORY_RANGE: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 40;

pub(super) fn parse_body_memory(text: &str) -> Result<usize, String> {
    let bytes = tollgate_rules::parse_bytes(text).map_err(|problem| problem.to_string())?;
    let in_range = Some(bytes).filter(|bytes| BODY_MEMORY_RANGE.contains(bytes));
    let bytes = in_range.ok_or("write at least 1MiB and at most 1024GiB: 64MiB")?;
    usize::try_from(bytes).map_err(|_| "more than this machine can address".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_bodies_has_a_unit_and_a_range() {
        assert_eq!(parse_body_memory("64MiB"), Ok(64 << 20));
        assert_eq!(parse_body_memory("1MiB"), Ok(1 << 20));
        for text in ["", "64", "1023KiB", "0MiB", "1025GiB", "64 parsecs"] {
            assert!(parse_body_memory(text).is_err(), "{text}");
        }
    }
}
