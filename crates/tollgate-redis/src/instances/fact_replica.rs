//! What this instance knows of the facts that hold for all, and what it still has to tell.
//!
//! Pure: time is an argument, and messages are values. Instances exchange facts through the store;
//! this replica restores them after the store was emptied.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tollgate::{Micros, Wait};

use super::PublishStatus;
use super::exchange::{BYTES_MAX, ExchangeReply, PublishOutcome, SENT_FACTS_MAX};
use super::fact_audit::{FactAudit, HealPace};
use super::fact_seal::{FactSealer, SealRefusal, SealedContent};
use super::latest_seal::LatestSeal;
use super::shared_fact::{FactKind, FactName, FactTime, SharedFact, StoredFact};

/// Facts sent or received this recently are sent again after a failed call or over a new
/// connection, because the next server may be a replica that lacks them.
const RESEND_RECENT_US: u64 = 60_000_000;

/// Ends move with the clock they are counted by, if it moves by this much against the store's.
const CLOCK_JUMP_US: u64 = 100_000;

/// Time for which the removal of a fact is remembered.
const REMOVED_KEPT_FOR: Wait = Wait::from_micros(24 * 3_600_000_000);

/// Acts that others cannot be told of and whose authors may still ask. Bound of the list.
const REFUSED_MAX: usize = 1_024;

/// Something that was decided here, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedChangeId(u64);

/// The facts that this instance knows.
#[derive(Debug, Default)]
pub(super) struct FactReplica {
    /// Bound: that of each kind.
    facts: HashMap<FactName, ReplicaEntry>,
    counts: [usize; FactKind::ALL.len()],
    /// Facts that the store has not confirmed. Bound: that of `facts`.
    unsent: BTreeMap<SendOrder, FactName>,
    /// Reasons why changes hold on this instance only. Bound: `REFUSED_MAX`; the oldest is
    /// forgotten.
    refused: VecDeque<(SharedChangeId, PublishStatus)>,
    last_change: u64,
    /// The epoch of the store's data that was seen last; empty if none was.
    epoch: Arc<str>,
    seen_version: u64,
    /// Microseconds by which the store's clock is ahead of ours; ends of facts are counted by ours.
    offset: i64,
    /// The last call failed.
    failing: bool,
    sealer: FactSealer,
    /// The sealed facts, which are compared with the store from time to time.
    audit: FactAudit,
}

/// The order of sending: first changes made here, the oldest first, because an operator waits for
/// them; then facts that the store may have lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SendOrder {
    is_resend: bool,
    change: SharedChangeId,
}

impl SendOrder {
    /// The order of facts that are only compared with the store. No change has this number.
    const AUDIT: SendOrder = SendOrder { is_resend: true, change: SharedChangeId(0) };
}

#[derive(Debug)]
struct ReplicaEntry {
    fact: SharedFact,
    /// The place in the send queue; `None` once the store has confirmed the fact.
    unsent: Option<SendOrder>,
    /// The time of the write by the store's clock, as far as it is known.
    written: u64,
    /// The latest version that was known, sealed here or elsewhere.
    latest: LatestSeal,
    heals: HealPace,
}

impl ReplicaEntry {
    fn has_ended(&self, now: Micros) -> bool {
        self.fact.until.is_some_and(|until| until <= now)
    }
}

/// One call: the version known and the facts to send.
#[derive(Debug)]
pub(super) struct ExchangeRequest {
    pub(super) now: Micros,
    pub(super) epoch: Arc<str>,
    pub(super) seen_version: u64,
    /// Bound: `SENT_FACTS_MAX`.
    pub(super) facts: Vec<OutgoingFact>,
}

/// A fact on its way.
#[derive(Debug)]
pub(super) struct OutgoingFact {
    pub(super) name: FactName,
    pub(super) fact: SharedFact,
    pub(super) offset: i64,
    order: SendOrder,
}

/// Changes made by other instances.
#[derive(Debug, Default)]
pub(super) struct RemoteChanges {
    pub(super) facts: Vec<(FactName, SharedFact)>,
    /// There is more to tell or to hear.
    pub(super) backlog: FactBacklog,
    /// Microseconds by which the ends of known facts have moved.
    pub(super) clock_moved_us: i64,
    /// Facts that found no room in the store.
    pub(super) no_room: u64,
    /// Facts that were not taken, in the order of [`SealRefusal::ALL`].
    pub(super) refused: [u64; SealRefusal::ALL.len()],
    /// Facts with a seal that this instance cannot check, because it has no secret.
    pub(super) unchecked: u64,
    /// True if the store had data that is gone: it was restarted without it, emptied, or has evicted some.
    pub(super) lost_data: bool,
}

