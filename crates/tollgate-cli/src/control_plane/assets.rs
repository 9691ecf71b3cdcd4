//! The dashboard's page and its files: `GET /` and `GET /assets/NAME`. They are part of the program and hold no data, so
//! they need no token; the page asks for one and sends it with its requests to the API.

use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue,
    IF_NONE_MATCH, REFERRER_POLICY,
};
use http::{Response, StatusCode};

use crate::listeners::response_body::ResponseBody;

/// A file of the page.
struct DashboardFile {
    /// Path under which it is served.
    path: &'static str,
    media_type: &'static str,
    content: &'static [u8],
}

/// A row of the table of files.
macro_rules! file {
    ($path:literal, $media_type:literal, $name:literal) => {
        DashboardFile {
            path: $path,
            media_type: $media_type,
            content: include_bytes!(concat!("dashboard/", $name)),
        }
    };
}

/// All files of the page: the only place that lists them.
const FILES: &[DashboardFile] = &[
    file!("/", "text/html; charset=utf-8", "index.html"),
    file!("/assets/base.css", "text/css; charset=utf-8", "base.css"),
    file!("/assets/parts.css", "text/css; charset=utf-8", "parts.css"),
    file!("/assets/icon.svg", "image/svg+xml", "icon.svg"),
    file!("/assets/api.js", "text/javascript; charset=utf-8", "api.js"),
    file!("/assets/app.js", "text/javascript; charset=utf-8", "app.js"),
    file!("/assets/banner.js", "text/javascript; charset=utf-8", "banner.js"),
    file!("/assets/candidate.js", "text/javascript; charset=utf-8", "candidate.js"),
    file!("/assets/charts.js", "text/javascript; charset=utf-8", "charts.js"),
    file!("/assets/dialog.js", "text/javascript; charset=utf-8", "dialog.js"),
    file!("/assets/dom.js", "text/javascript; charset=utf-8", "dom.js"),
    file!("/assets/events.js", "text/javascript; charset=utf-8", "events.js"),
    file!("/assets/explanation.js", "text/javascript; charset=utf-8", "explanation.js"),
    file!("/assets/format.js", "text/javascript; charset=utf-8", "format.js"),
    file!("/assets/gateway.js", "text/javascript; charset=utf-8", "gateway.js"),
    file!("/assets/history_charts.js", "text/javascript; charset=utf-8", "history_charts.js"),
    file!("/assets/key_actions.js", "text/javascript; charset=utf-8", "key_actions.js"),
    file!("/assets/keys.js", "text/javascript; charset=utf-8", "keys.js"),
    file!("/assets/links.js", "text/javascript; charset=utf-8", "links.js"),
    file!("/assets/live.js", "text/javascript; charset=utf-8", "live.js"),
    file!("/assets/overview.js", "text/javascript; charset=utf-8", "overview.js"),
    file!("/assets/playground.js", "text/javascript; charset=utf-8", "playground.js"),
    file!("/assets/reloads.js", "text/javascript; charset=utf-8", "reloads.js"),
    file!("/assets/rules.js", "text/javascript; charset=utf-8", "rules.js"),
    file!("/assets/theme.js", "text/javascript; charset=utf-8", "theme.js"),
];

/// The page runs its own script and style, and speaks to its own server only. Nothing may frame it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The file of a path; `None` if there is none.
pub(super) fn page_file(path: &str, headers: &HeaderMap) -> Option<Response<ResponseBody>> {
    let file = FILES.iter().find(|file| file.path == path)?;
    let tag = entity_tag(file.content);
    let is_known = headers.get_all(IF_NONE_MATCH).iter().any(|known| names_tag(known, &tag));
    let mut response = match is_known {
        true => Response::new(ResponseBody::default()),
        false => Response::new(ResponseBody::from(Bytes::from_static(file.content))),
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (CONTENT_TYPE, file.media_type),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        // Browsers ask each time, so that a page never runs with the script of another version.
        (CACHE_CONTROL, "no-cache"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.extend(HeaderValue::from_str(&tag).ok().map(|tag| (ETAG, tag)));
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    Some(response)
}

/// The entity tag of a content. It tells versions of the program apart; nothing depends on it being hard to guess.
fn entity_tag(content: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}

/// Returns true if a field `If-None-Match` names the tag.
fn names_tag(field: &HeaderValue, tag: &str) -> bool {
    let tags = field.to_str().unwrap_or_default().split(',').map(str::trim);
    tags.map(|one| one.strip_prefix("W/").unwrap_or(one)).any(|one| one == tag || one == "*")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Status of the answer to a request for the page with this `If-None-Match`.
    fn status(known: Option<&str>) -> u16 {
        let known = known.map(|known| (IF_NONE_MATCH, HeaderValue::from_str(known).unwrap()));
        let headers = HeaderMap::from_iter(known);
        page_file("/", &headers).unwrap().status().as_u16()
    }

    #[test]
    fn a_known_file_is_not_sent_again() {
        let tag = entity_tag(FILES[0].content);
        let rows = [
            (None, 200),
            (Some("\"0\"".to_string()), 200),
            (Some(tag.clone()), 304),
            (Some(format!("W/{tag}")), 304),
            (Some(format!("\"0\", {tag}")), 304),
            (Some("*".to_string()), 304),
        ];
        for (known, want) in rows {
            assert_eq!(status(known.as_deref()), want, "{known:?}");
        }
    }

    #[test]
    fn files_have_a_policy_and_other_paths_are_not_files() {
        for file in FILES {
            let response = page_file(file.path, &HeaderMap::new()).unwrap();
            assert_eq!(response.body().bytes(), file.content, "{}", file.path);
            assert_eq!(response.headers()[CONTENT_SECURITY_POLICY], POLICY);
            assert_eq!(response.headers()[CACHE_CONTROL], "no-cache");
        }
        for path in ["/assets", "/assets/", "/assets/../app.js", "/index.html", "/assets/APP.js"] {
            assert!(page_file(path, &HeaderMap::new()).is_none(), "{path}");
        }
    }

    #[test]
    fn the_page_names_only_files_of_the_table() {
        let page = std::str::from_utf8(FILES[0].content).unwrap();
        let named = page.split(['"', '\'']).filter(|text| text.starts_with("/assets/"));
        for path in named {
            assert!(FILES.iter().any(|file| file.path == path), "{path}");
        }
    }
}
