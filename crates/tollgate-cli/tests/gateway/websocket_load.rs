//! Many WebSockets: their memory, and what is left of those that vanish.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use testkit::net::connect_from;
use testkit::wait::until_true;

use super::gateway_process::GatewayProcess;
use super::websocket_limits::metric;
use super::websocket_wire::{FINAL, PING, TEXT, WebSocketApplication, client_frame, handshake};
use super::wire_client::WireClient;

/// Tunnels that are open at once.
const TUNNELS: usize = 2_000;

/// Bytes of the gateway's memory for one tunnel at rest.
const TUNNEL_BYTES_MAX: u64 = 24 << 10;

/// Connections that vanish.
const VANISHING: usize = 5_000;

/// Connections of one key at the same time.
const CONNECTIONS: usize = 50;

/// Opens a connection from one of many addresses, because each has a cap.
fn connect(address: SocketAddr, number: usize) -> TcpStream {
    let from = Ipv4Addr::new(127, 0, 2, (number / 200 % 200) as u8 + 1);
    connect_from(from, address).expect("the listener is open")
}

#[test]
fn a_tunnel_at_rest_takes_little_memory() {
    let application = WebSocketApplication::start();
    let rules = format!(
        "upstreams: {{ app: {{ addresses: ['http://{}'], max_connections: 5000 }} }}
routes: [{{ path: '/{{*rest}}', upstream: app }}]
rules:
  - name: sockets
    key: '{{ip}}'
    websocket: {{ connections: 300, messages: 10/second, bytes: 64KiB/second, idle: 10m, direction: both }}
",
        application.address()
    );
    let flags = ["--workers", "2", "--max-connections", "6000"];
    let gateway = GatewayProcess::start_routed(&rules, &flags);
    let open = |number: usize| {
        let mut client = WireClient::over(connect(gateway.address(), number));
        client.send(handshake("/echo").as_bytes());
        assert_eq!(client.read_head().expect("a head").status, 101);
        client.send(&client_frame(FINAL | TEXT, b"hello"));
        assert_eq!(client.read_exact(7).expect("an echo"), b"\x81\x05hello");
        client
    };
    let mut tunnels: Vec<WireClient> = (0..100).map(open).collect();
    let before = gateway.memory_kib();
    tunnels.extend((100..100 + TUNNELS).map(open));
    let each = gateway.memory_kib().saturating_sub(before) * 1_024 / TUNNELS as u64;
    eprintln!("{each} bytes of memory for each of {TUNNELS} tunnels");
    assert!(each <= TUNNEL_BYTES_MAX, "{each} bytes for each tunnel");
    assert_eq!(metric(&gateway, "tollgate_gateway_tunnels"), tunnels.len() as u64);
    // All of them still work.
    for client in &mut tunnels {
        client.send(&client_frame(FINAL | PING, b"?"));
        assert_eq!(client.read_exact(3).expect("a pong"), b"\x8A\x01?");
    }
}

#[test]
fn connections_that_vanish_leave_nothing_behind() {
    let application = WebSocketApplication::start();
    let rules = format!(
        "rules: [{{ name: sockets, key: global, websocket: {{ connections: {CONNECTIONS}, messages: 5/second, on_excess: wait }} }}]"
    );
    let gateway = GatewayProcess::start(application.address(), &rules);
    let open = |number: usize| {
        let mut client = WireClient::over(connect(gateway.address(), number));
        client.send(handshake("/echo").as_bytes());
        client
    };
    let is_open = |client: &mut WireClient| client.read_head().is_ok_and(|head| head.status == 101);
    drop(open(0));
    until_true("the first to be gone", || metric(&gateway, "tollgate_gateway_tunnels") == 0);
    let files = gateway.open_files();
    let (mut opened, mut waiting) = (0, Vec::new());
    while opened < VANISHING {
        let mut client = open(opened);
        // Some do not even wait for the response.
        if opened % 5 == 4 || is_open(&mut client) {
            opened += 1;
        }
        let frame = client_frame(FINAL | TEXT, &[b'a'; 300]);
        match opened % 4 {
            // In the middle of a frame, with frames that wait for their rate, or at rest.
            0 => drop(std::io::Write::write_all(&mut client.stream, &frame[..100])),
            1 => drop(std::io::Write::write_all(&mut client.stream, &frame.repeat(20))),
            _ => {}
        }
        if opened % 2 == 0 {
            set_socket_linger(&client.stream, Some(Duration::ZERO)).expect("a socket");
        }
        waiting.push(client);
        if waiting.len() == CONNECTIONS {
            waiting.clear();
        }
    }
    drop(waiting);
    until_true("all tunnels to be gone", || metric(&gateway, "tollgate_gateway_tunnels") == 0);
    until_true("the application to know", || application.seen()["open"] == 0);
    until_true("all files to be closed", || gateway.open_files() <= files);
    // Every place is free again.
    let mut clients: Vec<WireClient> = (0..CONNECTIONS).map(open).collect();
    assert!(clients.iter_mut().all(is_open));
    assert!(!is_open(&mut open(0)), "one more than the rule allows");
}
