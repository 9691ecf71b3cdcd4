//! A fact that holds for all instances: what it speaks of, since when, until when.

use sha2::{Digest, Sha256};
use tollgate::Micros;

use tollgate_shared::blocks::{BLOCKS_MAX, KeyHash};

use super::fact_seal::{FactSeal, SealedContent};

/// The most overrides at a time, here and in the store.
pub const OVERRIDES_MAX: usize = 10_000;

/// The kinds of facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum FactKind {
    Block,
    Override,
    Rules,
}

impl FactKind {
    pub(super) const ALL: [FactKind; 3] = [FactKind::Block, FactKind::Override, FactKind::Rules];

    /// The letter that the script uses.
    pub(super) const fn letter(self) -> &'static str {
        match self {
            FactKind::Block => "b",
            FactKind::Override => "o",
            FactKind::Rules => "r",
        }
    }

    /// The most facts of this kind at a time, those that were taken back included.
    pub(super) const fn max(self) -> usize {
        match self {
            FactKind::Block => BLOCKS_MAX,
            FactKind::Override => OVERRIDES_MAX,
            FactKind::Rules => 1,
        }
    }

    /// The most bytes of one.
    pub(super) const fn payload_max(self) -> usize {
        match self {
            FactKind::Block => 0,
            // As much as the control plane reads of a change, and whose it is.
            FactKind::Override => 72 << 10,
            // Of rules, and what they were put over. Rules files may be longer, but decisions wait
            // for whatever is on the same way to the store.
            FactKind::Rules => (1 << 20) + 256,
        }
    }
}

/// The identity of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FactName {
    pub(super) kind: FactKind,
    pub(super) id: [u8; 16],
}

impl FactName {
    /// There is one at a time.
    pub(super) const RULES: FactName = FactName { kind: FactKind::Rules, id: [0; 16] };

    pub(super) fn block(hash: KeyHash) -> FactName {
        FactName { kind: FactKind::Block, id: hash }
    }

    /// The name of an override of a caller under a rule. The length keeps ("ab", "c") apart from
    /// ("a", "bc").
    pub(super) fn of_override(rule: &str, key: &str) -> FactName {
        let text = format!("{}:{rule}{key}", rule.len());
        let hash: [u8; 32] = Sha256::digest(text).into();
        let id = *hash.first_chunk().expect("32 bytes have a first half");
        FactName { kind: FactKind::Override, id }
    }

    /// Reads a name as the script writes it.
    pub(super) fn read(kind: &[u8], id: &[u8]) -> Option<FactName> {
        let kind = FactKind::ALL.into_iter().find(|one| one.letter().as_bytes() == kind)?;
        Some(FactName { kind, id: id.try_into().ok()? })
    }
}

/// The time at which a fact was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FactTime {
    /// Here; the store has not confirmed it.
    Here {
        /// The instant by this instance's clock.
        at: Micros,
        /// The stamp of what was known to hold then: this is later, whatever clocks show.
        after: u64,
    },
    /// An instant of the store's clock.
    Stamp(u64),
}

/// A fact and its validity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SharedFact {
    pub(super) decided_at: FactTime,
    /// The end by this instance's clock; `None` if it has no end.
    pub(super) until: Option<Micros>,
    /// It was taken back.
    pub(super) removed: bool,
    /// Bound: that of its kind.
    pub(super) payload: Box<str>,
    /// The seal that it has in the store; `None` if it has none, or was decided here and not sent yet.
    pub(super) seal: Option<FactSeal>,
    /// The time that the seal of a change made here has to be later than.
    pub(super) sealed_after: u64,
    /// True if an instance with our secret has sealed it, or this one has decided it.
    pub(super) verified: bool,
}

impl SharedFact {
    /// A fact that is not sealed.
    pub(super) fn new(
        decided_at: FactTime,
        until: Option<Micros>,
        removed: bool,
        payload: Box<str>,
    ) -> SharedFact {
        SharedFact {
            decided_at,
            until,
            removed,
            payload,
            seal: None,
            sealed_after: 0,
            verified: false,
        }
    }
}

/// A fact as the store has it, times by the store's clock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StoredFact {
    pub(super) stamp: u64,
    /// 0: it has no end.
    pub(super) until: u64,
    pub(super) removed: bool,
    /// The seal, not checked yet.
    pub(super) seal: Option<FactSeal>,
    pub(super) payload: Box<str>,
}

impl StoredFact {
    /// The part that its seal is about, apart from its name.
    pub(super) fn sealed_content(&self) -> SealedContent<'_> {
        SealedContent { removed: self.removed, until: self.until, payload: &self.payload }
    }

    /// `None`: it is not one of ours.
    pub(super) fn read(kind: FactKind, value: &[u8]) -> Option<StoredFact> {
        let value = std::str::from_utf8(value).ok()?;
        let mut parts = value.splitn(4, ',');
        let stamp = parts.next()?.parse().ok()?;
        let stop = parts.next()?.parse().ok()?;
        let gone = match parts.next()? {
            "+" => false,
            "-" => true,
            _ => return None,
        };
        let (seal, payload) = FactSeal::split(parts.next()?, stop)?;
        let exact = stamp <= Micros::MAX.as_u64() && stop <= Micros::MAX.as_u64();
        let fits = exact && payload.len() <= kind.payload_max();
        let payload = payload.into();
        fits.then_some(StoredFact { stamp, until: stop, removed: gone, seal, payload })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_no_fact() {
        let fact = |stamp, stop, gone, payload: &str| {
            let payload = payload.into();
            Some(StoredFact { stamp, until: stop, removed: gone, seal: None, payload })
        };
        let rows: &[(&[u8], Option<StoredFact>)] = &[
            (b"5,0,+,", fact(5, 0, false, "")),
            (b"5,9,-,a,b", fact(5, 9, true, "a,b")),
            (b"9007199254740991,0,+,x", fact(9_007_199_254_740_991, 0, false, "x")),
            (b"9007199254740992,0,+,x", None),
            (b"", None),
            (b"5", None),
            (b"5,0,+", None),
            (b"5,0,*,", None),
            (b"-5,0,+,", None),
            (b"x,0,+,", None),
            (b"5,0,+,\xff", None),
        ];
        for (value, want) in rows {
            assert_eq!(StoredFact::read(FactKind::Override, value), *want, "{value:?}");
        }
        assert_eq!(
            StoredFact::read(FactKind::Block, b"5,9,+,x"),
            None,
            "a block says no more than its end"
        );
        let long = format!("5,0,+,{}", "x".repeat(FactKind::Override.payload_max() + 1));
        assert_eq!(StoredFact::read(FactKind::Override, long.as_bytes()), None);
    }

    #[test]
    fn names_do_not_run_into_each_other() {
        assert_ne!(FactName::of_override("ab", "c"), FactName::of_override("a", "bc"));
        assert_eq!(FactName::of_override("a", "b"), FactName::of_override("a", "b"));
        assert_eq!(FactName::read(b"b", &[7; 16]), Some(FactName::block([7; 16])));
        assert_eq!(FactName::read(b"x", &[7; 16]), None);
        assert_eq!(FactName::read(b"b", &[7; 15]), None);
    }
}
