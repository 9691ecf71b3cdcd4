//! Every worked case of `data/*.jsonl` that concerns the library, run on the pure core and, to show
//! that the model of the properties means the same, on the naive model.
//!
//! Each run counts what it did and compares the counts, so that nothing passes by being skipped.

mod executor;
mod model;
mod worked_cases;

use executor::{Core, InTable, Keyed};
use model::Model;
use worked_cases::{ALL_LINES, Polls, Tally, run, run_documents};

#[test]
fn the_core_answers_every_vector() {
    assert_eq!(run(&mut Keyed::<Core>::new(), Polls::AllButSlow), ALL_LINES);
}

#[test]
fn the_table_answers_every_vector() {
    assert_eq!(run(&mut InTable::new(), Polls::AllButSlow), ALL_LINES);
}

#[test]
fn the_table_answers_the_documents() {
    assert_eq!(run_documents(&mut InTable::new()), (44, 321));
}

#[test]
fn the_model_answers_every_vector() {
    let fewer = Tally { soaks: 3, admitted: ALL_LINES.admitted - 9_999, ..ALL_LINES };
    assert_eq!(run(&mut Keyed::<Model>::new(), Polls::Few), fewer);
}

#[test]
#[ignore = "60 million polls"]
fn the_core_answers_every_poll() {
    assert_eq!(run(&mut Keyed::<Core>::new(), Polls::All), ALL_LINES);
}

#[test]
fn the_core_answers_the_documents() {
    assert_eq!(run_documents(&mut Keyed::<Core>::new()), (44, 321));
}

#[test]
fn the_model_answers_the_documents() {
    assert_eq!(run_documents(&mut Keyed::<Model>::new()), (44, 321));
}
