//! Whatever a client does, it costs a bounded amount: of bytes, of commands, of time, of connections.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Duration;

use testkit::wait::until_true;

use crate::harness::{DEADLINE, TollgateProcess};
use crate::resp::resp_client::{RespReply, RespTestClient, command, command_of};

#[test]
fn every_cap_ends_the_connection_and_says_why() {
    let server = TollgateProcess::start(&[]);
    let line = [&[b'x'; (16 << 10) + 2][..], b"\r\n"].concat();
    let big = [&b"*2\r\n$65536\r\n"[..], &[b'x'; 65_536], b"\r\n$65536\r\n"].concat();
    let rows: [(Vec<u8>, &str); 8] = [
        (b"*1025\r\n".to_vec(), "invalid multibulk length"),
        (b"*100000000000\r\n".to_vec(), "invalid multibulk length"),
        (b"*1\r\n$65537\r\n".to_vec(), "invalid bulk length"),
        (b"*1\r\n$-1\r\n".to_vec(), "invalid bulk length"),
        (b"*1\r\n:5\r\n".to_vec(), "expected '$', got ':'"),
        (b"*1\r\n$4\r\nPINGPONG".to_vec(), "expected CRLF after a bulk string"),
        (line, "too big inline request"),
        (big, "too big command"),
    ];
    for (bytes, want) in rows {
        let mut redis = RespTestClient::connect(&server);
        // What came before is answered, what comes after is heard out: to close with bytes unread would
        // be a reset, which takes the reply back.
        redis.send(&[b"PING\r\n", &bytes[..], &[b'x'; 500_000]].concat());
        let told = redis.until_closed();
        assert_eq!(told, format!("+PONG\r\n-ERR Protocol error: {want}\r\n"));
    }
    // But not without end.
    let mut endless = RespTestClient::connect(&server);
    endless.send(b"*1025\r\n");
    until_true("what never ends to be closed", || endless.try_send(&[b'x'; 60_000]).is_err());
    // Just below the caps.
    let mut redis = RespTestClient::connect(&server);
    let most: Vec<&[u8]> = vec![b"x"; 1_024];
    redis.send(&command_of(&most));
    assert!(redis.receive().error().starts_with("ERR unknown command 'x'"));
    redis.send(&command_of(&[b"ECHO", &[b'x'; 65_536]]));
    assert_eq!(redis.receive(), RespReply::Bulk(vec![b'x'; 65_536]));
}

/// Memory that the process has, in bytes.
fn resident(server: &TollgateProcess) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Sends what makes long replies and reads none, until the server takes nothing more: then the reason.
fn send_without_reading(stream: &mut TcpStream) -> io::Error {
    let echo = command_of(&[b"ECHO", &[b'x'; 60_000]]);
    let mut sent = 0_u64;
    loop {
        if let Err(error) = stream.write_all(&echo) {
            return error;
        }
        sent += echo.len() as u64;
        assert!(sent < 1 << 30, "the server takes everything");
    }
}

#[test]
fn clients_that_never_read_are_not_buffered_without_bound() {
    let server = TollgateProcess::start(&[]);
    let mut witness = RespTestClient::connect(&server);
    assert_eq!(witness.say("PING"), RespReply::Simple("PONG".into()));
    let before = resident(&server);
    let greedy: Vec<TcpStream> = (0..12)
        .map(|_| {
            let mut stream = TcpStream::connect(server.resp()).unwrap();
            // Not taken for so long: it is full.
            stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
            let full = send_without_reading(&mut stream);
            assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
            stream
        })
        .collect();
    let grown = resident(&server).saturating_sub(before);
    // 64 MiB of all, 64 KiB and what is read for each, twice that at most.
    assert!(grown < 150 << 20, "{grown} bytes for {} clients", greedy.len());
    assert_eq!(witness.say("PING"), RespReply::Simple("PONG".into()), "others are served");
    drop(greedy);
    let mut one = RespTestClient::connect(&server);
    one.send(&command_of(&[b"ECHO", &[b'x'; 60_000]]).repeat(100));
    for _ in 0..100 {
        assert!(matches!(one.receive(), RespReply::Bulk(_)), "there is room again");
    }
}

#[test]
fn a_client_that_never_reads_is_closed() {
    let server = TollgateProcess::start(&["--header-timeout", "1s"]);
    let mut stream = TcpStream::connect(server.resp()).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    let closed = send_without_reading(&mut stream);
    let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    assert!(kinds.contains(&closed.kind()), "{closed}");
}

#[test]
fn empty_lines_do_not_keep_a_client_that_never_reads() {
    let server = TollgateProcess::start(&["--header-timeout", "1s"]);
    let mut redis = RespTestClient::connect(&server);
    // More than the kernel keeps for both, less than a client may leave unread.
    redis.send(&command_of(&[b"ECHO", &[b'x'; 60_000]]).repeat(150));
    until_true("it to be closed", || redis.try_send(b"\r\n").is_err());
}

