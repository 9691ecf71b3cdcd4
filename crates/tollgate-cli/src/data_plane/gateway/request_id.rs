//! `X-Request-ID`: names a request in the logs of all servers that it passes.

use std::cell::Cell;

use aws_lc_rs::rand;
use http::header::{HeaderMap, HeaderName, HeaderValue};

/// The field that carries the name.
pub(super) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Longest name that is accepted from a trusted peer.
const BYTES_MAX: usize = 128;

/// Finds the name of a request, or makes one, and writes it into its fields.
pub(super) fn name(fields: &mut HeaderMap, is_trusted: bool) -> HeaderValue {
    if is_trusted && let Some(given) = given_name(fields) {
        return given;
    }
    let made = new_name();
    fields.insert(X_REQUEST_ID, made.clone());
    made
}

/// The name that a peer gave, if there is one and it is short visible text.
fn given_name(fields: &HeaderMap) -> Option<HeaderValue> {
    let mut values = fields.get_all(X_REQUEST_ID).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    let bytes = value.as_bytes();
    let is_visible = bytes.iter().all(u8::is_ascii_graphic);
    (is_visible && (1..=BYTES_MAX).contains(&bytes.len())).then(|| value.clone())
}

/// Makes a name: 128 bits that no other name has. Each thread mixes random numbers of its own with a count, so a name
/// takes neither a lock nor a system call.
fn new_name() -> HeaderValue {
    thread_local!(static STATE: Cell<Option<[u64; 2]>> = const { Cell::new(None) });
    let [high, low] = STATE.get().unwrap_or_else(random_numbers);
    STATE.set(Some([high.wrapping_add(STEP), low.wrapping_add(STEP)]));
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&mixed(high).to_be_bytes());
    bytes[8..].copy_from_slice(&mixed(low).to_be_bytes());
    let digits = const_hex::Buffer::<16, false>::new().const_format(&bytes);
    HeaderValue::from_str(digits.as_str()).expect("hexadecimal digits are visible text")
}

fn random_numbers() -> [u64; 2] {
    let mut numbers = [[0; 8]; 2];
    for number in &mut numbers {
        // Without random numbers the names of two threads are equal: a bad log, but no reason to stop.
        let _ = rand::fill(number);
    }
    numbers.map(u64::from_be_bytes)
}

/// An odd number with bits all over, so that a count by it passes every number before it repeats one.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads each bit of a number over all of it; different numbers stay different.
fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 31)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let number = (number ^ (number >> 29)).wrapping_mul(STEP);
    number ^ (number >> 32)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_name_counts_from_trusted_peers_if_it_is_short_visible_text() {
        let long = "x".repeat(BYTES_MAX);
        let too_long = "x".repeat(BYTES_MAX + 1);
        // Values, trusted | kept
        let rows: [(&[&str], bool, bool); 8] = [
            (&["abc-123"], true, true),
            (&[&long], true, true),
            (&["abc-123"], false, false),
            (&[&too_long], true, false),
            (&["a b"], true, false),
            (&[""], true, false),
            (&["a", "b"], true, false),
            (&[], true, false),
        ];
        for (values, is_trusted, kept) in rows {
            let mut fields = HeaderMap::new();
            for value in values {
                fields.append(X_REQUEST_ID, value.parse().unwrap());
            }
            let name = name(&mut fields, is_trusted);
            assert_eq!(values.first().is_some_and(|value| *value == name), kept, "{values:?}");
            let sent: Vec<_> = fields.get_all(X_REQUEST_ID).iter().collect();
            assert_eq!(sent, [&name], "{values:?}");
        }
    }

    #[test]
    fn names_are_different_on_all_threads() {
        let thread = || std::thread::spawn(|| (0..1_000).map(|_| new_name()).collect::<Vec<_>>());
        let threads = [thread(), thread(), thread()];
        let names = threads.map(|thread| thread.join().unwrap()).concat();
        let different: HashSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
        for name in &names {
            let digits = name.as_bytes();
            assert!(digits.len() == 32 && digits.iter().all(u8::is_ascii_hexdigit), "{name:?}");
        }
    }
}
