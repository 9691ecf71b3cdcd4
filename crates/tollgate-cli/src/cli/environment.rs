//! Settings in the environment: names variables in errors, and finds misspelt ones.

use std::ffi::OsString;

use clap::builder::Arg;
use clap::error::{ContextKind, ContextValue};
use clap::{Command, CommandFactory, Error};
use tollgate_rules::suggest::suggest;

use super::Cli;

/// Prefix of all variables of Tollgate.
const PREFIX: &str = "TOLLGATE_";

/// The name of an option in an error: its variable, if the value comes from there.
pub(crate) fn name_of(arg: &Arg) -> String {
    variable_of(arg).unwrap_or_else(|| arg.to_string())
}

/// Names the variable instead of the flag in an error about a value from the environment.
pub(crate) fn blame_variable(mut error: Error) -> Error {
    let Some(ContextValue::String(blamed)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let mut command = Cli::command();
    command.build();
    let arg = arguments(&command).find(|arg| arg.to_string() == *blamed);
    if let Some(variable) = arg.and_then(variable_of) {
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    error
}

/// The variable that an option's value was read from: it is set, and the flag is not given.
fn variable_of(arg: &Arg) -> Option<String> {
    let variable = arg.get_env()?;
    std::env::var_os(variable)?;
    let flag = format!("--{}", arg.get_long()?);
    let is_flag = |word: OsString| {
        let word = word.to_string_lossy();
        word == flag || word.strip_prefix(&flag).is_some_and(|rest| rest.starts_with('='))
    };
    let in_words = std::env::args_os().skip(1).any(is_flag);
    (!in_words).then(|| variable.to_string_lossy().into_owned())
}

/// A variable with the prefix of Tollgate that is not one of its settings.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct UnknownVariable {
    pub(crate) name: String,
    /// The variable that was probably meant.
    pub(crate) meant: Option<String>,
}

/// The unknown variables of this process, sorted by name.
pub(crate) fn unknown_variables() -> Vec<UnknownVariable> {
    unknown_among(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

fn unknown_among(names: impl Iterator<Item = String>) -> Vec<UnknownVariable> {
    let mut command = Cli::command();
    command.build();
    let known: Vec<String> = arguments(&command)
        .filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned()))
        .collect();
    let is_unknown = |name: &String| {
        name.starts_with(PREFIX) && !known.contains(name) && !is_of_kubernetes(name)
    };
    let mut unknown: Vec<String> = names.filter(is_unknown).collect();
    unknown.sort_unstable();
    let with_meant = |name: String| {
        let rest = |name: &'_ String| name.strip_prefix(PREFIX).unwrap_or_default().to_string();
        let rests: Vec<String> = known.iter().map(rest).collect();
        let meant = suggest(&rest(&name), rests.iter().map(String::as_str));
        let meant = meant.map(|meant| format!("{PREFIX}{meant}"));
        UnknownVariable { name, meant }
    };
    unknown.into_iter().map(with_meant).collect()
}

/// Returns true for variables that Kubernetes sets in every container of a namespace with a service called
/// `tollgate` or `tollgate-…`.
fn is_of_kubernetes(name: &str) -> bool {
    let is_port = |rest: &str| rest.is_empty() || rest.starts_with('_');
    name.ends_with("_SERVICE_HOST")
        || name.split_once("_SERVICE_PORT").is_some_and(|(_, rest)| is_port(rest))
        || name.rsplit_once("_PORT").is_some_and(|(_, rest)| {
            rest.is_empty() || rest.contains("_TCP") || rest.contains("_UDP")
        })
}

/// Every option of every command.
fn arguments(command: &Command) -> Box<dyn Iterator<Item = &Arg> + '_> {
    Box::new(command.get_arguments().chain(command.get_subcommands().flat_map(arguments)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variables_are_found_and_others_left_alone() {
        let names = [
            "TOLLGATE_LMIT",
            "TOLLGATE_LIMIT",
            "TOLLGATE_SERVER",
            "TOLLGATE_LISTEN",
            "TOLLGATE_STORE_TIMOUT",
            "TOLLGATE_PORT",
            "TOLLGATE_PORT_8080_TCP",
            "TOLLGATE_PORT_8080_TCP_ADDR",
            "TOLLGATE_SERVICE_HOST",
            "TOLLGATE_SERVICE_PORT",
            "TOLLGATE_SERVICE_PORT_HTTP",
            "TOLLGATE_ADMIN_SERVICE_HOST",
            "TOLLGATE_ADMIN_PORT_9190_TCP_PROTO",
            "PATH",
            "TOLLGATES",
        ];
        let unknown = unknown_among(names.iter().map(ToString::to_string));
        let told: Vec<_> =
            unknown.iter().map(|one| (one.name.as_str(), one.meant.as_deref())).collect();
        let want = [
            ("TOLLGATE_LISTEN", None),
            ("TOLLGATE_LMIT", Some("TOLLGATE_LIMIT")),
            ("TOLLGATE_STORE_TIMOUT", Some("TOLLGATE_STORE_TIMEOUT")),
        ];
        assert_eq!(told, want);
    }
}
