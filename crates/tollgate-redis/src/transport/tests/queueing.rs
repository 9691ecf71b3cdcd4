//! Waiting in line: who goes together, who waits for nobody, who is let go.

use std::collections::HashSet;
use std::task::Poll;
use std::time::Duration;

use testkit::fault_proxy::{FaultMode, FaultProxy};
use testkit::random::SplitMix64;
use testkit::redis::TestRedis;
use testkit::wait;

use super::*;
use crate::transport::batch::{CALLS_PER_FLIGHT_MAX, FLIGHTS_MAX, FLIGHTS_USUAL};
use crate::transport::command::RedisCommand;

#[test]
fn one_caller_at_a_time_waits_for_nobody_and_many_go_together() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    for _ in 0..100 {
        store.add("a").unwrap();
    }
    let alone = store.link.stats();
    assert_eq!((alone.calls_sent, alone.answered), (alone.commands, alone.calls));
    let crowd = async {
        let adding = (0..256).map(|index| {
            let link = store.link.clone();
            tokio::spawn(async move {
                let mut sums = Vec::new();
                for _ in 0..100 {
                    sums.push(add(&link, "b", index).await.unwrap());
                }
                sums
            })
        });
        let mut all = HashSet::new();
        for adding in adding.collect::<Vec<_>>() {
            for sum in adding.await.unwrap() {
                assert!(all.insert(sum), "{sum} was told twice");
            }
        }
        all.len()
    };
    assert_eq!(store.callers.block_on(crowd), 25_600);
    assert_eq!(server.cli(&["GET", "b"]), "25600");
    let stats = store.link.stats();
    let (calls, commands) = (stats.calls_sent - alone.calls_sent, stats.commands - alone.commands);
    assert!(calls >= 8 * commands, "{calls} calls in {commands} commands");
}

#[test]
fn calls_of_different_instants_do_not_share_a_command() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    let before = store.link.stats().commands;
    let crowd = async {
        let adding = (0..100u64).map(|index| {
            let link = store.link.clone();
            let call = ScriptCall { now: Some(index % 2), ..call_of("a", 0) };
            tokio::spawn(async move { link.call(call).await.unwrap() })
        });
        for adding in adding.collect::<Vec<_>>() {
            adding.await.unwrap();
        }
    };
    store.callers.block_on(crowd);
    let stats = store.link.stats();
    assert!(stats.commands - before >= 2);
    assert_eq!(server.cli(&["GET", "a"]), "100");
}

