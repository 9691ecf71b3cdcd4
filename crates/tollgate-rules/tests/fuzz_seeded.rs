//! The bodies of the fuzz targets of this crate on seeded random bytes, and on every input that once
//! failed.

use crate::bodies;
use crate::seeded::seeded;

#[test]
fn no_spelling_of_a_path_escapes_its_rules() {
    seeded("paths", bodies::paths, 30_000, 300);
}

#[test]
fn any_rules_file_is_answered_and_what_compiles_decides() {
    seeded("rules_file", bodies::rules_file, 5_000, 300);
}

#[test]
fn only_trusted_peers_say_who_is_calling() {
    seeded("identity", bodies::identity, 300_000, 200);
}

#[test]
fn the_cost_in_a_body_does_not_depend_on_how_it_is_split() {
    seeded("response_body", bodies::response_body, 100_000, 300);
}
