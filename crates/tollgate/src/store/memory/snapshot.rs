//! Snapshots: the store in a file, so that a daily quota survives a restart.
//!
//! The one module of this crate that touches files, and only when called. A snapshot holds the
//! secret of the key hashes (but no keys), the limits with their numbers, and every state that
//! differs from a fresh one, with Unix times. It is written beside the old one, synced and renamed
//! over it, so that a crash leaves either the old or the new one. A checksum at the end reveals
//! damage. Only the owner may read it.
//!
//! ```text
//!   magic, version │ secret │ limits │ keys │ overflow │ blocks │ checksum
//! ```
//!
//! Calendars are stored by name. Their states know when their windows end, and the first limit with
//! a calendar of the same name brings the calendar back.
//!
//! There are two formats. The later one has buckets with excess; a snapshot without any is written in the
//! earlier one, so that an older program can read it.
//!
//! Decisions go on while it is written: each state is read at its own moment.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::sliding_window_log::{MAX_ENTRIES, SlidingLogEntries, SlidingLogEntry};
use crate::algorithm::token_bucket::{ExcessUnits, UsageUnit};
use crate::algorithm::{Algorithm, LimitStateKind, State, Strategy, sliding_window_log};
use crate::limit::calendar::RestoredCalendar;
use crate::limit::{Align, Calendar, CalendarUnit, Limit, OnChange, Precision};
use crate::time::{MAX_EXACT, Micros};

use super::numbers::BLOCK_TAG;
use super::secret::HashSecret;
use super::slot::SlotRecord;
use super::slot_state::{SlotLog, SlotState};
use super::table::{EvictionPolicy, EvictionScope, InsertResult, SlotTable, StateWorth};
use super::{MemoryStore, Ordering};

const MAGIC: &[u8; 8] = b"tollgate";
/// The format of a snapshot without excess.
const PLAIN_VERSION: u64 = 2;
/// The format of a snapshot in which some bucket has excess.
const EXCESS_VERSION: u64 = 3;
/// The bit of a state's tag above which the units of its excess are written; 0 if there is none.
const EXCESS_SHIFT: u32 = 32;

/// Result of restoring a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    /// States restored.
    pub keys: usize,
    /// States for which there was no room, because the store is smaller now.
    pub dropped: usize,
}

/// Error of writing or reading a snapshot.
#[derive(Debug)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The file could not be read or written.
    Io(io::Error),
    /// The file is not a snapshot.
    NotASnapshot,
    /// Another version of Tollgate wrote it.
    Version(u64),
    /// The file was cut off or damaged.
    Damaged(&'static str),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotError::Io(error) => write!(f, "the snapshot file: {error}"),
            SnapshotError::NotASnapshot => f.write_str(
                "this file is not a Tollgate snapshot: check the path, or remove the file to start fresh",
            ),
            SnapshotError::Version(found) => write!(
                f,
                "the snapshot has format {found}, this version reads formats {PLAIN_VERSION} and \
                 {EXCESS_VERSION}: use the version that wrote it, or remove the file to start fresh"
            ),
            SnapshotError::Damaged(what) => write!(
                f,
                "the snapshot is damaged ({what}): restore a copy, or remove the file to start fresh"
            ),
        }
    }
}

impl std::error::Error for SnapshotError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SnapshotError::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> SnapshotError {
        SnapshotError::Io(error)
    }
}

