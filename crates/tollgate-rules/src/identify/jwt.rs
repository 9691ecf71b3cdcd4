//! Users and tiers by claims of signed tokens (JSON Web Tokens).
//!
//! A claim of a token whose signature was verified is the caller's own proof, so it counts from
//! anyone. A token that is expired, too large, signed with another key or no token at all means no
//! user, never an error: the caller is counted by address, as without a token.
//!
//! The token's own statements about its verification are ignored: keys come from a file, each key
//! has its algorithms, nothing is fetched.

mod cache;
mod keys;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jsonwebtoken::dangerous::insecure_decode;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use tollgate::Micros;

use super::JwtStats;
use crate::facts::Headers;
use crate::problem::Problem;

use cache::JwtCache;
use keys::JwtKeys;

/// The largest token. Others are not looked at.
pub const TOKEN_BYTES_MAX: usize = 8 << 10;
/// The longest claim that becomes a user or a tier.
pub const CLAIM_BYTES_MAX: usize = 256;
/// Seconds by which the issuer's clock may differ from ours.
pub const LEEWAY_SECS: i64 = 60;

/// Settings for the verification of tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtSettings {
    /// The claim that names the user.
    pub claim: Box<str>,
    /// The claim that names the tier.
    pub tier_claim: Option<Box<str>>,
    /// The header that has the token, in small letters.
    pub header: Box<str>,
    /// Names of algorithms that count; empty: all that fit a key.
    pub algorithms: Vec<Box<str>>,
    /// Accepted issuers; empty accepts all.
    pub issuers: Vec<Box<str>>,
    /// Accepted audiences; empty accepts all.
    pub audiences: Vec<Box<str>>,
    /// True if a token must have an expiry time.
    pub requires_exp: bool,
    /// The file that the keys were read from.
    pub keys_file: PathBuf,
}

/// Verifies tokens, and remembers those that it has verified.
pub struct JwtVerifier {
    settings: JwtSettings,
    keys: JwtKeys,
    /// The hash of settings and keys.
    fingerprint: [u8; 32],
    cache: JwtCache,
    verified: AtomicU64,
    rejected: AtomicU64,
}

/// The claims of a verified token, and the time in which it is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VerifiedToken {
    pub(super) user: Option<Arc<str>>,
    pub(super) tier: Option<Arc<str>>,
    /// The first instant at which it is valid.
    from: Micros,
    /// The first instant at which it is no longer valid.
    until: Micros,
}

impl VerifiedToken {
    fn is_valid_at(&self, now: Micros) -> bool {
        self.from <= now && now < self.until
    }
}

impl JwtVerifier {
    /// Reads keys: a JSON Web Key Set, public keys in PEM, or a secret.
    pub fn new(settings: JwtSettings, keys: &[u8]) -> Result<JwtVerifier, Problem> {
        let mut hash = Sha256::new();
        hash.update(format!("{settings:?}"));
        hash.update(keys);
        Ok(JwtVerifier {
            keys: JwtKeys::read(keys, &settings.algorithms)?,
            settings,
            fingerprint: hash.finalize().into(),
            cache: JwtCache::new(),
            verified: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        })
    }

    /// The file that the keys were read from.
    pub fn keys_file(&self) -> &Path {
        &self.settings.keys_file
    }

    pub(super) fn names_tiers(&self) -> bool {
        self.settings.tier_claim.is_some()
    }

    pub(super) fn stats(&self) -> JwtStats {
        JwtStats {
            verified: self.verified.load(Ordering::Relaxed),
            rejected: self.rejected.load(Ordering::Relaxed),
        }
    }

    /// The header that has the token.
    pub(super) fn header(&self) -> &str {
        &self.settings.header
    }

    /// Reads the token of a request; `None` without a valid one.
    pub(super) fn read(&self, headers: &dyn Headers, now: Micros) -> Option<VerifiedToken> {
        let name = &*self.settings.header;
        let verified = match headers.only(name) {
            Some(value) => self.verify(token_in(&value, name == "authorization")?, now),
            None => {
                // Two tokens are an attempt to deceive; without one there is nothing to count.
                headers.joined(name)?;
                None
            }
        };
        let counter = if verified.is_some() { &self.verified } else { &self.rejected };
        counter.fetch_add(1, Ordering::Relaxed);
        verified
    }

