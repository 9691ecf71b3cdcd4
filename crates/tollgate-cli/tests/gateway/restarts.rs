//! Restarts: a new process takes over the port of the old one.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testkit::peers::{UPSTREAM_BODY, Upstream};

use crate::harness::{TestHttpClient, TollgateProcess, tollgate};

/// Passes its standard input on as a socket, by the convention of systemd.
const PASS_SOCKET: &str =
    r#"exec 3<&0 </dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec "$0" "$@""#;

/// A server that gets `socket` from its supervisor, under this name.
fn with_socket(socket: &TcpListener, name: &str, flags: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let program = tollgate();
    command.args(["-c", PASS_SOCKET]).arg(program.get_program()).arg("serve").args(flags);
    for (variable, value) in program.get_envs() {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    let socket = OwnedFd::from(socket.try_clone().expect("a descriptor"));
    command.env("LISTEN_FDNAMES", name).stdin(socket);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Sends requests, each on a connection of its own, until `stop` is set. Returns their number; all must be answered.
fn send_until(stop: &AtomicBool, gateway: SocketAddr) -> usize {
    let mut answered = 0;
    while !stop.load(Ordering::Relaxed) {
        let answer = TestHttpClient::connect(gateway).request("GET", "/", &[], "");
        assert_eq!((answer.status, &*answer.body), (200, UPSTREAM_BODY), "{answer:?}");
        answered += 1;
    }
    answered
}

#[test]
fn a_socket_that_a_supervisor_holds_loses_no_connection_over_restarts() {
    let upstream = Upstream::start();
    let url = format!("http://{}", upstream.address());
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let gateway = socket.local_addr().expect("an address");
    let flags = ["--upstream", &url, "--limit", "1000000/second", "--max-keys", "1000"];
    let off = ["--http", "none", "--grpc", "none", "--resp", "none", "--admin", "none"];
    let start = || {
        let command = with_socket(&socket, "gateway", &[&flags[..], &off].concat());
        TollgateProcess::spawn(command).unwrap_or_else(|ended| panic!("{ended:?}"))
    };
    let mut running = start();
    assert_eq!(running.gateway(), gateway, "the address of the socket, without a flag");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients = [(); 3].map(|()| scope.spawn(|| send_until(&stop, gateway)));
        for _ in 0..3 {
            let old = std::mem::replace(&mut running, start());
            assert_eq!(old.stop().code, Some(0));
        }
        // This time nobody listens for a moment: connections wait in the socket's queue.
        assert_eq!(running.stop().code, Some(0));
        let last = start();
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            assert!(client.join().expect("all are answered") > 0);
        }
        assert_eq!(last.stop().code, Some(0));
    });
}

#[test]
fn a_passed_socket_needs_a_listener() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("an address").to_string();
    let flags = ["--grpc", "none", "--resp", "none", "--admin", "none", "--max-keys", "1000"];
    let start = |name, more: &[&str]| {
        TollgateProcess::spawn(with_socket(&socket, name, &[&flags[..], more].concat()))
    };
    let Err(ended) = start("tollgate.socket", &["--http", "127.0.0.1:0"]) else {
        panic!("nobody would accept its connections")
    };
    assert_eq!(ended.code, Some(2));
    for part in [&*address, "tollgate.socket", "FileDescriptorName", "gateway"] {
        assert!(ended.stderr.contains(part), "{part}: {ended:?}");
    }
    // By its address, whatever its name is.
    let server = start("tollgate.socket", &["--http", &address]).expect("it has a listener");
    assert_eq!(server.http().to_string(), address);
    assert_eq!(server.post("/v1/check", r#"{"user":"1"}"#).status, 200);
}

#[test]
fn two_servers_share_a_port_if_both_say_so() {
    let first = TollgateProcess::start(&["--reuse-port", "--limit", "9/hour"]);
    let address = first.http().to_string();
    let start = |flags: &[&str]| {
        TollgateProcess::try_start(
            &[&["--http", &address, "--limit", "9/hour"], flags].concat(),
            |_| {},
        )
    };
    assert!(start(&[]).is_err(), "two servers by mistake");
    let second = start(&["--reuse-port"]).expect("both say so");
    assert_eq!(first.stop().code, Some(0));
    assert_eq!(second.post("/v1/check", r#"{"user":"1"}"#).status, 200);
}