impl MemoryStore {
    /// Writes a snapshot to `path`, replacing an older one only when the new one is complete.
    pub fn save(&self, path: &Path, now: Micros) -> Result<(), SnapshotError> {
        let _one_at_a_time = self.snapshot_lock.lock().unwrap_or_else(|poison| poison.into_inner());
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".new");
        let fresh = path.with_file_name(name);
        let written = write_privately(&fresh, &self.to_bytes(now))
            .and_then(|()| fs::rename(&fresh, path).map(|()| sync_directory(path)));
        if written.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        Ok(written?)
    }

    /// Returns this store, which must still be empty, with the content of the snapshot at `path`.
    /// The snapshot's secret replaces its own.
    ///
    /// ```no_run
    /// # use tollgate::{Clock, Limiter, MemoryStore, SystemClock};
    /// let empty = MemoryStore::new(1_000_000);
    /// let (store, restored) = empty.load("quotas".as_ref(), SystemClock.now())?;
    /// println!("{} states are back", restored.keys);
    /// let limiter = Limiter::new(store, SystemClock);
    /// # Ok::<(), tollgate::store::memory::SnapshotError>(())
    /// ```
    pub fn load(
        self,
        path: &Path,
        now: Micros,
    ) -> Result<(MemoryStore, RestoreReport), SnapshotError> {
        self.restore(&fs::read(path)?, now)
    }

    /// Writes the snapshot to memory.
    pub fn to_bytes(&self, now: Micros) -> Vec<u8> {
        let (tables, limits) = self.tables_and_limits(now);
        let mut bytes = SnapshotWriter(MAGIC.to_vec());
        bytes.number(if tables.has_excess { EXCESS_VERSION } else { PLAIN_VERSION });
        for word in self.secret.words() {
            bytes.number(word);
        }
        bytes.number(limits.len() as u64);
        for (tag, limit) in &limits {
            bytes.number((*tag).into());
            bytes.limit(limit);
        }
        bytes.0.extend_from_slice(&tables.bytes.0);
        let sum = checksum(&bytes.0);
        bytes.number(sum);
        bytes.0
    }

    /// Writes the states first, then the limits, so that a limit that is registered meanwhile is
    /// listed. If a limit was dropped meanwhile together with its last state, starts again.
    fn tables_and_limits(&self, now: Micros) -> (SnapshotTables, HashMap<u32, Limit>) {
        loop {
            let mut tables = SnapshotTables::default();
            for table in [Some(&self.keys), self.overflow.get(), self.blocks.get()] {
                if let Some(table) = table {
                    self.write_table(table, &mut tables, now);
                }
                tables.bytes.number(0);
            }
            let limits: HashMap<u32, Limit> = self.numbers.all().into_iter().collect();
            if tables.tags.iter().all(|tag| *tag == BLOCK_TAG || limits.contains_key(tag)) {
                return (tables, limits);
            }
        }
    }

    fn write_table(&self, table: &SlotTable, tables: &mut SnapshotTables, now: Micros) {
        let policy = self.policy(now);
        for (slot, mut seen) in table.each() {
            let start = tables.bytes.0.len();
            // A log that is being charged is read again; any other state is complete.
            while seen.key != 0 {
                let worth = policy.worth(seen.record());
                self.write_state(seen.key, seen.record(), &mut tables.bytes);
                let whole = slot.is_unchanged(&seen);
                if whole && worth != StateWorth::Fresh {
                    tables.tags.insert(seen.record().numbers_tag());
                    tables.has_excess |= seen.record().excess_units().is_some();
                    break;
                }
                tables.bytes.0.truncate(start);
                if whole {
                    break;
                }
                seen = slot.read();
            }
        }
    }

    fn write_state(&self, key: u64, record: SlotRecord, bytes: &mut SnapshotWriter) {
        let log = self.numbers.with_limit(record.numbers_tag(), |limit| {
            let limit = limit.filter(|limit| limit.kind == LimitStateKind::Log)?;
            self.arena.open(limit, record)
        });
        bytes.number(key);
        let excess = record.excess_units().map_or(0, ExcessUnits::number);
        bytes.number(u64::from(record.numbers_tag()) | u64::from(excess) << EXCESS_SHIFT);
        bytes.number(record.mark);
        let Some(log) = log else {
            bytes.number(record.a);
            return bytes.number(record.b);
        };
        bytes.number(log.entries.len() as u64);
        let mut before = log.base;
        for entry in (0..log.entries.len()).map(|index| log.entries.get(index)) {
            bytes.number(entry.at);
            bytes.number(entry.sum.wrapping_sub(before));
            before = entry.sum;
        }
    }

    /// Returns this store, which must still be empty, with the content of a snapshot.
    pub fn restore(
        mut self,
        bytes: &[u8],
        now: Micros,
    ) -> Result<(MemoryStore, RestoreReport), SnapshotError> {
        let mut reader = SnapshotReader::open(bytes)?;
        self.secret = HashSecret::from_words([reader.number()?, reader.number()?]);
        let mut limits = HashMap::new();
        for _ in 0..reader.number()? {
            let tag = reader.number()?;
            let limit = reader.limit()?;
            let own = self.tag(&limit).ok_or(SnapshotError::Damaged("too many limits"))?;
            limits.insert(tag, (own, limit));
        }
        let mut restored = RestoreReport::default();
        // If there is less room than before, the states that have used most stay, in whatever order
        // they come.
        let policy = self.policy(now);
        let insert = |table: &SlotTable, (key, record)| {
            table.insert(key, record, EvictionScope::LessWorth, &policy)
        };
        while let Some(state) = reader.keyed_state(&limits, &self)? {
            restored.count(&insert(&self.keys, state))?;
        }
        while let Some(state) = reader.keyed_state(&limits, &self)? {
            restored.count(&insert(self.overflow(), state))?;
        }
        while let Some(block) = reader.keyed_block()? {
            self.blocked_until.fetch_max(block.1.a, Ordering::Relaxed);
            restored.count(&insert(self.blocks(), block))?;
        }
        reader.end()?;
        // Some states that found room evicted others.
        let pushed_out = self.keys.evicted() + self.overflow.get().map_or(0, SlotTable::evicted);
        restored.keys -= pushed_out.min(restored.keys);
        restored.dropped += pushed_out;
        Ok((self, restored))
    }
}

