//! The dashboard in a real browser: Debian's Chromium, driven by playwright-core.
//!
//! One test starts the servers and one browser; `browser.js` runs all cases in it, each with a page of its own, and fails for
//! every message on the page's console, every breach of its content security policy, and every uncaught error.

mod browser;
mod doomed_shop;

use std::path::{Path, PathBuf};

use tempfile::{TempDir, tempdir};
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
    let first = files.start(&[]);
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
            let admin = old.admin().to_string();
            assert_eq!(old.stop().code, Some(0));
            restarted = Some(files.start(&["--admin", &admin]));
            admin
        }
        _ => panic!("an unknown request: {request}"),
    });
}
