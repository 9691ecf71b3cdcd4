//! A server under test, and a small HTTP client.
//!
//! ```ignore
//! let server = TollgateProcess::start(&["--limit", "2/minute"]);
//! let answer = server.post("/v1/check", r#"{"user":"42"}"#);
//! assert_eq!((answer.status, answer.json()["remaining"].as_u64()), (200, Some(1)));
//! let ended = server.stop();
//! assert_eq!(ended.code, Some(0));
//! ```
//!
//! Nothing here sleeps: tests wait for a line, a byte or the end of a process, and fail after a deadline.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// Deadline of every wait; a passing test never reaches it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// A running server; dropping it ends the process.
pub(crate) struct TollgateProcess {
    child: Child,
    /// Lines of standard output.
    lines: Receiver<String>,
    /// Lines of standard error.
    logs: Receiver<String>,
    logged: String,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    pub(crate) resp: Option<SocketAddr>,
    pub(crate) gateway: Option<SocketAddr>,
    pub(crate) admin: Option<SocketAddr>,
}

/// Exit code and output of a process that has ended.
#[derive(Debug)]
pub(crate) struct ProcessExit {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl TollgateProcess {
    /// Starts `tollgate serve` with these flags on free ports, and waits until it is ready.
    pub(crate) fn start(flags: &[&str]) -> TollgateProcess {
        TollgateProcess::start_with(flags, |_| {})
    }

    /// Starts a server after a change of the command, such as its environment.
    pub(crate) fn start_with(flags: &[&str], change: impl FnOnce(&mut Command)) -> TollgateProcess {
        match TollgateProcess::try_start(flags, change) {
            Ok(server) => server,
            Err(ended) => panic!("the server did not start: {ended:?}"),
        }
    }

    /// Starts a server; `Err` if it ends instead of becoming ready.
    pub(crate) fn try_start(
        flags: &[&str],
        change: impl FnOnce(&mut Command),
    ) -> Result<TollgateProcess, ProcessExit> {
        let mut command = tollgate();
        command.arg("serve").args(flags);
        // Listeners without a flag get free ports; a small table is allocated faster.
        let listeners =
            ["--http", "--grpc", "--resp", "--admin"].map(|listener| (listener, "127.0.0.1:0"));
        for (flag, value) in listeners.into_iter().chain([("--max-keys", "10000")]) {
            if !flags.contains(&flag) {
                command.args([flag, value]);
            }
        }
        change(&mut command);
        TollgateProcess::spawn(command)
    }

    /// Runs exactly this command as a server.
    pub(crate) fn spawn(mut command: Command) -> Result<TollgateProcess, ProcessExit> {
        let mut child = command.spawn().expect("tollgate runs");
        // A test may have redirected it.
        let logs = child.stderr.take().map_or_else(|| channel().1, lines_of);
        let lines = lines_of(child.stdout.take().expect("a pipe"));
        let logged = String::new();
        let listeners: [Option<SocketAddr>; 5] = [None; 5];
        let [http, grpc, resp, gateway, admin] = listeners;
        let mut server =
            TollgateProcess { child, lines, logs, logged, http, grpc, resp, gateway, admin };
        let mut told = String::new();
        loop {
            let Ok(line) = server.lines.recv_timeout(DEADLINE) else {
                return Err(server.collect_exit(told));
            };
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["listening", "http", address] => server.http = address.parse().ok(),
                ["listening", "grpc", address] => server.grpc = address.parse().ok(),
                ["listening", "resp", address] => server.resp = address.parse().ok(),
                ["listening", "gateway", address] => server.gateway = address.parse().ok(),
                ["listening", "admin", address] => server.admin = address.parse().ok(),
                ["ready"] => return Ok(server),
                _ => panic!("an unknown line: {line}"),
            }
            told += &format!("{line}\n");
        }
    }

    pub(crate) fn http(&self) -> SocketAddr {
        self.http.expect("the http listener is open")
    }

    pub(crate) fn grpc(&self) -> SocketAddr {
        self.grpc.expect("the grpc listener is open")
    }

    #[allow(dead_code, reason = "the tests of that listener are a program of their own")]
    pub(crate) fn resp(&self) -> SocketAddr {
        self.resp.expect("the resp listener is open")
    }

