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

#[test]
fn cases_pass_in_chromium() {
    let directory = tempdir().expect("a temporary folder");
    let rules = file(directory.path(), "rules.yaml", RULES);
    let server = TollgateProcess::start(&["--rules", text(&rules)]);
    let settings = serde_json::json!({
        "admin": format!("http://{}", server.admin()),
        "http": format!("http://{}", server.http()),
    });
    DashboardBrowser::start(&settings).run(|request| panic!("an unknown request: {request}"));
}
