//! `RetainedCheck`: a check that outlives its request, for work in the background.

use tollgate::{Check, Limit, Terms};

use crate::remote_store::LateKind;

/// The longest key that this instance keeps a copy of, in bytes. A longer one is decided by its store, so
/// that keys of strangers never take more than this for each place that there is.
pub(super) const KEY_BYTES_MAX: usize = 1_024;

/// A check of one unit that owns its limit and its key.
#[derive(Clone, Debug)]
pub(super) struct RetainedCheck {
    limit: Limit,
    /// Bound: `KEY_BYTES_MAX` bytes.
    key: Box<[u8]>,
    terms: Terms,
    charge_kind: LateKind,
}

impl RetainedCheck {
    /// Returns true if a check's key is short enough to be kept.
    pub(super) fn fits_key(check: &Check<'_>) -> bool {
        check.key().as_bytes().len() <= KEY_BYTES_MAX
    }

    pub(super) fn retain(check: &Check<'_>) -> RetainedCheck {
        debug_assert!(RetainedCheck::fits_key(check), "whoever keeps it has looked");
        RetainedCheck {
            limit: check.limit().clone(),
            key: check.key().as_bytes().into(),
            terms: check.requested_terms(),
            charge_kind: LateKind::of_charge(check),
        }
    }

    /// Returns true if the limit has the same numbers.
    pub(super) fn has_numbers_of(&self, limit: &Limit) -> bool {
        self.limit.fingerprint() == limit.fingerprint()
    }

    /// The kind of change for units that were admitted here.
    pub(super) fn charge_kind(&self) -> LateKind {
        self.charge_kind
    }

    pub(super) fn check(&self) -> Check<'_> {
        Check::new(&self.limit, &*self.key).terms(self.terms)
    }
}
