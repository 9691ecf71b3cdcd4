//! The table, continued: what is inside a rule.

use super::kinds::{
    ALGORITHM, CIDR, DURATION, ENDPOINT_PATTERN, INTEGER_MAX, KEY, LIMITS, METHOD, NAME, PATH,
    PATH_EXPRESSION, RATE, SHARE, TEXTS, WORD, field, map, object, one_of, required,
};
use super::{FreeFields, ShapeKind, ShapeObject};

pub(super) static RULE: ShapeObject = object(
    "rule",
    "a rule",
    "When it applies, whose use it counts, and how much is allowed.",
    &[
        required("name", NAME, "Unique: letters, digits, `_` and `-`, at most 64.", "name: api"),
        field(
            "match",
            ShapeKind::Object(&MATCH),
            "When the rule applies; without it, always. All conditions must hold.",
            "match: { path: \"/api/{*rest}\", method: [GET, POST] }",
        ),
        field(
            "fallback",
            ShapeKind::Boolean,
            "Apply only where no other enforced rule with a `match` matched.",
            "fallback: true",
        ),
        required(
            "key",
            KEY,
            "Whose use is counted: `{user|ip}` is the first fact present, `{user}:{path}` combines, global is one key for all.",
            "key: \"{user|ip}\"",
        ),
        required(
            "limits",
            LIMITS,
            "How much is allowed. All must allow.",
            "limits: [10/second, 100/minute]",
        ),
        field(
            "tiered",
            ShapeKind::Boolean,
            "Multiply the limits for the caller's tier.",
            "tiered: true",
        ),
        field(
            "cost",
            ShapeKind::Either(&[ShapeKind::Whole(0, INTEGER_MAX), ShapeKind::Object(&COST)]),
            "What a request costs. The default is 1.",
            "cost: { default: 1, \"POST /api/upload\": 10 }",
        ),
        field(
            "mode",
            ShapeKind::Either(&[
                ShapeKind::Choice(&["enforce", "shadow", "off"]),
                ShapeKind::Object(&MODE),
            ]),
            "Enforce the rule, which is the default; only watch (shadow); or switch it off.",
            "mode: shadow",
        ),
        field("soft", ShapeKind::Boolean, "Warn in a header, do not refuse.", "soft: true"),
        field(
            "count_denied",
            ShapeKind::Boolean,
            "Charge refused requests, too.",
            "count_denied: false",
        ),
        field(
            "ban",
            ShapeKind::Object(&BAN),
            "Refusals that earn a longer block.",
            "ban: { after: 10, within: 1m, for: 15m }",
        ),
        field(
            "on_store_failure",
            ShapeKind::Choice(&["local", "open", "closed"]),
            "While a shared store does not answer: decide alone, which is the default; admit; or refuse.",
            "on_store_failure: closed",
        ),
        field(
            "on_change",
            ShapeKind::Choice(&["keep", "reset", "scale"]),
            "What becomes of the used part when the numbers change. The default is keep.",
            "on_change: keep",
        ),
        field(
            "concurrency",
            ShapeKind::Whole(1, u32::MAX as u64),
            "At most so many requests of one key at once.",
            "concurrency: 3",
        ),
        field(
            "fair",
            ShapeKind::Object(&FAIR),
            "Share a limit fairly among keys.",
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
            "How exactly several instances agree. The default is strict.",
            "consistency: strict",
        ),
        field("store", WORD, "Which store counts. The default is default.", "store: default"),
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
            "Path patterns; one must fit.",
            "path: \"/api/{*rest}\"",
        ),
        field(
            "glob",
            ShapeKind::Either(&[PATH_EXPRESSION, ShapeKind::List("globs", &PATH_EXPRESSION)]),
            "Globs on the path; one must fit.",
            "glob: \"/files/*.json\"",
        ),
        field(
            "regex",
            ShapeKind::Either(&[
                PATH_EXPRESSION,
                ShapeKind::List("regular expressions", &PATH_EXPRESSION),
            ]),
            "Regular expressions on the whole path; one must fit.",
            "regex: \"/v[0-9]+/.*\"",
        ),
        field(
            "method",
            ShapeKind::Either(&[METHOD, ShapeKind::List("methods", &METHOD)]),
            "Methods; one must be the request's.",
            "method: [GET, POST]",
        ),
        field(
            "header",
            ShapeKind::Object(&HEADER_TESTS),
            "Header fields and their values; all must hold.",
            "header: { x-plan: [gold, silver] }",
        ),
        field("user", TEXTS, "Users.", "user: [alice, bob]"),
        field("tier", TEXTS, "Tiers.", "tier: free"),
        field("api_key", TEXTS, "API keys.", "api_key: { present: true }"),
        field(
            "entry",
            ShapeKind::Object(&ENTRY_TESTS),
            "Entries of an Envoy descriptor and their values; all must hold.",
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
            "Requests that ask for a WebSocket.",
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
            "Conditions of which one must hold.",
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
        doc: "What holds of the field's value.",
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
        doc: "What holds of the entry's value.",
        kind: TEXTS,
        example: "generic_key: [slow, slower]",
        pattern: None,
    },
);

