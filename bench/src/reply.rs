//! A reply of Tollgate as constants, for floors: servers that send the same bytes and decide nothing.

/// The header fields of a decision by the one rule of `rules/one-rule.yaml`.
pub const DECISION_FIELDS: [(&str, &str); 5] = [
    ("x-ratelimit-limit", "1000000"),
    ("x-ratelimit-remaining", "999999"),
    ("x-ratelimit-reset", "1794845688"),
    ("ratelimit-policy", "\"api-1s\";q=1000000;w=1"),
    ("ratelimit", "\"api-1s\";r=999999;t=1"),
];

/// The body of the answer to `/v1/check`.
pub const DECISION_JSON: &str = concat!(
    r#"{"allowed":true,"rule":"api","limit":"1000000/second burst 1000000","remaining":999999,"#,
    r#""retry_after_ms":0,"reset_after_ms":1,"delay_ms":0,"max":1000000,"reset_at":1794845688,"#,
    r#""decided_by":"memory","limits":[{"rule":"api","limit":"1000000/second burst 1000000","#,
    r#""allowed":true,"remaining":999999,"retry_after_ms":0,"reset_after_ms":1}]}"#,
);

/// Checks that Tollgate and a floor send the same bytes, apart from digits and from the order of fields: a floor that
/// sends less would be a lower floor.
pub fn check_same_shape(tollgate: &str, floor: &str) -> Result<(), String> {
    if shape(tollgate) == shape(floor) {
        return Ok(());
    }
    Err(format!("Tollgate sends\n{tollgate}\nand the floor sends\n{floor}"))
}

/// The sorted lines in small letters with `0` for each digit; the date's names of days and months are left out.
fn shape(reply: &str) -> Vec<String> {
    let digit = |letter: char| if letter.is_ascii_digit() { '0' } else { letter };
    let lines = reply.lines().map(|line| line.to_ascii_lowercase());
    let lines = lines.filter(|line| !line.starts_with("date: "));
    let mut lines: Vec<String> = lines.map(|line| line.chars().map(digit).collect()).collect();
    lines.sort();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_digits_dates_and_the_order_of_fields_may_differ() {
        let reply = "HTTP/1.1 200 OK\r\na: 12\r\nDate: Mon\r\n\r\n{}";
        let rows = [
            ("HTTP/1.1 200 OK\r\ndate: Tue\r\nA: 99\r\n\r\n{}", true),
            ("HTTP/1.1 200 OK\r\na: 123\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\n\r\n{}", false),
            ("HTTP/1.1 200 OK\r\na: 12\r\n\r\n{ }", false),
        ];
        for (floor, same) in rows {
            assert_eq!(check_same_shape(reply, floor).is_ok(), same, "{floor:?}");
        }
    }
}
