//! nginx, HAProxy and Envoy as reverse proxies that limit: one process or worker thread each, idle connections to the
//! upstream kept, no access log.
//!
//! Each counts every request by the client's address (Envoy's local limit counts all clients together) and never
//! refuses one, except on `/tight`, which allows one request and then refuses.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use testkit::peers;
use tollgate_bench::peer_server;
use tollgate_bench::process::{ScratchDir, ServerProcess};

const NGINX: &str = include_str!("nginx.conf");
const HAPROXY: &str = include_str!("haproxy.cfg");
const ENVOY: &str = include_str!("envoy.yaml");

/// A started proxy and its address.
pub(crate) type StartedProxy = Result<(ServerProcess, SocketAddr), String>;

pub(crate) fn nginx(scratch: &ScratchDir, upstream: SocketAddr) -> StartedProxy {
    let folder = scratch.path().to_owned();
    start(scratch, upstream, ("nginx.conf", NGINX), |file| {
        let mut command = peer_server::command("nginx", "nginx-light")?;
        command.args(["-e", "stderr", "-p"]).arg(&folder).arg("-c").arg(file);
        Ok(command)
    })
}

pub(crate) fn haproxy(scratch: &ScratchDir, upstream: SocketAddr) -> StartedProxy {
    start(scratch, upstream, ("haproxy.cfg", HAPROXY), |file| {
        let mut command = peer_server::command("haproxy", "haproxy")?;
        command.args(["-db", "-f"]).arg(file);
        Ok(command)
    })
}

pub(crate) fn envoy(scratch: &ScratchDir, upstream: SocketAddr) -> StartedProxy {
    start(scratch, upstream, ("envoy.yaml", ENVOY), |file| {
        let program =
            peers::installed_envoy().ok_or("Envoy is not installed; run: cargo xtask peers")?;
        let mut command = Command::new(program);
        command.arg("-c").arg(file);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
        Ok(command)
    })
}

/// Writes a configuration with its addresses, and starts the proxy with it.
fn start(
    scratch: &ScratchDir,
    upstream: SocketAddr,
    (name, configuration): (&str, &str),
    command: impl FnOnce(&Path) -> Result<Command, String>,
) -> StartedProxy {
    let address = peer_server::free_address()?;
    let configuration = configuration
        .replace("DIRECTORY", &scratch.path().to_string_lossy())
        .replace("UPSTREAM_PORT", &upstream.port().to_string())
        .replace("LISTEN_PORT", &address.port().to_string());
    let file = scratch.write(name, &configuration)?;
    let log = scratch.path().join(format!("{name}.log"));
    let process = peer_server::start(&mut command(&file)?, log, address)?;
    Ok((process, address))
}
