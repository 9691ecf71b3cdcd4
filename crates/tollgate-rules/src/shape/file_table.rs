//! The table: every object and field of a rules file. What is inside a rule stands in `rule_table`,
//! and the gateway's objects in `gateway_table`.

use super::gateway_table::{CORS, ROUTE, UPSTREAMS};
use super::kinds::{
    CIDR, ENDPOINT_PATTERN, HEADER, INTEGER_MAX, LIMITS, MULTIPLIER, NAME, WORD, field, map,
    object, one_of, required,
};
use super::rule_table::RULE;
use super::{FreeFields, ShapeField, ShapeKind, ShapeObject};
use crate::identify::ENTRIES_MAX;

pub(crate) static FILE: ShapeObject = object(
    "file",
    "a rules file",
    "Rules: the limits that apply to requests, and the keys they count.",
    &[
        field("version", ShapeKind::Whole(1, 1), "The version of this format: 1.", "version: 1"),
        field(
            "rate_limits",
            ShapeKind::Object(&RATE_LIMITS),
            "The short form: limits by endpoint, a default, and tiers. Replaces `rules`.",
            "rate_limits: { default: { requests: 100, window: 60 } }",
        ),
        field(
            "identify",
            ShapeKind::Object(&IDENTIFY),
            "The way facts are derived from HTTP requests. Facts stated in a request take precedence.",
            "identify: { user: { header: x-user-id } }",
        ),
        field(
            "tiers",
            ShapeKind::Object(&TIERS),
            "Classes of callers with limits of their own.",
            "tiers: { free: 1, pro: 10 }",
        ),
        field(
            "rules",
            ShapeKind::List("rules", &ShapeKind::Object(&RULE)),
            "The rules. A request passes only if all that apply allow it.",
            "rules: [{ name: api, key: \"{user|ip}\", limits: [10/second] }]",
        ),
        field(
            "exempt",
            ShapeKind::Object(&EXEMPT),
            "Callers that no rule applies to.",
            "exempt: { ip: [127.0.0.1], user: [health-checker] }",
        ),
        field(
            "overrides",
            ShapeKind::List("overrides", &ShapeKind::Object(&OVERRIDE)),
            "Other limits for single callers.",
            "overrides: [{ rule: api, key: \"42\", limits: [100/second] }]",
        ),
        field(
            "headers",
            ShapeKind::Either(&[DIALECT, ShapeKind::List("header dialects", &DIALECT)]),
            "The response headers that tell clients what they have left. The default is x-ratelimit and draft.",
            "headers: [x-ratelimit, draft]",
        ),
        field(
            "log_keys",
            ShapeKind::Choice(&["hashed", "plain"]),
            "The form of keys in logs: `hashed` (the default) or `plain`.",
            "log_keys: hashed",
        ),
        field(
            "preflights",
            ShapeKind::Choice(&["count", "pass"]),
            "CORS preflights at the gateway: `count` (the default) treats them like any request; `pass` lets them by, except past a block, a ban or a rule that names OPTIONS.",
            "preflights: pass",
        ),
        field(
            "cors",
            ShapeKind::Object(&CORS),
            "The web pages that may read the responses that the gateway makes itself, such as refusals.",
            "cors: { origins: [\"https://app.example\"], expose: true }",
        ),
        field(
            "upstreams",
            ShapeKind::Object(&UPSTREAMS),
            "The gateway's upstream servers by name.",
            "upstreams: { app: \"http://127.0.0.1:3000\" }",
        ),
        field(
            "routes",
            ShapeKind::List("routes", &ShapeKind::Object(&ROUTE)),
            "The upstream of each host and path; the first route that matches wins.",
            "routes: [{ path: \"/{*rest}\", upstream: app }]",
        ),
    ],
);

const DIALECT: ShapeKind = ShapeKind::Choice(&["x-ratelimit", "draft", "legacy", "none"]);

static RATE_LIMITS: ShapeObject = object(
    "rate_limits",
    "`rate_limits`",
    "Limits per caller (the user, or else the address) by endpoint.",
    &[
        field(
            "default",
            ShapeKind::Object(&DEFAULT),
            "The limit of all other paths: one count per caller for all of them together.",
            "default: { requests: 100, window: 60 }",
        ),
        field(
            "endpoints",
            ShapeKind::Object(&ENDPOINTS),
            "Limits by path, or by method and path.",
            "endpoints: { \"/api/search\": { requests: 30, window: 60 } }",
        ),
        field(
            "tiers",
            ShapeKind::Object(&SHORT_TIERS),
            "The multiplier of each tier.",
            "tiers: { free: 1, pro: 10 }",
        ),
    ],
);

