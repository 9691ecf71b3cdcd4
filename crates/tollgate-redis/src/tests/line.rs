//! Waiting in line: who goes together, who waits for nobody, who is let go.

use std::collections::HashSet;
use std::time::Duration;

use testkit::redis::Server;
use testkit::wait;

use super::*;

#[test]
fn one_caller_at_a_time_waits_for_nobody_and_many_go_together() {
    let server = Server::start();
    let store = Store::of(&server);
    for _ in 0..100 {
        store.add("a").unwrap();
    }
    let alone = store.link.stats();
    assert_eq!((alone.flown, alone.answered), (alone.commands, alone.calls));
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
    let (calls, commands) = (stats.flown - alone.flown, stats.commands - alone.commands);
    assert!(calls >= 8 * commands, "{calls} calls in {commands} commands");
}

#[test]
fn calls_of_different_instants_do_not_share_a_command() {
    let server = Server::start();
    let store = Store::of(&server);
    let before = store.link.stats().commands;
    let crowd = async {
        let adding = (0..100u64).map(|index| {
            let link = store.link.clone();
            let call = Call { now: Some(index % 2), ..call_of("a", 0) };
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
    let server = Server::start();
    let store = Store::of(&server);
    store.add("a").unwrap();
    server.freeze();
    let gone = async {
        // Two flights are on their way, a call each; the others wait.
        for _ in 0..2 {
            let call = tokio::spawn({
                let link = store.link.clone();
                async move { add(&link, "flying", 0).await }
            });
            let on_the_way = || store.link.stats().nodes[0].on_the_way;
            let before = on_the_way();
            while on_the_way() == before {
                tokio::time::sleep(Duration::from_micros(100)).await;
            }
            call.abort();
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
        waiting.iter().for_each(|call| call.abort());
    };
    store.callers.block_on(gone);
    server.thaw();
    store.until_answered("a");
    wait::until_true("the line to empty", || {
        let node = &store.link.stats().nodes[0];
        node.waiting == 0 && node.on_the_way == 0
    });
    assert_eq!(server.cli(&["EXISTS", "waiting"]), "0");
}

#[test]
fn an_answer_that_is_there_counts_even_if_the_caller_was_kept_from_looking() {
    let server = Server::start();
    let store = Store::at(&server.url(), DEADLINE);
    store.until_answered("a");
    let answer = store.callers.block_on(async {
        let mut call = std::pin::pin!(add(&store.link, "a", 0));
        // Asked, and then not looked at until long after the deadline.
        std::future::poll_fn(|cx| {
            let _ = call.as_mut().poll(cx);
            std::task::Poll::Ready(())
        })
        .await;
        let start = wait::now();
        wait::until_true("three deadlines to pass", || wait::now() - start > 3 * DEADLINE);
        call.await
    });
    assert_eq!(answer.unwrap(), 2);
    assert_eq!(store.errors(ErrorClass::Timeout), 0);
}
