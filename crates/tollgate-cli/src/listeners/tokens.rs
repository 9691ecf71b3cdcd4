//! Tokens: the secrets that clients of a listener present, read from a file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use arc_swap::ArcSwap;
use aws_lc_rs::constant_time::verify_slices_are_equal;

use super::header_fields::HeaderFields;
use crate::cli::Report;
use crate::small_file;
use crate::telemetry::Logs;

/// Minimum bytes of a token: shorter ones can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// Maximum bytes of a token, so that it fits into a header.
const TOKEN_BYTES_MAX: usize = 4_096;

/// Maximum tokens of a file: each is compared with the presented one.
const TOKENS_MAX: usize = 16;

/// Maximum bytes of a file: the maximum of tokens with their line ends, and the same again of empty lines.
const FILE_BYTES_MAX: u64 = 2 * (TOKENS_MAX * (TOKEN_BYTES_MAX + 2)) as u64;

/// Header for a token, if `Authorization` is used for something else.
const X_TOLLGATE_TOKEN: &str = "x-tollgate-token";

/// Accepted tokens of a listener. Several are for rotation: the new beside the old one, until all clients have changed.
/// They can be replaced at run time.
pub(crate) struct Tokens {
    path: PathBuf,
    /// Flag that named the file.
    flag: &'static str,
    current: ArcSwap<TokenList>,
}

/// The tokens of a file. Bound: `TOKENS_MAX`.
#[derive(PartialEq, Eq)]
struct TokenList(Vec<Box<[u8]>>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokens({} of them)", self.current.load().0.len())
    }
}

impl Tokens {
    /// Reads a file of one token per line; `flag` named it.
    pub(crate) fn read(path: &Path, flag: &'static str, logs: &Logs) -> Result<Tokens, Report> {
        let good = TokenList::read(path, logs).map_err(|problem| problem.report(path, flag))?;
        Ok(Tokens { path: path.into(), flag, current: ArcSwap::from_pointee(good) })
    }

    /// Reads the file again. Returns true if the tokens have changed. On an error the old ones stay.
    pub(crate) fn read_again(&self, logs: &Logs) -> Result<bool, Report> {
        let read = small_file::can_be_read_again(&self.path).map_err(TokenFileError::Unreadable);
        let new = read.and_then(|()| TokenList::read(&self.path, logs));
        let new = new.map_err(|problem| problem.report(&self.path, self.flag))?;
        let has_changed = **self.current.load() != new;
        if has_changed {
            self.current.store(new.into());
        }
        Ok(has_changed)
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Number, from 1, of the token that a request carries in `Authorization: Bearer …` or in `X-Tollgate-Token: …`.
    /// Behind a proxy the first may be a token of its client.
    pub(crate) fn admit(&self, headers: &impl HeaderFields) -> Option<usize> {
        let bearer = single_field(headers, "authorization").and_then(|field| {
            let (scheme, token) = field.split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
        });
        let own = single_field(headers, X_TOLLGATE_TOKEN);
        // Both are always compared, so that the time does not depend on the first.
        let number = |token: Option<&[u8]>| token.and_then(|token| self.find(token.trim_ascii()));
        let (bearer, own) = (number(bearer), number(own));
        bearer.or(own)
    }

    /// Number of this token, from 1. Compares every byte of every token, so that the time reveals only the length.
    pub(crate) fn find(&self, presented: &[u8]) -> Option<usize> {
        let good = self.current.load();
        let each = good.0.iter().zip(1..);
        each.fold(None, |found, (token, number)| {
            verify_slices_are_equal(token, presented).is_ok().then_some(number).or(found)
        })
    }
}

/// Error in a token file.
enum TokenFileError {
    Unreadable(io::Error),
    Invalid(String),
}

impl TokenFileError {
    fn report(self, path: &Path, flag: &str) -> Report {
        let shown = path.display();
        match self {
            TokenFileError::Unreadable(error) => {
                Report::new(format!("cannot read the token file {shown}: {error}")).hint(format!(
                    "write a random token into it, such as `openssl rand -hex 32 > {shown}`, or \
                     name another file with {flag}"
                ))
            }
            TokenFileError::Invalid(problem) => {
                Report::new(format!("the token file {shown} {problem}"))
                    .hint("write one token per line, such as from `openssl rand -hex 32`")
            }
        }
    }
}

impl TokenList {
    fn read(path: &Path, logs: &Logs) -> Result<TokenList, TokenFileError> {
        let bytes = small_file::read(path, FILE_BYTES_MAX).map_err(TokenFileError::Unreadable)?;
        warn_if_readable_by_all(path, logs);
        let text =
            str::from_utf8(&bytes).map_err(|_| TokenFileError::Invalid("is not text".into()))?;
        TokenList::parse(text).map_err(TokenFileError::Invalid)
    }

