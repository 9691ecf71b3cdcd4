//! A fact that holds for all instances: what it speaks of, since when, until when.

use aws_lc_rs::digest::{SHA256, digest};
use tollgate::Micros;

use crate::blocks::{BLOCKS_MAX, KeyHash};

/// The most overrides at a time, here and in the store.
pub const OVERRIDES_MAX: usize = 10_000;

/// What facts speak of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Block,
    Override,
    Rules,
}

impl Kind {
    pub(super) const ALL: [Kind; 3] = [Kind::Block, Kind::Override, Kind::Rules];

    /// As the script has it.
    pub(super) const fn letter(self) -> &'static str {
        match self {
            Kind::Block => "b",
            Kind::Override => "o",
            Kind::Rules => "r",
        }
    }

    /// The most facts of this kind at a time, those that were taken back included.
    pub(super) const fn max(self) -> usize {
        match self {
            Kind::Block => BLOCKS_MAX,
            Kind::Override => OVERRIDES_MAX,
            Kind::Rules => 1,
        }
    }

    /// The most bytes of one.
    pub(super) const fn payload_max(self) -> usize {
        match self {
            Kind::Block => 0,
            // As much as the control plane reads of a change, and whose it is.
            Kind::Override => 72 << 10,
            // Of rules, and what they were put over. Rules files may be longer, but decisions wait
            // for whatever is on the same way to the store.
            Kind::Rules => (1 << 20) + 256,
        }
    }
}

/// Which fact of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Name {
    pub(super) kind: Kind,
    pub(super) id: [u8; 16],
}

impl Name {
    /// There is one at a time.
    pub(super) const RULES: Name = Name { kind: Kind::Rules, id: [0; 16] };

    pub(super) fn block(hash: KeyHash) -> Name {
        Name { kind: Kind::Block, id: hash }
    }

    /// Of this caller under this rule. The length keeps ("ab", "c") apart from ("a", "bc").
    pub(super) fn of_override(rule: &str, key: &str) -> Name {
        let text = format!("{}:{rule}{key}", rule.len());
        let mut id = [0; 16];
        id.copy_from_slice(&digest(&SHA256, text.as_bytes()).as_ref()[..16]);
        Name { kind: Kind::Override, id }
    }

    /// As the script names it.
    pub(super) fn read(kind: &[u8], id: &[u8]) -> Option<Name> {
        let kind = Kind::ALL.into_iter().find(|one| one.letter().as_bytes() == kind)?;
        Some(Name { kind, id: id.try_into().ok()? })
    }
}

/// When somebody decided a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// Here; the store has not confirmed it.
    Here {
        /// By this instance's clock.
        at: Micros,
        /// The stamp of what was known to hold then: this is later, whatever clocks show.
        after: u64,
    },
    /// By the store's clock.
    Stamp(u64),
}

/// What holds of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) when: When,
    /// By this instance's clock; `None`: it has no end.
    pub(super) until: Option<Micros>,
    /// It was taken back.
    pub(super) gone: bool,
    /// Bound: that of its kind.
    pub(super) payload: Box<str>,
}

/// A fact as the store has it, times by the store's clock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) stamp: u64,
    /// 0: it has no end.
    pub(super) stop: u64,
    pub(super) gone: bool,
    pub(super) payload: Box<str>,
}

impl Stored {
    /// `None`: it is not one of ours.
    pub(super) fn read(kind: Kind, value: &[u8]) -> Option<Stored> {
        let value = std::str::from_utf8(value).ok()?;
        let mut parts = value.splitn(4, ',');
        let stamp = parts.next()?.parse().ok()?;
        let stop = parts.next()?.parse().ok()?;
        let gone = match parts.next()? {
            "+" => false,
            "-" => true,
            _ => return None,
        };
        let payload = parts.next()?;
        let exact = stamp <= Micros::MAX.as_u64() && stop <= Micros::MAX.as_u64();
        let fits = exact && payload.len() <= kind.payload_max();
        fits.then(|| Stored { stamp, stop, gone, payload: payload.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_no_fact() {
        let fact = |stamp, stop, gone, payload: &str| {
            Some(Stored { stamp, stop, gone, payload: payload.into() })
        };
        let rows: &[(&[u8], Option<Stored>)] = &[
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
            assert_eq!(Stored::read(Kind::Override, value), *want, "{value:?}");
        }
        assert_eq!(
            Stored::read(Kind::Block, b"5,9,+,x"),
            None,
            "a block says no more than its end"
        );
        let long = format!("5,0,+,{}", "x".repeat(Kind::Override.payload_max() + 1));
        assert_eq!(Stored::read(Kind::Override, long.as_bytes()), None);
    }

    #[test]
    fn names_do_not_run_into_each_other() {
        assert_ne!(Name::of_override("ab", "c"), Name::of_override("a", "bc"));
        assert_eq!(Name::of_override("a", "b"), Name::of_override("a", "b"));
        assert_eq!(Name::read(b"b", &[7; 16]), Some(Name::block([7; 16])));
        assert_eq!(Name::read(b"x", &[7; 16]), None);
        assert_eq!(Name::read(b"b", &[7; 15]), None);
    }
}
