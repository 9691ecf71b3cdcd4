//! One random run: two gatekeepers with rules of their own on one store, whose numbers change by reload, by override
//! and by the tier table, and callers who take, wait and settle. After each step three promises are checked, and
//! nothing here knows how a store keeps them:
//!
//! * a caller who is alone and waits as it was told is admitted, and not before;
//! * nobody is told to wait longer than the units asked take under the numbers of the answer, except for units that
//!   were forced under the same numbers;
//! * over any time, all gatekeepers together admit no more than one limit with the largest rate and the largest
//!   capacity would.
//!
//! It runs on any store: `tollgate-redis` runs the same against a real server.

use std::collections::HashMap;
use std::time::Duration;

use serde_json::json;
use tollgate::{ManualClock, Micros, Wait};
use tollgate_rules::gatekeeper::InfallibleStore;
use tollgate_rules::{Answer, Ask, Facts, Gatekeeper, ReservationId, RuleSet, Source, compile};

/// 11:06:40 on 2026-11-18.
pub(crate) const START: Micros = Micros::from_secs(1_795_000_000);
const START_SECOND_OF_DAY: u64 = 40_000;
const MINUTE_US: u64 = 60_000_000;
const STEPS: usize = 60;
/// Longer waits are not waited for: a run ends before midnight.
const LONGEST_WAIT: Wait = Wait::from_micros(5 * MINUTE_US);

/// A small generator: the same seed, the same run.
struct RunRandom(u64);

impl RunRandom {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// N per minute and the capacity.
type BucketSize = (u64, u64);

fn any_numbers(random: &mut RunRandom) -> BucketSize {
    let units = random.pick(&[1, 2, 7, 60, 90, 6_000, 1_000_003]);
    (units, random.pick(&[1, 3, 5, 20, 100, 100_000]).min(units * 1_000_000))
}

/// The numbers of one gatekeeper.
#[derive(Clone, Copy, Debug)]
struct GateNumbers {
    plain: BucketSize,
    /// The tier table's numbers.
    pro: BucketSize,
    /// The caller's own numbers, which count for every tier, and their end.
    own: Option<(BucketSize, Option<Micros>)>,
}

/// The states of a caller: one for all, and one that the tier's numbers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CountedState {
    Plain,
    Pro,
}

impl GateNumbers {
    fn of(&self, is_pro: bool, now: Micros) -> (CountedState, BucketSize) {
        match self.own {
            Some((own, end)) if end.is_none_or(|end| now < end) => (CountedState::Plain, own),
            _ if is_pro => (CountedState::Pro, self.pro),
            _ => (CountedState::Plain, self.plain),
        }
    }

    /// Returns true if other numbers may count by the end of a wait.
    fn change_within(&self, now: Micros, then: Micros) -> bool {
        let end = self.own.and_then(|(_, end)| end);
        end.is_some_and(|end| now < end && end <= then)
    }
}

/// The ways to write a bucket.
const KINDS: [&str; 3] = ["token_bucket", "leaky_bucket", "queue"];

fn written(kind: usize, (units, capacity): BucketSize) -> String {
    let algorithm = match KINDS[kind] {
        "queue" => "leaky_bucket, queue: true",
        algorithm => algorithm,
    };
    format!("{{ rate: {units}/minute, burst: {capacity}, algorithm: {algorithm} }}")
}

fn rules(kind: usize, numbers: &GateNumbers) -> RuleSet {
    let [plain, pro] = [numbers.plain, numbers.pro].map(|size| written(kind, size));
    let text = format!(
        "tiers: {{ free: {{}}, pro: {{ api: [{pro}] }} }}\n\
         rules: [{{ name: api, key: '{{user}}', limits: [{plain}] }}]"
    );
    let compiled = compile(&[Source::from_text("rules.yaml", &text)]);
    compiled.rules.unwrap_or_else(|| panic!("{text}\n{}", compiled.diagnostics))
}

/// Facts about one state.
#[derive(Default)]
struct StateRecord {
    /// Units that takes have been granted, and, below zero, units that were given back.
    granted: Vec<(Micros, i128)>,
    largest: BucketSize,
    /// Units that were forced under these numbers since a take under others: they may be owed beyond the capacity.
    owed: HashMap<BucketSize, u64>,
}

/// An open reservation.
#[derive(Clone, Copy)]
struct OpenWork {
    gate: usize,
    id: ReservationId,
    state: CountedState,
    size: BucketSize,
    cost: u64,
}

pub(crate) struct ChangingRun<S> {
    seed: u64,
    random: RunRandom,
    kind: usize,
    user: String,
    gates: [Gatekeeper<S, ManualClock>; 2],
    numbers: [GateNumbers; 2],
    now: Micros,
    records: HashMap<CountedState, StateRecord>,
    open: Vec<OpenWork>,
    /// Waits that came true.
    pub(crate) waited: u64,
}

