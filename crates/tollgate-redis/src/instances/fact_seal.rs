//! Seals of rules and overrides, so that an instance takes them only from instances with its own secret.
//!
//! A value in the store begins with its seal: `s1,AUTHORED,TAG,` and then the payload. TAG is an HMAC-SHA-256 over
//! everything that the value means: the prefix of the keys, kind and name, whether it was taken back, when it was
//! decided, and the payload. So an entry that is moved, changed or made up has a wrong tag, and AUTHORED, in
//! microseconds of the store's clock, tells a later version from an earlier one that somebody wrote back.
//!
//! Blocks have no seal: who can write to the store can refuse and admit any caller by its counts as well.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::shared_fact::{FactKind, FactName};

/// The label of the key: the secret itself hashes callers, and no hash of a caller is ever a tag.
const KEY_LABEL: &[u8] = b"tollgate: seals of shared changes, 1";

/// The beginning of a sealed payload. No payload begins like this.
const MARK: &str = "s1,";

/// Time by which a version may be older than the one that is known. Clocks of instances differ by less, and a
/// version that was replaced longer ago is not taken back.
const REPLAY_TOLERANCE_US: u64 = 10_000_000;

/// The seal of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FactSeal {
    /// The time at which the fact was decided, by the store's clock.
    pub(super) authored: u64,
    tag: [u8; 32],
}

/// A reason for which a value in the store is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealRefusal {
    /// It has no seal, and this instance has a secret.
    Unsealed,
    /// Its seal is wrong: it was made up, or changed, or sealed under another secret.
    WrongSeal,
    /// It is older than what this instance knows.
    Replayed,
}

impl SealRefusal {
    /// All of them.
    pub const ALL: [SealRefusal; 3] =
        [SealRefusal::Unsealed, SealRefusal::WrongSeal, SealRefusal::Replayed];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            SealRefusal::Unsealed => "unsealed",
            SealRefusal::WrongSeal => "wrong_seal",
            SealRefusal::Replayed => "replayed",
        }
    }
}

/// Makes and checks seals; without a secret it does neither.
#[derive(Clone, Default)]
pub(super) struct FactSealer(Option<Hmac<Sha256>>);

impl std::fmt::Debug for FactSealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("FactSealer").field(&self.0.as_ref().map(|_| "***")).finish()
    }
}

impl FactSealer {
    /// Seals under a key that is derived from the secret, for stores with this prefix of keys.
    pub(super) fn new(secret: Option<&[u8]>, prefix: &str) -> FactSealer {
        FactSealer(secret.map(|secret| {
            let key = hmac_of(secret).chain_update(KEY_LABEL).finalize().into_bytes();
            hmac_of(&key).chain_update(length(prefix.len())).chain_update(prefix)
        }))
    }

    /// Returns true if values of this kind are sealed here.
    pub(super) fn seals(&self, kind: FactKind) -> bool {
        self.0.is_some() && kind != FactKind::Block
    }

    /// The seal of a payload; `None` if values of this kind are not sealed here.
    pub(super) fn seal(
        &self,
        name: FactName,
        removed: bool,
        authored: u64,
        payload: &str,
    ) -> Option<FactSeal> {
        let hmac = self.0.as_ref().filter(|_| self.seals(name.kind))?;
        let tag = message(hmac, name, removed, authored, payload).finalize().into_bytes().into();
        Some(FactSeal { authored, tag })
    }

    /// Checks the seal of a payload from the store. `Ok(true)`: an instance with our secret has sealed it.
    pub(super) fn check(
        &self,
        name: FactName,
        removed: bool,
        seal: Option<&FactSeal>,
        payload: &str,
    ) -> Result<bool, SealRefusal> {
        let Some(hmac) = self.0.as_ref().filter(|_| self.seals(name.kind)) else {
            return Ok(false);
        };
        let Some(seal) = seal else { return Err(SealRefusal::Unsealed) };
        // In constant time: nobody finds out by trying how much of a tag is right.
        message(hmac, name, removed, seal.authored, payload)
            .verify_slice(&seal.tag)
            .map(|()| true)
            .map_err(|_| SealRefusal::WrongSeal)
    }
}

impl FactSeal {
    /// Reads a value of the store: its seal, if it has one, and the payload. `None`: the seal cannot be read.
    pub(super) fn split(value: &str) -> Option<(Option<FactSeal>, &str)> {
        let Some(sealed) = value.strip_prefix(MARK) else { return Some((None, value)) };
        let mut parts = sealed.splitn(3, ',');
        let authored = parts.next()?.parse().ok()?;
        let tag = tag_of(parts.next()?)?;
        Some((Some(FactSeal { authored, tag }), parts.next()?))
    }

    /// The payload with its seal, as the store has it.
    pub(super) fn text(&self, payload: &str) -> String {
        use std::fmt::Write as _;
        let mut text = format!("{MARK}{},", self.authored);
        for byte in self.tag {
            let _ = write!(text, "{byte:02x}");
        }
        text.push(',');
        text.push_str(payload);
        text
    }

