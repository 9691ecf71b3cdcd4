//! The sections of the measurement.

use std::rc::Rc;
use std::time::Duration;

use tollgate::Consistency;
use tollgate_bench::rounds::{Figure, SampleTiming};
use tollgate_bench::table::{BenchTable, TableStyle};

use crate::contestants::{self, BenchKeyNames, EXHAUSTED_QUOTA, RedisContestant, UNREACHED_QUOTA};
use crate::goals::{RedisGoalBound, RedisGoals};
use crate::load::{RedisKeyChoice, RedisLoad};
use crate::measure::{self, RedisCase, RedisCaseSamples};
use crate::servers::RedisBenchServers;
use crate::{overshoot, report};

/// The sections, in their order.
pub(crate) const SECTIONS: [&str; 7] =
    ["strict", "half", "hot", "overshoot", "instances", "cluster", "transport"];

/// Number of slots that callers share, for each node of a cluster.
const SLOTS_PER_NODE: usize = 4;
/// Number of keys, all equally likely.
const KEYS: usize = 100_000;
/// The share that may be leased at a time, in millionths of the capacity.
const EPSILON: u32 = 10_000;
const LEASED: Consistency = Consistency::Leased { millionths: EPSILON };
const LOCAL_SYNC: Consistency = Consistency::LocalSync { interval_ms: 100 };

/// The load of sections that measure only one number of callers.
const CALLERS: RedisLoad = RedisLoad::Closed { callers: 64 };

/// Number of slices for each round in which latency is measured. A shared machine stalls for milliseconds now and
/// then, which spoils the 99th percentile of a whole second; in short slices it spoils only one slice and not
/// the median of all.
const SLICES: usize = 10;
const SLICE: SampleTiming =
    SampleTiming { warm_up: Duration::from_millis(25), duration: Duration::from_millis(100) };

/// The options of the measurement.
pub(crate) struct RedisBench {
    pub(crate) rounds: usize,
    pub(crate) span: SampleTiming,
    pub(crate) style: TableStyle,
}

impl RedisBench {
    /// Runs all sections, or one.
    pub(crate) async fn run(
        &self,
        only: Option<&str>,
        goals: &mut RedisGoals,
    ) -> Result<(), String> {
        let wanted = |name: &str| only.is_none_or(|only| only == name);
        let names = contestants::key_names(KEYS);
        if wanted("strict") {
            self.strict(&names, goals).await?;
        }
        if wanted("half") {
            self.half(&names, goals).await?;
        }
        if wanted("hot") {
            self.hot(&names, goals).await?;
        }
        if wanted("overshoot") {
            self.overshoot(&names, goals).await?;
        }
        if wanted("instances") {
            self.instances(&names).await?;
        }
        if wanted("cluster") {
            self.cluster(&names, goals).await?;
        }
        if wanted("transport") {
            self.transport(&names).await?;
        }
        Ok(())
    }

    async fn measure(
        &self,
        title: &str,
        cases: Vec<RedisCase>,
    ) -> Result<Vec<RedisCaseSamples>, String> {
        let measured = measure::rounds(title, cases, self.rounds, self.span).await?;
        println!("{}", report::table(title, &measured, self.style));
        Ok(measured)
    }

    /// Measures decisions that Redis makes, as fast as callers can send requests.
    async fn strict(&self, names: &BenchKeyNames, goals: &mut RedisGoals) -> Result<(), String> {
        let servers = Rc::new(RedisBenchServers::one());
        let both = [
            ("naive", RedisContestant::naive(&servers.url(), UNREACHED_QUOTA, names).await?),
            ("strict", tollgate(&servers, Consistency::Strict, names)?),
        ];
        let loads = [1, 16, 64, 256].map(|callers| RedisLoad::Closed { callers });
        let cases =
            loads.iter().flat_map(|load| cases_under_load(&servers, &both, *load)).collect();
        let measured = self.measure("Strict, 100,000 keys", cases).await?;
        for load in &loads[2..] {
            let [naive, strict] = naive_and_strict(&measured, *load);
            let times = strict.compare(naive, |a, b| a.per_s / b.per_s);
            let by_cpu = strict.compare(naive, |a, b| b.redis_us / a.redis_us);
            let callers = report::asked_by(*load);
            let least = if *load == loads[2] { 2.0 } else { 2.5 };
            goals.add(format!("strict / naive, {callers}"), RedisGoalBound::AtLeast(least), times);
            goals.add(
                format!("the same by Redis CPU, {callers}"),
                RedisGoalBound::AtLeast(least),
                by_cpu,
            );
        }
        let strict = naive_and_strict(&measured, loads[3])[1].figure(|it| it.per_s / 1_000.0);
        goals.add(
            "thousand strict decisions/s, 256 callers",
            RedisGoalBound::AtLeast(100.0),
            strict,
        );
        Ok(())
    }

