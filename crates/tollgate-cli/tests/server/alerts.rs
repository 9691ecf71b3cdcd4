//! The alerts of `examples/prometheus/`: Prometheus accepts them, each fires in a test of its own, and the metrics that they
//! ask for exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::peers::promtool;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/prometheus")
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_alerts_are_right_and_fire() {
    for words in [
        ["check", "rules", "tollgate.rules.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "tollgate.test.yml"],
    ] {
        let output = Command::new(promtool()).args(words).current_dir(folder()).output();
        let output = output.expect("promtool starts");
        let told = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&told));
    }
}

/// The alerts in the rules, in their order.
fn alerts(rules: &str) -> Vec<&str> {
    rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect()
}

#[test]
fn every_alert_fires_in_a_test_and_is_explained() {
    let [rules, tests] = ["tollgate.rules.yml", "tollgate.test.yml"];
    let [rules, tests] = [rules, tests].map(|name| text_of(&folder().join(name)));
    let guide = text_of(&folder().join("../../docs/guides/monitoring.md"));
    let fires = |alert: &str| {
        tests.contains(&format!("alertname: {alert}\n        exp_alerts:\n          - exp_labels:"))
    };
    let alerts = alerts(&rules);
    assert!(alerts.len() >= 16, "{alerts:?}");
    let silent: Vec<_> = alerts.iter().filter(|alert| !fires(alert)).collect();
    assert!(silent.is_empty(), "no test of `tollgate.test.yml` has them fire: {silent:?}");
    let unknown: Vec<_> =
        alerts.iter().filter(|alert| !guide.contains(&format!("| `{alert}` |"))).collect();
    assert!(unknown.is_empty(), "the guide does not tell what they mean: {unknown:?}");
}

/// The names in a text that may be those of metrics.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    words.filter(|word| word.starts_with("tollgate_")).collect()
}

#[test]
fn every_metric_that_an_alert_asks_for_is_in_the_reference() {
    let rules = text_of(&folder().join("tollgate.rules.yml"));
    let reference = text_of(&folder().join("../../docs/reference/metrics.md"));
    let known = metric_names(&reference);
    let asked = metric_names(&rules);
    assert!(asked.len() >= 15, "{asked:?}");
    let exists = |name: &str| known.contains(name.strip_suffix("_bucket").unwrap_or(name));
    let unknown: Vec<_> = asked.iter().filter(|name| !exists(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
