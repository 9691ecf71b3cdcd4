//! Files that a rules file names: keys of tokens, certificates of upstreams.

use std::io;
use std::path::Path;

use crate::Problem;
use crate::source::{NamedFile, ReadFailure};

use super::context::CompileContext;

/// Reads a file and records it among the named files. The error calls it by this noun, says what to name instead and
/// never shows its contents.
pub(super) fn read(
    context: CompileContext<'_>,
    path: &Path,
    noun: &str,
    wanted: &str,
) -> Result<Vec<u8>, Problem> {
    let (named, contents) = NamedFile::read(path);
    let mut known = context.shared.named_files.borrow_mut();
    if !known.contains(&named) {
        known.push(named);
    }
    contents.map_err(|unread| {
        let Problem { message, hint } = cannot_read(&unread, context.source.folder(), noun);
        Problem { message, hint: hint.or_else(|| Some(wanted.into())) }
    })
}

fn cannot_read(unread: &ReadFailure, folder: &Path, noun: &str) -> Problem {
    let error = match unread {
        ReadFailure::Failed(error) => error,
        ReadFailure::NotRegular => {
            return Problem::new(format!("the {noun} is not a regular file"));
        }
        ReadFailure::TooLarge => {
            let most = NamedFile::BYTES_MAX >> 10;
            return Problem::new(format!("the {noun} is larger than {most} KiB"));
        }
    };
    match error.kind() {
        io::ErrorKind::NotFound => {
            let folder = match folder.as_os_str().is_empty() {
                true => "the directory that Tollgate runs in".to_string(),
                false => format!("`{}`", folder.display()),
            };
            Problem::new(format!("there is no such {noun}"))
                .hint(format!("its name is relative to {folder}"))
        }
        io::ErrorKind::PermissionDenied => {
            Problem::new(format!("the {noun} cannot be read: permission denied"))
                .hint("let the user that runs Tollgate read it")
        }
        _ => Problem::new(format!("the {noun} cannot be read: {error}")),
    }
}
