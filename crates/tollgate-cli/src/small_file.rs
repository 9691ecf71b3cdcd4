//! Reads small files that others write, without filling the memory or blocking on a file that has become
//! something else.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Reads a file of at most `bytes_max` bytes.
pub(crate) fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    Ok(bytes)
}

/// Returns an error for anything but a regular file, such as a pipe, which may block the reader. At the start
/// a pipe is fine: it is read once.
pub(crate) fn can_be_read_again(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_file() {
        return Ok(());
    }
    Err(io::Error::other("this is not a regular file, and cannot be read again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "1234").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"1234");
        assert_eq!(read(&path, 3).unwrap_err().to_string(), "it has more than 3 bytes");
        can_be_read_again(&path).unwrap();
        can_be_read_again(directory.path()).unwrap_err();
        #[cfg(unix)]
        {
            let endless = Path::new("/dev/zero");
            read(endless, 1 << 20).unwrap_err();
            can_be_read_again(endless).unwrap_err();
        }
    }
}