impl<S: InfallibleStore> ChangingRun<S> {
    pub(crate) fn new(seed: u64, stores: [S; 2]) -> ChangingRun<S> {
        let mut random = RunRandom(seed);
        let kind = random.below(3) as usize;
        let numbers = [(); 2].map(|()| {
            let (plain, pro) = (any_numbers(&mut random), any_numbers(&mut random));
            GateNumbers { plain, pro, own: None }
        });
        let mut sets = numbers.iter().map(|numbers| rules(kind, numbers));
        let gates = stores.map(|store| {
            Gatekeeper::new(sets.next().expect("two"), store, ManualClock::new(START))
        });
        let (records, open) = (HashMap::new(), Vec::new());
        let user = format!("user-{seed}");
        ChangingRun {
            seed,
            random,
            kind,
            user,
            gates,
            numbers,
            now: START,
            records,
            open,
            waited: 0,
        }
    }

    pub(crate) async fn run(&mut self) {
        for _ in 0..STEPS {
            let gap = self.random.pick(&[0, 0, 1_000, 400_000, 5_000_000, 90_000_000]);
            let time = self.random.below(gap + 1);
            self.pass(Wait::from_micros(time));
            let gate = self.random.below(2) as usize;
            match self.random.below(16) {
                0 => self.reload(gate),
                1 => self.set_override(gate),
                2 => self.remove_override(gate),
                3..=5 => self.reserve(gate).await,
                6 | 7 => self.settle().await,
                8 | 9 => self.wait_as_told(gate).await,
                _ => drop(self.take(gate).await),
            }
        }
        self.assert_bounded();
    }

    fn pass(&mut self, time: Wait) {
        self.now = self.now.after(time);
        self.gates.iter().for_each(|gate| gate.clock().set(self.now));
    }

    fn reload(&mut self, gate: usize) {
        match self.random.below(3) {
            0 => self.numbers[gate].plain = any_numbers(&mut self.random),
            1 => self.numbers[gate].pro = any_numbers(&mut self.random),
            _ => {}
        }
        self.gates[gate].replace(rules(self.kind, &self.numbers[gate]));
    }

    fn set_override(&mut self, gate: usize) {
        let own = any_numbers(&mut self.random);
        let end = (self.random.below(2) == 0).then(|| {
            let second = self.now.as_u64() / 1_000_000 + 1 + self.random.below(40);
            Micros::from_secs(second)
        });
        let mut fields = json!({ "rate": format!("{}/minute", own.0), "burst": own.1 });
        fields["algorithm"] = json!(KINDS[self.kind.min(1)]);
        if self.kind == 2 {
            fields["queue"] = json!(true);
        }
        let mut fields = json!({ "limits": [fields] });
        if let Some(end) = end {
            let second = START_SECOND_OF_DAY + (end.as_u64() - START.as_u64()) / 1_000_000;
            let (hour, minute) = (second / 3_600, second / 60 % 60);
            fields["until"] =
                json!(format!("2026-11-18T{hour:02}:{minute:02}:{:02}Z", second % 60));
        }
        let caller = self.gates[gate].caller("api", &self.user).expect("a caller");
        let set = caller.set_override(&fields).expect("an override");
        assert_eq!(set.until, end, "{fields}");
        self.numbers[gate].own = Some((own, end));
    }

    fn remove_override(&mut self, gate: usize) {
        let caller = self.gates[gate].caller("api", &self.user).expect("a caller");
        caller.remove_override();
        self.numbers[gate].own = None;
    }

    fn ask(&mut self, gate: usize) -> (bool, u64, CountedState, BucketSize) {
        let is_pro = self.random.below(3) == 0;
        let (state, size) = self.numbers[gate].of(is_pro, self.now);
        let part = size.1 / self.random.pick(&[1, 2, 3]);
        let cost = self.random.pick(&[1, 1, 1, 2, part]).clamp(1, size.1);
        let record = self.records.entry(state).or_default();
        record.largest = (record.largest.0.max(size.0), record.largest.1.max(size.1));
        (is_pro, cost, state, size)
    }

    async fn decide(&self, gate: usize, is_pro: bool, cost: u64, takes: bool) -> Answer {
        let tier = Some(if is_pro { "pro" } else { "free" });
        let facts = Facts { user: Some(&self.user), tier, path: Some("/"), ..Facts::default() };
        let ask = Ask { facts, cost: Some(cost), ..Ask::default() };
        let gate = &self.gates[gate];
        match takes {
            true => gate.decide_by(gate.rules(), &ask, self.now).await,
            false => gate.peek_by(gate.rules(), &ask, self.now).await,
        }
    }

    /// Notes that these numbers have judged a take.
    fn note_take(&mut self, state: CountedState, size: BucketSize, granted: u64) {
        let record = self.records.get_mut(&state).expect("asked about");
        record.owed.retain(|forced_under, _| *forced_under == size);
        if granted > 0 {
            record.granted.push((self.now, granted.into()));
        }
    }

