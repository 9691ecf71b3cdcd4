//! Directories to watch for events: those of the rules files and of every link on the way to them. A
//! replaced file causes no event of its own, but its directory does; and a link may be replaced far from the
//! file it leads to, as in mounted configurations with `..data`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};

use tollgate_rules::Source;

/// Most links on the way to a file; more is a loop. The same bound as the kernel's.
const LINKS_MAX: usize = 40;

/// Directories and files to watch for some paths, as their links lead now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WatchedPaths {
    /// Directories, without links in their names. Bound: that of rules files, times `LINKS_MAX`; the watch
    /// itself has a lower bound.
    pub(super) directories: BTreeSet<PathBuf>,
    /// Relevant files and links in them. Bound: the same.
    files: BTreeSet<PathBuf>,
    /// Directories in which every file is relevant.
    whole_directories: BTreeSet<PathBuf>,
}

impl WatchedPaths {
    pub(super) fn of(paths: &[PathBuf]) -> WatchedPaths {
        let mut places = WatchedPaths::default();
        for path in paths {
            places.follow(path);
            if path.is_dir() {
                let files = Source::files(path).unwrap_or_default();
                files.iter().for_each(|file| places.follow(file));
            }
        }
        places
    }

    /// Returns true if an event at this path is relevant.
    pub(super) fn matters(&self, path: &Path) -> bool {
        self.files.contains(path)
            || self.directories.contains(path)
            || path.parent().is_some_and(|parent| self.whole_directories.contains(parent))
    }

    /// Adds a path and the links on the way to it.
    fn follow(&mut self, path: &Path) {
        // Without a current directory a relative path leads nowhere.
        let Ok(mut path) = std::path::absolute(path) else { return };
        for _ in 0..=LINKS_MAX {
            match self.walk(&path) {
                Some(onwards) => path = onwards,
                None => return,
            }
        }
    }

    /// Walks along a path to its end or its first link. Returns the target of the link.
    fn walk(&mut self, path: &Path) -> Option<PathBuf> {
        let mut at = PathBuf::new();
        let mut components = path.components();
        while let Some(component) = components.next() {
            match component {
                // The path so far has no link, so the parent is the one in its name.
                Component::ParentDir => drop(at.pop()),
                component => at.push(component),
            }
            match fs::symlink_metadata(&at) {
                Ok(metadata) if metadata.is_symlink() => {
                    self.add(&at);
                    let target = fs::read_link(&at).ok()?;
                    return Some(at.parent()?.join(target).join(components.as_path()));
                }
                Ok(_) => {}
                // A new file or directory will appear in the last directory that exists.
                Err(_) => {
                    self.add(&at);
                    return None;
                }
            }
        }
        if at.is_dir() {
            self.directories.insert(at.clone());
            self.whole_directories.insert(at);
        } else {
            self.add(&at);
        }
        None
    }

    fn add(&mut self, name: &Path) {
        if let Some(parent) = name.parent() {
            self.directories.insert(parent.into());
            self.files.insert(name.into());
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_link_on_the_way_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        for made in ["conf/..v1", "real", "empty"] {
            fs::create_dir_all(root.join(made)).unwrap();
        }
        for file in ["conf/..v1/rules.yaml", "real/a.yaml", "plain.yaml"] {
            fs::write(root.join(file), "").unwrap();
        }
        let links = [
            ("..v1", "conf/..data"),
            ("..data/rules.yaml", "conf/rules.yaml"),
            ("real", "linked"),
            ("nowhere", "dangling.yaml"),
            ("circle", "circle"),
            ("linked/../plain.yaml", "around.yaml"),
        ];
        for (target, link) in links {
            symlink(target, root.join(link)).unwrap();
        }
        // path, directories, names
        let rows: [(&str, &[&str], &[&str]); 9] = [
            ("plain.yaml", &[""], &["plain.yaml"]),
            (
                "conf/rules.yaml",
                &["conf", "conf/..v1"],
                &["conf/..data", "conf/..v1/rules.yaml", "conf/rules.yaml"],
            ),
            ("linked/a.yaml", &["", "real"], &["linked", "real/a.yaml"]),
            ("linked", &["", "real"], &["linked", "real/a.yaml"]),
            ("dangling.yaml", &[""], &["dangling.yaml", "nowhere"]),
            ("circle", &[""], &["circle"]),
            ("missing/below/x.yaml", &[""], &["missing"]),
            ("empty", &["empty"], &[]),
            ("around.yaml", &[""], &["around.yaml", "linked", "plain.yaml"]),
        ];
        for (path, directories, names) in rows {
            let found = WatchedPaths::of(&[root.join(path)]);
            let under = |names: &[&str]| -> BTreeSet<PathBuf> {
                // Joining nothing would leave a slash at the end.
                let join =
                    |name: &&str| if name.is_empty() { root.clone() } else { root.join(name) };
                names.iter().map(join).collect()
            };
            assert_eq!(found.directories, under(directories), "{path}");
            assert_eq!(found.files, under(names), "{path}");
        }
    }

    #[test]
    fn what_does_not_matter_is_left_out() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        fs::create_dir(root.join("rules")).unwrap();
        fs::write(root.join("one.yaml"), "").unwrap();
        let places = WatchedPaths::of(&[root.join("one.yaml"), root.join("rules")]);
        let rows = [
            ("one.yaml", true),
            ("two.yaml", false),
            ("rules", true),
            ("rules/new.yaml", true),
            ("rules/below/new.yaml", false),
        ];
        for (path, concerns) in rows {
            assert_eq!(places.matters(&root.join(path)), concerns, "{path}");
        }
    }
}