/// The work that remains after an exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum FactBacklog {
    #[default]
    Empty,
    /// Facts that are only sent again: nobody waits for them, so they must not keep the store busy.
    Resends,
    /// Changes made on this instance.
    Changes,
}

impl FactReplica {
    /// A replica that knows nothing, and seals what is decided here.
    pub(super) fn new(sealer: FactSealer) -> FactReplica {
        FactReplica { sealer, ..FactReplica::default() }
    }

    /// Something was decided here. If there is no room, it holds here only.
    pub(super) fn publish(
        &mut self,
        name: FactName,
        mut fact: SharedFact,
        now: Micros,
    ) -> SharedChangeId {
        let act = self.next_change();
        if fact.payload.len() > name.kind.payload_max() {
            self.refuse(act, PublishStatus::TooLong);
            return act;
        }
        // What was taken back already is taken back no more than what was never there.
        let old = self.facts.get(&name).filter(|old| !(old.fact.removed && fact.removed));
        let after = old.map_or(0, |old| match old.fact.decided_at {
            FactTime::Here { after, .. } => after,
            FactTime::Stamp(stamp) => stamp,
        });
        fact.decided_at = FactTime::Here { at: now, after };
        fact.sealed_after = old.map_or(0, |old| old.latest.authored.max(old.fact.sealed_after));
        let old_until = old.filter(|old| !old.fact.removed).and_then(|old| old.fact.until);
        if fact.removed {
            // Nobody can bring back what would have ended.
            let gone_for = now.after(REMOVED_KEPT_FOR);
            fact.until = Some(old_until.map_or(gone_for, |until| until.min(gone_for)));
        } else if name.kind == FactKind::Block {
            fact.until = fact.until.max(old_until);
        }
        if !self.has_room(name) {
            self.drop_ended(now);
        }
        match self.has_room(name) {
            true => self.set(name, fact, Some(SendOrder { is_resend: false, change: act }), 0),
            false => self.refuse(act, PublishStatus::NoRoom),
        }
        act
    }

    /// Returns true if the store has every change up to this one; `Err` if it never will.
    pub(super) fn is_published(&self, act: SharedChangeId) -> Result<bool, PublishStatus> {
        if let Some((_, why)) = self.refused.iter().find(|(refused, _)| *refused == act) {
            return Err(*why);
        }
        // Acts come first: if the first is no act, there is none.
        let oldest = self.unsent.first_key_value();
        Ok(oldest.is_none_or(|(oldest, _)| oldest.is_resend || oldest.change > act))
    }

    /// Builds the next request to the store.
    pub(super) fn next_request(&mut self, now: Micros) -> ExchangeRequest {
        let mut bytes = 0;
        // Seals carry the store's time: a call that reads its clock comes first.
        let is_ready = |name: &FactName| !self.epoch.is_empty() || !self.sealer.seals(name.kind);
        let unsent = self.unsent.iter().filter(|(_, name)| is_ready(name));
        let telling = unsent.map(|(turn, name)| self.outgoing(*name, *turn, now));
        let facts = telling.take(SENT_FACTS_MAX).take_while(|telling| {
            let fits = bytes == 0 || bytes + telling.fact.payload.len() <= BYTES_MAX;
            bytes += telling.fact.payload.len();
            fits
        });
        let mut facts: Vec<_> = facts.collect();
        if facts.is_empty() && !self.epoch.is_empty() {
            let length = |name: &FactName| self.facts[name].fact.payload.len();
            let names = self.audit.next_names(now, length);
            let names = names.into_iter().filter(|name| !self.facts[name].has_ended(now));
            facts.extend(names.map(|name| self.outgoing(name, SendOrder::AUDIT, now)));
        }
        ExchangeRequest { now, epoch: self.epoch.clone(), seen_version: self.seen_version, facts }
    }

