//! Where the entries of logs live: blocks of a few sizes in pages under one byte cap.
//!
//! A log with one entry needs no block, its slot holds it. With the second instant it gets a block
//! of 4 entries, then 16, and so on to 1,024. When the cap is reached a log stays as it is and
//! merges instants instead of growing: it may refuse a little more, it never admits more and never
//! fails. Blocks are written only under the lock of the slot that owns them; readers check that
//! slot's version afterwards, so words are atomics and everything here is safe code.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, OnceLock};

use crate::algorithm::sliding_window_log::{
    Entries, Entry, MAX_ENTRIES, State, last_instant, tick,
};
use crate::limit::Limit;

use super::slot::Record;

/// Entries per block of each size; powers of two, so that a ring index is a mask.
const SIZES: [usize; 5] = [4, 16, 64, 256, MAX_ENTRIES];
/// 256 KiB.
const PAGE_WORDS: usize = 32 * 1_024;
/// Marks a record whose entries are in a block.
const SPILLED: u64 = 1 << 52;

/// All blocks of a store.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Each page holds blocks of one size and is made when needed; their number is the cap.
    pages: Box<[OnceLock<Page>]>,
    pages_used: AtomicUsize,
    /// Free blocks of each size; at most as many as the pages hold.
    free: [Mutex<Vec<Handle>>; SIZES.len()],
}

#[derive(Debug)]
struct Page {
    size: usize,
    words: Box<[AtomicU64]>,
}

/// Names a block: page and index in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Handle(u64);

impl Handle {
    fn new(page: usize, index: usize) -> Handle {
        Handle((page as u64) << 16 | index as u64)
    }
    fn page(self) -> usize {
        (self.0 >> 16) as usize
    }
    fn index(self) -> usize {
        (self.0 & 0xffff) as usize
    }
}

/// The running sum before the oldest entry, then pairs of instant and sum.
const fn block_words(size: usize) -> usize {
    1 + 2 * SIZES[size]
}

impl Arena {
    pub(crate) fn new(max_bytes: usize) -> Arena {
        let pages = max_bytes / (PAGE_WORDS * 8);
        Arena {
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
            pages_used: AtomicUsize::new(0),
            free: [const { Mutex::new(Vec::new()) }; SIZES.len()],
        }
    }

    /// Bytes taken by pages so far.
    pub(crate) fn bytes(&self) -> usize {
        self.pages_used.load(Ordering::Relaxed).min(self.pages.len()) * PAGE_WORDS * 8
    }

    fn allocate(&self, size: usize) -> Option<Handle> {
        let mut free = self.free[size].lock().unwrap_or_else(|poison| poison.into_inner());
        if free.is_empty() {
            let page = self.pages_used.fetch_add(1, Ordering::Relaxed);
            if page >= self.pages.len() {
                self.pages_used.store(self.pages.len(), Ordering::Relaxed);
                return None;
            }
            let words = (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect();
            self.pages[page].get_or_init(|| Page { size, words });
            let blocks = PAGE_WORDS / block_words(size);
            free.extend((0..blocks).rev().map(|index| Handle::new(page, index)));
        }
        // Whoever still reads this block for the slot that gave it back must see that slot's lock if
        // it sees a store of ours. The fence of our own slot's lock came before we had the block.
        fence(Ordering::Release);
        free.pop()
    }

    fn release(&self, handle: Handle) {
        let Some((size, _)) = self.block(handle) else { return };
        let mut free = self.free[size].lock().unwrap_or_else(|poison| poison.into_inner());
        free.push(handle);
    }

    /// A block and its size. A handle read without a lock may name nothing.
    fn block(&self, handle: Handle) -> Option<(usize, &[AtomicU64])> {
        let page = self.pages.get(handle.page())?.get()?;
        let length = block_words(page.size);
        let words = page.words.get(handle.index() * length..)?.get(..length)?;
        Some((page.size, words))
    }

    /// The log that a record describes. `None`: the record was overwritten while being read.
    pub(crate) fn open(&self, limit: &Limit, record: Record) -> Option<State<Log<'_>>> {
        if record.b & SPILLED == 0 {
            let only = Entry { at: tick(limit, record.mark), sum: record.a };
            let entries =
                Log { arena: self, only, head: 0, len: usize::from(record.a > 0), block: None };
            return Some(State { mark: record.mark, base: 0, entries });
        }
        let handle = Handle(record.a);
        let (size, words) = self.block(handle)?;
        let (head, len) = ((record.b >> 11 & 0x7ff) as usize, (record.b & 0x7ff) as usize);
        if head >= SIZES[size] || len > SIZES[size] {
            return None;
        }
        let base = words[0].load(Ordering::Relaxed);
        let block = Some(Block { handle, size, words });
        let entries = Log { arena: self, only: Entry::default(), head, len, block };
        Some(State { mark: record.mark, base, entries })
    }

