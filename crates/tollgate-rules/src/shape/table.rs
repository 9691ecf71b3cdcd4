//! The table: every object and field of a rules file, in one place.

use super::{Field, Kind, Object, Others};

/// Counts and capacities: what a decision can hold exactly, below 2^53.
const MOST: u64 = (1 << 53) - 1;

const PATH: Kind = Kind::Text("a path such as `/api/{*rest}`");
const RATE: Kind = Kind::Text("a rate such as `10/second`");
const DURATION: Kind = Kind::Text("a duration such as `90s`");
const CIDR: Kind = Kind::Text("a network such as `10.0.0.0/8`");
const HEADER: Kind = Kind::Text("the name of a header such as `x-user-id`");
const WORD: Kind = Kind::Text("a text");
const METHOD: Kind = Kind::Text("a method such as `POST`");
const ALGORITHM: Kind = Kind::Choice(&[
    "token_bucket",
    "leaky_bucket",
    "fixed_window",
    "sliding_window_log",
    "sliding_window_counter",
]);
const LIMIT: Kind = Kind::Either(&[RATE, Kind::Object(&LIMIT_FIELDS)]);
const LIMITS: Kind =
    Kind::Either(&[RATE, Kind::List("limits", &LIMIT), Kind::Object(&LIMIT_FIELDS)]);
const TEXTS: Kind = Kind::Either(&[WORD, Kind::List("texts", &WORD), Kind::Object(&TEXT_TEST)]);
const MULTIPLIER: Kind = Kind::Decimal("a number above 0 such as `1.5`");

const fn field(name: &'static str, kind: Kind, doc: &'static str, example: &'static str) -> Field {
    Field { name, kind, required: false, doc, example }
}

const fn required(
    name: &'static str,
    kind: Kind,
    doc: &'static str,
    example: &'static str,
) -> Field {
    Field { name, kind, required: true, doc, example }
}

const fn object(
    id: &'static str,
    noun: &'static str,
    doc: &'static str,
    fields: &'static [Field],
) -> Object {
    Object { id, noun, doc, fields, others: None }
}

/// A map whose names the writer chooses.
const fn map(
    id: &'static str,
    noun: &'static str,
    doc: &'static str,
    others: &'static Others,
) -> Object {
    Object { id, noun, doc, fields: &[], others: Some(others) }
}

pub(crate) static FILE: Object = object(
    "file",
    "a rules file",
    "Which limits apply to which requests, and whose use they count.",
    &[
        field("version", Kind::Whole(1, 1), "The version of this format: 1.", "version: 1"),
        field(
            "rate_limits",
            Kind::Object(&RATE_LIMITS),
            "The short form: limits by endpoint, a default, and tiers. Stands in place of `rules`.",
            "rate_limits: { default: { requests: 100, window: 60 } }",
        ),
        field(
            "identify",
            Kind::Object(&IDENTIFY),
            "How facts are derived from HTTP requests. Facts that are passed explicitly win.",
            "identify: { user: { header: x-user-id } }",
        ),
        field(
            "tiers",
            Kind::Object(&TIERS),
            "Classes of callers with other numbers.",
            "tiers: { free: 1, pro: 10 }",
        ),
        field(
            "rules",
            Kind::List("rules", &Kind::Object(&RULE)),
            "The rules. All that match must allow.",
            "rules: [{ name: api, key: \"{user|ip}\", limits: [10/second] }]",
        ),
        field(
            "exempt",
            Kind::Object(&EXEMPT),
            "Callers that no rule applies to.",
            "exempt: { ip: [127.0.0.1], user: [health-checker] }",
        ),
        field(
            "overrides",
            Kind::List("overrides", &Kind::Object(&OVERRIDE)),
            "Other numbers for single callers.",
            "overrides: [{ rule: api, key: \"42\", limits: [100/second] }]",
        ),
        field(
            "headers",
            Kind::Either(&[DIALECT, Kind::List("header dialects", &DIALECT)]),
            "How clients are told what they have left. The default is x-ratelimit and draft.",
            "headers: [x-ratelimit, draft]",
        ),
        field(
            "log_keys",
            Kind::Choice(&["hashed", "plain"]),
            "Whether logs show keys hashed, which is the default, or as they are.",
            "log_keys: hashed",
        ),
        field(
            "upstreams",
            Kind::Object(&UPSTREAMS),
            "The gateway's servers by name.",
            "upstreams: { app: \"http://127.0.0.1:3000\" }",
        ),
        field(
            "routes",
            Kind::List("routes", &Kind::Object(&ROUTE)),
            "Which upstream the gateway passes a path to.",
            "routes: [{ path: \"/{*rest}\", upstream: app }]",
        ),
    ],
);

