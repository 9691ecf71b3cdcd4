//! The dashboard in a real browser: Debian's Chromium, driven by playwright-core.
//!
//! One test starts the servers and one browser; `browser.js` runs all cases in it, each with a page of its own, and fails for
//! every message on the page's console, every breach of its content security policy, and every uncaught error.

mod browser;

use tempfile::tempdir;

use crate::harness::{TollgateProcess, file, text};
use browser::DashboardBrowser;

/// Rules that have something to show in each view.
const RULES: &str = "
tiers: { free: 1, pro: 10 }
rules:
  - { name: search, match: { path: '/api/{*rest}' }, key: '{user|ip}', limits: [20/minute, 100/hour] }
  - { name: login, match: { path: /login, method: POST }, key: '{ip}', limits: [5/minute] }
  - { name: trial, match: { path: '/api/{*rest}' }, key: '{user|ip}', limits: [2/minute], mode: shadow }
";

/// Token of the guarded server.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn cases_pass_in_chromium() {
    let directory = tempdir().expect("a temporary folder");
    let rules = file(directory.path(), "rules.yaml", RULES);
    let tokens = file(directory.path(), "tokens", TOKEN);
    let rules = ["--rules", text(&rules)];
    let mut server = TollgateProcess::start(&rules);
    let guarded =
        TollgateProcess::start(&[&rules[..], &["--admin-token-file", text(&tokens)]].concat());
    let settings = serde_json::json!({
        "admin": format!("http://{}", server.admin()),
        "http": format!("http://{}", server.http()),
        "guarded": format!("http://{}", guarded.admin()),
        "token": TOKEN,
    });
    DashboardBrowser::start(&settings).run(|request| match request.split_once(' ') {
        Some(("log", text)) => server.wait_for_log(text),
        _ => panic!("an unknown request: {request}"),
    });
}
