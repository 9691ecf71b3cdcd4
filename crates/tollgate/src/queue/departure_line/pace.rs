//! Another pace for those who stand in a line, because their limit has changed.

use super::{DepartureLine, INTERVAL_US_MAX};
use crate::time::{Micros, Wait};

/// The times of a request in a [`DepartureLine`], counted from now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineTimes {
    /// The time until it is due.
    pub until_due: Wait,
    /// Its interval.
    pub interval: Wait,
}

impl<T> DepartureLine<T> {
    /// Moves requests up to another pace, because a limit has changed. `pace` converts the times of each; where they
    /// would be longer, they stay. The order stays, and so does the interval between one and the next; the interval of the
    /// last departure has to be [shortened](DepartureLine::release_at) on its own. It takes time for everybody in line.
    pub fn change_pace(
        &mut self,
        now: Micros,
        mut pace: impl FnMut(&mut T, LineTimes) -> LineTimes,
    ) {
        let mut next = self.order.first();
        let (mut moved_up_us, mut earliest) = (0_u64, Micros::ZERO);
        self.intervals_us = 0;
        while let Some(index) = next {
            let place = &mut self.places[index];
            moved_up_us = moved_up_us.saturating_add(place.moved_up_us);
            let due = Micros::new(place.scheduled_us.saturating_sub(moved_up_us));
            let before = LineTimes {
                until_due: now.until(due),
                interval: Wait::from_micros(place.interval_us),
            };
            let after = pace(&mut place.item, before);
            let interval = before.interval.min(after.interval);
            let due = due.min(now.after(after.until_due).max(earliest));
            (place.scheduled_us, place.moved_up_us) = (due.as_u64(), 0);
            place.interval_us = interval.as_micros().unwrap_or(INTERVAL_US_MAX);
            self.intervals_us = self.intervals_us.saturating_add(place.interval_us);
            (earliest, next) = (due.after(interval), place.links.next());
        }
        self.moved_up_us = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Micros {
        Micros::new(micros)
    }

    /// Times that pass so many times as fast.
    fn faster(times: LineTimes, factor: u64) -> LineTimes {
        let convert = |wait: Wait| Wait::from_micros(wait.as_micros().unwrap() / factor);
        LineTimes { until_due: convert(times.until_due), interval: convert(times.interval) }
    }

    /// Requests that are due at these instants, each with an interval of 100 us.
    fn line_of(schedule: &[u64]) -> DepartureLine<usize> {
        let mut line = DepartureLine::new(100);
        for (number, &due) in schedule.iter().enumerate() {
            line.join(at(due), Wait::from_micros(100), number).unwrap();
        }
        line
    }

    /// The instants at which everybody departs, if nobody is late.
    fn departures(line: &mut DepartureLine<usize>) -> Vec<u64> {
        let departures = std::iter::from_fn(|| {
            let departs_at = line.head()?.1;
            line.depart(departs_at).unwrap();
            Some(departs_at.as_u64())
        });
        departures.collect()
    }

    #[test]
    fn a_faster_pace_moves_up_and_a_slower_one_moves_nobody() {
        // now, the instants, the factor, departures
        type PaceCase = (u64, &'static [u64], u64, &'static [u64]);
        let cases: [PaceCase; 6] = [
            (0, &[], 10, &[]),
            (0, &[100, 200, 300], 10, &[10, 20, 30]),
            (50, &[100, 200, 300], 10, &[55, 65, 75]),
            // The schedule of others in a shared store leaves gaps.
            (0, &[100, 500], 10, &[10, 50]),
            // Whoever is due stays so.
            (250, &[100, 200, 300], 10, &[100, 200, 255]),
            (0, &[100, 200, 300], 1, &[100, 200, 300]),
        ];
        for (now, schedule, factor, expected) in cases {
            let mut line = line_of(schedule);
            line.change_pace(at(now), |_, times| faster(times, factor));
            assert_eq!(departures(&mut line), expected, "{now} {schedule:?} {factor}");
        }
        let mut line = line_of(&[100, 200]);
        line.change_pace(at(0), |_, times| LineTimes {
            until_due: times.until_due.max(Wait::from_micros(5_000)),
            interval: Wait::from_micros(5_000),
        });
        assert_eq!(departures(&mut line), [100, 200]);
    }

    #[test]
    fn the_interval_of_the_last_departure_shrinks_as_well() {
        let mut line = line_of(&[0, 100, 200]);
        line.depart(at(60)).unwrap();
        assert_eq!(line.head().unwrap().1, at(160));
        line.change_pace(at(60), |_, times| faster(times, 10));
        line.release_at(at(70));
        line.release_at(at(90));
        assert_eq!(departures(&mut line), [70, 80]);
    }

    #[test]
    fn those_who_left_stay_gone_and_the_next_ones_leave_and_join_at_the_new_pace() {
        let mut line = DepartureLine::new(100);
        let tickets: Vec<_> = (0..6)
            .map(|number| {
                line.join(at(number * 100), Wait::from_micros(100), number).unwrap().ticket
            })
            .collect();
        line.leave(tickets[1]).unwrap();
        line.change_pace(at(0), |_, times| faster(times, 10));
        line.leave(tickets[3]).unwrap();
        let joined = line.join(at(40), Wait::from_micros(10), 9).unwrap();
        assert_eq!(joined.departs_at, at(40));
        let mut order = Vec::new();
        while let Some((_, departs_at)) = line.head() {
            order.push((line.depart(departs_at).unwrap(), departs_at.as_u64()));
        }
        assert_eq!(order, [(0, 0), (2, 10), (4, 20), (5, 30), (9, 40)]);
    }

    #[test]
    fn one_who_is_converted_stays_behind_one_who_is_not() {
        let mut line = line_of(&[100, 200]);
        line.change_pace(at(0), |number, times| match number {
            0 => times,
            _ => faster(times, 100),
        });
        assert_eq!(departures(&mut line), [100, 200]);
    }
}