    /// Returns true if this version is so much older than the known one that somebody has written it back.
    pub(super) fn is_replay_after(&self, known: &FactSeal) -> bool {
        self.authored.saturating_add(REPLAY_TOLERANCE_US) < known.authored
    }
}

/// A tag of 64 hexadecimal digits.
fn tag_of(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    let mut tag = [0; 32];
    if digits.len() != 2 * tag.len() {
        return None;
    }
    for (byte, pair) in tag.iter_mut().zip(digits.chunks(2)) {
        let digit = |one: u8| char::from(one).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?;
    }
    Some(tag)
}

fn hmac_of(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("a key of any length is right")
}

/// The message of a seal. Lengths, so that no two facts have the same.
fn message(
    hmac: &Hmac<Sha256>,
    name: FactName,
    removed: bool,
    authored: u64,
    payload: &str,
) -> Hmac<Sha256> {
    hmac.clone()
        .chain_update(name.kind.letter())
        .chain_update(name.id)
        .chain_update([u8::from(removed)])
        .chain_update(authored.to_le_bytes())
        .chain_update(length(payload.len()))
        .chain_update(payload)
}

fn length(bytes: usize) -> [u8; 8] {
    (bytes as u64).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"0123456789abcdef";

    #[test]
    fn a_seal_holds_for_the_whole_meaning_of_a_fact_and_for_nothing_else() {
        let sealer = FactSealer::new(Some(SECRET), "t");
        let name = FactName::of_override("api", "user=42");
        let seal = sealer.seal(name, false, 1_000, "{}").unwrap();
        assert_eq!(sealer.check(name, false, Some(&seal), "{}"), Ok(true));
        let other_name = FactName::of_override("api", "user=43");
        let rules = FactName { kind: FactKind::Rules, id: name.id };
        let later = FactSeal { authored: 1_001, ..seal };
        let rows = [
            (&sealer, other_name, false, seal, "{}", "moved to another caller"),
            (&sealer, rules, false, seal, "{}", "moved to another kind"),
            (&sealer, name, true, seal, "{}", "made a removal"),
            (&sealer, name, false, later, "{}", "made to look later"),
            (&sealer, name, false, seal, "{} ", "changed"),
            (&FactSealer::new(Some(SECRET), "u"), name, false, seal, "{}", "from another prefix"),
            (&FactSealer::new(Some(b"f"), "t"), name, false, seal, "{}", "under another secret"),
        ];
        for (sealer, name, removed, seal, payload, what) in rows {
            let checked = sealer.check(name, removed, Some(&seal), payload);
            assert_eq!(checked, Err(SealRefusal::WrongSeal), "{what}");
        }
        assert_eq!(sealer.check(name, false, None, "{}"), Err(SealRefusal::Unsealed));
        let open = FactSealer::new(None, "t");
        assert_eq!(open.check(name, false, Some(&seal), "{}"), Ok(false), "it cannot tell");
        assert_eq!(open.seal(name, false, 1_000, "{}"), None);
        let block = FactName::block([1; 16]);
        assert_eq!(
            (sealer.seal(block, false, 1, ""), sealer.check(block, false, None, "")),
            (None, Ok(false))
        );
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        let sealer = FactSealer::new(Some(SECRET), "t");
        let seal = sealer.seal(FactName::RULES, false, u64::MAX >> 11, "a,b\nc").unwrap();
        let text = seal.text("a,b\nc");
        assert!(text.len() <= "a,b\nc".len() + 85, "{text}");
        assert_eq!(FactSeal::split(&text), Some((Some(seal), "a,b\nc")));
        assert_eq!(FactSeal::split("{\"rule\":\"s1,\"}"), Some((None, "{\"rule\":\"s1,\"}")));
        let digits = "0".repeat(64);
        for wrong in ["s1,", "s1,5", "s1,5,00,x", "s1,x,,", "s1,-1,,"] {
            assert_eq!(FactSeal::split(wrong), None, "{wrong}");
        }
        assert_eq!(FactSeal::split(&format!("s1,5,{digits}")), None, "it ends early");
        assert_eq!(FactSeal::split(&format!("s1,5,{},x", "é".repeat(32))), None);
        assert!(!format!("{sealer:?}").contains("Hmac"), "{sealer:?}");
    }

    #[test]
    fn an_old_version_is_a_replay_and_a_clock_that_differs_is_not() {
        let sealer = FactSealer::new(Some(SECRET), "t");
        let of = |authored| sealer.seal(FactName::RULES, false, authored, "x").unwrap();
        let known = of(60_000_000);
        for (authored, is_replay) in [(0, true), (49_999_999, true), (50_000_000, false)] {
            assert_eq!(of(authored).is_replay_after(&known), is_replay, "{authored}");
        }
        assert!(!of(90_000_000).is_replay_after(&known));
    }
}
