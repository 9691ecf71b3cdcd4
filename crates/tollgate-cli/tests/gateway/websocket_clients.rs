//! WebSocket clients that people have: tungstenite, Python's `websockets`, node's `ws`, and Chromium. Each of them sees the
//! limits as close codes.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use tempfile::TempDir;
use testkit::peers;
use testkit::process::ChildProcess;
use testkit::wait::until;
use tungstenite::{HandshakeError, Message};

use super::gateway_process::GatewayProcess;
use super::websocket_wire::{WebSocketApplication, WebSocketWire, beside};

/// One rule for each end.
const RULES: &str = "
rules:
  - { name: policy, match: { path: '/echo/{client}/policy' }, key: '{ip}', websocket: { messages: 5/hour } }
  - name: later
    match: { path: '/echo/{client}/later', upgrade: websocket }
    key: '{ip}'
    websocket: { messages: 5/hour, close_code: 1013 }
  - { name: single, match: { path: '/echo/{client}/single' }, key: '{path}', websocket: { connections: 1 } }
";

/// A client, by the program or library that it is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientKind {
    Tungstenite,
    Python,
    Node,
    Chromium,
}

/// Clients that run, and what they have reported.
#[derive(Default)]
struct RunningClients {
    /// Lines of the form `URL EVENT`.
    lines: Arc<Mutex<Vec<String>>>,
    /// The processes, with their folders; they end when they are dropped.
    processes: Vec<(ChildProcess, TempDir)>,
}

impl RunningClients {
    /// Starts a client for each URL, which sends messages and waits for the end.
    fn start(
        kind: ClientKind,
        application: &WebSocketApplication,
        urls: &[(String, usize)],
    ) -> RunningClients {
        let mut clients = RunningClients::default();
        match kind {
            ClientKind::Tungstenite => {
                for (url, messages) in urls.iter().cloned() {
                    let lines = clients.lines.clone();
                    thread::spawn(move || run_tungstenite(&url, messages, &lines));
                }
            }
            ClientKind::Python => clients.start_programs(urls, || {
                let mut command = Command::new("python3");
                command.env("PYTHONPATH", peers::applications_path());
                command.env("PYTHONDONTWRITEBYTECODE", "1").arg(beside("websocket_client.py"));
                command
            }),
            ClientKind::Node => clients.start_programs(urls, || {
                let mut command = Command::new("node");
                command.env("NODE_PATH", peers::node_path()).arg(beside("websocket_client.js"));
                command
            }),
            ClientKind::Chromium => clients.start_browser(application, urls),
        }
        clients
    }

    fn start_programs(&mut self, urls: &[(String, usize)], command: impl Fn() -> Command) {
        for (url, messages) in urls {
            let mut command = command();
            command.arg(url).arg(messages.to_string()).stdout(std::process::Stdio::piped());
            let mut process = ChildProcess::start(&mut command);
            let output = process.child().stdout.take().expect("it is a pipe");
            let (lines, url) = (self.lines.clone(), url.clone());
            thread::spawn(move || {
                use std::io::{BufRead, BufReader};
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    push(&lines, &url, &line);
                }
            });
            self.processes.push((process, tempfile::tempdir().expect("a temporary folder")));
        }
    }

    /// Chromium opens the application's page, whose script opens all of them and reports to the application.
    fn start_browser(&mut self, application: &WebSocketApplication, urls: &[(String, usize)]) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let entries: Vec<String> =
            urls.iter().map(|(url, messages)| format!("{url},{messages}")).collect();
        let mut command = Command::new("chromium");
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--no-proxy-server", "--remote-debugging-port=0"])
            .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
            .arg(format!("--user-data-dir={}", folder.path().display()))
            .env("HOME", folder.path())
            .arg(format!("http://{}/page?{}", application.address(), entries.join("|")))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        self.processes.push((ChildProcess::start(&mut command), folder));
    }

    /// Waits for an event of a URL that begins with this word, and returns all of it.
    fn wait_for(&self, application: &WebSocketApplication, url: &str, event: &str) -> String {
        until(&format!("{url} {event}"), || {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let seen = application.seen();
            let reports = seen["reports"].as_array().expect("a list");
            lines.extend(reports.iter().filter_map(|line| line.as_str().map(str::to_owned)));
            let events = lines.iter().filter_map(|line| line.strip_prefix(url)?.strip_prefix(' '));
            let mut events = events.filter(|line| line.starts_with(event));
            events.next().map(|line| line.trim_end().to_owned())
        })
    }
}

fn push(lines: &Mutex<Vec<String>>, url: &str, event: &str) {
    lines.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{url} {event}"));
}

fn run_tungstenite(url: &str, messages: usize, lines: &Mutex<Vec<String>>) {
    let address: SocketAddr = url.split('/').nth(2).and_then(|it| it.parse().ok()).expect("a URL");
    let stream = TcpStream::connect(address).expect("the gateway listens");
    let mut socket = match tungstenite::client(url, stream) {
        Ok((socket, _)) => socket,
        Err(HandshakeError::Failure(tungstenite::Error::Http(response))) => {
            return push(lines, url, &format!("refused {}", response.status().as_u16()));
        }
        Err(error) => panic!("{error}"),
    };
    push(lines, url, "open");
    for _ in 0..messages {
        // The gateway may have closed already.
        let _ = socket.send(Message::text("hello"));
    }
    loop {
        match socket.read() {
            Ok(Message::Close(Some(close))) => {
                push(lines, url, &format!("closed {} {}", u16::from(close.code), close.reason));
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

/// Runs one kind of client through all limits.
fn sees_limits_as_close_codes(kind: ClientKind) {
    let application = WebSocketApplication::start();
    let gateway = GatewayProcess::start(application.address(), RULES);
    let target = |end: &str| format!("/echo/{kind:?}/{end}");
    let url = |end: &str| format!("ws://{}{}", gateway.address(), target(end));
    let _only = WebSocketWire::open(gateway.address(), &target("single"));
    let urls = [(url("policy"), 20), (url("later"), 20), (url("single"), 0), (url("drain"), 3)];
    let clients = RunningClients::start(kind, &application, &urls);
    let wait_for = |end: &str, event: &str| clients.wait_for(&application, &url(end), event);
    assert_eq!(wait_for("policy", "closed"), "closed 1008 message rate of 5/hour exceeded");
    assert_eq!(wait_for("later", "closed"), "closed 1013 message rate of 5/hour exceeded");
    match kind {
        // Browsers hide the status of a refused handshake.
        ClientKind::Chromium => assert_eq!(wait_for("single", "closed"), "closed 1006"),
        _ => assert_eq!(wait_for("single", "refused"), "refused 429"),
    }
    assert_eq!(wait_for("drain", "open"), "open");
    gateway.server.signal("TERM");
    assert_eq!(wait_for("drain", "closed"), "closed 1012 server restarts: connect again");
}

#[test]
fn tungstenite_sees_limits_as_close_codes() {
    sees_limits_as_close_codes(ClientKind::Tungstenite);
}

#[test]
fn python_sees_limits_as_close_codes() {
    sees_limits_as_close_codes(ClientKind::Python);
}

#[test]
fn node_sees_limits_as_close_codes() {
    sees_limits_as_close_codes(ClientKind::Node);
}

#[test]
fn chromium_sees_limits_as_close_codes() {
    sees_limits_as_close_codes(ClientKind::Chromium);
}
