//! Warnings at run time that the layer is probably misused. Each is reported once for a layer.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Number of requests of a layer that are checked for signs of misuse; later requests cost nothing.
pub const WATCHED_REQUESTS: u32 = 10_000;

/// A sign that the layer is misused. `Display` says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Warning {
    /// A request has a forwarding header, and its peer is not a trusted proxy.
    ForwardedIgnored,
    /// One request passed the same layer twice.
    AppliedTwice,
    /// Requests from several callers all had one key.
    OneKey,
    /// A request had no key.
    NoKey,
    /// The gate uses rules, and the layer did not find the address of the connection's peer.
    NoPeer,
}

impl Warning {
    /// All warnings.
    pub const ALL: [Warning; 5] = [
        Warning::ForwardedIgnored,
        Warning::AppliedTwice,
        Warning::OneKey,
        Warning::NoKey,
        Warning::NoPeer,
    ];
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Warning::ForwardedIgnored => {
                "a request has X-Forwarded-For or Forwarded and its peer is not a trusted proxy: behind \
                 a proxy all callers count as that proxy. Name your proxies, as in \
                 `KeyFrom::client_ip_behind(TrustedProxies::new([\"10.0.0.0/8\"])?)`, or in rules \
                 `identify: { trusted_peers: [10.0.0.0/8] }`. Without a proxy a client made it up, and \
                 nothing is wrong"
            }
            Warning::AppliedTwice => {
                "a request passed the same layer twice and was charged twice: apply it once, to the \
                 router or to its routes"
            }
            Warning::OneKey => {
                "the first 1,000 requests came from several callers and all had one key: they share one \
                 limit. Look at the layer's key, or say `KeyFrom::global()` if that is meant"
            }
            Warning::NoKey => {
                "a request has no key, so it shares one with all others that have none. If the key is the \
                 client's address, tell the layer where to find it with `.peer(…)`; with axum also serve \
                 with `into_make_service_with_connect_info`"
            }
            Warning::NoPeer => {
                "the layer does not find the address at the other end of a connection, so rules with \
                 `{ip}` in their key do not apply and no proxy is trusted: tell it where to look with \
                 `.peer(…)`; with axum also serve with `into_make_service_with_connect_info`"
            }
        })
    }
}

/// Writes a warning to standard error, if it is open.
pub(crate) fn write(warning: Warning) {
    // Not `eprintln!`, which panics where standard error is closed.
    let _ = writeln!(io::stderr(), "warning: tollgate-tower: {warning}");
}

/// The state of misuse detection: requests checked and warnings reported.
#[derive(Debug, Default)]
pub(crate) struct MisuseWatch {
    requests: AtomicU32,
    /// A bit for each reported warning. Bound: [`Warning::ALL`].
    reported: AtomicU8,
}

impl MisuseWatch {
    /// Returns true if this request is to be checked.
    pub(crate) fn watches(&self) -> bool {
        // The counter is written for the first requests only: later it would be a cache line that all
        // processors contend for.
        self.requests.load(Ordering::Relaxed) < WATCHED_REQUESTS
            && self.requests.fetch_add(1, Ordering::Relaxed) < WATCHED_REQUESTS
    }

    /// Returns true the first time that a warning is reported.
    pub(crate) fn is_first_report(&self, warning: Warning) -> bool {
        let bit = 1 << warning as u8;
        self.reported.load(Ordering::Relaxed) & bit == 0
            && self.reported.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_news_once_and_the_first_requests_are_watched() {
        let watch = MisuseWatch::default();
        for warning in Warning::ALL {
            assert_eq!(
                [watch.is_first_report(warning), watch.is_first_report(warning)],
                [true, false]
            );
        }
        let watched = (0..WATCHED_REQUESTS + 5).filter(|_| watch.watches()).count();
        assert_eq!(watched, WATCHED_REQUESTS as usize);
    }
}
