//! Every worked case of `data/*.jsonl` that concerns the library, run on the pure core and, to show
//! that the model of the properties means the same, on the naive model.
//!
//! Each run counts what it did and compares the counts, so that nothing passes by being skipped.

use crate::executor::{CoreModel, KeyedExecutor, TableExecutor};
use crate::model::AlgorithmModel;
use crate::worked_cases::{ALL_LINES, CaseTally, PollDensity, run, run_documents};

#[test]
fn the_core_answers_every_vector() {
    assert_eq!(run(&mut KeyedExecutor::<CoreModel>::new(), PollDensity::AllButSlow), ALL_LINES);
}

#[test]
fn the_table_answers_every_vector() {
    assert_eq!(run(&mut TableExecutor::new(), PollDensity::AllButSlow), ALL_LINES);
}

#[test]
fn the_table_answers_the_documents() {
    assert_eq!(run_documents(&mut TableExecutor::new()), (44, 321));
}

#[test]
fn the_model_answers_every_vector() {
    let fewer = CaseTally { soaks: 3, admitted: ALL_LINES.admitted - 9_999, ..ALL_LINES };
    assert_eq!(run(&mut KeyedExecutor::<AlgorithmModel>::new(), PollDensity::Few), fewer);
}

#[test]
#[ignore = "60 million polls"]
fn the_core_answers_every_poll() {
    assert_eq!(run(&mut KeyedExecutor::<CoreModel>::new(), PollDensity::All), ALL_LINES);
}

#[test]
fn the_core_answers_the_documents() {
    assert_eq!(run_documents(&mut KeyedExecutor::<CoreModel>::new()), (44, 321));
}

#[test]
fn the_model_answers_the_documents() {
    assert_eq!(run_documents(&mut KeyedExecutor::<AlgorithmModel>::new()), (44, 321));
}
