//! The keys that may sign tokens: read from a JSON Web Key Set, from PEM or from a secret.
//!
//! Each key has its own algorithms, which follow from what kind of key it is. So a token cannot
//! choose to have a public key taken for a secret. Messages about a file never show its contents.

use jsonwebtoken::crypto::verify;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, Header};
use serde_json::Value;

use crate::problem::Problem;

/// The most keys of a file: a token that names no key is tried with each.
const KEYS_MAX: usize = 16;
/// The shortest secret, in bytes: what HS256 asks for (RFC 7518).
const SECRET_BYTES_MIN: usize = 32;
/// The size of RSA keys, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// Keys that may sign.
pub(super) struct JwtKeys {
    /// Bound: `KEYS_MAX`.
    keys: Vec<JwtKey>,
}

struct JwtKey {
    /// Its name, if it has one.
    kid: Option<Box<str>>,
    /// The algorithms that the key may sign with.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

impl JwtKeys {
    /// Reads a file; `allowed` are names of algorithms, and none stands for all that fit a key.
    pub(super) fn read(bytes: &[u8], allowed: &[Box<str>]) -> Result<JwtKeys, Problem> {
        let allowed: Vec<Algorithm> = allowed.iter().filter_map(|name| name.parse().ok()).collect();
        let text = std::str::from_utf8(bytes).unwrap_or_default().trim();
        let mut keys = if bytes.iter().all(u8::is_ascii_whitespace) {
            return Err(Problem::new("the keys file is empty").hint(KEY_FORMATS_HINT));
        } else if text.starts_with(['{', '[']) {
            read_json(text)?
        } else if text.contains("-----BEGIN ") {
            read_pem(text)?
        } else {
            vec![read_secret(bytes, &allowed)?]
        };
        let found = keys.len();
        if !allowed.is_empty() {
            keys.iter_mut().for_each(|key| key.algorithms.retain(|one| allowed.contains(one)));
            keys.retain(|key| !key.algorithms.is_empty());
        }
        match keys.len() {
            0 if found > 0 => Err(Problem::new("no key of the keys file fits `algorithms`")
                .hint("leave `algorithms` out: the keys say which they can be used with")),
            0 => Err(Problem::new("the keys file has no key that can verify signatures")
                .hint(KEY_FORMATS_HINT)),
            many if many > KEYS_MAX => Err(Problem::new(format!(
                "the keys file has {many} keys; at most {KEYS_MAX} are used"
            ))
            .hint("remove keys that no longer sign, or name fewer `algorithms`")),
            _ => Ok(JwtKeys { keys }),
        }
    }

    /// Returns true if one of the keys has signed the token. A token that names its key is verified
    /// with that key or with keys without a name; any other with all keys of its algorithm.
    pub(super) fn have_signed(&self, token: &str, header: &Header) -> bool {
        let Some((message, signature)) = token.rsplit_once('.') else { return false };
        let named = |key: &&JwtKey| match (&key.kid, &header.kid) {
            (Some(own), Some(asked)) => **own == **asked,
            _ => true,
        };
        let fitting = self.keys.iter().filter(named);
        fitting
            .filter(|key| key.algorithms.contains(&header.alg))
            .any(|key| verify(signature, message.as_bytes(), &key.key, header.alg).unwrap_or(false))
    }
}

const KEY_FORMATS_HINT: &str = "write a JSON Web Key Set, public keys in PEM, or, with \
                     `algorithms: [HS256]`, a secret";

/// A key set, or a single key.
fn read_json(text: &str) -> Result<Vec<JwtKey>, Problem> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        // Without the message, which may show what is in the file.
        let (line, column) = (error.line(), error.column());
        Problem::new(format!("the keys file is not JSON: look at its line {line}, column {column}"))
    })?;
    let several = match (value.get("keys"), value.get("kty")) {
        (Some(Value::Array(several)), _) => several.as_slice(),
        (None, Some(_)) => std::slice::from_ref(&value),
        _ => {
            return Err(Problem::new("the keys file is JSON, but not a JSON Web Key Set")
                .hint("write `{\"keys\": [...]}`, as the issuer of the tokens publishes it"));
        }
    };
    let read = |(index, one)| read_jwk(one, index + 1).transpose();
    several.iter().enumerate().filter_map(read).collect()
}

/// One key of a set. Those for other purposes and of other kinds are passed over.
fn read_jwk(value: &Value, number: usize) -> Result<Option<JwtKey>, Problem> {
    let field = |name| value.get(name).and_then(Value::as_str);
    let algorithms = match (field("kty"), field("crv")) {
        (Some("RSA"), _) => AlgorithmFamily::Rsa.algorithms(),
        (Some("oct"), _) => AlgorithmFamily::Hmac.algorithms(),
        (Some("EC"), Some("P-256")) => &[Algorithm::ES256],
        (Some("EC"), Some("P-384")) => &[Algorithm::ES384],
        (Some("OKP"), Some("Ed25519")) => AlgorithmFamily::Ed.algorithms(),
        _ => return Ok(None),
    };
    let own = |one: &&Algorithm| field("alg").is_none_or(|name| name.parse() == Ok(**one));
    let algorithms: Vec<Algorithm> = algorithms.iter().filter(own).copied().collect();
    if algorithms.is_empty() || field("use").is_some_and(|purpose| purpose != "sig") {
        return Ok(None);
    }
    if value.get("d").is_some() {
        return Err(is_private());
    }
    let bad = || {
        Problem::new(format!("key {number} of the keys file cannot be read"))
            .hint("copy it again from the issuer of the tokens")
    };
    let jwk: Jwk = serde_json::from_value(value.clone()).map_err(|_| bad())?;
    let key = DecodingKey::from_jwk(&jwk).map_err(|_| bad())?;
    let key = JwtKey { kid: field("kid").map(Box::from), algorithms, key };
    key.check(number).map(Some)
}

