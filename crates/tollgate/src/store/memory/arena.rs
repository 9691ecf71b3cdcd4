//! Storage for the entries of logs: blocks of a few sizes in pages under one byte cap.
//!
//! A log with one entry needs no block, its slot holds it. With the second instant it gets a block
//! of 4 entries, then 16, and so on to 1,024. When the cap is reached, a log stays as it is and
//! merges instants instead of growing: it may refuse a little more, it never admits more and never
//! fails. Blocks are written only under the lock of the slot that owns them. Readers check that
//! slot's version afterwards, so words are atomics and everything here is safe code.
//!
//! A block belongs to exactly one record, or to the [`ArenaLog`] that allocated it and has not been
//! written to a record yet. A log that is dropped gives back the block that it allocated; one that
//! is closed gives back the block that its record no longer names.
//!
//! A page holds blocks of one size. Once none of them is in use, the page can serve any size. New
//! blocks come from the first page that has a free one, so that later pages become free.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock};

use crate::algorithm::sliding_window_log::{
    MAX_ENTRIES, SlidingLogEntries, SlidingLogEntry, SlidingLogState, last_instant, tick,
};
use crate::limit::Limit;

use super::page_set::PageSet;
use super::slot::SlotRecord;

/// Entries per block of each size; powers of two, so that a ring index is a mask.
const SIZES: [usize; 5] = [4, 16, 64, 256, MAX_ENTRIES];
/// Words of a page: 256 KiB.
const PAGE_WORDS: usize = 32 * 1_024;
/// Marks a record whose entries are in a block.
const SPILLED: u64 = 1 << 52;

/// All blocks of a store.
#[derive(Debug)]
pub(crate) struct Arena {
    /// Pages, made when first needed and kept from then on, because readers without a lock may read
    /// them at any time. Their number is the cap.
    pages: Box<[OnceLock<ArenaPage>]>,
    free_blocks: Mutex<FreeBlocks>,
    /// True if a log could not grow.
    growth_failed: AtomicBool,
}

#[derive(Debug)]
struct ArenaPage {
    /// The size of its blocks, as an index of [`SIZES`]. Changes only while no block is in use.
    size: AtomicUsize,
    words: Box<[AtomicU64]>,
}

/// Bookkeeping of free blocks.
#[derive(Debug)]
struct FreeBlocks {
    /// One ledger for each page made. Bound: the number of pages.
    ledgers: Vec<PageLedger>,
    /// Pages of each size that have both used and free blocks.
    open: [PageSet; SIZES.len()],
    /// Pages without a block in use.
    unused: PageSet,
    /// All other pages made.
    pages_in_use: usize,
}

/// The free blocks of a page.
#[derive(Debug, Default)]
struct PageLedger {
    size: usize,
    in_use: usize,
    /// Index of the first block that has not been used since the page got its size.
    untouched: usize,
    /// Blocks that were given back. Bound: the blocks of a page, 2 bytes each.
    returned: Vec<u16>,
}

/// Identifies a block by page and index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockHandle(u64);

