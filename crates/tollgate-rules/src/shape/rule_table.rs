//! The table, continued: the fields of a rule.

use super::kinds::{
    ACTUAL, ALGORITHM, CIDR, DURATION, ENDPOINT_PATTERN, HOST, INTEGER_MAX, KEY, LIMITS, METHOD,
    NAME, PATH, PATH_EXPRESSION, RATE, RESERVE, SHARE, TEXTS, WORD, field, map, object, one_of,
    required,
};
use super::{FreeFields, ShapeKind, ShapeObject};
use crate::fair::Fair;

/// The highest bound of adaptive concurrency.
const ADAPTIVE_MAX: u64 = 100_000;

pub(super) static RULE: ShapeObject = object(
    "rule",
    "a rule",
    "One rule: the requests it applies to, the key it counts, and its limits.",
    &[
        required(
            "name",
            NAME,
            "A unique name: letters, digits, `_` and `-`, at most 64 characters.",
            "name: api",
        ),
        field(
            "match",
            ShapeKind::Object(&MATCH),
            "Conditions for the rule to apply; all must hold. Without it, the rule always applies.",
            "match: { path: \"/api/{*rest}\", method: [GET, POST] }",
        ),
        field(
            "fallback",
            ShapeKind::Boolean,
            "Apply only if no other enforced rule with a `match` applies.",
            "fallback: true",
        ),
        required(
            "key",
            KEY,
            "The key that is counted: `{user|ip}` is the first fact present, `{user}:{path}` combines facts, `global` is one key for all.",
            "key: \"{user|ip}\"",
        ),
        field(
            "limits",
            LIMITS,
            "The limits. A request passes only if all of them allow it. Required, unless the rule has `concurrency`, `fair` or `websocket`.",
            "limits: [10/second, 100/minute]",
        ),
        field(
            "tiered",
            ShapeKind::Boolean,
            "Multiply the limits by the multiplier of the caller's tier.",
            "tiered: true",
        ),
        field(
            "cost",
            ShapeKind::Either(&[
                ShapeKind::Whole(0, INTEGER_MAX),
                ShapeKind::Choice(&["bytes"]),
                ShapeKind::Object(&COST),
            ]),
            "The cost of a request in units. The default is 1. `bytes` counts the bytes of both bodies as they pass; in a queue it shapes them.",
            "cost: { default: 1, \"POST /api/upload\": 10 }",
        ),
        field(
            "mode",
            ShapeKind::Either(&[
                ShapeKind::Choice(&["enforce", "shadow", "off"]),
                ShapeKind::Object(&MODE),
            ]),
            "`enforce` (the default), `shadow` (count, never refuse), `off`, or enforce for a share of keys.",
            "mode: shadow",
        ),
        field(
            "soft",
            ShapeKind::Boolean,
            "Warn in a response header instead of refusing.",
            "soft: true",
        ),
        field(
            "count_denied",
            ShapeKind::Boolean,
            "Charge refused requests as well.",
            "count_denied: false",
        ),
        field(
            "ban",
            ShapeKind::Object(&BAN),
            "Block a key that is refused too often.",
            "ban: { after: 10, within: 1m, for: 15m }",
        ),
        field(
            "on_store_failure",
            ShapeKind::Choice(&["local", "open", "closed"]),
            "The behaviour while the shared store is unavailable: `local` (the default) decides with this instance's share, `open` admits, `closed` refuses.",
            "on_store_failure: closed",
        ),
        field(
            "on_change",
            ShapeKind::Choice(&["keep", "reset", "scale"]),
            "The treatment of used units when the numbers of a limit change. The default is keep.",
            "on_change: keep",
        ),
        field(
            "concurrency",
            ShapeKind::Either(&[
                ShapeKind::Whole(1, u32::MAX as u64),
                ShapeKind::Choice(&["adaptive"]),
                ShapeKind::Object(&CONCURRENCY),
            ]),
            "The most requests of one key in progress at the same time: a number, or `adaptive`, which finds it by measured latency.",
            "concurrency: 3",
        ),
        field(
            "refusal",
            ShapeKind::Object(&REFUSAL),
            "The response to refused clients, instead of a problem document.",
            "refusal: { status: 503, body: \"Try again later.\" }",
        ),
        field(
            "fair",
            ShapeKind::Object(&FAIR),
            "Let requests wait their turn instead of refusing them, fairly among the keys of the rule.",
            "fair: { wait: 2s, per_key: 10, total: 1000 }",
        ),
        field(
            "websocket",
            ShapeKind::Object(&WEBSOCKET),
            "Limits inside a WebSocket.",
            "websocket: { connections: 2, messages: 10/second }",
        ),
        field(
            "consistency",
            ShapeKind::Either(&[ShapeKind::Choice(&["strict"]), ShapeKind::Object(&CONSISTENCY)]),
            "The precision of counts across several instances. The default is strict.",
            "consistency: strict",
        ),
        field(
            "store",
            WORD,
            "The name of the store that counts. The default is `default`.",
            "store: default",
        ),
    ],
);