const REQUESTS: ShapeField = required(
    "requests",
    ShapeKind::Whole(1, INTEGER_MAX),
    "The number of requests that may pass in a window.",
    "requests: 100",
);
const WINDOW: ShapeField = required(
    "window",
    ShapeKind::Text("a number of seconds such as 60, or a duration such as `1m`"),
    "The length of the window: a number of seconds, or a duration such as 1m.",
    "window: 60",
);

static DEFAULT: ShapeObject = object(
    "default",
    "`default`",
    "The limit of all other paths.",
    &[
        REQUESTS,
        WINDOW,
        field(
            "per_path",
            ShapeKind::Boolean,
            "Count each path separately. A client that varies the path then gets more.",
            "per_path: true",
        ),
    ],
);

static ENDPOINT: ShapeObject =
    object("endpoint", "an endpoint", "The limit of an endpoint.", &[REQUESTS, WINDOW]);

static ENDPOINTS: ShapeObject = map(
    "endpoints",
    "endpoints with their limits",
    "Limits by path, such as `/api/search`, or by method and path, such as `POST /api/upload`.",
    &FreeFields {
        doc: "The limit of this endpoint.",
        kind: ShapeKind::Object(&ENDPOINT),
        example: "\"/api/search\": { requests: 30, window: 60 }",
        pattern: Some(ENDPOINT_PATTERN),
    },
);

static SHORT_TIERS: ShapeObject = map(
    "short_tiers",
    "tiers with their multipliers",
    "Multipliers by tier.",
    &FreeFields {
        doc: "The multiplier of the limits.",
        kind: ShapeKind::Either(&[MULTIPLIER, ShapeKind::Object(&SHORT_TIER)]),
        example: "pro: { multiplier: 10 }",
        pattern: None,
    },
);

static SHORT_TIER: ShapeObject = object(
    "short_tier",
    "a tier",
    "A class of callers.",
    &[required("multiplier", MULTIPLIER, "The multiplier of the limits.", "multiplier: 10")],
);

static TIERS: ShapeObject = map(
    "tiers",
    "tiers with their numbers",
    "Tiers by name.",
    &FreeFields {
        doc: "The multiplier for rules with `tiered: true`, or limits of its own by rule.",
        kind: ShapeKind::Either(&[MULTIPLIER, ShapeKind::Object(&TIER)]),
        example: "pro: { multiplier: 10 }",
        pattern: None,
    },
);

static TIER: ShapeObject = ShapeObject {
    one_field: None,
    id: "tier",
    noun: "a tier",
    doc: "A multiplier, and limits of its own by the name of a rule.",
    fields: &[field(
        "multiplier",
        MULTIPLIER,
        "The multiplier for rules with `tiered: true`.",
        "multiplier: 10",
    )],
    free_fields: Some(&FreeFields {
        doc: "The limits of this rule for this tier.",
        kind: LIMITS,
        example: "api: [500/minute]",
        pattern: None,
    }),
};

static IDENTIFY: ShapeObject = object(
    "identify",
    "`identify`",
    "The way facts are derived from HTTP requests.",
    &[
        field(
            "trusted_peers",
            ShapeKind::Either(&[CIDR, ShapeKind::List("networks", &CIDR)]),
            "The peers whose forwarding, user and tier headers are trusted. The default is this machine.",
            "trusted_peers: [10.0.0.0/8]",
        ),
        field(
            "user",
            ShapeKind::Object(&USER),
            "The source of the user.",
            "user: { header: x-user-id }",
        ),
        field(
            "api_key",
            ShapeKind::Object(&API_KEY),
            "The source of the API key.",
            "api_key: { header: x-api-key }",
        ),
        field(
            "tier",
            ShapeKind::Object(&TIER_OF),
            "The source of the caller's tier.",
            "tier: { header: x-tier, default: free }",
        ),
        field(
            "ip",
            ShapeKind::Either(&[ADDRESS, ShapeKind::Object(&IP)]),
            "The source of the client's address.",
            "ip: { header: x-forwarded-for, ipv6_prefix: 64 }",
        ),
    ],
);

const ADDRESS: ShapeKind =
    ShapeKind::Text("`x-forwarded-for`, `forwarded`, `none` or the name of another header");

static USER: ShapeObject = one_of(
    object(
        "user",
        "`user` of `identify`",
        "The source of the user: exactly one of these.",
        &[
            field(
                "header",
                HEADER,
                "The header with the user's name; read from trusted peers only.",
                "header: x-user-id",
            ),
            field(
                "jwt",
                ShapeKind::Object(&JWT),
                "A claim of a signed token; read from all peers.",
                "jwt: { claim: sub, keys_file: jwks.json }",
            ),
            field(
                "api_key",
                ShapeKind::Object(&API_KEY),
                "The API key: the user is its hash. Read from all peers.",
                "api_key: { header: x-api-key }",
            ),
        ],
    ),
    "write one of `header: x-user-id`, `jwt: { claim: sub, keys_file: jwks.json }` or \
     `api_key: { header: x-api-key }`",
);

