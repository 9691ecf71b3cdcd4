//! What this instance knows of the facts that hold for all, and what it still has to tell.
//!
//! Pure: time is an argument, and messages are values. Instances exchange facts through the store;
//! this replica restores them after the store was emptied.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use tollgate::{Micros, Wait};

use super::PublishStatus;
use super::exchange::{BYTES_MAX, ExchangeReply, PublishOutcome, SENT_FACTS_MAX};
use super::fact_seal::{FactSealer, SealRefusal};
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
}

/// The order of sending: first changes made here, the oldest first, because an operator waits for
/// them; then facts that the store may have lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SendOrder {
    is_resend: bool,
    change: SharedChangeId,
}

#[derive(Debug)]
struct ReplicaEntry {
    fact: SharedFact,
    /// The place in the send queue; `None` once the store has confirmed the fact.
    unsent: Option<SendOrder>,
    /// The time of the write by the store's clock, as far as it is known.
    written: u64,
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
        fact.sealed_after = old.map_or(0, |old| old.fact.sealed_at());
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
    pub(super) fn next_request(&self, now: Micros) -> ExchangeRequest {
        let mut bytes = 0;
        // Seals carry the store's time: a call that reads its clock comes first.
        let is_ready = |name: &FactName| !self.epoch.is_empty() || !self.sealer.seals(name.kind);
        let unsent = self.unsent.iter().filter(|(_, name)| is_ready(name));
        let telling = unsent.map(|(turn, name)| {
            let mut fact = self.facts[name].fact.clone();
            if fact.seal.is_none() && matches!(fact.decided_at, FactTime::Here { .. }) {
                let authored = now.as_u64().saturating_add_signed(self.offset);
                let authored = authored.max(fact.sealed_after.saturating_add(1));
                fact.seal = self.sealer.seal(*name, fact.removed, authored, &fact.payload);
            }
            OutgoingFact { name: *name, fact, offset: self.offset, order: *turn }
        });
        let facts = telling.take(SENT_FACTS_MAX).take_while(|telling| {
            let fits = bytes == 0 || bytes + telling.fact.payload.len() <= BYTES_MAX;
            bytes += telling.fact.payload.len();
            fits
        });
        let facts = facts.collect();
        ExchangeRequest { now, epoch: self.epoch.clone(), seen_version: self.seen_version, facts }
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
            self.confirm(telling, (*outcome == PublishOutcome::Accepted).then_some(reply.now));
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
        let changes = reply.changes.into_iter();
        let facts = changes.filter_map(|(name, stored)| {
            let verified = match self.check_seal(name, &stored) {
                Ok(verified) => verified,
                Err(refusal) => {
                    refused[refusal as usize] += 1;
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

    /// Checks the seal of a fact in the store, and that it is not one that was replaced long ago.
    fn check_seal(&self, name: FactName, stored: &StoredFact) -> Result<bool, SealRefusal> {
        let seal = stored.seal.as_ref();
        let verified = self.sealer.check(name, stored.removed, seal, &stored.payload)?;
        let known = self.facts.get(&name).and_then(|known| known.fact.seal);
        match (seal, known) {
            (Some(seal), Some(known)) if verified && seal.is_replay_after(&known) => {
                Err(SealRefusal::Replayed)
            }
            _ => Ok(verified),
        }
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
        let (unsent, counts) = (&mut self.unsent, &mut self.counts);
        self.facts.retain(|name, entry| {
            let stays = entry.fact.until.is_none_or(|until| until > now);
            if !stays {
                counts[name.kind as usize] -= 1;
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
            let turn = SendOrder { is_resend: true, change: self.next_change() };
            self.unsent.insert(turn, name);
            self.facts.get_mut(&name).expect("it was just there").unsent = Some(turn);
        }
    }

    /// The store has it, unless it has changed since.
    fn confirm(&mut self, telling: &OutgoingFact, written: Option<u64>) {
        self.unsent.remove(&telling.order);
        if let Some(entry) = self.facts.get_mut(&telling.name)
            && entry.unsent == Some(telling.order)
        {
            entry.unsent = None;
            entry.fact.seal = telling.fact.seal;
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
        }
        is_news
    }

    fn set(&mut self, name: FactName, fact: SharedFact, unsent: Option<SendOrder>, written: u64) {
        match self.facts.insert(name, ReplicaEntry { fact, unsent, written }) {
            Some(old) => drop(old.unsent.map(|turn| self.unsent.remove(&turn))),
            None => self.counts[name.kind as usize] += 1,
        }
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

    fn sent_next(book: &FactReplica, now: u64) -> Vec<u8> {
        book.next_request(Micros::new(now)).facts.iter().map(|telling| telling.name.id[0]).collect()
    }

    #[test]
    fn a_store_that_went_back_is_told_everything_again() {
        let now = 100_000_000;
        let mut book = exchanged(now);
        assert!(sent_next(&book, now).is_empty());
        let sent = book.next_request(Micros::new(now));
        let news = book.apply_reply(&sent, reply(now, (0, 40), Vec::new()), Micros::new(now));
        assert_eq!(news.backlog, FactBacklog::Resends);
        let mut told = sent_next(&book, now);
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
        assert_eq!(sent_next(&book, now + 3), [1], "the other is older than a minute");
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
        let sealed = |author: &FactReplica, now| {
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
        let (sent, old) = sealed(&author, first);
        let again = || StoredFact { seal: old.seal, ..stored(later + 1, "old") };
        let written_back = again();
        confirmed(&mut author, &sent, first);
        assert!(read(&mut reader, again(), first).facts[0].1.verified);
        author.publish(name(1), fact(later, "new"), Micros::new(later));
        let (sent, new) = sealed(&author, later);
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
