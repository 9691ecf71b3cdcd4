use std::io::ErrorKind;

use super::*;
use crate::redis::TestRedis;

struct ProxyTestClient(TcpStream);

impl ProxyTestClient {
    fn of(proxy: &FaultProxy) -> ProxyTestClient {
        let stream = TcpStream::connect(proxy.address()).unwrap();
        stream.set_read_timeout(Some(wait::WAIT_TIMEOUT)).unwrap();
        ProxyTestClient(stream)
    }

    /// Sends one request, whose reply is `+PONG\r\n`.
    fn ask(&mut self) {
        self.0.write_all(b"PING\r\n").unwrap();
    }

    /// Reads this many bytes, or what comes before the end.
    fn read(&mut self, bytes: usize) -> Result<Vec<u8>, ErrorKind> {
        let mut got = Vec::new();
        let mut stream = (&self.0).take(bytes as u64);
        stream.read_to_end(&mut got).map_err(|error| error.kind())?;
        Ok(got)
    }

    fn ping(&mut self) -> Result<Vec<u8>, ErrorKind> {
        self.ask();
        self.read(7)
    }
}

fn behind_a_proxy() -> (TestRedis, FaultProxy) {
    let server = TestRedis::start();
    let proxy = FaultProxy::start(server.address());
    (server, proxy)
}

#[test]
fn bytes_pass_and_connections_are_counted() {
    let (_server, proxy) = behind_a_proxy();
    let (mut one, mut two) = (ProxyTestClient::of(&proxy), ProxyTestClient::of(&proxy));
    assert_eq!(one.ping().unwrap(), b"+PONG\r\n");
    assert_eq!(two.ping().unwrap(), b"+PONG\r\n");
    assert_eq!((proxy.connections(), proxy.open_connections()), (2, 2));
    drop(one);
    wait::until_true("a connection to be given up", || proxy.open_connections() == 1);
    assert_eq!(two.ping().unwrap(), b"+PONG\r\n");
}

#[test]
fn a_delay_holds_for_each_reply_and_not_for_their_sum() {
    let (_server, proxy) = behind_a_proxy();
    let mut client = ProxyTestClient::of(&proxy);
    client.ping().unwrap();
    let by = Duration::from_millis(500);
    proxy.set_mode(FaultMode::Delay { by, jitter: Duration::from_millis(5) });
    let begun = wait::now();
    for _ in 0..30 {
        client.ask();
        wait::pause(Duration::from_millis(1));
    }
    client.read(30 * 7).unwrap();
    let took = wait::now() - begun;
    assert!(took >= by, "{took:?}");
    // One after the other they would take all of this, so that a busy machine has the rest of it.
    assert!(took < 30 * by, "thirty replies on their way together took {took:?}");
}

#[test]
fn a_black_hole_swallows_requests_until_it_closes() {
    let (server, proxy) = behind_a_proxy();
    let mut client = ProxyTestClient::of(&proxy);
    client.ping().unwrap();
    let commands = |server: &TestRedis| {
        let info = server.cli(&["INFO", "commandstats"]);
        info.lines().filter(|line| line.starts_with("cmdstat_ping")).collect::<String>()
    };
    let before = commands(&server);
    proxy.set_mode(FaultMode::BlackHole);
    client.ask();
    let mut late = ProxyTestClient::of(&proxy);
    late.ask();
    client.0.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert_eq!(client.read(1), Err(ErrorKind::WouldBlock));
    assert_eq!(commands(&server), before, "nothing reached the server");
    proxy.set_mode(FaultMode::Pass);
    client.0.set_read_timeout(Some(wait::WAIT_TIMEOUT)).unwrap();
    assert_eq!(client.read(7).unwrap(), b"+PONG\r\n");
    assert_eq!(late.read(7).unwrap(), b"+PONG\r\n");
}

#[test]
fn replies_are_torn_as_the_mode_says() {
    // mode, what is read of "+PONG\r\n" and how it ends
    let rows = [
        (FaultMode::HalfClose, Ok(b"+PO".to_vec())),
        (FaultMode::Truncate, Ok(b"+PONG\r".to_vec())),
        (FaultMode::OneByteWrites, Ok(b"+PONG\r\n".to_vec())),
        (FaultMode::ResetMidReply, Err(ErrorKind::ConnectionReset)),
        (FaultMode::Refuse, Err(ErrorKind::ConnectionReset)),
    ];
    let (_server, proxy) = behind_a_proxy();
    for (mode, expected) in rows {
        proxy.set_mode(FaultMode::Pass);
        let mut client = ProxyTestClient::of(&proxy);
        client.ping().unwrap();
        proxy.set_mode(mode);
        // The reset may come before the request is written.
        let _ = client.0.write_all(b"PING\r\n");
        assert_eq!(client.read(7), expected, "{mode:?}");
    }
}

#[test]
fn garbage_is_as_long_as_the_reply_and_is_not_it() {
    let (_server, proxy) = behind_a_proxy();
    proxy.set_mode(FaultMode::Garbage);
    let got = ProxyTestClient::of(&proxy).ping().unwrap();
    assert_eq!(got.len(), 7);
    assert_ne!(got, b"+PONG\r\n");
}

#[test]
fn who_connects_while_refused_is_reset() {
    let (_server, proxy) = behind_a_proxy();
    proxy.set_mode(FaultMode::Refuse);
    let mut client = ProxyTestClient::of(&proxy);
    assert_eq!(client.read(1), Err(ErrorKind::ConnectionReset));
    assert_eq!((proxy.connections(), proxy.open_connections()), (1, 0));
}

#[test]
fn a_dropped_proxy_ends_its_connections_whatever_it_was_doing() {
    let (_server, proxy) = behind_a_proxy();
    let mut client = ProxyTestClient::of(&proxy);
    client.ping().unwrap();
    proxy.set_mode(FaultMode::BlackHole);
    drop(proxy);
    assert!(matches!(client.read(1).as_deref(), Ok(b"") | Err(ErrorKind::ConnectionReset)));
}
