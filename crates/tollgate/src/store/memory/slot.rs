//! One slot of the table: a key's hash, its state, and the lock that guards both, in 32 bytes.
//!
//! ```text
//!   key    64-bit secret hash of limit and key; 0: empty
//!   head   mark (53 bits) │ version (10 bits) │ locked (1 bit)
//!   a      state (53 bits) │ low bits of the numbers' tag (11 bits)
//!   b      state (53 bits) │ rest of the tag (7 bits) │ units of a bucket's excess (4 bits)
//! ```
//!
//! It is a sequence lock. Readers copy the words and read `head` again: if it is unchanged and
//! unlocked, the copy is consistent. So a refusal, the usual answer for a key under attack, writes
//! nothing that another core has to wait for. A charge locks with one compare-and-swap, compares
//! the words with those it judged, and unlocks by storing the new head.
//!
//! Ten bits of version are enough because the mark is in the same word: for a torn read to go
//! unnoticed, a slot would have to be written a multiple of 1,024 times within one microsecond and
//! a few instructions. Only a refusal relies on such a read; a charge compares again under the
//! lock.

use crate::algorithm::token_bucket::ExcessUnits;
use crate::sync::{AtomicU64, Ordering, Spin, fence};

const LOCKED: u64 = 1;
const VERSION: u64 = 0b111_1111_1110;
const ONE_VERSION: u64 = 0b10;
/// Bits below each 53-bit number.
const LOW_BITS: u32 = 11;
const LOW_MASK: u64 = (1 << LOW_BITS) - 1;

/// A slot of the table.
#[repr(align(32))]
#[derive(Debug)]
pub(crate) struct Slot {
    key: AtomicU64,
    head: AtomicU64,
    a: AtomicU64,
    b: AtomicU64,
}

/// Bits of the tag of a limit's numbers; those above hold the number of the excess's units.
pub(crate) const TAG_BITS: u32 = 2 * LOW_BITS - ExcessUnits::BITS;
const TAG_MASK: u32 = (1 << TAG_BITS) - 1;

/// The content of a slot beside its key: three 53-bit numbers, and the tag of the limit's numbers
/// at the time of writing. In the tag of a bucket with excess further bits are set, so that it differs from
/// the limit's own tag and the hot path leaves it alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotRecord {
    pub(crate) mark: u64,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) tag: u32,
}

impl SlotRecord {
    #[inline(always)]
    pub(crate) fn of_numbers([mark, a, b]: [u64; 3], tag: u32) -> SlotRecord {
        SlotRecord { mark, a, b, tag }
    }

    /// The record of a bucket with excess.
    pub(crate) fn with_excess(numbers: [u64; 3], units: ExcessUnits, tag: u32) -> SlotRecord {
        SlotRecord::of_numbers(numbers, SlotRecord::tag_with_excess(tag, units))
    }

    /// The tag of a record with excess.
    pub(crate) fn tag_with_excess(tag: u32, units: ExcessUnits) -> u32 {
        tag | units.number() << TAG_BITS
    }

    /// The tag of the limit's numbers.
    #[inline(always)]
    pub(crate) fn numbers_tag(self) -> u32 {
        self.tag & TAG_MASK
    }

    /// The units of debt and excess; `None` if there is no excess.
    #[inline]
    pub(crate) fn excess_units(self) -> Option<ExcessUnits> {
        ExcessUnits::of_number(self.tag >> TAG_BITS)
    }

    #[inline(always)]
    pub(crate) fn numbers(self) -> [u64; 3] {
        [self.mark, self.a, self.b]
    }
}

/// A consistent copy of a slot's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotSnapshot {
    pub(crate) key: u64,
    head: u64,
    a: u64,
    b: u64,
}

impl SlotSnapshot {
    #[inline]
    pub(crate) fn record(&self) -> SlotRecord {
        SlotRecord {
            mark: self.head >> LOW_BITS,
            a: self.a >> LOW_BITS,
            b: self.b >> LOW_BITS,
            tag: (self.a & LOW_MASK) as u32 | ((self.b & LOW_MASK) as u32) << LOW_BITS,
        }
    }
}

