//! Several servers without a shared store: the configurations in `examples/routing` send each caller
//! to one of them.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use testkit::net::{connect_from, free_address};
use testkit::process::Process;
use testkit::wait;

use crate::harness::{Client, Response, Server, file, text};

/// What examples/routing/rules.yaml allows a caller.
const LIMIT: u64 = 100;

fn examples() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/routing"))
}

/// nginx in front of three servers and an application, as the example has it.
struct Routed {
    address: SocketAddr,
    servers: Vec<Option<Server>>,
    _nginx: Process,
    _folder: tempfile::TempDir,
}

impl Routed {
    fn start() -> Routed {
        let rules = examples().join("rules.yaml");
        let server = || Server::start(&["--rules", text(&rules)]);
        let servers = [server(), server(), server()];
        let address = free_address();
        let folder = tempfile::tempdir().unwrap();
        let configuration = configuration(folder.path(), address, &servers);
        let path = file(folder.path(), "nginx.conf", configuration);
        // One process in the foreground, which is gone when it is killed, with its own files.
        let folder_path = text(folder.path());
        let own = format!(
            "daemon off; master_process off; pid {folder_path}/pid; error_log {folder_path}/log;"
        );
        let mut command = Command::new("nginx");
        command.args(["-e", "stderr", "-p", folder_path, "-g", &own, "-c", text(&path)]);
        let mut nginx = Process::start(command.stdin(Stdio::null()));
        wait::until_true("nginx to listen", || {
            assert!(nginx.ended().is_none(), "nginx does not take {}", path.display());
            TcpStream::connect(address).is_ok()
        });
        let servers = servers.into_iter().map(Some).collect();
        Routed { address, servers, _nginx: nginx, _folder: folder }
    }

    /// One request of a caller with an API key.
    fn with_key(&self, key: &str) -> Response {
        Client::connect(self.address).request("GET", "/some/page", &[("x-api-key", key)], "")
    }

    /// One request of a caller without, from this address.
    fn from(&self, address: Ipv4Addr) -> Response {
        let stream = connect_from(address, self.address).expect("nginx listens");
        Client::over(stream).request("GET", "/some/page", &[], "")
    }

    /// How many callers each server knows; none where it is gone.
    fn callers(&self) -> Vec<Option<u64>> {
        let count = |server: &Server| {
            let page = server.admin_get("/metrics", &[]).body;
            let line = page.lines().find_map(|line| line.strip_prefix("tollgate_keys "));
            line.and_then(|count| count.parse().ok()).expect("the metric tollgate_keys")
        };
        self.servers.iter().map(|server| server.as_ref().map(count)).collect()
    }
}

/// The example with the ports of this test.
fn configuration(folder: &Path, address: SocketAddr, servers: &[Server; 3]) -> String {
    let example = std::fs::read_to_string(examples().join("nginx.conf")).unwrap();
    let folder = text(folder);
    let mut http = String::from("http {\n");
    for name in ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"] {
        writeln!(http, "    {name}_temp_path {folder}/{name};").unwrap();
    }
    let mut replaced = vec![
        ("http {\n".to_owned(), http),
        ("127.0.0.1:8000".to_owned(), address.to_string()),
        ("127.0.0.1:3000".to_owned(), application().to_string()),
        // A busy machine is not a dead server; one that is dead refuses at once.
        ("timeout 100ms".to_owned(), "timeout 30s".to_owned()),
    ];
    for (server, port) in servers.iter().zip(8081..) {
        replaced.push((format!("127.0.0.1:{port}"), server.http().to_string()));
    }
    replaced.into_iter().fold(example, |text, (from, to)| {
        assert!(text.contains(&from), "the example has no {from:?}");
        text.replace(&from, &to)
    })
}

/// Answers every request with 200, for as long as the test runs.
fn application() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let mut lines = BufReader::new(&stream).lines();
                while let Some(Ok(line)) = lines.next() {
                    if line.is_empty() {
                        let _ =
                            (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
                    }
                }
            });
        }
    });
    address
}

/// What is left to the caller, as the answer says: `"api-1h";r=99;t=…`.
fn left(response: &Response) -> u64 {
    let field = response.header("ratelimit").expect("the field RateLimit");
    let left = field.split(';').find_map(|part| part.strip_prefix("r="));
    left.and_then(|left| left.parse().ok()).expect("a number")
}

#[test]
fn a_caller_gets_exactly_the_limit_and_callers_spread() {
    let routed = Routed::start();
    let allowed = (0..LIMIT + 20).filter(|_| routed.with_key("one").status == 200).count();
    assert_eq!(allowed as u64, LIMIT);
    let refused = routed.with_key("one");
    assert_eq!((refused.status, left(&refused)), (429, 0));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(routed.callers().into_iter().flatten().sum::<u64>(), 1, "on one server");

    let address = Ipv4Addr::new(127, 0, 0, 7);
    let allowed = (0..LIMIT + 20).filter(|_| routed.from(address).status == 200).count();
    assert_eq!(allowed as u64, LIMIT);

    for caller in 0..60 {
        assert_eq!(left(&routed.with_key(&format!("key-{caller}"))), LIMIT - 1);
    }
    let callers: Vec<u64> = routed.callers().into_iter().flatten().collect();
    assert_eq!(callers.iter().sum::<u64>(), 62);
    assert!(callers.iter().all(|count| *count >= 5), "60 callers on three servers: {callers:?}");
}

#[test]
fn when_a_server_dies_its_callers_move_and_the_others_stay() {
    let mut routed = Routed::start();
    let keys: Vec<String> = (0..60).map(|caller| format!("key-{caller}")).collect();
    let ask = |routed: &Routed| keys.iter().map(|key| left(&routed.with_key(key))).collect();
    let first: Vec<u64> = ask(&routed);
    assert!(first.iter().all(|left| *left == LIMIT - 1));
    let of_the_dead = routed.callers()[0].unwrap();
    assert!(of_the_dead > 0);
    routed.servers[0] = None;
    // Nobody gets an error; who was there begins anew, once; who was elsewhere is known.
    let second: Vec<u64> = ask(&routed);
    let moved = |lefts: &[u64], left: u64| lefts.iter().filter(|it| **it == left).count() as u64;
    assert_eq!(moved(&second, LIMIT - 1), of_the_dead);
    assert_eq!(moved(&second, LIMIT - 2), 60 - of_the_dead);
    let third: Vec<u64> = ask(&routed);
    let stayed = third.iter().zip(&second).all(|(third, second)| *third == second - 1);
    assert!(stayed, "{second:?} then {third:?}");
    // With none left, requests pass.
    routed.servers.iter_mut().for_each(|server| *server = None);
    let alone = routed.with_key("key-0");
    assert_eq!((alone.status, alone.header("ratelimit")), (200, None));
}
