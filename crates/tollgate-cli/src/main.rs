//! The command `tollgate`; see the library beside it.

use std::process::ExitCode;

/// Faster than the system's allocator at many small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate_cli::main()
}
