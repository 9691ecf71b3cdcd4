//! A line of one key's delayed requests, which leave it at an even pace.
//!
//! A [leaky bucket as a queue](crate::algorithm::leaky_bucket) admits a request with a delay: its
//! departure is scheduled behind all others of its key. The schedule alone does not keep the
//! output even:
//!
//! * A client that leaves gets its units back, and so the next newcomer is scheduled for an
//!   instant that somebody behind the leaver has already.
//! * A timer fires late, and the next one in time: the two departures are too close.
//! * Of two requests, the one that was charged first may join the line last.
//!
//! The line keeps them apart. Each request takes its *interval*, the time that its cost takes at
//! the rate of the limit, and departs when it is due and the one before has had its interval.
//! The line is in the order of the schedule, which is that of the charges. If a request leaves, its
//! units come back, and those charged after it, which are behind it, move up by its interval.
//!
//! ```text
//!   departure = max(scheduled − intervals of those who left ahead, last departure + its interval)
//! ```
//!
//! Every operation takes constant time, because only the head needs a departure: those behind
//! get theirs when they become the head. Only joining takes longer, if others have joined that are
//! scheduled later: as long as there are such.

mod pace;

use std::error::Error;
use std::fmt;

use super::index_list::{IndexList, ListLinks};
use super::slab::Slab;
use crate::time::{MAX_EXACT, Micros, Wait};
pub use pace::LineTimes;

/// The delayed requests of one key, in the order of their schedule.
///
/// ```
/// use tollgate::queue::DepartureLine;
/// use tollgate::{Micros, Wait};
///
/// let mut line = DepartureLine::new(100);
/// let (at, interval) = (|ms: u64| Micros::new(ms * 1_000), Wait::from_micros(500_000));
/// let ann = line.join(at(0), interval, "Ann")?;
/// let bob = line.join(at(500), interval, "Bob")?;
/// let cid = line.join(at(1_000), interval, "Cid")?;
///
/// assert_eq!(line.depart(at(0)), Some("Ann"));
/// assert_eq!(line.leave(bob.ticket), Some("Bob")); // Cid moves up
/// assert_eq!(line.head(), Some((cid.ticket, at(500))));
/// assert_eq!(line.depart(at(499)), None);
/// assert_eq!(line.depart(at(501)), Some("Cid")); // the timer was late
///
/// // Scheduled by a limit that got Bob's units back, but not less than an interval after Cid.
/// let dan = line.join(at(1_000), interval, "Dan")?;
/// assert_eq!(dan.departs_at, at(1_001));
/// # Ok::<(), tollgate::queue::LineFull<&str>>(())
/// ```
#[derive(Debug)]
pub struct DepartureLine<T> {
    /// Everybody in line. Bound: `places_max`.
    places: Slab<LinePosition<T>>,
    order: IndexList,
    places_max: usize,
    /// The sum of the intervals of everybody in line.
    intervals_us: u64,
    /// The sum of `moved_up_us` of everybody in line.
    moved_up_us: u64,
    /// The end of the interval of the last departure.
    free_at: Micros,
}

/// A longer interval counts as this one, 285 years. Only thousands of such intervals in one line
/// add up to more than a number holds; then departures are too late, and never too close.
const INTERVAL_US_MAX: u64 = MAX_EXACT;

/// A place in a [`DepartureLine`]. It stays valid until its request departs or leaves, and is
/// never confused with a later one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LineTicket {
    index: u32,
    generation: u32,
}

/// A request that joined a [`DepartureLine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedLine {
    /// Its place.
    pub ticket: LineTicket,
    /// The instant at which it departs if everybody ahead stays and departs in time.
    pub departs_at: Micros,
}

/// A line has no more places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineFull<T> {
    /// The item, given back.
    pub item: T,
}

impl<T> fmt::Display for LineFull<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too many delayed requests of this caller")
    }
}

impl<T: fmt::Debug> Error for LineFull<T> {}

#[derive(Debug)]
struct LinePosition<T> {
    item: T,
    /// The scheduled instant, plus all that is taken off again because requests left ahead of this
    /// one before it joined.
    scheduled_us: u64,
    interval_us: u64,
    /// Intervals of requests that left ahead: this one and all behind it move up by so much.
    moved_up_us: u64,
    links: ListLinks,
}

/// The part of a line that is ahead of a request.
struct RequestsAhead {
    /// The last of them; `None` if the request becomes the head.
    last: Option<u32>,
    /// The sum of their intervals.
    intervals_us: u64,
    /// The sum of their `moved_up_us`.
    moved_up_us: u64,
}

