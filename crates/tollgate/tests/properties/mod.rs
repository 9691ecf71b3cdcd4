//! What must hold for every limit and every sequence of requests, tried on random ones.
//!
//! The same cases are tried at each run. `PROPTEST_RNG_SEED=7 PROPTEST_CASES=1000000` tries others;
//! a failure prints the smallest trace that shows it, and that trace becomes a row of
//! `traces_that_once_failed` or of the algorithm's own table.

mod bounds;
mod changed_numbers;
mod converted_waits;
mod equality;
mod extreme_changes;
mod limits;
mod new_numbers;
mod refunds;
mod several_limits;
mod time;
mod traces;

use std::time::Duration;

use crate::executor::{
    CoreModel, Executor, KeyModel, KeyedExecutor, TableExecutor, outcome_of, take_together,
};
use crate::model::AlgorithmModel;
use limits::*;
use new_numbers::without_clock_fields;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::RngSeed;
use tollgate::time::MAX_EXACT;
use tollgate::{
    Algorithm, Align, Check, Limit, Limiter, MemoryStore, Micros, OnChange, Outcome, Precision,
    SystemClock, Wait,
};
use traces::*;

const CASES: u32 = 10_000;
const SEED: u64 = 0x7011_6A7E;

pub(crate) fn config() -> ProptestConfig {
    let given = ProptestConfig::default();
    let is_set = |name: &str| std::env::var_os(name).is_some();
    ProptestConfig {
        cases: if is_set("PROPTEST_CASES") { given.cases } else { CASES },
        rng_seed: match is_set("PROPTEST_RNG_SEED") {
            true => given.rng_seed,
            false => RngSeed::Fixed(SEED),
        },
        failure_persistence: None,
        ..given
    }
}