const DIALECT: Kind = Kind::Choice(&["x-ratelimit", "draft", "legacy", "none"]);

static RATE_LIMITS: Object = object(
    "rate_limits",
    "`rate_limits`",
    "Limits per caller (the user, or else the address) by endpoint.",
    &[
        field(
            "default",
            Kind::Object(&DEFAULT),
            "What applies where no endpoint matches: one count per caller for all such paths.",
            "default: { requests: 100, window: 60 }",
        ),
        field(
            "endpoints",
            Kind::Object(&ENDPOINTS),
            "Limits by path, or by method and path.",
            "endpoints: { \"/api/search\": { requests: 30, window: 60 } }",
        ),
        field(
            "tiers",
            Kind::Object(&SHORT_TIERS),
            "What the numbers of a tier are multiplied by.",
            "tiers: { free: 1, pro: 10 }",
        ),
    ],
);

const REQUESTS: Field = required(
    "requests",
    Kind::Whole(1, MOST),
    "How many requests may pass in a window.",
    "requests: 100",
);
const WINDOW: Field = required(
    "window",
    Kind::Text("a number of seconds such as 60, or a duration such as `1m`"),
    "How long the window is: a number of seconds, or a duration such as 1m.",
    "window: 60",
);

static DEFAULT: Object = object(
    "default",
    "`default`",
    "What applies where no endpoint matches.",
    &[
        REQUESTS,
        WINDOW,
        field(
            "per_path",
            Kind::Boolean,
            "Count each path by itself. Whoever varies the path then gets more.",
            "per_path: true",
        ),
    ],
);

static ENDPOINT: Object =
    object("endpoint", "an endpoint", "The limit of an endpoint.", &[REQUESTS, WINDOW]);

static ENDPOINTS: Object = map(
    "endpoints",
    "endpoints with their limits",
    "Limits by path, such as `/api/search`, or by method and path, such as `POST /api/upload`.",
    &Others {
        doc: "The limit of this endpoint.",
        kind: Kind::Object(&ENDPOINT),
        example: "\"/api/search\": { requests: 30, window: 60 }",
    },
);

static SHORT_TIERS: Object = map(
    "short_tiers",
    "tiers with their multipliers",
    "Multipliers by tier.",
    &Others {
        doc: "What the numbers are multiplied by.",
        kind: Kind::Either(&[MULTIPLIER, Kind::Object(&SHORT_TIER)]),
        example: "pro: { multiplier: 10 }",
    },
);

static SHORT_TIER: Object = object(
    "short_tier",
    "a tier",
    "A class of callers.",
    &[required("multiplier", MULTIPLIER, "What the numbers are multiplied by.", "multiplier: 10")],
);

static TIERS: Object = map(
    "tiers",
    "tiers with their numbers",
    "Tiers by name.",
    &Others {
        doc: "What the limits of rules with `tiered: true` are multiplied by, or own limits by rule.",
        kind: Kind::Either(&[MULTIPLIER, Kind::Object(&TIER)]),
        example: "pro: { multiplier: 10 }",
    },
);

