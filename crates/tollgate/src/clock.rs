//! The source of time. This is the only file of the project that reads it.
//!
//! A decision takes its instant as an argument, so a [`Clock`] is read once per request. That read
//! is the most expensive part of a hot decision. [`SystemClock`] makes it cheap: it converts the
//! processor's tick counter (TSC) to Unix microseconds. Tests and simulations use a
//! [`ManualClock`].
//!
//! Time is one function of the tick count, made of segments of about a second. A segment runs for
//! its first second at a slewed speed, which corrects the difference to wall time, and then at
//! plain speed until the next one starts. It is published *before* it starts and never changes, so
//! all threads agree on every instant, and time never goes back from one segment to the next.
//!
//! Differences to wall time are corrected like this:
//!
//! * **Up to a second behind, or ahead by any amount**: slewed by at most 500 ppm, which no rate
//!   can show. A leap second takes half an hour. Wall time set back by an hour is practically
//!   ignored: slewing takes 83 days, and only a restarted process has the new time at once. Standing
//!   still until wall time catches up would refuse every client for an hour.
//! * **More than a second behind**: followed in one jump. The machine slept, or started before it
//!   knew the time, or an operator set the clock, which looks the same. Of all ways to follow, a
//!   jump admits least: it fills a bucket once, while running fast admits the rate over the whole
//!   distance. Wall time that is set forward and back repeatedly leads to one jump, not to many.
//! * **The tick counter restarted**, as some do when the machine sleeps: anchored again, forward.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime};

use crate::algorithm::JUMP_US_MIN;
use crate::time::Micros;

/// A source of Unix time in microseconds.
pub trait Clock: Send + Sync {
    /// The present instant.
    fn now(&self) -> Micros;
}

impl<C: Clock + ?Sized> Clock for &C {
    #[inline]
    fn now(&self) -> Micros {
        (**self).now()
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    #[inline]
    fn now(&self) -> Micros {
        (**self).now()
    }
}

/// The instant of a check, and the clock it was read from, if there is one.
///
/// A thread may pause between reading the clock and deciding. If it then finds a state that is far
/// ahead of its instant, that looks like a clock that went back, unless it reads the clock
/// [again](Now::again).
///
/// ```
/// use tollgate::clock::{ManualClock, Now};
/// use tollgate::Micros;
///
/// let clock = ManualClock::new(Micros::from_secs(5));
/// let (read, chosen) = (Now::live(&clock), Now::at(Micros::from_secs(5)));
/// clock.set(Micros::from_secs(7));
/// assert_eq!(read.instant(), chosen.instant());
/// assert_eq!(read.again().instant(), Micros::from_secs(7));
/// assert_eq!(chosen.again().instant(), Micros::from_secs(5));
/// ```
#[derive(Clone, Copy)]
pub struct Now<'a> {
    instant: Micros,
    /// The clock to read again; `None` for an instant given by the caller.
    clock: Option<&'a dyn Clock>,
    /// Microseconds by which the instant is ahead of that clock.
    ahead: i64,
    /// The start of the operation that this check is part of, if it has several.
    operation_start: Option<Instant>,
}

