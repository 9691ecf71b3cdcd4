//! Every `yaml` block of the pages is a valid part of a rules file, unless `<!-- not rules: REASON -->` stands above it.

use super::markdown::BlockMarker;
use super::{all_pages, blocks_of};
use crate::harness::{file, run, text};

/// Rule for blocks that have none; other sections name it.
const RULE: &str = "  - name: api\n    key: \"{user|ip}\"\n";
const LIMIT: &str = "    limits: [9/second]\n";

/// The public key of RFC 7517, as `jwks.json`, and a secret.
const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"1","use":"sig","alg":"ES256",
    "x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;
const SECRET: &str = "a secret of the test, with more than 32 bytes";

/// Completes a block: a rule, or the fields of one, or other sections of the file.
fn whole_file(block: &str) -> String {
    let has_rules =
        |line: &str| ["rules:", "rate_limits:", "domain:"].iter().any(|key| line.starts_with(key));
    if block.starts_with("  - ") {
        format!("rules:\n{block}")
    } else if block.starts_with("    ") {
        format!("rules:\n{RULE}{block}")
    } else if block.lines().any(has_rules) {
        block.to_string()
    } else {
        format!("{block}rules:\n{RULE}{LIMIT}")
    }
}

#[test]
fn rules_of_pages_are_valid() {
    let folder = tempfile::tempdir().expect("a folder");
    // Files that blocks name.
    let authority =
        rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("a certificate");
    for (name, content) in [
        ("jwks.json", KEYS),
        ("jwt-secret", SECRET),
        ("ca.pem", &authority.cert.pem()),
        ("internal-ca.pem", &authority.cert.pem()),
    ] {
        file(folder.path(), name, content);
    }
    let (mut checked, mut problems) = (0, String::new());
    for page in all_pages() {
        for block in blocks_of(&page) {
            let other = |marker: &BlockMarker| matches!(marker, BlockMarker::NotRules(_));
            if block.language != "yaml" || block.markers.iter().any(other) {
                continue;
            }
            checked += 1;
            let path = file(folder.path(), "rules.yaml", whole_file(&block.text));
            let ended = run(&["check", text(&path)]);
            if ended.code != Some(0) {
                problems += &format!("{page}:{}: {}{}\n", block.line, ended.stdout, ended.stderr);
            }
        }
    }
    assert!(problems.is_empty(), "\n{problems}");
    assert!(checked > 30, "{checked}");
}