static TIER: Object = Object {
    id: "tier",
    noun: "a tier",
    doc: "A multiplier, and own limits by the name of a rule.",
    fields: &[field(
        "multiplier",
        MULTIPLIER,
        "What the limits of rules with `tiered: true` are multiplied by.",
        "multiplier: 10",
    )],
    others: Some(&Others {
        doc: "The limits of this rule for this tier.",
        kind: LIMITS,
        example: "api: [500/minute]",
    }),
};

static IDENTIFY: Object = object(
    "identify",
    "`identify`",
    "How facts are derived from HTTP requests.",
    &[
        field(
            "trusted_peers",
            Kind::Either(&[CIDR, Kind::List("networks", &CIDR)]),
            "Who may send forwarding, user and tier headers. The default is this machine.",
            "trusted_peers: [10.0.0.0/8]",
        ),
        field("user", Kind::Object(&USER), "Who the user is.", "user: { header: x-user-id }"),
        field(
            "api_key",
            Kind::Object(&API_KEY),
            "Where the API key is.",
            "api_key: { header: x-api-key }",
        ),
        field(
            "tier",
            Kind::Object(&TIER_OF),
            "Which tier the caller has.",
            "tier: { header: x-tier, default: free }",
        ),
        field(
            "ip",
            Kind::Either(&[ADDRESS, Kind::Object(&IP)]),
            "Where the client's address is.",
            "ip: { header: x-forwarded-for, ipv6_prefix: 64 }",
        ),
    ],
);

const ADDRESS: Kind =
    Kind::Text("`x-forwarded-for`, `forwarded`, `none` or the name of another header");

static USER: Object = object(
    "user",
    "`user`",
    "Who the user is.",
    &[
        field("header", HEADER, "The header that names the user.", "header: x-user-id"),
        field(
            "jwt",
            Kind::Object(&JWT),
            "A claim of a signed token.",
            "jwt: { claim: sub, keys_file: jwks.json }",
        ),
        field(
            "api_key",
            Kind::Object(&API_KEY),
            "Where the API key is.",
            "api_key: { header: x-api-key }",
        ),
    ],
);

static API_KEY: Object = object(
    "api_key",
    "`api_key`",
    "Where the API key is.",
    &[required("header", HEADER, "The header that has the key.", "header: x-api-key")],
);

static JWT: Object = object(
    "jwt",
    "`jwt`",
    "A claim of a signed token.",
    &[
        required("claim", WORD, "The claim.", "claim: sub"),
        required("keys_file", WORD, "The file with the public keys.", "keys_file: jwks.json"),
    ],
);

static TIER_OF: Object = object(
    "tier_of",
    "`tier` of `identify`",
    "Which tier the caller has: by a header, else by the table, else the default.",
    &[
        field("header", HEADER, "The header that names the tier.", "header: x-tier"),
        field("claim", WORD, "The claim that names the tier.", "claim: tier"),
        field(
            "users",
            Kind::Object(&TIER_OF_USER),
            "The tier of users by name.",
            "users: { alice: pro }",
        ),
        field("default", WORD, "The tier of everybody else.", "default: free"),
    ],
);

static TIER_OF_USER: Object = map(
    "tier_of_user",
    "users with their tiers",
    "Tiers by user.",
    &Others { doc: "The tier of this user.", kind: WORD, example: "alice: pro" },
);

static IP: Object = object(
    "ip",
    "`ip`",
    "Where the client's address is.",
    &[
        field(
            "header",
            ADDRESS,
            "x-forwarded-for, forwarded, none for the peer's address, or another header.",
            "header: x-forwarded-for",
        ),
        field(
            "ipv6_prefix",
            Kind::Whole(1, 128),
            "How many bits of an IPv6 address are one caller. The default is 64.",
            "ipv6_prefix: 64",
        ),
    ],
);

