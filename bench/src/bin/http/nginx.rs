//! nginx with `limit_req`, the limiter that most people already have.
//!
//! One process; a header names the caller; each request writes a state and none is refused. The answer is
//! the empty GIF, because `return` answers before `limit_req` runs.

use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use tollgate_bench::generator::http::ask;
use tollgate_bench::process::{START_MAX, ScratchDir, ServerProcess};
use tollgate_bench::stopwatch::Stopwatch;

const MISSING: &str = "nginx is not installed; run as root: apt-get install nginx-light";

/// The configuration, with placeholders `DIRECTORY` and `PORT`. The second zone shows that this nginx limits by
/// this key.
const CONFIGURATION: &str = "\
daemon off;
master_process off;
pid DIRECTORY/nginx.pid;
error_log stderr error;
events { worker_connections 1024; }
http {
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 600s;
    tcp_nodelay on;
    client_body_temp_path DIRECTORY/body;
    proxy_temp_path DIRECTORY/proxy;
    fastcgi_temp_path DIRECTORY/fastcgi;
    uwsgi_temp_path DIRECTORY/uwsgi;
    scgi_temp_path DIRECTORY/scgi;
    limit_req_status 429;
    limit_req_zone $http_x_user_id zone=measured:128m rate=1000000r/s;
    limit_req_zone $http_x_user_id zone=tight:1m rate=1r/m;
    server {
        listen 127.0.0.1:PORT;
        location / {
            limit_req zone=measured burst=1000000 nodelay;
            empty_gif;
        }
        location = /tight {
            limit_req zone=tight;
            empty_gif;
        }
    }
}
";

/// Starts nginx and checks that it limits.
pub(crate) fn start(scratch: &ScratchDir) -> Result<(ServerProcess, SocketAddr), String> {
    let address = free_address()?;
    let directory = scratch.path().to_string_lossy();
    let configuration =
        CONFIGURATION.replace("DIRECTORY", &directory).replace("PORT", &address.port().to_string());
    let file = scratch.write("nginx.conf", &configuration)?;
    let mut command = Command::new(program().ok_or(MISSING)?);
    command.args(["-e", "stderr", "-p", &directory, "-c"]).arg(file).stdout(Stdio::null());
    let mut process = ServerProcess::start(&mut command, scratch.path().join("nginx.log"))?;
    wait_until_ready(&mut process, address).map_err(|problem| process.with_log(&problem))?;
    check_it_limits(address)?;
    Ok((process, address))
}

/// Finds nginx, also in the directories for administrators, which not every `PATH` has.
fn program() -> Option<&'static str> {
    let is_there = |program: &&str| Command::new(program).arg("-v").output().is_ok();
    ["nginx", "/usr/sbin/nginx"].into_iter().find(is_there)
}

/// Finds a free port; nginx cannot report a port that it chose itself.
fn free_address() -> Result<SocketAddr, String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    free.map_err(|error| format!("there is no free port: {error}"))
}

#[expect(clippy::disallowed_methods, reason = "nginx does not say when it is ready")]
fn wait_until_ready(process: &mut ServerProcess, address: SocketAddr) -> Result<(), String> {
    let watch = Stopwatch::start();
    while std::net::TcpStream::connect(address).is_err() {
        if process.has_ended() {
            return Err("it ended at once".into());
        }
        if watch.elapsed() > START_MAX {
            return Err("it is not ready in time".into());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Checks that nginx limits: a server that limits nothing would look fast.
fn check_it_limits(address: SocketAddr) -> Result<(), String> {
    let status = |user: &str| {
        let request =
            format!("GET /tight HTTP/1.1\r\nHost: localhost\r\nX-User-Id: {user}\r\n\r\n");
        ask(address, request.as_bytes()).map(|answer| answer.status)
    };
    let statuses = [status("a")?, status("a")?, status("b")?];
    match statuses {
        [200, 429, 200] => Ok(()),
        other => Err(format!("it does not limit by X-User-Id: {other:?} is not 200, 429, 200")),
    }
}
