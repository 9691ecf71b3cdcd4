//! Values that are URLs and may hold a password: errors do not repeat them.

use std::ffi::OsStr;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};

use crate::cli::environment;

/// A clap value parser whose errors do not repeat the value, unlike those of a plain function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UrlValue<T>(pub(crate) fn(&str) -> Result<T, String>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for UrlValue<T> {
    type Value = T;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, Error> {
        let text = StringValueParser::new().parse_ref(command, arg, value)?;
        (self.0)(&text).map_err(|problem| {
            let arg = arg.map(environment::name_of).unwrap_or_default();
            let problem = format!("invalid value for '{arg}': {problem}\n");
            Error::raw(ErrorKind::ValueValidation, problem).with_cmd(command)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error message for a wrong value.
    fn error_of(value: &str) -> String {
        let wrong: fn(&str) -> Result<(), String> = |_| Err("it is wrong".into());
        let store = Arg::new("store").long("store").value_delimiter(' ');
        let command = Command::new("serve").arg(store.value_parser(UrlValue(wrong)));
        let error = command.try_get_matches_from(["serve", &format!("--store={value}")]);
        error.expect_err("it is wrong").to_string()
    }

    #[test]
    fn values_are_not_shown() {
        // A part of a password may stand anywhere: before a comma or a space, after a question mark.
        for value in ["redis://u:hunter2@h", "x=redis://u:hunter2 x@h", "hunter2", "a?b=hunter2"] {
            let error = error_of(value);
            assert!(!error.contains("hunter2"), "{value}: {error}");
            assert!(error.contains("--store") && error.contains("it is wrong"), "{error}");
        }
    }
}