pub(super) static TEXT_TEST: ShapeObject = one_of(
    object(
        "text_test",
        "a condition on a text",
        "What holds of a text; exactly one field.",
        &[
            field("present", ShapeKind::Choice(&["true"]), "There is one.", "present: true"),
            field("glob", WORD, "It fits this glob.", "glob: \"bot-*\""),
            field(
                "regex",
                WORD,
                "It fits this regular expression, whole.",
                "regex: \"bot-[0-9]+\"",
            ),
        ],
    ),
    "write `{ present: true }`, `{ glob: \"bot-*\" }` or `{ regex: \"bot-[0-9]+\" }`",
);

pub(super) static LIMIT_FIELDS: ShapeObject = object(
    "limit",
    "a limit",
    "A rate and how it is counted.",
    &[
        required("rate", RATE, "How much in which time.", "rate: 100/minute"),
        field("burst", ShapeKind::Whole(1, INTEGER_MAX), "How much may pass at once.", "burst: 20"),
        field(
            "algorithm",
            ALGORITHM,
            "Who decides. With a burst token_bucket, without sliding_window_counter.",
            "algorithm: token_bucket",
        ),
        field("queue", ShapeKind::Boolean, "leaky_bucket: delay, do not refuse.", "queue: true"),
        field(
            "align",
            ShapeKind::Text(
                "`epoch`, `first_hit`, `calendar` or an instant such as `2027-01-01T09:00:00Z`",
            ),
            "fixed_window: where windows begin: epoch, first_hit, calendar, or an instant.",
            "align: calendar",
        ),
        field(
            "time_zone",
            ShapeKind::Text("a time zone such as `Europe/Berlin`"),
            "Of calendar windows. The default is UTC.",
            "time_zone: Europe/Berlin",
        ),
        field(
            "stagger",
            ShapeKind::Boolean,
            "fixed_window: each key's windows begin at an offset of their own.",
            "stagger: true",
        ),
        field(
            "buckets",
            ShapeKind::Whole(1, tollgate::limit::MAX_BUCKETS as u64),
            "sliding_window_counter: count in so many whole parts, never above the rate.",
            "buckets: 60",
        ),
    ],
);

pub(super) static COST: ShapeObject = ShapeObject {
    one_field: None,
    id: "cost",
    noun: "a `cost`",
    doc: "Costs by endpoint, the most specific wins; or what is reserved until the true cost is known.",
    fields: &[
        field(
            "default",
            ShapeKind::Whole(0, INTEGER_MAX),
            "Where no endpoint matches.",
            "default: 1",
        ),
        field(
            "reserve",
            ShapeKind::Whole(1, INTEGER_MAX),
            "What is taken before the true cost is known.",
            "reserve: 2000",
        ),
        field(
            "actual",
            ShapeKind::Text("a response header such as `\"{response.header.x-tokens-used}\"`"),
            "The response header that has the true cost.",
            "actual: \"{response.header.x-tokens-used}\"",
        ),
    ],
    free_fields: Some(&FreeFields {
        doc: "What requests to this endpoint cost.",
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
    "So many refusals within a time earn a block.",
    &[
        required("after", ShapeKind::Whole(1, 10_000), "How many refusals.", "after: 10"),
        required("within", DURATION, "In which time.", "within: 1m"),
        required("for", DURATION, "How long the block lasts.", "for: 15m"),
    ],
);

pub(super) static FAIR: ShapeObject = object(
    "fair",
    "`fair`",
    "Share a limit fairly among keys by letting them wait their turn.",
    &[
        required("wait", DURATION, "How long a request may wait.", "wait: 2s"),
        field(
            "per_key",
            ShapeKind::Whole(1, INTEGER_MAX),
            "How many requests of one key may wait.",
            "per_key: 10",
        ),
        field(
            "total",
            ShapeKind::Whole(1, INTEGER_MAX),
            "How many requests may wait.",
            "total: 1000",
        ),
        field(
            "weight_by",
            ShapeKind::Choice(&["tier"]),
            "Whose share is larger.",
            "weight_by: tier",
        ),
    ],
);

pub(super) static WEBSOCKET: ShapeObject = object(
    "websocket",
    "`websocket`",
    "Limits inside a WebSocket.",
    &[
        field(
            "connections",
            ShapeKind::Whole(1, INTEGER_MAX),
            "Connections of one key at once.",
            "connections: 2",
        ),
        field("messages", RATE, "Messages of one connection.", "messages: 10/second"),
        field(
            "bytes",
            ShapeKind::Text("a rate of bytes such as `64KiB/second`"),
            "Bytes of one connection.",
            "bytes: 64KiB/second",
        ),
    ],
);

pub(super) static CONSISTENCY: ShapeObject = one_of(
    object(
        "consistency",
        "a `consistency`",
        "How exactly several instances agree; exactly one field.",
        &[
            field("leased", SHARE, "Each instance borrows this share of a limit.", "leased: 1%"),
            field(
                "local_sync",
                DURATION,
                "Each instance decides alone and settles this often.",
                "local_sync: 1s",
            ),
        ],
    ),
    "write `strict`, `{ leased: 1% }` or `{ local_sync: 1s }`",
);
