//! The table, continued: what is inside a rule.

use super::kinds::{
    ALGORITHM, CIDR, DURATION, ENDPOINT_PATTERN, KEY, LIMITS, METHOD, MOST, NAME, PATH,
    PATH_EXPRESSION, RATE, SHARE, TEXTS, WORD, field, map, object, one_of, required,
};
use super::{Kind, Object, Others};

pub(super) static RULE: Object = object(
    "rule",
    "a rule",
    "When it applies, whose use it counts, and how much is allowed.",
    &[
        required("name", NAME, "Unique: letters, digits, `_` and `-`, at most 64.", "name: api"),
        field(
            "match",
            Kind::Object(&MATCH),
            "When the rule applies; without it, always. All conditions must hold.",
            "match: { path: \"/api/{*rest}\", method: [GET, POST] }",
        ),
        field(
            "fallback",
            Kind::Boolean,
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
            Kind::Boolean,
            "Multiply the limits for the caller's tier.",
            "tiered: true",
        ),
        field(
            "cost",
            Kind::Either(&[Kind::Whole(0, MOST), Kind::Object(&COST)]),
            "What a request costs. The default is 1.",
            "cost: { default: 1, \"POST /api/upload\": 10 }",
        ),
        field(
            "mode",
            Kind::Either(&[Kind::Choice(&["enforce", "shadow", "off"]), Kind::Object(&MODE)]),
            "Enforce the rule, which is the default; only watch (shadow); or switch it off.",
            "mode: shadow",
        ),
        field("soft", Kind::Boolean, "Warn in a header, do not refuse.", "soft: true"),
        field(
            "count_denied",
            Kind::Boolean,
            "Charge refused requests, too.",
            "count_denied: false",
        ),
        field(
            "ban",
            Kind::Object(&BAN),
            "Refusals that earn a longer block.",
            "ban: { after: 10, within: 1m, for: 15m }",
        ),
        field(
            "on_store_failure",
            Kind::Choice(&["local", "open", "closed"]),
            "While a shared store does not answer: decide alone, which is the default; admit; or refuse.",
            "on_store_failure: closed",
        ),
        field(
            "on_change",
            Kind::Choice(&["keep", "reset", "scale"]),
            "What becomes of the used part when the numbers change. The default is keep.",
            "on_change: keep",
        ),
        field(
            "concurrency",
            Kind::Whole(1, u32::MAX as u64),
            "At most so many requests of one key at once.",
            "concurrency: 3",
        ),
        field(
            "fair",
            Kind::Object(&FAIR),
            "Share a limit fairly among keys.",
            "fair: { wait: 2s, per_key: 10, total: 1000 }",
        ),
        field(
            "websocket",
            Kind::Object(&WEBSOCKET),
            "Limits inside a WebSocket.",
            "websocket: { connections: 2, messages: 10/second }",
        ),
        field(
            "consistency",
            Kind::Either(&[Kind::Choice(&["strict"]), Kind::Object(&CONSISTENCY)]),
            "How exactly several instances agree. The default is strict.",
            "consistency: strict",
        ),
        field("store", WORD, "Which store counts. The default is default.", "store: default"),
    ],
);

// Conditions contain conditions: only statics may refer to each other in a circle.
pub(super) static A_MATCH: Kind = Kind::Object(&MATCH);

pub(super) static MATCH: Object = object(
    "match",
    "a `match`",
    "Conditions; all must hold.",
    &[
        field(
            "path",
            Kind::Either(&[PATH, Kind::List("paths", &PATH)]),
            "Path patterns; one must fit.",
            "path: \"/api/{*rest}\"",
        ),
        field(
            "glob",
            Kind::Either(&[PATH_EXPRESSION, Kind::List("globs", &PATH_EXPRESSION)]),
            "Globs on the path; one must fit.",
            "glob: \"/files/*.json\"",
        ),
        field(
            "regex",
            Kind::Either(&[PATH_EXPRESSION, Kind::List("regular expressions", &PATH_EXPRESSION)]),
            "Regular expressions on the whole path; one must fit.",
            "regex: \"/v[0-9]+/.*\"",
        ),
        field(
            "method",
            Kind::Either(&[METHOD, Kind::List("methods", &METHOD)]),
            "Methods; one must be the request's.",
            "method: [GET, POST]",
        ),
        field(
            "header",
            Kind::Object(&HEADER_TESTS),
            "Header fields and their values; all must hold.",
            "header: { x-plan: [gold, silver] }",
        ),
        field("user", TEXTS, "Users.", "user: [alice, bob]"),
        field("tier", TEXTS, "Tiers.", "tier: free"),
        field("api_key", TEXTS, "API keys.", "api_key: { present: true }"),
        field(
            "entry",
            Kind::Object(&ENTRY_TESTS),
            "Entries of an Envoy descriptor and their values; all must hold.",
            "entry: { generic_key: slow }",
        ),
        field("domain", TEXTS, "The domain of an Envoy descriptor.", "domain: edge"),
        field(
            "ip",
            Kind::Either(&[CIDR, Kind::List("networks", &CIDR)]),
            "Networks; the client's address must be in one.",
            "ip: [10.0.0.0/8]",
        ),
        field(
            "upgrade",
            Kind::Choice(&["websocket"]),
            "Requests that ask for a WebSocket.",
            "upgrade: websocket",
        ),
        field(
            "all",
            Kind::List("conditions", &A_MATCH),
            "Conditions that must all hold.",
            "all: [{ method: GET }, { tier: free }]",
        ),
        field(
            "any",
            Kind::List("conditions", &A_MATCH),
            "Conditions of which one must hold.",
            "any: [{ path: /a }, { path: /b }]",
        ),
        field(
            "not",
            Kind::Object(&MATCH),
            "Conditions that must not hold together.",
            "not: { method: OPTIONS }",
        ),
    ],
);

