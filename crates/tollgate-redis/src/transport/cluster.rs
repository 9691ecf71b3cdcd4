//! A cluster: which node has which slot, learnt from the nodes and corrected by every redirection.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::error::{ErrorClass, StoreError};
use crate::transport::command::RedisCommand;
use crate::transport::connect::{HandshakeOptions, ask_once};
use crate::transport::link::AbortOnDropTask;
use crate::transport::node::{NodeOptions, RedisNode, keep_connected};
use crate::transport::sentinel::ServerFinder;
use crate::transport::stats::LinkCounters;
use crate::transport::url::{Address, is_host};
use crate::transport::value::RedisValue;

/// Slots of a cluster.
const SLOTS: usize = 16_384;
/// Nodes that are kept connected. The largest clusters have so many primaries.
const NODES_MAX: usize = 1000;
/// A slot that nobody has.
const NO_NODE: u16 = u16::MAX;
/// Interval at which the map is read in normal operation, and while a node is unreachable.
const REFRESH: Duration = Duration::from_secs(10);
const REFRESH_DOWN: Duration = Duration::from_millis(500);
/// The least between two readings, whatever asks for them.
const REFRESH_MIN: Duration = Duration::from_millis(100);
/// Timeout of a node's answer about the map.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(250);
/// A node that is not in the map is kept for so long after the last redirection to it: a slot may be on
/// its way to a node that has none yet.
const REDIRECT_TARGET_KEPT: Duration = Duration::from_secs(10);
/// Nodes that are asked in one attempt.
const NODES_ASKED_MAX: usize = 4;

/// A cluster.
pub(crate) struct Cluster {
    map: RwLock<SlotMap>,
    /// Notified when a call was redirected, or not answered.
    stale: Notify,
    /// The map was read, or could not be.
    map_read: Notify,
    /// Bound: the hosts of a URL.
    seeds: Vec<Address>,
    handshake: HandshakeOptions,
    node_options: NodeOptions,
    counters: Arc<LinkCounters>,
    /// The runtime of connections to new nodes.
    runtime: Handle,
}

struct SlotMap {
    /// The index of each slot's node, or [`NO_NODE`].
    owners: Box<[u16; SLOTS]>,
    /// Bound: [`NODES_MAX`].
    nodes: Vec<ClusterMember>,
    /// The reason why there is no map; `None` if no attempt has failed.
    missing: Option<StoreError>,
    known: bool,
}

struct ClusterMember {
    address: Address,
    node: Arc<RedisNode>,
    task: AbortOnDropTask,
    /// The time of the last redirection to it.
    redirected_at: Option<Instant>,
}