    /// The wait told is at most the time of the units asked, and of those that were forced.
    fn assert_not_locked_out(&self, state: CountedState, size: BucketSize, cost: u64, wait: Wait) {
        let owed = self.records[&state].owed.get(&size).copied().unwrap_or_default();
        let most = (u128::from(cost + owed) * u128::from(MINUTE_US)).div_ceil(size.0.into());
        let told = u128::from(wait.as_micros().expect("the cost fits"));
        assert!(
            told <= most,
            "seed {}: told {told} us of {most} for {cost} under {size:?}",
            self.seed
        );
    }

    async fn take(&mut self, gate: usize) -> (bool, Wait, bool, u64) {
        let (is_pro, cost, state, size) = self.ask(gate);
        let answer = self.decide(gate, is_pro, cost, true).await;
        self.note_take(state, size, if answer.allowed() { cost } else { 0 });
        self.assert_not_locked_out(state, size, cost, answer.retry_after());
        (answer.allowed(), answer.retry_after(), is_pro, cost)
    }

    /// A caller that a take or a peek refuses waits as it was told: it is admitted then and no earlier.
    async fn wait_as_told(&mut self, gate: usize) {
        let (is_pro, cost, state, size) = self.ask(gate);
        let takes = self.random.below(2) == 0;
        let told = self.decide(gate, is_pro, cost, takes).await;
        if takes {
            self.note_take(state, size, if told.allowed() { cost } else { 0 });
        }
        self.assert_not_locked_out(state, size, cost, told.retry_after());
        let then = self.now.after(told.retry_after());
        let is_long = told.retry_after() > LONGEST_WAIT;
        if told.allowed() || is_long || self.numbers[gate].change_within(self.now, then) {
            return;
        }
        self.pass(Wait::from_micros(then.as_u64() - 1 - self.now.as_u64()));
        let at =
            format!("seed {}: told {:?} for {cost} under {size:?}", self.seed, told.retry_after());
        let early = self.decide(gate, is_pro, cost, false).await;
        // A peek converts nothing: meanwhile faster numbers of the other gatekeeper may have refilled everything.
        assert!(!takes || !early.allowed(), "{at}, admitted earlier");
        self.pass(Wait::from_micros(1));
        assert!(self.decide(gate, is_pro, cost, true).await.allowed(), "{at}, refused then");
        self.note_take(state, size, cost);
        self.waited += 1;
    }

    async fn reserve(&mut self, gate: usize) {
        let (is_pro, cost, state, size) = self.ask(gate);
        let tier = Some(if is_pro { "pro" } else { "free" });
        let facts = Facts { user: Some(&self.user), tier, path: Some("/"), ..Facts::default() };
        let ask = Ask { facts, cost: Some(cost), ..Ask::default() };
        let (day, one) = (Duration::from_secs(86_400), &self.gates[gate]);
        let reserved = one.reserve_by(one.rules(), &ask, day, self.now).await.expect("room");
        self.note_take(state, size, if reserved.answer.allowed() { cost } else { 0 });
        if let Some(id) = reserved.id {
            self.open.push(OpenWork { gate, id, state, size, cost });
        }
    }

    /// Settles the oldest reservation, whatever its numbers are by now.
    async fn settle(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let work = self.open.remove(0);
        let actual = self.random.pick(&[0, work.cost / 2, work.cost + 1, work.cost * 3]);
        self.gates[work.gate].commit_by(work.id, actual, self.now).await.expect("not expired");
        let record = self.records.get_mut(&work.state).expect("charged");
        *record.owed.entry(work.size).or_default() += actual.saturating_sub(work.cost);
        let given_back = work.cost.saturating_sub(actual);
        record.granted.push((self.now, -i128::from(given_back)));
        // Nobody is locked out by it.
        for gate in 0..2 {
            for is_pro in [false, true] {
                let (state, size) = self.numbers[gate].of(is_pro, self.now);
                self.records.entry(state).or_default();
                let answer = self.decide(gate, is_pro, 1, false).await;
                self.assert_not_locked_out(state, size, 1, answer.retry_after());
            }
        }
    }

    fn assert_bounded(&self) {
        for (state, StateRecord { granted, largest: (rate, capacity), .. }) in &self.records {
            for (first, (start, _)) in granted.iter().enumerate() {
                let mut sum = 0;
                for (at, units) in &granted[first..] {
                    sum += units;
                    let passed = i128::from(at.as_u64() - start.as_u64());
                    let refilled = passed * i128::from(*rate) / i128::from(MINUTE_US);
                    let most = i128::from(*capacity) + refilled;
                    assert!(sum <= most, "seed {}: {sum} of {most}, {state:?}", self.seed);
                }
            }
        }
    }
}
