//! `tollgate keys override`: sets other limits for one caller at run time.

use std::time::Duration;

use clap::ArgGroup;
use jiff::Timestamp;
use serde_json::{Value, json};
use tollgate::{Clock, Micros, SystemClock, Wait};

use super::CallerArgs;
use super::report::CompletedAction;
use crate::settings::parse_duration;

/// Give a caller its own limits, or remove them
#[derive(Debug, clap::Args)]
#[command(
    override_usage = "tollgate keys override [OPTIONS] <RULE> <KEY> --limit <RATE>...\n       \
                      tollgate keys override [OPTIONS] <RULE> <KEY> --remove",
    group = ArgGroup::new("what").args(["limits", "remove"]).required(true)
)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) caller: CallerArgs,

    /// Limit instead of the rule's, such as 100/second; may be given several times
    #[arg(long = "limit", value_name = "RATE")]
    limits: Vec<String>,

    /// End of the override, such as 2026-12-31T23:59:59Z; without an end unless given
    #[arg(long, value_name = "INSTANT", conflicts_with_all = ["time", "remove"])]
    until: Option<String>,

    /// Duration of the override, such as 2h
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration, conflicts_with = "remove")]
    time: Option<Duration>,

    /// Remove an override set this way; one from a rules file stays
    #[arg(long)]
    remove: bool,
}

impl Args {
    pub(super) fn completed_action(&self) -> CompletedAction {
        if self.remove { CompletedAction::OverrideRemoved } else { CompletedAction::OverrideSet }
    }

    pub(super) fn body(&self) -> Value {
        if self.remove {
            return json!({ "override": null });
        }
        let mut fields = json!({ "limits": self.limits });
        // The server checks instants: it has the one parser for them.
        let until = self.time.map(|time| instant_after(SystemClock.now(), time));
        if let Some(until) = until.or_else(|| self.until.clone()) {
            fields["until"] = until.into();
        }
        json!({ "override": fields })
    }
}

/// The instant after this time, in whole seconds, rounded up.
fn instant_after(now: Micros, time: Duration) -> String {
    let at_s = now.after(Wait::at_least(time)).as_u64().div_ceil(1_000_000);
    let at_s = i64::try_from(at_s).expect("instants end below 2^53");
    Timestamp::from_second(at_s).unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_an_override_is_not_early() {
        let rows = [
            (1_795_000_000_000_000, 1_000, "2026-11-18T11:06:41Z"),
            (1_795_000_000_000_000, 1, "2026-11-18T11:06:41Z"),
            (1_795_000_000_000_001, 1_000, "2026-11-18T11:06:42Z"),
            (0, 86_400_000, "1970-01-02T00:00:00Z"),
        ];
        for (now, millis, want) in rows {
            assert_eq!(instant_after(Micros::new(now), Duration::from_millis(millis)), want);
        }
    }
}