    pub(crate) fn gateway(&self) -> SocketAddr {
        self.gateway.expect("the gateway listener is open")
    }

    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin.expect("the admin listener is open")
    }

    pub(crate) fn get(&self, path: &str) -> TestHttpResponse {
        self.request("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> TestHttpResponse {
        self.request("POST", path, &[], body)
    }

    /// Sends a check, which must be allowed or refused, and returns the decision.
    pub(crate) fn check(&self, body: &str) -> Value {
        let answer = self.post("/v1/check", body);
        assert!(matches!(answer.status, 200 | 429 | 503), "{answer:?}");
        answer.json()
    }

    /// Sends one request on a new connection to the http listener.
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestHttpResponse {
        TestHttpClient::connect(self.http()).request(method, path, headers, body)
    }

    /// Sends one GET request on a new connection to the admin listener.
    pub(crate) fn admin_get(&self, path: &str, headers: &[(&str, &str)]) -> TestHttpResponse {
        TestHttpClient::connect(self.admin()).request("GET", path, headers, "")
    }

    /// Id of the process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, such as `TERM`.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits for a log line with this text and returns the line.
    pub(crate) fn wait_for_log(&mut self, text: &str) -> String {
        loop {
            let line = self.logs.recv_timeout(DEADLINE);
            let line = line.unwrap_or_else(|_| panic!("no {text:?} in {:?}", self.logged));
            self.logged += &format!("{line}\n");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Sends SIGTERM and waits until the process ends.
    pub(crate) fn stop(self) -> ProcessExit {
        self.signal("TERM");
        self.wait()
    }

    /// Waits until it ends.
    pub(crate) fn wait(mut self) -> ProcessExit {
        self.collect_exit(String::new())
    }

    fn collect_exit(&mut self, mut stdout: String) -> ProcessExit {
        // Both pipes are closed when the process ends.
        stdout += &drain_lines(&self.lines);
        let stderr = std::mem::take(&mut self.logged) + &drain_lines(&self.logs);
        let code = self.child.wait().expect("it has ended").code();
        ProcessExit { code, stdout, stderr }
    }
}

/// Reads all lines until the pipe is closed.
fn drain_lines(lines: &Receiver<String>) -> String {
    let mut text = String::new();
    loop {
        match lines.recv_timeout(DEADLINE) {
            Ok(line) => text += &format!("{line}\n"),
            Err(RecvTimeoutError::Disconnected) => return text,
            Err(RecvTimeoutError::Timeout) => panic!("the server does not end"),
        }
    }
}

impl Drop for TollgateProcess {
    fn drop(&mut self) {
        // Fails if the process has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command, without settings from the environment of the test.
pub(crate) fn tollgate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TOLLGATE_") {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs the command until it ends.
pub(crate) fn run(args: &[&str]) -> ProcessExit {
    let output = tollgate().args(args).output().expect("tollgate runs");
    let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
    ProcessExit {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Writes a file into a directory of the test.
pub(crate) fn file(directory: &Path, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, content).expect("a file can be written");
    path
}

/// A path as text, for a flag.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

fn lines_of(from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// An HTTP response.
#[derive(Debug)]
pub(crate) struct TestHttpResponse {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl TestHttpResponse {
    /// A header field, if there is exactly one of this name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        let (_, value) = found.next()?;
        assert!(found.next().is_none(), "{name} appears twice: {self:?}");
        Some(value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The member `message` of an error.
    pub(crate) fn message(&self) -> String {
        self.json()["message"].as_str().unwrap_or_else(|| panic!("no message: {self:?}")).into()
    }
}

/// An HTTP client on one connection that stays open.
pub(crate) struct TestHttpClient<S = TcpStream> {
    stream: BufReader<S>,
}

impl TestHttpClient {
    pub(crate) fn connect(address: SocketAddr) -> TestHttpClient {
        let stream = TcpStream::connect(address).expect("the listener is open");
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_write_timeout(Some(DEADLINE)).expect("a timeout");
        stream.set_nodelay(true).expect("a socket");
        TestHttpClient::over(stream)
    }
}

impl<S: Read + Write> TestHttpClient<S> {
    /// A client over any stream, such as one with TLS.
    pub(crate) fn over(stream: S) -> TestHttpClient<S> {
        TestHttpClient { stream: BufReader::new(stream) }
    }

    /// Sends a request and reads the response.
    pub(crate) fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> TestHttpResponse {
        self.try_request(method, path, headers, body).expect("an answer")
    }

    /// Sends a request and reads the response; `Err` if the connection ends first.
    pub(crate) fn try_request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> io::Result<TestHttpResponse> {
        let host = headers.iter().all(|(name, _)| !name.eq_ignore_ascii_case("host"));
        let host = if host { "host: localhost\r\n" } else { "" };
        let fields: String =
            headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{host}{fields}content-length: {length}\r\n\r\n{body}"
        );
        self.send(request.as_bytes())?;
        self.receive(method != "HEAD")
    }

    /// Sends raw bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Reads a response.
    pub(crate) fn receive(&mut self, has_body: bool) -> io::Result<TestHttpResponse> {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_string()),
            }
        }
        let status = head[0].split(' ').nth(1).and_then(|status| status.parse().ok());
        let headers = head[1..].iter().filter_map(|line| line.split_once(": "));
        let headers: Vec<_> =
            headers.map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let mut response =
            TestHttpResponse { status: status.expect("a status"), headers, body: String::new() };
        let length = response.header("content-length").and_then(|length| length.parse().ok());
        let mut body = vec![0; if has_body { length.unwrap_or(0) } else { 0 }];
        self.stream.read_exact(&mut body)?;
        response.body = String::from_utf8(body).expect("bodies are UTF-8");
        Ok(response)
    }

    /// Reads until the server closes the connection, and returns the text. Fails the test if it does not close.
    pub(crate) fn until_closed(&mut self) -> String {
        testkit::net::read_until_closed(&mut self.stream)
    }
}
