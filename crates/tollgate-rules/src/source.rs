//! `Source`: the text of one rules file and the name people know it by; reading files and
//! directories, with an answer for everything that can be wrong before the first line is looked at.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Problem;
use crate::diagnostic::{Diagnostic, Span};

/// The largest rules file. 20,000 rules of ordinary size are about 3 MiB; whatever is larger was
/// most likely named by mistake, and a mistake should not fill the memory first.
pub const MAX_BYTES: u64 = 4 << 20;

/// The most files of a directory. More is a directory that was named by mistake.
pub const MAX_FILES: usize = 1_000;

/// Bytes at the start of a file that are searched for zero bytes: a binary file has several.
const BINARY_PROBE_BYTES: usize = 8 << 10;

/// The text of a rules file and its name. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    name: Arc<str>,
    text: Arc<str>,
    /// The folder that files named in the text are relative to.
    folder: Arc<Path>,
}

impl Source {
    /// A text that is at hand. The name is only shown.
    pub fn from_text(name: &str, text: &str) -> Source {
        // A byte order mark says nothing about UTF-8, but would shift the first line's columns.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        Source { name: name.into(), text: text.into(), folder: Path::new("").into() }
    }

    /// The same in another place: files that the text names are relative to it. Without this they are
    /// relative to the directory that the program runs in.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Source {
        self.folder = folder.into();
        self
    }

    /// Bytes that should be UTF-8.
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Source, Box<Diagnostic>> {
        if bytes.len() as u64 > MAX_BYTES {
            return Err(Diagnostic::of_file(name, too_large()).into());
        }
        if let Some(problem) = wrong_encoding(bytes) {
            return Err(Diagnostic::of_file(name, problem).into());
        }
        std::str::from_utf8(bytes).map(|text| Source::from_text(name, text)).map_err(|error| {
            let (good, bad) = bytes.split_at(error.valid_up_to());
            let text = String::from_utf8_lossy(bytes);
            let source = Source::from_text(name, &text);
            let problem = Problem::new(format!("the byte 0x{:02X} is not UTF-8", bad[0]))
                .hint("save the file as UTF-8");
            let shift = usize::from(bytes.starts_with(b"\xef\xbb\xbf")) * 3;
            let span = source.span_at(good.len() - shift, '\u{fffd}'.len_utf8());
            Diagnostic::error(&source, span, problem).into()
        })
    }

    /// Reads a file; or all `*.yaml` and `*.yml` files of a directory, sorted by name.
    pub fn read(path: &Path) -> Result<Vec<Source>, Box<Diagnostic>> {
        let files = Source::files(path)?;
        files.iter().map(|file| Source::read_file(file)).collect()
    }

    /// The files that [`Source::read`] reads.
    pub fn files(path: &Path) -> Result<Vec<PathBuf>, Box<Diagnostic>> {
        let metadata = fs::metadata(path).map_err(|error| cannot_read(path, &error))?;
        if metadata.is_dir() { yaml_files(path) } else { Ok(vec![path.into()]) }
    }

    fn read_file(path: &Path) -> Result<Source, Box<Diagnostic>> {
        let name = path.display().to_string();
        let of_file = |problem| Box::new(Diagnostic::of_file(&name, problem));
        let bytes = read_regular(path, MAX_BYTES).map_err(|unread| match unread {
            ReadFailure::Failed(error) => cannot_read(path, &error),
            ReadFailure::NotRegular => {
                let hint = "name a YAML file, or a directory with YAML files";
                of_file(Problem::new("this is not a regular file").hint(hint))
            }
            ReadFailure::TooLarge => of_file(too_large()),
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Ok(Source::from_bytes(&name, &bytes)?.in_folder(folder))
    }

    /// The name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder of files that the text names.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The whole text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The place of `len` bytes from the byte `start` on.
    pub(crate) fn span_at(&self, start: usize, len: usize) -> Span {
        let all = self.text.len();
        let is_boundary = |at: &usize| self.text.is_char_boundary(*at);
        let start = (0..=start.min(all)).rev().find(is_boundary).unwrap_or(0);
        let end = (start + len..=all).find(is_boundary).unwrap_or(all);
        let bytes = self.text.as_bytes();
        let line_start = line_start(&self.text, start);
        Span {
            start,
            end,
            line: (0..line_start).filter(|at| breaks_line(bytes, *at)).count() + 1,
            column: self.text[line_start..start].chars().count() + 1,
        }
    }
}

/// A file that the rules name, such as one with keys, as it was when it was read. Two that are equal had
/// the same contents, or could not be read for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFile {
    path: PathBuf,
    /// Not the contents themselves: they may be secret.
    fingerprint: u64,
}

impl NamedFile {
    /// The largest one: 16 keys with their certificates are less than half of it.
    pub const BYTES_MAX: u64 = 256 << 10;

