//! Replies that do not come, or never end, though the server has done what it was asked.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use testkit::redis::TestRedis;
use testkit::wait;

use super::*;

/// Hands on what passes, until the next reply is to be torn; then once whatever `tear` does.
struct TearingRelay {
    address: SocketAddr,
    torn: Arc<AtomicBool>,
}

impl TearingRelay {
    fn start(server: &TestRedis, tear: fn(&TcpStream)) -> TearingRelay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, target) = (listener.local_addr().unwrap(), server.address());
        let torn = Arc::new(AtomicBool::new(false));
        let tearing = torn.clone();
        // Its threads end with the process: a test has one of its own.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(target) else { continue };
                let (client2, server2) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || hand_on(&client2, &server2, |_| true));
                let tearing = tearing.clone();
                std::thread::spawn(move || {
                    hand_on(&server, &client, |client| {
                        let tear_now = tearing.swap(false, Ordering::SeqCst);
                        if tear_now {
                            tear(client);
                        }
                        !tear_now
                    });
                });
            }
        });
        TearingRelay { address, torn }
    }

    fn tear_the_next(&self) {
        self.torn.store(true, Ordering::SeqCst);
    }
}

fn hand_on(mut from: &TcpStream, mut to: &TcpStream, passes: impl Fn(&TcpStream) -> bool) {
    let mut piece = [0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        if !passes(to) || to.write_all(&piece[..length]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A connection that ends sooner is not replaced at once.
fn settle(server: &TestRedis) {
    wait::until_true("a second to pass", || {
        let clients = server.cli(&["CLIENT", "LIST"]);
        let ours = clients.lines().find(|line| line.contains("name=tollgate")).unwrap();
        !ours.contains("age=0 ") && !ours.contains("age=1 ")
    });
}

#[test]
fn what_may_have_been_carried_out_is_not_asked_again() {
    let server = TestRedis::start();
    let relay = TearingRelay::start(&server, |_| ());
    let store = CountingStore::at(&format!("redis://{}", relay.address), PLENTY);
    assert_eq!(store.add("a").unwrap(), 1);
    settle(&server);
    // A PING may be what is torn: then the connection is replaced, and nothing else has happened.
    let torn = wait::until("a call to be torn", || {
        relay.tear_the_next();
        let before: i64 = server.cli(&["GET", "a"]).parse().unwrap();
        let answer = store.add("a");
        let after: i64 = server.cli(&["GET", "a"]).parse().unwrap();
        assert!(after <= before + 1, "carried out twice: {answer:?}");
        answer.err()
    });
    assert_eq!(torn.class, ErrorClass::Closed);
    store.until_answered("b");
}

#[test]
fn a_server_that_trickles_is_given_up() {
    let server = TestRedis::start();
    let relay = TearingRelay::start(&server, |mut client| {
        let _ = client.write_all(b"$1000000\r\n");
        while client.write_all(b"a").is_ok() {
            let _ = wait::within(Duration::from_millis(20), || None::<()>);
        }
    });
    let store = CountingStore::at(&format!("redis://{}", relay.address), DEADLINE);
    store.until_answered("a");
    relay.tear_the_next();
    store.until_class(ErrorClass::Timeout);
    wait::until_true("another connection", || store.link.stats().connections == 2);
    store.until_answered("a");
}