    /// Measures latency at half of naive's highest rate, in an open loop.
    async fn half(&self, names: &BenchKeyNames, goals: &mut RedisGoals) -> Result<(), String> {
        let servers = Rc::new(RedisBenchServers::one());
        let all = [
            ("PING", RedisContestant::ping_only(&servers.url(), names).await?),
            ("naive", RedisContestant::naive(&servers.url(), UNREACHED_QUOTA, names).await?),
            ("strict", tollgate(&servers, Consistency::Strict, names)?),
        ];
        let loads = [64, 256].map(|callers| RedisLoad::Closed { callers });
        let cases =
            loads.iter().flat_map(|load| cases_under_load(&servers, &all[1..2], *load)).collect();
        let measured = self.measure("What naive can do at best", cases).await?;
        let best = measured.iter().filter_map(|it| it.figure(|it| it.per_s)).map(|it| it.median);
        let half = RedisLoad::Open { per_s: best.fold(0.0, f64::max) / 2.0 };
        let slices = RedisBench { rounds: self.rounds * SLICES, span: SLICE, ..*self };
        let cases = cases_under_load(&servers, &all, half).collect();
        let measured = slices.measure("Half of that, 100,000 keys", cases).await?;
        let [naive, strict] = naive_and_strict(&measured, half);
        let p99 = strict.compare(naive, |a, b| a.p99_us / b.p99_us);
        goals.add("p99 at half load / naive's", RedisGoalBound::AtMost(1.0), p99);
        let added = strict.figure(|it| it.p99_us / 1_000.0);
        goals.add("p99 at half load, ms", RedisGoalBound::AtMost(1.0), added);
        Ok(())
    }

    /// Measures one key for all callers.
    async fn hot(&self, names: &BenchKeyNames, goals: &mut RedisGoals) -> Result<(), String> {
        let servers = Rc::new(RedisBenchServers::one());
        // Each case has a key of its own, so that the cases do not share their usage.
        let key = |number: usize| -> BenchKeyNames { names[number..=number].to_vec().into() };
        let url = servers.url();
        let ours = |quota, consistency, number| {
            RedisContestant::tollgate(&url, quota, consistency, &key(number))
        };
        let all = [
            ("naive, refused", RedisContestant::naive(&url, EXHAUSTED_QUOTA, &key(0)).await?, ""),
            ("naive, allowed", RedisContestant::naive(&url, UNREACHED_QUOTA, &key(1)).await?, ""),
            ("refused", ours(EXHAUSTED_QUOTA, Consistency::Strict, 2)?, "naive, refused"),
            ("strict", ours(UNREACHED_QUOTA, Consistency::Strict, 3)?, "naive, allowed"),
            ("leased, 1 %", ours(UNREACHED_QUOTA, LEASED, 4)?, "naive, allowed"),
            ("local_sync, 100 ms", ours(UNREACHED_QUOTA, LOCAL_SYNC, 5)?, "naive, allowed"),
        ];
        let case = |(name, who, peer): &(&str, Rc<RedisContestant>, &'static str)| RedisCase {
            name: (*name).to_owned(),
            contestants: vec![Rc::clone(who)],
            servers: Rc::clone(&servers),
            keys: RedisKeyChoice::One,
            load: CALLERS,
            peer,
        };
        let measured = self.measure("One hot key", all.iter().map(case).collect()).await?;
        for (index, peer) in [(2, 0), (4, 1)] {
            let (one, naive) = (&measured[index], &measured[peer]);
            let times = one.compare(naive, |a, b| a.per_s / b.per_s);
            goals.add(
                format!("hot key, {} / naive", one.name),
                RedisGoalBound::AtLeast(50.0),
                times,
            );
            let saved = one.figure(|it| (1.0 - it.calls) * 100.0);
            goals.add(
                format!("hot key, {}: % of calls saved", one.name),
                RedisGoalBound::AtLeast(90.0),
                saved,
            );
        }
        Ok(())
    }

    /// Measures the overshoot of a leased key.
    async fn overshoot(&self, names: &BenchKeyNames, goals: &mut RedisGoals) -> Result<(), String> {
        let title = "A leased key, three instances, 20,000 a second, with more demand than that";
        let columns =
            ["may be off by", "passed beyond", "was out at most", "passed in all", "calls"];
        let mut table = BenchTable::new(title, self.style, &columns);
        let percent = |part: f64| format!("{:.2} %", part * 100.0);
        for millionths in [EPSILON, 5 * EPSILON] {
            let servers = RedisBenchServers::one();
            let duration = self.span.duration * self.rounds as u32 + Duration::from_secs(1);
            let seen = overshoot::measure(&servers, millionths, duration, names).await?;
            table.row([
                percent(seen.epsilon),
                percent(seen.measured),
                percent(seen.outstanding),
                percent(seen.passed),
                format!("{:.4}", seen.calls),
            ]);
            let name = format!("overshoot of a lease / ε, ε = {}", percent(seen.epsilon));
            let part = Figure::from_values([seen.measured / seen.epsilon].into_iter());
            goals.add(name, RedisGoalBound::AtMost(1.0), part);
        }
        println!("{table}");
        Ok(())
    }