    /// Reads a file. The first value records its contents, or the reason why it could not be read.
    pub(crate) fn read(path: &Path) -> (NamedFile, Result<Vec<u8>, ReadFailure>) {
        let contents = read_regular(path, NamedFile::BYTES_MAX);
        let mut hasher = DefaultHasher::new();
        match &contents {
            Ok(bytes) => (0, bytes).hash(&mut hasher),
            Err(ReadFailure::Failed(error)) => (1, error.kind()).hash(&mut hasher),
            Err(ReadFailure::NotRegular) => 2.hash(&mut hasher),
            Err(ReadFailure::TooLarge) => 3.hash(&mut hasher),
        }
        (NamedFile { path: path.into(), fingerprint: hasher.finish() }, contents)
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file has not changed.
    pub fn is_current(&self) -> bool {
        NamedFile::read(&self.path).0 == *self
    }
}

/// The reason why a file was not read.
#[derive(Debug)]
pub(crate) enum ReadFailure {
    Failed(io::Error),
    NotRegular,
    TooLarge,
}

/// The bytes of a regular file. Never waits, and never takes in more than allowed.
fn read_regular(path: &Path, bytes_max: u64) -> Result<Vec<u8>, ReadFailure> {
    // Opening a pipe would wait for its writer, and opening a device may do something.
    if !fs::metadata(path).map_err(ReadFailure::Failed)?.is_file() {
        return Err(ReadFailure::NotRegular);
    }
    let file = open(path).map_err(ReadFailure::Failed)?;
    // Another file may have replaced it since.
    if !file.metadata().map_err(ReadFailure::Failed)?.is_file() {
        return Err(ReadFailure::NotRegular);
    }
    let mut bytes = Vec::new();
    // One byte more than allowed is enough to know; the length in the metadata may be old.
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(ReadFailure::Failed)?;
    if bytes.len() as u64 > bytes_max { Err(ReadFailure::TooLarge) } else { Ok(bytes) }
}

/// Opens a file; never waits, not even if a pipe has just come into its place.
#[cfg(unix)]
fn open(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(not(unix))]
fn open(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// The start of the line that contains a position.
pub(crate) fn line_start(text: &str, place: usize) -> usize {
    let bytes = text.as_bytes();
    (0..place).rev().find(|at| breaks_line(bytes, *at)).map_or(0, |at| at + 1)
}

/// Returns true if a line ends with this byte. YAML also ends a line at a lone carriage return.
fn breaks_line(bytes: &[u8], at: usize) -> bool {
    bytes[at] == b'\n' || (bytes[at] == b'\r' && bytes.get(at + 1) != Some(&b'\n'))
}

fn too_large() -> Problem {
    Problem::new(format!("the file is larger than {} MiB", MAX_BYTES >> 20))
        .hint("split the rules over several files of one directory and name the directory")
}

/// Encodings that are recognized by their first bytes, and files that are no text at all.
fn wrong_encoding(bytes: &[u8]) -> Option<Problem> {
    if bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff") {
        return Some(Problem::new("the file is UTF-16").hint("save the file as UTF-8"));
    }
    let probe = &bytes[..bytes.len().min(BINARY_PROBE_BYTES)];
    // One zero byte may have slipped in and is shown where it stands; several are a format.
    let zeros = probe.iter().filter(|byte| **byte == 0).count();
    (zeros > 1 || (zeros == 1 && std::str::from_utf8(bytes).is_err())).then(|| {
        Problem::new("this is a binary file, not YAML").hint("name a text file saved as UTF-8")
    })
}

fn cannot_read(path: &Path, error: &io::Error) -> Box<Diagnostic> {
    let is_link = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_symlink());
    let problem = match error.kind() {
        io::ErrorKind::NotFound if is_link => {
            let target = fs::read_link(path).unwrap_or_default();
            Problem::new(format!("the link points to `{}`, which is missing", target.display()))
                .hint("point the link to a file that exists")
        }
        io::ErrorKind::NotFound => Problem::new("there is no such file or directory")
            .hint("look at the spelling and at the directory the command runs in"),
        io::ErrorKind::PermissionDenied => {
            Problem::new("the file cannot be read: permission denied")
                .hint("let the user that runs Tollgate read it")
        }
        _ => Problem::new(format!("the file cannot be read: {error}")),
    };
    Diagnostic::of_file(&path.display().to_string(), problem).into()
}

/// The YAML files of a directory. Names that begin with a dot are left out: editors and mounted
/// configurations keep their unfinished and their old files there.
fn yaml_files(directory: &Path) -> Result<Vec<PathBuf>, Box<Diagnostic>> {
    let name = directory.display().to_string();
    let entries = fs::read_dir(directory).map_err(|error| cannot_read(directory, &error))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| cannot_read(directory, &error))?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
        let yaml = path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
        if yaml && !hidden && !path.is_dir() {
            files.push(path);
        }
    }
    let problem = if files.is_empty() {
        Problem::new("the directory has no `*.yaml` or `*.yml` file")
            .hint("directories below it are not searched: name the one with the rules")
    } else if files.len() > MAX_FILES {
        Problem::new(format!("the directory has more than {MAX_FILES} YAML files"))
    } else {
        files.sort();
        return Ok(files);
    };
    Err(Diagnostic::of_file(&name, problem).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_file_is_known_by_its_contents() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys");
        let mut last = NamedFile::read(&path).0;
        let mut step = |what: &str, is_current: bool| {
            assert_eq!(last.is_current(), is_current, "{what}");
            last = NamedFile::read(&path).0;
            assert!(last.is_current(), "{what}");
        };
        step("missing", true);
        fs::write(&path, "").unwrap();
        step("empty", false);
        fs::write(&path, "1").unwrap();
        step("written", false);
        fs::write(&path, "1").unwrap();
        step("the same again", true);
        fs::write(&path, "2").unwrap();
        step("of the same length", false);
        fs::write(&path, vec![b'2'; NamedFile::BYTES_MAX as usize + 1]).unwrap();
        step("too large", false);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        step("a directory", false);
    }

    /// Opening a file never waits, even if a pipe has replaced it since it was examined.
    #[cfg(unix)]
    #[test]
    fn opening_a_pipe_does_not_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo runs").success());
        assert!(!open(&path).unwrap().metadata().unwrap().is_file());
        for read in [read_regular(&path, 1), NamedFile::read(&path).1] {
            assert!(matches!(read, Err(ReadFailure::NotRegular)), "{read:?}");
        }
    }
}