impl RestoreReport {
    fn count(&mut self, inserted: &InsertResult) -> Result<(), SnapshotError> {
        match inserted {
            InsertResult::New => self.keys += 1,
            InsertResult::Exists => return Err(SnapshotError::Damaged("a key twice")),
            InsertResult::NoRoom(_) => self.dropped += 1,
        }
        Ok(())
    }
}

/// Writes a new file that only the owner may read. A file that is there already, from a crash or
/// from somebody else, is removed first, because its mode and owner could be wrong.
fn write_privately(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes the rename itself durable if the system can. If not, the data still is.
fn sync_directory(path: &Path) {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Ok(directory) = File::open(parent.unwrap_or(Path::new("."))) {
        let _ = directory.sync_all();
    }
}

/// FNV-1a: detects damage, but not forgery.
fn checksum(bytes: &[u8]) -> u64 {
    crate::hash::public_hash(&[bytes])
}

#[derive(Default)]
struct SnapshotWriter(Vec<u8>);

/// The tables as they are written, and facts about their states.
#[derive(Default)]
struct SnapshotTables {
    bytes: SnapshotWriter,
    /// The tags of the numbers that wrote the states.
    tags: HashSet<u32>,
    has_excess: bool,
}

impl SnapshotWriter {
    fn number(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
    }

    fn limit(&mut self, limit: &Limit) {
        self.text(limit.name());
        let position = Algorithm::ALL.iter().position(|each| *each == limit.algorithm());
        self.number(position.expect("the algorithm is in Algorithm::ALL") as u64);
        self.number(limit.units());
        self.number(limit.period().as_micros() as u64);
        self.number(limit.capacity());
        self.calendar(limit.calendar());
        self.number(limit.is_queue().into());
        self.number(limit.is_staggered().into());
        self.number(match limit.align() {
            Align::Epoch => 0,
            Align::FirstHit => 1,
            Align::Anchor(anchor) => 2 + anchor.as_u64(),
        });
        self.number(match limit.precision() {
            Precision::Estimate => 0,
            Precision::Buckets(buckets) => buckets.into(),
        });
        self.number(limit.on_change() as u64);
    }

    /// Writes the name only; see [`RestoredCalendar`].
    fn calendar(&mut self, calendar: Option<&dyn Calendar>) {
        let Some(calendar) = calendar else { return self.number(0) };
        let position = CalendarUnit::ALL.iter().position(|each| *each == calendar.unit());
        self.number(1 + position.expect("the unit is in CalendarUnit::ALL") as u64);
        self.text(calendar.zone());
    }
}

/// The units with this number in a format. Some programs wrote excess in the plain format: 1 for ticks, 2 for microseconds.
fn excess_units(version: u64, number: u32) -> Option<ExcessUnits> {
    let both = |unit| Some(ExcessUnits { debt: unit, excess: unit });
    match (version, number) {
        (PLAIN_VERSION, 1) => both(UsageUnit::Ticks),
        (PLAIN_VERSION, 2) => both(UsageUnit::Micros),
        _ => ExcessUnits::of_number(number),
    }
}

/// Reads numbers from the front; every read fails if there are no more bytes.
struct SnapshotReader<'a> {
    rest: &'a [u8],
    version: u64,
}

