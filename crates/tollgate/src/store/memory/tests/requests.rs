//! Many requests at once decide as the same requests one after the other.

use super::*;
use crate::store::RequestList;

/// Compares `decide_requests` with requests one by one, on a store of the same traffic. The numbers
/// of checks begin and end strides at every position; 17 are too many.
#[test]
fn many_requests_decide_as_one_after_the_other() {
    let (together, apart) = (MemoryStore::new(1_000), MemoryStore::new(1_000));
    let limits = kinds();
    let keys: Vec<String> = (0..7).map(|nth| format!("key {nth}")).collect();
    let lengths = [1, 2, 0, 3, 1, 17, 16, 1, 5, 10, 16, 16, 1, 1, 1];
    for round in 0..40 {
        let mut checks = Vec::new();
        let mut ends = Vec::new();
        for (nth, &length) in lengths.iter().cycle().skip(round % 4).take(20).enumerate() {
            for index in 0..length {
                let key = match (round + nth + index) % 29 {
                    28 => "",
                    other => &keys[(nth + other / 9) % keys.len()],
                };
                let limit = &limits[(nth * index + round) % limits.len()];
                let check = Check::new(limit, key).cost((index % 3) as u64);
                checks.push(if index % 5 == 4 { check.shadow() } else { check });
            }
            ends.push(checks.len());
        }
        let now = Micros::new(600 * S + round as u64 * 2 * S);
        if round == 20 {
            for store in [&together, &apart] {
                assert!(store.block("key 3".into(), now.after(Wait::from_micros(9 * S)), now));
            }
        }
        let mut got = Vec::new();
        let mut got_outcomes = vec![Outcome::default(); checks.len()];
        let requests = RequestList::new(&checks, &ends);
        together.decide_requests(requests, now, &mut got_outcomes, &mut got);
        assert_eq!(got.len(), ends.len());
        for (range, got) in requests.ranges().zip(got) {
            let mut outcomes = vec![Outcome::default(); range.len()];
            let want = apart.decide_request(&checks[range.clone()], Now::at(now), &mut outcomes);
            assert_eq!(got, want, "round {round}, checks {range:?}");
            assert_eq!(got_outcomes[range.clone()], outcomes, "round {round}, checks {range:?}");
        }
    }
}