// Conditions contain conditions: only statics may refer to each other in a circle.
pub(super) static MATCH_KIND: ShapeKind = ShapeKind::Object(&MATCH);

pub(super) static MATCH: ShapeObject = object(
    "match",
    "a `match`",
    "Conditions; all must hold.",
    &[
        field(
            "path",
            ShapeKind::Either(&[PATH, ShapeKind::List("paths", &PATH)]),
            "Path patterns; one must match.",
            "path: \"/api/{*rest}\"",
        ),
        field(
            "glob",
            ShapeKind::Either(&[PATH_EXPRESSION, ShapeKind::List("globs", &PATH_EXPRESSION)]),
            "Globs on the path; one must match.",
            "glob: \"/files/*.json\"",
        ),
        field(
            "regex",
            ShapeKind::Either(&[
                PATH_EXPRESSION,
                ShapeKind::List("regular expressions", &PATH_EXPRESSION),
            ]),
            "Regular expressions on the whole path; one must match.",
            "regex: \"/v[0-9]+/.*\"",
        ),
        field(
            "method",
            ShapeKind::Either(&[METHOD, ShapeKind::List("methods", &METHOD)]),
            "Methods; one must match.",
            "method: [GET, POST]",
        ),
        field(
            "host",
            ShapeKind::Either(&[
                HOST,
                ShapeKind::List("hosts", &HOST),
                ShapeKind::Object(&TEXT_TEST),
            ]),
            "Hosts, or `*.` and the end of several; one must match. Compared in one spelling.",
            "host: [api.example.com, \"*.example.net\"]",
        ),
        field(
            "header",
            ShapeKind::Object(&HEADER_TESTS),
            "Header fields and their values; all must match.",
            "header: { x-plan: [gold, silver] }",
        ),
        field("user", TEXTS, "Users.", "user: [alice, bob]"),
        field("tier", TEXTS, "Tiers.", "tier: free"),
        field("api_key", TEXTS, "API keys.", "api_key: { present: true }"),
        field(
            "entry",
            ShapeKind::Object(&ENTRY_TESTS),
            "Entries of an Envoy descriptor and their values; all must match.",
            "entry: { generic_key: slow }",
        ),
        field("domain", TEXTS, "The domain of an Envoy descriptor.", "domain: edge"),
        field(
            "ip",
            ShapeKind::Either(&[CIDR, ShapeKind::List("networks", &CIDR)]),
            "Networks; the client's address must be in one.",
            "ip: [10.0.0.0/8]",
        ),
        field(
            "upgrade",
            ShapeKind::Choice(&["websocket"]),
            "Requests to upgrade to a WebSocket.",
            "upgrade: websocket",
        ),
        field(
            "all",
            ShapeKind::List("conditions", &MATCH_KIND),
            "Conditions that must all hold.",
            "all: [{ method: GET }, { tier: free }]",
        ),
        field(
            "any",
            ShapeKind::List("conditions", &MATCH_KIND),
            "Conditions of which at least one must hold.",
            "any: [{ path: /a }, { path: /b }]",
        ),
        field(
            "not",
            ShapeKind::Object(&MATCH),
            "Conditions that must not hold together.",
            "not: { method: OPTIONS }",
        ),
    ],
);

pub(super) static HEADER_TESTS: ShapeObject = map(
    "header_tests",
    "header fields with their values",
    "Conditions by the name of a header field.",
    &FreeFields {
        doc: "The test of the field's value.",
        kind: TEXTS,
        example: "x-plan: [gold, silver]",
        pattern: None,
    },
);

pub(super) static ENTRY_TESTS: ShapeObject = map(
    "entry_tests",
    "entries with their values",
    "Conditions by the name of an entry.",
    &FreeFields {
        doc: "The test of the entry's value.",
        kind: TEXTS,
        example: "generic_key: [slow, slower]",
        pattern: None,
    },
);

