//! Real applications behind the gateway. Each counts the requests it received, and those it could not read.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use testkit::net::free_address;
use testkit::peers::{self, ProxyProcess};

use super::wire_client::WireClient;

/// An application that counts requests.
pub(crate) struct RecordingApplication {
    process: ProxyProcess,
    pub(crate) name: &'static str,
    /// The address of the counters, and their page.
    counters: (SocketAddr, CounterPage),
    /// Requests for the counters of nginx, which counts them as well.
    own_requests: AtomicU64,
}

/// The form in which an application tells its counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CounterPage {
    /// A JSON object with `requests` and `errors`.
    Json,
    /// The page of nginx's module `stub_status`, which counts itself.
    StubStatus,
}

impl RecordingApplication {
    /// Node's HTTP server, see `application.js`.
    pub(crate) fn node() -> RecordingApplication {
        let address = free_address();
        let process = ProxyProcess::program("node", address, |_| {
            let mut command = Command::new("node");
            command.arg(beside("application.js")).arg(address.port().to_string());
            command
        });
        RecordingApplication::new("node", process, (address, CounterPage::Json))
    }

    /// uvicorn with h11, see `application.py`.
    pub(crate) fn uvicorn() -> RecordingApplication {
        let address = free_address();
        let process = ProxyProcess::program("uvicorn", address, |_| {
            let mut command = Command::new("python3");
            command.env("PYTHONPATH", peers::applications_path());
            command.env("PYTHONDONTWRITEBYTECODE", "1");
            command.arg(beside("application.py")).arg(address.port().to_string());
            command
        });
        RecordingApplication::new("uvicorn", process, (address, CounterPage::Json))
    }

    /// nginx, which answers everything but the files in `/files/` with the target.
    pub(crate) fn nginx() -> RecordingApplication {
        let (address, counters) = (free_address(), free_address());
        let process = ProxyProcess::program("nginx", address, |folder| {
            let path = folder.display();
            let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
                .map(|name| format!("{name}_temp_path {path}/{name};\n"))
                .concat();
            let text = format!(
                "events {{}}\nhttp {{\naccess_log off;\n{temporary}\
                keepalive_requests 1000000;\nclient_max_body_size 0;\n\
                large_client_header_buffers 8 64k;\nmerge_slashes off;\n\
                server {{ listen {address}; add_header x-application yes always;\n\
                location / {{ default_type text/plain; return 200 $request_uri; }}\n\
                location /files/ {{ root {path}; }} }}\n\
                server {{ listen {counters}; location / {{ stub_status; }} }}\n}}\n"
            );
            std::fs::create_dir(folder.join("files")).expect("a folder");
            std::fs::write(folder.join("nginx.conf"), text).expect("a file");
            let own = format!("daemon off; master_process off; pid {path}/pid; error_log stderr;");
            let mut command = Command::new(peers::nginx());
            command.arg("-e").arg("stderr").arg("-p").arg(folder).arg("-g").arg(own);
            command.arg("-c").arg(folder.join("nginx.conf"));
            command
        });
        RecordingApplication::new("nginx", process, (counters, CounterPage::StubStatus))
    }

    fn new(
        name: &'static str,
        process: ProxyProcess,
        counters: (SocketAddr, CounterPage),
    ) -> RecordingApplication {
        RecordingApplication { process, name, counters, own_requests: AtomicU64::new(0) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.process.address()
    }

    /// Makes a file of zeros that nginx serves below `/files/`, and returns its name. It takes no room on the disk.
    pub(crate) fn make_file(&self, length: u64) -> String {
        let name = format!("{length}.bin");
        let path = self.process.folder().join("files").join(&name);
        let file = std::fs::File::create(path).expect("a file");
        file.set_len(length).expect("a sparse file");
        name
    }

    /// The application's log so far.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }

    /// Number of requests so far, and of those that it could not read.
    pub(crate) fn seen(&self) -> (u64, u64) {
        let (address, page) = self.counters;
        let reply = WireClient::connect(address).get("/_seen").expect("an answer");
        match page {
            CounterPage::Json => {
                let seen: serde_json::Value =
                    serde_json::from_slice(&reply.body).expect("a JSON object");
                let number = |name: &str| seen[name].as_u64().expect("a number");
                (number("requests"), number("errors"))
            }
            // Accepted, handled, requests.
            CounterPage::StubStatus => {
                let text = reply.text();
                let line = text.lines().nth(2).expect("a third line");
                let requests = line.split_whitespace().nth(2).expect("three numbers");
                let requests: u64 = requests.parse().expect("a number");
                let own = self.own_requests.fetch_add(1, Ordering::Relaxed) + 1;
                (requests - own, 0)
            }
        }
    }
}

/// A file in this folder.
fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway").join(name)
}
