//! Who may use the control plane.
//!
//! Without tokens the listener is on loopback, but that alone keeps nobody out who can make a browser on
//! this machine send a request: a page under a name of its own that resolves to loopback, or a form
//! of any page. The first is told by the host it asks for, the second by what a form cannot send.

use std::net::SocketAddr;

use http::header::{HOST, ORIGIN};
use http::{HeaderName, Method, Response, StatusCode, request};

use crate::listeners::connection::ResponseBody;
use crate::listeners::host::{self, Host};
use crate::listeners::tokens::Tokens;
use crate::reply;

/// What a write carries where no token is needed: a form of another site cannot send it.
static X_TOLLGATE_ADMIN: HeaderName = HeaderName::from_static("x-tollgate-admin");

/// What browsers say about who made them ask.
static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Who asks, as the audit log names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AdminCaller {
    pub(super) peer: SocketAddr,
    /// The number of the token in its file, from 1.
    pub(super) token: Option<usize>,
}

/// Refuses a request that says twice what it is admitted by: whoever wrote the second may not have written
/// the first.
pub(super) fn check_single_headers(
    head: &request::Parts,
) -> Result<(), Box<Response<ResponseBody>>> {
    let names = [&HOST, &ORIGIN, &SEC_FETCH_SITE, &X_TOLLGATE_ADMIN];
    let twice = |name: &&&HeaderName| head.headers.get_all(**name).iter().nth(1).is_some();
    match names.iter().find(twice) {
        None => Ok(()),
        Some(name) => {
            let message = format!("The header field `{name}` stands twice: send it once.");
            Err(Box::new(reply::error(StatusCode::BAD_REQUEST, &message)))
        }
    }
}

/// Refuses whoever came under a name that is not this machine's, if no tokens guard the listener.
pub(super) fn check_host(
    tokens: Option<&Tokens>,
    head: &request::Parts,
) -> Result<(), Box<Response<ResponseBody>>> {
    if tokens.is_some() || names_loopback(head) {
        return Ok(());
    }
    Err(forbidden(
        "Without --admin-token-file this listener answers to localhost and loopback addresses only: \
         use one of them as the host.",
    ))
}

/// Admits whoever has a token, where that is needed, and is no page of another site.
pub(super) fn admit(
    tokens: Option<&Tokens>,
    head: &request::Parts,
    peer: SocketAddr,
) -> Result<AdminCaller, Box<Response<ResponseBody>>> {
    let token = match tokens {
        None => None,
        Some(tokens) => {
            let number = tokens.admit(&head.headers);
            Some(number.ok_or_else(|| Box::new(reply::unauthorized()))?)
        }
    };
    if is_from_another_site(head) {
        return Err(forbidden(
            "A page of another site makes a browser ask this: the control plane answers none.",
        ));
    }
    Ok(AdminCaller { peer, token })
}

/// Refuses a change that a form could have sent, if no token shows that it is meant.
pub(super) fn check_admin_header(
    tokens: Option<&Tokens>,
    head: &request::Parts,
) -> Result<(), Box<Response<ResponseBody>>> {
    let marked = head.headers.get(&X_TOLLGATE_ADMIN).is_some_and(|value| value == "1");
    if tokens.is_some() || only_reads(head) || marked {
        return Ok(());
    }
    Err(forbidden(
        "Without --admin-token-file a request that changes something needs the header \
         `X-Tollgate-Admin: 1`, which a form of another site cannot send.",
    ))
}

/// Whether a request changes nothing.
pub(super) fn only_reads(head: &request::Parts) -> bool {
    head.method == Method::GET || head.method == Method::HEAD
}

fn forbidden(why: &str) -> Box<Response<ResponseBody>> {
    Box::new(reply::error(StatusCode::FORBIDDEN, why))
}

/// Browsers say so themselves; programs say nothing.
fn is_from_another_site(head: &request::Parts) -> bool {
    let site = head.headers.get(&SEC_FETCH_SITE).map(|value| value.as_bytes());
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return true;
    }
    let Some(origin) = head.headers.get(ORIGIN) else { return false };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    origin.is_none_or(|(_, host)| Some(host) != host::requested_host(head))
}

/// Whether the request was addressed to this machine by a name that only this machine has.
fn names_loopback(head: &request::Parts) -> bool {
    host::requested_host(head).and_then(Host::parse).is_some_and(Host::is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_sites_are_told_by_what_browsers_say() {
        // Headers; from another site
        let rows: [(&[(&str, &str)], bool); 10] = [
            (&[], false),
            (&[("origin", "http://localhost:9190")], false),
            (&[("origin", "http://localhost:9191")], true),
            (&[("origin", "https://evil.example")], true),
            (&[("origin", "null")], true),
            (&[("sec-fetch-site", "same-origin")], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("sec-fetch-site", "cross-site")], true),
            (&[("sec-fetch-site", "same-site")], true),
            (&[("sec-fetch-site", "none"), ("origin", "http://evil.example")], true),
        ];
        for (fields, other) in rows {
            let mut request = http::Request::post("/api/reload").header(HOST, "localhost:9190");
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            let (head, ()) = request.body(()).unwrap().into_parts();
            assert_eq!(is_from_another_site(&head), other, "{fields:?}");
        }
    }
}
