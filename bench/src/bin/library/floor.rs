//! The floor: the least work that a keyed limiter can do on this machine.
//!
//! A power of two of 16-byte slots, each a hash and an instant (the "theoretical arrival time" of
//! GCRA), probed linearly from the slot of a fast, unkeyed hash. It answers yes or no and
//! nothing else: no remaining, no waits, no growth, no eviction, no defence against chosen keys.
//! It uses large pages if the system grants them.
//!
//! `unsafe`: asking for large pages, and prefetching.

#![allow(unsafe_code)]

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::FixedState;

/// Keys that are hashed and prefetched before the first of them is decided.
const AHEAD: usize = 16;

/// The bare table.
pub(crate) struct FloorLimiter {
    slots: Box<[FloorSlot]>,
    /// Microseconds per unit.
    interval: u64,
    /// Maximum distance of the instant from now, in microseconds: the burst.
    tolerance: u64,
}

struct FloorSlot {
    /// The hash of the key; 0 means an empty slot.
    hash: AtomicU64,
    arrival: AtomicU64,
}

impl FloorLimiter {
    /// Makes a table that is at most three quarters full with `keys` keys.
    pub(crate) fn new(keys: u64, interval: u64, burst: u64) -> FloorLimiter {
        let count = (keys as usize * 4 / 3).next_power_of_two().max(16);
        let mut slots = Vec::with_capacity(count);
        ask_for_large_pages(&slots);
        slots.extend((0..count).map(|_| FloorSlot { hash: 0.into(), arrival: 0.into() }));
        FloorLimiter { slots: slots.into(), interval, tolerance: interval * burst }
    }

    /// Takes one unit. Returns true if `key` may have it.
    #[inline]
    pub(crate) fn check(&self, key: &str, now: u64) -> bool {
        self.decide(hash(key), now)
    }

    /// Decides many keys at one instant and passes each result to `answer`.
    pub(crate) fn check_batch(&self, keys: &[&str], now: u64, mut answer: impl FnMut(bool)) {
        for keys in keys.chunks(AHEAD) {
            let mut hashes = [0; AHEAD];
            for (key, hashed) in keys.iter().zip(&mut hashes) {
                *hashed = hash(key);
                prefetch(&self.slots[*hashed as usize & (self.slots.len() - 1)]);
            }
            hashes[..keys.len()].iter().for_each(|&hash| answer(self.decide(hash, now)));
        }
    }

    #[inline]
    fn decide(&self, hash: u64, now: u64) -> bool {
        let arrival = &self.find(hash).arrival;
        let mut seen = arrival.load(Ordering::Relaxed);
        loop {
            let next = seen.max(now) + self.interval;
            if next > now + self.tolerance {
                return false;
            }
            match arrival.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => seen = newer,
            }
        }
    }

    #[inline]
    fn find(&self, hash: u64) -> &FloorSlot {
        let mut index = hash as usize;
        loop {
            let slot = &self.slots[index & (self.slots.len() - 1)];
            match slot.hash.load(Ordering::Relaxed) {
                found if found == hash => return slot,
                0 => {
                    let claim =
                        slot.hash.compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed);
                    if claim.is_ok() || claim == Err(hash) {
                        return slot;
                    }
                }
                _ => {}
            }
            index = index.wrapping_add(1);
        }
    }
}

#[inline]
fn hash(key: &str) -> u64 {
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(key.as_bytes());
    hasher.finish().max(1)
}

fn ask_for_large_pages(slots: &Vec<FloorSlot>) {
    const LARGE: usize = 2 << 20;
    let start = (slots.as_ptr() as usize).next_multiple_of(LARGE);
    let end = (slots.as_ptr() as usize + slots.capacity() * size_of::<FloorSlot>()) / LARGE * LARGE;
    if start < end {
        // SAFETY: the range lies within memory that the vector owns; this is advice about pages
        // and changes no content.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_HUGEPAGE) };
    }
}

#[inline]
fn prefetch<T>(line: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching is a hint; it cannot fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
