//! The token that a server asks for, from a file: on a command line other users could see it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::super::Report;

/// The most bytes of a file of tokens that are read.
const FILE_BYTES_MAX: u64 = 128 << 10;

/// A secret: it is shown to the server only.
pub(super) struct BearerToken(String);

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl BearerToken {
    /// The first of a file; `option` named it. The server's own file will do.
    pub(super) fn read(path: &Path, option: &str) -> Result<BearerToken, Report> {
        let shown = path.display();
        let text = read(path).map_err(|error| {
            Report::new(format!("cannot read the token file {shown}: {error}"))
                .hint(format!("{option} names a file with the token in its first line"))
        })?;
        BearerToken::parse(&text).ok_or_else(|| {
            Report::new(format!("the token file {shown} has no token in its first line"))
                .hint("write the token that the server knows: ASCII without spaces, nothing else")
        })
    }

    fn parse(text: &str) -> Option<BearerToken> {
        let token = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        token.bytes().all(|byte| byte.is_ascii_graphic()).then(|| BearerToken(token.into()))
    }

    /// As a line in the head of a request.
    pub(super) fn field(&self) -> String {
        format!("authorization: Bearer {}\r\n", self.0)
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_token_of_a_file_is_sent() {
        let rows = [
            ("secret\n", Some("authorization: Bearer secret\r\n")),
            ("\r\n  new  \r\nold\n", Some("authorization: Bearer new\r\n")),
            ("two words", None),
            ("a\u{1}b", None),
            ("é", None),
            ("\n \n", None),
            ("", None),
        ];
        for (text, want) in rows {
            let token = BearerToken::parse(text);
            assert_eq!(token.as_ref().map(BearerToken::field).as_deref(), want, "{text:?}");
            assert!(!format!("{token:?}").contains("secret"));
        }
    }
}
