//! The traits `Store` and `RemoteStore` for Redis, by which `SharedStore` uses it: decisions with their
//! states, late changes, and the record of the units that instances hold.

use std::slice;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::algorithm::State;
use tollgate::store::InspectedStates;
use tollgate::store::join::join_all;
use tollgate::store::{RequestList, stored_state};
use tollgate::{Check, Decision, Key, Limit, Micros, Now, Outcome, Receipt, Store, Wait};
use tollgate_shared::blocks::KeyHash;
use tollgate_shared::remote_store::BATCH_CALLS_MAX;
use tollgate_shared::remote_store::{
    AnswerStates, CallTiming, LEASE_US_MAX, LateKind, LateUnits, LeaseGrant, LeaseRequest,
    RemoteStore, StateName,
};

use crate::error::StoreError;
use crate::script;
use crate::script::keys;
use crate::transport::command::RedisCommand;
use crate::transport::value::RedisValue;

use super::RedisStore;
use super::multi_slot::PartialFailurePolicy;

/// Timeout of the charge of a lease: the same as that of the lease's entry.
const LEASE_TIMEOUT: Duration = Duration::from_secs(2);

const LEASE_SCRIPT: &str = include_str!("../lua/lease.lua");

impl Store for RedisStore {
    type Error = StoreError;

    async fn decide_each(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        outcomes: &mut [Outcome],
    ) -> Result<Decision, StoreError> {
        RedisStore::decide_each(self, checks, now.instant(), outcomes).await
    }

    /// Sends up to [`BATCH_CALLS_MAX`] requests in order before the first answer is awaited, and the next ones
    /// after the last answer, each with its own timeout. A request that takes two calls may be executed after
    /// later requests of its key. These are "up to", and requests that meet changed numbers, a clock that
    /// jumped, an unreadable value, a calendar's next day, or a slot on its way to another node.
    ///
    /// If a request fails, the error is returned, and the decisions after it are dropped although the store
    /// may have charged them. Only programs that call `RedisStore` directly meet this: `SharedStore` decides
    /// each request of a batch by itself.
    async fn decide_batch(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        decisions.clear();
        for chunk in checks.chunks(BATCH_CALLS_MAX) {
            let requests = chunk.iter().map(|check| async move {
                let (checks, outcome) = (slice::from_ref(check), &mut [Outcome::default()]);
                RedisStore::decide_each(self, checks, now.instant(), outcome).await
            });
            for decision in join_all(requests).await {
                decisions.push(decision?);
            }
        }
        Ok(())
    }

    /// Sends requests together, like [`RedisStore::decide_batch`](Store::decide_batch).
    async fn decide_requests(
        &self,
        requests: RequestList<'_, '_>,
        now: Now<'_>,
        outcomes: &mut [Outcome],
        decisions: &mut Vec<Decision>,
    ) -> Result<(), StoreError> {
        decisions.clear();
        let (mut ranges, mut rest) = (requests.ranges(), outcomes);
        while ranges.len() > 0 {
            let futures = ranges.by_ref().take(BATCH_CALLS_MAX).map(|range| {
                let own = rest.split_off_mut(..range.len()).expect("an outcome for each check");
                RedisStore::decide_each(self, &requests.checks()[range], now.instant(), own)
            });
            for decision in join_all(futures).await {
                decisions.push(decision?);
            }
        }
        Ok(())
    }