#[test]
fn half_a_command_is_not_waited_for_but_silence_is() {
    let server = TollgateProcess::start(&["--header-timeout", "300ms", "--idle-timeout", "300ms"]);
    let mut idle = RespTestClient::connect(&server);
    let mut used = RespTestClient::connect(&server);
    assert_eq!(used.say("PING"), RespReply::Simple("PONG".into()));
    // An empty line is no part of a command.
    let [mut blank, mut blank_later] = [(); 2].map(|()| RespTestClient::connect(&server));
    assert_eq!(blank_later.say("PING"), RespReply::Simple("PONG".into()));
    blank.send(b"\r\n");
    blank_later.send(b"\n*0\r\n");
    for begun in [
        &b"*2\r\n$4\r\nEC"[..],
        b"PIN",
        b"PING\r\nP",
        b"PING\r\n*",
        b"PING\r\n*1",
        b"PING\r\n*1\r",
        b"PING\r\n*1\r\n",
        b"*1\r\n$4\r\nPING\r\n*1\r\n$",
        b"\r\n\r\n*1",
    ] {
        let mut redis = RespTestClient::connect(&server);
        redis.send(begun);
        let told = redis.until_closed();
        assert!(told.is_empty() || told == "+PONG\r\n", "{told}");
    }
    // Drop by drop does not help.
    let mut redis = RespTestClient::connect(&server);
    redis.send(b"*1000\r\n");
    let dripping = command(&["x"]);
    let mut drops = dripping[4..].iter().cycle();
    until_true("a slow command to be closed", || {
        redis.try_send(&[*drops.next().unwrap()]).is_err()
    });
    // By now either has been silent for longer than any half command may take.
    for redis in [&mut idle, &mut used, &mut blank, &mut blank_later] {
        assert_eq!(redis.say("PING"), RespReply::Simple("PONG".into()));
    }
}

#[test]
fn a_connection_too_many_is_told() {
    let server = TollgateProcess::start(&["--max-connections-per-ip", "3"]);
    let mut kept: Vec<RespTestClient> = (0..3).map(|_| RespTestClient::connect(&server)).collect();
    for redis in &mut kept {
        assert_eq!(redis.say("PING"), RespReply::Simple("PONG".into()));
    }
    let mut more = RespTestClient::connect(&server);
    assert_eq!(more.until_closed(), "-ERR max number of clients reached\r\n");
    kept.pop();
    until_true("a place to become free", || {
        let mut redis = RespTestClient::connect(&server);
        let _ = redis.try_send(b"PING\r\n");
        redis.try_receive().is_ok_and(|reply| reply == RespReply::Simple("PONG".into()))
    });
}

#[test]
fn many_connections_ask_at_once() {
    let server = TollgateProcess::start(&["--max-connections-per-ip", "600"]);
    let mut all: Vec<RespTestClient> = (0..500).map(|_| RespTestClient::connect(&server)).collect();
    let call = command(&["CL.THROTTLE", "k", "4999", "1", "86400"]);
    for redis in &mut all {
        redis.send(&call.repeat(12));
    }
    let mut limited = 0;
    for redis in &mut all {
        for _ in 0..12 {
            let RespReply::Array(numbers) = redis.receive() else { panic!("no array") };
            limited += i64::from(numbers[0] == RespReply::Integer(1));
        }
    }
    assert_eq!(limited, 1_000, "of 6,000 calls 5,000 pass, whoever makes them");
}

#[test]
fn what_has_arrived_is_answered_when_the_server_stops() {
    let server = TollgateProcess::start(&[]);
    let mut idle = RespTestClient::connect(&server);
    let mut busy = RespTestClient::connect(&server);
    assert_eq!(idle.say("PING"), RespReply::Simple("PONG".into()));
    let calls = 20_000;
    busy.send(&command(&["CL.THROTTLE", "k", "4", "5", "60"]).repeat(calls));
    server.signal("TERM");
    for _ in 0..calls {
        assert!(matches!(busy.receive(), RespReply::Array(_)));
    }
    assert_eq!(busy.until_closed(), "");
    assert_eq!(idle.until_closed(), "");
    let ended = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_client_that_never_stops_does_not_keep_the_server_from_stopping() {
    let server = TollgateProcess::start(&[]);
    let mut endless = RespTestClient::connect(&server);
    let mut reading = endless.socket().try_clone().unwrap();
    let reading = std::thread::spawn(move || io::copy(&mut reading, &mut io::sink()));
    let mut socket = endless.socket().try_clone().unwrap();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let sending = std::thread::spawn(move || {
        let pings = b"PING\r\n".repeat(1_000);
        while socket.write_all(&pings).is_ok() {
            let _ = begun.send(());
        }
    });
    has_begun.recv().unwrap();
    server.signal("TERM");
    let ended = server.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stderr.contains("did not finish in time"), "{ended:?}");
    sending.join().unwrap();
    let _ = reading.join().unwrap();
}

#[test]
fn a_client_with_many_commands_does_not_keep_others_waiting() {
    // One worker: both are served by the same thread.
    let server = TollgateProcess::start(&["--workers", "1"]);
    let mut greedy = RespTestClient::connect(&server);
    let mut other = RespTestClient::connect(&server);
    assert_eq!(other.say("PING"), RespReply::Simple("PONG".into()));
    let calls = 200_000;
    let sending = {
        let mut socket = greedy.socket().try_clone().unwrap();
        let bytes = command(&["CL.THROTTLE", "k", "4", "5", "60"]).repeat(calls);
        std::thread::spawn(move || socket.write_all(&bytes).unwrap())
    };
    let mut turns = 0;
    for call in 0..calls {
        assert!(matches!(greedy.receive(), RespReply::Array(_)), "call {call}");
        if call % 20_000 == 0 {
            other.socket().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            assert_eq!(other.say("PING"), RespReply::Simple("PONG".into()));
            turns += 1;
        }
    }
    sending.join().unwrap();
    assert_eq!(turns, 10);
}