impl<'a> Now<'a> {
    /// An instant given by the caller: reading it again gives the same.
    #[inline]
    pub const fn at(instant: Micros) -> Now<'a> {
        Now { instant, clock: None, ahead: 0, operation_start: None }
    }

    /// The present instant of a clock.
    #[inline]
    pub fn live(clock: &'a dyn Clock) -> Now<'a> {
        Now::read(clock.now(), clock)
    }

    /// An instant that was read from this clock a moment ago.
    #[inline]
    pub const fn read(instant: Micros, clock: &'a dyn Clock) -> Now<'a> {
        Now { instant, clock: Some(clock), ahead: 0, operation_start: None }
    }

    /// The same moment as the beginning of an operation of several successive checks: a remote
    /// store answers all of them within one timeout.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "how long a store is waited for is real time")]
    pub fn begin_operation(self) -> Now<'a> {
        Now { operation_start: Some(self.operation_start.unwrap_or_else(Instant::now)), ..self }
    }

    /// The start of the operation that this check is part of; `None` if it is the only one.
    #[inline]
    pub const fn operation_start(self) -> Option<Instant> {
        self.operation_start
    }

    /// The instant.
    #[inline]
    pub const fn instant(self) -> Micros {
        self.instant
    }

    /// The same moment on a clock that is ahead by this many microseconds.
    #[inline]
    #[must_use]
    pub fn ahead(self, micros: i64) -> Now<'a> {
        let instant = Micros::new(self.instant.as_u64().saturating_add_signed(micros));
        Now { instant, ahead: self.ahead.saturating_add(micros), ..self }
    }

    /// Reads the clock again.
    #[must_use]
    pub fn again(self) -> Now<'a> {
        match self.clock {
            None => self,
            Some(clock) => {
                Now { operation_start: self.operation_start, ..Now::live(clock).ahead(self.ahead) }
            }
        }
    }

    /// The moment at which to decide about a state that was last charged at `mark`. Call it under
    /// the state's lock: no charge can come after the clock is read, so a mark that is still far
    /// ahead means that the clock went back.
    #[inline]
    pub(crate) fn reread_if_behind(self, mark: u64) -> Now<'a> {
        match mark.saturating_sub(self.instant.as_u64()) > JUMP_US_MIN {
            true => self.again(),
            false => self,
        }
    }
}

impl<'a> From<Micros> for Now<'a> {
    #[inline]
    fn from(instant: Micros) -> Now<'a> {
        Now::at(instant)
    }
}

impl fmt::Debug for Now<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Now").field("instant", &self.instant).finish_non_exhaustive()
    }
}

/// The machine's time: cheap to read, close to wall time, never backwards on a thread.
///
/// All values share one timeline, so it does not matter how many there are. The first read in a
/// process takes 2 ms, to measure the tick rate. A thread may read a few microseconds less than
/// another has just read: the counters of two cores differ a little, and a read is not a barrier.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Micros {
        static TIMELINE: LazyLock<Timeline<SystemTicks>> =
            LazyLock::new(|| Timeline::new(SystemTicks::detect()));
        TIMELINE.now()
    }
}

/// A clock that stands still until it is moved, also backwards.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that stands at `now`.
    pub const fn new(now: Micros) -> ManualClock {
        ManualClock(AtomicU64::new(now.as_u64()))
    }

    /// Moves to `now`, which may be in the past.
    pub fn set(&self, now: Micros) {
        self.0.store(now.as_u64(), Ordering::Relaxed);
    }

    /// Moves forward by the whole microseconds in `step`, at most to [`Micros::MAX`].
    pub fn advance(&self, step: Duration) {
        let step = u64::try_from(step.as_micros()).unwrap_or(u64::MAX);
        let later = |now: u64| Some(Micros::new(now.saturating_add(step)).as_u64());
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
    }
}

impl Clock for ManualClock {
    #[inline]
    fn now(&self) -> Micros {
        Micros::new(self.0.load(Ordering::Relaxed))
    }
}

const SECOND_US: u64 = 1_000_000;

/// The largest correction of a segment in its second: 500 ppm, as much as `adjtime` does.
const SLEW_US_MAX: i128 = 500;

/// Lead of publication: a segment is published 1/16 second before it starts. That is enough for a
/// publisher that is interrupted and for reordering by the processor, yet short, because reads
/// meanwhile take the slow path.
const LEAD_SHIFT: u32 = 4;

/// A reading of all time sources at one moment.
#[derive(Clone, Copy, Debug)]
struct ClockSample {
    ticks: u64,
    /// Monotonic time, by which the tick rate is measured: unlike wall time, it is never set.
    nanos: u64,
    /// Wall time in Unix microseconds.
    wall_us: u64,
}

