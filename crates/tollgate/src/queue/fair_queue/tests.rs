//! Worked cases of the fair queue; random ones are compared with a model in `tests/queue/`.

use super::*;

const FOREVER: Micros = Micros::MAX;

fn queue(per_flow: usize, total: usize) -> FairQueue<&'static str> {
    FairQueue::new(QueueBounds { per_flow, total })
}

/// Costs and weights in a row: flow, units, weight in thousandths, name.
type Row = (u64, u64, u32, &'static str);

fn pushed(rows: &[Row]) -> (FairQueue<&'static str>, Vec<FairTicket>) {
    let mut queue = queue(100, 100);
    let tickets = rows.iter().map(|&(flow, units, thousandths, name)| {
        let weight = Weight::from_thousandths(thousandths).unwrap();
        queue.push(FlowKey(flow), QueuedCost { units, weight }, FOREVER, name).unwrap().ticket
    });
    let tickets = tickets.collect();
    (queue, tickets)
}

fn served(queue: &mut FairQueue<&'static str>) -> String {
    std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_order_of_services() {
    let cases: [(&[Row], &str); 7] = [
        (&[], ""),
        // Equal flows take turns, in the order in which they came.
        (
            &[(1, 1, 1000, "a1"), (1, 1, 1000, "a2"), (2, 1, 1000, "b1"), (2, 1, 1000, "b2")],
            "a1 b1 a2 b2",
        ),
        // One large cost is as much as three small ones; of equal tags the first wins.
        (
            &[
                (1, 3, 1000, "a1"),
                (2, 1, 1000, "b1"),
                (2, 1, 1000, "b2"),
                (2, 1, 1000, "b3"),
                (2, 1, 1000, "b4"),
            ],
            "b1 b2 a1 b3 b4",
        ),
        // Twice the weight, two services for one.
        (
            &[
                (1, 1, 1000, "a1"),
                (1, 1, 1000, "a2"),
                (2, 1, 2000, "b1"),
                (2, 1, 2000, "b2"),
                (2, 1, 2000, "b3"),
            ],
            "b1 a1 b2 b3 a2",
        ),
        // A small weight makes a cost large.
        (&[(1, 1, 1, "a1"), (2, 999, 1000, "b1"), (2, 2, 1000, "b2")], "b1 a1 b2"),
        // A cost of 0 counts as 1.
        (&[(1, 1, 1000, "a1"), (2, 0, 1000, "b1"), (2, 0, 1000, "b2")], "a1 b1 b2"),
        // The largest numbers do not overflow.
        (
            &[(1, u64::MAX, 1, "a1"), (1, u64::MAX, 1, "a2"), (2, u64::MAX, u32::MAX, "b1")],
            "b1 a1 a2",
        ),
    ];
    for (rows, order) in cases {
        assert_eq!(served(&mut pushed(rows).0), order, "{rows:?}");
    }
}

/// Would catch: credit for the time in which a flow had nothing waiting.
#[test]
fn an_absent_flow_saves_nothing_up() {
    let (mut queue, _) =
        pushed(&[(1, 1, 1000, "a1"), (1, 1, 1000, "a2"), (1, 1, 1000, "a3"), (1, 1, 1000, "a4")]);
    assert_eq!((queue.pop(), queue.pop()), (Some("a1"), Some("a2")));
    for name in ["b1", "b2"] {
        queue.push(FlowKey(2), QueuedCost::ONE, FOREVER, name).unwrap();
    }
    assert_eq!(served(&mut queue), "a3 b1 a4 b2");
}

/// Would catch: a queue that remembers old tags after it was empty.
#[test]
fn an_empty_queue_begins_anew() {
    let (mut queue, _) = pushed(&[(1, 1_000, 1000, "a1")]);
    assert_eq!(queue.pop(), Some("a1"));
    assert_eq!((queue.virtual_time, queue.len(), queue.flow_count()), (0, 0, 0));
    assert!(queue.turns.is_empty() && queue.expiries.is_empty() && queue.lengths.is_empty());
    assert!(queue.flow_indices.is_empty());
}

#[test]
fn a_waiter_leaves_and_its_successor_begins_where_it_would_have_begun() {
    let rows: [Row; 4] =
        [(1, 9, 1000, "a1"), (1, 1, 1000, "a2"), (2, 2, 1000, "b1"), (2, 2, 1000, "b2")];
    // The leavers, by row, and the order of the rest.
    let cases: [(&[usize], &str); 5] = [
        (&[], "b1 b2 a1 a2"),
        (&[0], "a2 b1 b2"),
        (&[1], "b1 b2 a1"),
        (&[2], "b2 a1 a2"),
        (&[0, 1], "b1 b2"),
    ];
    for (leavers, order) in cases {
        let (mut queue, tickets) = pushed(&rows);
        for &leaver in leavers {
            assert_eq!(queue.remove(tickets[leaver]), Some(rows[leaver].3));
            assert_eq!(queue.remove(tickets[leaver]), None, "left once");
        }
        assert_eq!(queue.len(), rows.len() - leavers.len());
        assert_eq!(served(&mut queue), order, "{leavers:?}");
    }
}

/// A large head that waits for long and leaves: its flow is next, once, and not many times in a row.
#[test]
fn a_leaver_hands_on_one_early_turn() {
    let (mut queue, tickets) = pushed(&[
        (1, 50, 1000, "a1"),
        (1, 1, 1000, "a2"),
        (1, 1, 1000, "a3"),
        (2, 10, 1000, "b1"),
        (2, 1, 1000, "b2"),
        (2, 1, 1000, "b3"),
    ]);
    assert_eq!(queue.pop(), Some("b1"));
    queue.remove(tickets[0]);
    assert_eq!(served(&mut queue), "a2 b2 a3 b3");
}

#[test]
fn full_queues_refuse_or_displace() {
    let mut queue = queue(3, 4);
    let mut push = |flow, name| {
        let pushed = queue.push(FlowKey(flow), QueuedCost::ONE, FOREVER, name);
        pushed.map(|queued| queued.displaced).map_err(|full| full.bound)
    };
    let rows = [
        (1, "a1", Ok(None)),
        (1, "a2", Ok(None)),
        (1, "a3", Ok(None)),
        (1, "a4", Err(QueueBound::PerFlow)),
        (2, "b1", Ok(None)),
        // Full: the newest of the longest flow makes room until lengths are 2 and 2.
        (2, "b2", Ok(Some("a3"))),
        (2, "b3", Err(QueueBound::Total)),
        (3, "c1", Ok(Some("a2"))),
        (4, "d1", Ok(Some("b2"))),
        // Everybody waits with one: a newcomer finds no room.
        (5, "e1", Err(QueueBound::Total)),
    ];
    for (flow, name, expected) in rows {
        assert_eq!(push(flow, name), expected, "{name}");
    }
    assert_eq!([1, 2, 3, 4, 5].map(|flow| queue.flow_len(FlowKey(flow))), [1, 1, 1, 1, 0]);
    assert_eq!(served(&mut queue), "a1 b1 c1 d1");
}

#[test]
fn bounds_of_zero_admit_nothing() {
    for (per_flow, total, bound) in [(0, 1, QueueBound::PerFlow), (1, 0, QueueBound::Total)] {
        let refused = queue(per_flow, total).push(FlowKey(1), QueuedCost::ONE, FOREVER, "a1");
        assert_eq!(refused.unwrap_err(), QueueFull { bound, item: "a1" });
    }
}

#[test]
fn waiters_expire_at_the_end_of_the_millisecond_of_their_deadline() {
    // deadline_us, expires_us
    for (deadline, expires) in [(0, 0), (1, 1_000), (1_000, 1_000), (1_001, 2_000)] {
        let mut queue = queue(1, 1);
        queue.push(FlowKey(1), QueuedCost::ONE, Micros::new(deadline), "a1").unwrap();
        assert_eq!(queue.next_expiry(), Some(Micros::new(expires)));
        if expires > 0 {
            assert_eq!(queue.expire(Micros::new(expires - 1)), None, "{deadline}");
        }
        assert_eq!(queue.expire(Micros::new(expires)), Some("a1"), "{deadline}");
        assert_eq!((queue.len(), queue.next_expiry()), (0, None));
    }
}

#[test]
fn tickets_find_their_waiter_and_no_later_one() {
    let (mut queue, tickets) = pushed(&[(1, 1, 1000, "a1"), (1, 1, 1000, "a2")]);
    assert_eq!(queue.head(), Some((tickets[0], &"a1")));
    *queue.get_mut(tickets[1]).unwrap() = "changed";
    assert_eq!(queue.pop(), Some("a1"));
    let later = queue.push(FlowKey(2), QueuedCost::ONE, FOREVER, "b1").unwrap().ticket;
    assert_eq!(queue.get(tickets[0]), None);
    assert_eq!(queue.get_mut(tickets[0]), None);
    assert_eq!((queue.get(tickets[1]), queue.get(later)), (Some(&"changed"), Some(&"b1")));
    assert_eq!(queue.remove(tickets[0]), None);
    assert_eq!(queue.head(), Some((tickets[1], &"changed")));
}

#[test]
fn several_services_begin_in_the_order_in_which_they_would_be_served() {
    let rows = [
        (1, 1, 1000, "a1"),
        (1, 1, 1000, "a2"),
        (1, 1, 1000, "a3"),
        (2, 2, 1000, "b1"),
        (2, 2, 1000, "b2"),
        (3, 7, 1000, "c1"),
    ];
    let (mut queue, _) = pushed(&rows);
    let mut ahead = Vec::new();
    let mut names = Vec::new();
    while let Some(next) = queue.next_after(&ahead) {
        names.push(*queue.get(next).unwrap());
        ahead.push(next);
    }
    // Tags 1, 2, 3; 2, 4; 7.
    assert_eq!(names, ["a1", "a2", "b1", "a3", "b2", "c1"]);
    // Services that end in another order cost the flow as much: the turn of a1 comes at 2.
    assert_eq!(queue.serve(ahead[1]), Some("a2"));
    assert_eq!(queue.serve(ahead[1]), None);
    assert_eq!(served(&mut queue), "b1 a1 a3 b2 c1");
}

#[test]
fn those_ahead_of_a_newcomer_are_those_served_before_it() {
    let rows: [Row; 7] = [
        (1, 1, 1000, "a1"),
        (1, 2, 1000, "a2"),
        (2, 4, 1000, "b1"),
        (2, 8, 1000, "b2"),
        (3, 16, 2000, "c1"),
        (3, 32, 1000, "c2"),
        (1, 64, 1000, "a3"),
    ];
    for flow in 1..5 {
        for units in [1, 2, 5, 9, 40, 200] {
            let (mut queue, _) = pushed(&rows);
            let cost = QueuedCost { units, weight: Weight::ONE };
            let ahead: Vec<u64> =
                queue.waiters_ahead(FlowKey(flow), cost, 100).map(|one| one.units).collect();
            queue.push(FlowKey(flow), cost, FOREVER, "new").unwrap();
            let served = served(&mut queue);
            let before: Vec<u64> = served
                .split(' ')
                .take_while(|name| *name != "new")
                .map(|name| rows.iter().find(|row| row.3 == name).unwrap().1)
                .collect();
            assert_eq!(ahead, before, "flow {flow}, cost {units}: {served}");
        }
    }
    let (queue, _) = pushed(&rows);
    assert_eq!(queue.waiters_ahead(FlowKey(1), QueuedCost::ONE, 2).count(), 2);
}
