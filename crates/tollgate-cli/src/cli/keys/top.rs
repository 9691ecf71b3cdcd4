//! `tollgate keys top`: the callers with the most requests, or the most refusals.

use std::fmt;

use http::Method;
use serde::Deserialize;

use crate::cli::client::ClientRequest;
use crate::cli::human_output::{printable, table};

/// Show the callers with the most requests, or the most refusals
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Order of the list
    #[arg(long, value_name = "ORDER", default_value = "requests")]
    by: TopOrderArg,

    /// Number of callers to show, at most 100
    #[arg(
        short,
        long = "number",
        value_name = "N",
        default_value = "20",
        value_parser = clap::value_parser!(u16).range(1..=100)
    )]
    number: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum TopOrderArg {
    Requests,
    Refusals,
}

impl fmt::Display for TopOrderArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TopOrderArg::Requests => "requests",
            TopOrderArg::Refusals => "refusals",
        })
    }
}

/// The response of `/api/top`.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct TopReply {
    /// Seconds that are counted: at most this, at least half of it.
    window_s: Option<u64>,
    pub(crate) top: Vec<TopReplyCaller>,
}

/// A caller of `/api/top`.
#[derive(Debug, Deserialize)]
pub(crate) struct TopReplyCaller {
    pub(crate) rule: String,
    pub(crate) key: String,
    /// The hash of the key, as in log lines.
    hash: Option<String>,
    pub(crate) count: u64,
    /// Largest possible error of the count, which may be too high.
    #[serde(default)]
    error: u64,
    pub(crate) refused: Option<u64>,
    /// The same for refusals.
    #[serde(default)]
    refused_error: u64,
}

impl Args {
    pub(super) fn request(&self) -> ClientRequest {
        let path = format!("/api/top?by={}&n={}", self.by, self.number);
        ClientRequest { method: Method::GET, path, body: None }
    }

    pub(super) fn human_text(&self, answer: &TopReply) -> String {
        let by = self.by;
        let when = match answer.window_s {
            Some(seconds) => format!(" in the last {} to {seconds} s", seconds / 2),
            None => String::new(),
        };
        if answer.top.is_empty() {
            return format!("No {by}{when}.\n");
        }
        let row = |one: &TopReplyCaller| {
            let count = range_text(one.count, one.error);
            // In the order of refusals, the count is that of refusals already.
            let refused = one.refused.filter(|_| by == TopOrderArg::Requests);
            let refused = refused.map(|refused| range_text(refused, one.refused_error));
            let refused = refused.unwrap_or_default();
            let hash = one.hash.as_deref().map(printable).unwrap_or_default();
            [printable(&one.rule), printable(&one.key), count, refused, hash]
        };
        let rows: Vec<_> = answer.top.iter().map(row).collect();
        let head = ["rule", "key", &by.to_string(), "refused", "in log lines"];
        format!("The most {by}{when}.\n\n{}", table(head, &rows))
    }
}

/// A number that may be too high by `error`.
fn range_text(number: u64, error: u64) -> String {
    match error {
        0 => number.to_string(),
        error => format!("{} to {number}", number.saturating_sub(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_get_a_table_of_callers() {
        let text = r#"{"by":"requests","window_s":120,"top":[
            {"rule":"api","key":"user=42","hash":"1f2e","count":120,"error":0,"refused":3,
             "refused_error":2},
            {"rule":"login","key":"ip=192.0.2.1\u001b[2J","count":9,"error":4,"refused":0}]}"#;
        let answer: TopReply = serde_json::from_str(text).unwrap();
        let rows = [
            (
                TopOrderArg::Requests,
                "The most requests in the last 60 to 120 s.\n\n\
                 \x20 rule   key                    requests  refused  in log lines\n\
                 \x20 api    user=42                120       1 to 3   1f2e\n\
                 \x20 login  ip=192.0.2.1\\u{1b}[2J  5 to 9    0\n",
            ),
            (
                TopOrderArg::Refusals,
                "The most refusals in the last 60 to 120 s.\n\n\
                 \x20 rule   key                    refusals  in log lines\n\
                 \x20 api    user=42                120       1f2e\n\
                 \x20 login  ip=192.0.2.1\\u{1b}[2J  5 to 9\n",
            ),
        ];
        for (by, want) in rows {
            assert_eq!(Args { by, number: 20 }.human_text(&answer), want);
        }
        let nobody = TopReply { window_s: None, top: Vec::new() };
        assert_eq!(
            Args { by: TopOrderArg::Refusals, number: 5 }.human_text(&nobody),
            "No refusals.\n"
        );
    }
}
