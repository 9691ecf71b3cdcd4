use super::*;
use crate::facts::Facts;
use crate::identify::UserSource;
use crate::key_template::KeyFacts;
use crate::normalized_facts::NormalizedFacts;

/// The hash of the API key `abc`.
const HASH: &str = "sha256:ba7816bf8f01cfea414140de5dae2223";

fn one(name: &str, value: &str) -> Result<KeyBuf, &'static str> {
    Ok(KeyBuf::new().with(name, value))
}

fn user_and_path(user: &str, path: &str) -> Result<KeyBuf, &'static str> {
    Ok(KeyBuf::new().with("user", user).with("path", path))
}

/// Each row: template, text, key or a part of the error.
fn check(identify: &Identify, rows: &[(&str, &str, Result<KeyBuf, &str>)]) {
    for (template, text, want) in rows {
        let got = KeyTemplate::parse(template).unwrap().parse_key(text, identify);
        match (got, want) {
            (Ok(got), Ok(want)) => assert_eq!(got, *want, "{template} {text}"),
            (Err(got), Err(want)) => {
                let got = format!("{} hint: {}", got.message, got.hint.unwrap_or_default());
                assert!(got.contains(want), "{template} {text}: {got}");
            }
            (got, want) => panic!("{template} {text}: {got:?}, not {want:?}"),
        }
    }
}

#[test]
fn keys_are_read_as_people_write_them() {
    check(
        &Identify::default(),
        &[
            ("{user|ip}", "user=42", one("user", "42")),
            ("{user|ip}", "42", one("user", "42")),
            ("{user|ip}", " 42 ", one("user", "42")),
            ("{user|ip}", "ip=192.0.2.1", one("ip", "192.0.2.1")),
            ("{user|ip}", "192.0.2.1", Err("write `user=192.0.2.1` or `ip=192.0.2.1`")),
            ("{ip}", "2001:db8::7", one("ip", "2001:db8::")),
            ("{ip}", "::ffff:192.0.2.1", one("ip", "192.0.2.1")),
            ("{ip}", "64:ff9b::192.0.2.1", one("ip", "64:ff9b::")),
            ("{ip}", "bob", Err("not an address")),
            ("{user}", "a=b", one("user", "a=b")),
            ("{user}", "user=a,path=/x", one("user", "a,path=/x")),
            ("{user}", "user= a ", one("user", " a ")),
            ("{user}", "user=100%, a%20b", one("user", "100%, a%20b")),
            ("{user}", "user=a%0a%2c%25", one("user", "a\n,%")),
            ("{path}", "/a%20b/%2C,%2561", one("path", "/a%20b/,,%2561")),
            ("{method}", "get", one("method", "GET")),
            ("{user}:{path}", "user=4,/x", user_and_path("4", "/x")),
            ("{user}:{path}", "user=4, path=/x", user_and_path("4", "/x")),
            ("{user}:{path}", "4", Err("parts")),
            ("{user}:{path}", "4,/x/", user_and_path("4", "/x")),
            ("{user}:{path}", "4,", Err("empty value")),
            ("{user}:{path}", "user=a,b,path=/x", Err("a comma in a value as %2C")),
            ("{user}:{path}", "user=a%2Cb,path=/x%2Cy", user_and_path("a,b", "/x,y")),
            ("{user}", "ip=192.0.2.1", Err("no fact `ip`")),
            ("{user}", "api_key=abc", Err("no fact `api_key`")),
            ("{api_key}", "abc", one("api_key", HASH)),
            ("{api_key|ip}", "api_key=abc", one("api_key", HASH)),
            ("{api_key|ip}", &format!("api_key={HASH}"), one("api_key", HASH)),
            ("{api_key}", "sha256:abc", one("api_key", &hash_api_key("sha256:abc"))),
            ("global", "global", one("global", "")),
            ("global", "x", Err("counts all callers together")),
        ],
    );
}

#[test]
fn a_name_in_another_spelling_is_no_caller() {
    check(
        &Identify::default(),
        &[
            ("{user}", "USER=42", Err("write `user=42`")),
            ("{user}", "user:42", Err("write `user=42`")),
            ("{user|ip}", "User : 42", Err("write `user=42`")),
            ("{user|ip}", "IP:192.0.2.1", Err("write `ip=192.0.2.1`")),
            ("{api_key}", "api-key=abc", Err("write `api_key=…`")),
            ("{api_key}", "apiKey:abc", Err("write `api_key=…`")),
            ("{header.x-a}", "header.X-A=b", Err("write `header.x-a=b`")),
            ("{user}", "path:/x", Err("no fact `path`")),
            ("{user}", "user=user:42", one("user", "user:42")),
            ("{user}", "urn:42", one("user", "urn:42")),
        ],
    );
}

