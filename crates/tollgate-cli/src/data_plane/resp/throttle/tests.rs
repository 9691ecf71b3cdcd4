//! Replies beside the peer's: those that were recorded, and those of its arithmetic, written down here
//! again.

use std::collections::HashMap;

use tollgate::{Check, MemoryStore, Micros};

use super::super::throttle_limits::ParsedLimit;
use super::*;

/// What one call is answered at an instant.
fn ask(store: &MemoryStore, now: u64, key: &str, call: ThrottleTestCall) -> [i64; 5] {
    let params = call.params;
    match params.to_limit().expect("params that mean something") {
        ParsedLimit::NothingPasses => reply_nothing_passes(params, call.quantity as u64),
        ParsedLimit::Limit(limit) => {
            let check = Check::new(&limit, key).cost(call.quantity as u64);
            reply(limit.capacity(), &store.decide_one(&check, Micros::new(now)))
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct ThrottleTestCall {
    params: ThrottleParams,
    quantity: i64,
}

impl ThrottleTestCall {
    fn new([max_burst, count, period, quantity]: [i64; 4]) -> ThrottleTestCall {
        ThrottleTestCall { params: ThrottleParams { max_burst, count, period }, quantity }
    }
}

/// Redis-cell's arithmetic, in whole nanoseconds: the theoretical arrival time of each key.
#[derive(Default)]
struct RedisCellModel(HashMap<String, i128>);

impl RedisCellModel {
    fn ask(&mut self, now: u64, key: &str, call: ThrottleTestCall) -> [i64; 5] {
        let ThrottleTestCall { params: ThrottleParams { max_burst, count, period }, quantity } =
            call;
        let now = i128::from(now) * 1_000;
        let interval = i128::from(period) * 1_000_000_000 / i128::from(count);
        let tolerance = interval * i128::from(max_burst + 1);
        let increment = interval * i128::from(quantity);
        // A key lives as long as it says anything. (Redis counts that in whole milliseconds, and forgets
        // a part of one.)
        let found = self.0.get(key).copied().filter(|found| *found > now).unwrap_or(now);
        let next = found.max(now) + increment;
        let late = now - (next - tolerance);
        let (limited, mut retry, left) = match late < 0 {
            true if increment <= tolerance => (1, Some(-late), found - now),
            true => (1, None, found - now),
            false => (0, None, next - now),
        };
        if limited == 0 {
            self.0.insert(key.into(), next);
        }
        let room = tolerance - left;
        // Its microseconds are cut before they are divided.
        let remaining = match room > -interval {
            true => ((room / 1_000) as f64 / (interval / 1_000) as f64) as i64,
            false => 0,
        };
        let seconds = |nanos: i128| {
            let part = nanos % 1_000_000_000 / 1_000_000 > 0;
            (nanos / 1_000_000_000) as i64 + i64::from(part)
        };
        let retry = retry.take().map_or(-1, seconds);
        [limited, max_burst + 1, remaining, retry, seconds(left)]
    }
}

#[test]
fn replies_are_those_that_were_recorded() {
    const WAIT: [i64; 4] = [i64::MIN; 4];
    type RecordedCalls<'a> = (&'a [[i64; 4]], &'a [[i64; 5]]);
    let rows: [RecordedCalls<'_>; 9] = [
        (&[[15, 30, 60, 1]; 2], &[[0, 16, 15, -1, 2], [0, 16, 14, -1, 4]]),
        (
            &[[0, 1, 2, 1], [0, 1, 2, 1], WAIT, [0, 1, 2, 1]],
            &[[0, 1, 0, -1, 2], [1, 1, 0, 2, 2], [0, 1, 0, -1, 2]],
        ),
        (
            &[
                [4, 5, 60, 1],
                [4, 5, 60, 1],
                [4, 5, 60, 1],
                [4, 5, 60, 1],
                [4, 5, 60, 1],
                [4, 5, 60, 1],
                [4, 5, 60, 0],
            ],
            &[
                [0, 5, 4, -1, 12],
                [0, 5, 3, -1, 24],
                [0, 5, 2, -1, 36],
                [0, 5, 1, -1, 48],
                [0, 5, 0, -1, 60],
                [1, 5, 0, 12, 60],
                [0, 5, 0, -1, 60],
            ],
        ),
        (&[[4, 5, 60, 0]], &[[0, 5, 5, -1, 0]]),
        (
            &[[4, 5, 60, 3], [4, 5, 60, 3], [4, 5, 60, 2]],
            &[[0, 5, 2, -1, 36], [1, 5, 2, 12, 36], [0, 5, 0, -1, 60]],
        ),
        (&[[4, 1, 1, 6]], &[[1, 5, 5, -1, 0]]),
        (&[[0, 3, 1, 1]; 2], &[[0, 1, 0, -1, 1], [1, 1, 0, 1, 1]]),
        (&[[-1, 5, 60, 1]], &[[1, 0, 0, -1, 0]]),
        (&[[4, -5, 60, 1]], &[[1, 5, 0, -1, 0]]),
    ];
    let store = MemoryStore::new(1_000);
    for (row, (calls, want)) in rows.into_iter().enumerate() {
        // Back to back, as far as a connection can, and with a wait of 2 s.
        let (key, mut now, mut peer) =
            (format!("row {row}"), 1_700_000_000_000_000, RedisCellModel::default());
        let mut replies = Vec::new();
        for call in calls {
            if *call == WAIT {
                now += 2_000_000;
                continue;
            }
            let reply = ask(&store, now, &key, ThrottleTestCall::new(*call));
            assert_eq!(reply, peer.ask(now, &key, ThrottleTestCall::new(*call)), "row {row}");
            replies.push(reply);
            now += 150;
        }
        assert_eq!(replies, want, "row {row}");
    }
    // What only asked, or never fitted, left nothing behind.
    assert_eq!(store.stats().keys, 5);
}

/// SplitMix64.
struct ThrottleTestRandom(u64);

impl ThrottleTestRandom {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

#[test]
fn replies_are_those_of_the_peers_arithmetic() {
    let mut random = ThrottleTestRandom(0x7011_6a7e);
    let (store, mut peer) = (MemoryStore::new(20_000), RedisCellModel::default());
    let (mut limited, mut now) = (0, 1_700_000_000_000_000);
    for series in 0..60 {
        // One key with constant params, among many.
        let key = format!("series {series}");
        let params = ThrottleParams {
            max_burst: random.below(50) as i64,
            count: 1 + random.below(2_000) as i64,
            period: 1 + random.below(600) as i64,
        };
        let unit_us = params.period as u64 * 1_000_000 / params.count as u64;
        for call in 0..200 {
            let quantity = match random.below(8) {
                0 => 0,
                1 => random.below(60) as i64,
                _ => 1 + random.below(3) as i64,
            };
            let call_of = ThrottleTestCall { params, quantity };
            let got = ask(&store, now, &key, call_of);
            let mut want = peer.ask(now, &key, call_of);
            let period_us = params.period as u64 * 1_000_000;
            let whole_micros = period_us.is_multiple_of(params.count as u64);
            if !whole_micros && got[2] != want[2] {
                // Of parts of a microsecond the peer loses sight where it divides.
                assert!(want[2] == got[2] + 1, "{series}/{call}: {got:?}, {want:?}, {params:?}");
                want[2] = got[2];
            }
            assert_eq!(got, want, "{series}/{call}: {params:?}, quantity {quantity}");
            assert!(got[2] <= got[1]);
            limited += got[0];
            now += random.below(3 * unit_us.max(2));
        }
    }
    // Both kinds of answers were compared.
    assert!((1_000..10_000).contains(&limited), "{limited}");
}

#[test]
fn a_reply_is_never_more_than_its_limit_and_never_wraps() {
    let store = MemoryStore::new(1_000);
    let most = i64::MAX;
    let rows = [
        ([most, 1, 60, 1], [0, 52_596_000, 52_595_999, -1, 60]),
        ([4, 1, 60, most], [1, 5, 5, -1, 0]),
        ([most, 1_000_000_000, 1, most], [1, 9_007_199_254_740_991, 9_007_199_254_740_991, -1, 0]),
        ([9, 5_000_000, 1, 1], [0, 10, 9, -1, 0]),
        ([i64::MIN, 1, 1, 0], [1, i64::MIN + 1, 0, -1, 0]),
        ([-1, 1, 1, 0], [0, 0, 0, -1, 0]),
    ];
    for (index, (call, want)) in rows.into_iter().enumerate() {
        let got =
            ask(&store, 1_700_000_000_000_000, &format!("{index}"), ThrottleTestCall::new(call));
        assert_eq!(got, want, "{call:?}");
    }
}

#[test]
fn integers_are_read_as_the_peer_reads_them() {
    let rows: [(&[u8], Option<i64>); 14] = [
        (b"0", Some(0)),
        (b"007", Some(7)),
        (b"+7", Some(7)),
        (b"-7", Some(-7)),
        (b"999999999999999999", Some(999_999_999_999_999_999)),
        (b"9223372036854775807", Some(i64::MAX)),
        (b"-9223372036854775808", Some(i64::MIN)),
        (b"9223372036854775808", None),
        (b"", None),
        (b"x", None),
        (b"1.5", None),
        (b" 1", None),
        (b"1\xff", None),
        (b"1e3", None),
    ];
    for (text, want) in rows {
        assert_eq!(integer(text).ok(), want, "{text:?}");
    }
    let error = integer(b"x").unwrap_err().to_string();
    assert_eq!(error, "Cell error: Store error: Couldn't parse as integer: x");
}
