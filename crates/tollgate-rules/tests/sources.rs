//! Files and directories that cannot be read as they should.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_rules::Source;

/// A directory of its own for each test.
fn scratch(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sources").join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn said(path: &Path) -> String {
    Source::read(path).map(|_| ()).unwrap_err().to_string()
}

const RULES: &str = "rules: [{ name: a, key: global, limits: 1/s }]\n";

#[test]
fn a_directory_is_its_yaml_files_by_name() {
    let directory = scratch("directory");
    for name in ["b.yml", "a.yaml", "c.txt", ".hidden.yaml"] {
        fs::write(directory.join(name), RULES).unwrap();
    }
    fs::create_dir(directory.join("deeper.yaml")).unwrap();
    fs::write(directory.join("deeper.yaml/d.yaml"), RULES).unwrap();
    let sources = Source::read(&directory).unwrap();
    let names: Vec<&str> =
        sources.iter().map(|one| one.name().rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["a.yaml", "b.yml"]);
    assert_eq!(sources[0].text(), RULES);
    assert!(said(&scratch("no_yaml")).contains("has no `*.yaml` or `*.yml` file"));
}

#[test]
fn what_is_missing_is_named() {
    let directory = scratch("missing");
    let missing = directory.join("rules.yaml");
    let text = said(&missing);
    assert!(text.contains("there is no such file") && text.contains("rules.yaml"), "{text}");
}

#[cfg(unix)]
#[test]
fn links_and_pipes_and_rights() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let directory = scratch("links");
    let link = directory.join("rules.yaml");
    symlink("nowhere.yaml", &link).unwrap();
    let text = said(&link);
    assert!(text.contains("the link points to `nowhere.yaml`, which is missing"), "{text}");
    assert!(said(&directory).contains("which is missing"));

    assert!(said(Path::new("/dev/null")).contains("not a regular file"));

    let secret = directory.join("secret.yaml");
    fs::write(&secret, RULES).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser may read everything.
    if fs::read(&secret).is_err() {
        assert!(said(&secret).contains("permission denied"));
    }
}

#[test]
fn large_files_are_not_read_to_their_end() {
    let directory = scratch("large");
    let path = directory.join("rules.yaml");
    fs::write(&path, vec![b'#'; 5 << 20]).unwrap();
    assert!(said(&path).contains("larger than 4 MiB"));
    // Sparse: a terabyte that takes no space, and no time either.
    let sparse = directory.join("sparse.yaml");
    if fs::File::create(&sparse).unwrap().set_len(1 << 40).is_ok() {
        assert!(said(&sparse).contains("larger than 4 MiB"));
    }
    fs::write(&path, vec![b'#'; 4 << 20]).unwrap();
    assert!(Source::read(&path).is_ok());
}

#[test]
fn a_byte_order_mark_does_not_shift_places() {
    let bytes = [b"\xef\xbb\xbf", RULES.as_bytes()].concat();
    assert_eq!(Source::from_bytes("rules.yaml", &bytes).unwrap().text(), RULES);
    let wrong = Source::from_bytes("rules.yaml", b"\xef\xbb\xbfa: \xff").unwrap_err();
    assert_eq!(wrong.span().map(|span| (span.line, span.column)), Some((1, 4)));
}