    async fn refund(
        &self,
        check: &Check<'_>,
        receipt: Option<Receipt>,
        now: Now<'_>,
    ) -> Result<(), StoreError> {
        let (now, limit, key, units) = (now.instant(), check.limit(), check.key(), check.units());
        let of_no_charge = receipt.is_none();
        let refund = RedisStore::refund(self, limit, key, receipt, units, now).await;
        if of_no_charge && refund.is_err() {
            self.state.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        refund
    }

    async fn reset(&self, check: &Check<'_>, _now: Micros) -> Result<bool, StoreError> {
        let reset = RedisStore::reset(self, check.limit(), check.key()).await;
        if reset.is_err() {
            self.state.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        reset
    }

    async fn balance(&self, check: &Check<'_>, now: Micros) -> Result<i64, StoreError> {
        RedisStore::balance(self, check.limit(), check.key(), now).await
    }

    async fn inspect(
        &self,
        checks: &[Check<'_>],
        now: Now<'_>,
    ) -> Result<Option<InspectedStates>, StoreError> {
        RedisStore::inspect(self, checks, now.instant()).await.map(Some)
    }

    /// Blocks a key in this process at once, and in those that [joined](RedisStore::join_instances) soon.
    /// [`RedisStore::decide_each`] does not look at blocks; a `SharedStore` over this one does.
    async fn block(&self, key: Key<'_>, until: Micros, now: Micros) -> Result<bool, StoreError> {
        Ok(self.block_key(key, until, now))
    }

    async fn unblock(&self, key: Key<'_>, now: Micros) -> Result<bool, StoreError> {
        Ok(self.unblock_key(key, now))
    }

    fn blocked(&self, key: Key<'_>, now: Micros) -> Option<Wait> {
        self.key_blocked(key, now)
    }

    #[inline]
    fn any_block(&self, now: Micros) -> bool {
        self.any_key_blocked(now)
    }
}

impl RemoteStore for RedisStore {
    async fn decide_with_states(
        &self,
        checks: &[Check<'_>],
        when: CallTiming,
        outcomes: &mut [Outcome],
        seen: &mut AnswerStates,
    ) -> Result<(), StoreError> {
        self.decide_by_deadline(checks, when, outcomes, seen).await
    }

    fn timeout(&self) -> Duration {
        self.link.timeout()
    }

    fn hash(&self, key: Key<'_>) -> KeyHash {
        self.key_namer.hash(key.as_bytes())
    }

    async fn apply_late_units(
        &self,
        state: StateName,
        limit: &Limit,
        late: &[LateUnits],
        when: CallTiming,
    ) -> Result<Option<(State, Micros)>, StoreError> {
        let (units, charged_at) = match *late {
            [LateUnits { units, at, kind: LateKind::Refund }] => (units, Some(at)),
            [LateUnits { units, at: LateUnits::NOW, kind: LateKind::RefundOfNoCharge }] => {
                (units, None)
            }
            _ => return self.apply_late_by(state, limit, late, when).await.map(Some),
        };
        let refund = self.refund_state_by(state, limit, units, charged_at, when).await;
        if charged_at.is_none() && refund.is_err() {
            self.state.unanswered.fetch_add(1, Ordering::Relaxed);
        }
        refund.map(|()| None)
    }

    fn refunds_lost(&self) -> u64 {
        self.state.refunds_lost.load(Ordering::Relaxed)
    }

    async fn reserve_lease(
        &self,
        check: &Check<'_>,
        lend: LeaseRequest,
    ) -> Result<LeaseGrant, StoreError> {
        let limit = check.limit();
        let mut key = self.key_namer.key(self.key_namer.subject(check.key().as_bytes()), limit, 0);
        key.extend_from_slice(b":l");
        let mut command = RedisCommand::new("EVAL").arg(LEASE_SCRIPT).number(1).arg(&key);
        command.push(lend.instance.to_be_bytes());
        let duration_us = lend.duration_us.min(LEASE_US_MAX);
        let numbers = [lend.held, lend.wanted, lend.grant_min, lend.outstanding_max, duration_us];
        for number in numbers {
            command.push_number(number);
        }
        let reply = self.link.run(command, Some(keys::slot(&key))).await?;
        let RedisValue::Array(parts) = reply else { return Err(script::not_understood()) };
        match parts[..] {
            [RedisValue::Int(granted), RedisValue::Int(outstanding)] => {
                let [granted, outstanding] =
                    [granted, outstanding].map(|units| units.max(0) as u64);
                Ok(LeaseGrant { granted, outstanding })
            }
            _ => Err(script::not_understood()),
        }
    }

    async fn take_leased_units(
        &self,
        check: &Check<'_>,
        now: Micros,
        seen: &mut AnswerStates,
    ) -> Result<Outcome, StoreError> {
        let mut outcome = [Outcome::default()];
        let deadline = self.link.deadline().max(Instant::now() + LEASE_TIMEOUT);
        let checks = slice::from_ref(check);
        self.decide_by_deadline(checks, CallTiming { now, deadline }, &mut outcome, seen).await?;
        Ok(outcome[0])
    }
}

impl RedisStore {
    /// Decides by a deadline; `seen` gets the states behind the answer.
    async fn decide_by_deadline(
        &self,
        checks: &[Check<'_>],
        when: CallTiming,
        outcomes: &mut [Outcome],
        seen: &mut AnswerStates,
    ) -> Result<(), StoreError> {
        *seen = AnswerStates { answered_at: when.now, ..AnswerStates::default() };
        let outcomes = &mut outcomes[..checks.len()];
        if stored_state::answer_without_store(checks, when.now).is_some() {
            outcomes.fill(Outcome::default());
            return Ok(());
        }
        let answer =
            self.answer_checks(checks, when, outcomes, PartialFailurePolicy::ReportFailed).await?;
        seen.answered_at = answer.answered_at;
        seen.states = answer.states;
        seen.failed_checks = answer.failed_checks;
        seen.to_refund = answer.to_refund;
        Ok(())
    }
}
