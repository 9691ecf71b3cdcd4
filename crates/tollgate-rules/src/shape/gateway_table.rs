//! The table's objects of the gateway: upstreams and routes.

use super::kinds::{DURATION, HOST, NAME, PATH, SHARE, WORD, field, map, object, required};
use super::{FreeFields, ShapeKind, ShapeObject, TextPattern};
use crate::gateway_settings::UpstreamSettings;

const URL: ShapeKind = ShapeKind::PatternText(
    "an address such as `http://127.0.0.1:3000`",
    TextPattern::Strict("^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@]+/?$"),
);
const URLS: ShapeKind = ShapeKind::Either(&[
    URL,
    ShapeKind::BoundedList("addresses", &URL, UpstreamSettings::ADDRESSES_MAX),
]);

pub(super) static CORS: ShapeObject = object(
    "cors",
    "`cors`",
    "The web pages that may read the responses that the gateway makes itself.",
    &[
        required(
            "origins",
            ShapeKind::Either(&[WORD, ShapeKind::List("origins", &WORD)]),
            "The origins of the pages: scheme, host and port, or `*` for all.",
            "origins: [\"https://app.example\"]",
        ),
        field(
            "expose",
            ShapeKind::Boolean,
            "Let pages read the header fields of limits, such as Retry-After. The default is false.",
            "expose: true",
        ),
        field(
            "credentials",
            ShapeKind::Boolean,
            "Let pages send cookies with their requests. The default is false.",
            "credentials: true",
        ),
    ],
);

pub(super) static UPSTREAMS: ShapeObject = map(
    "upstreams",
    "upstreams with their addresses",
    "The gateway's upstream servers by name.",
    &FreeFields {
        doc: "The address, or a map with addresses and settings.",
        kind: ShapeKind::Either(&UPSTREAM_FORMS),
        example: "app: \"http://127.0.0.1:3000\"",
        pattern: Some("^[A-Za-z0-9_-]{1,64}$"),
    },
);

static UPSTREAM_FORMS: [ShapeKind; 2] = [URL, ShapeKind::Object(&UPSTREAM)];

static UPSTREAM: ShapeObject = object(
    "upstream",
    "an upstream",
    "Servers that do the same, and how to talk to them.",
    &[
        required(
            "addresses",
            URLS,
            "The servers; each request goes to one of them.",
            "addresses: [\"http://127.0.0.1:3000\"]",
        ),
        field(
            "version",
            ShapeKind::Choice(&["auto", "http1", "http2"]),
            "The HTTP version: `auto` (the default) lets a TLS server choose.",
            "version: auto",
        ),
        field(
            "ca_file",
            WORD,
            "A PEM file with the certificates to trust instead of the system's.",
            "ca_file: ca.pem",
        ),
        field(
            "server_name",
            WORD,
            "The name in the server's certificate, if it is not the host of the address.",
            "server_name: api.internal",
        ),
        field(
            "host",
            ShapeKind::Choice(&["client", "upstream"]),
            "The `Host` that the server sees: the client's (the default), or that of the address.",
            "host: client",
        ),
        field(
            "limit_headers",
            ShapeKind::Choice(&["replace", "keep", "apart"]),
            "Rate limit header fields of the server: replaced (the default), kept, or renamed `Upstream-*`.",
            "limit_headers: replace",
        ),
        field(
            "connect_timeout",
            DURATION,
            "Time for a connection to open, with its TLS handshake. The default is 2s.",
            "connect_timeout: 2s",
        ),
        field(
            "response_timeout",
            DURATION,
            "Time from the end of a request to the head of its response. The default is 60s.",
            "response_timeout: 60s",
        ),
        field(
            "idle_timeout",
            DURATION,
            "Time without a byte of the body of a request or a response. The default is 60s.",
            "idle_timeout: 60s",
        ),
        field(
            "retries",
            ShapeKind::Whole(0, UpstreamSettings::RETRIES_MAX as u64),
            "The most further attempts of one request. The default is 1.",
            "retries: 1",
        ),
        field(
            "retry_budget",
            SHARE,
            "The most retries, as a share of requests in whole percent. The default is 10%.",
            "retry_budget: 10%",
        ),
        field(
            "max_connections",
            ShapeKind::Whole(1, UpstreamSettings::CONNECTIONS_MAX as u64),
            "The most connections of one worker to one address. The default is 1024.",
            "max_connections: 1024",
        ),
        field(
            "eject",
            ShapeKind::Either(&[ShapeKind::Choice(&["none"]), ShapeKind::Object(&EJECT)]),
            "The ejection of an address that fails. The default is 5 failures, for 10s.",
            "eject: { after: 5, for: 10s }",
        ),
        field(
            "health",
            ShapeKind::Object(&HEALTH),
            "An active health check of each address.",
            "health: { path: /healthz }",
        ),
    ],
);

static EJECT: ShapeObject = object(
    "eject",
    "`eject`",
    "The ejection of an address after failures.",
    &[
        required(
            "after",
            ShapeKind::Whole(1, 1_000),
            "Consecutive failures: no connection, a timeout, a reset, a broken response.",
            "after: 5",
        ),
        required(
            "for",
            DURATION,
            "Time without requests, doubled by each further ejection up to ten times as long.",
            "for: 10s",
        ),
    ],
);

static HEALTH: ShapeObject = object(
    "health",
    "`health`",
    "An active health check of each address.",
    &[
        required(
            "path",
            ShapeKind::PatternText("a path such as `/healthz`", TextPattern::Strict("^/")),
            "The path, requested with GET; a status from 200 to 399 is healthy.",
            "path: /healthz",
        ),
        field(
            "interval",
            DURATION,
            "Time between two requests. The default is 5s.",
            "interval: 5s",
        ),
        field(
            "timeout",
            DURATION,
            "Time for the response, no longer than the interval. The default is 1s.",
            "timeout: 1s",
        ),
        field(
            "healthy",
            ShapeKind::Whole(1, 100),
            "Consecutive successes that make an address healthy. The default is 2.",
            "healthy: 2",
        ),
        field(
            "unhealthy",
            ShapeKind::Whole(1, 100),
            "Consecutive failures that make an address unhealthy. The default is 2.",
            "unhealthy: 2",
        ),
    ],
);

pub(super) static ROUTE: ShapeObject = object(
    "route",
    "a route",
    "The upstream of one host and path.",
    &[
        field(
            "host",
            HOST,
            "The host, or `*.` and the end of several; without it, every host.",
            "host: \"*.example.com\"",
        ),
        required("path", PATH, "A path pattern.", "path: \"/{*rest}\""),
        required("upstream", NAME, "The name of an upstream.", "upstream: app"),
    ],
);