    /// Measures several instances on one server.
    async fn instances(&self, names: &BenchKeyNames) -> Result<(), String> {
        let servers = Rc::new(RedisBenchServers::one());
        let mut cases = vec![many_keys_case(
            &servers,
            "naive",
            vec![RedisContestant::naive(&servers.url(), UNREACHED_QUOTA, names).await?],
            CALLERS,
        )];
        for count in 1..=3 {
            let instances: Result<Vec<_>, _> =
                (0..count).map(|_| tollgate(&servers, Consistency::Strict, names)).collect();
            cases.push(many_keys_case(
                &servers,
                &format!("strict, instances: {count}"),
                instances?,
                CALLERS,
            ));
        }
        self.measure("Instances, strict, 100,000 keys", cases).await.map(drop)
    }

    /// Measures clusters of one and of three nodes, each caller with its own slot and with shared ones.
    async fn cluster(&self, names: &BenchKeyNames, goals: &mut RedisGoals) -> Result<(), String> {
        let mut cases = Vec::new();
        for nodes in [1, 3] {
            let servers = Rc::new(RedisBenchServers::cluster(nodes));
            if nodes == 1 {
                // The naive limiter does not support clusters; here one node has all keys.
                let naive =
                    RedisContestant::naive(&servers.first_url(), UNREACHED_QUOTA, names).await?;
                cases.push(many_keys_case(&servers, "naive", vec![naive], CALLERS));
            }
            let instance = tollgate(&servers, Consistency::Strict, names)?;
            let name = format!("strict, nodes: {nodes}");
            cases.push(many_keys_case(&servers, &name, vec![instance], CALLERS));
            let (url, slots) = (servers.url(), SLOTS_PER_NODE * nodes);
            let url = format!("{url}?slots={slots}");
            let instance =
                RedisContestant::tollgate(&url, UNREACHED_QUOTA, Consistency::Strict, names)?;
            let name = format!("strict, nodes: {nodes}, slots: {slots}");
            cases.push(many_keys_case(&servers, &name, vec![instance], CALLERS));
        }
        let title = "Cluster, strict, 100,000 keys, all nodes on one core";
        let measured = self.measure(title, cases).await?;
        for shared in measured.iter().filter(|it| it.name.contains("slots")) {
            let times = shared.compare(&measured[0], |a, b| a.per_s / b.per_s);
            goals.add(format!("{} / naive", shared.name), RedisGoalBound::AtLeast(1.5), times);
        }
        Ok(())
    }

    /// One script and the same keys over two transports.
    async fn transport(&self, names: &BenchKeyNames) -> Result<(), String> {
        let servers = Rc::new(RedisBenchServers::one());
        let [theirs, ours] = RedisContestant::transports(&servers.url(), names).await?;
        let both = [(REDIS_CRATE, theirs), ("our transport", ours)];
        let loads = [1, 16, 64, 256].map(|callers| RedisLoad::Closed { callers });
        let cases = loads.iter().flat_map(|load| cases_under_load(&servers, &both, *load));
        let cases = cases.map(|case| RedisCase { peer: REDIS_CRATE, ..case }).collect();
        let title = "Transport, 100,000 keys; \"times naive\" is times the redis crate";
        self.measure(title, cases).await.map(drop)
    }
}

/// The transport of the redis crate, with which ours is compared.
const REDIS_CRATE: &str = "redis crate";

/// A Tollgate instance with a quota that is never exhausted.
fn tollgate(
    servers: &RedisBenchServers,
    consistency: Consistency,
    names: &BenchKeyNames,
) -> Result<Rc<RedisContestant>, String> {
    RedisContestant::tollgate(&servers.url(), UNREACHED_QUOTA, consistency, names)
}

/// One case for each contestant.
fn cases_under_load<'a>(
    servers: &'a Rc<RedisBenchServers>,
    who: &'a [(&str, Rc<RedisContestant>)],
    load: RedisLoad,
) -> impl Iterator<Item = RedisCase> + 'a {
    who.iter().map(move |(name, who)| many_keys_case(servers, name, vec![Rc::clone(who)], load))
}

/// A case with many keys.
fn many_keys_case(
    servers: &Rc<RedisBenchServers>,
    name: &str,
    who: Vec<Rc<RedisContestant>>,
    load: RedisLoad,
) -> RedisCase {
    RedisCase {
        name: name.to_owned(),
        contestants: who,
        servers: Rc::clone(servers),
        keys: RedisKeyChoice::Many(KEYS as u64),
        load,
        peer: "naive",
    }
}

/// Naive and strict under one load.
fn naive_and_strict(measured: &[RedisCaseSamples], load: RedisLoad) -> [&RedisCaseSamples; 2] {
    ["naive", "strict"].map(|name| {
        let found = measured.iter().find(|it| it.name == name && it.load == load);
        found.expect("both were measured")
    })
}