#[test]
fn callers_are_found_as_requests_name_them() {
    let nat64 = Identify { nat64: true, ipv6_prefix: 48, ..Identify::default() };
    check(
        &nat64,
        &[
            ("{ip}", "64:ff9b::192.0.2.1", one("ip", "192.0.2.1")),
            ("{ip}", "2001:db8:0:7::1", one("ip", "2001:db8::")),
        ],
    );
    let by_key = Identify { user: UserSource::ApiKey("x-api-key".into()), ..Identify::default() };
    check(
        &by_key,
        &[
            ("{user|ip}", "api_key=abc", one("user", HASH)),
            ("{user|ip}", &format!("api_key={HASH}"), one("user", HASH)),
            ("{user|ip}", &format!("user={HASH}"), one("user", HASH)),
            ("{user|ip}", "api_key=", Err("empty value")),
            ("{user}:{path}", "api_key=abc,/x", user_and_path(HASH, "/x")),
            ("{user|api_key}", "api_key=abc", one("api_key", HASH)),
            ("{ip}", "api_key=abc", Err("no fact `api_key`")),
            ("{user|ip}", "user:abc", Err("write `user=…`")),
            (
                "{user|api_key}",
                "abc",
                Err("\"…\" is ambiguous hint: write `user=…` or `api_key=…`"),
            ),
            ("{user}:{path}", "abc", Err("the key \"…\" does not have")),
        ],
    );
}

/// A small generator: the same seed, the same story.
struct KeyTextRandom(u64);

impl KeyTextRandom {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }

    /// A text of pieces that have a meaning in keys; never empty.
    fn text(&mut self) -> String {
        const PIECES: [&str; 24] = [
            ",", "%", "2C", "%2C", "%25", "%0a", "%20", "%2F", " ", "\t", "\n", "\0", "\u{7f}",
            "=", ":", "user=", ",path=/x", "path:", "/", "..", ";", "a", "é", "\\",
        ];
        (0..=self.below(6)).map(|_| PIECES[self.below(PIECES.len())]).collect()
    }
}

#[test]
fn what_is_shown_is_read_as_the_same_key() {
    const TEMPLATES: [&str; 10] = [
        "global",
        "{user}",
        "{path}",
        "{header.x-a}",
        "{api_key|ip}",
        "{user}:{path}",
        "{path}:{user|ip}",
        "{tier}:{method}",
        "{user}:{header.x-a}:{header.x-b}",
        "{user|api_key|ip}:{tier}:{path}:{header.x-a}",
    ];
    let identify = Identify::default();
    let mut random = KeyTextRandom(0x5eed);
    for round in 0..20_000 {
        let [user, path, tier, method, api_key, a, b] = std::array::from_fn(|_| random.text());
        let headers = vec![("x-a", a), ("x-b", b)];
        let facts = Facts {
            user: (random.below(3) > 0).then_some(&user),
            path: Some(&path),
            tier: Some(&tier),
            method: Some(&method),
            api_key: (random.below(3) > 0).then_some(&api_key),
            ip: Some(IpAddr::from((random.below(9) as u128).to_be_bytes())),
            headers: Some(&headers),
            ..Facts::default()
        };
        let template = KeyTemplate::parse(TEMPLATES[round % TEMPLATES.len()]).unwrap();
        let mut key = KeyBuf::new();
        let (seen, ipv6_prefix) =
            (&NormalizedFacts::new(&facts, &identify).with_host(), identify.ipv6_prefix);
        if template.write(&mut key, &KeyFacts { facts: seen, spelling: 0, ipv6_prefix }) {
            let text = key_text(&key);
            assert_eq!(template.parse_key(&text, &identify), Ok(key), "{template} {text:?}");
            assert!(!text.contains(|c: char| c.is_ascii_control()), "{text:?}");
        }
    }
}

#[test]
fn ordinary_values_are_shown_as_they_are() {
    for (template, text) in [
        ("{user|ip}", "user=42"),
        ("{user|ip}", "user=a,b c%20d 100%"),
        ("{user}:{path}", "user=bob%2Cpath=/x,path=/y"),
        ("{user}:{path}", "user=4,path=/a%20b%25"),
        ("{path}", "path=/x,y"),
        ("{header.x-a}", "header.x-a=b"),
        ("{ip}", "ip=2001:db8::"),
        ("global", "global"),
    ] {
        let template = KeyTemplate::parse(template).unwrap();
        assert_eq!(key_text(&template.parse_key(text, &Identify::default()).unwrap()), text);
    }
}
