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

/// What stands before the last `@` may be a name and a password.
fn without_userinfo(text: &str) -> String {
    let Some((before, host)) = text.rsplit_once('@') else { return text.into() };
    let scheme = before.split_once("://").map(|(scheme, _)| format!("{scheme}://"));
    format!("{}…@{host}", scheme.unwrap_or_default())
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
        ];
        for (text, want) in rows {
            assert_eq!(without_userinfo(text), want, "{text}");
        }
    }
}