/// A piece of the function from ticks to time. Speeds are in 2⁻⁶⁴ µs per tick, so that a read
/// multiplies and keeps the upper half; a tick is therefore shorter than a microsecond.
#[derive(Clone, Copy, Debug)]
struct TimeSegment {
    /// The first tick.
    start: u64,
    /// Unix microseconds at `start`.
    micros: u64,
    /// One second in ticks: the duration of `slewed`, and the age at which a successor is due.
    second: u64,
    /// The speed in the first second.
    slewed: u64,
    /// The speed as measured. It holds after the first second, however long the clock is not read.
    plain: u64,
}

impl TimeSegment {
    /// A segment that corrects `behind_us` in its first second.
    fn new(start: u64, micros: u64, plain: u64, behind_us: i128) -> TimeSegment {
        let second = (u128::from(SECOND_US) << 64) / u128::from(plain.max(1));
        let slew = behind_us.clamp(-SLEW_US_MAX, SLEW_US_MAX);
        TimeSegment {
            start,
            micros: Micros::new(micros).as_u64(),
            second: u64::try_from(second).unwrap_or(u64::MAX),
            slewed: (i128::from(plain) * (1_000_000 + slew) / 1_000_000) as u64,
            plain,
        }
    }

    /// The first segment since the tick counter started. It begins before the sample, so that no
    /// core whose counter lags a little is before the beginning.
    fn anchored(sample: &ClockSample, plain: u64, micros_min: u64) -> TimeSegment {
        let lead = TimeSegment::new(0, 0, plain, 0).second >> LEAD_SHIFT;
        let start = sample.ticks.saturating_sub(lead);
        let wall_us = sample.wall_us.saturating_sub(scaled(sample.ticks - start, plain));
        TimeSegment::new(start, wall_us.max(micros_min), plain, 0)
    }

    /// The successor of this newest segment, if it is due. `previous` is the last sample used.
    fn next(&self, previous: &ClockSample, sample: &ClockSample) -> Option<TimeSegment> {
        if self.is_restarted(sample.ticks) {
            return Some(TimeSegment::anchored(sample, self.plain, self.restart_us()));
        }
        if sample.ticks.saturating_sub(self.start) < self.second {
            return None;
        }
        // A measurement that is far off was disturbed (while a machine sleeps, monotonic time
        // stands still and ticks may not): change the speed by a thousandth at most. If the old
        // speed is the wrong one, a few rounds correct it all the same.
        let leeway = self.plain / 1024;
        let measured = speed(previous, sample).unwrap_or(self.plain);
        let plain = measured.clamp(self.plain - leeway, self.plain.saturating_add(leeway));

        let start = sample.ticks.saturating_add(self.second >> LEAD_SHIFT);
        let micros = self.micros_at(start);
        let behind_us = i128::from(sample.wall_us) - i128::from(self.micros_at(sample.ticks));
        Some(if behind_us > i128::from(SECOND_US) {
            TimeSegment::new(start, micros.saturating_add(behind_us as u64), plain, 0)
        } else {
            TimeSegment::new(start, micros, plain, behind_us)
        })
    }

    fn micros_at(&self, ticks: u64) -> u64 {
        let elapsed = ticks.saturating_sub(self.start);
        let first = elapsed.min(self.second);
        let plain_us = scaled(elapsed - first, self.plain);
        (self.micros + scaled(first, self.slewed)).saturating_add(plain_us)
    }

    /// Returns true if the counter restarted: no segment is published that long before its start.
    fn is_restarted(&self, ticks: u64) -> bool {
        ticks.saturating_add(self.second) < self.start
    }

    /// The instant at which time continues after a restart. No read got this far on the newest
    /// segment, because a read that finds it a second old publishes the next.
    fn restart_us(&self) -> u64 {
        self.micros + 2 * SECOND_US
    }
}

