//! Signed tokens: what is verified names its user, from anywhere; everything else names nobody.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, encode};
use rcgen::{KeyPair, RsaKeySize};
use serde_json::{Value, json};
use tollgate::Micros;
use tollgate_rules::identify::UserSource;
use tollgate_rules::identify::jwt::{CLAIM_BYTES_MAX, JwtSettings, JwtVerifier, TOKEN_BYTES_MAX};
use tollgate_rules::{Facts, Headers, Identify, JwtStats};

/// When these tests happen, in seconds.
const NOW: u64 = 1_800_000_000;
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// Somebody who signs.
struct Signer {
    algorithm: Algorithm,
    private: EncodingKey,
    public_pem: String,
}

impl Signer {
    fn new(algorithm: Algorithm) -> Signer {
        let pair = match algorithm {
            Algorithm::RS256 | Algorithm::PS256 => {
                KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048)
            }
            Algorithm::ES256 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256),
            Algorithm::ES384 => KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384),
            _ => KeyPair::generate_for(&rcgen::PKCS_ED25519),
        }
        .expect("a pair of keys");
        let pem = pair.serialize_pem();
        let private = match algorithm {
            Algorithm::RS256 | Algorithm::PS256 => EncodingKey::from_rsa_pem(pem.as_bytes()),
            Algorithm::ES256 | Algorithm::ES384 => EncodingKey::from_ec_pem(pem.as_bytes()),
            _ => EncodingKey::from_ed_pem(pem.as_bytes()),
        };
        let private = private.expect("a private key");
        Signer { algorithm, private, public_pem: pair.public_key_pem() }
    }

    fn jwk(&self, kid: Option<&str>) -> Value {
        let pem = self.public_pem.as_bytes();
        let public = match self.algorithm {
            Algorithm::RS256 | Algorithm::PS256 => DecodingKey::from_rsa_pem(pem),
            Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_pem(pem),
            _ => DecodingKey::from_ed_pem(pem),
        };
        let public = public.expect("a public key");
        let jwk = Jwk::from_decoding_key(&public, Some(self.algorithm)).expect("a public key");
        let mut value = serde_json::to_value(jwk).unwrap();
        if let Some(kid) = kid {
            value["kid"] = kid.into();
        }
        value
    }

    fn sign(&self, claims: &Value) -> String {
        sign(&Header::new(self.algorithm), claims, &self.private)
    }
}

fn sign(header: &Header, claims: &Value, key: &EncodingKey) -> String {
    encode(header, claims, key).expect("a token")
}

/// One of each kind, made once: RSA keys take a while.
static SIGNERS: LazyLock<Vec<Signer>> = LazyLock::new(|| {
    use Algorithm::*;
    [RS256, PS256, ES256, ES384, EdDSA].map(Signer::new).into()
});

fn rsa() -> &'static Signer {
    &SIGNERS[0]
}

fn ec() -> &'static Signer {
    &SIGNERS[2]
}

fn settings() -> JwtSettings {
    JwtSettings {
        claim: "sub".into(),
        tier_claim: Some("plan".into()),
        header: "authorization".into(),
        algorithms: Vec::new(),
        issuers: Vec::new(),
        audiences: Vec::new(),
        requires_exp: true,
        keys_file: "keys".into(),
    }
}

fn identify(settings: JwtSettings, keys: &[u8]) -> Identify {
    let jwt = JwtVerifier::new(settings, keys).unwrap_or_else(|problem| panic!("{problem}"));
    Identify {
        user: UserSource::Jwt(Arc::new(jwt)),
        trusted_peers: vec!["10.0.0.0/8".parse().unwrap()],
        tier_header: None,
        ..Identify::default()
    }
}

/// User and tier of a value of `Authorization`, at a second.
fn at(identify: &Identify, value: &str, secs: u64) -> (Option<String>, Option<String>) {
    let stranger: IpAddr = "203.0.113.9".parse().unwrap();
    let headers = vec![("Authorization", value)];
    let identity = identify.identify(stranger, &headers, Micros::from_secs(secs));
    assert_eq!(identity.ip, Some(stranger));
    (identity.user.map(Into::into), identity.tier.map(Into::into))
}