    fn parse(text: &str) -> Result<TokenList, String> {
        let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty());
        let mut tokens = Vec::new();
        for (index, token) in lines {
            let line = index + 1;
            if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) {
                return Err(format!(
                    "has {} bytes in line {line}: a token has {TOKEN_BYTES_MIN} to \
                     {TOKEN_BYTES_MAX}",
                    token.len()
                ));
            }
            if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(format!(
                    "has a character in line {line} that a header cannot carry: use ASCII letters, \
                     digits and punctuation, without spaces"
                ));
            }
            tokens.push(token.as_bytes().into());
        }
        match tokens.len() {
            0 => Err("is empty".into()),
            1..=TOKENS_MAX => Ok(TokenList(tokens)),
            count => Err(format!("has {count} tokens, more than {TOKENS_MAX}")),
        }
    }
}

/// The field of this name, if there is exactly one: two would be ambiguous.
fn single_field<'a>(headers: &'a impl HeaderFields, name: &str) -> Option<&'a [u8]> {
    headers.single_value(name).ok().flatten()
}

#[cfg(unix)]
pub(crate) fn warn_if_readable_by_all(path: &Path, logs: &Logs) {
    use std::os::unix::fs::PermissionsExt;

    let Ok(data) = std::fs::metadata(path) else { return };
    if data.permissions().mode() & 0o004 != 0 {
        let file = path.display();
        logs.warn(
            "every user of this machine can read this secret file: chmod o-r",
            &[("file", &file)],
        );
    }
}

#[cfg(not(unix))]
pub(crate) fn warn_if_readable_by_all(_: &Path, _: &Logs) {}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http::header::AUTHORIZATION;

    use super::*;

    #[test]
    fn any_token_of_the_file_is_good_and_nothing_else() {
        let list = TokenList::parse("0123456789abcdef\r\n\n  fedcba9876543210  \n").unwrap();
        let good = ArcSwap::from_pointee(list);
        let tokens = Tokens { path: PathBuf::new(), flag: "", current: good };
        let rows: [(&[&str], bool); 10] = [
            (&["Bearer 0123456789abcdef"], true),
            (&["bearer fedcba9876543210"], true),
            (&["Bearer 0123456789abcdeF"], false),
            (&["Bearer 0123456789abcde"], false),
            (&["Bearer 0123456789abcdef0"], false),
            (&["Basic 0123456789abcdef"], false),
            (&["Bearer "], false),
            (&["Bearer"], false),
            (&["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"], false),
            (&[], false),
        ];
        for (fields, admitted) in rows {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(AUTHORIZATION, field.parse().unwrap());
            }
            assert_eq!(tokens.admit(&headers).is_some(), admitted, "{fields:?}");
        }
        // Authorization, X-Tollgate-Token
        let rows: [(&str, &[&str], bool); 6] = [
            ("Bearer of-a-client", &["fedcba9876543210"], true),
            ("Bearer of-a-client", &["fedcba987654321"], false),
            ("Bearer of-a-client", &["Bearer fedcba9876543210"], false),
            ("Bearer of-a-client", &["fedcba9876543210", "fedcba9876543210"], false),
            ("Bearer of-a-client", &[""], false),
            ("Bearer fedcba9876543210", &["wrong"], true),
        ];
        for (authorization, fields, admitted) in rows {
            let mut headers = HeaderMap::new();
            headers.append(AUTHORIZATION, authorization.parse().unwrap());
            for field in fields {
                headers.append(X_TOLLGATE_TOKEN, field.parse().unwrap());
            }
            assert_eq!(tokens.admit(&headers).is_some(), admitted, "{authorization} {fields:?}");
        }
        assert_eq!(format!("{tokens:?}"), "Tokens(2 of them)");
    }

    #[test]
    fn weak_files_are_refused_without_telling_what_they_hold() {
        let many = "0123456789abcdef\n".repeat(17);
        let rows = [
            ("", "is empty"),
            ("\n \n", "is empty"),
            ("\nsecret\n", "has 6 bytes in line 2: a token has 16 to 4096"),
            ("a secret of some words", "has a character in line 1 that a header cannot carry"),
            (&many, "has 17 tokens, more than 16"),
        ];
        for (text, want) in rows {
            let Err(problem) = TokenList::parse(text) else { panic!("{want}") };
            assert!(problem.starts_with(want), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
    }
}
