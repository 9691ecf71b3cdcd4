//! The timeline on simulated sources, and the system clock beside wall time.

use super::*;
use std::cell::Cell;

const SECOND: i64 = SECOND_US as i64;
const HOUR: i64 = 3_600 * SECOND;

/// A machine of 3 ticks per nanosecond. Each sample takes 1 µs; otherwise time stands still.
struct SimulatedTicks(Cell<ClockSample>);

impl TickSource for SimulatedTicks {
    fn ticks(&self) -> u64 {
        self.0.get().ticks
    }

    fn sample(&self) -> ClockSample {
        self.pass(1, 0);
        self.0.get()
    }
}

impl SimulatedTicks {
    fn timeline(ticks: u64) -> Timeline<SimulatedTicks> {
        let sample = ClockSample { ticks, nanos: 0, wall_us: 1_790_000_000_000_000 };
        Timeline::new(SimulatedTicks(Cell::new(sample)))
    }

    /// Lets time pass for all sources; the tick counter runs fast by `ppm`.
    fn pass(&self, micros: i64, ppm: i64) {
        self.0.update(|now| ClockSample {
            ticks: now.ticks.wrapping_add_signed(micros * 3_000 + micros * 3 * ppm / 1_000),
            nanos: now.nanos + micros as u64 * 1_000,
            wall_us: now.wall_us + micros as u64,
        });
    }

    fn step_wall(&self, step: i64) {
        self.0
            .update(|now| ClockSample { wall_us: now.wall_us.saturating_add_signed(step), ..now });
    }

    fn set_ticks(&self, ticks: u64) {
        self.0.update(|now| ClockSample { ticks, ..now });
    }
}

impl Timeline<SimulatedTicks> {
    fn ahead_us(&self) -> i64 {
        self.now().as_u64() as i64 - self.source.0.get().wall_us as i64
    }

    /// Reads the clock every 10 ms.
    fn run(&self, seconds: u64, ppm: i64) {
        let mut last = self.now();
        for _ in 0..seconds * 100 {
            self.source.pass(10_000, ppm);
            let now = self.now();
            assert!(now >= last, "{last:?} then {now:?}");
            last = now;
        }
    }
}

#[test]
fn drift_is_measured_and_slewed_away() {
    for ppm in [-1_000, -100, 0, 100, 1_000] {
        let timeline = SimulatedTicks::timeline(12_345);
        timeline.run(30, ppm);
        assert!(timeline.ahead_us().abs() <= 3, "{ppm} ppm: {} µs", timeline.ahead_us());
        // The speed is known well enough for an hour without any read.
        timeline.source.pass(HOUR, ppm);
        assert!(timeline.ahead_us().abs() <= 500, "{ppm} ppm: {} µs", timeline.ahead_us());
    }
}

#[test]
fn wall_time_is_followed_by_a_jump_or_slowly() {
    // Steps of wall time, 10 s apart, and the lead of the clock in the end, give or take 500
    // µs. In 10 s it slews by about 4.5 ms.
    let table: [(&[i64], i64); 8] = [
        (&[HOUR], 0),
        (&[SECOND + 100], 0),
        (&[SECOND - 100], 4_500 - SECOND),
        (&[2_000], 0),
        (&[-2_000], 0),
        (&[-SECOND], SECOND - 4_500),
        (&[-HOUR], HOUR - 4_500),
        (&[HOUR, -HOUR, HOUR, -HOUR], HOUR - 4_500), // to and fro: one jump
    ];
    for (steps, expected) in table {
        let timeline = SimulatedTicks::timeline(0);
        for &step in steps {
            timeline.source.step_wall(step);
            timeline.run(10, 0);
        }
        let ahead = timeline.ahead_us();
        assert!((ahead - expected).abs() <= 500, "{steps:?}: {ahead} for {expected}");
    }
}

#[test]
fn restarted_ticks_go_on_forward() {
    for slept in [0, 60 * SECOND] {
        let timeline = SimulatedTicks::timeline(u64::MAX / 2);
        timeline.run(5, 0);
        timeline.source.pass(900_000, 0);
        let last = timeline.now();
        timeline.source.step_wall(slept);
        timeline.source.set_ticks(7);
        assert!(timeline.now() >= last);
        timeline.run(5, 0);
        let ahead = timeline.ahead_us();
        assert!((-5..=2 * SECOND + 100_000).contains(&ahead), "slept {slept}: {ahead}");
    }
}

#[test]
fn never_backwards_whatever_the_sources_do() {
    let mut random = 0x9E37_79B9_7F4A_7C15_u64;
    let mut below = |limit: i64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % limit as u64) as i64
    };
    for start in [0, 1 << 40, u64::MAX - (1 << 36)] {
        let timeline = SimulatedTicks::timeline(start);
        let mut last = timeline.now();
        for step in 0..200_000 {
            let micros_max = [1, 1_000, 100_000, 2_000_000][below(4) as usize];
            timeline.source.pass(below(micros_max), below(2_001) - 1_000);
            match below(1_000) {
                0 => timeline.source.step_wall(below(2 * HOUR) - HOUR),
                1 => timeline.source.set_ticks(below(1 << 50) as u64),
                _ => {}
            }
            let now = timeline.now();
            assert!(now >= last, "start {start}, step {step}: {last:?} then {now:?}");
            last = now;
        }
        assert!(last < Micros::MAX);
    }
}

/// Between threads a millisecond is allowed, far more than the few microseconds that occur.
#[test]
fn system_clock_tells_wall_time_and_never_goes_backwards() {
    // Between two readings of the wall clock, however far apart: this thread may have to wait
    // for a core.
    let before = SystemTicks::wall_us();
    let now = SystemClock.now().as_u64();
    let after = SystemTicks::wall_us();
    assert!(now + 50_000 > before && now < after + 50_000, "{before}, {now}, {after}");
    let highest = AtomicU64::new(0);
    let read = || {
        let mut last = SystemClock.now().as_u64();
        let end = last + 200_000;
        while last < end {
            let seen = highest.load(Ordering::Acquire);
            let now = SystemClock.now().as_u64();
            assert!(now >= last && now + 1_000 >= seen, "{last}, {seen} then {now}");
            highest.fetch_max(now, Ordering::Release);
            last = now;
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(read);
        scope.spawn(read);
    });
}

#[test]
fn manual_clock_moves_when_told() {
    let clock = ManualClock::new(Micros::new(5));
    clock.advance(Duration::from_nanos(2_999));
    assert_eq!(clock.now(), Micros::new(7));
    clock.set(Micros::new(1));
    assert_eq!(Arc::new(&clock).now(), Micros::new(1));
    clock.advance(Duration::MAX);
    assert_eq!(clock.now(), Micros::MAX);
}
