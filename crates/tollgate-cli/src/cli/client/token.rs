//! The server's token, read from a file: on a command line other users could see it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use http::HeaderValue;

use super::super::Report;

/// Most bytes that are read of a token file.
const FILE_BYTES_MAX: u64 = 128 << 10;

/// A token, which is sent to the server only.
pub(super) struct BearerToken(String);

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

impl BearerToken {
    /// Reads the first token of a file, which `option` named. The server's own file works.
    pub(super) fn read(path: &Path, option: &str) -> Result<BearerToken, Report> {
        let shown = path.display();
        let text = read(path).map_err(|error| {
            Report::new(format!("cannot read the token file {shown}: {error}"))
                .hint(format!("{option} names a file with the token in its first line"))
        })?;
        BearerToken::parse(&text).ok_or_else(|| {
            Report::new(format!("the token file {shown} has no token in its first line"))
                .hint("write the server's token: ASCII without spaces, nothing else")
        })
    }

    fn parse(text: &str) -> Option<BearerToken> {
        let token = text.lines().map(str::trim).find(|line| !line.is_empty())?;
        token.bytes().all(|byte| byte.is_ascii_graphic()).then(|| BearerToken(token.into()))
    }

    /// The value of the `authorization` header field.
    pub(super) fn field(&self) -> HeaderValue {
        let mut value =
            HeaderValue::try_from(format!("Bearer {}", self.0)).expect("a token is visible ASCII");
        value.set_sensitive(true);
        value
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
            ("secret\n", Some("Bearer secret")),
            ("\r\n  new  \r\nold\n", Some("Bearer new")),
            ("two words", None),
            ("a\u{1}b", None),
            ("é", None),
            ("\n \n", None),
            ("", None),
        ];
        for (text, want) in rows {
            let token = BearerToken::parse(text);
            let field = token.as_ref().map(BearerToken::field);
            assert_eq!(field.as_ref().map(|field| field.to_str().unwrap()), want, "{text:?}");
            assert!(!format!("{token:?} {field:?}").contains("secret"));
        }
    }
}