static API_KEY: ShapeObject = object(
    "api_key",
    "`api_key`",
    "The source of the API key.",
    &[required("header", HEADER, "The header with the key.", "header: x-api-key")],
);

static JWT: ShapeObject = object(
    "jwt",
    "`jwt`",
    "A claim of a signed token.",
    &[
        required("claim", WORD, "The claim with the user's name.", "claim: sub"),
        required(
            "keys_file",
            WORD,
            "The file with the public keys or the secret, relative to the rules file.",
            "keys_file: jwks.json",
        ),
        field(
            "algorithms",
            ShapeKind::Either(&[JWT_ALGORITHM, ShapeKind::List("algorithms", &JWT_ALGORITHM)]),
            "The accepted signature algorithms. The default is those that fit the keys.",
            "algorithms: [RS256]",
        ),
        field(
            "issuer",
            ONE_OR_MORE,
            "The accepted issuers: the token's `iss`.",
            "issuer: \"https://login.example\"",
        ),
        field(
            "audience",
            ONE_OR_MORE,
            "The accepted audiences: the token's `aud`.",
            "audience: api",
        ),
        field(
            "header",
            HEADER,
            "The header with the token. The default is authorization.",
            "header: authorization",
        ),
        field(
            "require_exp",
            ShapeKind::Boolean,
            "Reject tokens without an expiry time. The default is true.",
            "require_exp: true",
        ),
    ],
);

const ONE_OR_MORE: ShapeKind = ShapeKind::Either(&[WORD, ShapeKind::List("texts", &WORD)]);
const JWT_ALGORITHM: ShapeKind = ShapeKind::Choice(&[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA", "HS256",
    "HS384", "HS512",
]);

static TIER_OF: ShapeObject = object(
    "tier_of",
    "`tier` of `identify`",
    "The source of the caller's tier: a header or a claim, else the table, else the default.",
    &[
        field("header", HEADER, "The header with the tier's name.", "header: x-tier"),
        field("claim", WORD, "The claim of the user's token with the tier's name.", "claim: plan"),
        field("users", ShapeKind::Object(&TIER_OF_USER), "Tiers by user.", "users: { alice: pro }"),
        field("default", WORD, "The tier of all other callers.", "default: free"),
    ],
);

static TIER_OF_USER: ShapeObject = map(
    "tier_of_user",
    "users with their tiers",
    "Tiers by user.",
    &FreeFields { doc: "The tier of this user.", kind: WORD, example: "alice: pro", pattern: None },
);

static IP: ShapeObject = object(
    "ip",
    "`ip`",
    "The source of the client's address.",
    &[
        field(
            "header",
            ADDRESS,
            "The header with the client's address: x-forwarded-for, forwarded, none for the peer's address, or another header.",
            "header: x-forwarded-for",
        ),
        field(
            "ipv6_prefix",
            ShapeKind::Whole(1, 128),
            "The number of bits of an IPv6 address that identify one caller. The default is 64.",
            "ipv6_prefix: 64",
        ),
        field(
            "trusted_hops",
            ShapeKind::Whole(1, ENTRIES_MAX as u64),
            "The number of trusted proxies that a request passes, if their addresses are not known.",
            "trusted_hops: 2",
        ),
        field(
            "nat64",
            ShapeKind::Boolean,
            "Treat addresses in 64:ff9b::/96 as the IPv4 addresses in them.",
            "nat64: true",
        ),
    ],
);

static EXEMPT: ShapeObject = object(
    "exempt",
    "`exempt`",
    "Callers that no rule applies to.",
    &[
        field(
            "ip",
            ShapeKind::Either(&[CIDR, ShapeKind::List("networks", &CIDR)]),
            "Networks.",
            "ip: [127.0.0.1, 10.1.0.0/16]",
        ),
        field(
            "user",
            ShapeKind::Either(&[WORD, ShapeKind::List("users", &WORD)]),
            "Users.",
            "user: [health-checker]",
        ),
    ],
);

static OVERRIDE: ShapeObject = object(
    "override",
    "an override",
    "Other limits for one caller.",
    &[
        required("rule", NAME, "The name of the rule.", "rule: api"),
        required("key", WORD, "The caller: `42`, or with its fact `user=42`.", "key: \"user=42\""),
        required("limits", LIMITS, "The limits that apply instead.", "limits: [100/second]"),
        field(
            "until",
            ShapeKind::Text("an instant such as `2027-01-01T00:00:00Z`"),
            "The end of the override; without it, it stays.",
            "until: 2027-01-01T00:00:00Z",
        ),
    ],
);