impl BlockHandle {
    fn new(page: usize, index: u16) -> BlockHandle {
        BlockHandle((page as u64) << 16 | u64::from(index))
    }
    fn page(self) -> usize {
        (self.0 >> 16) as usize
    }
    fn index(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

/// Words of a block: the running sum before the oldest entry, then pairs of instant and sum.
const fn block_words(size: usize) -> usize {
    1 + 2 * SIZES[size]
}

/// Number of blocks of a size per page: 3,640 of the smallest.
const fn blocks_per_page(size: usize) -> usize {
    PAGE_WORDS / block_words(size)
}

impl PageLedger {
    fn take(&mut self) -> u16 {
        self.in_use += 1;
        self.returned.pop().unwrap_or_else(|| {
            self.untouched += 1;
            (self.untouched - 1) as u16
        })
    }

    fn give_back(&mut self, index: u16) {
        debug_assert!(usize::from(index) < self.untouched && !self.returned.contains(&index));
        self.in_use -= 1;
        self.returned.push(index);
        if self.in_use == 0 {
            self.restart(self.size);
        }
    }

    fn restart(&mut self, size: usize) {
        self.returned.clear();
        self.returned.reserve(blocks_per_page(size));
        (self.size, self.untouched) = (size, 0);
    }

    fn is_full(&self) -> bool {
        self.in_use == blocks_per_page(self.size)
    }
}

impl Arena {
    pub(crate) fn new(max_bytes: usize) -> Arena {
        let pages = max_bytes / (PAGE_WORDS * 8);
        let books = FreeBlocks {
            ledgers: Vec::new(),
            open: [(); SIZES.len()].map(|()| PageSet::new(pages)),
            unused: PageSet::new(pages),
            pages_in_use: 0,
        };
        Arena {
            pages: (0..pages).map(|_| OnceLock::new()).collect(),
            free_blocks: Mutex::new(books),
            growth_failed: AtomicBool::new(false),
        }
    }

    /// Bytes of the pages that have a block in use.
    pub(crate) fn bytes(&self) -> usize {
        self.free_blocks().pages_in_use * PAGE_WORDS * 8
    }

    /// Returns true if a log could not grow since the last call.
    #[inline]
    pub(crate) fn take_growth_failed(&self) -> bool {
        self.growth_failed.load(Ordering::Relaxed)
            && self.growth_failed.swap(false, Ordering::Relaxed)
    }

    fn free_blocks(&self) -> MutexGuard<'_, FreeBlocks> {
        self.free_blocks.lock().unwrap_or_else(|poison| poison.into_inner())
    }

    /// Allocates a block of a size. Returns `None`, and notes that a log could not grow, if no page
    /// has a free block and the cap is reached.
    fn allocate(&self, size: usize) -> Option<BlockHandle> {
        let mut books = self.free_blocks();
        // A reader that still reads this block for its previous slot must see that slot's lock if
        // it sees one of our stores, including the page's new size. The fence of our own slot's
        // lock came before we had the block.
        fence(Ordering::Release);
        let page = books.open[size].first().or_else(|| self.open_page(&mut books, size));
        let Some(page) = page else {
            self.growth_failed.store(true, Ordering::Relaxed);
            return None;
        };
        let ledger = &mut books.ledgers[page];
        let index = ledger.take();
        if ledger.is_full() {
            books.open[size].remove(page);
        }
        Some(BlockHandle::new(page, index))
    }

    /// Assigns an unused page, or a new one, to blocks of a size.
    fn open_page(&self, books: &mut FreeBlocks, size: usize) -> Option<usize> {
        let page = books.unused.first().or_else(|| self.make_page(books))?;
        books.unused.remove(page);
        books.ledgers[page].restart(size);
        self.pages[page].get()?.size.store(size, Ordering::Relaxed);
        books.open[size].insert(page);
        books.pages_in_use += 1;
        Some(page)
    }

    fn make_page(&self, books: &mut FreeBlocks) -> Option<usize> {
        let page = books.ledgers.len();
        self.pages.get(page)?.get_or_init(|| ArenaPage {
            size: AtomicUsize::new(0),
            words: (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect(),
        });
        books.ledgers.push(PageLedger::default());
        Some(page)
    }

    fn release(&self, handle: BlockHandle) {
        let mut books = self.free_blocks();
        let ledger = &mut books.ledgers[handle.page()];
        ledger.give_back(handle.index());
        let (size, is_unused) = (ledger.size, ledger.in_use == 0);
        match is_unused {
            true => {
                books.open[size].remove(handle.page());
                books.unused.insert(handle.page());
                books.pages_in_use -= 1;
            }
            false => books.open[size].insert(handle.page()),
        }
    }

    /// A block and its size. A handle that was read without a lock may name no block, or a block of
    /// a page whose size has changed since.
    fn block(&self, handle: BlockHandle) -> Option<LogBlock<'_>> {
        let page = self.pages.get(handle.page())?.get()?;
        let size = page.size.load(Ordering::Relaxed);
        let length = block_words(size);
        let words = page.words.get(usize::from(handle.index()) * length..)?.get(..length)?;
        Some(LogBlock { handle, size, words })
    }

    /// The log that a record describes; `None` if the record was overwritten while being read.
    pub(crate) fn open(
        &self,
        limit: &Limit,
        record: SlotRecord,
    ) -> Option<SlidingLogState<ArenaLog<'_>>> {
        if record.b & SPILLED == 0 {
            let only = SlidingLogEntry { at: tick(limit, record.mark), sum: record.a };
            let len = usize::from(record.a > 0);
            let entries = ArenaLog { arena: self, only, head: 0, len, block: None, named: None };
            return Some(SlidingLogState { mark: record.mark, base: 0, entries });
        }
        let block = self.block(BlockHandle(record.a))?;
        let (head, len) = ((record.b >> 11 & 0x7ff) as usize, (record.b & 0x7ff) as usize);
        if head >= SIZES[block.size] || len > SIZES[block.size] {
            return None;
        }
        let base = block.words[0].load(Ordering::Relaxed);
        let (only, named) = (SlidingLogEntry::default(), Some(block.handle));
        let entries = ArenaLog { arena: self, only, head, len, block: Some(block), named };
        Some(SlidingLogState { mark: record.mark, base, entries })
    }

    /// Writes what does not fit in the slot to the log's block, and returns the record. From now on
    /// the record owns that block and no other. Call under the slot's lock.
    pub(crate) fn close(
        &self,
        limit: &Limit,
        tag: u32,
        state: SlidingLogState<ArenaLog<'_>>,
    ) -> SlotRecord {
        let SlidingLogState { mark, base, entries: mut log } = state;
        let only = (log.len == 1).then(|| log.get(0));
        let fits_in_slot = only.map_or(log.len == 0, |only| only.at == tick(limit, mark));
        let kept = if fits_in_slot { None } else { log.keep_block() };
        if let Some(block) = kept {
            block.words[0].store(base, Ordering::Relaxed);
            let b = SPILLED | (log.head as u64) << 11 | log.len as u64;
            return SlotRecord { mark, a: block.handle.0, b, tag };
        }
        log.give_back_all();
        let count = only.map_or(0, |only| only.sum.wrapping_sub(base));
        // An entry in the slot is as old as the mark, and only a charge moves that.
        let mark = only.map_or(mark, |only| mark.min(last_instant(limit, only.at)));
        SlotRecord { mark, a: count, b: 0, tag }
    }

