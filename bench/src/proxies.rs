//! nginx, HAProxy and Envoy as reverse proxies: one process or worker thread each, started with a configuration in which
//! `LISTEN_PORT`, `UPSTREAM_PORT` and `DIRECTORY` are filled in.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use testkit::peers;

use crate::peer_server;
use crate::process::{ScratchDir, ServerProcess};

/// A started proxy and its address.
pub type StartedProxy = Result<(ServerProcess, SocketAddr), String>;

/// Starts nginx.
pub fn nginx(scratch: &ScratchDir, upstream: SocketAddr, configuration: &str) -> StartedProxy {
    let folder = scratch.path().to_owned();
    start(scratch, upstream, ("nginx.conf", configuration), |file| {
        let mut command = peer_server::command("nginx", "nginx-light")?;
        command.args(["-e", "stderr", "-p"]).arg(&folder).arg("-c").arg(file);
        Ok(command)
    })
}

/// Starts HAProxy.
pub fn haproxy(scratch: &ScratchDir, upstream: SocketAddr, configuration: &str) -> StartedProxy {
    start(scratch, upstream, ("haproxy.cfg", configuration), |file| {
        let mut command = peer_server::command("haproxy", "haproxy")?;
        command.args(["-db", "-f"]).arg(file);
        Ok(command)
    })
}

/// Starts Envoy.
pub fn envoy(scratch: &ScratchDir, upstream: SocketAddr, configuration: &str) -> StartedProxy {
    start(scratch, upstream, ("envoy.yaml", configuration), |file| {
        let program =
            peers::installed_envoy().ok_or("Envoy is not installed; run: cargo xtask peers")?;
        let mut command = Command::new(program);
        command.arg("-c").arg(file);
        command.args(["--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]);
        Ok(command)
    })
}

/// Starts `tollgate serve` with a gateway and these rules; no other listener is open.
pub fn tollgate(
    program: &Path,
    scratch: &ScratchDir,
    upstream: SocketAddr,
    (name, rules): (&str, &str),
) -> StartedProxy {
    let rules = scratch.write(&format!("{name}.yaml"), rules)?;
    let mut command = Command::new(program);
    command.arg("serve").arg("--rules").arg(rules).args(["--gateway", "127.0.0.1:0"]);
    command.arg("--upstream").arg(format!("http://{upstream}"));
    command.args(["--http", "none", "--grpc", "none", "--resp", "none", "--admin", "none"]);
    command.args(["--max-connections-per-ip", "10000"]);
    let log = scratch.path().join(format!("{name}.log"));
    ServerProcess::start_announced(&mut command, log, "gateway")
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
