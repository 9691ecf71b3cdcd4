//! The command `tollgate`; see the library beside it.

use std::process::ExitCode;

/// Allocator that is faster than the system's at many small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate_cli::main()
}