/// Slots from the first to the last, and who has them.
type SlotRange = (u16, u16, Address);

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<Address>,
        introduction: HandshakeOptions,
        usage: NodeOptions,
        counters: Arc<LinkCounters>,
        runtime: &Handle,
    ) -> Cluster {
        let owners = Box::new([NO_NODE; SLOTS]);
        let map = SlotMap { owners, nodes: Vec::new(), missing: None, known: false };
        Cluster {
            map: RwLock::new(map),
            stale: Notify::new(),
            map_read: Notify::new(),
            seeds,
            handshake: introduction,
            node_options: usage,
            counters,
            runtime: runtime.clone(),
        }
    }

    /// The node to ask: the owner of the slot, or any. Waits for the first map.
    pub(crate) async fn route(
        &self,
        slot: Option<u16>,
        deadline: Instant,
    ) -> Result<Arc<RedisNode>, StoreError> {
        loop {
            // Made before the look, so that what happens after it is not missed.
            let read = self.map_read.notified();
            {
                let map = self.map();
                if map.known {
                    return map.owner(slot);
                }
                if let Some(why) = &map.missing {
                    return Err(why.clone());
                }
            }
            if timeout_at(deadline, read).await.is_err() {
                let detail = "no node of the cluster has answered yet";
                return Err(StoreError::new(ErrorClass::Connect, detail));
            }
        }
    }

    /// A redirection for good. `MOVED 866 127.0.0.1:7002`, or no more than the word.
    pub(crate) fn moved(&self, detail: &str, from: &RedisNode) {
        if let Some((slot, address)) = redirection(detail, from) {
            let mut map = self.map_mut();
            if let Some(place) = self.member_index(&mut map, &address) {
                map.owners[usize::from(slot)] = place as u16;
            }
        }
        self.refresh_soon();
    }

    /// A redirection for one command: whom to ask.
    pub(crate) fn ask_target(&self, detail: &str, from: &RedisNode) -> Option<Arc<RedisNode>> {
        let (_, address) = redirection(detail, from)?;
        let mut map = self.map_mut();
        let place = self.member_index(&mut map, &address)?;
        Some(map.nodes[place].node.clone())
    }

    /// The map may be old.
    pub(crate) fn refresh_soon(&self) {
        self.stale.notify_one();
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<RedisNode>> {
        self.map().nodes.iter().map(|member| member.node.clone()).collect()
    }

    /// The index of a node that a call is redirected to. A new node is connected.
    fn member_index(&self, map: &mut SlotMap, address: &Address) -> Option<usize> {
        let known = map.nodes.iter().position(|member| member.address == *address);
        if known.is_none() && map.nodes.len() < NODES_MAX {
            map.nodes.push(self.connect(address));
        }
        let place = known.unwrap_or(map.nodes.len() - 1);
        let member = map.nodes.get_mut(place).filter(|member| member.address == *address)?;
        member.redirected_at = Some(Instant::now());
        Some(place)
    }

    fn connect(&self, address: &Address) -> ClusterMember {
        let node = Arc::new(RedisNode::new(self.node_options, self.counters.clone()));
        let finder = ServerFinder::Fixed(address.clone());
        let work = keep_connected(node.clone(), finder, self.handshake.clone());
        let task = AbortOnDropTask::spawn(&self.runtime, work);
        ClusterMember { address: address.clone(), node, task, redirected_at: None }
    }

    /// Puts a new map in place of the old one. Nodes that are in both keep their connections.
    fn apply(&self, ranges: &[SlotRange], now: Instant) {
        let mut owners = Box::new([NO_NODE; SLOTS]);
        let mut nodes: Vec<ClusterMember> = Vec::new();
        let mut map = self.map_mut();
        let mut old = std::mem::take(&mut map.nodes);
        for (first, last, address) in ranges {
            let place = match nodes.iter().position(|member| member.address == *address) {
                Some(place) => place,
                None if nodes.len() >= NODES_MAX => continue,
                None => {
                    let known = old.iter().position(|member| member.address == *address);
                    nodes.push(match known {
                        Some(known) => old.swap_remove(known),
                        None => self.connect(address),
                    });
                    nodes.len() - 1
                }
            };
            owners[usize::from(*first)..=usize::from(*last)].fill(place as u16);
        }
        let mut gone = Vec::new();
        for member in old {
            let kept = member.redirected_at.is_some_and(|told| now < told + REDIRECT_TARGET_KEPT);
            let side = if kept && nodes.len() < NODES_MAX { &mut nodes } else { &mut gone };
            side.push(member);
        }
        map.nodes = nodes;
        (map.owners, map.known, map.missing) = (owners, true, None);
        drop(map);
        for member in gone {
            member.node.retire();
            member.task.detach();
        }
    }

    fn map(&self) -> RwLockReadGuard<'_, SlotMap> {
        self.map.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn map_mut(&self) -> RwLockWriteGuard<'_, SlotMap> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotMap {
    fn owner(&self, slot: Option<u16>) -> Result<Arc<RedisNode>, StoreError> {
        let place = match slot {
            Some(slot) => self.owners[usize::from(slot) % SLOTS],
            None => self.nodes.iter().position(|it| it.node.is_up()).unwrap_or(0) as u16,
        };
        match self.nodes.get(usize::from(place)) {
            Some(member) => Ok(member.node.clone()),
            None => Err(StoreError::new(ErrorClass::ClusterDown, "no node has this slot")),
        }
    }
}

/// Keeps the map as it is in the cluster, for ever.
pub(crate) async fn keep_map(cluster: Arc<Cluster>) {
    let mut turn = 0;
    loop {
        match read_map(&cluster, turn).await {
            Ok(ranges) => cluster.apply(&ranges, Instant::now()),
            Err(why) => {
                cluster.counters.count(why.class);
                cluster.map_mut().missing = Some(why);
            }
        }
        cluster.counters.refreshed();
        cluster.map_read.notify_waiters();
        turn += 1;
        sleep(REFRESH_MIN).await;
        let well = cluster.map().known && cluster.nodes().iter().all(|node| node.is_up());
        let pause = if well { REFRESH } else { REFRESH_DOWN };
        let _ = timeout(pause, cluster.stale.notified()).await;
    }
}

