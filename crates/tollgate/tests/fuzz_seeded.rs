//! The bodies of the fuzz targets of this crate on seeded random bytes, and on every input that once
//! failed.

use crate::bodies;
use crate::seeded::seeded;

const INPUTS: u64 = 200_000;

#[test]
fn algorithms_keep_their_promises_with_any_numbers() {
    seeded("algorithms", bodies::algorithms, INPUTS, 160);
}

#[test]
fn the_table_answers_like_a_map() {
    seeded("table", bodies::table, INPUTS, 120);
}

#[test]
fn notation_reads_back() {
    seeded("notation", bodies::notation, INPUTS, 40);
}
