//! Rules files as people write them: good ones compile, broken ones get answers that help.
//!
//! `tests/broken/NAME.yaml` has errors, `tests/warned/NAME.yaml` compiles with warnings,
//! `tests/good/NAME.yaml` compiles; what is said about each is in `NAME.stderr` beside it.
//! `TOLLGATE_BLESS=1 cargo test` writes these files anew: read them before committing.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_rules::compile::compile_at;
use tollgate_rules::{Diagnostics, Facts, RuleSet, Severity, Source, compile};

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

fn yaml_files(name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory(name)).unwrap();
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "yaml"))
        .collect();
    files.sort();
    files
}

/// What is said about a file, and its rules. The name is shown without its directory.
fn compile_file(path: &Path) -> (Option<RuleSet>, Diagnostics) {
    let name = path.file_name().unwrap().to_string_lossy();
    match Source::from_bytes(&name, &fs::read(path).unwrap()) {
        Ok(source) => {
            let compiled = compile(&[source]);
            (compiled.rules, compiled.diagnostics)
        }
        Err(diagnostic) => (None, (*diagnostic).into()),
    }
}

/// Compares what is said about a file with the file beside it.
fn compare(path: &Path, said: &str) -> Result<(), String> {
    let beside = path.with_extension("stderr");
    if std::env::var_os("TOLLGATE_BLESS").is_some() {
        match said.is_empty() {
            true => drop(fs::remove_file(&beside)),
            false => fs::write(&beside, said).unwrap(),
        }
    }
    let want = fs::read_to_string(&beside).unwrap_or_default();
    if want == said {
        return Ok(());
    }
    let name = path.file_name().unwrap().to_string_lossy();
    Err(format!("--- {name}: expected\n{want}--- got\n{said}"))
}

fn check_all(name: &str, is_right: impl Fn(&Option<RuleSet>, &Diagnostics) -> bool) {
    let mut wrong = Vec::new();
    for path in yaml_files(name) {
        let (rules, diagnostics) = compile_file(&path);
        assert!(is_right(&rules, &diagnostics), "{}:\n{diagnostics}", path.display());
        wrong.extend(compare(&path, &diagnostics.to_string()).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn broken_files_get_answers_that_help() {
    check_all("broken", |rules, diagnostics| {
        rules.is_none() && diagnostics.has_errors() && !diagnostics.to_string().contains('\u{1b}')
    });
}

#[test]
fn good_files_compile() {
    check_all("good", |rules, diagnostics| rules.is_some() && !diagnostics.has_errors());
}

#[test]
fn doubtful_files_compile_with_warnings() {
    check_all("warned", |rules, diagnostics| {
        rules.is_some() && diagnostics.count(Severity::Warning) > 0
    });
}

#[test]
fn every_diagnostic_has_a_place_that_exists_and_a_machine_form() {
    for path in yaml_files("broken") {
        let text = fs::read(&path).unwrap();
        let lines = text.split(|byte| *byte == b'\n').count();
        for diagnostic in compile_file(&path).1.iter() {
            let value = diagnostic.to_json();
            assert_eq!(value["severity"], diagnostic.severity.as_str());
            assert_eq!(value["message"], diagnostic.message);
            if let Some(span) = diagnostic.span() {
                assert!((1..=lines).contains(&span.line), "{diagnostic}");
                assert_eq!(value["line"], span.line);
                assert_eq!(value["column"], span.column);
                assert!(value["end"]["line"].as_u64() >= Some(span.line as u64), "{diagnostic}");
            }
        }
    }
}
