//! Fingerprints of files, which show that a file has changed without reading it.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use tollgate_rules::Source;

/// Metadata of files. Bound: that of rules files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FileFingerprints(Vec<(PathBuf, FileFingerprint)>);

/// Identity, length and change time of one file; `None` if it cannot be read.
type FileFingerprint = Option<[i128; 6]>;

impl FileFingerprints {
    /// Takes the fingerprints of these files, and of the files in these directories.
    pub(super) fn of(paths: &[PathBuf]) -> FileFingerprints {
        let mut prints = Vec::new();
        for path in paths {
            prints.push((path.clone(), fingerprint_of(path)));
            if path.is_dir() {
                let files = Source::files(path).unwrap_or_default();
                prints.extend(files.into_iter().map(|file| (file.clone(), fingerprint_of(&file))));
            }
        }
        FileFingerprints(prints)
    }

    /// Takes the identity of a directory, independent of its contents.
    pub(super) fn of_directory(directory: &Path) -> FileFingerprints {
        let which =
            fingerprint_of(directory).map(|[device, inode, ..]| [device, inode, 0, 0, 0, 0]);
        FileFingerprints(vec![(PathBuf::new(), which)])
    }
}

fn fingerprint_of(path: &Path) -> FileFingerprint {
    fs::metadata(path).ok().map(|metadata| of_metadata(&metadata))
}

#[cfg(unix)]
fn of_metadata(metadata: &Metadata) -> [i128; 6] {
    use std::os::unix::fs::MetadataExt;
    let nanos = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    [
        metadata.dev().into(),
        metadata.ino().into(),
        metadata.len().into(),
        nanos(metadata.mtime(), metadata.mtime_nsec()),
        // Also changes with the permissions.
        nanos(metadata.ctime(), metadata.ctime_nsec()),
        i128::from(metadata.mode()),
    ]
}

#[cfg(not(unix))]
fn of_metadata(metadata: &Metadata) -> [i128; 6] {
    let changed = metadata.modified().ok();
    let since = changed.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
    let nanos = since.map_or(0, |since| since.as_nanos() as i128);
    [0, 0, metadata.len().into(), nanos, 0, metadata.is_dir().into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_shows() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.yaml");
        let paths = [file.clone(), directory.path().to_path_buf(), "missing".into()];
        let mut last = FileFingerprints::of(&paths);
        let mut step = |what: &str, shows: bool| {
            let now = FileFingerprints::of(&paths);
            assert_eq!(now != last, shows, "{what}");
            last = now;
        };
        step("nothing", false);
        fs::write(&file, "1").unwrap();
        step("made", true);
        step("nothing", false);
        fs::write(&file, "12").unwrap();
        step("longer", true);
        fs::write(directory.path().join("b.yaml"), "12").unwrap();
        step("another", true);
        fs::rename(directory.path().join("b.yaml"), &file).unwrap();
        step("replaced by one of the same length", true);
        fs::remove_file(&file).unwrap();
        step("removed", true);
        fs::create_dir(&file).unwrap();
        step("a directory in its place", true);
    }
}