pub(super) static TEXT_TEST: ShapeObject = one_of(
    object(
        "text_test",
        "a condition on a text",
        "A test of a text; exactly one field.",
        &[
            field("present", ShapeKind::Choice(&["true"]), "The text is present.", "present: true"),
            field("glob", WORD, "The text matches this glob.", "glob: \"bot-*\""),
            field(
                "regex",
                WORD,
                "The whole text matches this regular expression.",
                "regex: \"bot-[0-9]+\"",
            ),
        ],
    ),
    "write `{ present: true }`, `{ glob: \"bot-*\" }` or `{ regex: \"bot-[0-9]+\" }`",
);

pub(super) static LIMIT_FIELDS: ShapeObject = object(
    "limit",
    "a limit",
    "A rate, and the algorithm that counts it.",
    &[
        required("rate", RATE, "Units per period.", "rate: 100/minute"),
        field(
            "burst",
            ShapeKind::Whole(1, INTEGER_MAX),
            "The most units that may pass at one instant.",
            "burst: 20",
        ),
        field(
            "algorithm",
            ALGORITHM,
            "The algorithm. The default is token_bucket with a burst, and sliding_window_counter, an estimate, without.",
            "algorithm: token_bucket",
        ),
        field(
            "queue",
            ShapeKind::Boolean,
            "leaky_bucket: delay requests instead of refusing them.",
            "queue: true",
        ),
        field(
            "align",
            ShapeKind::Text(
                "`epoch`, `first_hit`, `calendar` or an instant such as `2027-01-01T09:00:00Z`",
            ),
            "fixed_window: the start of windows: epoch, first_hit, calendar, or an instant.",
            "align: calendar",
        ),
        field(
            "time_zone",
            ShapeKind::Text("a time zone such as `Europe/Berlin`"),
            "The time zone of calendar windows. The default is UTC.",
            "time_zone: Europe/Berlin",
        ),
        field(
            "stagger",
            ShapeKind::Boolean,
            "fixed_window: start the windows of each key at an offset of their own.",
            "stagger: true",
        ),
        field(
            "buckets",
            ShapeKind::Whole(1, tollgate::limit::MAX_BUCKETS as u64),
            "sliding_window_counter: the number of sub-windows; the rate is then never exceeded.",
            "buckets: 60",
        ),
    ],
);

pub(super) static COST: ShapeObject = ShapeObject {
    one_field: None,
    id: "cost",
    noun: "a `cost`",
    doc: "Costs by endpoint, of which the most specific wins; or an estimate that is reserved until the true cost is known.",
    fields: &[
        field(
            "default",
            ShapeKind::Whole(0, INTEGER_MAX),
            "The cost of all other endpoints.",
            "default: 1",
        ),
        field(
            "reserve",
            RESERVE,
            "The estimate that is charged until the true cost is known: a number, or places in the request and a number for requests without them.",
            "reserve: \"{request.json.max_tokens|2000}\"",
        ),
        field(
            "actual",
            ACTUAL,
            "The place in the response that has the true cost: a header field, the length of the body, or a number in its JSON.",
            "actual: \"{response.json.usage.total_tokens}\"",
        ),
        field(
            "unreadable",
            ShapeKind::Choice(&["refuse", "estimate"]),
            "The treatment of a request whose body `reserve` needs and that cannot be read: it is refused, or costs the number at the end of `reserve`. The default is `estimate`.",
            "unreadable: refuse",
        ),
    ],
    free_fields: Some(&FreeFields {
        doc: "The cost of a request to this endpoint.",
        kind: ShapeKind::Whole(0, INTEGER_MAX),
        example: "\"POST /api/upload\": 10",
        pattern: Some(ENDPOINT_PATTERN),
    }),
};

pub(super) static MODE: ShapeObject = object(
    "mode",
    "a `mode`",
    "Enforce the rule for a share of keys, always the same ones.",
    &[required("enforce", SHARE, "The share of keys.", "enforce: 25%")],
);

pub(super) static BAN: ShapeObject = object(
    "ban",
    "a `ban`",
    "Block a key after so many refusals within a period.",
    &[
        required("after", ShapeKind::Whole(1, 10_000), "The number of refusals.", "after: 10"),
        required("within", DURATION, "The period in which refusals are counted.", "within: 1m"),
        required("for", DURATION, "The duration of the block.", "for: 15m"),
    ],
);

