//! A check that outlives its request: for what happens in the background.

use tollgate::{Check, Limit, Terms};

/// The longest key that this instance keeps a copy of, in bytes. A longer one is decided by its store, so
/// that keys of strangers never take more than this for each place that there is.
pub(super) const KEY_BYTES_MAX: usize = 1_024;

/// A check that owns what it is about: the question of one unit.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    limit: Limit,
    /// Bound: `KEY_BYTES_MAX` bytes.
    key: Box<[u8]>,
    terms: Terms,
}

impl Kept {
    /// Whether a check's key is one that is kept.
    pub(super) fn has_room_for(check: &Check<'_>) -> bool {
        check.key().as_bytes().len() <= KEY_BYTES_MAX
    }

    pub(super) fn of(check: &Check<'_>) -> Kept {
        debug_assert!(Kept::has_room_for(check), "whoever keeps it has looked");
        Kept {
            limit: check.limit().clone(),
            key: check.key().as_bytes().into(),
            terms: check.its_terms(),
        }
    }

    /// Whether it is about a limit of these numbers.
    pub(super) fn is_of(&self, limit: &Limit) -> bool {
        self.limit.fingerprint() == limit.fingerprint()
    }

    pub(super) fn check(&self) -> Check<'_> {
        Check::new(&self.limit, &*self.key).terms(self.terms)
    }
}
