//! Seals of rules and overrides, so that an instance takes them only from instances with its own secret.
//!
//! A value in the store begins with its seal: `s2,AUTHORED,TAG,` and then the payload. TAG is an HMAC-SHA-256 over
//! everything that the value means: the prefix of the keys, kind and name, whether it was taken back, when it was
//! decided, when it ends, and the payload. So an entry that is moved, changed, ended or made up has a wrong tag, and
//! AUTHORED, in microseconds of the store's clock, tells a later version from an earlier one that somebody wrote back
//! (`latest_seal.rs`). The only part without a seal is the stamp, which orders what is written.
//!
//! Blocks have no seal: who can write to the store can refuse and admit any caller by its counts as well.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::shared_fact::{FactKind, FactName};

/// The label of the key: the secret itself hashes callers, and no hash of a caller is ever a tag.
const KEY_LABEL: &[u8] = b"tollgate: seals of shared changes, 1";

/// The beginning of a sealed payload. No payload begins like this.
const MARK: &str = "s2,";

/// The beginning of a payload whose seal leaves out the end. Such a value is not one of ours any more.
const OLD_MARK: &str = "s1,";

/// The seal of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FactSeal {
    /// The time at which the fact was decided, by the store's clock.
    pub(super) authored: u64,
    /// The end of the fact, by the store's clock; 0 if it has none. In the store it stands before the payload.
    pub(super) until: u64,
    tag: [u8; 32],
}

/// The part of a fact that is sealed with its name and the time of the seal.
#[derive(Clone, Copy, Debug)]
pub(super) struct SealedContent<'a> {
    pub(super) removed: bool,
    /// The end by the store's clock; 0 if it has none.
    pub(super) until: u64,
    pub(super) payload: &'a str,
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
        authored: u64,
        content: SealedContent<'_>,
    ) -> Option<FactSeal> {
        let hmac = self.0.as_ref().filter(|_| self.seals(name.kind))?;
        let tag = message(hmac, name, authored, content).finalize().into_bytes().into();
        Some(FactSeal { authored, until: content.until, tag })
    }

    /// Checks the seal of a fact from the store. `Ok(true)`: an instance with our secret has sealed it.
    pub(super) fn check(
        &self,
        name: FactName,
        seal: Option<&FactSeal>,
        content: SealedContent<'_>,
    ) -> Result<bool, SealRefusal> {
        let Some(hmac) = self.0.as_ref().filter(|_| self.seals(name.kind)) else {
            return Ok(false);
        };
        let Some(seal) = seal else { return Err(SealRefusal::Unsealed) };
        // In constant time: nobody finds out by trying how much of a tag is right.
        message(hmac, name, seal.authored, content)
            .verify_slice(&seal.tag)
            .map(|()| true)
            .map_err(|_| SealRefusal::WrongSeal)
    }
}

impl FactSeal {
    /// Reads the end of a value in the store: its seal, if it has one, and the payload. `until` stands before them.
    /// `None`: the seal cannot be read.
    pub(super) fn split(value: &str, until: u64) -> Option<(Option<FactSeal>, &str)> {
        let Some(sealed) = value.strip_prefix(MARK) else {
            return (!value.starts_with(OLD_MARK)).then_some((None, value));
        };
        let mut parts = sealed.splitn(3, ',');
        let authored = parts.next()?.parse().ok()?;
        let tag = tag_of(parts.next()?)?;
        Some((Some(FactSeal { authored, until, tag }), parts.next()?))
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
    authored: u64,
    SealedContent { removed, until, payload }: SealedContent<'_>,
) -> Hmac<Sha256> {
    hmac.clone()
        .chain_update(name.kind.letter())
        .chain_update(name.id)
        .chain_update([u8::from(removed)])
        .chain_update(authored.to_le_bytes())
        .chain_update(until.to_le_bytes())
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

    fn set(payload: &str) -> SealedContent<'_> {
        SealedContent { removed: false, until: 9_000, payload }
    }

    #[test]
    fn a_seal_holds_for_the_whole_meaning_of_a_fact_and_for_nothing_else() {
        let sealer = FactSealer::new(Some(SECRET), "t");
        let name = FactName::of_override("api", "user=42");
        let content = set("{}");
        let seal = sealer.seal(name, 1_000, content).unwrap();
        assert_eq!(sealer.check(name, Some(&seal), content), Ok(true));
        let other_name = FactName::of_override("api", "user=43");
        let rules = FactName { kind: FactKind::Rules, id: name.id };
        let later = FactSeal { authored: 1_001, ..seal };
        let (removed, sooner) =
            (SealedContent { removed: true, ..content }, SealedContent { until: 8_999, ..content });
        let endless = SealedContent { until: 0, ..content };
        let (foreign, young) =
            (FactSealer::new(Some(SECRET), "u"), FactSealer::new(Some(b"f"), "t"));
        let rows = [
            (&sealer, other_name, seal, content, "moved to another caller"),
            (&sealer, rules, seal, content, "moved to another kind"),
            (&sealer, name, seal, removed, "made a removal"),
            (&sealer, name, seal, sooner, "made to end sooner"),
            (&sealer, name, seal, endless, "made to have no end"),
            (&sealer, name, later, content, "made to look later"),
            (&sealer, name, seal, set("{} "), "changed"),
            (&foreign, name, seal, content, "from another prefix"),
            (&young, name, seal, content, "under another secret"),
        ];
        for (sealer, name, seal, content, what) in rows {
            let checked = sealer.check(name, Some(&seal), content);
            assert_eq!(checked, Err(SealRefusal::WrongSeal), "{what}");
        }
        assert_eq!(sealer.check(name, None, content), Err(SealRefusal::Unsealed));
        let open = FactSealer::new(None, "t");
        assert_eq!(open.check(name, Some(&seal), content), Ok(false), "it cannot tell");
        assert_eq!(open.seal(name, 1_000, content), None);
        let block = FactName::block([1; 16]);
        assert_eq!(
            (sealer.seal(block, 1, set("")), sealer.check(block, None, set(""))),
            (None, Ok(false))
        );
    }

    #[test]
    fn values_are_read_as_they_were_written() {
        let sealer = FactSealer::new(Some(SECRET), "t");
        let seal = sealer.seal(FactName::RULES, u64::MAX >> 11, set("a,b\nc")).unwrap();
        let text = seal.text("a,b\nc");
        assert!(text.len() <= "a,b\nc".len() + 85, "{text}");
        assert_eq!(FactSeal::split(&text, 9_000), Some((Some(seal), "a,b\nc")));
        assert_eq!(FactSeal::split("{\"rule\":\"s2,\"}", 0), Some((None, "{\"rule\":\"s2,\"}")));
        let digits = "0".repeat(64);
        let old = text.replacen("s2,", "s1,", 1);
        for wrong in ["s2,", "s2,5", "s2,5,00,x", "s2,x,,", "s2,-1,,", &old] {
            assert_eq!(FactSeal::split(wrong, 0), None, "{wrong}");
        }
        assert_eq!(FactSeal::split(&format!("s2,5,{digits}"), 0), None, "it ends early");
        assert_eq!(FactSeal::split(&format!("s2,5,{},x", "é".repeat(32)), 0), None);
        assert!(!format!("{sealer:?}").contains("Hmac"), "{sealer:?}");
    }
}
