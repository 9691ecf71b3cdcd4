//! The server's instructions per request stay below their ceilings.

use std::path::Path;

use testkit::instructions::{ceilings, count_server_paths};

#[test]
#[cfg_attr(not(target_arch = "x86_64"), ignore = "the ceilings are those of x86-64")]
fn instructions_of_the_server_stay_below_their_ceilings() {
    ceilings::check(&count_server_paths(Path::new(env!("CARGO_BIN_EXE_tollgate"))));
}