    /// A fact as it is sent, sealed if it was decided here.
    fn outgoing(&self, name: FactName, order: SendOrder, now: Micros) -> OutgoingFact {
        let mut fact = self.facts[&name].fact.clone();
        if fact.seal.is_none() && matches!(fact.decided_at, FactTime::Here { .. }) {
            let authored = now.as_u64().saturating_add_signed(self.offset);
            let authored = authored.max(fact.sealed_after.saturating_add(1));
            let end = |until: Micros| {
                let until = until.as_u64().saturating_add_signed(self.offset);
                // 0 would be never.
                until.clamp(1, Micros::MAX.as_u64())
            };
            let until = fact.until.map_or(0, end);
            let content = SealedContent { removed: fact.removed, until, payload: &fact.payload };
            fact.seal = self.sealer.seal(name, authored, content);
        }
        OutgoingFact { name, fact, offset: self.offset, order }
    }

    /// The store has answered.
    pub(super) fn apply_reply(
        &mut self,
        sent: &ExchangeRequest,
        reply: ExchangeReply,
        now: Micros,
    ) -> RemoteChanges {
        self.failing = false;
        let moved = self.follow_clock(reply.now, now);
        let lost_data = !self.epoch.is_empty() && *self.epoch != *reply.epoch;
        // Before the sent facts are confirmed: the store has those, in whichever epoch it is.
        if *self.epoch != *reply.epoch || reply.from != sent.seen_version {
            self.epoch = (&*reply.epoch).into();
            self.resend_since(0);
        }
        let mut no_room = 0;
        for (telling, outcome) in sent.facts.iter().zip(&reply.outcomes) {
            let written = (*outcome == PublishOutcome::Accepted).then_some(reply.now);
            self.confirm(telling, written, now);
            match outcome {
                PublishOutcome::Accepted | PublishOutcome::Superseded => {}
                PublishOutcome::NoRoom => {
                    no_room += 1;
                    self.refuse(telling.order.change, PublishStatus::NoRoom);
                }
                PublishOutcome::NothingToRemove => self.forget(telling.name),
            }
        }
        self.seen_version = reply.to;
        let offset = self.offset;
        let (mut refused, mut unchecked) = ([0; SealRefusal::ALL.len()], 0);
        reply.unreadable.into_iter().for_each(|(name, stamp)| self.heal(name, stamp, now));
        let changes = reply.changes.into_iter();
        let facts = changes.filter_map(|(name, stored)| {
            let verified = match self.check_seal(name, &stored, now) {
                Ok(verified) => verified,
                Err(refusal) => {
                    refused[refusal as usize] += 1;
                    self.heal(name, stored.stamp, now);
                    return None;
                }
            };
            unchecked += u64::from(stored.seal.is_some() && !verified);
            // A full list also has old facts.
            let written = if reply.from == 0 { stored.stamp } else { reply.now };
            let fact = SharedFact { verified, ..to_local_fact(stored, offset) };
            self.merge_stored(name, &fact, written, now).then_some((name, fact))
        });
        let facts = facts.collect();
        let more = match self.unsent.first_key_value() {
            Some((turn, _)) if !turn.is_resend => FactBacklog::Changes,
            None if reply.to >= reply.version => FactBacklog::Empty,
            _ => FactBacklog::Resends,
        };
        RemoteChanges {
            facts,
            backlog: more,
            clock_moved_us: moved,
            no_room,
            refused,
            unchecked,
            lost_data,
        }
    }

    /// Checks the seal of a fact in the store, and that it is not one that was replaced before.
    fn check_seal(
        &self,
        name: FactName,
        stored: &StoredFact,
        now: Micros,
    ) -> Result<bool, SealRefusal> {
        let seal = stored.seal.as_ref();
        let verified = self.sealer.check(name, seal, stored.sealed_content())?;
        let latest = self.facts.get(&name).map(|known| known.latest);
        match (seal, latest) {
            (Some(seal), Some(latest)) if verified && latest.is_replay(seal.authored, now) => {
                Err(SealRefusal::Replayed)
            }
            _ => Ok(verified),
        }
    }

    /// Sends a sealed fact again, because the store has another value in its place that was not taken. It is written
    /// over the value with this stamp, and over no later one. A change that is on its way does so anyway.
    fn heal(&mut self, name: FactName, stamp: u64, now: Micros) {
        let Some(entry) = self.facts.get_mut(&name).filter(|_| self.sealer.seals(name.kind)) else {
            return;
        };
        let is_change = entry.unsent.is_some_and(|turn| !turn.is_resend);
        let is_due = entry.fact.seal.is_some() && !entry.has_ended(now);
        if is_change || !is_due || !entry.heals.begin(now) {
            return;
        }
        // No later than that: a change that somebody makes meanwhile holds.
        let known = match entry.fact.decided_at {
            FactTime::Stamp(known) => known,
            FactTime::Here { .. } => 0,
        };
        entry.fact.decided_at = FactTime::Stamp(known.max(stamp.saturating_add(1)));
        self.resend(name);
    }

