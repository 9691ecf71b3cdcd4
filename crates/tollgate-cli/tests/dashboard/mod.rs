//! The dashboard in a real browser: Debian's Chromium, driven by playwright-core.
//!
//! One test starts the servers and one browser; `browser.js` runs all cases in it, each with a page of its own, and fails for
//! every message on the page's console, every breach of its content security policy, and every uncaught error.

mod browser;
mod doomed_shop;

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};
use testkit::net::kept_address;
use testkit::peers::Upstream;

use crate::harness::{TollgateProcess, file, text};
use browser::DashboardBrowser;
use doomed_shop::DoomedShops;

/// Rules that have something to show in each view.
const RULES: &str = include_str!("shop.yaml");

/// Token of the guarded server.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// The files of the servers and the application behind their gateways.
struct ShopFiles {
    folder: TempDir,
    rules: PathBuf,
}

impl ShopFiles {
    /// Writes the rules, with these addresses of the upstreams.
    fn new([app_1, app_2, media]: [&str; 3]) -> ShopFiles {
        let folder = tempdir().expect("a temporary folder");
        let mut rules = RULES.to_string();
        for (name, address) in [("APP_1", app_1), ("APP_2", app_2), ("MEDIA", media)] {
            rules = rules.replace(&format!("\"{name}\""), &format!("\"{address}\""));
        }
        let rules = file(folder.path(), "rules.yaml", rules);
        ShopFiles { folder, rules }
    }

    fn rules_text(&self) -> String {
        std::fs::read_to_string(&self.rules).expect("a file")
    }

    fn write_rules(&self, text: &str) {
        file(self.folder.path(), "rules.yaml", text);
    }

    /// Starts a server with these rules, a gateway and further flags.
    fn start(&self, flags: &[&str]) -> TollgateProcess {
        let own = ["--rules", text(&self.rules), "--gateway", "127.0.0.1:0"];
        TollgateProcess::start(&[&own, flags].concat())
    }
}

/// Writes a file whose users are identified by their API keys.
fn api_key_rules(folder: &Path) -> PathBuf {
    let rules = "
identify: { user: { api_key: { header: x-api-key } } }
rules:
  - { name: api, match: { path: /api }, key: '{user|ip}', limits: [5/hour burst 5] }
  - { name: login, match: { path: /login }, key: '{user}', limits: [100/hour burst 100] }
  - { name: export, match: { path: '/export/{*rest}' }, key: '{user}:{path}', limits: [10/hour burst 10] }
  - { name: sessions, match: { path: /sessions }, key: '{header.x-session-id}', limits: [7/hour burst 7] }
";
    file(folder, "api-keys.yaml", rules)
}

/// Writes a file with 10,000 rules, which no request of the shop matches.
fn many_rules(folder: &Path) -> PathBuf {
    let rule = |number| {
        format!(
            "  - {{ name: tenant-{number}, match: {{ path: /tenants/{number} }}, key: '{{ip}}', limits: [7/minute] }}\n"
        )
    };
    let rules: String = (0..10_000).map(rule).collect();
    file(folder, "many.yaml", format!("rules:\n{rules}"))
}

#[test]
fn cases_pass_in_chromium() {
    let applications = [Upstream::start(), Upstream::start(), Upstream::start()];
    let addresses = applications.each_ref().map(|one| format!("http://{}", one.address()));
    let upstreams = addresses.each_ref().map(String::as_str);
    let files = ShopFiles::new(upstreams);
    let tokens = file(files.folder.path(), "tokens", TOKEN);
    let mut server = files.start(&[]);
    let guarded = files.start(&["--admin-token-file", text(&tokens)]);
    let kept = kept_address();
    let restart = || files.start(&["--admin", &kept.to_string()]);
    let first = restart();
    let by_api_key =
        TollgateProcess::start(&["--rules", text(&api_key_rules(files.folder.path()))]);
    let busy = files.start(&["--rules", text(&many_rules(files.folder.path()))]);
    let settings = serde_json::json!({
        "admin": format!("http://{}", server.admin()),
        "http": format!("http://{}", server.http()),
        "gateway": format!("http://{}", server.gateway()),
        "guarded": format!("http://{}", guarded.admin()),
        "guarded_http": format!("http://{}", guarded.http()),
        "busy": {
            "admin": format!("http://{}", busy.admin()),
            "http": format!("http://{}", busy.http()),
            "gateway": format!("http://{}", busy.gateway()),
        },
        "restarted": format!("http://{}", first.admin()),
        "by_api_key": format!("http://{}", by_api_key.admin()),
        "by_api_key_http": format!("http://{}", by_api_key.http()),
        "token": TOKEN,
    });
    let mut restarted = Some(first);
    let mut shops = DoomedShops::default();
    DashboardBrowser::start(&settings).run(|request| match request.split_once(' ') {
        Some(("log", text)) => server.wait_for_log(text),
        Some(("rules", _)) => serde_json::to_string(&files.rules_text()).expect("text"),
        Some(("shop", action)) => shops.handle(action, [upstreams[0], upstreams[1]]),
        Some(("restart", _)) => {
            let old = restarted.take().expect("it runs");
            assert_eq!(old.stop().code, Some(0));
            // Somebody takes the port of the usual address, as any other program may while the server is down.
            let _thief = TcpListener::bind((Ipv4Addr::LOCALHOST, kept.port()));
            restarted = Some(restart());
            kept.to_string()
        }
        _ => panic!("an unknown request: {request}"),
    });
}