static RULE: Object = object(
    "rule",
    "a rule",
    "When it applies, whose use it counts, and how much is allowed.",
    &[
        required("name", WORD, "Unique: letters, digits, `_` and `-`, at most 64.", "name: api"),
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
            Kind::Text("a key such as `\"{user|ip}\"`"),
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
static A_MATCH: Kind = Kind::Object(&MATCH);

static MATCH: Object = object(
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
            Kind::Either(&[PATH, Kind::List("globs", &PATH)]),
            "Globs on the path; one must fit.",
            "glob: \"/files/*.json\"",
        ),
        field(
            "regex",
            Kind::Either(&[PATH, Kind::List("regular expressions", &PATH)]),
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

static HEADER_TESTS: Object = map(
    "header_tests",
    "header fields with their values",
    "Conditions by the name of a header field.",
    &Others {
        doc: "What holds of the field's value.",
        kind: TEXTS,
        example: "x-plan: [gold, silver]",
    },
);

static TEXT_TEST: Object = object(
    "text_test",
    "a condition on a text",
    "What holds of a text; exactly one field.",
    &[
        field("present", Kind::Choice(&["true"]), "There is one.", "present: true"),
        field("glob", WORD, "It fits this glob.", "glob: \"bot-*\""),
        field("regex", WORD, "It fits this regular expression, whole.", "regex: \"bot-[0-9]+\""),
    ],
);

static LIMIT_FIELDS: Object = object(
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

static COST: Object = Object {
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
    }),
};

static MODE: Object = object(
    "mode",
    "a `mode`",
    "Enforce the rule for a share of keys, always the same ones.",
    &[required(
        "enforce",
        Kind::Text("a share such as `25%`"),
        "The share of keys.",
        "enforce: 25%",
    )],
);

static BAN: Object = object(
    "ban",
    "a `ban`",
    "So many refusals within a time earn a block.",
    &[
        required("after", Kind::Whole(1, MOST), "How many refusals.", "after: 10"),
        required("within", DURATION, "In which time.", "within: 1m"),
        required("for", DURATION, "How long the block lasts.", "for: 15m"),
    ],
);

static FAIR: Object = object(
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

static WEBSOCKET: Object = object(
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

static CONSISTENCY: Object = object(
    "consistency",
    "a `consistency`",
    "How exactly several instances agree; exactly one field.",
    &[
        field(
            "leased",
            Kind::Text("a share such as `1%`"),
            "Each instance borrows this share of a limit.",
            "leased: 1%",
        ),
        field(
            "local_sync",
            DURATION,
            "Each instance decides alone and settles this often.",
            "local_sync: 1s",
        ),
    ],
);

static EXEMPT: Object = object(
    "exempt",
    "`exempt`",
    "Callers that no rule applies to.",
    &[
        field(
            "ip",
            Kind::Either(&[CIDR, Kind::List("networks", &CIDR)]),
            "Networks.",
            "ip: [127.0.0.1, 10.1.0.0/16]",
        ),
        field(
            "user",
            Kind::Either(&[WORD, Kind::List("users", &WORD)]),
            "Users.",
            "user: [health-checker]",
        ),
    ],
);

static OVERRIDE: Object = object(
    "override",
    "an override",
    "Other numbers for one caller.",
    &[
        required("rule", WORD, "The name of the rule.", "rule: api"),
        required("key", WORD, "The caller: `42`, or with its fact `user=42`.", "key: \"user=42\""),
        required("limits", LIMITS, "The limits that apply instead.", "limits: [100/second]"),
        field(
            "until",
            Kind::Text("an instant such as `2027-01-01T00:00:00Z`"),
            "When it ends; without it, never.",
            "until: 2027-01-01T00:00:00Z",
        ),
    ],
);

static UPSTREAMS: Object = map(
    "upstreams",
    "upstreams with their addresses",
    "The gateway's servers by name.",
    &Others {
        doc: "The address.",
        kind: Kind::Text("an address such as `http://127.0.0.1:3000`"),
        example: "app: \"http://127.0.0.1:3000\"",
    },
);

static ROUTE: Object = object(
    "route",
    "a route",
    "Which upstream a path goes to.",
    &[
        required("path", PATH, "A path pattern.", "path: \"/{*rest}\""),
        required("upstream", WORD, "The name of an upstream.", "upstream: app"),
    ],
);