fn user(identify: &Identify, token: &str) -> Option<String> {
    at(identify, &format!("Bearer {token}"), NOW).0
}

fn claims() -> Value {
    json!({ "sub": "anna", "plan": "gold", "exp": NOW + 600 })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn anna() -> Option<String> {
    Some("anna".into())
}

#[test]
fn every_kind_of_key_verifies_its_own_tokens_only() {
    let set = json!({ "keys": SIGNERS.iter().map(|one| one.jwk(None)).collect::<Vec<_>>() });
    let set = identify(settings(), set.to_string().as_bytes());
    let all: String = SIGNERS.iter().map(|one| one.public_pem.as_str()).collect();
    let all = identify(settings(), all.as_bytes());
    for signer in SIGNERS.iter() {
        let token = signer.sign(&claims());
        let alone = identify(settings(), signer.public_pem.as_bytes());
        let single = identify(settings(), signer.jwk(Some("a")).to_string().as_bytes());
        for good in [&set, &all, &alone, &single] {
            let got = at(good, &format!("Bearer {token}"), NOW);
            assert_eq!(got, (anna(), Some("gold".into())), "{:?}", signer.algorithm);
        }
        for other in SIGNERS.iter().filter(|one| !std::ptr::eq(*one, signer)) {
            let other = identify(settings(), other.public_pem.as_bytes());
            assert_eq!(user(&other, &token), None, "{:?}", signer.algorithm);
        }
    }
    let hs256 = JwtSettings { algorithms: vec!["HS256".into()], ..settings() };
    let key = EncodingKey::from_secret(SECRET);
    let token = sign(&Header::new(Algorithm::HS256), &claims(), &key);
    for ending in ["", "\n", "\r\n"] {
        let file = [SECRET, ending.as_bytes()].concat();
        assert_eq!(user(&identify(hs256.clone(), &file), &token), anna(), "{ending:?}");
    }
    let long = sign(&Header::new(Algorithm::HS512), &claims(), &key);
    assert_eq!(user(&identify(hs256, SECRET), &long), None, "not an algorithm of the list");
}

#[test]
fn a_token_cannot_choose_how_it_is_verified() {
    let pem = rsa().public_pem.as_bytes();
    let identify = identify(settings(), pem);
    let good = rsa().sign(&claims());
    assert_eq!(user(&identify, &good), anna());
    let [header, payload, signature] = good.split('.').collect::<Vec<_>>()[..] else { panic!() };
    // The public key, which everybody has, as a secret: in all the spellings it is known in.
    for secret in [pem, pem.trim_ascii(), rsa().jwk(None)["n"].as_str().unwrap().as_bytes()] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let key = EncodingKey::from_secret(secret);
            assert_eq!(user(&identify, &sign(&Header::new(algorithm), &claims(), &key)), None);
        }
    }
    // No signature, in all the spellings of that.
    for (name, signature) in [("none", ""), ("None", ""), ("nOnE", ""), ("none", signature)] {
        let header = base64(&format!(r#"{{"alg":"{name}","typ":"JWT"}}"#));
        assert_eq!(user(&identify, &format!("{header}.{payload}.{signature}")), None, "{name}");
    }
    // Keys that the token brings along, or says where to find.
    let mallory = Signer::new(Algorithm::RS256);
    let own: Jwk = serde_json::from_value(mallory.jwk(Some("own"))).unwrap();
    let fields = [
        Header { jwk: Some(own), ..Header::new(Algorithm::RS256) },
        Header {
            jku: Some("https://mallory.example/jwks".into()),
            ..Header::new(Algorithm::RS256)
        },
        Header { kid: Some("../../../dev/null".into()), ..Header::new(Algorithm::RS256) },
        Header { kid: Some("' OR 1=1 --".into()), ..Header::new(Algorithm::RS256) },
    ];
    for header in &fields {
        assert_eq!(user(&identify, &sign(header, &claims(), &mallory.private)), None);
    }
    // An extension that it insists on.
    let critical = Header { crit: Some(vec!["exp".into()]), ..Header::new(Algorithm::RS256) };
    assert_eq!(user(&identify, &sign(&critical, &claims(), &rsa().private)), None);
    // Parts that are missing, doubled or in another alphabet.
    for token in [
        format!("{header}.{payload}"),
        format!("{header}.{payload}."),
        format!("{header}.{payload}.{signature}.{signature}"),
        format!("{header}.{payload}.{signature}="),
        format!("{header}..{signature}"),
        format!(".{payload}.{signature}"),
        format!("{header} .{payload}.{signature}"),
        "..".into(),
        ".".into(),
        "garbage".into(),
        "\u{fffd}.\u{fffd}.\u{fffd}".into(),
    ] {
        assert_eq!(user(&identify, &token), None, "{token}");
    }
}

fn base64(text: &str) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for three in text.as_bytes().chunks(3) {
        let bits = three.iter().fold(0u32, |bits, byte| bits << 8 | u32::from(*byte));
        let bits = bits << (8 * (3 - three.len()));
        for digit in 0..=three.len() {
            out.push(char::from(DIGITS[(bits >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    out
}

#[test]
fn a_changed_byte_is_noticed() {
    let identify = identify(settings(), ec().public_pem.as_bytes());
    let good = ec().sign(&claims());
    assert_eq!(user(&identify, &good), anna());
    for at in 0..good.len() {
        for other in [b'A', b'b', b'_', b'.', b'='] {
            let mut bytes = good.clone().into_bytes();
            if std::mem::replace(&mut bytes[at], other) != other {
                let bad = String::from_utf8(bytes).unwrap();
                assert_eq!(user(&identify, &bad), None, "{at}: {bad}");
            }
        }
    }
}

#[test]
fn tokens_count_between_their_instants() {
    let identify_all = identify(settings(), ec().public_pem.as_bytes());
    // Claims; the second asked about; whether it counts. The leeway is a minute.
    let rows = [
        (with("exp", json!(NOW)), NOW, true),
        (with("exp", json!(NOW)), NOW + 59, true),
        (with("exp", json!(NOW)), NOW + 60, false),
        (with("exp", json!(NOW)), NOW, true),
        (with("exp", json!(NOW as f64 + 0.9)), NOW + 59, true),
        (with("exp", json!(NOW as f64 + 0.9)), NOW + 60, false),
        (with("exp", json!(0)), NOW, false),
        (with("exp", json!(-1)), 0, true),
        (with("exp", json!(-61)), 0, false),
        (with("exp", json!(i64::MIN)), 0, false),
        (with("exp", json!(u64::MAX)), NOW, true),
        (with("exp", json!(1e300)), NOW, true),
        (with("exp", json!(-1e300)), NOW, false),
        (with("exp", json!(NOW.to_string())), NOW, false),
        (with("exp", json!(null)), NOW, false),
        (with("exp", json!([NOW + 1])), NOW, false),
        (with("nbf", json!(NOW)), NOW - 61, false),
        (with("nbf", json!(NOW)), NOW - 60, true),
        (with("nbf", json!("soon")), NOW, false),
        (with("nbf", json!(null)), NOW, false),
        (with("nbf", json!(u64::MAX)), NOW, false),
        (with("iat", json!(NOW + 1_000_000)), NOW, true),
    ];
    for (claims, secs, counts) in &rows {
        let value = format!("Bearer {}", ec().sign(claims));
        // The second time from what was remembered.
        for _ in 0..2 {
            assert_eq!(at(&identify_all, &value, *secs).0.is_some(), *counts, "{claims} {secs}");
        }
    }
    let token = ec().sign(&json!({ "sub": "anna" }));
    assert_eq!(user(&identify_all, &token), None, "it does not say when it ends");
    let endless = JwtSettings { requires_exp: false, ..settings() };
    let endless = identify(endless, ec().public_pem.as_bytes());
    assert_eq!(user(&endless, &token), anna());
    assert_eq!(user(&endless, &ec().sign(&with("exp", json!(0)))), None);
    assert_eq!(user(&endless, &ec().sign(&with("exp", json!("never")))), None);
}

#[test]
fn claims_are_names_or_nothing() {
    let identify = identify(settings(), ec().public_pem.as_bytes());
    let long = "x".repeat(CLAIM_BYTES_MAX);
    let rows = [
        (json!("anna"), Some("anna")),
        (json!(42), Some("42")),
        (json!(-7), Some("-7")),
        (json!(u64::MAX), Some("18446744073709551615")),
        (json!(&long), Some(&long)),
        (json!(long.clone() + "x"), None),
        (json!(""), None),
        (json!(1.5), None),
        (json!(true), None),
        (json!(null), None),
        (json!(["anna"]), None),
        (json!({ "name": "anna" }), None),
    ];
    for (value, want) in rows {
        let token = ec().sign(&with("sub", value.clone()));
        let got = at(&identify, &format!("Bearer {token}"), NOW);
        // A tier is somebody's: without a user there is none.
        let tier = want.map(|_| "gold".to_owned());
        assert_eq!(got, (want.map(str::to_owned), tier), "{value}");
        let token = ec().sign(&with("plan", value.clone()));
        let got = at(&identify, &format!("Bearer {token}"), NOW);
        assert_eq!(got, (anna(), want.map(str::to_owned)), "{value}");
    }
    let token = ec().sign(&json!({ "exp": NOW + 1 }));
    assert_eq!(at(&identify, &format!("Bearer {token}"), NOW), (None, None));
    assert_eq!(user(&identify, &ec().sign(&json!(["anna"]))), None);
}

#[test]
fn issuers_and_audiences_are_as_asked_for() {
    let asked = JwtSettings {
        issuers: vec!["https://a.example".into(), "https://b.example".into()],
        audiences: vec!["api".into()],
        ..settings()
    };
    let asked = identify(asked, ec().public_pem.as_bytes());
    let free = identify(settings(), ec().public_pem.as_bytes());
    let rows = [
        (json!("https://a.example"), json!("api"), true),
        (json!("https://b.example"), json!(["web", "api"]), true),
        (json!("https://a.example/"), json!("api"), false),
        (json!("https://c.example"), json!("api"), false),
        (json!(null), json!("api"), false),
        (json!("https://a.example"), json!("web"), false),
        (json!("https://a.example"), json!([]), false),
        (json!("https://a.example"), json!({ "api": 1 }), false),
        (json!("https://a.example"), json!(null), false),
    ];
    for (issuer, audience, good) in rows {
        let mut claims = claims();
        claims["iss"] = issuer;
        claims["aud"] = audience;
        let token = ec().sign(&claims);
        assert_eq!(user(&asked, &token).is_some(), good, "{claims}");
        assert_eq!(user(&free, &token), anna(), "{claims}");
    }
    assert_eq!(user(&asked, &ec().sign(&claims())), None);
}

#[test]
fn keys_are_found_by_their_names() {
    let (other, nameless) = (Signer::new(Algorithm::ES256), Signer::new(Algorithm::ES256));
    let set = json!({ "keys": [ec().jwk(Some("one")), other.jwk(Some("two"))] });
    let named = identify(settings(), set.to_string().as_bytes());
    let set = json!({ "keys": [ec().jwk(Some("one")), nameless.jwk(None)] });
    let mixed = identify(settings(), set.to_string().as_bytes());
    let token = |signer: &Signer, kid: Option<&str>| {
        let header = Header { kid: kid.map(Into::into), ..Header::new(Algorithm::ES256) };
        sign(&header, &claims(), &signer.private)
    };
    let rows = [
        (&named, token(ec(), Some("one")), true),
        (&named, token(&other, Some("two")), true),
        (&named, token(ec(), Some("two")), false),
        (&named, token(ec(), Some("three")), false),
        (&named, token(ec(), Some("")), false),
        (&named, token(ec(), None), true),
        (&named, token(&other, None), true),
        (&named, token(&nameless, None), false),
        (&mixed, token(&nameless, Some("three")), true),
        (&mixed, token(&nameless, Some("one")), true),
        (&mixed, token(ec(), Some("three")), false),
    ];
    for (number, (identify, token, good)) in rows.into_iter().enumerate() {
        assert_eq!(user(identify, &token).is_some(), good, "row {number}");
    }
}

#[test]
fn tokens_stand_where_they_should() {
    let bearer = identify(settings(), ec().public_pem.as_bytes());
    let custom = JwtSettings { header: "x-token".into(), ..settings() };
    let custom = identify(custom, ec().public_pem.as_bytes());
    let token = ec().sign(&claims());
    let rows = [
        (format!("Bearer {token}"), true, true),
        (format!("bearer   {token} "), true, true),
        (format!("BEARER {token}"), true, true),
        (token.clone(), false, true),
        (format!("Basic {token}"), false, false),
        (format!("Bearer{token}"), false, false),
        (format!("Bearer {token} {token}"), false, false),
        (format!("Bearer {token}, Bearer {token}"), false, false),
        ("Bearer".into(), false, false),
        ("Bearer ".into(), false, false),
        (String::new(), false, false),
    ];
    let found = |identify: &Identify, fields: &[(&str, &str)]| {
        let headers = fields.to_vec();
        let stranger = "203.0.113.9".parse().unwrap();
        identify.identify(stranger, &headers, Micros::from_secs(NOW)).user.is_some()
    };
    for (value, in_authorization, in_custom) in &rows {
        assert_eq!(found(&bearer, &[("Authorization", value)]), *in_authorization, "{value}");
        assert_eq!(found(&custom, &[("X-Token", value)]), *in_custom, "{value}");
        assert!(!found(&bearer, &[("X-Token", value)]), "{value}");
    }
    let value = rows[0].0.as_str();
    let before = bearer.jwt_stats();
    assert!(
        !found(&bearer, &[("Authorization", value), ("Authorization", value)]),
        "whose, of two?"
    );
    assert_eq!(bearer.jwt_stats(), JwtStats { rejected: before.rejected + 1, ..before });
    // No token is nothing to count; neither is another scheme.
    found(&bearer, &[("X-Other", value)]);
    found(&bearer, &[("Authorization", "Basic YTpi")]);
    assert_eq!(bearer.jwt_stats().rejected, before.rejected + 1);
    let verified = bearer.jwt_stats().verified;
    assert!(found(&bearer, &[("Authorization", value)]));
    assert_eq!(bearer.jwt_stats().verified, verified + 1);
}

#[test]
fn large_tokens_are_not_looked_at() {
    let identify = identify(settings(), ec().public_pem.as_bytes());
    let padded = |bytes: usize| ec().sign(&with("pad", json!("x".repeat(bytes))));
    let least = padded(0).len();
    let fits = (TOKEN_BYTES_MAX - least) * 3 / 4 - 8;
    let (small, large) = (padded(fits), padded(fits + 16));
    assert!(small.len() <= TOKEN_BYTES_MAX && large.len() > TOKEN_BYTES_MAX, "{}", large.len());
    assert_eq!(user(&identify, &small), anna());
    assert_eq!(user(&identify, &large), None);
    assert_eq!(user(&identify, &"a.".repeat(1 << 20)), None);
    let deep = base64(&("[".repeat(5_000)));
    assert_eq!(user(&identify, &format!("{}.{deep}.x", base64(r#"{"alg":"ES256"}"#))), None);
}

#[test]
fn a_token_proves_its_user_to_whoever_asks() {
    let identify = identify(settings(), ec().public_pem.as_bytes());
    let value = format!("Bearer {}", ec().sign(&claims()));
    let headers = vec![("Authorization", value.as_str())];
    let headers: &dyn Headers = &headers;
    let expired = format!("Bearer {}", ec().sign(&with("exp", json!(1))));
    let expired = vec![("Authorization", expired.as_str())];
    let expired: &dyn Headers = &expired;
    // Address, stated user and tier, headers | user, tier
    let rows = [
        (Some("203.0.113.9"), None, None, headers, [Some("anna"), Some("gold")]),
        (Some("10.0.0.1"), None, None, headers, [Some("anna"), Some("gold")]),
        (None, None, None, headers, [Some("anna"), Some("gold")]),
        (None, Some("anna"), None, headers, [Some("anna"), Some("gold")]),
        (None, Some("otto"), None, headers, [Some("otto"), None]),
        (None, Some("otto"), Some("free"), headers, [Some("otto"), Some("free")]),
        (None, None, Some("free"), headers, [Some("anna"), Some("free")]),
        (Some("10.0.0.1"), None, None, expired, [None, None]),
        (Some("10.0.0.1"), Some("otto"), None, expired, [Some("otto"), None]),
    ];
    for (ip, user, tier, headers, want) in rows {
        let ip = ip.map(|ip| ip.parse().unwrap());
        let stated = Facts { ip, user, tier, headers: Some(headers), ..Facts::default() };
        let identity = identify.identify_stated(&stated, Micros::from_secs(NOW));
        let facts = identity.complete(stated);
        assert_eq!([facts.user, facts.tier], want);
        assert_eq!(facts.ip, ip);
    }
}

#[test]
fn the_same_keys_go_on_and_others_begin_anew() {
    let pem = ec().public_pem.as_bytes();
    let old = identify(settings(), pem);
    let token = ec().sign(&claims());
    assert_eq!(user(&old, &token), anna());
    let mut same = identify(settings(), pem);
    same.inherit_tokens(&old);
    assert_eq!(same.jwt_stats(), JwtStats { verified: 1, rejected: 0 });
    let other_claim = JwtSettings { claim: "name".into(), ..settings() };
    let rotated = Signer::new(Algorithm::ES256);
    for (settings, keys) in [(other_claim, pem), (settings(), rotated.public_pem.as_bytes())] {
        let mut other = identify(settings, keys);
        other.inherit_tokens(&old);
        assert_eq!(other.jwt_stats(), JwtStats::default());
        assert_eq!(user(&other, &token), None, "a key that was taken away verifies nothing");
    }
}

#[test]
fn nothing_shows_keys_or_tokens() {
    let hs256 = JwtSettings { algorithms: vec!["HS256".into()], ..settings() };
    let identify = identify(hs256, SECRET);
    let shown = format!("{identify:?}");
    assert!(!shown.contains("0123456789abcdef") && !shown.contains("48, 49, 50"), "{shown}");
    let headers = vec![("X-Key", "canary")];
    let with_key = Identify { api_key_header: Some("x-key".into()), ..identify };
    let shown = with_key.identify("::1".parse().unwrap(), &headers, Micros::new(0));
    assert!(!format!("{shown:?}").contains("canary"));
}

/// `cargo test --release -p tollgate-rules --features jwt --test suite jwt:: -- --ignored --nocapture`
#[test]
#[ignore = "measures"]
#[expect(clippy::disallowed_methods, reason = "measures")]
fn what_verifying_costs() {
    let measure = |what: &str, identify: &Identify, values: &[String]| {
        let began = std::time::Instant::now();
        let mut good = 0;
        for value in values {
            good += usize::from(at(identify, value, NOW).0.is_some());
        }
        let each = began.elapsed().as_nanos() / values.len() as u128;
        println!("{what}: {each} ns each, {good} of {} good", values.len());
    };
    for signer in SIGNERS.iter() {
        let identify = identify(settings(), signer.public_pem.as_bytes());
        let tokens = (0..2_000).map(|n| signer.sign(&with("jti", json!(n))));
        let fresh: Vec<String> = tokens.map(|token| format!("Bearer {token}")).collect();
        let name = format!("{:?}", signer.algorithm);
        measure(&format!("{name}, first time"), &identify, &fresh);
        measure(&format!("{name}, remembered"), &identify, &vec![fresh[1_999].clone(); 100_000]);
        let forged: Vec<String> = fresh.iter().map(|value| value.replace("eyJ0", "eyJ1")).collect();
        measure(&format!("{name}, forged"), &identify, &forged);
        let cut: Vec<String> = fresh.iter().map(|value| value[..value.len() - 4].into()).collect();
        measure(&format!("{name}, cut off"), &identify, &cut);
        let expired = format!("Bearer {}", signer.sign(&with("exp", json!(1))));
        measure(&format!("{name}, expired"), &identify, &vec![expired; 10_000]);
    }
}
