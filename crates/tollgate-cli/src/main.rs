//! The command `tollgate`; see the library beside it.

use std::process::ExitCode;

/// Answers are small and made by the million; the system's allocator is slower at that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tollgate_cli::main()
}
