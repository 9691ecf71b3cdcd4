//! Values that are URLs, and may hold a password: what is wrong with one is told without it.

use std::ffi::OsStr;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};

/// Reads a value as this function does. (Of a plain function clap repeats the value as it is.)
#[derive(Clone, Copy, Debug)]
pub(crate) struct UrlValue<T>(pub(crate) fn(&str) -> Result<T, String>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for UrlValue<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let text = StringValueParser::new().parse_ref(command, arg, value)?;
        (self.0)(&text).map_err(|problem| {
            let arg = arg.map(ToString::to_string).unwrap_or_default();
            let shown = without_userinfo(&text);
            let problem = format!("invalid value '{shown}' for '{arg}': {problem}\n");
            Error::raw(ErrorKind::ValueValidation, problem).with_cmd(command)
        })
    }
}

/// What stands before the last `@` may be a name and a password, and so may what follows a `?` and what
/// stands in the place of a scheme and is none.
fn without_userinfo(text: &str) -> String {
    // A scheme, or `NAME=` before one.
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '=' | '_');
    let scheme = match text.split_once("://") {
        Some((scheme, _)) if scheme.chars().all(fits) => format!("{scheme}://"),
        Some(_) => return "…".into(),
        None => String::new(),
    };
    let host = match text.rsplit_once('@') {
        // A space in a password cuts the value in two.
        None if !ports_only(&text[scheme.len()..]) => format!("{scheme}…"),
        None => text.into(),
        // Which of them ends the password, nobody knows.
        Some((before, _)) if before.contains('?') => format!("{scheme}…"),
        Some((_, host)) => format!("{scheme}…@{host}"),
    };
    match host.split_once('?') {
        None => host,
        Some((host, _)) => format!("{host}?…"),
    }
}

/// Whether nothing but ports stands behind colons, outside of brackets.
fn ports_only(hosts: &str) -> bool {
    let hosts = hosts.split(['/', '?']).next().unwrap_or_default();
    hosts.split(',').all(|host| {
        let behind = host.rsplit_once(']').map_or(host, |(_, behind)| behind);
        behind.split(':').skip(1).all(|port| port.chars().all(|c| c.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let rows = [
            ("redis://localhost:6379", "redis://localhost:6379"),
            ("redis://u:pw@h:6379", "redis://…@h:6379"),
            ("redis://u:p@/w#@h:6379/0", "redis://…@h:6379/0"),
            ("u:pw@h", "…@h"),
            ("disk", "disk"),
            ("redis-sentinel://h/m?sentinel_password=pw", "redis-sentinel://h/m?…"),
            ("redis://u:p?w@h?a=b", "redis://…"),
            ("redis://u:pw@h?a=b", "redis://…@h?…"),
            ("u:pw://h", "…"),
            ("eu=redis://u:pw", "eu=redis://…"),
            ("u:pw", "…"),
            ("redis://[::1]:6379,h:x/0", "redis://…"),
            ("redis://[::1]:6379,h:7/x", "redis://[::1]:6379,h:7/x"),
            ("u:pw://x@h", "…"),
            ("eu=redis://u:p w@h", "eu=redis://…@h"),
        ];
        for (text, want) in rows {
            assert_eq!(without_userinfo(text), want, "{text}");
        }
    }
}