impl Slot {
    pub(crate) fn empty() -> Slot {
        let [key, head, a, b] = [(); 4].map(|()| AtomicU64::new(0));
        Slot { key, head, a, b }
    }

    /// The key's hash at this moment, for searching. Read or lock the slot to be sure of it.
    #[inline]
    pub(crate) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    /// Reads all words at one moment.
    #[inline]
    pub(crate) fn read(&self) -> SlotSnapshot {
        let mut spin = Spin::default();
        loop {
            let head = self.head.load(Ordering::Acquire);
            let seen = SlotSnapshot {
                key: self.key.load(Ordering::Relaxed),
                head,
                a: self.a.load(Ordering::Relaxed),
                b: self.b.load(Ordering::Relaxed),
            };
            if head & LOCKED == 0 && self.is_unchanged(&seen) {
                return seen;
            }
            spin.pause();
        }
    }

    /// Returns true if the slot has not been written since `seen` was read. That also covers data
    /// elsewhere that was read by it, such as the entries of a log.
    #[inline]
    pub(crate) fn is_unchanged(&self, seen: &SlotSnapshot) -> bool {
        fence(Ordering::Acquire);
        self.head.load(Ordering::Relaxed) == seen.head
    }

    /// Locks the slot if its content is still `seen`.
    #[inline]
    pub(crate) fn lock_if_unchanged(&self, seen: &SlotSnapshot) -> Option<LockedSlot<'_>> {
        let locked = self.try_lock(seen.head)?;
        // The head may have wrapped around to the same value, so the words are compared.
        (locked.snapshot() == *seen).then_some(locked)
    }

    /// Locks the slot whatever its content is.
    pub(crate) fn lock(&self) -> LockedSlot<'_> {
        let mut spin = Spin::default();
        loop {
            let head = self.head.load(Ordering::Relaxed);
            if head & LOCKED == 0
                && let Some(locked) = self.try_lock(head)
            {
                return locked;
            }
            spin.pause();
        }
    }

    #[inline]
    fn try_lock(&self, head: u64) -> Option<LockedSlot<'_>> {
        self.head
            .compare_exchange(head, head | LOCKED, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        // A reader that sees one of the following stores must also see the lock.
        fence(Ordering::Release);
        Some(LockedSlot { slot: self, head })
    }
}

/// A locked slot, which no other thread writes; dropping it unlocks.
#[derive(Debug)]
pub(crate) struct LockedSlot<'a> {
    slot: &'a Slot,
    /// The head to unlock with: the old one unless something was written.
    head: u64,
}

impl LockedSlot<'_> {
    #[inline]
    pub(crate) fn snapshot(&self) -> SlotSnapshot {
        SlotSnapshot {
            key: self.slot.key.load(Ordering::Relaxed),
            head: self.head,
            a: self.slot.a.load(Ordering::Relaxed),
            b: self.slot.b.load(Ordering::Relaxed),
        }
    }

    /// Writes the state.
    #[inline]
    pub(crate) fn write(&mut self, record: SlotRecord) {
        let tag = u64::from(record.tag);
        let next = self.head.wrapping_add(ONE_VERSION) & VERSION;
        self.slot.a.store(record.a << LOW_BITS | tag & LOW_MASK, Ordering::Relaxed);
        self.slot.b.store(record.b << LOW_BITS | tag >> LOW_BITS, Ordering::Relaxed);
        self.head = record.mark << LOW_BITS | next;
    }

    /// Writes another key with its state; 0 empties the slot.
    pub(crate) fn replace(&mut self, key: u64, record: SlotRecord) {
        self.slot.key.store(key, Ordering::Relaxed);
        self.write(record);
    }
}

impl Drop for LockedSlot<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.head.store(self.head, Ordering::Release);
    }
}
