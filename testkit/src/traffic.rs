//! Requests as clients send them: the benchmarks, the instruction counts and the training of release builds send the
//! same bytes.

use std::fmt::Write;

/// The method of Envoy's rate limit service.
pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// `GET /v1/forward-auth` as a proxy sends it.
#[must_use]
pub fn forward_auth(user: u64) -> String {
    format!(
        "GET /v1/forward-auth HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Method: GET\r\n\
         X-Forwarded-Uri: /api/search\r\nX-Forwarded-For: 192.0.2.1\r\nX-User-Id: {user:05}\r\n\r\n"
    )
}

/// `POST /v1/check`.
#[must_use]
pub fn check(user: u64) -> String {
    post("/v1/check", &check_body(user))
}

/// `POST /v1/check/batch` with one check for each user.
#[must_use]
pub fn check_batch(users: &[u64]) -> String {
    let bodies: Vec<String> = users.iter().map(|&user| check_body(user)).collect();
    post("/v1/check/batch", &format!("[{}]", bodies.join(",")))
}

/// `CL.THROTTLE` with a quota that is never exhausted.
#[must_use]
pub fn throttle(user: u64) -> String {
    resp_command(&["CL.THROTTLE", &format!("user:{user:07}"), "10000", "10000", "1"])
}

/// `TG.CHECK`, decided by the same rule as [`check`].
#[must_use]
pub fn tg_check(user: u64) -> String {
    let user = format!("{user:05}");
    resp_command(&["TG.CHECK", "method", "GET", "path", "/api/search", "user", &user])
}

/// A `ShouldRateLimit` message with its gRPC prefix, about one address of the domain `bench`.
#[must_use]
pub fn should_rate_limit(user: u64) -> Vec<u8> {
    let [.., a, b, c] = user.to_be_bytes();
    let address = format!("10.{a}.{b}.{c}");
    let entry = [field(1, b"remote_address"), field(2, address.as_bytes())].concat();
    let descriptor = field(1, &entry);
    let message = [field(1, b"bench"), field(2, &descriptor)].concat();
    let length = u32::try_from(message.len()).expect("a short message");
    [&[0], &length.to_be_bytes()[..], &message].concat()
}

/// Encodes a command as clients send it: an array of bulk strings.
#[must_use]
pub fn resp_command(words: &[&str]) -> String {
    let word = |word: &&str| format!("${}\r\n{word}\r\n", word.len());
    format!("*{}\r\n{}", words.len(), words.iter().map(word).collect::<String>())
}

/// A field of a protobuf message that holds bytes, shorter than 128.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    const LENGTH_DELIMITED: u8 = 2;
    let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 128);
    [&[number << 3 | LENGTH_DELIMITED, length.expect("a short field")], bytes].concat()
}

/// The body of a check for one caller.
fn check_body(user: u64) -> String {
    format!(r#"{{"method":"GET","path":"/api/search","ip":"192.0.2.1","user":"{user:05}"}}"#)
}

fn post(path: &str, body: &str) -> String {
    let mut request = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n");
    write!(request, "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n", body.len())
        .expect("writing to a String cannot fail");
    request + body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_asks_64_questions_and_says_how_long_it_is() {
        let request = check_batch(&[7; 64]);
        let (head, body) = request.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
        assert_eq!(body.matches(r#""user":"00007""#).count(), 64);
    }

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        assert_eq!(resp_command(&["GET", "key"]), "*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
    }
}
