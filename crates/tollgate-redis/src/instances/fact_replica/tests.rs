//! Replicas without a store: time and replies are values.

use super::*;

fn fact(at: u64, payload: &str) -> SharedFact {
    let when = FactTime::Here { at: Micros::new(at), after: 0 };
    SharedFact::new(when, None, false, payload.into())
}

fn name(number: u8) -> FactName {
    FactName { kind: FactKind::Override, id: [number; 16] }
}

/// A reply of a store whose clock is 1,000 s ahead.
fn reply(now: u64, (from, to): (u64, u64), changes: Vec<(FactName, StoredFact)>) -> ExchangeReply {
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
    assert!(list(&mut book, now + 3, (50, true), Vec::new()).facts.is_empty());
    assert_eq!(sent_next(&mut book, now + 4), [1], "the other is older than a minute");
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

/// The store answers with a list, which may not be whole, and takes what it is told.
fn list(
    book: &mut FactReplica,
    now: u64,
    (version, is_whole): (u64, bool),
    changes: Vec<(FactName, StoredFact)>,
) -> RemoteChanges {
    let sent = book.next_request(Micros::new(now));
    let mut answer = reply(now, (sent.seen_version, version), changes);
    answer.version += u64::from(!is_whole);
    answer.outcomes = vec![PublishOutcome::Accepted; sent.facts.len()];
    book.apply_reply(&sent, answer, Micros::new(now))
}

const HOUR: u64 = 3_600_000_000;

#[test]
fn what_was_taken_back_during_an_absence_of_a_day_is_taken_back_here() {
    let start = 100_000_000;
    // The call that was on its way failed, or the process stood still meanwhile.
    for fails in [true, false] {
        let (mut book, _) = sealed(start, "old", None);
        if fails {
            book.record_failure(Micros::new(start + 1));
        }
        let back = start + 24 * HOUR;
        book.publish(name(3), fact(back, "mine"), Micros::new(back));
        assert_eq!(sent_next(&mut book, back), [3], "what is decided here is sent");
        let news = list(&mut book, back, (back, false), Vec::new());
        assert!(news.facts.is_empty(), "the list goes on");
        assert!(sent_next(&mut book, back + 1_000_000).is_empty(), "nothing from before");
        book.record_failure(Micros::new(back + 1_000_001));
        let news = list(&mut book, back + 2_000_000, (back, true), Vec::new());
        let told: Vec<_> =
            news.facts.iter().map(|(name, fact)| (name.id[0], fact.removed)).collect();
        assert_eq!((told, book.count(FactKind::Override)), (vec![(1, true)], 1));
        let mut told = sent_next(&mut book, back + 3_000_000);
        told.dedup();
        assert_eq!(told, [3], "only that is compared");
    }
    // The same without a secret: a recent fact is not sent again.
    let mut book = exchanged(start);
    book.record_failure(Micros::new(start + 1));
    let back = start + 24 * HOUR;
    assert!(sent_next(&mut book, back).is_empty());
    let theirs = stored(1_000_000_000 + start - 90_000_000, "theirs");
    let news = list(&mut book, back, (back, true), vec![(name(2), theirs)]);
    let told: Vec<_> = news.facts.iter().map(|(name, fact)| (name.id[0], fact.removed)).collect();
    assert_eq!((told, book.count(FactKind::Override)), (vec![(1, true)], 1));
}

#[test]
fn after_a_shorter_absence_or_a_loss_of_data_the_store_is_told_what_it_lacks() {
    let start = 100_000_000;
    let (mut book, _) = sealed(start, "kept", None);
    book.record_failure(Micros::new(start + 1));
    let back = start + 22 * HOUR;
    assert!(list(&mut book, back, (back, true), Vec::new()).facts.is_empty());
    assert_eq!(sent_next(&mut book, back + 1_000_000), [1]);
    // The store was emptied: that it lacks something says nothing.
    let back = back + 30 * HOUR;
    let sent = book.next_request(Micros::new(back));
    let answer = ExchangeReply { epoch: "second".into(), ..reply(back, (0, 0), Vec::new()) };
    assert!(book.apply_reply(&sent, answer, Micros::new(back)).facts.is_empty());
    assert_eq!(sent_next(&mut book, back), [1]);
}

#[test]
fn two_operators_who_change_the_same_thing_are_no_forgers() {
    let start = 100_000_000;
    let (mut ours, _) = sealed(start, "base", None);
    let (mut theirs, _) = sealed(start, "base", None);
    let (mut reader, _) = sealed(start, "base", None);
    let at = start + 20_000_000;
    let change = |book: &mut FactReplica, now, text: &str| {
        book.publish(name(1), fact(now, text), Micros::new(now));
        publish_next(book, now)
    };
    let first = change(&mut theirs, at, "theirs");
    let between = change(&mut theirs, at + 500_000, "between");
    ours.publish(name(1), fact(at + 1_000_000, "ours"), Micros::new(at + 1_000_000));
    let sent = ours.next_request(Micros::new(at + 1_000_000));
    let sealed_here = sent.facts[0].fact.seal;
    assert_eq!(hear(&mut ours, &first, at + 1_000_000), (1, [0; 3]), "theirs is later there");
    // All of it is listed again, after a failover.
    ours.start_over(Micros::new(at + 20_000_000));
    assert_eq!(hear(&mut ours, &first, at + 20_000_000), (0, [0; 3]));
    assert_eq!(hear(&mut ours, &between, at + 21_000_000), (1, [0; 3]), "ours was never there");
    // Who has known both, and holds the one that the store has.
    let lost = StoredFact { seal: sealed_here, ..stored(at, "ours") };
    assert_eq!(hear(&mut reader, &lost, at + 1_000_000), (1, [0; 3]));
    assert_eq!(hear(&mut reader, &first, at + 1_000_001), (1, [0; 3]));
    assert_eq!(hear(&mut reader, &first, at + 20_000_000), (0, [0; 3]));
    assert_eq!(hear(&mut reader, &lost, at + 20_000_001), (1, [0; 3]), "the latest version");
    assert_eq!(hear(&mut reader, &first, at + 20_000_002).1, [0, 0, 1], "written back");
}

#[test]
fn a_fact_without_room_stays_here_and_is_counted_once() {
    let start = 100_000_000;
    let (mut book, _) = sealed(start, "shared", None);
    let act = book.publish(name(2), fact(start, "local"), Micros::new(start));
    let mut no_room = 0;
    for step in 0..8 {
        let now = start + step * 300_000;
        let sent = book.next_request(Micros::new(now));
        assert!(step == 0 || sent.facts.iter().all(|one| one.name == name(1)), "{step}");
        let mut answer = reply(now, (sent.seen_version, sent.seen_version), Vec::new());
        answer.outcomes = vec![PublishOutcome::NoRoom; sent.facts.len()];
        no_room += book.apply_reply(&sent, answer, Micros::new(now)).no_room;
    }
    assert_eq!((no_room, book.refused.len()), (1, 1));
    assert_eq!(book.is_published(act), Err(PublishStatus::NoRoom));
    let now = Micros::new(start + 9_000_000);
    let sent = book.next_request(now);
    let mut answer = reply(now.as_u64(), (0, 0), Vec::new());
    answer.epoch = "second".into();
    answer.outcomes = vec![PublishOutcome::NoRoom; sent.facts.len()];
    book.apply_reply(&sent, answer, now);
    assert_eq!(sent_next(&mut book, now.as_u64()), [1], "an emptied store is told what was shared");
}
