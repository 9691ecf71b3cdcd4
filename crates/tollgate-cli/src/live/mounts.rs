//! File systems without reliable events: writes by another machine cause none here.

use std::fs;
use std::path::Path;

/// Most bytes that are read of the list of mounts. A machine with containers has some hundred mounts of 150
/// bytes.
const MOUNTS_BYTES_MAX: usize = 4 << 20;

/// Kinds of file systems whose files other machines may change. Those of FUSE are found by their prefix.
const SHARED_KINDS: [&str; 11] =
    ["9p", "afs", "ceph", "cifs", "gfs2", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "smb3"];

/// The kind of file system, if its files may change without an event.
pub(super) fn kind_without_events(path: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounts = &mounts[..mounts.floor_char_boundary(MOUNTS_BYTES_MAX)];
    let kind = kind_of(mounts, path)?;
    let shared = SHARED_KINDS.contains(&kind) || kind.starts_with("fuse") || kind == "virtiofs";
    shared.then(|| kind.to_string())
}

/// The kind of the file system that a path without links is on.
fn kind_of<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    let mounts = mounts.lines().filter_map(|line| {
        let point = line.split(' ').nth(4)?.replace(r"\040", " ");
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        path.starts_with(&point).then_some((point.len(), kind))
    });
    // The longest mount point is the nearest; of two at one place the later one hides the earlier.
    mounts.max_by_key(|(len, _)| *len).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_mount_says_the_kind() {
        let mounts = "\
            21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            22 21 0:20 / /srv rw - tmpfs tmpfs rw\n\
            30 21 0:44 / /srv rw - nfs4 host:/srv rw\n\
            31 30 0:45 / /srv/a\\040b rw shared:7 master:2 - fuse.sshfs me@host: rw\n";
        let rows = [
            ("/etc/rules.yaml", Some("ext4")),
            ("/srv/rules.yaml", Some("nfs4")),
            ("/srv2/rules.yaml", Some("ext4")),
            ("/srv/a b/rules.yaml", Some("fuse.sshfs")),
        ];
        for (path, kind) in rows {
            assert_eq!(kind_of(mounts, Path::new(path)), kind, "{path}");
        }
        assert_eq!(kind_of("nonsense\n\n - \n", Path::new("/")), None);
    }
}