impl<T> DepartureLine<T> {
    /// An empty line with room for `places_max` requests; more than 2^32 − 2 count as that. It
    /// allocates when somebody joins.
    pub fn new(places_max: usize) -> DepartureLine<T> {
        DepartureLine {
            places: Slab::new(),
            order: IndexList::EMPTY,
            places_max: places_max.min(u32::MAX as usize - 1),
            intervals_us: 0,
            moved_up_us: 0,
            free_at: Micros::ZERO,
        }
    }

    /// Number of requests in line.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns true if nobody is in line.
    pub fn is_empty(&self) -> bool {
        self.places.len() == 0
    }

    /// Returns true if a new line would do the same: nobody waits, and the last departure has had
    /// its interval.
    pub fn is_idle(&self, now: Micros) -> bool {
        self.is_empty() && self.free_at <= now
    }

    /// Joins the line behind all that are due before `scheduled`, or then.
    ///
    /// `scheduled` is the instant that the limit gave: now and the [delay](crate::Decision::delay)
    /// of its decision. `interval` is the time that the cost of the request takes at the rate of
    /// the limit, rounded down: the schedule keeps the exact pace, and intervals rounded up
    /// would fall behind it by up to a microsecond each time.
    pub fn join(
        &mut self,
        scheduled: Micros,
        interval: Wait,
        item: T,
    ) -> Result<JoinedLine, LineFull<T>> {
        if self.len() >= self.places_max {
            return Err(LineFull { item });
        }
        let ahead = self.requests_ahead(scheduled);
        let head = self.head().filter(|_| ahead.last.is_some());
        let departs_at = head.map_or(self.free_at, |(_, head_departs)| {
            head_departs.after(Wait::from_micros(ahead.intervals_us))
        });
        let interval_us = interval.as_micros().unwrap_or(u64::MAX).min(INTERVAL_US_MAX);
        let index = self.places.insert(LinePosition {
            item,
            scheduled_us: scheduled.as_u64().saturating_add(ahead.moved_up_us),
            interval_us,
            moved_up_us: 0,
            links: ListLinks::NONE,
        });
        self.order.insert_after(ahead.last, &mut self.places, index, |all, at| &mut all[at].links);
        self.intervals_us = self.intervals_us.saturating_add(interval_us);
        Ok(JoinedLine { ticket: self.ticket(index), departs_at: departs_at.max(scheduled) })
    }

    /// The requests that are ahead of one that joins now.
    fn requests_ahead(&self, scheduled: Micros) -> RequestsAhead {
        let RequestsAhead { mut last, mut intervals_us, mut moved_up_us } = RequestsAhead {
            last: self.order.last(),
            intervals_us: self.intervals_us,
            moved_up_us: self.moved_up_us,
        };
        while let Some(index) = last {
            let place = &self.places[index];
            if place.scheduled_us.saturating_sub(moved_up_us) <= scheduled.as_u64() {
                break;
            }
            last = place.links.previous();
            intervals_us = intervals_us.saturating_sub(place.interval_us);
            moved_up_us = moved_up_us.saturating_sub(place.moved_up_us);
        }
        RequestsAhead { last, intervals_us, moved_up_us }
    }

    /// The request that departs next, and the instant from which it may.
    pub fn head(&self) -> Option<(LineTicket, Micros)> {
        let index = self.order.first()?;
        let LinePosition { scheduled_us, moved_up_us, .. } = self.places[index];
        let due = Micros::new(scheduled_us.saturating_sub(moved_up_us));
        Some((self.ticket(index), due.max(self.free_at)))
    }

    /// Lets the head depart if it is due, and keeps the next one back for its interval.
    pub fn depart(&mut self, now: Micros) -> Option<T> {
        let (ticket, departs_at) = self.head()?;
        if now < departs_at {
            return None;
        }
        let LinePosition { item, interval_us, .. } = self.take_out(ticket.index, 0);
        self.free_at = now.after(Wait::from_micros(interval_us));
        Some(item)
    }

    /// Keeps the head back until `until`, because a request departs that is not in line.
    pub fn hold_back(&mut self, until: Micros) {
        self.free_at = self.free_at.max(until);
    }

    /// Keeps the head back no longer than until `until`, because the interval of the last departure has become shorter.
    pub fn release_at(&mut self, until: Micros) {
        self.free_at = self.free_at.min(until);
    }

    /// The end of the interval of the last departure.
    pub fn free_at(&self) -> Micros {
        self.free_at
    }