impl<'a> SnapshotReader<'a> {
    /// Checks magic, version and checksum before anything else is read.
    fn open(bytes: &'a [u8]) -> Result<SnapshotReader<'a>, SnapshotError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(SnapshotError::NotASnapshot)?;
        let version = SnapshotReader { rest, version: 0 }.number()?;
        if ![PLAIN_VERSION, EXCESS_VERSION].contains(&version) {
            return Err(SnapshotError::Version(version));
        }
        let (body, sum) = bytes.split_last_chunk().ok_or(SnapshotError::Damaged("cut off"))?;
        if u64::from_le_bytes(*sum) != checksum(body) {
            return Err(SnapshotError::Damaged("the checksum does not match"));
        }
        let rest = body.get(MAGIC.len() + 8..).ok_or(SnapshotError::Damaged("cut off"))?;
        Ok(SnapshotReader { rest, version })
    }

    fn bytes(&mut self, count: u64) -> Result<&'a [u8], SnapshotError> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let taken = self.rest.split_off(..count.min(self.rest.len())).unwrap_or_default();
        if taken.len() < count { Err(SnapshotError::Damaged("cut off")) } else { Ok(taken) }
    }

    fn number(&mut self) -> Result<u64, SnapshotError> {
        let bytes = self.bytes(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// Reads a number that fits in a slot.
    fn exact(&mut self) -> Result<u64, SnapshotError> {
        let number = self.number()?;
        if number > MAX_EXACT {
            Err(SnapshotError::Damaged("a number out of range"))
        } else {
            Ok(number)
        }
    }

    fn limit(&mut self) -> Result<Limit, SnapshotError> {
        let damaged = |_| SnapshotError::Damaged("an impossible limit");
        let name = self.text()?;
        let algorithm =
            usize::try_from(self.number()?).ok().and_then(|index| Algorithm::ALL.get(index));
        let algorithm = *algorithm.ok_or(SnapshotError::Damaged("an unknown algorithm"))?;
        let [units, period, capacity] = [self.exact()?, self.exact()?, self.exact()?];
        let builder = match self.calendar()? {
            Some(calendar) => Limit::per_calendar(units, calendar),
            None => Limit::per(units, Duration::from_micros(period)),
        };
        let mut builder = builder.name(name).algorithm(algorithm);
        let [queue, stagger] = [self.number()?, self.number()?].map(|flag| flag != 0);
        if algorithm.is_bucket() {
            builder = builder.burst(capacity);
        }
        if queue {
            builder = builder.queue();
        }
        if stagger {
            builder = builder.stagger();
        }
        builder = builder.align(match self.number()? {
            0 => Align::Epoch,
            1 => Align::FirstHit,
            anchor => Align::Anchor(Micros::new(anchor - 2)),
        });
        builder = match u32::try_from(self.number()?).unwrap_or(u32::MAX) {
            0 => builder,
            buckets => builder.buckets(buckets),
        };
        builder = builder.on_change(match self.number()? {
            0 => OnChange::Keep,
            1 => OnChange::Reset,
            _ => OnChange::Scale,
        });
        builder.build().map_err(damaged)
    }

    fn calendar(&mut self) -> Result<Option<Arc<dyn Calendar>>, SnapshotError> {
        let Some(index) = self.number()?.checked_sub(1) else { return Ok(None) };
        let unit = usize::try_from(index).ok().and_then(|index| CalendarUnit::ALL.get(index));
        let unit = *unit.ok_or(SnapshotError::Damaged("an unknown calendar"))?;
        Ok(Some(Arc::new(RestoredCalendar { unit, zone: self.text()?.into() })))
    }

    fn text(&mut self) -> Result<&'a str, SnapshotError> {
        let length = self.number()?;
        std::str::from_utf8(self.bytes(length)?)
            .map_err(|_| SnapshotError::Damaged("a name that is no text"))
    }

    /// The next key of a table with its state; `None` at the end of the table.
    fn keyed_state(
        &mut self,
        limits: &HashMap<u64, (u32, Limit)>,
        store: &MemoryStore,
    ) -> Result<Option<(u64, SlotRecord)>, SnapshotError> {
        let key = self.number()?;
        if key == 0 {
            return Ok(None);
        }
        let unknown = SnapshotError::Damaged("a state of an unknown limit");
        let word = self.number()?;
        let (tag, limit) = limits.get(&(word & ((1 << EXCESS_SHIFT) - 1))).ok_or(unknown)?;
        let tag = match (word >> EXCESS_SHIFT) as u32 {
            0 => *tag,
            number => {
                let is_bucket = limit.algorithm().is_bucket();
                let units = excess_units(self.version, number).filter(|_| is_bucket);
                let unknown = SnapshotError::Damaged("an excess in unknown units");
                SlotRecord::tag_with_excess(*tag, units.ok_or(unknown)?)
            }
        };
        Ok(Some((key, self.state(limit, tag, store)?)))
    }

    fn keyed_block(&mut self) -> Result<Option<(u64, SlotRecord)>, SnapshotError> {
        let key = self.number()?;
        if key == 0 {
            return Ok(None);
        }
        if self.number()? != u64::from(BLOCK_TAG) {
            return Err(SnapshotError::Damaged("a block that is none"));
        }
        let [mark, a, b] = [self.exact()?, self.exact()?, self.exact()?];
        Ok(Some((key, SlotRecord { mark, a, b, tag: BLOCK_TAG })))
    }

    fn state(
        &mut self,
        limit: &Limit,
        tag: u32,
        store: &MemoryStore,
    ) -> Result<SlotRecord, SnapshotError> {
        let mark = self.exact()?;
        if limit.kind != LimitStateKind::Log {
            let record = SlotRecord { mark, a: self.exact()?, b: self.exact()?, tag };
            let state = SlotState::from_record(limit, record, &store.arena);
            let possible = state.is_some_and(|state| state.is_possible(limit));
            let impossible = SnapshotError::Damaged("an impossible state");
            return if possible { Ok(record) } else { Err(impossible) };
        }
        let count = self.number()?;
        if count > MAX_ENTRIES as u64 {
            return Err(SnapshotError::Damaged("a log that is too long"));
        }
        let fresh = SlotState::fresh_in_slot(limit, Micros::new(mark), &store.arena);
        let State::Log(SlotLog::InArena(mut log)) = fresh else {
            unreachable!("the limit keeps a log")
        };
        log.entries.reserve(count as usize);
        let mut last = SlidingLogEntry::default();
        for index in 0..count {
            let (at, units) = (self.exact()?, self.exact()?);
            let newest = sliding_window_log::tick(limit, mark);
            if units == 0 || at > newest || index > 0 && at < last.at {
                return Err(SnapshotError::Damaged("a log out of order"));
            }
            last = SlidingLogEntry { at, sum: last.sum.wrapping_add(units) };
            log.append(last);
        }
        Ok(store.arena.close(limit, tag, log))
    }

    fn end(self) -> Result<(), SnapshotError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(SnapshotError::Damaged("more than it should hold"))
        }
    }
}
