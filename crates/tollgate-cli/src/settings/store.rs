//! Settings of the store.

use std::fmt;
use std::time::Duration;

use tollgate_redis::StoreUrl;

use super::{ServerSettings, parse_duration};
use crate::cli::Report;

/// Most stores beside `--store`. Bound: the stores that a check's terms can name.
const SECOND_STORES_MAX: usize = 15;

/// The value of `--store`.
#[derive(Clone, Debug)]
pub(crate) enum StoreChoice {
    /// The memory of this process.
    Memory,
    /// A Redis that other servers use as well.
    Redis(Box<StoreUrl>),
}

/// Shows the store without passwords.
impl fmt::Display for StoreChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreChoice::Memory => f.write_str("memory"),
            StoreChoice::Redis(url) => url.fmt(f),
        }
    }
}

/// The value of `--second-store`: a store that rules can name.
#[derive(Clone, Debug)]
pub(crate) struct NamedStore {
    pub(crate) name: Box<str>,
    pub(crate) url: Box<StoreUrl>,
}

pub(crate) fn choice(text: &str) -> Result<StoreChoice, String> {
    match text {
        "memory" => Ok(StoreChoice::Memory),
        _ if !text.contains("://") => Err("unknown store: write `memory` or a URL such as \
             redis://127.0.0.1:6379"
            .into()),
        _ => url(text).map(StoreChoice::Redis),
    }
}

fn url(text: &str) -> Result<Box<StoreUrl>, String> {
    StoreUrl::parse(text).map(Box::new).map_err(|error| error.to_string())
}

pub(super) fn named(text: &str) -> Result<NamedStore, String> {
    let form = "write NAME=URL, such as big=redis://127.0.0.1:6380";
    let Some((name, address)) = text.split_once('=') else { return Err(form.into()) };
    let right = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > 64 || !name.chars().all(right) {
        return Err(format!("a name has 1 to 64 letters, digits, _ and -: {form}"));
    }
    if name == "default" {
        return Err("`default` is the store of --store: choose another name".into());
    }
    Ok(NamedStore { name: name.into(), url: url(address)? })
}

pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text)?;
    let (least, most) = (Duration::from_millis(1), Duration::from_secs(1));
    match (least..=most).contains(&timeout) {
        true => Ok(timeout),
        false => Err("callers wait this long when the store fails: write 1ms to 1s".into()),
    }
}

/// Checks the settings of stores together.
pub(super) fn check(settings: &ServerSettings) -> Result<(), Report> {
    let named = &settings.second_store;
    if let StoreChoice::Memory = settings.store {
        return match named.first() {
            None => Ok(()),
            Some(one) => Err(Report::new(format!(
                "--second-store {} needs a shared --store, and --store is memory",
                one.name
            ))
            .hint("write --store redis://HOST:PORT as well")),
        };
    }
    if settings.snapshot.is_some() {
        return Err(Report::new(
            "--snapshot saves counters in memory, but --store keeps them in a shared store",
        )
        .hint("leave out --snapshot: counters in the store survive a restart of this server"));
    }
    if named.len() > SECOND_STORES_MAX {
        return Err(Report::new(format!(
            "--second-store is given {} times, and at most {SECOND_STORES_MAX} are possible",
            named.len()
        )));
    }
    let twice = named
        .iter()
        .enumerate()
        .find(|(at, one)| named[..*at].iter().any(|other| other.name == one.name));
    match twice {
        None => Ok(()),
        Some((_, one)) => Err(Report::new(format!("--second-store names {} twice", one.name))
            .hint("give each store a name of its own")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_store_is_told_without_its_password() {
        assert!(matches!(choice("memory"), Ok(StoreChoice::Memory)));
        let shown = choice("redis://user:hunter2@127.0.0.1:6379/3").unwrap().to_string();
        assert!(shown.contains("127.0.0.1:6379") && !shown.contains("hunter2"), "{shown}");
        assert!(!format!("{:?}", choice("redis://u:hunter2@h").unwrap()).contains("hunter2"));
        for wrong in ["disk", "", "mysql://u:hunter2@h", "redis://u:hunter2@h:x"] {
            let error = choice(wrong).unwrap_err();
            assert!(!error.is_empty() && !error.contains("hunter2"), "{wrong}: {error}");
        }
        assert_eq!(&*named("big-1=redis://127.0.0.1").unwrap().name, "big-1");
        for wrong in ["redis://h", "=redis://h", "a b=redis://h", "default=redis://h", "a=memory"] {
            assert!(named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn timeouts_have_bounds() {
        assert_eq!(timeout("10ms"), Ok(Duration::from_millis(10)));
        assert!(timeout("999us").is_err() && timeout("1001ms").is_err() && timeout("1s").is_ok());
    }
}