    /// Ends are counted by this instance's clock, and do not move if that is set: then they are moved
    /// with it. By how much.
    pub(super) fn follow_clock(&mut self, store_now: u64, now: Micros) -> i64 {
        let offset = store_now.cast_signed().wrapping_sub(now.as_u64().cast_signed());
        let moved = self.offset.wrapping_sub(offset);
        if self.epoch.is_empty() {
            self.offset = offset;
            return 0;
        }
        if moved.unsigned_abs() < CLOCK_JUMP_US {
            return 0;
        }
        self.offset = offset;
        for entry in self.facts.values_mut() {
            entry.fact.until = entry.fact.until.map(|until| moved_by(until, moved));
        }
        moved
    }

    /// Prepares for a server that may lack what the last one had: the next call asks for all facts
    /// and sends recent ones again.
    pub(super) fn start_over(&mut self, now: Micros) {
        self.seen_version = 0;
        let store_now = now.as_u64().saturating_add_signed(self.offset);
        self.resend_since(store_now.saturating_sub(RESEND_RECENT_US));
    }

    /// The store has not answered.
    pub(super) fn record_failure(&mut self, now: Micros) {
        if !self.failing {
            self.start_over(now);
        }
        self.failing = true;
    }

    /// Returns true if the last call failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failing
    }

    /// Returns true if the last call was answered.
    pub(super) fn is_up(&self) -> bool {
        !self.epoch.is_empty() && !self.failing
    }

    /// The act that was last.
    pub(super) fn last_change(&self) -> SharedChangeId {
        SharedChangeId(self.last_change)
    }

    /// Returns true if rules and overrides are sealed here.
    pub(super) fn seals(&self) -> bool {
        self.sealer.seals(FactKind::Rules)
    }

    /// Acts that the store has yet to confirm.
    pub(super) fn unpublished(&self) -> usize {
        self.unsent.len()
    }

    /// Number of facts of a kind, removed ones included.
    pub(super) fn count(&self, kind: FactKind) -> usize {
        self.counts[kind as usize]
    }

    pub(super) fn drop_ended(&mut self, now: Micros) {
        let (unsent, counts, audit) = (&mut self.unsent, &mut self.counts, &mut self.audit);
        self.facts.retain(|name, entry| {
            let stays = !entry.has_ended(now);
            if !stays {
                counts[name.kind as usize] -= 1;
                audit.remove(*name);
                entry.unsent.map(|turn| unsent.remove(&turn));
            }
            stays
        });
    }

    /// Sends facts again that the store got after an instant of its clock. Facts that it still has
    /// do not change.
    fn resend_since(&mut self, since: u64) {
        let lost =
            self.facts.iter().filter(|(_, entry)| entry.unsent.is_none() && entry.written >= since);
        for name in lost.map(|(name, _)| *name).collect::<Vec<_>>() {
            self.resend(name);
        }
    }

    /// Queues a known fact to be sent again.
    fn resend(&mut self, name: FactName) {
        let turn = SendOrder { is_resend: true, change: self.next_change() };
        let entry = self.facts.get_mut(&name).expect("only known facts are sent again");
        if let Some(before) = entry.unsent.replace(turn) {
            self.unsent.remove(&before);
        }
        self.unsent.insert(turn, name);
    }

    /// The store has it, unless it has changed since.
    fn confirm(&mut self, telling: &OutgoingFact, written: Option<u64>, now: Micros) {
        self.unsent.remove(&telling.order);
        if let Some(entry) = self.facts.get_mut(&telling.name)
            && entry.unsent == Some(telling.order)
        {
            entry.unsent = None;
            entry.fact.seal = telling.fact.seal;
            if let Some(seal) = telling.fact.seal {
                entry.latest.record(seal.authored, now);
            }
            entry.written = written.unwrap_or(entry.written);
        }
    }

    fn refuse(&mut self, act: SharedChangeId, why: PublishStatus) {
        if self.refused.len() == REFUSED_MAX {
            self.refused.pop_front();
        }
        self.refused.push_back((act, why));
    }

    /// There was nothing to take back, unless something was decided since.
    fn forget(&mut self, name: FactName) {
        if self.facts.get(&name).is_some_and(|old| old.fact.removed && old.unsent.is_none()) {
            self.facts.remove(&name);
            self.audit.remove(name);
            self.counts[name.kind as usize] -= 1;
        }
    }

    /// Takes over what the store says; whether it is news. What was decided here since then goes
    /// first: the store will say what holds.
    fn merge_stored(
        &mut self,
        name: FactName,
        fact: &SharedFact,
        written: u64,
        now: Micros,
    ) -> bool {
        let old = self.facts.get(&name);
        if old.is_some_and(|old| old.unsent.is_some() && !supersedes(fact, &old.fact)) {
            return false;
        }
        let written = old.map_or(written, |old| written.max(old.written));
        let is_news = match old.map(|old| &old.fact) {
            Some(old) => {
                let same_end = match name.kind {
                    FactKind::Block => old.until == fact.until,
                    // Nobody but the store ends them by it.
                    FactKind::Override | FactKind::Rules => true,
                };
                (old.removed, &old.payload) != (fact.removed, &fact.payload)
                    || (!same_end && !fact.removed)
            }
            None => !fact.removed,
        };
        if !self.has_room(name) {
            self.drop_ended(now);
        }
        // The store has the same bounds, and drops what has ended.
        if self.has_room(name) {
            self.set(name, fact.clone(), None, written);
            let authored = fact.seal.filter(|_| fact.verified).map(|seal| seal.authored);
            if let (Some(authored), Some(entry)) = (authored, self.facts.get_mut(&name)) {
                entry.latest.record(authored, now);
            }
        }
        is_news
    }

    fn set(&mut self, name: FactName, fact: SharedFact, unsent: Option<SendOrder>, written: u64) {
        let old = self.facts.remove(&name);
        match &old {
            Some(old) => drop(old.unsent.map(|turn| self.unsent.remove(&turn))),
            None => self.counts[name.kind as usize] += 1,
        }
        if self.sealer.seals(name.kind) {
            self.audit.add(name);
        }
        let (latest, heals) = old.map(|old| (old.latest, old.heals)).unwrap_or_default();
        self.facts.insert(name, ReplicaEntry { fact, unsent, written, latest, heals });
        if let Some(turn) = unsent {
            self.unsent.insert(turn, name);
        }
    }

    fn has_room(&self, name: FactName) -> bool {
        self.counts[name.kind as usize] < name.kind.max() || self.facts.contains_key(&name)
    }

    fn next_change(&mut self) -> SharedChangeId {
        self.last_change += 1;
        SharedChangeId(self.last_change)
    }
}

