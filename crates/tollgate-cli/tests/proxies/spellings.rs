//! Paths as real servers read them: whichever route a server serves a request by, the rule for that route
//! applies to it, however the path is spelt.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::net::free_address;
use testkit::peers::{self, ProxyProcess};
use testkit::wait;
use tollgate::MemoryStore;
use tollgate_rules::{Ask, Facts, Gatekeeper, Source, compile};

/// A rule for each route of the applications beside this file.
pub(crate) const RULES: &str = "
rules:
  - { name: login, match: { path: /login }, key: '{ip}', limits: [1000000/hour] }
  - { name: health, match: { path: /api/health }, key: '{ip}', limits: [1000000/hour] }
  - name: api
    match: { path: '/api/{*rest}', not: { path: /api/health } }
    key: '{ip}'
    limits: [1000000/hour]
  - { name: search, match: { path: '/search/{*rest}' }, key: '{ip}', limits: [1000000/hour] }
  - { name: pair, match: { path: '/pair/{a}/{b}' }, key: '{ip}', limits: [1000000/hour] }
  - { name: other, fallback: true, key: '{ip}', limits: [1000000/hour] }
";

/// Targets that were tricks once, or stand for a family of them.
const TRICKS: [&str; 27] = [
    "/login",
    "/api/health",
    "/api/report%2F..%2Fhealth",
    "/api/report/../health",
    "/api/%68ealth",
    "/api/health/",
    "/api/health;x",
    "/api/health%3Bx",
    "/login;%2Fx",
    "/login;x=1",
    "/x/..;/login",
    "/x/.;/..;a/login",
    "//host/login",
    "/\\host/login",
    "/x\\..\\login",
    "/x%5C..%5Clogin",
    "/search/shoes/../../y",
    "/search/shoes/../../login",
    "/search//../login",
    "/x/%2e%2e/login",
    "/pair/a%2Fb",
    "/pair/a/b%2F..",
    "/login#/../x",
    "/%6cogin",
    "//u@h/api/../.",
    "//u@h/search/../x",
    "/\\u:p@h:80/api/./../login",
];

/// Parts of generated targets: separators between two names, and the names.
const BETWEEN: [&str; 22] = [
    "/", "/", "/", "/", "/../", "/./", "//", "%2F", "%2f..%2F", "/..%2F", "%2F../", "\\", "%5C",
    ";/", ";x=1/", ";%2F", ";%2F../", "/..;/", "%3B/", "/%2e%2e/", "\\..\\", "#/",
];
const NAMES: [&str; 9] =
    ["login", "api", "health", "search", "pair", "x", "y", "%6cogin", "%68ealth"];

/// Number of generated targets.
const MADE_UP: usize = 400;

/// All targets, the same in every run.
pub(crate) fn targets() -> Vec<String> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |most: usize| {
        // xorshift: the same targets in every run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % most as u64) as usize
    };
    let mut made_up = || {
        let mut target = String::from(["/", "/", "/", "//h/", "/\\h/"][below(5)]);
        target.push_str(NAMES[below(NAMES.len())]);
        for _ in 0..below(5) {
            target.push_str(BETWEEN[below(BETWEEN.len())]);
            target.push_str(NAMES[below(NAMES.len())]);
        }
        target
    };
    let made_up: Vec<String> = (0..MADE_UP).map(|_| made_up()).collect();
    TRICKS.iter().map(ToString::to_string).chain(made_up).collect()
}

/// The names of the rules that apply to a target.
fn applying(gatekeeper: &Gatekeeper<MemoryStore>, target: &str) -> Vec<String> {
    let ip = "192.0.2.1".parse().ok();
    let facts = Facts { method: Some("GET"), path: Some(target), ip, ..Facts::default() };
    let answer = gatekeeper.decide(&Ask { facts, ..Ask::default() });
    answer.limits().map(|one| one.rule.to_owned()).collect()
}

/// The route that a server serves a target by; `None` if it refuses it or sends the client elsewhere.
fn served(address: SocketAddr, target: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(wait::WAIT_TIMEOUT)).expect("a socket");
    let head = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    // Some reset the connection of whom they refuse.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    route_in(body).filter(|_| head.contains(" 200 ")).map(str::to_owned)
}

/// The route that a body names.
pub(crate) fn route_in(body: &str) -> Option<&'static str> {
    let routes = ["login", "health", "api", "search", "pair", "other"];
    routes.into_iter().find(|route| body.contains(&format!("<{route}>")))
}