    /// Gives back the block of a record that is about to be dropped. Call under the slot's lock.
    pub(crate) fn discard(&self, record: SlotRecord) {
        if record.b & SPILLED != 0 {
            self.release(BlockHandle(record.a));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct LogBlock<'a> {
    handle: BlockHandle,
    size: usize,
    words: &'a [AtomicU64],
}

/// The entries of one log: a ring in a block, or the only entry of a slot.
#[derive(Debug)]
pub(crate) struct ArenaLog<'a> {
    arena: &'a Arena,
    only: SlidingLogEntry,
    head: usize,
    len: usize,
    block: Option<LogBlock<'a>>,
    /// The block that the record of this log names. Any other block belongs to the log itself.
    named: Option<BlockHandle>,
}

impl Drop for ArenaLog<'_> {
    /// Gives back a block that no record names.
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.give_back(block);
        }
    }
}

impl<'a> ArenaLog<'a> {
    /// Makes room for this many entries at once, if possible.
    pub(crate) fn reserve(&mut self, entries: usize) {
        let size = SIZES.iter().position(|size| entries <= *size).unwrap_or(SIZES.len() - 1);
        let is_smaller = self.block.is_none_or(|block| block.size < size);
        if entries > 1 && is_smaller {
            self.grow(size);
        }
    }

    /// Moves the entries to a block of this size. Returns false if there is none.
    fn grow(&mut self, size: usize) -> bool {
        let Some(handle) = self.arena.allocate(size) else { return false };
        let block = self.arena.block(handle).expect("just allocated");
        for index in 0..self.len {
            let SlidingLogEntry { at, sum } = self.get(index);
            block.words[1 + 2 * index].store(at, Ordering::Relaxed);
            block.words[2 + 2 * index].store(sum, Ordering::Relaxed);
        }
        self.head = 0;
        if let Some(outgrown) = self.block.replace(block) {
            self.give_back(outgrown);
        }
        true
    }

    /// Gives back a block that is no longer needed, unless the record names it.
    fn give_back(&self, block: LogBlock<'_>) {
        if self.named != Some(block.handle) {
            self.arena.release(block.handle);
        }
    }

    /// Gives back the block, and the one that the record names: a new record will name none.
    fn give_back_all(&mut self) {
        let own = self.block.take().map(|block| block.handle);
        let named = self.named.take();
        for handle in own.into_iter().chain(named.filter(|named| own != Some(*named))) {
            self.arena.release(handle);
        }
    }

    /// Hands the block over to a new record, and gives back the one that the old record names.
    fn keep_block(&mut self) -> Option<LogBlock<'a>> {
        let block = self.block.take()?;
        if let Some(named) = self.named.take().filter(|named| *named != block.handle) {
            self.arena.release(named);
        }
        Some(block)
    }

    fn word(&self, block: &LogBlock<'_>, index: usize) -> usize {
        1 + 2 * ((self.head + index) & (SIZES[block.size] - 1))
    }
}

impl SlidingLogEntries for ArenaLog<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> SlidingLogEntry {
        let Some(block) = &self.block else { return self.only };
        let word = self.word(block, index);
        let load = |word: usize| block.words[word].load(Ordering::Relaxed);
        SlidingLogEntry { at: load(word), sum: load(word + 1) }
    }

    fn set(&mut self, index: usize, entry: SlidingLogEntry) {
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
        next < SIZES.len() && self.grow(next)
    }

    fn push(&mut self, entry: SlidingLogEntry) {
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

#[cfg(test)]
impl Arena {
    /// Checks that exactly the blocks of these records are in use, each by one of them.
    pub(crate) fn assert_only(&self, records: impl Iterator<Item = SlotRecord>) {
        let spilled = records.filter(|record| record.b & SPILLED != 0);
        let mut named: Vec<u64> = spilled.map(|record| record.a).collect();
        named.sort_unstable();
        let books = self.free_blocks();
        for (page, ledger) in books.ledgers.iter().enumerate() {
            let free = |index: &usize| ledger.returned.contains(&(*index as u16));
            let in_use = (0..ledger.untouched).filter(|index| !free(index));
            let in_use: Vec<u64> =
                in_use.map(|index| BlockHandle::new(page, index as u16).0).collect();
            let here = named.iter().copied().filter(|name| BlockHandle(*name).page() == page);
            assert_eq!(here.collect::<Vec<u64>>(), in_use, "page {page}");
            assert_eq!(
                (in_use.len(), books.unused.contains(page)),
                (ledger.in_use, in_use.is_empty())
            );
        }
        assert!(named.iter().all(|name| BlockHandle(*name).page() < books.ledgers.len()));
    }
}
