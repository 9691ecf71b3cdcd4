//! nginx with `limit_req`, the limiter that most people already have.
//!
//! One process; a header names the caller; each request writes a state and none is refused. The answer is
//! the empty GIF, because `return` answers before `limit_req` runs.

use std::net::SocketAddr;

use tollgate_bench::generator::http::ask;
use tollgate_bench::peer_server;
use tollgate_bench::process::{ScratchDir, ServerProcess};

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
    let address = peer_server::free_address()?;
    let directory = scratch.path().to_string_lossy();
    let configuration =
        CONFIGURATION.replace("DIRECTORY", &directory).replace("PORT", &address.port().to_string());
    let file = scratch.write("nginx.conf", &configuration)?;
    let mut command = peer_server::command("nginx", "nginx-light")?;
    command.args(["-e", "stderr", "-p", &directory, "-c"]).arg(file);
    let process = peer_server::start(&mut command, scratch.path().join("nginx.log"), address)?;
    check_it_limits(address)?;
    Ok((process, address))
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