/// Returns true if the store already has the fact, or a later one: another instance was faster.
fn supersedes(stored: &SharedFact, ours: &SharedFact) -> bool {
    matches!((stored.decided_at, ours.decided_at), (FactTime::Stamp(theirs), FactTime::Stamp(ours)) if theirs >= ours)
}

/// An instant as a clock shows it that was set forward by so many microseconds. What never ends does
/// not end.
pub(super) fn moved_by(instant: Micros, moved: i64) -> Micros {
    if instant == Micros::MAX {
        return instant;
    }
    Micros::new(instant.as_u64().saturating_add_signed(moved).min(Micros::MAX.as_u64()))
}

/// Converts a stored fact to this instance's clock.
fn to_local_fact(stored: StoredFact, offset: i64) -> SharedFact {
    let StoredFact { stamp, until: stop, removed: gone, seal, payload } = stored;
    let until = (stop > 0).then(|| {
        let until = stop.saturating_add_signed(offset.wrapping_neg());
        Micros::new(until.min(Micros::MAX.as_u64()))
    });
    SharedFact { seal, ..SharedFact::new(FactTime::Stamp(stamp), until, gone, payload) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(at: u64, payload: &str) -> SharedFact {
        let when = FactTime::Here { at: Micros::new(at), after: 0 };
        SharedFact::new(when, None, false, payload.into())
    }

    fn name(number: u8) -> FactName {
        FactName { kind: FactKind::Override, id: [number; 16] }
    }

    /// A reply of a store whose clock is 1,000 s ahead.
    fn reply(
        now: u64,
        (from, to): (u64, u64),
        changes: Vec<(FactName, StoredFact)>,
    ) -> ExchangeReply {
        ExchangeReply {
            epoch: "first".into(),
            now: now + 1_000_000_000,
            live_instances: 1,
            from,
            to,
            version: to,
            outcomes: Vec::new(),
            changes,
            unreadable_facts: 0,
            unreadable: Vec::new(),
        }
    }

    fn stored(stamp: u64, payload: &str) -> StoredFact {
        StoredFact { stamp, until: 0, removed: false, seal: None, payload: payload.into() }
    }

    /// Tells one fact, and hears of it and of another.
    fn exchanged(now: u64) -> FactReplica {
        let mut book = FactReplica::default();
        let at = Micros::new(now);
        book.publish(name(1), fact(now, "mine"), at);
        let sent = book.next_request(at);
        assert_eq!(sent.facts.len(), 1);
        let changes = vec![
            (name(1), stored(1_000_000_000 + now, "mine")),
            (name(2), stored(1_000_000_000 + now - 90_000_000, "theirs")),
        ];
        let mut first = reply(now, (0, 50), changes);
        first.outcomes = vec![PublishOutcome::Accepted];
        let news = book.apply_reply(&sent, first, at);
        assert_eq!(news.facts.len(), 1, "what was told here is no news");
        assert_eq!(news.backlog, FactBacklog::Empty);
        book
    }

    fn sent_next(book: &mut FactReplica, now: u64) -> Vec<u8> {
        book.next_request(Micros::new(now)).facts.iter().map(|telling| telling.name.id[0]).collect()
    }

    #[test]
    fn a_store_that_went_back_is_told_everything_again() {
        let now = 100_000_000;
        let mut book = exchanged(now);
        assert!(sent_next(&mut book, now).is_empty());
        let sent = book.next_request(Micros::new(now));
        let news = book.apply_reply(&sent, reply(now, (0, 40), Vec::new()), Micros::new(now));
        assert_eq!(news.backlog, FactBacklog::Resends);
        let mut told = sent_next(&mut book, now);
        told.sort_unstable();
        assert_eq!(told, [1, 2]);
        let stamps = book.next_request(Micros::new(now));
        assert!(stamps.facts.iter().all(|one| matches!(one.fact.decided_at, FactTime::Stamp(_))));
    }

    #[test]
    fn after_a_failure_what_is_recent_is_told_once_more() {
        let now = 100_000_000;
        let mut book = exchanged(now);
        book.record_failure(Micros::new(now + 1));
        book.record_failure(Micros::new(now + 2));
        assert_eq!(sent_next(&mut book, now + 3), [1], "the other is older than a minute");
    }

    #[test]
    fn what_is_decided_while_a_call_is_on_its_way_is_told_next() {
        let now = 100_000_000;
        let mut book = exchanged(now);
        let at = Micros::new(now + 5);
        let first = book.publish(name(3), fact(now + 5, "a"), at);
        let sent = book.next_request(at);
        let second = book.publish(name(3), fact(now + 6, "b"), at);
        let mut answer = reply(now, (50, 60), vec![(name(3), stored(7, "a"))]);
        answer.outcomes = vec![PublishOutcome::Accepted];
        let news = book.apply_reply(&sent, answer, at);
        assert!(news.facts.is_empty() && news.backlog == FactBacklog::Changes, "{news:?}");
        assert_eq!(book.is_published(first), Ok(true));
        assert_eq!(book.is_published(second), Ok(false));
        assert_eq!(&*book.next_request(at).facts[0].fact.payload, "b");
    }

    #[test]
    fn an_old_version_that_somebody_writes_back_is_not_taken() {
        let sealer = || FactSealer::new(Some(b"0123456789abcdef"), "t");
        let (mut author, mut reader) = (FactReplica::new(sealer()), FactReplica::new(sealer()));
        let sealed = |author: &mut FactReplica, now| {
            let sent = author.next_request(Micros::new(now));
            let fact = sent.facts[0].fact.clone();
            (sent, StoredFact { seal: fact.seal, ..stored(now, &fact.payload) })
        };
        let confirmed = |author: &mut FactReplica, sent: &ExchangeRequest, now| {
            let mut answer = reply(now, (0, now), Vec::new());
            answer.outcomes = vec![PublishOutcome::Accepted];
            author.apply_reply(sent, answer, Micros::new(now));
        };
        let read = |reader: &mut FactReplica, fact: StoredFact, now| {
            let sent = reader.next_request(Micros::new(now));
            let answer = reply(now, (sent.seen_version, now), vec![(name(1), fact)]);
            reader.apply_reply(&sent, answer, Micros::new(now))
        };
        let (first, later) = (100_000_000, 120_000_000);
        author.publish(name(1), fact(first, "old"), Micros::new(first));
        assert!(author.next_request(Micros::new(first)).facts.is_empty(), "no clock to seal by");
        let sent = author.next_request(Micros::new(first));
        author.apply_reply(&sent, reply(first, (0, 0), Vec::new()), Micros::new(first));
        let (sent, old) = sealed(&mut author, first);
        let again = || StoredFact { seal: old.seal, ..stored(later + 1, "old") };
        let written_back = again();
        confirmed(&mut author, &sent, first);
        assert!(read(&mut reader, again(), first).facts[0].1.verified);
        author.publish(name(1), fact(later, "new"), Micros::new(later));
        let (sent, new) = sealed(&mut author, later);
        confirmed(&mut author, &sent, later);
        assert_eq!(read(&mut reader, new, later).facts.len(), 1);
        let news = read(&mut reader, written_back, later + 2);
        assert_eq!((news.facts.len(), news.refused), (0, [0, 0, 1]));
        let changed = StoredFact { seal: again().seal, ..stored(later + 3, "other") };
        assert_eq!(read(&mut reader, changed, later + 4).refused, [0, 1, 0]);
        assert_eq!(read(&mut reader, stored(later + 5, "x"), later + 6).refused, [1, 0, 0]);
        let mut open = FactReplica::default();
        let news = read(&mut open, again(), later + 7);
        assert_eq!((news.facts.len(), news.unchecked), (1, 1));
        assert!(!news.facts[0].1.verified);
    }

    /// A replica that has sealed and published an override, and the override as the store has it.
    fn sealed(now: u64, payload: &str, until: Option<u64>) -> (FactReplica, StoredFact) {
        let mut book = FactReplica::new(FactSealer::new(Some(b"0123456789abcdef"), "t"));
        let at = Micros::new(now);
        let sent = book.next_request(at);
        book.apply_reply(&sent, reply(now, (0, 0), Vec::new()), at);
        let until = until.map(Micros::new);
        book.publish(name(1), SharedFact { until, ..fact(now, payload) }, at);
        let stored = publish_next(&mut book, now);
        (book, stored)
    }

    /// Publishes the next change, and reads it from the store.
    fn publish_next(book: &mut FactReplica, now: u64) -> StoredFact {
        let sent = book.next_request(Micros::new(now));
        let OutgoingFact { fact, .. } = &sent.facts[0];
        let seal = fact.seal.expect("it is sealed");
        let (removed, until) = (fact.removed, seal.until);
        let stored = StoredFact { removed, until, seal: Some(seal), ..stored(now, &fact.payload) };
        let read = StoredFact { payload: stored.payload.clone(), ..stored };
        let mut answer = reply(now, (sent.seen_version, now), vec![(name(1), read)]);
        answer.outcomes = vec![PublishOutcome::Accepted];
        assert!(book.apply_reply(&sent, answer, Micros::new(now)).facts.is_empty());
        stored
    }

    /// Hears one fact. Returns the facts that were taken, and the refusals.
    fn hear(book: &mut FactReplica, fact: &StoredFact, now: u64) -> (usize, [u64; 3]) {
        let sent = book.next_request(Micros::new(now));
        let fact = StoredFact { payload: fact.payload.clone(), ..*fact };
        let mut answer = reply(now, (sent.seen_version, now), vec![(name(1), fact)]);
        answer.outcomes = vec![PublishOutcome::Superseded; sent.facts.len()];
        let news = book.apply_reply(&sent, answer, Micros::new(now));
        (news.facts.len(), news.refused)
    }

    #[test]
    fn the_end_of_a_sealed_fact_cannot_be_moved() {
        let (start, hour) = (100_000_000, 3_600_000_000);
        let (mut book, first) = sealed(start, "first", Some(start + hour));
        assert_eq!(first.until, start + hour + 1_000_000_000, "by the clock of the store");
        let later = start + 20_000_000;
        let at = Micros::new(later);
        book.publish(name(1), SharedFact { removed: true, ..fact(later, "first") }, at);
        let removal = publish_next(&mut book, later);
        for until in [later + 1_000_000_001, 0] {
            let moved = StoredFact { until, payload: removal.payload.clone(), ..removal };
            assert_eq!(hear(&mut book, &moved, later + 1), (0, [0, 1, 0]), "{until}");
        }
        book.drop_ended(Micros::new(later + 13_000_000));
        assert_eq!(hear(&mut book, &first, later + 13_000_000), (0, [0, 0, 1]));
    }

    #[test]
    fn earlier_versions_are_taken_only_near_the_latest() {
        let start = 100_000_000;
        let (mut author, first) = sealed(start, "1", None);
        let mut versions = vec![first];
        for step in 1..=3 {
            let now = start + step * 9_000_000;
            author.publish(name(1), fact(now, &format!("{}", step + 1)), Micros::new(now));
            versions.push(publish_next(&mut author, now));
        }
        let (mut reader, _) = sealed(start - 1, "0", None);
        let now = start + 30_000_000;
        let rows = [(3, 0, 1), (2, 1, 1), (1, 2, 0), (0, 3, 0), (3, 4, 1), (2, 10_000_001, 0)];
        for (version, after, taken) in rows {
            let (news, refused) = hear(&mut reader, &versions[version], now + after);
            assert_eq!((news, refused), (taken, [0, 0, 1 - taken as u64]), "{version} {after}");
        }
    }

    #[test]
    fn a_fact_that_has_ended_is_not_put_back() {
        let start = 100_000_000;
        let (mut book, right) = sealed(start, "right", Some(start + 5_000_000));
        let forged = StoredFact { payload: "forged".into(), ..right };
        for (now, sent) in [(start + 4_999_999, 1), (start + 5_000_000, 0)] {
            assert_eq!(book.next_request(Micros::new(now)).facts.len(), sent, "compared at {now}");
        }
        assert_eq!(hear(&mut book, &forged, start + 6_000_000), (0, [0, 1, 0]));
        assert!(book.next_request(Micros::new(start + 7_000_000)).facts.is_empty());
    }

    #[test]
    fn a_value_that_was_not_taken_is_written_over_at_a_bounded_pace() {
        let start = 100_000_000;
        let (mut book, right) = sealed(start, "right", None);
        let forged = StoredFact { seal: None, ..stored(5_000_000_000_000, "forged") };
        let sent_after = |book: &mut FactReplica, now| {
            let sent = book.next_request(Micros::new(now));
            sent.facts.into_iter().find(|one| one.order != SendOrder::AUDIT)
        };
        assert_eq!(hear(&mut book, &forged, start + 1), (0, [1, 0, 0]));
        let told = sent_after(&mut book, start + 2).expect("it is sent again");
        assert!(told.order.is_resend, "nobody waits for it");
        assert_eq!((&*told.fact.payload, told.fact.seal), ("right", right.seal));
        assert_eq!(told.fact.decided_at, FactTime::Stamp(forged.stamp + 1), "no later than that");
        let healed = StoredFact { stamp: forged.stamp + 1, ..right };
        assert_eq!(hear(&mut book, &healed, start + 3), (0, [0; 3]), "it is no news");
        // At once after that it waits; the store is told in the end.
        assert_eq!(hear(&mut book, &forged, start + 4), (0, [1, 0, 0]));
        assert!(sent_after(&mut book, start + 5).is_none());
        assert_eq!(hear(&mut book, &forged, start + 1_000_001), (0, [1, 0, 0]));
        assert!(sent_after(&mut book, start + 1_000_002).is_some());
        let unknown = vec![(name(9), stored(7, "made up"))];
        let sent = book.next_request(Micros::new(start + 2_000_000));
        let answer = reply(start, (sent.seen_version, start + 9), unknown);
        let news = book.apply_reply(&sent, answer, Micros::new(start + 2_000_000));
        assert_eq!((news.refused, book.count(FactKind::Override)), ([1, 0, 0], 1));
    }

    #[test]
    fn no_more_is_sent_at_once_than_the_bounds_say() {
        let mut book = FactReplica::default();
        let now = Micros::new(5);
        for number in 0..=255 {
            book.publish(name(number), fact(5, &"x".repeat(16 << 10)), now);
        }
        let sent = book.next_request(now).facts.len();
        assert_eq!(sent, BYTES_MAX / (16 << 10));
        for number in 0..=255 {
            book.publish(name(number), fact(5, "x"), now);
        }
        assert_eq!(book.next_request(now).facts.len(), SENT_FACTS_MAX);
        let mut refused = FactReplica::default();
        for act in 0..2 * REFUSED_MAX as u64 {
            refused.refuse(SharedChangeId(act), PublishStatus::NoRoom);
        }
        assert_eq!(refused.refused.len(), REFUSED_MAX);
    }
}
