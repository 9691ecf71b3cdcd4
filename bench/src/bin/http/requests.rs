//! What is asked: requests about many keys, written before the clock starts.
//!
//! 65,536 keys are drawn from 100,000, which makes about 48,000 different ones: more than the
//! processor's inner caches hold, few enough that a server has met them all within a second.

use std::fmt::Write;

use tollgate_bench::random::Random;

/// Checks in a batch.
pub(crate) const BATCH: usize = 64;

const DRAWS: usize = 1 << 16;
const KEYS: u64 = 100_000;

/// Requests one behind the other in memory, sent in this order, over and over.
pub(crate) struct Requests {
    text: String,
    /// Where each request ends.
    ends: Vec<usize>,
    /// How many decisions one request asks for.
    pub(crate) decisions: usize,
}

impl Requests {
    /// `GET /v1/forward-auth`, as a proxy asks. The same bytes go to bare hyper and to nginx.
    pub(crate) fn forward_auth() -> Requests {
        Requests::of(1, |users| {
            format!(
                "GET /v1/forward-auth HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Method: GET\r\n\
                 X-Forwarded-Uri: /api/search\r\nX-Forwarded-For: 192.0.2.1\r\n\
                 X-User-Id: {:05}\r\n\r\n",
                users[0]
            )
        })
    }

    /// The shortest request that names a caller: what nginx needs when it is not asked by a proxy.
    pub(crate) fn short() -> Requests {
        Requests::of(1, |users| {
            format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {:05}\r\n\r\n", users[0])
        })
    }

    /// `POST /v1/check`. The same bytes go to bare hyper.
    pub(crate) fn check() -> Requests {
        Requests::of(1, |users| post("/v1/check", &question(users[0])))
    }

    /// `POST /v1/check/batch`.
    pub(crate) fn batch() -> Requests {
        Requests::of(BATCH, |users| {
            let questions: Vec<String> = users.iter().map(|&user| question(user)).collect();
            post("/v1/check/batch", &format!("[{}]", questions.join(",")))
        })
    }

    fn of(decisions: usize, request: impl Fn(&[u64]) -> String) -> Requests {
        let mut random = Random::new(1);
        let users: Vec<u64> = (0..DRAWS).map(|_| random.below(KEYS)).collect();
        let (mut text, mut ends) = (String::new(), Vec::new());
        for users in users.chunks_exact(decisions) {
            text.push_str(&request(users));
            ends.push(text.len());
        }
        Requests { text, ends, decisions }
    }

    /// How many there are before they come again.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The request at `index`, below `len`.
    pub(crate) fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text.as_bytes()[start..self.ends[index]]
    }
}

/// What the check API is asked about one caller.
fn question(user: u64) -> String {
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
    use std::collections::HashSet;

    #[test]
    fn about_48_000_callers_ask() {
        let requests = Requests::short();
        let different: HashSet<&[u8]> = (0..requests.len()).map(|it| requests.get(it)).collect();
        assert_eq!(requests.len(), 65_536);
        assert!((47_500..48_500).contains(&different.len()), "{}", different.len());
    }

    #[test]
    fn a_batch_asks_64_questions_and_says_how_long_it_is() {
        let requests = Requests::batch();
        assert_eq!((requests.len(), requests.decisions), (1_024, 64));
        let request = std::str::from_utf8(requests.get(1_023)).expect("it is ASCII");
        let (head, body) = request.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
        assert_eq!(body.matches("\"user\"").count(), 64);
    }
}
