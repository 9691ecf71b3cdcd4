//! Many requests at once. The memory of many keys is fetched together: keys are hashed and their
//! lines prefetched ahead of the decisions.

use std::ops::Range;
use std::ptr;

use arrayvec::ArrayVec;

use crate::check::Check;
use crate::clock::Now;
use crate::decision::{Decision, MAX_LIMITS, Outcome};
use crate::store::RequestList;

use super::{MemoryStore, slot_key};

/// Number of checks that are hashed and prefetched ahead; at least [`MAX_LIMITS`].
const STRIDE: usize = 32;

/// The hashed keys of a stride.
type Subjects = ArrayVec<u64, STRIDE>;

impl MemoryStore {
    /// Decides many independent requests of one check each, as if in order at one instant.
    /// `decisions` is emptied and filled in the same order.
    pub fn decide_batch<'n>(
        &self,
        checks: &[Check<'_>],
        now: impl Into<Now<'n>>,
        decisions: &mut Vec<Decision>,
    ) {
        let now = now.into();
        decisions.clear();
        decisions.reserve(checks.len());
        for checks in checks.chunks(STRIDE) {
            let mut subjects = Subjects::new();
            for check in checks {
                subjects.push(self.hash_and_prefetch(check).0);
            }
            self.prefetch_seconds(checks, &subjects);
            for (check, &subject) in checks.iter().zip(&subjects) {
                self.decide_subject(check, subject, now, |decision| decisions.push(decision));
            }
        }
    }

    /// Prefetches the second home of all keys that are not in their first.
    #[inline]
    fn prefetch_seconds(&self, checks: &[Check<'_>], subjects: &[u64]) {
        // A small table is in the cache anyway.
        if self.keys.is_large() {
            for (check, &subject) in checks.iter().zip(subjects) {
                self.keys.prefetch_second(slot_key(subject, check.limit));
            }
        }
    }

    /// Decides many requests of several checks each, as if in order at one instant. `outcomes` receives
    /// the outcome of each limit; `decisions` is emptied and filled in the order of the requests.
    ///
    /// # Panics
    ///
    /// If `outcomes` is shorter than the list of checks.
    pub fn decide_requests<'n>(
        &self,
        requests: RequestList<'_, '_>,
        now: impl Into<Now<'n>>,
        outcomes: &mut [Outcome],
        decisions: &mut Vec<Decision>,
    ) {
        let now = now.into();
        decisions.clear();
        decisions.reserve(requests.len());
        let mut waiting = requests.ranges();
        let checks_of = |range: Range<usize>| &requests.checks()[range];
        while waiting.len() > 0 {
            let mut subjects = Subjects::new();
            let mut ahead = 0;
            for checks in waiting.clone().map(checks_of) {
                if checks.len().min(MAX_LIMITS) > subjects.remaining_capacity() {
                    break;
                }
                self.hash_request(checks, &mut subjects);
                ahead += 1;
            }
            let mut rest = &subjects[..];
            for checks in waiting.clone().map(checks_of).take(ahead) {
                self.prefetch_seconds(checks, rest);
                rest = &rest[checks.len().min(MAX_LIMITS)..];
            }
            let mut rest = &subjects[..];
            for range in waiting.by_ref().take(ahead) {
                let (own, others) = rest.split_at(range.len().min(MAX_LIMITS));
                let checks = checks_of(range.clone());
                decisions.push(self.decide_hashed_request(checks, own, now, &mut outcomes[range]));
                rest = others;
            }
        }
    }

    /// Hashes the keys of one request and prefetches their slots. A key that several checks share
    /// is hashed once. Of a request with too many checks, which is refused, only the first are
    /// hashed.
    #[inline]
    pub(super) fn hash_request<const N: usize>(
        &self,
        checks: &[Check<'_>],
        subjects: &mut ArrayVec<u64, N>,
    ) {
        let start = subjects.len();
        for (index, check) in checks.iter().take(MAX_LIMITS).enumerate() {
            // Equal keys in different memory are hashed again, which is cheaper than comparing them.
            let is_same = |other: &Check<'_>| ptr::eq(other.key.as_bytes(), check.key.as_bytes());
            let subject = match checks[..index].iter().position(is_same) {
                Some(earlier) => subjects[start + earlier],
                None => self.secret.hash(check.key.as_bytes()),
            };
            self.keys.prefetch(slot_key(subject, check.limit));
            subjects.push(subject);
        }
    }
}
