//! The goals of the library, as ratios within one run, and the margin by which each is met or missed.

use tollgate_bench::keys::KeyDistribution;
use tollgate_bench::table::{BenchTable, TableStyle, figures, thousands};

use crate::contestants::{FLOOR, FLOOR_BATCH, GOVERNOR, LibraryQuota, TOLLGATE, TOLLGATE_BATCH};
use crate::measure::{LibraryCase, LibraryResults, ThreadLayout};
use crate::{BytesPerKey, COUNTS};

/// One goal: a measured number and its bound.
struct LibraryGoal {
    name: String,
    goal: LibraryGoalBound,
    measured: Option<f64>,
}

#[derive(Clone, Copy)]
enum LibraryGoalBound {
    AtLeast(f64),
    AtMost(f64),
}

/// The table of all measured goals, and true if all are met.
pub(crate) fn table(
    results: &LibraryResults,
    bytes: &BytesPerKey,
    style: TableStyle,
) -> (BenchTable, bool) {
    let columns = ["goal", "to be", "measured", "result", "by"];
    let mut table = BenchTable::new("Goals", style, &columns);
    let mut all_met = true;
    for LibraryGoal { name, goal, measured } in goals(results, bytes) {
        let Some(measured) = measured else { continue };
        let (bound, met, by) = match goal {
            LibraryGoalBound::AtLeast(least) => {
                (format!(">= {least}"), measured >= least, measured / least)
            }
            LibraryGoalBound::AtMost(most) => {
                (format!("<= {most}"), measured <= most, measured / most)
            }
        };
        all_met &= met;
        let result = if met { "met" } else { "MISSED" };
        let percent = (by - 1.0) * 100.0;
        let by = if percent.is_finite() { format!("{percent:+.0} %") } else { "-".into() };
        table.row([name, bound, figures(measured), result.into(), by]);
    }
    (table, all_met)
}

fn goals(results: &LibraryResults, bytes: &BytesPerKey) -> Vec<LibraryGoal> {
    let mut goals = Vec::new();
    let mut goal = |name: String, goal, measured| goals.push(LibraryGoal { name, goal, measured });
    for keys in COUNTS {
        let case = one_thread(keys, LibraryQuota::Allowed);
        let times = |name| Some(results.ns(case, GOVERNOR)? / results.ns(case, name)?);
        // A table in cache costs a call and a clock read on both sides; a larger one costs misses.
        let (in_cache, least) = if keys <= 1_000 { (true, 1.5) } else { (false, 6.0) };
        let keys_text =
            if keys == 1 { "1 key".into() } else { format!("{} keys", thousands(keys)) };
        goal(
            format!("times as fast as governor, {keys_text}"),
            LibraryGoalBound::AtLeast(least),
            times(TOLLGATE),
        );
        if !in_cache {
            goal(
                format!("times as fast as governor, {keys_text}, batch"),
                LibraryGoalBound::AtLeast(10.0),
                times(TOLLGATE_BATCH),
            );
        }
        let (single_most, batch_most) = if in_cache { (1.35, 1.6) } else { (1.6, 2.0) };
        for (ours, bare, how, most) in [
            (TOLLGATE, FLOOR, "", single_most),
            (TOLLGATE_BATCH, FLOOR_BATCH, ", batch", batch_most),
        ] {
            goal(
                format!("times the floor's cost, {keys_text}{how}"),
                LibraryGoalBound::AtMost(most),
                results.ns(case, ours).zip(results.ns(case, bare)).map(|(a, b)| a / b),
            );
        }
    }
    let hot =
        LibraryCase { threads: ThreadLayout::TwoShared, ..one_thread(1, LibraryQuota::Refused) };
    goal(
        "times governor's refusals of one hot key, 2 threads".into(),
        LibraryGoalBound::AtLeast(4.0),
        results.rate(hot, TOLLGATE).zip(results.rate(hot, GOVERNOR)).map(|(a, b)| a / b),
    );
    for keys in &COUNTS[1..] {
        let floor = scaling(results, *keys, FLOOR).map_or("not measured".into(), figures);
        let keys_text = thousands(*keys);
        goal(
            format!("times one thread's speed, 2 threads, {keys_text} own keys (floor: {floor})"),
            LibraryGoalBound::AtLeast(1.7),
            scaling(results, *keys, TOLLGATE),
        );
    }
    goal(
        "bytes per key, 1,000,000 keys".into(),
        LibraryGoalBound::AtMost(40.0),
        bytes.get(1_000_000, TOLLGATE),
    );
    for name in [TOLLGATE, TOLLGATE_BATCH] {
        goal(
            format!("allocations per check, {name}"),
            LibraryGoalBound::AtMost(0.0),
            results.allocations(name),
        );
    }
    for keys in [1_000, 1_000_000] {
        for name in ["fixed_window", "sliding_window_counter"] {
            let ns = |name| results.ns(one_thread(keys, LibraryQuota::Allowed), name);
            goal(
                format!("times token_bucket's cost, {name}, {} keys", thousands(keys)),
                LibraryGoalBound::AtMost(1.3),
                ns(name).zip(ns("token_bucket")).map(|(a, b)| a / b),
            );
        }
    }
    goals
}

/// The case with uniform keys and one thread.
pub(crate) fn one_thread(keys: u64, quota: LibraryQuota) -> LibraryCase {
    LibraryCase { keys, shape: KeyDistribution::Uniform, quota, threads: ThreadLayout::One }
}

/// Speed of two threads with separate keys, as a multiple of one thread's.
pub(crate) fn scaling(results: &LibraryResults, keys: u64, name: &'static str) -> Option<f64> {
    let case = |threads| LibraryCase { threads, ..one_thread(keys, LibraryQuota::Allowed) };
    let two = results.rate(case(ThreadLayout::TwoApart), name)?;
    Some(two / results.rate(case(ThreadLayout::OneApart), name)?)
}
