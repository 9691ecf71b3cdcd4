//! What this instance knows of the facts that hold for all, and what it still has to tell.
//!
//! Pure: time is an argument, and messages are values. Instances exchange facts through the store;
//! this replica restores them after the store was emptied.

#[cfg(test)]
mod tests;

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

/// Absence after which the store may have forgotten a removal that this instance has not heard of. Clocks and calls may
/// differ by the rest of `REMOVED_KEPT_FOR`.
const AWAY_US: u64 = 23 * 3_600_000_000;

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
    /// The time of the last answer by the store's clock; 0 if there was none.
    answered: u64,
    /// The next call sends only changes made here: its answer says for how long this instance was away.
    listens_first: bool,
    /// The store's list is read to its end, because this instance was away for long.
    relisting: bool,
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
    /// The store had no room for it: it applies to this instance only.
    is_local: bool,
    /// The store had it before this instance was away, and has not told of it since.
    is_unlisted: bool,
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
        if self.is_away(now.as_u64().saturating_add_signed(self.offset)) {
            (self.seen_version, self.listens_first) = (0, true);
        }
        let unsent = self
            .unsent
            .iter()
            .filter(|(turn, name)| is_ready(name) && !(turn.is_resend && self.listens_first));
        let telling = unsent.map(|(turn, name)| self.outgoing(*name, *turn, now));
        let facts = telling.take(SENT_FACTS_MAX).take_while(|telling| {
            let fits = bytes == 0 || bytes + telling.fact.payload.len() <= BYTES_MAX;
            bytes += telling.fact.payload.len();
            fits
        });
        let mut facts: Vec<_> = facts.collect();
        let is_silent = self.epoch.is_empty() || self.listens_first || self.relisting;
        if facts.is_empty() && !is_silent {
            let length = |name: &FactName| self.facts[name].fact.payload.len();
            let names = self.audit.next_names(now, length);
            let is_shared = |known: &ReplicaEntry| !known.has_ended(now) && !known.is_local;
            let names = names.into_iter().filter(|name| is_shared(&self.facts[name]));
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
        (self.failing, self.listens_first) = (false, false);
        let was_away = self.is_away(reply.now);
        self.answered = reply.now;
        let moved = self.follow_clock(reply.now, now);
        let lost_data = !self.epoch.is_empty() && *self.epoch != *reply.epoch;
        // Before the sent facts are confirmed: the store has those, in whichever epoch it is.
        if *self.epoch != *reply.epoch || reply.from != sent.seen_version {
            self.epoch = (&*reply.epoch).into();
            self.end_relisting();
            self.resend_since(0);
        } else if was_away {
            self.begin_relisting();
        }
        let mut no_room = 0;
        for (telling, outcome) in sent.facts.iter().zip(&reply.outcomes) {
            self.confirm(telling, *outcome, reply.now, now);
            match outcome {
                PublishOutcome::Accepted | PublishOutcome::Superseded => {}
                PublishOutcome::NoRoom if telling.order == SendOrder::AUDIT => {}
                PublishOutcome::NoRoom => {
                    no_room += 1;
                    // Nobody waits for what is sent again.
                    if !telling.order.is_resend {
                        self.refuse(telling.order.change, PublishStatus::NoRoom);
                    }
                }
                PublishOutcome::NothingToRemove => self.forget(telling.name),
            }
        }
        let is_part = was_away && sent.seen_version > 0;
        self.seen_version = if is_part { 0 } else { reply.to };
        let is_listed = self.relisting && !is_part && reply.to >= reply.version;
        let told = reply.changes.iter().map(|(name, _)| name);
        for name in told.chain(reply.unreadable.iter().map(|(name, _)| name)) {
            if let Some(known) = self.facts.get_mut(name) {
                known.is_unlisted = false;
            }
        }
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
        let mut facts: Vec<_> = facts.collect();
        if is_listed {
            facts.extend(self.drop_unlisted());
        }
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
        let known = self.facts.get(&name);
        match (seal, known) {
            // Of two changes at one time the store may have taken the one that was sealed earlier.
            (Some(seal), Some(known)) if known.fact.seal == Some(*seal) => Ok(verified),
            (Some(seal), Some(known)) if verified && known.latest.is_replay(seal.authored, now) => {
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
        (self.seen_version, self.listens_first) = (0, true);
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
        let lost = self.facts.iter().filter(|(_, entry)| {
            let is_shared = !entry.is_local && !entry.is_unlisted;
            is_shared && entry.unsent.is_none() && entry.written >= since
        });
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

    /// The store has answered for it, unless it has changed since.
    fn confirm(
        &mut self,
        telling: &OutgoingFact,
        outcome: PublishOutcome,
        store_now: u64,
        now: Micros,
    ) {
        self.unsent.remove(&telling.order);
        let known = self.facts.get_mut(&telling.name);
        let Some(entry) = known.filter(|known| known.unsent == Some(telling.order)) else { return };
        entry.unsent = None;
        entry.fact.seal = telling.fact.seal;
        match outcome {
            PublishOutcome::Accepted => {
                entry.written = store_now;
                if let Some(seal) = telling.fact.seal {
                    entry.latest.record(seal.authored, now);
                }
            }
            PublishOutcome::NoRoom => entry.is_local = !telling.order.is_resend,
            PublishOutcome::Superseded | PublishOutcome::NothingToRemove => {}
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
            self.remove(name);
        }
    }

    /// Removes a fact that is not on its way.
    fn remove(&mut self, name: FactName) -> Option<SharedFact> {
        self.audit.remove(name);
        let entry = self.facts.remove(&name)?;
        self.counts[name.kind as usize] -= 1;
        Some(entry.fact)
    }

    /// Returns true if the last answer is so old that removals since then may be forgotten.
    fn is_away(&self, store_now: u64) -> bool {
        self.answered > 0 && store_now.saturating_sub(self.answered) >= AWAY_US
    }

    /// Begins to read the store's list to its end. What the store had is sent again to nobody: somebody may have taken
    /// it back. What was decided here since then is not in question.
    fn begin_relisting(&mut self) {
        self.relisting = true;
        for entry in self.facts.values_mut() {
            let is_change = entry.unsent.is_some_and(|turn| !turn.is_resend);
            entry.is_unlisted = !is_change && !entry.is_local;
            if let Some(turn) = entry.unsent.take_if(|_| !is_change) {
                self.unsent.remove(&turn);
            }
        }
    }

    /// The store has lost what it had: its list says nothing of what holds.
    fn end_relisting(&mut self) {
        if std::mem::take(&mut self.relisting) {
            self.facts.values_mut().for_each(|entry| entry.is_unlisted = false);
        }
    }

    /// Drops what the whole list of the store lacks. Returns what held until now, as taken back.
    fn drop_unlisted(&mut self) -> Vec<(FactName, SharedFact)> {
        self.relisting = false;
        let lacking = self.facts.iter().filter(|(_, entry)| entry.is_unlisted);
        let lacking: Vec<FactName> = lacking.map(|(name, _)| *name).collect();
        let dropped = lacking.into_iter().filter_map(|name| Some((name, self.remove(name)?)));
        let held = dropped.filter(|(_, fact)| !fact.removed);
        held.map(|(name, fact)| (name, SharedFact { removed: true, ..fact })).collect()
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
        let (is_local, is_unlisted) = (false, false);
        let entry = ReplicaEntry { fact, unsent, written, latest, heals, is_local, is_unlisted };
        self.facts.insert(name, entry);
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
