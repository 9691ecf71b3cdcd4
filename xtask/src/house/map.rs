//! ARCHITECTURE.md: short, and true as far as a program can tell.

use std::fs;
use std::path::Path;

use super::sources::Sources;

/// Lines that the map may have.
const LINES_MAX: usize = 300;

/// Words that no listener and no data plane may use: which store there is, is the gatekeeper's business.
const STORE_WORDS: [&str; 8] = [
    "MemoryStore",
    "SharedStore",
    "RedisStore",
    "ServerStore",
    "OpenStores",
    "Either<",
    "tollgate_redis",
    "tollgate_shared",
];

/// Folders whose code knows no store.
const WITHOUT_STORES: [&str; 2] =
    ["crates/tollgate-cli/src/data_plane", "crates/tollgate-cli/src/listeners"];

/// Crates whose files the map names without their folder.
const CRATES: [&str; 6] = [
    "tollgate",
    "tollgate-shared",
    "tollgate-redis",
    "tollgate-rules",
    "tollgate-tower",
    "tollgate-cli",
];

/// Everything that is wrong with the map, one sentence each.
pub(super) fn problems(root: &Path, sources: &Sources) -> Vec<String> {
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap_or_default();
    let mut problems = missing_paths(root, &text);
    let lines = text.lines().count();
    if lines > LINES_MAX {
        problems
            .push(format!("ARCHITECTURE.md has {lines} lines, at most {LINES_MAX} are allowed"));
    }
    problems.extend(listeners_that_name_a_store(sources));
    problems
}

/// Paths in the map that lead to no file.
fn missing_paths(root: &Path, text: &str) -> Vec<String> {
    let exists = |path: &str| {
        let crates = CRATES.iter().map(|name| format!("crates/{name}/src"));
        let mut bases = crates.chain([".".to_owned()]);
        bases.any(|base| root.join(base).join(path).exists())
    };
    let spans = text.split('`').skip(1).step_by(2);
    let paths = spans.filter(|span| is_path(span));
    paths
        .filter(|path| !exists(path))
        .map(|path| format!("ARCHITECTURE.md names `{path}`, and there is no such file"))
        .collect()
}

/// Code spans that look like a file or folder of this repository.
fn is_path(span: &str) -> bool {
    let plain = span.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b));
    let known = [".rs", ".md", ".lua", ".toml", "/"];
    let schema = span.contains("NAME") || span.starts_with('/') || span.starts_with('.');
    plain && !schema && known.iter().any(|end| span.ends_with(end))
}

fn listeners_that_name_a_store(sources: &Sources) -> Vec<String> {
    let mut found = Vec::new();
    for file in &sources.files {
        if !WITHOUT_STORES.iter().any(|folder| file.path.starts_with(folder)) {
            continue;
        }
        for (index, line) in file.lines.iter().enumerate() {
            if let Some(word) = STORE_WORDS.iter().find(|word| line.contains(**word)) {
                let path = file.path.display();
                found
                    .push(format!("{path}:{} names {word}: ask the gatekeeper instead", index + 1));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_are_looked_for() {
        for path in ["limiter.rs", "store/memory/", "docs/guides/rules.md", "lua/decide.lua"] {
            assert!(is_path(path), "{path}");
        }
        for other in ["/v1/check", "algorithm/NAME.rs", "Limit", "cargo xtask test", "{user|ip}"] {
            assert!(!is_path(other), "{other}");
        }
    }
}