/// The whole microseconds in `ticks`.
#[inline]
fn scaled(ticks: u64, speed: u64) -> u64 {
    ((u128::from(ticks) * u128::from(speed)) >> 64) as u64
}

/// The speed between two samples, unless the tick counter stood still or restarted.
fn speed(from: &ClockSample, to: &ClockSample) -> Option<u64> {
    let ticks = to.ticks.checked_sub(from.ticks).filter(|&ticks| ticks > 0)?;
    let nanos = to.nanos.checked_sub(from.nanos)?;
    u64::try_from((u128::from(nanos) << 64) / (u128::from(ticks) * 1_000)).ok()
}

/// The sources of a timeline; tests bring their own.
trait TickSource {
    /// A counter of constant rate, the same on all cores.
    fn ticks(&self) -> u64;
    fn sample(&self) -> ClockSample;
}

/// The newest segments, published so that readers neither wait nor write.
struct Timeline<S> {
    source: S,
    /// Number of the newest segment. Segment `n` is in slot `n % 4`, unchanged until `n + 3` is
    /// published. A reader uses `n` and `n - 1`, and then checks that `n` is still the newest.
    newest: AtomicU64,
    slots: [SegmentSlot; 4],
    /// The last sample used. The thread that gets the lock publishes; no thread ever waits for it.
    publisher: Mutex<ClockSample>,
}

/// A [`TimeSegment`] on its own cache line.
#[repr(align(64))]
struct SegmentSlot([AtomicU64; 5]);

impl SegmentSlot {
    #[inline]
    fn load(&self) -> TimeSegment {
        let words = self.0.each_ref().map(|word| word.load(Ordering::Relaxed));
        let [start, micros, second, slewed, plain] = words;
        TimeSegment { start, micros, second, slewed, plain }
    }

