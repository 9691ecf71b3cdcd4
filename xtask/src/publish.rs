//! The step `publish`: every crate below `crates/` could go to the registry as it is.
//!
//! `cargo package --list` says which files a package would have. It must have a README and the licences, must not
//! have tests, which need the rest of the repository, and its manifest must have the fields that people search by.

use std::fs;
use std::path::Path;

use crate::invocation::Invocation;

/// Files that every package must have. The licences are copies of those in the root, because links do not survive
/// on every system.
const FILES: [&str; 4] = ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Fields that the manifest of every package must have.
const FIELDS: [&str; 8] = [
    "description",
    "documentation",
    "rust-version",
    "license",
    "repository",
    "readme",
    "keywords",
    "categories",
];

/// Maximum numbers that the registry accepts.
const KEYWORDS_MAX: usize = 5;
const KEYWORD_BYTES_MAX: usize = 20;

/// Checks all crates and prints each problem. Returns true if there is none.
pub(crate) fn run() -> bool {
    let crates = fs::read_dir(crate::root().join("crates")).into_iter().flatten().flatten();
    let mut folders: Vec<_> = crates.map(|entry| entry.path()).collect();
    folders.sort();
    let problems: Vec<String> = folders.iter().flat_map(|folder| problems_of(folder)).collect();
    for problem in &problems {
        eprintln!("publish: {problem}");
    }
    !folders.is_empty() && problems.is_empty()
}

/// The problems of one crate, one sentence each.
fn problems_of(folder: &Path) -> Vec<String> {
    let name = folder.file_name().unwrap_or_default().display().to_string();
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
    let list = Invocation::new(&format!("cargo package --list --allow-dirty --package {name}"));
    let mut problems = manifest_problems(&manifest);
    match list.output() {
        Some(files) => problems.extend(file_problems(&files.lines().collect::<Vec<_>>())),
        None => problems.push(format!("`{list}` failed")),
    }
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        let read = |folder: &Path| fs::read(folder.join(licence)).unwrap_or_default();
        if read(folder) != read(crate::root()) {
            problems.push(format!("{licence} differs from the one in the root: copy it"));
        }
    }
    problems.into_iter().map(|problem| format!("{name}: {problem}")).collect()
}

/// The problems of a list of packaged files.
fn file_problems(files: &[&str]) -> Vec<String> {
    let missing = FILES.iter().filter(|file| !files.contains(file));
    let missing = missing.map(|file| format!("the package has no {file}"));
    let tests = files.iter().filter(|file| file.starts_with("tests/"));
    missing.chain(tests.map(|file| format!("the package has {file}: leave tests out"))).collect()
}

/// The problems of a manifest.
fn manifest_problems(manifest: &str) -> Vec<String> {
    let value = |field: &str| {
        let after =
            |line: &&str| line.strip_prefix(field).is_some_and(|it| it.starts_with([' ', '.']));
        manifest.lines().find(after)
    };
    let missing = FIELDS.iter().filter(|field| value(field).is_none());
    let mut problems: Vec<_> =
        missing.map(|field| format!("Cargo.toml has no `{field}`")).collect();
    let keywords: Vec<&str> =
        value("keywords").unwrap_or_default().split('"').skip(1).step_by(2).collect();
    if keywords.len() > KEYWORDS_MAX {
        problems.push(format!("{} keywords, at most {KEYWORDS_MAX} are allowed", keywords.len()));
    }
    let fits = |word: &&&str| {
        word.len() <= KEYWORD_BYTES_MAX
            && word.starts_with(|c: char| c.is_ascii_alphanumeric())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-+".contains(c))
    };
    let unfit = keywords.iter().filter(|word| !fits(word));
    problems.extend(unfit.map(|word| format!("the registry does not accept the keyword `{word}`")));
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_too_much_is_named() {
        let all = ["Cargo.toml", "LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"];
        assert_eq!(file_problems(&all), [""; 0]);
        assert_eq!(file_problems(&all[..3]), ["the package has no README.md"]);
        let tests = [&all[..], &["tests/main.rs"]].concat();
        assert_eq!(file_problems(&tests), ["the package has tests/main.rs: leave tests out"]);
    }

    #[test]
    fn manifests_have_what_people_search_by() {
        let whole = "description = \"\"\ndocumentation = \"\"\nrust-version.workspace = true\n\
                     license.workspace = true\nrepository.workspace = true\nreadme = \"\"\n\
                     categories = []\n";
        let with = |keywords: &str| manifest_problems(&format!("{whole}keywords = [{keywords}]\n"));
        assert_eq!(with(r#""rate-limit", "redis""#), [""; 0]);
        assert_eq!(manifest_problems(whole), ["Cargo.toml has no `keywords`"]);
        assert_eq!(with(r#""a", "b", "c", "d", "e", "f""#), ["6 keywords, at most 5 are allowed"]);
        assert_eq!(
            with(r#""rate limit""#),
            ["the registry does not accept the keyword `rate limit`"]
        );
    }
}