/// All keys of a PEM file.
fn read_pem(text: &str) -> Result<Vec<JwtKey>, Problem> {
    let mut keys = Vec::new();
    let mut rest = text;
    while let Some((_, after)) = rest.split_once("-----BEGIN ") {
        let number = keys.len() + 1;
        let bad = || {
            Problem::new(format!("key {number} of the keys file cannot be read"))
                .hint("write a public key: `openssl pkey -in private.pem -pubout`")
        };
        let (label, body) = after.split_once("-----").ok_or_else(bad)?;
        if label.ends_with("PRIVATE KEY") {
            return Err(is_private());
        }
        if label == "CERTIFICATE" {
            return Err(Problem::new("the keys file has a certificate, not a public key")
                .hint("extract the public key: `openssl x509 -in cert.pem -pubkey -noout`"));
        }
        let (body, after) = body.split_once(&format!("-----END {label}-----")).ok_or_else(bad)?;
        let pem = format!("-----BEGIN {label}-----{body}-----END {label}-----\n");
        keys.push(read_public_pem(pem.as_bytes(), number).ok_or_else(bad)??);
        rest = after;
    }
    Ok(keys)
}

fn read_public_pem(pem: &[u8], number: usize) -> Option<Result<JwtKey, Problem>> {
    let (algorithms, key) = if let Ok(key) = DecodingKey::from_rsa_pem(pem) {
        // With its modulus at hand: its size is checked like that of all others.
        let jwk = Jwk::from_decoding_key(&key, Some(Algorithm::RS256)).ok()?;
        (AlgorithmFamily::Rsa.algorithms(), DecodingKey::from_jwk(&jwk).ok()?)
    } else if let Ok(key) = DecodingKey::from_ec_pem(pem) {
        let curve: &[Algorithm] = match key.try_get_as_bytes().ok()?.len() {
            65 => &[Algorithm::ES256],
            97 => &[Algorithm::ES384],
            _ => return None,
        };
        (curve, key)
    } else {
        (AlgorithmFamily::Ed.algorithms(), DecodingKey::from_ed_pem(pem).ok()?)
    };
    Some(JwtKey { kid: None, algorithms: algorithms.to_vec(), key }.check(number))
}

/// A secret that both sides know. Only if the rules say so: any file could be one.
fn read_secret(bytes: &[u8], allowed: &[Algorithm]) -> Result<JwtKey, Problem> {
    let is_meant =
        !allowed.is_empty() && allowed.iter().all(|one| one.family() == AlgorithmFamily::Hmac);
    if !is_meant {
        return Err(Problem::new("the keys file is neither a JSON Web Key Set nor PEM")
            .hint("for a shared secret, write `algorithms: [HS256]`"));
    }
    // Editors end files with a line break.
    let secret = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let secret = secret.strip_suffix(b"\r").unwrap_or(secret);
    let key = DecodingKey::from_secret(secret);
    JwtKey { kid: None, algorithms: AlgorithmFamily::Hmac.algorithms().to_vec(), key }.check(1)
}

fn is_private() -> Problem {
    Problem::new("the keys file has a private key, which only the issuer of the tokens should have")
        .hint("write the public key: `openssl pkey -in private.pem -pubout`")
}

impl JwtKey {
    /// A key that can verify something: no signature fits one of the wrong size.
    fn check(self, number: usize) -> Result<JwtKey, Problem> {
        let bits = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, .. } => {
                n.iter().skip_while(|byte| **byte == 0).count() * 8
            }
            DecodingKeyKind::SecretOrDer(bytes) => bytes.len() * 8,
        };
        let (good, what) = match self.key.family() {
            AlgorithmFamily::Rsa => (
                RSA_BITS.contains(&bits),
                format!("an RSA key has {} to {} bits", RSA_BITS.start(), RSA_BITS.end()),
            ),
            AlgorithmFamily::Hmac => (
                bits >= SECRET_BYTES_MIN * 8,
                format!("a secret has at least {SECRET_BYTES_MIN} bytes"),
            ),
            AlgorithmFamily::Ed => (bits == 256, "an Ed25519 key has 32 bytes".into()),
            AlgorithmFamily::Ec => {
                let of_curve = match self.algorithms.first() {
                    Some(Algorithm::ES384) => 97 * 8,
                    _ => 65 * 8,
                };
                (bits == of_curve, "a point of its curve has two coordinates".into())
            }
        };
        match good {
            true => Ok(self),
            false => Err(Problem::new(format!(
                "key {number} of the keys file has the wrong size: {what}"
            ))
            .hint("copy it again, or have a larger one issued")),
        }
    }
}