    fn store(&self, segment: &TimeSegment) {
        let TimeSegment { start, micros, second, slewed, plain } = *segment;
        for (word, value) in self.0.iter().zip([start, micros, second, slewed, plain]) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl<S: TickSource> Timeline<S> {
    /// Spins for 2 ms to measure the tick rate; the first second refines it. CPUID is no shortcut:
    /// often it has no rate or a nominal one (2.80 GHz instead of 2.793 where this was written).
    fn new(source: S) -> Timeline<S> {
        let first = source.sample();
        let mut sample = first;
        while sample.nanos.saturating_sub(first.nanos) < 2_000_000 {
            std::hint::spin_loop();
            sample = source.sample();
        }
        let plain = speed(&first, &sample).unwrap_or(u64::MAX / 1_000);
        let slots = std::array::from_fn(|_| SegmentSlot(Default::default()));
        slots.iter().for_each(|slot| slot.store(&TimeSegment::anchored(&sample, plain, 0)));
        Timeline { source, newest: AtomicU64::new(0), slots, publisher: Mutex::new(sample) }
    }

    #[inline]
    fn now(&self) -> Micros {
        // Ticks are read first: a thread whose tick is past the start of a segment then sees that
        // segment.
        let ticks = self.source.ticks();
        let n = self.newest.load(Ordering::Acquire);
        let newest = self.slots[n as usize % 4].load();
        fence(Ordering::Acquire);
        let elapsed = ticks.wrapping_sub(newest.start); // huge before the start
        if elapsed < newest.second && self.newest.load(Ordering::Relaxed) == n {
            Micros::new(newest.micros + scaled(elapsed, newest.slewed))
        } else {
            Micros::new(self.now_slow())
        }
    }

    #[cold]
    fn now_slow(&self) -> u64 {
        loop {
            let ticks = self.source.ticks();
            let (older, newest) = self.segments();
            if ticks >= newest.start {
                if ticks - newest.start >= newest.second {
                    self.publish();
                }
                return newest.micros_at(ticks);
            }
            if !newest.is_restarted(ticks) {
                return older.micros_at(ticks);
            }
            // This thread may merely have slept between reading the ticks and the segments.
            if newest.is_restarted(self.source.ticks()) {
                self.publish();
                return newest.restart_us();
            }
        }
    }

    fn segments(&self) -> (TimeSegment, TimeSegment) {
        loop {
            let n = self.newest.load(Ordering::Acquire);
            let older = self.slots[n.wrapping_sub(1) as usize % 4].load();
            let newest = self.slots[n as usize % 4].load();
            fence(Ordering::Acquire);
            if self.newest.load(Ordering::Relaxed) == n {
                return (older, newest);
            }
        }
    }

    /// Publishes the next segment if it is due and no other thread is about to.
    fn publish(&self) {
        let Ok(mut previous) = self.publisher.try_lock() else { return };
        let (_, newest) = self.segments();
        let sample = self.source.sample();
        let Some(next) = newest.next(&previous, &sample) else { return };

        let n = self.newest.load(Ordering::Relaxed).wrapping_add(1);
        fence(Ordering::Release); // readers that see a word of n also see n - 1 published
        self.slots[n as usize % 4].store(&next);
        // After a long interruption the start is near or past: leave it to the next reader.
        if self.source.ticks().saturating_sub(sample.ticks) < newest.second >> (LEAD_SHIFT + 1) {
            self.newest.store(n, Ordering::Release);
            *previous = sample;
        }
    }
}

/// The time sources of this machine.
struct SystemTicks {
    /// True if ticks are those of the TSC; otherwise they are nanoseconds of monotonic time.
    has_tsc: bool,
    /// The origin of monotonic time.
    origin: Instant,
}

#[expect(clippy::disallowed_methods, reason = "here time is read, and nowhere else")]
impl SystemTicks {
    fn detect() -> SystemTicks {
        SystemTicks { has_tsc: tsc::is_invariant(), origin: Instant::now() }
    }

    fn nanos(&self) -> u64 {
        Instant::now().saturating_duration_since(self.origin).as_nanos() as u64
    }

    fn wall_us() -> u64 {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        since_epoch.map_or(0, |elapsed| Micros::new(elapsed.as_micros() as u64).as_u64())
    }
}

impl TickSource for SystemTicks {
    #[inline]
    fn ticks(&self) -> u64 {
        if self.has_tsc { tsc::read() } else { self.nanos() }
    }

    /// Samples all sources: the tightest of five tries, because a thread may be interrupted between
    /// two readings.
    fn sample(&self) -> ClockSample {
        let tries: [(u64, ClockSample); 5] = std::array::from_fn(|_| {
            let before = self.ticks();
            let (wall_us, nanos) = (SystemTicks::wall_us(), self.nanos());
            let width = self.ticks().wrapping_sub(before);
            (width, ClockSample { ticks: before.wrapping_add(width / 2), nanos, wall_us })
        });
        tries.into_iter().min_by_key(|&(width, _)| width).unwrap_or(tries[0]).1
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod tsc {
    use core::arch::x86_64::{__cpuid, _rdtsc};

    /// Returns true if the counter has one rate at every frequency and in every state of the
    /// processor.
    #[allow(unsafe_code, unused_unsafe, reason = "older compilers declare the intrinsic unsafe")]
    pub(super) fn is_invariant() -> bool {
        const POWER_LEAF: u32 = 0x8000_0007;
        // SAFETY: every x86_64 processor has this instruction; it touches no memory.
        let cpuid = |leaf| unsafe { __cpuid(leaf) };
        cpuid(0x8000_0000).eax >= POWER_LEAF && cpuid(POWER_LEAF).edx & (1 << 8) != 0
    }

    /// Reads the counter. Not with `rdtscp`, which waits for all earlier instructions and takes
    /// twice as long.
    #[inline]
    #[expect(unsafe_code, reason = "the intrinsic is declared so")]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86_64 processor has this instruction; it touches no memory.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod tsc {
    pub(super) fn is_invariant() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests;
