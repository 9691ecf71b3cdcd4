//! Memory for the table: large pages where the system grants them, and prefetching.
//!
//! Both are hints to the machine, both need `unsafe`, and both are here because they were
//! measured: see docs/concepts/speed.md.

use super::table::Line;

/// So many empty lines.
pub(crate) fn filled(lines: usize) -> Box<[Line]> {
    (0..lines).map(|_| Line::empty()).collect()
}

/// Asks for a cache line that will be needed soon.
#[inline]
#[allow(unsafe_code)]
pub(crate) fn prefetch<T>(line: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: prefetching is a hint; it cannot fault and changes nothing that can be observed.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}