/// Asks nodes, another one first each time, then those of the URL.
async fn read_map(cluster: &Cluster, turn: usize) -> Result<Vec<SlotRange>, StoreError> {
    let question = || RedisCommand::new("CLUSTER").arg("SLOTS");
    let nodes: Vec<_> = cluster.nodes().into_iter().filter(|node| node.is_up()).collect();
    for index in 0..nodes.len().min(NODES_ASKED_MAX) {
        let node = &nodes[(turn + index) % nodes.len()];
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        if let (Ok(value), Some(address)) = (node.run(question(), deadline).await, node.address())
            && let Some(ranges) = read_slots(&value, &address)
        {
            return Ok(ranges);
        }
    }
    let mut last = None;
    let HandshakeOptions { login, connector: reach, .. } = &cluster.handshake;
    for index in 0..cluster.seeds.len().min(NODES_ASKED_MAX) {
        let seed = &cluster.seeds[(turn * NODES_ASKED_MAX + index) % cluster.seeds.len()];
        match ask_once(seed, login, reach, turn, question()).await {
            Ok(value) => match read_slots(&value, seed) {
                Some(ranges) => return Ok(ranges),
                None => {
                    let detail = format!("{seed} knows no node of the cluster");
                    last = Some(StoreError::new(ErrorClass::ClusterDown, detail));
                }
            },
            Err(error) => last = Some(error),
        }
    }
    Err(last.expect("a URL has a host"))
}

/// The reply of CLUSTER SLOTS: `[[first, last, [host, port, …], replicas …] …]`. Nothing, if no
/// slot has a node: such a map is not worth having.
fn read_slots(value: &RedisValue, from: &Address) -> Option<Vec<SlotRange>> {
    let RedisValue::Array(ranges) = value else { return None };
    let read = |range: &RedisValue| {
        let RedisValue::Array(range) = range else { return None };
        let [RedisValue::Int(first), RedisValue::Int(last), RedisValue::Array(node), ..] =
            &range[..]
        else {
            return None;
        };
        let [host, RedisValue::Int(port), ..] = &node[..] else { return None };
        let host = match host {
            RedisValue::BulkString(host) => std::str::from_utf8(host).ok()?,
            _ => "",
        };
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        if first > last || usize::from(last) >= SLOTS {
            return None;
        }
        Some((first, last, address(host, u16::try_from(*port).ok()?, from)?))
    };
    let ranges: Vec<_> = ranges.iter().filter_map(read).collect();
    (!ranges.is_empty()).then_some(ranges)
}

/// The slot and the node of a redirection.
fn redirection(detail: &str, from: &RedisNode) -> Option<(u16, Address)> {
    let mut words = detail.split_ascii_whitespace().skip(1);
    let slot: u16 = words.next()?.parse().ok()?;
    if usize::from(slot) >= SLOTS {
        return None;
    }
    let (host, port) = words.next()?.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((slot, address(host, port.parse().ok()?, &from.address()?)?))
}

