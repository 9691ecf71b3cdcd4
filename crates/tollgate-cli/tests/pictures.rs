//! The pictures of README and guides are what the program draws: `cargo xtask pictures` draws them again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{file, tollgate};

const LIST: &str = include_str!("../../../docs/pictures/pictures.txt");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The names of pictures with the options that draw them.
fn pictures() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = LIST.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split_once(' ').expect("a name and options"))
}

#[test]
fn pictures_are_what_the_program_draws() {
    for (name, options) in pictures() {
        let drawn = file(&format!("pictures/{name}.svg"), "");
        let mut command = tollgate();
        let (options, title) = options.split_once('|').unwrap_or((options, ""));
        command.current_dir(root()).arg("simulate").args(options.split_whitespace());
        if !title.is_empty() {
            command.args(["--title", title.trim()]);
        }
        let ran = command.arg("--svg").arg(&drawn).output().expect("tollgate runs");
        assert!(ran.status.success(), "{name}: {}", String::from_utf8_lossy(&ran.stderr));
        let checked_in = root().join(format!("docs/pictures/{name}.svg"));
        let checked_in = fs::read_to_string(checked_in).unwrap_or_default();
        let drawn = fs::read_to_string(drawn).expect("a picture");
        assert!(checked_in == drawn, "docs/pictures/{name}.svg is old: run `cargo xtask pictures`");
        // For screen readers, and for readers without a network.
        assert!(drawn.contains("<title") && drawn.contains("<desc"), "{name}");
        let addresses = drawn.matches("http").count();
        assert_eq!(addresses, drawn.matches("http://www.w3.org/2000/svg").count(), "{name}");
    }
}

#[test]
fn every_picture_is_listed_and_shown() {
    let listed: BTreeSet<String> = pictures().map(|(name, _)| format!("{name}.svg")).collect();
    let entries = fs::read_dir(root().join("docs/pictures")).expect("the pictures");
    let names =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    let found: BTreeSet<String> = names.filter(|name| name.ends_with(".svg")).collect();
    assert_eq!(found, listed);
}