pub(super) static HEADER_TESTS: Object = map(
    "header_tests",
    "header fields with their values",
    "Conditions by the name of a header field.",
    &Others {
        doc: "What holds of the field's value.",
        kind: TEXTS,
        example: "x-plan: [gold, silver]",
        pattern: None,
    },
);

pub(super) static ENTRY_TESTS: Object = map(
    "entry_tests",
    "entries with their values",
    "Conditions by the name of an entry.",
    &Others {
        doc: "What holds of the entry's value.",
        kind: TEXTS,
        example: "generic_key: [slow, slower]",
        pattern: None,
    },
);

pub(super) static TEXT_TEST: Object = one_of(
    object(
        "text_test",
        "a condition on a text",
        "What holds of a text; exactly one field.",
        &[
            field("present", Kind::Choice(&["true"]), "There is one.", "present: true"),
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

pub(super) static LIMIT_FIELDS: Object = object(
    "limit",
    "a limit",
    "A rate and how it is counted.",
    &[
        required("rate", RATE, "How much in which time.", "rate: 100/minute"),
        field("burst", Kind::Whole(1, MOST), "How much may pass at once.", "burst: 20"),
        field(
            "algorithm",
            ALGORITHM,
            "Who decides. With a burst token_bucket, without sliding_window_counter.",
            "algorithm: token_bucket",
        ),
        field("queue", Kind::Boolean, "leaky_bucket: delay, do not refuse.", "queue: true"),
        field(
            "align",
            Kind::Text(
                "`epoch`, `first_hit`, `calendar` or an instant such as `2027-01-01T09:00:00Z`",
            ),
            "fixed_window: where windows begin: epoch, first_hit, calendar, or an instant.",
            "align: calendar",
        ),
        field(
            "time_zone",
            Kind::Text("a time zone such as `Europe/Berlin`"),
            "Of calendar windows. The default is UTC.",
            "time_zone: Europe/Berlin",
        ),
        field(
            "stagger",
            Kind::Boolean,
            "fixed_window: each key's windows begin at an offset of their own.",
            "stagger: true",
        ),
        field(
            "buckets",
            Kind::Whole(1, tollgate::limit::MAX_BUCKETS as u64),
            "sliding_window_counter: count in so many whole parts, never above the rate.",
            "buckets: 60",
        ),
    ],
);

pub(super) static COST: Object = Object {
    one_field: None,
    id: "cost",
    noun: "a `cost`",
    doc: "Costs by endpoint, the most specific wins; or what is reserved until the true cost is known.",
    fields: &[
        field("default", Kind::Whole(0, MOST), "Where no endpoint matches.", "default: 1"),
        field(
            "reserve",
            Kind::Whole(1, MOST),
            "What is taken before the true cost is known.",
            "reserve: 2000",
        ),
        field(
            "actual",
            Kind::Text("a response header such as `\"{response.header.x-tokens-used}\"`"),
            "The response header that has the true cost.",
            "actual: \"{response.header.x-tokens-used}\"",
        ),
    ],
    others: Some(&Others {
        doc: "What requests to this endpoint cost.",
        kind: Kind::Whole(0, MOST),
        example: "\"POST /api/upload\": 10",
        pattern: Some(ENDPOINT_PATTERN),
    }),
};

pub(super) static MODE: Object = object(
    "mode",
    "a `mode`",
    "Enforce the rule for a share of keys, always the same ones.",
    &[required("enforce", SHARE, "The share of keys.", "enforce: 25%")],
);

pub(super) static BAN: Object = object(
    "ban",
    "a `ban`",
    "So many refusals within a time earn a block.",
    &[
        required("after", Kind::Whole(1, 10_000), "How many refusals.", "after: 10"),
        required("within", DURATION, "In which time.", "within: 1m"),
        required("for", DURATION, "How long the block lasts.", "for: 15m"),
    ],
);

pub(super) static FAIR: Object = object(
    "fair",
    "`fair`",
    "Share a limit fairly among keys by letting them wait their turn.",
    &[
        required("wait", DURATION, "How long a request may wait.", "wait: 2s"),
        field(
            "per_key",
            Kind::Whole(1, MOST),
            "How many requests of one key may wait.",
            "per_key: 10",
        ),
        field("total", Kind::Whole(1, MOST), "How many requests may wait.", "total: 1000"),
        field("weight_by", Kind::Choice(&["tier"]), "Whose share is larger.", "weight_by: tier"),
    ],
);

pub(super) static WEBSOCKET: Object = object(
    "websocket",
    "`websocket`",
    "Limits inside a WebSocket.",
    &[
        field(
            "connections",
            Kind::Whole(1, MOST),
            "Connections of one key at once.",
            "connections: 2",
        ),
        field("messages", RATE, "Messages of one connection.", "messages: 10/second"),
        field(
            "bytes",
            Kind::Text("a rate of bytes such as `64KiB/second`"),
            "Bytes of one connection.",
            "bytes: 64KiB/second",
        ),
    ],
);

pub(super) static CONSISTENCY: Object = one_of(
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