    fn verify(&self, token: &str, now: Micros) -> Option<VerifiedToken> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.cache.get(&digest, now) {
            return Some(known);
        }
        let fresh = self.verify_signature(token, now)?;
        self.cache.put(digest, fresh.clone(), now);
        Some(fresh)
    }

    /// The signature comes last, because it takes longest: expired tokens are sent over and over.
    fn verify_signature(&self, token: &str, now: Micros) -> Option<VerifiedToken> {
        let decoded = insecure_decode::<Map<String, Value>>(token).ok()?;
        // Extensions that the token insists on, none of which are known here.
        if decoded.header.crit.is_some() {
            return None;
        }
        let claims = &decoded.claims;
        let verified = VerifiedToken {
            user: claims.get(&*self.settings.claim).and_then(text),
            tier: self.settings.tier_claim.as_ref().and_then(|claim| text(claims.get(&**claim)?)),
            from: instant(claims.get("nbf"), -LEEWAY_SECS)?.unwrap_or(Micros::new(0)),
            until: instant(claims.get("exp"), LEEWAY_SECS)?
                .or((!self.settings.requires_exp).then_some(Micros::new(u64::MAX)))?,
        };
        let good = verified.is_valid_at(now)
            && is_one_of(&self.settings.issuers, claims.get("iss"))
            && is_one_of(&self.settings.audiences, claims.get("aud"))
            && self.keys.have_signed(token, &decoded.header);
        good.then_some(verified)
    }
}

/// Two verifiers are equal if they verify the same tokens in the same way.
impl PartialEq for JwtVerifier {
    fn eq(&self, other: &JwtVerifier) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for JwtVerifier {}

impl fmt::Debug for JwtVerifier {
    /// Without keys and tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jwt").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// The token in a value: behind `Bearer`, which `Authorization` must have and other headers may.
/// Other schemes carry no tokens.
fn token_in(value: &str, needs_scheme: bool) -> Option<&str> {
    let value = value.trim_matches([' ', '\t']);
    match value.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => {
            Some(token.trim_start_matches(' '))
        }
        Some(_) if needs_scheme => None,
        None if needs_scheme => None,
        _ => (!value.is_empty()).then_some(value),
    }
}

/// A claim as a name: a text or a whole number, neither empty nor too long.
fn text(claim: &Value) -> Option<Arc<str>> {
    let text: Arc<str> = match claim {
        Value::String(text) => Arc::from(&**text),
        Value::Number(number) if !number.is_f64() => Arc::from(number.to_string()),
        _ => return None,
    };
    (1..=CLAIM_BYTES_MAX).contains(&text.len()).then_some(text)
}

/// An instant in seconds since the Unix epoch, moved by the leeway. The outer `None`: the claim is
/// not a number. The inner `None`: there is no such claim.
fn instant(claim: Option<&Value>, leeway_secs: i64) -> Option<Option<Micros>> {
    let Some(claim) = claim else { return Some(None) };
    let number = claim.as_number()?;
    // Fractions of a second are allowed, and far below the leeway.
    let too_late = || number.as_u64().map(|_| i64::MAX);
    let secs =
        number.as_i64().or_else(too_late).or_else(|| Some(number.as_f64()?.floor() as i64))?;
    let micros = secs.saturating_add(leeway_secs).max(0).saturating_mul(1_000_000);
    Some(Some(Micros::new(micros.unsigned_abs())))
}

/// Returns true if a claim, a text or a list of texts, has one of the wanted values, or if none are
/// wanted.
fn is_one_of(wanted: &[Box<str>], claim: Option<&Value>) -> bool {
    let is_wanted =
        |one: &Value| one.as_str().is_some_and(|one| wanted.iter().any(|w| **w == *one));
    wanted.is_empty()
        || claim.is_some_and(|claim| match claim {
            Value::Array(several) => several.iter().any(is_wanted),
            one => is_wanted(one),
        })
}