#[test]
fn whoever_gives_up_while_waiting_is_not_charged() {
    let server = TestRedis::start();
    // So much patience that for a while no more than the usual flights leave.
    let store = CountingStore::at(&server.url(), Duration::from_secs(60));
    store.add("a").unwrap();
    server.freeze();
    let gone = async {
        // Two flights are on their way, a call each; the others wait.
        for _ in 0..FLIGHTS_USUAL {
            let call = tokio::spawn({
                let link = store.link.clone();
                async move { add(&link, "flying", 0).await }
            });
            let on_the_way = || store.link.stats().nodes[0].in_flight;
            let before = on_the_way();
            while on_the_way() == before {
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            call.abort();
            assert!(call.await.is_err());
        }
        let waiting: Vec<_> = (0..500)
            .map(|_| {
                let link = store.link.clone();
                tokio::spawn(async move { add(&link, "waiting", 0).await })
            })
            .collect();
        while store.link.stats().nodes[0].waiting < 500 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        for call in waiting {
            call.abort();
            assert!(call.await.is_err());
        }
    };
    store.callers.block_on(gone);
    server.thaw();
    store.until_answered("a");
    wait::until_true("the line to empty", || {
        let node = &store.link.stats().nodes[0];
        node.waiting == 0 && node.in_flight == 0
    });
    assert_eq!(server.cli(&["EXISTS", "waiting"]), "0");
}

#[test]
fn an_answer_that_is_there_counts_even_if_the_caller_was_kept_from_looking() {
    let server = TestRedis::start();
    let store = CountingStore::at(&server.url(), DEADLINE);
    let sum = store.until_answered("a");
    let late = store.errors(ErrorClass::Timeout);
    let answer = store.callers.block_on(async {
        let mut call = std::pin::pin!(add(&store.link, "a", 0));
        // Asked, and then not looked at until long after the deadline; unless it is there at once.
        let asked = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
        if let Poll::Ready(answer) = asked {
            return answer;
        }
        let start = wait::now();
        wait::until_true("three deadlines to pass", || wait::now() - start > 3 * DEADLINE);
        call.await
    });
    assert_eq!(answer.unwrap(), sum + 1);
    assert_eq!(store.errors(ErrorClass::Timeout), late);
}

#[test]
fn whoever_would_look_too_late_is_not_charged() {
    let server = TestRedis::start();
    let store = CountingStore::at(&server.url(), DEADLINE);
    store.until_answered("a");
    server.freeze();
    store.callers.block_on(async {
        let ask = || Box::pin(add(&store.link, "late", 0));
        let mut calls: Vec<_> = (0..3000).map(|_| ask()).collect();
        // All ask, and none is looked at until the server has nothing more to do for them.
        std::future::poll_fn(|cx| {
            // A machine that takes its time over this may have some told at once.
            calls.retain_mut(|call| call.as_mut().poll(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let start = wait::now();
        wait::until_true("the deadline to pass", || wait::now() - start > 2 * DEADLINE);
        server.thaw();
        wait::until_true("the line to empty", || {
            let node = &store.link.stats().nodes[0];
            node.waiting == 0 && node.in_flight == 0
        });
        let mut told = 0;
        for call in calls {
            match call.await {
                Ok(_) => told += 1,
                Err(error) => assert_eq!(error.class, ErrorClass::Timeout),
            }
        }
        // Those that were on their way when the server froze were carried out, and told.
        assert!(told <= FLIGHTS_MAX * CALLS_PER_FLIGHT_MAX, "{told}");
        assert_eq!(server.cli(&["GET", "late"]), told.to_string());
    });
}

#[test]
fn callers_on_many_threads_who_come_and_go_are_all_served_and_none_is_forgotten() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let link = store.link.clone();
            std::thread::spawn(move || runtime().block_on(come_and_go(link, seed)))
        })
        .collect();
    let (mut served, mut gone) = (0, 0);
    for thread in threads {
        let (answered, left) = thread.join().unwrap();
        served += answered;
        gone += left;
    }
    // Whoever left may have been charged, and nobody else twice.
    let sum: u64 = server.cli(&["GET", "a"]).parse().unwrap();
    assert!((served..=served + gone).contains(&sum), "{sum} of {served} and {gone}");
    assert!(served > 1000 && gone > 100, "{served} and {gone}");
    let node = &store.link.stats().nodes[0];
    wait::until_true("the line to empty", || {
        let node = &store.link.stats().nodes[0];
        node.waiting == 0 && node.in_flight == 0
    });
    assert_eq!(node.breaker_opened, 0);
    assert_eq!(store.link.stats().connections, 1);
}

/// How many were answered, and how many left before.
async fn come_and_go(link: Link, seed: u64) -> (u64, u64) {
    let callers = (0..16).map(|n| {
        let (link, mut random) = (link.clone(), SplitMix64::seeded(seed * 100 + n));
        tokio::spawn(async move {
            let (mut served, mut gone) = (0, 0);
            for _ in 0..200 {
                let call = add(&link, "a", 0);
                // Half of them wait for the answer, the others a few turns.
                let turns = if random.one_in(2) { u64::MAX } else { random.below(4) };
                let patience = async {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                };
                tokio::select! {
                    biased;
                    answer = call => served += answer.map(|_| 1).unwrap(),
                    () = patience => gone += 1,
                }
            }
            (served, gone)
        })
    });
    let (mut served, mut gone) = (0, 0);
    for caller in callers.collect::<Vec<_>>() {
        let (answered, left) = caller.await.unwrap();
        served += answered;
        gone += left;
    }
    (served, gone)
}

#[test]
fn far_away_is_not_too_late() {
    let server = TestRedis::start();
    let proxy = FaultProxy::start(server.address());
    // Half of the deadline for the way: whoever waits for one flight and then flies comes too late.
    let far = Duration::from_millis(200);
    let store = CountingStore::at(&proxy.url(), 2 * far);
    store.until_answered("a");
    proxy.set_mode(FaultMode::Delay { by: far, jitter: Duration::ZERO });
    let crowd = async {
        let adding: Vec<_> = (0..100)
            .map(|n| {
                let link = store.link.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(n)).await;
                    add(&link, "a", 0).await
                })
            })
            .collect();
        let mut answered = 0;
        for adding in adding {
            answered += usize::from(adding.await.unwrap().is_ok());
        }
        answered
    };
    let answered = store.callers.block_on(crowd);
    assert!(answered >= 95, "{answered} of 100");
}

#[test]
fn decisions_do_not_wait_behind_what_goes_beside_them() {
    let server = TestRedis::start();
    let store = CountingStore::of(&server);
    store.until_answered("a");
    let beside = store.link.separate_link();
    store.callers.block_on(async {
        // The server holds back the connection until something is pushed, and answers the other.
        let blocked = tokio::spawn({
            let (beside, pop) = (beside.clone(), RedisCommand::new("BLPOP").arg("list").number(30));
            async move { beside.run(pop, None).await }
        });
        while beside.stats().nodes[0].in_flight == 0 {
            tokio::time::sleep(Duration::from_micros(100)).await;
        }
        for sum in 2..20 {
            assert_eq!(add(&store.link, "a", 0).await.unwrap(), sum);
        }
        assert!(!blocked.is_finished());
        assert_eq!(server.cli(&["RPUSH", "list", "x"]), "1");
        assert!(blocked.await.unwrap().is_ok());
    });
    drop(beside);
    wait::until_true("its connection to end", || {
        server.cli(&["CLIENT", "LIST"]).matches("name=tollgate").count() == 1
    });
}

/// Run by hand: calls a second, by how many ask at once.
#[test]
#[ignore = "a measurement"]
fn throughput() {
    let server = TestRedis::start();
    let store = CountingStore::at(&server.url(), DEADLINE);
    store.until_answered("a");
    for round in 0..3 {
        for callers in [1, 16, 64, 256, 1024u64] {
            let before = store.link.stats();
            let start = wait::now();
            store.callers.block_on(async {
                let over = tokio::time::Instant::now() + Duration::from_secs(1);
                let asking = (0..callers).map(|n| {
                    let (link, key) = (store.link.clone(), format!("k{n}"));
                    tokio::spawn(async move {
                        while tokio::time::Instant::now() < over {
                            let _ = add(&link, &key, 0).await;
                        }
                    })
                });
                for asking in asking.collect::<Vec<_>>() {
                    asking.await.unwrap();
                }
            });
            let (took, after) = ((wait::now() - start).as_secs_f64(), store.link.stats());
            let (calls, flights) = (after.calls - before.calls, after.flights - before.flights);
            let per_flight = calls as f64 / flights as f64;
            println!(
                "{round}: {callers} callers: {:.0}/s, {per_flight:.1} a flight",
                calls as f64 / took
            );
        }
    }
}
