//! The HTTP requests of the generator.

use std::fmt::Write;

use tollgate_bench::generator::requests::RequestList;

/// Checks in a batch.
pub(crate) const BATCH: usize = 64;

/// `GET /v1/forward-auth` as a proxy sends it. The same bytes go to bare hyper and to nginx.
pub(crate) fn forward_auth() -> RequestList {
    RequestList::generate(1, |users| {
        format!(
            "GET /v1/forward-auth HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-Method: GET\r\n\
             X-Forwarded-Uri: /api/search\r\nX-Forwarded-For: 192.0.2.1\r\n\
             X-User-Id: {:05}\r\n\r\n",
            users[0]
        )
    })
}

/// The shortest request that names a caller, for nginx without a proxy in front of it.
pub(crate) fn short() -> RequestList {
    RequestList::generate(1, |users| {
        format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {:05}\r\n\r\n", users[0])
    })
}

/// `POST /v1/check`. The same bytes go to bare hyper.
pub(crate) fn check() -> RequestList {
    RequestList::generate(1, |users| post("/v1/check", &question(users[0])))
}

/// `POST /v1/check/batch`.
pub(crate) fn batch() -> RequestList {
    RequestList::generate(BATCH, |users| {
        let questions: Vec<String> = users.iter().map(|&user| question(user)).collect();
        post("/v1/check/batch", &format!("[{}]", questions.join(",")))
    })
}

/// The body of a check for one caller.
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

    #[test]
    fn a_batch_asks_64_questions_and_says_how_long_it_is() {
        let requests = batch();
        assert_eq!((requests.len(), requests.decisions), (1_024, 64));
        let request = std::str::from_utf8(requests.get(1_023)).expect("it is ASCII");
        let (head, body) = request.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.ends_with(&format!("Content-Length: {}", body.len())));
        assert_eq!(body.matches("\"user\"").count(), 64);
    }
}