    /// Takes a request out that does not depart, for example because its client left. Those behind
    /// move up by its interval. `None` if it departed or left before.
    pub fn leave(&mut self, ticket: LineTicket) -> Option<T> {
        if !self.holds(ticket) {
            return None;
        }
        let interval_us = self.places[ticket.index].interval_us;
        Some(self.take_out(ticket.index, interval_us).item)
    }

    /// The item of a request; `None` if it departed or left.
    pub fn get(&self, ticket: LineTicket) -> Option<&T> {
        self.holds(ticket).then(|| &self.places[ticket.index].item)
    }

    /// The item of a request, to be changed; `None` if it departed or left.
    pub fn get_mut(&mut self, ticket: LineTicket) -> Option<&mut T> {
        self.holds(ticket).then(|| &mut self.places[ticket.index].item)
    }

    fn holds(&self, ticket: LineTicket) -> bool {
        self.places.holds(ticket.index, ticket.generation)
    }

    fn ticket(&self, index: u32) -> LineTicket {
        LineTicket { index, generation: self.places.generation(index) }
    }

    /// Removes a place. Those behind keep what they moved up with it, and move up by `freed_us`.
    fn take_out(&mut self, index: u32, freed_us: u64) -> LinePosition<T> {
        let next = self.places[index].links.next();
        self.order.unlink(&mut self.places, index, |all, at| &mut all[at].links);
        let place = self.places.remove(index);
        self.intervals_us = self.intervals_us.saturating_sub(place.interval_us);
        match next.map(|next| &mut self.places[next].moved_up_us) {
            Some(moved_up_us) => {
                let handed_on_us = place.moved_up_us.saturating_add(freed_us);
                *moved_up_us = moved_up_us.saturating_add(handed_on_us);
                self.moved_up_us = self.moved_up_us.saturating_add(freed_us);
            }
            None => self.moved_up_us = self.moved_up_us.saturating_sub(place.moved_up_us),
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Wait = Wait::from_micros(100);

    fn at(micros: u64) -> Micros {
        Micros::new(micros)
    }

    /// A line of requests that are scheduled at these instants, each with an interval of 100 us.
    fn line_of(schedule: &[u64]) -> (DepartureLine<usize>, Vec<LineTicket>) {
        let mut line = DepartureLine::new(100);
        let joined = schedule
            .iter()
            .enumerate()
            .map(|(number, &scheduled)| line.join(at(scheduled), INTERVAL, number).unwrap().ticket);
        let tickets = joined.collect();
        (line, tickets)
    }

    /// The instants of the departures, if everybody departs `late` after the earliest instant.
    fn departures(line: &mut DepartureLine<usize>, late: u64) -> Vec<u64> {
        let departures = std::iter::from_fn(|| {
            let departs_at = line.head()?.1.as_u64();
            if departs_at > 0 {
                assert_eq!(line.depart(at(departs_at - 1)), None, "not one microsecond early");
            }
            assert!(line.depart(at(departs_at + late)).is_some());
            Some(departs_at + late)
        });
        departures.collect()
    }

    /// A row: scheduled instants, leavers, lateness of each departure, departures.
    type LineCase = (&'static [u64], &'static [usize], u64, &'static [u64]);

    #[test]
    fn departures_keep_their_schedule_and_their_distance() {
        let cases: [LineCase; 9] = [
            (&[], &[], 0, &[]),
            (&[0, 100, 200], &[], 0, &[0, 100, 200]),
            // The schedule of others in a shared store leaves gaps.
            (&[0, 150, 500], &[], 0, &[0, 150, 500]),
            // Too close: one interval later.
            (&[0, 50, 200], &[], 0, &[0, 100, 200]),
            // Late by 7: each pushes the next.
            (&[0, 100, 200], &[], 7, &[7, 114, 221]),
            // A leaver in the middle, at the head, at the end.
            (&[0, 100, 200, 300], &[1], 0, &[0, 100, 200]),
            (&[50, 150, 250], &[0], 0, &[50, 150]),
            (&[0, 100, 200], &[2], 0, &[0, 100]),
            (&[0, 100, 200, 900], &[0, 1], 0, &[0, 700]),
        ];
        for (schedule, leavers, late, expected) in cases {
            let (mut line, tickets) = line_of(schedule);
            for &leaver in leavers {
                assert_eq!(line.leave(tickets[leaver]), Some(leaver));
                assert_eq!(line.leave(tickets[leaver]), None, "left once");
            }
            assert_eq!(departures(&mut line, late), expected, "{schedule:?} {leavers:?} {late}");
        }
    }

    /// A row: the order of joining by schedule, those who leave then, departures.
    type JoinCase = (&'static [u64], &'static [u64], &'static [u64]);

    /// Charging a request and joining the line are two steps, so another may be charged after it and join before it.
    #[test]
    fn the_order_of_joining_does_not_matter() {
        let cases: [JoinCase; 7] = [
            (&[0, 200, 100], &[], &[0, 100, 200]),
            (&[100, 0], &[], &[0, 100]),
            (&[300, 200, 100, 0], &[], &[0, 100, 200, 300]),
            // The units of those who leave are those of the requests charged after them alone.
            (&[0, 200, 100], &[200], &[0, 100]),
            (&[0, 200, 100], &[100], &[0, 100]),
            (&[0, 300, 100, 200], &[300], &[0, 100, 200]),
            (&[0, 300, 100, 200], &[100, 300], &[0, 100]),
        ];
        for (schedule, leavers, expected) in cases {
            let mut line = DepartureLine::new(100);
            let joined: Vec<(u64, LineTicket)> = schedule
                .iter()
                .map(|&scheduled| {
                    let joined = line.join(at(scheduled), INTERVAL, 0).unwrap();
                    assert_eq!(joined.departs_at, at(scheduled), "{schedule:?}");
                    (scheduled, joined.ticket)
                })
                .collect();
            for leaver in leavers {
                let (_, ticket) = joined.iter().find(|(scheduled, _)| scheduled == leaver).unwrap();
                line.leave(*ticket);
            }
            assert_eq!(departures(&mut line, 0), expected, "{schedule:?} {leavers:?}");
        }
    }

    /// The reason for the line: the limit gives a leaver's units to a newcomer.
    #[test]
    fn a_newcomer_does_not_get_the_instant_of_somebody_behind_a_leaver() {
        let (mut line, tickets) = line_of(&[0, 100, 200]);
        line.leave(tickets[1]);
        let joined = line.join(at(200), INTERVAL, 3).unwrap();
        assert_eq!(joined.departs_at, at(200));
        assert_eq!(departures(&mut line, 0), [0, 100, 200]);
    }

    #[test]
    fn costs_of_different_sizes_take_their_time() {
        let mut line = DepartureLine::new(3);
        for (interval, departs_at) in [(100, 0), (500, 100), (1, 600)] {
            let joined = line.join(at(0), Wait::from_micros(interval), 0).unwrap();
            assert_eq!(joined.departs_at, at(departs_at), "{interval}");
        }
        assert_eq!(line.join(at(0), INTERVAL, 7), Err(LineFull { item: 7 }));
        assert_eq!(departures(&mut line, 0), [0, 100, 600]);
    }

    #[test]
    fn a_line_is_idle_after_the_last_interval() {
        let (mut line, tickets) = line_of(&[10, 20]);
        assert!(!line.is_idle(at(1_000)), "somebody waits");
        assert_eq!(line.depart(at(10)), Some(0));
        line.leave(tickets[1]);
        assert!(line.is_empty() && !line.is_idle(at(109)) && line.is_idle(at(110)));
    }

    #[test]
    fn tickets_find_their_request_and_no_later_one() {
        let (mut line, tickets) = line_of(&[0, 0]);
        *line.get_mut(tickets[1]).unwrap() = 77;
        assert_eq!(line.depart(at(0)), Some(0));
        let later = line.join(at(0), INTERVAL, 2).unwrap().ticket;
        assert_eq!((line.get(tickets[0]), line.get(tickets[1])), (None, Some(&77)));
        assert_eq!((line.get(later), line.len()), (Some(&2), 2));
        assert_eq!(line.leave(tickets[0]), None);
    }

    #[test]
    fn an_endless_interval_does_not_overflow() {
        let mut line = DepartureLine::new(10);
        for number in 0..5 {
            let joined = line.join(at(0), Wait::NEVER, number).unwrap();
            assert_eq!(joined.departs_at, if number == 0 { at(0) } else { Micros::MAX });
        }
        for _ in 0..3_000 {
            let leaver = line.join(at(0), Wait::NEVER, 5).unwrap().ticket;
            let last = line.join(at(0), INTERVAL, 6).unwrap().ticket;
            assert_eq!((line.leave(leaver), line.leave(last)), (Some(5), Some(6)));
        }
        assert_eq!(departures(&mut line, 0)[..2], [0, Micros::MAX.as_u64()]);
    }
}