    /// The record that describes a log, after writing what is not in it. Call under the slot's lock.
    pub(crate) fn close(&self, limit: &Limit, tag: u32, state: State<Log<'_>>) -> Record {
        let State { mark, base, entries: log } = state;
        let only = (log.len == 1).then(|| log.get(0));
        let fits_in_slot = only.map_or(log.len == 0, |only| only.at == tick(limit, mark));
        match log.block {
            Some(block) if !fits_in_slot => {
                block.words[0].store(base, Ordering::Relaxed);
                let b = SPILLED | (log.head as u64) << 11 | log.len as u64;
                Record { mark, a: block.handle.0, b, tag }
            }
            block => {
                if let Some(block) = block {
                    self.release(block.handle);
                }
                let count = only.map_or(0, |only| only.sum.wrapping_sub(base));
                // An entry in the slot is as old as the mark, and only a charge moves that.
                let mark = only.map_or(mark, |only| mark.min(last_instant(limit, only.at)));
                Record { mark, a: count, b: 0, tag }
            }
        }
    }

    /// Gives back the block of a record that is about to be forgotten. Call under the slot's lock.
    pub(crate) fn discard(&self, record: Record) {
        if record.b & SPILLED != 0 {
            self.release(Handle(record.a));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Block<'a> {
    handle: Handle,
    size: usize,
    words: &'a [AtomicU64],
}

/// The entries of one log: a ring in a block, or the only entry of a slot.
#[derive(Debug)]
pub(crate) struct Log<'a> {
    arena: &'a Arena,
    only: Entry,
    head: usize,
    len: usize,
    block: Option<Block<'a>>,
}

impl Log<'_> {
    fn word(&self, block: &Block<'_>, index: usize) -> usize {
        1 + 2 * ((self.head + index) & (SIZES[block.size] - 1))
    }
}

impl Entries for Log<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Entry {
        let Some(block) = &self.block else { return self.only };
        let word = self.word(block, index);
        let load = |word: usize| block.words[word].load(Ordering::Relaxed);
        Entry { at: load(word), sum: load(word + 1) }
    }

    fn set(&mut self, index: usize, entry: Entry) {
        let Some(block) = &self.block else {
            self.only = entry;
            return;
        };
        let word = self.word(block, index);
        block.words[word].store(entry.at, Ordering::Relaxed);
        block.words[word + 1].store(entry.sum, Ordering::Relaxed);
    }

    fn make_room(&mut self) -> bool {
        let next = match &self.block {
            None if self.len == 0 => return true,
            None => 0,
            Some(block) if self.len < SIZES[block.size] => return true,
            Some(block) => block.size + 1,
        };
        if next == SIZES.len() {
            return false;
        }
        let Some(handle) = self.arena.allocate(next) else { return false };
        let (size, words) = self.arena.block(handle).expect("just allocated");
        let grown = Log {
            arena: self.arena,
            only: self.only,
            head: 0,
            len: self.len,
            block: Some(Block { handle, size, words }),
        };
        let old = std::mem::replace(self, grown);
        for index in 0..old.len {
            self.set(index, old.get(index));
        }
        if let Some(block) = old.block {
            self.arena.release(block.handle);
        }
        true
    }

    fn push(&mut self, entry: Entry) {
        self.len += 1;
        self.set(self.len - 1, entry);
    }

    fn remove(&mut self, index: usize) {
        for later in index + 1..self.len {
            self.set(later - 1, self.get(later));
        }
        self.len -= 1;
    }

    fn remove_oldest(&mut self, count: usize) {
        let mask = self.block.as_ref().map_or(0, |block| SIZES[block.size] - 1);
        self.head = (self.head + count) & mask;
        self.len -= count;
    }
}
