//! The balancer: chooses the server of a request, of two at random the one with fewer requests under way.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_rules::UpstreamSettings;

use super::server::UpstreamServer;

thread_local! {
    static RANDOM: Cell<u64> = Cell::new(RandomState::new().hash_one(0));
}

/// A random number for [`choose`]: cheap, and not for secrets.
pub(super) fn random() -> u64 {
    RANDOM.with(|state| {
        let next = state.get().wrapping_add(1);
        state.set(next);
        mixed(next)
    })
}

/// The random number with this index in a fixed sequence.
fn mixed(index: u64) -> u64 {
    let next = index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (next ^ (next >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The servers that a request was sent to, by number. Bound: [`UpstreamSettings::ADDRESSES_MAX`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TriedServers([u64; UpstreamSettings::ADDRESSES_MAX / 64]);

impl TriedServers {
    pub(super) fn insert(&mut self, number: usize) {
        self.0[number / 64] |= 1 << (number % 64);
    }

    fn contains(&self, number: usize) -> bool {
        self.0[number / 64] & (1 << (number % 64)) != 0
    }
}

/// The server that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerChoice {
    pub(super) number: usize,
    /// True if no server is available: a try is better than a sure error.
    pub(super) is_panic: bool,
}

/// Chooses a server that was not tried yet, if there is one, and that is available, if there is one. `None` if there are
/// no servers.
pub(super) fn choose(
    servers: &[Arc<UpstreamServer>],
    tried: &TriedServers,
    random: u64,
    now_ms: &impl Fn() -> u64,
) -> Option<ServerChoice> {
    if servers.len() < 2 {
        return (!servers.is_empty()).then_some(ServerChoice { number: 0, is_panic: false });
    }
    let is_available = |number: usize| servers[number].health.is_available(now_ms);
    let found =
        choose_among(servers, random, |number| !tried.contains(number) && is_available(number));
    if let Some(number) = found {
        return Some(ServerChoice { number, is_panic: false });
    }
    let is_panic = !(0..servers.len()).any(is_available);
    let untried = choose_among(servers, random, |number| !tried.contains(number));
    let number = untried.or_else(|| choose_among(servers, random, |_| true))?;
    Some(ServerChoice { number, is_panic })
}

/// Chooses one of two random servers that are `possible`. There are at least two.
fn choose_among(
    servers: &[Arc<UpstreamServer>],
    random: u64,
    possible: impl Fn(usize) -> bool,
) -> Option<usize> {
    let (one, other) = two_of(servers.len(), random);
    match (possible(one), possible(other)) {
        (true, true) => Some(less_busy(servers, one, other)),
        (true, false) => Some(one),
        (false, true) => Some(other),
        (false, false) => {
            let after = |number: usize| (one + number) % servers.len();
            let mut rest = (1..servers.len()).map(after).filter(|number| possible(*number));
            let first = rest.next()?;
            Some(rest.next().map_or(first, |second| less_busy(servers, first, second)))
        }
    }
}

/// Two different numbers below `count`, which is at least 2.
fn two_of(count: usize, random: u64) -> (usize, usize) {
    let below = |bits: u64, count: usize| ((bits * count as u64) >> 32) as usize;
    let one = below(random & u64::from(u32::MAX), count);
    let other = below(random >> 32, count - 1);
    (one, other + usize::from(other >= one))
}

fn less_busy(servers: &[Arc<UpstreamServer>], one: usize, other: usize) -> usize {
    let outstanding = |number: usize| servers[number].load.outstanding.load(Ordering::Relaxed);
    if outstanding(other) < outstanding(one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_rules::UpstreamUrl;

    use super::*;

    fn servers(outstanding: &[usize]) -> Vec<Arc<UpstreamServer>> {
        let server = |count: &usize| {
            let server = UpstreamServer::new(UpstreamUrl::parse("http://127.0.0.1").unwrap());
            server.load.outstanding.store(*count, Ordering::Relaxed);
            Arc::new(server)
        };
        outstanding.iter().map(server).collect()
    }

    /// The numbers chosen in many draws, each counted.
    fn draws(servers: &[Arc<UpstreamServer>], tried: &[usize]) -> (Vec<usize>, bool) {
        let mut marks = TriedServers::default();
        tried.iter().for_each(|number| marks.insert(*number));
        let mut counts = vec![0; servers.len()];
        let mut is_panic = false;
        for number in 0..10_000 {
            let choice = choose(servers, &marks, mixed(number), &|| 5).expect("there are servers");
            counts[choice.number] += 1;
            is_panic |= choice.is_panic;
        }
        (counts, is_panic)
    }

    #[test]
    fn two_different_numbers_are_drawn_from_the_whole_range() {
        for count in [2, 3, 256] {
            for random in [0, u64::MAX, u64::from(u32::MAX), !u64::from(u32::MAX)] {
                let (one, other) = two_of(count, random);
                assert!(one != other && one < count && other < count, "{count} {random:x}");
            }
        }
        assert_eq!((two_of(3, 0), two_of(3, u64::MAX)), ((0, 1), (2, 1)));
    }

    #[test]
    fn of_two_the_less_busy_one_is_chosen() {
        assert_eq!(draws(&servers(&[1, 0]), &[]), (vec![0, 10_000], false));
        let (counts, _) = draws(&servers(&[9, 5, 0, 5]), &[]);
        // The busiest loses against every other, and the idle one wins against every other.
        assert_eq!(counts[0], 0);
        assert!(counts[2] > counts[1] + counts[3] - 2_000 && counts[2] > 4_000, "{counts:?}");
        let (counts, _) = draws(&servers(&[0; 4]), &[]);
        assert!(counts.iter().all(|count| (2_000..3_000).contains(count)), "{counts:?}");
    }

    #[test]
    fn unavailable_and_tried_servers_are_passed_over_while_there_are_others() {
        let four = servers(&[0; 4]);
        let eject = |number: usize| four[number].health.eject(Duration::from_secs(1), 5);
        eject(0);
        let (counts, is_panic) = draws(&four, &[3]);
        assert!(counts[0] == 0 && counts[3] == 0 && counts[1] > 0 && counts[2] > 0, "{counts:?}");
        assert!(!is_panic);
        eject(1);
        assert_eq!(draws(&four, &[3]), (vec![0, 0, 10_000, 0], false));
        // The only available one was tried: the others may be back.
        let (counts, is_panic) = draws(&four, &[2, 3]);
        assert!(counts[2] + counts[3] == 0 && counts[0] > 0 && counts[1] > 0, "{counts:?}");
        assert!(!is_panic);
        eject(2);
        eject(3);
        let (counts, is_panic) = draws(&four, &[]);
        assert!(is_panic && counts.iter().all(|count| *count > 0), "{counts:?}");
        let (counts, _) = draws(&four, &[0, 1, 2, 3]);
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }

    #[test]
    fn a_single_server_is_always_chosen() {
        assert_eq!(choose(&[], &TriedServers::default(), 0, &|| 0), None);
        let one = servers(&[7]);
        one[0].health.eject(Duration::from_secs(1), 5);
        assert_eq!(draws(&one, &[0]), (vec![10_000], false));
    }
}