/// A node that does not know its own host is at the host it was asked at.
fn address(host: &str, port: u16, from: &Address) -> Option<Address> {
    let host = match (host, from) {
        ("" | "?", Address::Tcp { host, .. }) => host,
        _ => host,
    };
    (is_host(host) && port > 0).then(|| Address::Tcp { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::connect::Connector;
    use crate::transport::url::{Login, StoreUrl};

    fn cluster() -> Cluster {
        let seeds = StoreUrl::parse("redis-cluster://127.1.0.1:1").unwrap().hosts;
        let introduction = HandshakeOptions {
            login: Login::default(),
            database: 0,
            connector: Connector::new(None, ANSWER_TIMEOUT),
            must_be_primary: false,
        };
        let usage = NodeOptions {
            by_slot: true,
            script: &crate::transport::tests::COUNTING,
            caller_timeout: ANSWER_TIMEOUT,
        };
        Cluster::new(seeds, introduction, usage, Arc::default(), &Handle::current())
    }

    fn at(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port }
    }

    #[tokio::test]
    async fn redirections_to_ever_new_nodes_end_at_the_bound_and_a_new_map_forgets_them() {
        let cluster = cluster();
        let seed = cluster.connect(&cluster.seeds[0]);
        tokio::task::yield_now().await;
        let now = Instant::now();
        cluster.apply(&[(0, 16_383, at("127.1.0.1", 1))], now);
        for n in 0..1500 {
            let detail = format!("MOVED {} 127.1.{}.{}:1", n % 20_000, 1 + n / 250, 1 + n % 250);
            cluster.moved(&detail, &seed.node);
            cluster.ask_target(&detail.replace("MOVED", "ASK"), &seed.node);
        }
        assert_eq!(cluster.nodes().len(), NODES_MAX);
        let known = cluster.map().nodes[0].node.clone();
        // Targets of a recent redirection are still needed, and then no more.
        cluster.apply(&[(0, 16_383, at("127.1.0.1", 1))], now);
        assert_eq!(cluster.nodes().len(), NODES_MAX);
        cluster.apply(&[(0, 16_383, at("127.1.0.1", 1))], Instant::now() + REDIRECT_TARGET_KEPT);
        assert_eq!(cluster.nodes().len(), 1);
        assert!(Arc::ptr_eq(&cluster.nodes()[0], &known), "a node that stays keeps its connection");
        // One map that claims more nodes than there may be.
        let many: Vec<SlotRange> = (0..1500)
            .map(|n| (n, n, at(&format!("127.1.{}.{}", 1 + n / 250, 1 + n % 250), 1)))
            .collect();
        cluster.apply(&many, now);
        assert_eq!(cluster.nodes().len(), NODES_MAX);
        assert_eq!(cluster.map().owner(Some(1499)).err().unwrap().class, ErrorClass::ClusterDown);
    }

    #[tokio::test]
    async fn a_node_that_leaves_finishes_what_is_on_its_way_and_its_connection_ends() {
        let server = testkit::redis::TestRedis::start();
        let cluster = cluster();
        let address = at("127.0.0.1", server.port());
        let now = Instant::now();
        cluster.apply(&[(0, 16_383, address)], now);
        let node = cluster.nodes()[0].clone();
        let command = || RedisCommand::new("INCR").arg("a");
        let deadline = Instant::now() + Duration::from_secs(5);
        assert_eq!(node.run(command(), deadline).await.unwrap(), RedisValue::Int(1));
        server.freeze();
        let asked = tokio::spawn({
            let node = node.clone();
            async move { node.run(command(), deadline).await }
        });
        while node.stats().in_flight == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        cluster.apply(&[(0, 16_383, at("127.1.0.1", 1))], now + REDIRECT_TARGET_KEPT);
        let told = node.run(command(), deadline).await.unwrap_err();
        assert_eq!(told.class, ErrorClass::Moved, "it takes no more");
        server.thaw();
        assert_eq!(asked.await.unwrap().unwrap(), RedisValue::Int(2));
        while server.cli(&["CLIENT", "LIST"]).contains("name=tollgate") {
            sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test]
    async fn redirections_of_any_length_are_read_whole_and_only_to_hosts() {
        let cluster = cluster();
        let from = cluster.connect(&cluster.seeds[0]);
        while from.node.address().is_none() {
            tokio::task::yield_now().await;
        }
        let long = "h".repeat(253);
        for (host, found) in [
            ("127.1.0.9", Some("127.1.0.9")),
            ("", Some("127.1.0.1")),
            ("[::1]", Some("::1")),
            (&long, Some(&*long)),
            (&"h".repeat(254), None),
            (&"h".repeat(3000), None),
            ("a,b", None),
            ("u:p@h", None),
        ] {
            let error = StoreError::of_reply(&format!("MOVED 16383 {host}:65535"));
            let expected = found.map(|host| (16_383, at(host, 65_535)));
            assert_eq!(redirection(&error.detail, &from.node), expected, "{host}");
        }
    }

    #[test]
    fn what_is_no_map_is_none() {
        let from = at("h", 7);
        let text = |text: &str| RedisValue::BulkString(text.into());
        let range = |first, last, host: RedisValue, port| {
            let node = RedisValue::Array(vec![host, RedisValue::Int(port), text("id")]);
            RedisValue::Array(vec![RedisValue::Int(first), RedisValue::Int(last), node])
        };
        for (value, expected) in [
            (RedisValue::Nil, None),
            (RedisValue::Array(vec![]), None),
            (RedisValue::Array(vec![RedisValue::Int(1)]), None),
            (RedisValue::Array(vec![range(0, 16_384, text("a"), 1)]), None),
            (RedisValue::Array(vec![range(5, 4, text("a"), 1)]), None),
            (RedisValue::Array(vec![range(-1, 4, text("a"), 1)]), None),
            (RedisValue::Array(vec![range(0, 4, text("a"), 70_000)]), None),
            (RedisValue::Array(vec![range(0, 4, text("a"), 0)]), None),
            (RedisValue::Array(vec![range(0, 4, text("a b"), 1)]), None),
            (RedisValue::Array(vec![range(0, 4, text("a\n"), 1)]), None),
            (RedisValue::Array(vec![range(0, 4, text(&"a".repeat(254)), 1)]), None),
            (RedisValue::Array(vec![range(0, 4, text("a"), 1)]), Some(at("a", 1))),
            // A node that does not know its name is where it was asked.
            (RedisValue::Array(vec![range(0, 4, text(""), 1)]), Some(at("h", 1))),
            (RedisValue::Array(vec![range(0, 4, text("?"), 1)]), Some(at("h", 1))),
            (RedisValue::Array(vec![range(0, 4, RedisValue::Nil, 1)]), Some(at("h", 1))),
        ] {
            let found = read_slots(&value, &from).map(|ranges| ranges[0].2.clone());
            assert_eq!(found, expected, "{value:?}");
        }
    }
}
