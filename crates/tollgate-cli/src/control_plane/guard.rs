//! Access control of the control plane.
//!
//! Without tokens the listener is on loopback, but that does not stop a web page that makes a browser on
//! this machine send a request: a page whose own name resolves to loopback (DNS rebinding), or a form on any
//! page. The first is detected by its `Host`, the second by a header that a form cannot send.

use std::net::SocketAddr;

use http::header::{HOST, ORIGIN};
use http::{HeaderName, Method, Response, StatusCode, request};

use crate::listeners::host::{self, Host};
use crate::listeners::response_body::ResponseBody;
use crate::listeners::tokens::Tokens;
use crate::reply;

/// Header of a write without a token: a form of another site cannot send it.
static X_TOLLGATE_ADMIN: HeaderName = HeaderName::from_static("x-tollgate-admin");

/// Header with which browsers tell the site that caused a request.
static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The caller, as the audit log shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdminCaller {
    pub(super) peer: SocketAddr,
    /// The number of the token in its file, from 1.
    pub(super) token: Option<usize>,
}

/// Refuses a request with a duplicate header of those that grant access: the second may come from someone
/// else.
pub(super) fn check_single_headers(
    head: &request::Parts,
) -> Result<(), Box<Response<ResponseBody>>> {
    let names = [&HOST, &ORIGIN, &SEC_FETCH_SITE, &X_TOLLGATE_ADMIN];
    let twice = |name: &&&HeaderName| head.headers.get_all(**name).iter().nth(1).is_some();
    match names.iter().find(twice) {
        None => Ok(()),
        Some(name) => {
            let message = format!("The header `{name}` appears twice: send it once.");
            Err(Box::new(reply::error(StatusCode::BAD_REQUEST, &message)))
        }
    }
}

/// Refuses a request whose `Host` is not this machine, if the listener has no tokens.
pub(super) fn check_host(
    tokens: Option<&Tokens>,
    head: &request::Parts,
) -> Result<(), Box<Response<ResponseBody>>> {
    if tokens.is_some() || names_loopback(head) {
        return Ok(());
    }
    Err(forbidden(
        "Without --admin-token-file this listener accepts only localhost and loopback addresses as the \
         host: use one of them.",
    ))
}

/// Admits a request with a token, if one is needed, unless a web page of another site caused it.
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
            "A web page of another site caused this request: the control plane refuses those.",
        ));
    }
    Ok(AdminCaller { peer, token })
}

/// Refuses a change that a form could have sent, if no token shows that it is intended.
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

/// Returns true if the request changes nothing.
pub(super) fn only_reads(head: &request::Parts) -> bool {
    head.method == Method::GET || head.method == Method::HEAD
}

fn forbidden(why: &str) -> Box<Response<ResponseBody>> {
    Box::new(reply::error(StatusCode::FORBIDDEN, why))
}

/// Returns true if a browser says that another site caused the request. Programs send no such header.
fn is_from_another_site(head: &request::Parts) -> bool {
    let site = head.headers.get(&SEC_FETCH_SITE).map(|value| value.as_bytes());
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return true;
    }
    let Some(origin) = head.headers.get(ORIGIN) else { return false };
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    origin.is_none_or(|(_, host)| Some(host) != host::requested_host(&head.into()))
}

/// Returns true if the `Host` is a loopback address or localhost.
fn names_loopback(head: &request::Parts) -> bool {
    host::requested_host(&head.into()).and_then(Host::parse).is_some_and(Host::is_loopback)
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
