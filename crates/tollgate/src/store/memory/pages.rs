//! Memory for the table: large pages where the system grants them, and prefetching.
//!
//! Both are hints to the machine, both need `unsafe`, and both are here because of measurements:
//! see docs/concepts/speed.md.

use super::table::CacheLine;

/// Allocates this many empty lines.
pub(crate) fn empty_lines(lines: usize) -> Box<[CacheLine]> {
    let mut memory = Vec::with_capacity(lines);
    advise_large_pages(&mut memory);
    memory.extend((0..lines).map(|_| CacheLine::empty()));
    memory.into_boxed_slice()
}

/// Asks for pages of 2 MiB before the memory is touched, which makes finding a key's line one
/// page-table lookup cheaper. On systems that do not know or do not follow the advice, nothing else
/// changes.
#[cfg(all(target_os = "linux", not(miri)))]
#[allow(unsafe_code)]
fn advise_large_pages(memory: &mut Vec<CacheLine>) {
    const LARGE: usize = 2 << 20;
    let spare = memory.spare_capacity_mut();
    let bytes = size_of_val(spare);
    let start = spare.as_mut_ptr().cast::<u8>();
    let skip = start.align_offset(LARGE);
    if skip >= bytes {
        return;
    }
    let whole = (bytes - skip) / LARGE * LARGE;
    // SAFETY: the range lies inside memory that belongs to us, and the advice changes how it is
    // backed, not its content. A failure may be ignored.
    unsafe {
        libc::madvise(start.add(skip).cast(), whole, libc::MADV_HUGEPAGE);
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn advise_large_pages(_memory: &mut Vec<CacheLine>) {}

/// Prefetches a cache line that will be needed soon.
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
