//! The Rust files of all packages, without their tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Folders that have a `src` of their own below them, or one level deeper.
const PACKAGES: [&str; 5] = ["crates", "bench", "fuzz", "testkit", "xtask"];

/// One file, cut where its tests begin.
pub(super) struct SourceFile {
    /// Relative to the root of the repository.
    pub(super) path: PathBuf,
    pub(super) lines: Vec<String>,
}

/// All files in the order of their paths.
pub(super) struct Sources {
    pub(super) files: Vec<SourceFile>,
}

impl Sources {
    /// Reads every file below a `src` that is not part of a test.
    pub(super) fn read(root: &Path) -> Sources {
        let mut files = Vec::new();
        for package in PACKAGES {
            collect(root, &root.join(package), &mut files);
        }
        files.sort_by(|one: &SourceFile, other| one.path.cmp(&other.path));
        Sources { files }
    }

    /// Lines of all files in a folder.
    pub(super) fn lines_below(&self, folder: &str) -> usize {
        let files = self.files.iter().filter(|file| file.path.starts_with(folder));
        files.map(|file| file.lines.len()).sum()
    }
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<SourceFile>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "tests" && name != "target" {
                collect(root, &path, files);
            }
            continue;
        }
        let relative = path.strip_prefix(root).expect("below the root").to_owned();
        let in_src = relative.components().any(|part| part.as_os_str() == "src");
        if !in_src || !name.ends_with(".rs") || name == "tests.rs" {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        files.push(SourceFile { path: relative, lines: without_tests(&text) });
    }
}

/// The lines before the test module at the end of a file.
fn without_tests(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let is_test = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1].starts_with("mod tests {");
    let end = lines.windows(2).position(is_test).unwrap_or(lines.len());
    lines[..end].iter().map(|line| (*line).to_owned()).collect()
}