pub(super) static REFUSAL: ShapeObject = object(
    "refusal",
    "a `refusal`",
    "The response to refused clients.",
    &[
        field(
            "status",
            ShapeKind::Whole(400, 599),
            "The status. The default is 429.",
            "status: 503",
        ),
        required("body", WORD, "The body, at most 16 KiB.", "body: \"Try again later.\""),
        field(
            "content_type",
            WORD,
            "The content type of the body. The default is `text/plain; charset=utf-8`.",
            "content_type: application/json",
        ),
    ],
);

pub(super) static CONCURRENCY: ShapeObject = object(
    "concurrency",
    "a `concurrency`",
    "A bound on requests in progress that is found by measured latency.",
    &[required(
        "adaptive",
        ShapeKind::Object(&ADAPTIVE),
        "The lowest and the highest bound.",
        "adaptive: { min: 4, max: 500 }",
    )],
);

pub(super) static ADAPTIVE: ShapeObject = object(
    "adaptive",
    "`adaptive`",
    "The range of an adaptive bound.",
    &[
        field(
            "min",
            ShapeKind::Whole(1, ADAPTIVE_MAX),
            "The lowest bound. The default is 4.",
            "min: 4",
        ),
        field(
            "max",
            ShapeKind::Whole(1, ADAPTIVE_MAX),
            "The highest bound. The default is 1000.",
            "max: 500",
        ),
    ],
);

pub(super) static FAIR: ShapeObject = object(
    "fair",
    "`fair`",
    "A queue in front of the limits and of `concurrency`: requests wait their turn, fairly among the keys of the rule.",
    &[
        required("wait", DURATION, "The longest wait of a request, at most 24h.", "wait: 2s"),
        field(
            "per_key",
            ShapeKind::Whole(1, Fair::TOTAL_MAX as u64),
            "The most waiting requests of one key. The default is 100.",
            "per_key: 10",
        ),
        field(
            "total",
            ShapeKind::Whole(1, Fair::TOTAL_MAX as u64),
            "The most waiting requests of the rule, at most 100000. The default is 10000.",
            "total: 1000",
        ),
        field(
            "weight_by",
            ShapeKind::Choice(&["tier"]),
            "The fact that gives keys a larger share: a tier's multiplier is its weight.",
            "weight_by: tier",
        ),
    ],
);

pub(super) static WEBSOCKET: ShapeObject = object(
    "websocket",
    "`websocket`",
    "Limits of WebSocket connections, in the gateway. Rates count for each connection.",
    &[
        field(
            "connections",
            ShapeKind::Whole(1, u32::MAX as u64),
            "The most connections of one key at the same time.",
            "connections: 2",
        ),
        field(
            "messages",
            RATE,
            "The rate of messages of one connection. Control frames count as messages.",
            "messages: 10/second",
        ),
        field(
            "bytes",
            ShapeKind::Text("a rate of bytes such as `64KiB/second`"),
            "The rate of bytes of one connection, as they are on the wire.",
            "bytes: 64KiB/second",
        ),
        field(
            "message_bytes",
            ShapeKind::Text("a number of bytes such as `1MiB`"),
            "The longest message, in bytes on the wire.",
            "message_bytes: 1MiB",
        ),
        field("idle", DURATION, "The longest time without a byte in either direction.", "idle: 5m"),
        field("lifetime", DURATION, "The longest life of a connection.", "lifetime: 12h"),
        field(
            "on_excess",
            ShapeKind::Choice(&["close", "wait"]),
            "The reaction to frames beyond a rate: `close` (the default) ends the connection, `wait` reads no further until there is room.",
            "on_excess: wait",
        ),
        field(
            "close_code",
            ShapeKind::Whole(1_008, 1_013),
            "The close code for connections beyond a rate: 1008 (the default) or 1013.",
            "close_code: 1013",
        ),
        field(
            "direction",
            ShapeKind::Choice(&["client", "server", "both"]),
            "The frames that are limited: those of the client (the default), of the upstream, or each of them.",
            "direction: both",
        ),
    ],
);

pub(super) static CONSISTENCY: ShapeObject = one_of(
    object(
        "consistency",
        "a `consistency`",
        "The precision of counts across several instances; exactly one field.",
        &[
            field(
                "leased",
                SHARE,
                "Each instance leases this share of a limit at a time.",
                "leased: 1%",
            ),
            field(
                "local_sync",
                DURATION,
                "Each instance decides alone and synchronizes at this interval.",
                "local_sync: 1s",
            ),
        ],
    ),
    "write `strict`, `{ leased: 1% }` or `{ local_sync: 1s }`",
);