/// Asks a server about all targets, and rules too.
fn compare(name: &str, address: SocketAddr) {
    let compiled = compile(&[Source::from_text("rules.yaml", RULES)]);
    let rules = compiled.rules.unwrap_or_else(|| panic!("{}", compiled.diagnostics));
    let gatekeeper = Gatekeeper::in_memory(rules, 1_000);
    let (mut wrong, mut routes) = (String::new(), std::collections::BTreeSet::new());
    for target in targets() {
        let Some(route) = served(address, &target) else { continue };
        let applying = applying(&gatekeeper, &target);
        // Slashes at the end and doubled ones do not make another path of an endpoint: the rule for it
        // applies, and not the fallback. The guide says so.
        let tolerated = route == "other" && has_more_slashes(&target) && !applying.is_empty();
        if !applying.contains(&route) && !tolerated {
            writeln!(wrong, "{target} is served by {route}: {applying:?}").expect("a text");
        }
        routes.insert(route);
    }
    assert!(wrong.is_empty(), "{name}:\n{wrong}");
    assert!(routes.len() >= 4, "{name} served {routes:?} only");
}

/// Returns true if the path has a slash more than some server needs.
pub(crate) fn has_more_slashes(target: &str) -> bool {
    let plain =
        target.replace("%2F", "/").replace("%2f", "/").replace("%5C", "/").replace('\\', "/");
    let plain = plain.replace(";/", "/").replace("/.", "/");
    plain.contains("//") || plain.ends_with('/')
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/proxies").join(name)
}

/// Routes on Starlette, served by uvicorn.
pub(crate) fn start_uvicorn() -> ProxyProcess {
    let address = free_address();
    ProxyProcess::program("uvicorn", address, |_| {
        let mut command = Command::new("python3");
        command.env("PYTHONPATH", peers::applications_path()).env("PYTHONDONTWRITEBYTECODE", "1");
        command.arg(beside("spellings_app.py")).arg(address.port().to_string());
        command
    })
}

#[test]
fn uvicorn_and_starlette() {
    compare("uvicorn", start_uvicorn().address());
}

/// Routes on Node, found by the target, and the addresses where they are found by the URL and by Node's older parser.
pub(crate) fn start_node() -> (ProxyProcess, SocketAddr, SocketAddr) {
    let [by_url, by_target, by_parse] = [(); 3].map(|()| free_address());
    let app = ProxyProcess::program("node", by_target, |_| {
        let mut command = Command::new("node");
        command.arg("--no-deprecation").arg(beside("spellings_app.js"));
        command.args([by_url, by_target, by_parse].map(|address| address.port().to_string()));
        command
    });
    (app, by_url, by_parse)
}

#[test]
fn node_by_url_and_by_target_and_by_its_older_parser() {
    let (app, by_url, by_parse) = start_node();
    compare("node by URL", by_url);
    compare("node by its older parser", by_parse);
    compare("node by target", app.address());
}

/// Routes of nginx.
pub(crate) fn start_nginx() -> ProxyProcess {
    let address = free_address();
    ProxyProcess::program("nginx", address, |folder| {
        let route = |place: &str, name: &str| {
            format!("location {place} {{ default_type text/plain; return 200 '<{name}>'; }}\n")
        };
        let routes = [
            route("= /login", "login"),
            route("= /api/health", "health"),
            route("/api/", "api"),
            route("= /api", "api"),
            route("/search/", "search"),
            route("= /search", "search"),
            route("~ ^/pair/[^/]+/[^/]+$", "pair"),
            route("/", "other"),
        ]
        .concat();
        let path = folder.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {path}/{name};\n"))
            .concat();
        let text = format!(
            "events {{}}\nhttp {{\naccess_log off;\n{temporary}server {{ listen {address};\n{routes}}}\n}}\n"
        );
        std::fs::write(folder.join("nginx.conf"), text).expect("a file");
        let own = format!("daemon off; master_process off; pid {path}/pid; error_log stderr;");
        let mut command = Command::new(peers::nginx());
        command.arg("-e").arg("stderr").arg("-p").arg(folder).arg("-g").arg(own);
        command.arg("-c").arg(folder.join("nginx.conf"));
        command
    })
}

#[test]
fn nginx_by_location() {
    compare("nginx", start_nginx().address());
}

#[test]
fn tomcat_however_it_takes_slashes() {
    let Some(classes) = peers::tomcat() else {
        eprintln!(
            "Tomcat is not asked: this machine has no javac, or not the Debian package libtomcat10-embed-java"
        );
        return;
    };
    let addresses = [free_address(), free_address(), free_address()];
    let ways = ["reject", "decode", "passthrough"];
    let app = ProxyProcess::program("tomcat", addresses[2], |folder| {
        let mut command = Command::new("java");
        command.args(["-XX:TieredStopAtLevel=1", "-Xmx128m", "-cp"]).arg(&classes);
        command.arg(beside("SpellingsApp.java")).arg(folder);
        for (address, way) in addresses.iter().zip(ways) {
            command.arg(address.port().to_string()).arg(way);
        }
        command
    });
    for (address, way) in addresses.into_iter().zip(ways) {
        compare(&format!("tomcat that is told {way}"), address);
    }
    drop(app);
}
